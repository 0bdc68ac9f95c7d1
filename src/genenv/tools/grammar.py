"""The grammars of programs that a simulator writes.

If a bundle has several initial states, a program begins in the state of its seed and follows a known plan,
with values from this state. Else it is any calls that agree with its difficulty fields, with ids of records
that exist.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from genenv.environments.common import MOST_SCHEMA_CHARS, closed_object
from genenv.tools.discover.recipes import Link
from genenv.tools.discover.state_values import ANY
from genenv.tools.generate.plans import Plan, sizes_shown
from genenv.tools.language.wording import left_out, omittable
from genenv.tools.spec import UNSOLVABLE, Program, ToolsParameters
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
_KEY: JsonObject = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
_PATH: JsonObject = {"type": "array", "items": _KEY, "minItems": 1, "maxItems": 16}
_NONE: JsonObject = {"const": []}
_PLACE: JsonObject = {"type": "integer", "minimum": 0, "maximum": 7}
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

    Args:
        toolbox: the tools that the programs call.
        seed: its tools, or the tools of their groups, are those that a program may call.
    """
    names = tuple(toolbox.tools_in_prompt(seed))
    exact = _exact(toolbox, _Calls(toolbox, names))
    return exact if len(str(exact)) <= MOST_SCHEMA_CHARS else _short(toolbox, _Calls(toolbox, names))


def _short(toolbox: Toolbox, calls: _Calls) -> JsonObject:
    """Return a schema that leaves it to the gate whether calls agree with the difficulty fields."""
    most = toolbox.settings.most_calls
    fields: dict[str, Json] = {"n_calls": {"enum": [*range(1, most + 1)]}}
    fields |= {"chained": {"type": "boolean"}, "answer": {"type": "boolean"}}
    fields["n_tools"] = calls.shown(1)
    gaps = ["none", *UNSOLVABLE, *(["user_answers"] if toolbox.user_answers else [])]
    fields |= {"gap": {"enum": gaps}} if toolbox.has_gaps else {}
    fields |= {"omits": calls.parameter} if toolbox.user_answers else {}
    fields["calls"] = {"type": "array", "items": calls.of_any_kind, "minItems": 1, "maxItems": most}
    question = closed_object({"call": _PLACE, "path": _PATH})
    fields["questions"] = {"type": "array", "items": question, "maxItems": 4}
    fields["before"] = {"type": "array", "items": calls.of_any_kind, "maxItems": _MOST_BEFORE}
    required: Json = [name for name in fields if name != "omits"]
    return {**closed_object(fields), "required": required, "$defs": calls.definitions}


def _exact(toolbox: Toolbox, calls: _Calls) -> JsonObject:
    """Return a schema with an alternative for each combination of the difficulty fields."""
    alternatives: list[Json] = []
    for n, chained, answer, gap in _shapes(toolbox, links=bool(calls.users)):
        fields: dict[str, Json] = {"n_calls": {"const": n}, "chained": {"const": chained}}
        fields["answer"] = {"const": answer}
        fields["n_tools"] = calls.shown(n)
        if toolbox.has_gaps:
            fields["gap"] = {"const": gap}
        if gap == "user_answers":
            fields["omits"] = calls.parameter
        steps = [calls.first(lacking=gap == "missing_info")]
        linked = gap == "user_answers" or (chained and n == 2)
        steps += [calls.later(number, linked=linked if chained else None) for number in range(1, n)]
        fields["calls"] = {"type": "array", "prefixItems": steps, "items": False, "minItems": n}
        fields["questions"] = calls.questions(n - 1) if answer else _NONE
        fields["before"] = calls.before
        alternatives.append(closed_object(fields))
    return {"anyOf": alternatives, "$defs": calls.definitions}


def _shapes(toolbox: Toolbox, *, links: bool) -> Iterator[tuple[int, bool, bool, str]]:
    """Yield the number of calls, whether they are chained, whether something is asked for, and the gap."""
    single = toolbox.settings.mode == "single"
    for n in range(1, toolbox.settings.most_calls + 1):
        for chained, answer in itertools.product((False, True), repeat=2):
            if (chained and (n == 1 or not links)) or (single and (chained or answer)):
                continue
            yield n, chained, answer, "none"
            if toolbox.user_answers and (n == 1 or chained):
                yield n, chained, answer, "user_answers"
    if toolbox.has_gaps:
        yield from ((1, False, False, gap) for gap in UNSOLVABLE)


class _Calls:
    """Builds the schema of each call once, as a definition that all programs share.

    Args:
        toolbox: the tools.
        names: the tools that may be called.
    """

    def __init__(self, toolbox: Toolbox, names: Sequence[str]) -> None:
        self._toolbox, self._names = toolbox, names
        some = next(iter(toolbox.bundle.base.values())).model_copy(update={"before": ()})
        self._values = toolbox.values(some)
        self._given = defaultdict[tuple[str, str], list[Json]](list)
        for program in toolbox.bundle.base.values():
            for step in (*program.before, *program.calls):
                for name, value in step.args.items():
                    self._given[step.tool, name].append(value)
        self.definitions: dict[str, Json] = {}

    @property
    def users(self) -> list[str]:
        """The tools that can use a value of an earlier call: if links are known, those that have one."""
        links = self._toolbox.graph.links
        linked = {link.user for link in links} if links else self._names
        return [name for name in self._names if name in linked and self._properties(name)]

    def _shared(self, key: str, schema: Callable[[], JsonObject]) -> JsonObject:
        """Return a reference to a definition, which is made when it is first wanted."""
        if key not in self.definitions:
            self.definitions[key] = schema()
        return {"$ref": f"#/$defs/{key}"}

    @property
    def parameter(self) -> JsonObject:
        """The name of a parameter of any tool."""
        names = dict.fromkeys(one for name in self._names for one in self._properties(name))
        return self._shared("parameter", lambda: {"enum": [*names]})

    @property
    def before(self) -> JsonObject:
        """Calls that set up the initial state."""
        return self._shared(
            "before", lambda: {"type": "array", "items": self.first(), "maxItems": _MOST_BEFORE}
        )

    def shown(self, least: int) -> JsonObject:
        """How many tools a task shows, of which it calls at least some."""
        sizes = sizes_shown(len(self._toolbox.world.tools), least, self._toolbox.bundle.about.shown)
        return self._shared(f"shown{least}", lambda: {"enum": [*sizes]})

    def questions(self, call: int) -> JsonObject:
        """Questions about the result of a call: values that are worth asking for."""
        recipes = self._toolbox.graph.recipes
        told = [kind for name in self._names if name in recipes for kind in recipes[name].told]
        path = self._shared("told", lambda: _path(told))
        question = closed_object({"call": {"const": call}, "path": path})
        some: JsonObject = {"type": "array", "items": question, "minItems": 1, "maxItems": 4}
        return self._shared(f"questions{call}", lambda: some)

    def first(self, *, lacking: bool = False) -> JsonObject:
        """A call with literal arguments.

        Args:
            lacking: whether arguments may be left out that the tool requires.
        """
        plain = [self._call(name, required=not lacking) for name in self._names]
        return self._shared("partial" if lacking else "plain", lambda: {"anyOf": plain})

    @property
    def of_any_kind(self) -> JsonObject:
        """A call with any arguments and any references."""

        def uses() -> JsonObject:
            use = {"parameter": self.parameter, "call": _PLACE, "path": _PATH}
            return {"type": "array", "items": closed_object(use)}

        def call(name: str) -> JsonObject:
            args = self._args(name, required=False)
            return closed_object({"tool": {"const": name}, "args": args, "uses": self._shared("uses", uses)})

        return self._shared("any", lambda: {"anyOf": [call(name) for name in self._names]})

    def later(self, number: int, *, linked: bool | None) -> JsonObject:
        """The call at a place of a program, from 1 on.

        Args:
            number: the place.
            linked: whether it has to use a value of the call before it; None: it must not.
        """
        if linked is None:
            return self.first()
        users = [self._call(name, required=False, source=number - 1) for name in self.users]
        after = self._shared(f"after{number - 1}", lambda: {"anyOf": users})
        return after if linked else {"anyOf": [self.first(), after]}

    def _properties(self, name: str) -> Mapping[str, JsonObject]:
        return self._toolbox.world.tools[name].properties

    def _call(self, name: str, *, required: bool, source: int | None = None) -> JsonObject:
        """A call with all required arguments, or with any; it uses values of the call `source`, or none."""
        which = f"_{source}" if source is not None else "" if required else "_some"

        def call() -> JsonObject:
            uses = _NONE if source is None else self._uses(name, source)
            args = self._args(name, required=required)
            return closed_object({"tool": {"const": name}, "args": args, "uses": uses})

        return self._shared(f"call{self._names.index(name)}{which}", call)

    def _args(self, name: str, *, required: bool) -> JsonObject:
        def args() -> JsonObject:
            properties, tool = self._properties(name), self._toolbox.world.tools[name]
            return {
                "type": "object",
                "properties": {one: self._value(name, one) for one in properties},
                "required": [one for one in properties if required and one in tool.required],
                "additionalProperties": False,
            }

        return self._shared(f"args{self._names.index(name)}{'' if required else '_some'}", args)

    def _uses(self, name: str, source: int) -> JsonObject:
        """References to values in the result of a call: those that go into the tool, as trying it showed."""
        links = [one for one in self._toolbox.graph.links if one.user == name]
        taken = {
            one: [link.kind for link in links if link.parameter == one] for one in self._properties(name)
        }
        number, ways = self._names.index(name), list[Json]()
        for place, (parameter, kinds) in enumerate(taken.items()):
            if kinds or not links:
                path = self._shared(f"path{number}_{place}", partial(_path, kinds))
                use = {"parameter": {"const": parameter}, "call": {"const": source}, "path": path}
                ways.append(closed_object(use))
        return {"type": "array", "items": {"anyOf": ways}, "minItems": 1, "maxItems": len(ways)}

    def _value(self, name: str, parameter: str) -> JsonObject:
        """An argument: ids of records if all the bundle's tasks take those, else what the tool's schema says.

        If a task takes an id that is not in the first state, calls before it have made the record.
        """
        tool, recipe = self._toolbox.world.tools[name], self._toolbox.graph.recipes.get(name)
        known = self._values.get(recipe.ways.get(parameter, ""), ()) if recipe else ()
        given, fails = self._given[name, parameter], recipe.fails.get(parameter, ()) if recipe else ()
        if 0 < len(known) <= _MOST_VALUES and given and all(one in known for one in given):
            values = [one for one in known if one in given or one not in fails]
            return {"enum": values}
        return writable(tool.resolved(tool.properties[parameter]))


def _path(kinds: Sequence[str]) -> JsonObject:
    """Return the schema of the paths in a result that match one of some kinds; without kinds, of any path."""
    distinct = [*dict.fromkeys(kinds)]
    if not 0 < len(distinct) <= _MOST_VALUES:
        return _PATH
    paths: list[Json] = []
    for kind in distinct:
        keys = [
            _KEY if part == ANY else {"enum": [part, *([int(part)] if part.isdecimal() else [])]}
            for part in kind.split(".")
        ]
        paths.append({"type": "array", "prefixItems": keys, "items": False, "minItems": len(keys)})
    return {"anyOf": paths}


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
