"""The grammars of programs that a simulator writes.

If a bundle has several initial states, a program begins in the state of its seed and follows a known plan,
with values from this state. Else it is any calls that agree with its difficulty fields, with ids of records
that exist.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from genenv.environments.common import MOST_SCHEMA_CHARS, closed_object
from genenv.tools.discover.recipes import Link
from genenv.tools.discover.slots import alone, arguments, items, slots
from genenv.tools.discover.state_values import ANY
from genenv.tools.generate.plans import Plan, sizes_shown
from genenv.tools.language.wording import left_out, omittable
from genenv.tools.spec import Program, ToolsParameters
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Tool
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
_MOST_CHARS = 4000
"""Maximum length of the listed values of a parameter, together."""
_KEY: JsonObject = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
_PATH: JsonObject = {"type": "array", "items": _KEY, "maxItems": 16}
_CALL: JsonObject = {"type": "integer", "minimum": 0, "maximum": 7}
_EMPTY: JsonObject = {"const": []}
_MOST_BEFORE = 8
"""Maximum number of calls before a task, as `Program.before` has it."""


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


def schema_of_calls(toolbox: Toolbox, seed: Seed) -> JsonObject:
    """Return the JSON schema of programs of any calls, and of any calls before them that set up the state.

    If it would be longer than servers take, calls need not agree with the program's difficulty fields; if it
    still would be, no ids are listed either. The gate refuses what is wrong.

    Args:
        toolbox: the tools that the programs call.
        seed: its tools, or the tools of their groups, are those that a program may call.
    """
    names = tuple(toolbox.tools_in_prompt(seed))
    known = toolbox.schemas_of_calls
    if names not in known:
        values = _known_values(toolbox)
        schema = _exact(toolbox, _Calls(toolbox, names, values))
        for some in (values, _NO_VALUES):
            if len(str(schema)) > MOST_SCHEMA_CHARS:
                schema = _loose(toolbox, _Calls(toolbox, names, some))
        known[names] = schema
    return known[names]


def _exact(toolbox: Toolbox, calls: _Calls) -> JsonObject:
    """Return a schema with an alternative for each combination of the difficulty fields."""
    alternatives: list[Json] = []
    for n, chained, answer, gap in _shapes(toolbox, calls):
        if not (sizes := _sizes(toolbox, n, gap)):
            continue
        fields: dict[str, Json] = {"n_calls": {"const": n}, "chained": {"const": chained}}
        fields |= {"answer": {"const": answer}, "n_tools": {"enum": [*sizes]}}
        if toolbox.has_gaps:
            fields["gap"] = {"const": gap}
        if gap == "user_answers":
            fields["omits"] = calls.omitted
        steps = [calls.first(gap)]
        for number in range(1, n):
            after = calls.after(number - 1) if chained else calls.first()
            must = not chained or n == 2 or gap == "user_answers"
            steps.append(after if must else {"anyOf": [calls.first(), after]})
        fields["calls"] = {"type": "array", "prefixItems": steps, "items": False, "minItems": n}
        fields["questions"] = calls.questions(n - 1) if answer else _EMPTY
        fields["before"] = calls.before
        alternatives.append(closed_object(fields))
    return {"anyOf": alternatives, "$defs": calls.definitions}


def _loose(toolbox: Toolbox, calls: _Calls) -> JsonObject:
    """Return a schema that leaves it to the gate whether calls agree with the difficulty fields."""
    shapes = list(_shapes(toolbox, calls))
    n, chained, answer, gaps = ([*dict.fromkeys(one)] for one in zip(*shapes, strict=True))
    sizes = dict.fromkeys(size for shape in shapes for size in _sizes(toolbox, shape[0], shape[3]))
    fields: dict[str, Json] = {"n_calls": {"enum": n}, "chained": {"enum": chained}}
    fields |= {"answer": {"enum": answer}, "n_tools": {"enum": [*sizes]}}
    fields |= {"gap": {"enum": gaps}} if toolbox.has_gaps else {}
    fields |= {"omits": calls.omitted} if "user_answers" in gaps else {}
    fields["calls"] = {"type": "array", "items": calls.any_call, "minItems": 1, "maxItems": max(n)}
    question = closed_object({"call": _CALL, "path": _PATH})
    fields["questions"] = {"type": "array", "items": question, "maxItems": 4} if True in answer else _EMPTY
    fields["before"] = calls.before
    required: Json = [name for name in fields if name != "omits"]
    return {**closed_object(fields), "required": required, "$defs": calls.definitions}


def _shapes(toolbox: Toolbox, calls: _Calls) -> Iterator[tuple[int, bool, bool, str]]:
    """Yield the number of calls, whether they are chained, whether something is asked for, and the gap."""
    single = toolbox.settings.mode == "single"
    for n in range(1, toolbox.settings.most_calls + 1):
        for chained, answer in itertools.product((False, True), repeat=2):
            if (chained and (n == 1 or not calls.uses)) or (single and (chained or answer)):
                continue
            yield n, chained, answer, "none"
            if toolbox.user_answers and calls.omittable and (n == 1 or chained):
                yield n, chained, answer, "user_answers"
    if calls.left_out:
        yield 1, False, False, "missing_info"
    if toolbox.has_gaps and toolbox.bundle.about.alike:
        yield 1, False, False, "no_tool"
    if toolbox.refusals:
        yield 1, False, False, "refused"


def _sizes(toolbox: Toolbox, n: int, gap: str) -> list[int]:
    """Return how many tools a task of some calls may show."""
    shown, there = toolbox.bundle.about.shown, len(toolbox.world.tools)
    sizes = [size for size in sizes_shown(there, n, shown) if size in shown]
    return [size for size in sizes if size < there] if gap == "no_tool" else sizes


@dataclass(frozen=True, slots=True)
class _Known:
    """Values that arguments may take."""

    held: Mapping[str, Sequence[Json]] = field(default_factory=dict[str, Sequence[Json]])
    """Values of the state and of users, by kind."""
    given: Mapping[tuple[str, str], Sequence[Json]] = field(
        default_factory=dict[tuple[str, str], Sequence[Json]]
    )
    """Arguments of the tasks of a bundle, by tool and parameter."""

    def schema(self, toolbox: Toolbox, name: str, parameter: str) -> JsonObject:
        """Return the schema of an argument: the tool's, with known values, if these are few.

        Args:
            toolbox: the tools.
            name: the name of the tool.
            parameter: its parameter.
        """
        tool, recipe = toolbox.world.tools[name], toolbox.graph.recipes.get(name)
        schema = writable(tool.resolved(tool.properties[parameter]))
        there = slots(tool)
        for slot, kind in recipe.ways.items() if recipe else ():
            outer, _, inner = (slot, "", "") if slot in tool.properties else slot.partition(".")
            held = {repr(one): one for one in self.held.get(kind, ())}
            if outer != parameter or slot not in there or not 0 < len(held) <= _MOST_VALUES:
                continue
            given = [*itertools.chain(*map(items, self.given.get((name, parameter), ())))]
            if inner:
                given = [one[inner] for one in given if isinstance(one, Mapping) and inner in one]
            of, part = alone(tool, slot)
            values = itertools.chain(*map(items, (*arguments(of, part, [*held.values()]), *given)))
            if listed := _listed([*{repr(one): one for one in values}.values()]):
                schema = _placed(tool, schema, inner, listed)
        return schema


_NO_VALUES = _Known()


def _placed(tool: Tool, schema: JsonObject, inner: str, listed: JsonObject) -> JsonObject:
    """Return a schema with another one in the place of its items, or of a field of its records."""
    schema = tool.resolved(schema)
    if schema.get("type") == "array":
        return {**schema, "items": _placed(tool, cast(JsonObject, schema.get("items", {})), inner, listed)}
    if not inner:
        return listed
    fields = cast("Mapping[str, JsonObject]", schema.get("properties", {}))
    placed = {inner: _placed(tool, fields[inner], "", listed)} if inner in fields else {}
    return {**schema, "properties": {**fields, **placed}} if placed else schema


def _known_values(toolbox: Toolbox) -> _Known:
    """Return the values of the first state, and those that the tasks of the bundle take.

    Calls before a task make records. A random variation may take another one, which no simulator can write.
    """
    given = defaultdict[tuple[str, str], list[Json]](list)
    for program in toolbox.bundle.base.values():
        for step in (*program.before, *program.calls):
            for name, value in step.args.items():
                given[step.tool, name].append(value)
    return _Known(toolbox.values_in(toolbox.world.play(toolbox.beginning).state), given)


def _listed(values: Sequence[Json]) -> JsonObject | None:
    """Return the schema of one of a few short values; None if the tool's schema is better.

    Grammars write numbers with a fraction in another form than JSON does, so these are not listed.
    """
    plain = all(isinstance(one, str | int | None) and not isinstance(one, bool) for one in values)
    if not plain or not 0 < len(values) <= _MOST_VALUES or sum(len(str(one)) for one in values) > _MOST_CHARS:
        return None
    return {"enum": [*values]}


class _Calls:
    """Builds the schema of each call once, as a definition that all programs share.

    Args:
        toolbox: the tools.
        names: the tools that may be called.
        values: the values that arguments may take.
    """

    def __init__(self, toolbox: Toolbox, names: Sequence[str], values: _Known) -> None:
        self._tools, self._graph = toolbox.world.tools, toolbox.graph
        self._names, self._argument = names, partial(values.schema, toolbox)
        self._writers = [name for name, one in toolbox.graph.recipes.items() if one.writes]
        self._numbers = {name: number for number, name in enumerate(self._tools)}
        self.definitions: dict[str, Json] = {}
        self.uses: dict[str, dict[str, list[str]]] = {}
        """The kinds of results that go into each parameter, by tool."""
        links = toolbox.graph.links
        for name in names:
            kinds = {
                parameter: [link.kind for link in links if (link.user, link.parameter) == (name, parameter)]
                for parameter in self._tools[name].properties
            }
            if taken := {one: found for one, found in kinds.items() if found or not links}:
                self.uses[name] = taken
        wordings = toolbox.wordings
        self.omittable = {one: found for one in names if (found := omittable(self._tools[one], wordings))}
        self.left_out = {one: found for one in names if (found := left_out(self._tools[one], wordings))}
        steps = [step for one in toolbox.bundle.base.values() for step in one.calls]
        questions = [asked for one in toolbox.bundle.base.values() for asked in one.questions]
        paths = [one.path for one in (*(use for step in steps for use in step.uses), *questions)]
        self._dotted = any("." in str(part) for path in paths for part in path)

    def _shared(self, key: str, schema: Callable[[], JsonObject]) -> JsonObject:
        """Return a reference to a definition, which is made when it is first wanted."""
        if key not in self.definitions:
            self.definitions[key] = schema()
        return {"$ref": f"#/$defs/{key}"}

    @property
    def omitted(self) -> JsonObject:
        """The name of an argument that the user may give later."""
        names = dict.fromkeys(one for found in self.omittable.values() for one in found)
        return self._shared("omitted", lambda: {"enum": [*names]})

    @property
    def before(self) -> JsonObject:
        """Calls that set up the initial state."""
        names = dict.fromkeys([*self._names, *self._writers])

        def calls() -> JsonObject:
            calls = {"anyOf": [self._call(name) for name in names]}
            return {"type": "array", "items": calls, "maxItems": _MOST_BEFORE}

        return self._shared("before", calls)

    def questions(self, call: int) -> JsonObject:
        """Questions about the result of a call: values that are worth asking for."""
        recipes = self._graph.recipes
        told = [kind for name in self._names if name in recipes for kind in recipes[name].told]
        path = self._shared("told", lambda: self._path(told))
        question = closed_object({"call": {"const": call}, "path": path})
        some: JsonObject = {"type": "array", "items": question, "minItems": 1, "maxItems": 4}
        return self._shared(f"questions{call}", lambda: some)

    def first(self, gap: str = "none") -> JsonObject:
        """A call with literal arguments; of a task with a gap, the first one."""
        if gap == "missing_info":
            calls = [self._call(name, without=one) for name, found in self.left_out.items() for one in found]
        else:
            calls = [self._call(name) for name in (self.omittable if gap == "user_answers" else self._names)]
        return self._shared(f"first_{gap}", lambda: {"anyOf": calls})

    def after(self, source: int) -> JsonObject:
        """A call that uses a value in the result of the call before it, `source`."""
        return self._shared(
            f"after{source}", lambda: {"anyOf": [self._call(name, source=source) for name in self.uses]}
        )

    @property
    def any_call(self) -> JsonObject:
        """A call with any arguments and any references."""

        def calls() -> JsonObject:
            names = [*dict.fromkeys(one for found in self.uses.values() for one in found)]
            use = closed_object({"parameter": {"enum": names}, "call": _CALL, "path": _PATH})
            uses: JsonObject = {"type": "array", "items": use} if names else _EMPTY
            return {"anyOf": [self._step(name, self._args(name, needed=False), uses) for name in self._names]}

        return self._shared("any", calls)

    def _call(self, name: str, *, without: str = "", source: int | None = None) -> JsonObject:
        """A call without one argument, or that uses values in the result of the call `source`."""
        which = f"{without and f'_without_{without}'}{'' if source is None else f'_after{source}'}"

        def call() -> JsonObject:
            args = self._args(name, without=without, needed=source is None)
            return self._step(name, args, _EMPTY if source is None else self._uses(name, source))

        return self._shared(f"call{self._numbers[name]}{_plain(which)}", call)

    def _step(self, name: str, args: JsonObject, uses: JsonObject) -> JsonObject:
        return closed_object({"tool": {"const": name}, "args": args, "uses": uses})

    def _args(self, name: str, *, without: str = "", needed: bool = True) -> JsonObject:
        tool = self._tools[name]

        def args() -> JsonObject:
            given = [one for one in tool.properties if one != without]
            return {
                "type": "object",
                "properties": {one: self._argument(name, one) for one in given},
                "required": [one for one in given if needed and one in tool.required],
                "additionalProperties": False,
            }

        which = f"{without and f'_without_{without}'}{'' if needed else '_some'}"
        return self._shared(f"args{self._numbers[name]}{_plain(which)}", args)

    def _uses(self, name: str, source: int) -> JsonObject:
        """References to values in the result of a call: those that go into the tool, as trying it showed."""
        ways: list[Json] = []
        for place, (parameter, kinds) in enumerate(self.uses[name].items()):
            path = self._shared(f"path{self._numbers[name]}_{place}", partial(self._path, kinds))
            use = {"parameter": {"const": parameter}, "call": {"const": source}, "path": path}
            ways.append(closed_object(use))
        return {"type": "array", "items": {"anyOf": ways}, "minItems": 1, "maxItems": len(ways)}

    def _path(self, kinds: Sequence[str]) -> JsonObject:
        """The paths in a result that match one of some kinds; any path, if there are none."""
        distinct = [*dict.fromkeys(kinds)]
        if self._dotted or not 0 < len(distinct) <= _MOST_VALUES:
            return _PATH
        paths: list[Json] = []
        for kind in distinct:
            keys = [
                _KEY if part == ANY else {"enum": [part, *([int(part)] if part.isdecimal() else [])]}
                for part in (kind.split(".") if kind else ())
            ]
            paths.append({"type": "array", "prefixItems": keys, "items": False, "minItems": len(keys)})
        return {"anyOf": paths}


def _plain(name: str) -> str:
    """Return a part of a definition's name without characters that references write otherwise."""
    return re.sub(r"\W", lambda found: f"_{ord(found[0])}", name)


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
        self._toolbox = toolbox
        self._argument = partial(_Known(toolbox.values(program)).schema, toolbox)
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
                    one: {"const": fixed[one]} if one in fixed else self._argument(name, one)
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
                path = link.kind.split(".") if link.kind else []
                uses = [{"parameter": link.parameter, "call": number - 1, "path": path}]
            self.definitions[key] = closed_object(
                {"tool": {"const": name}, "args": args, "uses": {"const": uses}}
            )
        return {"$ref": f"#/$defs/{key}"}


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
