"""Recipes: for each tool, the sources of argument values with which calls succeed.

A value is drawn fresh from the schema (`FRESH`), or taken from a kind of values in the state or in results.
"""

from __future__ import annotations

import functools
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from pydantic import JsonValue

from genenv.tools.discover.descriptions import agreeing, is_said_required, is_wanted, misplaced, referring
from genenv.tools.discover.free_records import free_records
from genenv.tools.discover.slots import (
    alone,
    are_days,
    items,
    meant,
    required_fields,
    slots,
    taken,
    takes_list,
)
from genenv.tools.discover.state_values import Records, refers, wanted, words_of
from genenv.tools.generate.fresh_values import consistent, fresh, told_values
from genenv.tools.generate.scales import numbers_like
from genenv.tools.language.words import COLUMN, SAID
from genenv.tools.worlds.base import NO_REFUSALS, Call, Outcome, Tool
from genenv.types import Json

_SEEN = 3
"""Number of values of a kind that show whether it holds days."""
_FAULT = re.compile(
    r"\b(?:(?:Arithmetic|Assertion|Attribute|Connection|Decode|EOF|Import|Index|Key|Lookup|Memory|ModuleNotFound"
    r"|Name|NotFound|NotImplemented|OS|Overflow|Recursion|Runtime|Syntax|Timeout|Type|Unicode|UnboundLocal"
    r"|ZeroDivision)Error|NoneType|Traceback|index out of range|[tT]imed out|division by zero|Errno"
    r"|unsupported operand|unhashable|name '\w+' is not defined|not (?:subscriptable|iterable|callable)"
    r"|no attribute|no such table)\b"
)
"""Words of a failure that is no refusal, where it is not known what raises it."""
_FEWEST_WORDS = 3
"""Minimum number of words with which a tool says why it refuses a call."""
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
    """Arguments of a tool that writes that leave no trace in the state; checks compare them as they stand."""
    fails: Mapping[str, tuple[JsonValue, ...]] = field(default_factory=dict[str, tuple[JsonValue, ...]])
    """Values by argument that always failed while other values succeeded; they are seldom drawn."""
    together: bool = False
    """Whether calls succeed more often if the arguments come from one record of the state."""
    unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Optional arguments that are never given, and why."""
    related: tuple[tuple[str, str], ...] = ()
    """Pairs of arguments that are ids of two records, of which one must hold the id of the other."""


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
    begins_with: str = ""
    """A tool that is called without arguments when a session begins, as the first call of any tool sets up
    the state; empty: none."""

    @property
    def questions(self) -> list[Call]:
        """The calls of `asked`."""
        return [Call(tool=tool, args=args) for tool, args in self.asked]


def succeeded(outcome: Outcome, *, writes: bool, args: Mapping[str, Json] = MappingProxyType({})) -> bool:
    """Whether a call had an effect: a tool that writes changed the state, another tool returned something.

    Args:
        outcome: of the call.
        writes: whether the tool writes.
        args: of the call; what an answer only repeats of them says nothing.
    """
    if is_refused(outcome, args):
        return False
    return outcome.changed if writes else not _is_empty(outcome.result, args)


def is_said_refusal(outcome: Outcome, args: Mapping[str, Json]) -> bool:
    """Whether a call failed with some words on why, which are no fault of the tool; see `is_refused`."""
    result = parsed_result(outcome.result)
    told = result.items() if isinstance(result, Mapping) else [("message", result)]
    said = outcome.error or " ".join(str(one) for name, one in told if name in _OF_ANSWERS - {"status"})
    is_fault = outcome.error in NO_REFUSALS or outcome.is_raised is False
    is_fault = is_fault or (outcome.is_raised is None and _FAULT.search(said) is not None)
    return not is_fault and len(words_of(said)) >= _FEWEST_WORDS and is_refused(outcome, args)


def is_refused(outcome: Outcome, args: Mapping[str, Json] = MappingProxyType({})) -> bool:
    """Whether a call failed: it has an error, or its result says that it did not do what it was called for.

    Args:
        outcome: of the call.
        args: of the call; a state that it sets is no refusal, as with `set_status(status="failed")`.
    """
    result, given = outcome.result, [*args.values()]
    if outcome.error is not None:
        return True
    if isinstance(result, str):
        return _ERROR.match(result) is not None
    if isinstance(result, list):
        return bool(result) and all(isinstance(one, Mapping) and one.get("error") for one in result)
    if not isinstance(result, Mapping):
        return False
    error, status = result.get("error"), result.get("status")
    says_so = (error and error not in given) or (status in ("error", "failed") and status not in given)
    if says_so and all(name in _OF_ANSWERS or one in given for name, one in result.items()):
        return True  # and no record, which may have failed itself
    return any(result.get(name) is False and args.get(name) is not False for name in ("ok", "success"))


_ERROR = re.compile(r"\s*error\s*[:!(]", re.IGNORECASE)
_OF_ANSWERS = frozenset(
    {"code", "detail", "details", "error", "errors", "message", "ok", "reason", "status", "success"}
)
"""Fields of an answer that says that a call failed."""
_NOTHING: tuple[Json, ...] = (None, "", [], {})
_PLACING = frozenset({"cursor", "limit", "more", "next", "offset", "page"})
_PAGING = _PLACING | {"count", "size", "total"}
"""Words of what a page says besides its items: where it is, and how many there are."""
_SUMS = frozenset({"amount", "count", "number", "sum", "total"})


def _is_empty(result: Json, args: Mapping[str, Json]) -> bool:
    """Whether a result is empty, or a record of empty lists or records, maybe with zeros.

    So is a record of which nothing is left but empty values and no's, without what it repeats of the
    arguments: `{"deleted": false, "id": "x"}`. An empty page is empty, whatever number it has, and however
    many others there are; a result for the id of a record is not empty, unless it counts 0 items.
    """
    if result is False or result in _NOTHING:
        return True
    if not isinstance(result, Mapping):
        return False
    held = list(result.values())
    new = {name: one for name, one in result.items() if one not in args.values() or one in (True, False)}
    if any(isinstance(one, list) for one in new.values()):  # of no items the sums are 0
        new = {name: one for name, one in new.items() if one != 0 or not _SUMS & {*words_of(name)}}
    if len(new) < len(held) and new and all(one is False or one in _NOTHING for one in new.values()):
        return True
    is_page = bool(args) and not any(map(refers, args))
    return any(isinstance(one, Mapping | list) for one in held) and all(
        one in _NOTHING
        or (is_page and one == 0)
        or (isinstance(one, int) and (_PAGING if is_page or not one else _PLACING) & {*words_of(name)})
        for name, one in result.items()
    )


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


_LONGEST_LIST = 3
"""Maximum number of values from the state that are drawn for a list."""


def draw_arguments(
    tool: Tool,
    recipe: Recipe,
    held: Held,
    rng: random.Random,
    always: Collection[str] = (),
    given: Mapping[str, Json] = MappingProxyType({}),
) -> dict[str, Json] | None:
    """Draw arguments from their sources; None if a source has no value or the arguments are not valid.

    Each optional argument is given with probability 1/2, one that chooses what the tool does always.

    Args:
        tool: the tool to call.
        recipe: its sources of values, see `Recipe`.
        held: the values to draw from.
        rng: random numbers.
        always: optional arguments that are given in any case.
        given: values that some arguments will have; others are related to them.
    """
    ways, needed = recipe.ways, slots(tool)
    chosen = {
        slot: way
        for slot, way in ways.items()
        if needed.get(slot)
        or slot in always
        or is_said_required(tool, slot)
        or (is_wanted(tool, slot) and (way == FRESH or held.values.get(way)))
        or rng.random() < 0.5
    }
    fitting = agreeing(tool, {slot for slot in chosen if slot in tool.properties})
    chosen = {slot: way for slot, way in chosen.items() if slot.partition(".")[0] in fitting}
    chosen |= {slot: ways.get(slot, FRESH) for slot in fitting if slot not in chosen}
    if any(way != FRESH and not held.values.get(way) for way in chosen.values()):
        return None
    bound = _related(tool, recipe, held, rng, {*chosen, *given}, given)
    if bound is None:
        return None
    is_whole = recipe.together and rng.random() < _OF_ONE_RECORD
    kinds = {*chosen.values()} if is_whole else _span(chosen.values(), held)
    alike = _together(kinds, held)
    if bound:
        alike = [one for one in alike if all(_shares(one, ways[slot], bound[slot]) for slot in bound)]
    own = {kind: values for kind, values in rng.choice(alike).items() if kind in kinds} if alike else {}
    args: dict[str, Json] = {}
    rows: dict[str, int] = {}
    like = _scale(tool, held)
    for name, way in chosen.items():
        if name not in tool.properties:
            continue
        if way == FRESH:
            args[name] = fresh(tool, name, rng, like)
            if not is_wanted(tool, name) and args[name] == tool.properties[name].get("default"):
                del args[name]
            continue
        values = taken(tool, name, bound.get(name) or own.get(way) or held.values[way])
        same = [args[one] for one in args if _alike(chosen[one], way, args[one])]
        if match := COLUMN.fullmatch(way):  # all columns come from one row
            one = values[rows.setdefault(match[1], rng.randrange(len(values)))]
            args[name] = [one] if takes_list(tool, name) else one
        elif takes_list(tool, name):
            times = rng.randint(1, min(_LONGEST_LIST, len(values)))
            listed = [_chosen(values, recipe.fails.get(name, ()), rng) for _ in range(times)]
            listed = [one for one in listed if one not in same] or listed
            args[name] = list({repr(one): one for one in listed}.values())
        else:
            args[name] = _chosen(values, recipe.fails.get(name, ()), rng, same)
    args |= free_records(tool, args, [one for one in args if chosen[one] == FRESH], given, held.records, rng)
    for outer, fields in _inner(tool, ways, chosen, args, held).items():
        _place(tool, outer, args[outer], fields, held, rng)
    args |= consistent({name: args[name] for name, way in chosen.items() if way == FRESH and name in args})
    args, lost = referring(tool, args, rng), misplaced(tool, args)
    lost |= {name for name, value in args.items() if value == {} and name not in tool.required}
    args = {name: value for name, value in args.items() if name not in lost}
    return args if tool.problem(args) is None else None


def _inner(
    tool: Tool, ways: Mapping[str, str], chosen: Collection[str], given: Collection[str], held: Held
) -> dict[str, dict[str, str]]:
    """Return the sources of fields of records, by the argument that is given a record, and by field."""
    found: dict[str, dict[str, str]] = {}
    needed = slots(tool)
    for name, way in ways.items():
        outer, _, field = name.partition(".")
        if name not in tool.properties and outer in given and not (way == FRESH and needed[name]):
            is_due = way != FRESH and held.values.get(way) and field in required_fields(tool, outer)
            if name in chosen or is_due:  # a field that the record has in any case
                found.setdefault(outer, {})[field] = way
    return found


def _alike(way: str, other: str, value: Json) -> bool:
    """Whether a value of one source names a record for another one, too: a task is no parent of itself."""
    alike = way == other or (isinstance(value, str) and refers(way) and refers(other))
    return alike and FRESH not in (way, other)


def _related(
    tool: Tool,
    recipe: Recipe,
    held: Held,
    rng: random.Random,
    chosen: Collection[str],
    given: Mapping[str, Json],
) -> dict[str, Sequence[Json]] | None:
    """Return the values that arguments can have so that their records are related; None if there are none."""
    found: dict[str, Sequence[Json]] = {}
    for pair_of in recipe.related:
        if not {*pair_of} <= {*chosen}:
            continue
        one, other = ((slot, recipe.ways[slot]) for slot in pair_of)
        pairs = held.records.related(one, other, held.values)
        for place, slot in enumerate(pair_of):
            fixed = found.get(slot) or (items(given[slot]) if slot in given else None)
            if fixed is not None:
                known = {str(value) for value in fixed}
                pairs = [pair for pair in pairs if str(pair[place]) in known]
        if not pairs:
            return None
        good = [
            pair for pair in pairs if all(pair[n] not in recipe.fails.get(pair_of[n], ()) for n in (0, 1))
        ]
        drawn = rng.choice(good if good and rng.random() >= _AGAIN else pairs)
        for place, slot in enumerate(pair_of):
            fitting = [pair[place] for pair in good or pairs if pair[1 - place] == drawn[1 - place]]
            found[slot] = fitting if takes_list(tool, slot) and fitting else [drawn[place]]
    return found


def _shares(record: Mapping[str, Sequence[Json]], way: str, values: Sequence[Json]) -> bool:
    """Whether a record has one of some values of a kind, or none of that kind."""
    return way not in record or not {*map(str, record[way])}.isdisjoint(map(str, values))


def _chosen(
    values: Sequence[Json], fails: Sequence[Json], rng: random.Random, same: Sequence[Json] = ()
) -> Json:
    """Return a random value, none of `same` if there is another; those that failed are seldom drawn."""
    better = [one for one in values if one not in fails] if fails else []
    drawn = rng.choice(better if better and rng.random() >= _AGAIN else values)
    others = [one for one in values if one not in same] if drawn in same else []
    return _chosen(others, fails, rng) if others else drawn


def found_by(tool: Tool, slot: str, way: str) -> str:
    """Return how the source of a slot's values was found, in a few words."""
    of, name = alone(tool, slot)
    if way == FRESH:
        return told_values(of, name) or "made up"
    if way.startswith(SAID):
        return "what users say"
    return "by name" if wanted(meant(slot), tool.name, [way]) else "by trying"


def _scale(tool: Tool, held: Held) -> Callable[[str], Sequence[float]]:
    """Return what finds the known numbers that a parameter of a tool is called like."""
    return functools.partial(numbers_like, tool.name, held.values, held.records)


def _place(
    tool: Tool, outer: str, argument: Json, fields: Mapping[str, str], held: Held, rng: random.Random
) -> None:
    """Put values of the state into the records of an argument, usually all from one record of the state."""
    alike = _together(fields.values(), held)
    left, like = rng.sample(alike, len(alike)) if alike else [], _scale(tool, held)
    for record in items(argument):
        own = left.pop() if left and rng.random() < _OF_ONE_RECORD else None
        if not isinstance(record, dict):
            continue
        for name, way in fields.items():
            of, field = alone(tool, f"{outer}.{name}")
            if way == FRESH:
                record[name] = fresh(of, field, rng, like)
                continue
            one = rng.choice(taken(of, field, held.values[way] if own is None else own[way]))
            record[name] = [one] if takes_list(of, field) else one
        record |= consistent({name: one for name, one in record.items() if fields.get(name, FRESH) == FRESH})


def _span(ways: Iterable[str], held: Held) -> set[str]:
    """Return kinds of days of one table, such as arrival and departure: one record has both."""
    days = [way for way in ways if way != FRESH and are_days(held.values[way][:_SEEN])]
    tables = [way.rpartition(".")[0] for way in days]
    return {way for way, table in zip(days, tables, strict=True) if table and tables.count(table) > 1}


def _together(ways: Collection[str], held: Held) -> list[Mapping[str, Sequence[Json]]]:
    """Return the records of the state that have a value of each of several kinds."""
    ways = set(ways) - {FRESH}
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
        """Return other values that failed often, not counting failures that a known faulty value explains.

        Args:
            faults: known faulty values; other values in the same call are not blamed.
        """
        rest = ((suspects, times) for suspects, times in self._suspects() if faults.isdisjoint(suspects))
        told = {(way, value) for way, held in self.known.items() for value in held}
        return _often(rest) | told

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
class Patience:
    """What may be spent on values of one tool that the names of its parameters do not suggest."""

    calls: int
    """Number of programs of calls."""
    seconds: float
    """Only slow tools take so long; what is found then depends on the machine."""
    clock: Callable[[], float] = time.monotonic
    """Returns the time in seconds."""


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
            for value in items(call.args.get(name)) if way != FRESH and name in call.args else ():
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
        if not any(of.good[way] for way in ways.items() for of in (own, self._shared)):
            return found
        faults = self._shared.alone()
        own_faults = own.alone()
        own_poor, shared_poor = own_faults | own.poor(own_faults | faults), faults | self._shared.poor(faults)
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


RESULT_OF = "()."
"""Separator between a tool and the kind of a value in its result, as in `list_branches().#`."""
_LINE = re.compile(r"\s*([A-Za-z][\w -]{0,30}?):[ \t]+(\S.*?)\s*")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,14})")
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


def source_of(way: str) -> str | None:
    """Return the tool whose results have the values of a source; None if the state has them."""
    tool, mark, _ = way.partition(RESULT_OF)
    return tool if mark else None


def sources_of(recipe: Recipe) -> list[str]:
    """Return the tools whose results provide argument values of a recipe."""
    return [source for way in recipe.ways.values() if (source := source_of(way)) is not None]
