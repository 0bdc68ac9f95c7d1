"""The grammar of programs that begin in the state of a seed: known plans, with values from this state.

A program that fits the grammar can nearly always be executed. A bundle whose initial state is made by calls
that the simulator writes has no such grammar (`Tools.spec_schema`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import cast

from genenv.environments.common import closed_object
from genenv.tools.discover.recipes import Link
from genenv.tools.discover.state_values import ANY
from genenv.tools.generate.plans import Plan
from genenv.tools.language.wording import left_out, omittable
from genenv.tools.spec import Program, ToolsParameters
from genenv.tools.toolbox import Toolbox
from genenv.types import Json, JsonObject, Seed
from genenv.untrusted.patterns import is_simple

_ABOUT = frozenset(("title", "description", "default", "example", "examples"))
_BOUNDS = (
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
)
_MOST_NUMBER = 2**53
_MOST_VALUES = 64
"""Maximum number of values that the grammar lists for a parameter; with more, the tool's schema decides."""


def schema_from_state(toolbox: Toolbox, seed: Seed, own: ToolsParameters) -> JsonObject:
    """Return the JSON schema of programs that begin in the state of a seed.

    Args:
        toolbox: the tools that the programs call.
        seed: the seed whose state they begin in.
        own: the parameters of the seed's program, which the schema always allows.
    """
    program = Program.model_validate(seed.spec)
    steps = _Steps(toolbox, program)
    alternatives: list[Json] = []
    options = [
        *toolbox.options(program.calls[0].tool),
        {k: (v,) for k, v in own.model_dump().items()},
    ]
    for option in options:
        for tools in option["tools"]:
            for gap in option.get("gap", ("none",)):
                plan = Plan.read(str(tools))
                tool = toolbox.world.tools[plan.tools[0]]
                omits = omittable(tool, toolbox.wordings) if gap == "user_answers" else []
                for calls in steps.ways(plan, str(gap)):
                    alternatives.append(_program(option, gap, omits, calls, seed.spec["before"]))
    distinct = {repr(one): one for one in alternatives}
    return {"anyOf": list(distinct.values()), "$defs": steps.definitions}


def _program(
    option: Mapping[str, Sequence[Json]], gap: Json, omits: Sequence[str], calls: Sequence[Json], before: Json
) -> JsonObject:
    names = ("n_calls", "chained", "answer", "n_tools")
    fields: dict[str, Json] = {name: {"enum": list(option[name])} for name in names}
    fields["gap"] = {"const": gap}
    if omits:
        fields["omits"] = {"enum": list(omits)}
    fields["calls"] = {"type": "array", "prefixItems": list(calls), "items": False, "minItems": len(calls)}
    fields |= {"questions": {"const": []}, "before": {"const": before}}
    return closed_object(fields)


class _Steps:
    """Builds the schema of each call once, as a definition that all programs share."""

    def __init__(self, toolbox: Toolbox, program: Program) -> None:
        self._toolbox, self._values = toolbox, toolbox.values(program)
        self._names: dict[tuple[object, ...], str] = {}
        self.definitions: dict[str, Json] = {}

    def ways(self, plan: Plan, gap: str) -> list[list[Json]]:
        """Return the calls of a plan as schemas, one list for each combination of its links."""
        if gap == "missing_info":
            tool = self._toolbox.world.tools[plan.tools[0]]
            return [[self._step(tool.name, without=one)] for one in left_out(tool, self._toolbox.wordings)]
        links = itertools.product(*(self._links(plan, number) for number in range(len(plan.tools))))
        return [
            [
                self._step(name, link=link, number=number, reads_for=after)
                for number, (name, link, after) in enumerate(
                    zip(plan.tools, some, (*some[1:], None), strict=True)
                )
            ]
            for some in links
        ]

    def _links(self, plan: Plan, number: int) -> Sequence[Link | None]:
        if number not in plan.links:
            return [None]
        pair = plan.tools[number - 1 : number + 1]
        links = [link for link in self._toolbox.graph.links if (link.reader, link.user) == pair]
        return [link for link in links if ANY not in link.kind.split(".")]

    def _step(
        self,
        name: str,
        *,
        link: Link | None = None,
        number: int = 0,
        without: str = "",
        reads_for: Link | None = None,
    ) -> Json:
        """Return a reference to a call's schema; `reads_for` links the next call to the result."""
        fixed = dict(reads_for.first) if reads_for else {}
        linked = (link.parameter, number) if link else ()
        reader = (reads_for.user, reads_for.parameter) if reads_for and fixed else ()
        key = self._names.setdefault((name, linked, without, reader), f"call{len(self._names)}")
        if key not in self.definitions:
            tool, absent = self._toolbox.world.tools[name], link.parameter if link else without
            args: JsonObject = {
                "type": "object",
                "properties": {
                    one: {"const": fixed[one]} if one in fixed else self._value(name, one)
                    for one in tool.properties
                    if one != absent
                },
                "required": [
                    one for one in tool.properties if (one in tool.required or one in fixed) and one != absent
                ],
                "additionalProperties": False,
            }
            uses: Json = []
            if link:
                path = link.kind.split(".")
                uses = [{"parameter": link.parameter, "call": number - 1, "path": path}]
            self.definitions[key] = closed_object(
                {"tool": {"const": name}, "args": args, "uses": {"const": uses}}
            )
        return {"$ref": f"#/$defs/{key}"}

    def _value(self, name: str, parameter: str) -> Json:
        """Return the schema of an argument: values from the state or from users, else the tool's schema."""
        tool = self._toolbox.world.tools[name]
        known = self._values.get(self._toolbox.graph.recipes[name].ways.get(parameter, ""), ())
        if 0 < len(known) <= _MOST_VALUES:
            return {"enum": list(known)}
        return writable(tool.resolved(tool.properties[parameter]))


def writable(schema: JsonObject) -> JsonObject:
    """Return a parameter's schema without the parts that grammars do not support, such as empty ranges.

    The simulator's output is validated against the complete schema afterwards.

    Args:
        schema: a schema without references.
    """
    kept = {name: one for name, one in schema.items() if name not in _ABOUT}
    for low, high in _BOUNDS:
        least, most = cast("float", kept.get(low, -_MOST_NUMBER)), cast("float", kept.get(high, _MOST_NUMBER))
        if not -_MOST_NUMBER <= least <= most <= _MOST_NUMBER:
            kept = {name: one for name, one in kept.items() if name not in (low, high)}
    if not is_simple(str(kept.get("pattern", ""))):
        del kept["pattern"]
    for name, one in kept.items():
        if name in ("items", "additionalProperties") and isinstance(one, Mapping):
            kept[name] = writable(one)
        elif name == "properties":
            kept[name] = {
                inner: writable(cast(JsonObject, part)) for inner, part in cast(JsonObject, one).items()
            }
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            kept[name] = [writable(part) for part in cast("Sequence[JsonObject]", one)]
    return kept
