"""Recipes: for each tool, the sources of argument values with which calls succeed.

A value is drawn fresh from the schema (`FRESH`), or taken from a kind of values in the state or in results.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from pydantic import JsonValue

from genenv.tools.discover.state_values import ANY, KEY, leaves, records
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.words import COLUMN
from genenv.tools.worlds.base import Call, Outcome, Tool
from genenv.types import Json, JsonObject

FRESH = "new"
"""The source of values that are drawn from the schema and the parameter's name."""
_AGAIN = 1 / 8
"""Probability of drawing from all values, including values that always failed so far."""

_OF_ONE_RECORD = 3 / 4
"""Probability that the fields of a record in an argument all come from one record of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to call a tool successfully: the sources of its argument values, and what calls do."""

    tool: str
    writes: bool
    """Whether a successful call changes the state."""
    ways: Mapping[str, str]
    """Source of each argument's values: `FRESH` or a kind. Safe optional arguments are included.

    `lines.product_id` is a field of an argument that is a record or a list of records.
    """
    success: float
    """Share of tries that succeeded, in [0, 1]."""
    shows: tuple[str, ...] = ()
    """Kinds of single values in the tool's results."""
    told: tuple[str, ...] = ()
    """Kinds of result values that are worth asking for, because they vary between calls."""
    unseen: tuple[str, ...] = ()
    """Arguments of a tool that writes that leave no trace in the state, so that no check sees them."""
    fails: Mapping[str, tuple[JsonValue, ...]] = field(default_factory=dict[str, tuple[JsonValue, ...]])
    """Values by argument that always failed while other values succeeded; they are seldom drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A value in one tool's result that another tool takes as an argument."""

    reader: str
    user: str
    parameter: str
    kind: str
    """Kind of the value in the reader's result."""
    first: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Arguments that the call of the reader must have for the link to make sense."""
    shared: tuple[str, ...] = ()
    """Arguments that the second call copies from the first one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """All recipes and links of a world's tools, as `graph.json` stores them."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict[str, Recipe])
    links: tuple[Link, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools that never succeeded, with their last error."""
    asked: tuple[tuple[str, Mapping[str, JsonValue]], ...] = ()
    """Calls of tools that read, as name and arguments: their answers are part of the state, as nothing else
    shows it."""

    @property
    def questions(self) -> list[Call]:
        """The calls of `asked`."""
        return [Call(tool=tool, args=args) for tool, args in self.asked]


def succeeded(outcome: Outcome, *, writes: bool) -> bool:
    """Whether a call had an effect: a tool that writes changed the state, another tool returned something."""
    if outcome.error is not None:
        return False
    return outcome.changed if writes else outcome.result is not False and not _is_empty(outcome.result)


def _is_empty(result: Json) -> bool:
    """Whether a result is empty, or a record whose fields are all empty and include a list or record."""
    if result in (None, "", [], {}):
        return True
    held = list(result.values()) if isinstance(result, Mapping) else []
    return any(isinstance(one, Mapping | list) for one in held) and all(
        one in (None, "", [], {}) for one in held
    )


class Records:
    """The records of a state, computed on first use."""

    def __init__(self, state: Json = None) -> None:
        self._state = state

    @cached_property
    def by_kind(self) -> Mapping[str, Sequence[Mapping[str, Sequence[Json]]]]:
        """The records by kind; each record is a mapping of kinds to its values."""
        return records(self._state)


@dataclass(frozen=True, slots=True)
class Held:
    """Values that arguments can be drawn from: of the state, and of tool results."""

    values: Mapping[str, Sequence[Json]]
    """Values by kind."""
    records: Records = field(default_factory=Records)
    """Records of the state, for values that must come from the same record."""

    def with_results(self, told: Mapping[str, Sequence[Json]]) -> Held:
        """Return these values together with values of tool results."""
        return replace(self, values={**self.values, **told})


def draw_arguments(
    tool: Tool,
    ways: Mapping[str, str],
    held: Held,
    rng: random.Random,
    fails: Mapping[str, Sequence[Json]] | None = None,
) -> dict[str, Json] | None:
    """Draw arguments from their sources; None if a source has no value or the arguments are not valid.

    Each optional argument is given with probability 1/2.

    Args:
        tool: the tool to call.
        ways: the source of each argument, see `Recipe`.
        held: the values to draw from.
        rng: random numbers.
        fails: values that are seldom drawn, by parameter.
    """
    args: dict[str, Json] = {}
    rows: dict[str, int] = {}
    values = held.values
    for name, way in ways.items():
        if name not in tool.properties:
            continue
        if name not in tool.required and rng.random() < 0.5:
            continue
        if way == FRESH:
            args[name] = fresh(tool, name, rng)
            if name not in tool.required and args[name] == tool.properties[name].get("default"):
                del args[name]
        elif values.get(way):
            if match := COLUMN.fullmatch(way):  # all columns come from one row
                one = values[way][rows.setdefault(match[1], rng.randrange(len(values[way])))]
            else:
                one = _chosen(values[way], (fails or {}).get(name, ()), rng)
            args[name] = [one] if tool.resolved(tool.properties[name]).get("type") == "array" else one
        else:
            return None
    inner: dict[str, dict[str, str]] = {}
    for name, way in ways.items():
        if name in tool.properties or way == FRESH:
            continue
        if not values.get(way):
            return None
        outer, _, field = name.partition(".")
        inner.setdefault(outer, {})[field] = way
    for outer, fields in inner.items():
        _place(args.get(outer), fields, held, rng)
    return args if tool.problem(args) is None else None


def _chosen(values: Sequence[Json], fails: Sequence[Json], rng: random.Random) -> Json:
    """Return a random value. Values that failed so far are seldom drawn, as the state may have changed."""
    better = [one for one in values if one not in fails] if fails else []
    return rng.choice(better if better and rng.random() >= _AGAIN else values)


def inner_fields(tool: Tool, name: str) -> dict[str, Json]:
    """Return the schemas of required text, integer and list fields of a record argument, as `name.field`."""
    schema = tool.resolved(tool.properties[name])
    if schema.get("type") == "array":
        schema = tool.resolved(cast(JsonObject, schema.get("items", {})))
    properties = cast("Mapping[str, JsonObject]", schema.get("properties", {}))
    required = cast("Sequence[str]", schema.get("required", ()))
    return {
        f"{name}.{field}": cast(Json, inner)
        for field, inner in properties.items()
        if field in required and "enum" not in inner and inner.get("type") in ("string", "integer", "array")
    }


def _place(argument: Json, fields: Mapping[str, str], held: Held, rng: random.Random) -> None:
    """Put values of the state into the records of an argument, usually all from one record of the state."""
    alike = _together(fields.values(), held)
    left = rng.sample(alike, len(alike)) if alike else []
    for record in cast("Sequence[Any]", argument if isinstance(argument, list) else [argument]):
        own = left.pop() if left and rng.random() < _OF_ONE_RECORD else None
        for name, way in fields.items():
            if isinstance(record, dict) and name in record:
                one = rng.choice(held.values[way] if own is None else own[way])
                record[name] = [one] if isinstance(record[name], list) else one


def _together(ways: Collection[str], held: Held) -> list[Mapping[str, Sequence[Json]]]:
    """Return the records of the state that have a value of each of several kinds."""
    if len(ways) < 2:
        return []
    for _, alike in sorted(held.records.by_kind.items(), key=lambda pair: -len(pair[0])):
        if having := [one for one in alike if all(way in one for way in ways)]:
            return having
    return []


_OFTEN = 2
"""Number of failures after which a value without success is avoided, if other values succeeded."""
_KEPT = 64
"""Maximum number of avoided values per argument."""
_CALLS = 512
"""Maximum number of distinct failed calls that are stored, per tool and for all tools."""


_Way = tuple[str, str]
"""A parameter and the source of its values."""
_Named = tuple[_Way, str]
"""A parameter with its source, and a value as its `repr`."""


@dataclass(slots=True)
class _ToolStats:
    """Success statistics of one tool, or of all tools together."""

    good: dict[_Way, set[str]] = field(default_factory=lambda: defaultdict[_Way, set[str]](set))
    bad: Counter[tuple[_Named, ...]] = field(default_factory=Counter[tuple[_Named, ...]])
    known: dict[_Way, set[str]] = field(default_factory=lambda: defaultdict[_Way, set[str]](set))
    """Failing values that a recipe lists."""

    def alone(self) -> set[_Named]:
        """Return the values that were often the only value without success in a failed call."""
        return _often((suspects, times) for suspects, times in self._suspects() if len(suspects) == 1)

    def poor(self, faults: set[_Named]) -> set[_Named]:
        """Return the values that failed often, not counting failures that a known faulty value explains.

        Args:
            faults: known faulty values; other values in the same call are not blamed.
        """
        rest = ((suspects, times) for suspects, times in self._suspects() if faults.isdisjoint(suspects))
        told = {(way, value) for way, held in self.known.items() for value in held}
        return faults | _often(rest) | told

    def _suspects(self) -> Iterator[tuple[Sequence[_Named], int]]:
        """Yield for each failed call its values without any success, and its number of failures."""
        for call, times in self.bad.items():
            if suspects := [(way, value) for way, value in call if value not in self.good[way]]:
                yield suspects, times


def _often(calls: Iterable[tuple[Sequence[_Named], int]]) -> set[_Named]:
    found: Counter[_Named] = Counter()
    for suspects, times in calls:
        for one in suspects:
            found[one] += times
    return {one for one, times in found.items() if times >= _OFTEN}


@dataclass(slots=True)
class CallStats:
    """Success statistics of calls, by the values of their arguments.

    If no value of an argument succeeded with the tool itself, statistics of other tools' parameters with the
    same name and source are used.
    """

    _own: dict[str, _ToolStats] = field(default_factory=lambda: defaultdict[str, _ToolStats](_ToolStats))
    _shared: _ToolStats = field(default_factory=_ToolStats)
    _values: dict[str, Json] = field(default_factory=dict[str, Json])

    def note(self, call: Call, ways: Mapping[str, str], *, good: bool) -> None:
        """Record whether a call succeeded."""
        named: list[_Named] = []
        for name, way in ways.items():
            if way != FRESH and name in call.args:
                value = single(call.args[name])
                self._values[repr(value)] = value
                named.append(((name, way), repr(value)))
        for of in (self._own[call.tool], self._shared):
            if good:
                for way, value in named:
                    of.good[way].add(value)
            elif named and (tuple(named) in of.bad or len(of.bad) < _CALLS):
                of.bad[tuple(named)] += 1

    def fails(self, tool: str, ways: Mapping[str, str]) -> dict[str, tuple[Json, ...]]:
        """Return the values to avoid by parameter, for parameters with which other values succeeded."""
        own, found = self._own[tool], dict[str, tuple[Json, ...]]()
        faults = self._shared.alone()
        own_poor, shared_poor = own.poor(own.alone() | faults), self._shared.poor(faults)
        for way in ways.items():
            of, poor = (own, own_poor) if own.good[way] else (self._shared, shared_poor)
            if of.good[way]:
                values = [value for held, value in poor if held == way and value not in of.good[way]]
                if values:
                    found[way[0]] = tuple(self._values[value] for value in sorted(values)[:_KEPT])
        return found

    def recall(self, recipe: Recipe) -> None:
        """Add the failing values that a recipe lists."""
        own = self._own[recipe.tool]
        for name, values in recipe.fails.items():
            way = (name, recipe.ways[name])
            own.good[way].add("")  # other values succeeded
            own.known[way] |= {repr(value) for value in values}
            self._values |= {repr(value): value for value in values}


def single(value: Json) -> Json:
    """Return the item of a list of one, else the value itself: arguments wrap state values in lists."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


RESULT_OF = "()."
"""Separator between a tool and the kind of a value in its result, as in `list_branches().#`."""
_LINE = re.compile(r"\s*([A-Za-z][\w -]{0,30}?):[ \t]+(\S.*?)\s*")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,14})")
_ITEM = re.compile(r"[\s*+•-]*(\S{1,64})\s*")
_LONGEST = 80
_LEAST_FIELDS = 2


def parsed_result(result: Json) -> Json:
    """Return a result in which text of `name: value` lines is parsed into a record or a list of records."""
    if isinstance(result, str):
        return _records(result) or result
    if isinstance(result, Mapping):
        return {name: parsed_result(one) for name, one in result.items()}
    return [parsed_result(one) for one in result] if isinstance(result, list) else result


def _records(text: str) -> Json:
    """Parse a text into records; None if a line is not a field. A first line `heading:` is skipped."""
    records: list[dict[str, Json]] = [{}]
    for number, line in enumerate(line for line in text.splitlines() if line.strip()):
        match = _LINE.fullmatch(line)
        if match is None:
            if number == 0 and line.rstrip().endswith(":"):
                continue
            return None
        name, value = match[1], match[2]
        if name in records[-1]:
            records.append({})
        records[-1][name] = int(value) if _WHOLE.fullmatch(value) else value
    if sum(map(len, records)) < _LEAST_FIELDS:
        return None
    return cast(Json, records[0] if len(records) == 1 else records)


def result_values(tool: str, results: Iterable[Json]) -> dict[str, list[Json]]:
    """Return the single values in a tool's results by kind."""
    found: dict[str, dict[str, Json]] = {}
    for result in results:
        for kind, value in _values(parsed_result(result)):
            found.setdefault(result_kind(tool, kind), {}).setdefault(repr(value), value)
    return {kind: list(values.values()) for kind, values in found.items()}


def _values(result: Json) -> Iterator[tuple[str, Json]]:
    for kind, values in leaves(result).items():
        named = kind_without_lists(kind)
        for value in values:
            if isinstance(value, str) and not named:
                yield from ((KEY, word) for word in _items(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield named or KEY, value
            elif isinstance(value, str) and value.strip() and "\n" not in value and len(value) <= _LONGEST:
                yield named, value


def _items(text: str) -> list[str]:
    """Return the lines of a text that are single words, as lists of names are printed."""
    return [match[1] for line in text.splitlines() if (match := _ITEM.fullmatch(line))]


def result_kind(tool: str, kind: str) -> str:
    """Return the source name of a kind of result values, such as `list_branches().#`."""
    return f"{tool}{RESULT_OF}{kind_without_lists(kind)}"


def kind_without_lists(kind: str) -> str:
    """Return a kind without list markers: `*.commit` becomes `commit`."""
    return ".".join(part for part in kind.split(".") if part != ANY)


def source_of(way: str) -> str | None:
    """Return the tool whose results have the values of a source; None if the state has them."""
    tool, mark, _ = way.partition(RESULT_OF)
    return tool if mark else None


def sources_of(recipe: Recipe) -> list[str]:
    """Return the tools whose results provide argument values of a recipe."""
    return [source for way in recipe.ways.values() if (source := source_of(way)) is not None]
