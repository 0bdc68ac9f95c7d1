"""How each tool can be called with success: where the values of its arguments come from.

A value is new (`fresh`), or one of a kind that the state holds.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from pydantic import JsonValue

from genenv.tools.discover.state_values import records
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.words import COLUMN
from genenv.tools.worlds.base import Call, Outcome, Tool
from genenv.types import Json, JsonObject

FRESH = "new"
"""A value that is drawn by schema and name."""
_AGAIN = 1 / 8
"""How often values are drawn from all, though some of them failed whenever they were tried."""

_OF_ONE_RECORD = 3 / 4
"""How often what an argument's record holds is of one record of the state; else it meets by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to call a tool."""

    tool: str
    writes: bool
    """Whether a successful call changes the state."""
    ways: Mapping[str, str]
    """For each argument `FRESH` or a kind of value; optional ones that do not spoil it are among them.

    `lines.product_id`: of a field of an argument that is a record, or a list of records.
    """
    success: float
    """Share of tries that succeeded, in [0, 1]."""
    shows: tuple[str, ...] = ()
    """Kinds of single values in its results."""
    told: tuple[str, ...] = ()
    """Those of them that are worth asking for: they are not the same every time."""
    unseen: tuple[str, ...] = ()
    """Arguments of a tool that writes that leave no trace in the state: no check sees them."""
    fails: Mapping[str, tuple[JsonValue, ...]] = field(default_factory=dict[str, tuple[JsonValue, ...]])
    """Values that never succeeded where others of the same argument did: they are seldom drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one tool finds another one can use."""

    reader: str
    user: str
    parameter: str
    kind: str
    """Of the value in the reader's result."""
    first: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Arguments of the reader without which this makes no sense."""
    shared: tuple[str, ...] = ()
    """Arguments of the second call that are those of the first one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What is known of a world's tools."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict[str, Recipe])
    links: tuple[Link, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools that never succeeded, and what they said last."""


def succeeded(outcome: Outcome, *, writes: bool) -> bool:
    """Whether a call did something: changed the state, or found something."""
    if outcome.error is not None:
        return False
    return outcome.changed if writes else outcome.result is not False and not _is_empty(outcome.result)


def _is_empty(result: Json) -> bool:
    """Whether a result holds nothing: lists that could hold something, and do not."""
    if result in (None, "", [], {}):
        return True
    held = list(result.values()) if isinstance(result, Mapping) else []
    return any(isinstance(one, Mapping | list) for one in held) and all(
        one in (None, "", [], {}) for one in held
    )


class Records:
    """The records of a state, found when they are first asked for."""

    def __init__(self, state: Json = None) -> None:
        self._state = state

    @cached_property
    def by_kind(self) -> Mapping[str, Sequence[Mapping[str, Sequence[Json]]]]:
        """Values of theirs by kind, by the kind of the record."""
        return records(self._state)


@dataclass(frozen=True, slots=True)
class Held:
    """What a state holds, and what tools tell of it."""

    values: Mapping[str, Sequence[Json]]
    """By kind."""
    records: Records = field(default_factory=Records)
    """Whose values belong together."""

    def with_told(self, told: Mapping[str, Sequence[Json]]) -> Held:
        """The same with what tools tell, too."""
        return replace(self, values={**self.values, **told})


def drawn(
    tool: Tool,
    ways: Mapping[str, str],
    held: Held,
    rng: random.Random,
    fails: Mapping[str, Sequence[Json]] | None = None,
) -> dict[str, Json] | None:
    """Arguments by their ways; of the optional ones each with one chance in two. None: no such value there.

    Args:
        tool: whose arguments they are.
        ways: see `Recipe`.
        held: the state.
        rng: draws.
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
            if match := COLUMN.fullmatch(way):  # columns of one row go together
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
    """One of some values; those that fail as a rule seldom, as the state may be another one now."""
    better = [one for one in values if one not in fails] if fails else []
    return rng.choice(better if better and rng.random() >= _AGAIN else values)


def inner_fields(tool: Tool, name: str) -> dict[str, Json]:
    """What a record in an argument has to hold, texts, numbers and lists, as `name.field`: their schemas."""
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
    """Put values of the state into the records of an argument, as a rule those of one record of the state."""
    alike = _together(fields.values(), held)
    left = rng.sample(alike, len(alike)) if alike else []
    for record in cast("Sequence[Any]", argument if isinstance(argument, list) else [argument]):
        own = left.pop() if left and rng.random() < _OF_ONE_RECORD else None
        for name, way in fields.items():
            if isinstance(record, dict) and name in record:
                one = rng.choice(held.values[way] if own is None else own[way])
                record[name] = [one] if isinstance(record[name], list) else one


def _together(ways: Collection[str], held: Held) -> list[Mapping[str, Sequence[Json]]]:
    """The records of the state that have a value of each of several kinds."""
    if len(ways) < 2:
        return []
    for _, alike in sorted(held.records.by_kind.items(), key=lambda pair: -len(pair[0])):
        if having := [one for one in alike if all(way in one for way in ways)]:
            return having
    return []


_OFTEN = 2
"""A value that failed so often, and never succeeded where another one did, is avoided."""
_KEPT = 64
"""So many of them are kept for an argument."""
_CALLS = 512
"""So many different calls that failed are remembered, of a tool and of all."""


_Way = tuple[str, str]
"""A parameter and where its value comes from."""
_Named = tuple[_Way, str]
"""A value of it, in writing."""


@dataclass(slots=True)
class _Of:
    """What the calls of one tool, or of all of them, came to."""

    good: dict[_Way, set[str]] = field(default_factory=lambda: defaultdict[_Way, set[str]](set))
    bad: Counter[tuple[_Named, ...]] = field(default_factory=Counter[tuple[_Named, ...]])
    known: dict[_Way, set[str]] = field(default_factory=lambda: defaultdict[_Way, set[str]](set))
    """Values that fail, as a recipe says."""

    def alone(self) -> set[_Named]:
        """Values that were often the only one in a call that failed which has never succeeded."""
        return _often((suspects, times) for suspects, times in self._suspects() if len(suspects) == 1)

    def poor(self, faults: set[_Named]) -> set[_Named]:
        """Values that failed often, and that nothing else in their calls explains.

        Args:
            faults: values that explain why a call fails; it is held against no other then.
        """
        rest = ((suspects, times) for suspects, times in self._suspects() if faults.isdisjoint(suspects))
        told = {(way, value) for way, held in self.known.items() for value in held}
        return faults | _often(rest) | told

    def _suspects(self) -> Iterator[tuple[Sequence[_Named], int]]:
        """Those values of each call that failed which have never succeeded."""
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
class Luck:
    """What calls came to, by the values of their arguments.

    What a tool has not succeeded with itself is told by others whose parameter is called alike and takes the
    same kind of value.
    """

    _own: dict[str, _Of] = field(default_factory=lambda: defaultdict[str, _Of](_Of))
    _shared: _Of = field(default_factory=_Of)
    _values: dict[str, Json] = field(default_factory=dict[str, Json])

    def note(self, call: Call, ways: Mapping[str, str], *, good: bool) -> None:
        """Remember what a call came to."""
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
        """Values that are better avoided, by parameter: of those where others have succeeded."""
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
        """Take over what a recipe knows."""
        own = self._own[recipe.tool]
        for name, values in recipe.fails.items():
            way = (name, recipe.ways[name])
            own.good[way].add("")  # others do succeed
            own.known[way] |= {repr(value) for value in values}
            self._values |= {repr(value): value for value in values}


def single(value: Json) -> Json:
    """What was drawn for an argument: lists hold one value of the state."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
