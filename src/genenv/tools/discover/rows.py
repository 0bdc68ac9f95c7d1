"""Questions about the rows of a list in a result: how many there are, and which one has the highest number.

Such a question is a path that has words where the list is: `orders.how many`, `orders.highest total.id`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from genenv.tools.discover.slots import PLACES
from genenv.tools.discover.state_values import ANY, NAMING, at, parts_of, refers, words_of
from genenv.tools.generate.scales import LISTED
from genenv.tools.worlds.base import Call, World
from genenv.types import Json

Path = tuple[str | int, ...]

HOW_MANY = "how many"
"""The part of a path that counts the rows of a list."""
_EXTREMES = {"highest": max, "lowest": min, "latest": max, "earliest": min}
"""Words for the row with the largest or smallest value of a field."""
_OF_NUMBERS, _OF_DAYS = ("highest", "lowest"), ("latest", "earliest")
_FEWEST, _MOST = 2, 200
"""Minimum and maximum number of rows that are asked about."""
_PAGING = frozenset(
    {"count", "cursor", "has", "incomplete", "info", "limit", "link", "meta", "more", "next", "number"}
    | {"offset", "page", "paging", "pagination", "per", "result", "size", "token", "total", "truncated"}
)
"""Words of fields beside a list that says how many there are, or is a part of more."""
_LIMITS = frozenset({"first", "k", "limit", "max", "most", "n", "per", "size", "top"})
_OF_LIMITS = LISTED | _LIMITS | {"count", "number", "page"}
"""Words of parameters that say how many rows are listed at most; one of `_LIMITS` is among them."""
_RANKS = frozenset(
    {"floor", "grade", "index", "level", "line", "page", "phone", "position", "postcode", "priority", "rank"}
    | {"row", "severity", "tier", "version", "zip"}
)
"""Words for numbers of which the smallest may be called the highest, or none."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d(?:([T ])\d\d:\d\d(?::\d\d)?Z?)?")


def found_at(result: Json, path: Sequence[str | int]) -> Json:
    """Return what is at a path of keys, indices, and words that count rows or choose one.

    Raises:
        LookupError: there is no such path, or no single row fits the words.
    """
    for part in path:
        if isinstance(result, list) and isinstance(part, str):
            result = _of_rows(result, part)
        else:
            result = at(result, [part])
    return result


def row_answers(result: Json) -> dict[str, tuple[Path, Json]]:
    """Return the questions about rows that a result answers, by kind: the path and the answer of each.

    A row is asked for by a field that names it. Lists inside of lists do not count, nor do pages of longer
    lists, and lists of one name.
    """
    found: dict[str, tuple[Path, Json]] = {}
    for place, rows in _whole_lists(result).items():
        named = _naming(rows)
        for path in ((*place, HOW_MANY), *((*place, one, named) for one in _choices(rows) if named)):
            found[".".join(map(str, path))] = (path, found_at(result, path))
    return found


def chosen_paths(result: Json, kind: str) -> list[tuple[Path, Json]]:
    """Return paths and values of a kind such as `orders.*.id` in those rows of a list that words choose."""
    before, _, after = f".{kind}.".partition(f".{ANY}.")
    place, field = [one for one in before.split(".") if one], after.strip(".")
    rows = _whole_lists(result).get(tuple(place))
    if rows is None or not field or ANY in field or "." in field:
        return []
    paths: list[Path] = [(*place, one, field) for one in _choices(rows) if not one.endswith(f" {field}")]
    return [(path, found_at(result, path)) for path in paths if _is_field(rows, field)]


def is_of_rows(path: Path) -> bool:
    """Whether a path leads into a list: by an index, or by words."""
    return any(isinstance(part, int) or part == HOW_MANY or choice(part)[0] for part in path)


def field_of(path: Path) -> str:
    """Return the field at the end of a path, or the list whose rows it counts; empty if there is none."""
    return next((part for part in reversed(path) if isinstance(part, str) and part != HOW_MANY), "")


def choice(part: str | int) -> tuple[str, str]:
    """Return the word and the field of a part of a path that chooses a row; empty texts if none does."""
    word, _, field = str(part).partition(" ")
    return (word, field) if word in _EXTREMES and field else ("", "")


def _lists(value: Json, place: Path) -> Iterator[tuple[Path, list[Json]]]:
    """Yield the lists in a result that are in no other list, with their paths."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if "." not in key:
                yield from _lists(one, (*place, key))
    elif isinstance(value, list):
        yield place, value


def _whole_lists(result: Json) -> dict[Path, list[Json]]:
    """Return the lists that a question can be about, by path: whole ones that alone have their name."""
    names = [*_names(result)]
    return {
        place: rows
        for place, rows in _lists(result, ())
        if _FEWEST <= len(rows) <= _MOST
        and (not place or names.count(str(place[-1])) == 1)
        and not _is_part(result, place, len(rows))
    }


def _names(value: Json, name: str = "") -> Iterator[str]:
    """Yield the name of each list in a result."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _names(one, key)
    elif isinstance(value, list):
        yield name
        for one in value:
            yield from _names(one)


def _is_part(result: Json, place: Path, count: int) -> bool:
    """Whether what stands beside a list says that it may be a page of more; a number of its rows does not."""
    beside = at(result, place[:-1]) if place else None
    known = _PAGING | {*words_of(str(place[-1]))} if place else _PAGING
    fields = beside.items() if isinstance(beside, Mapping) else ()
    return _says_part({name: one for name, one in fields if name != place[-1]}, known, count)


def _says_part(beside: Mapping[str, Json], known: Collection[str], count: int) -> bool:
    """Whether fields whose names have no other words than these say that there are more rows."""
    for name, one in beside.items():
        words = {*words_of(name)}
        if not words <= {*known}:
            continue
        if isinstance(one, Mapping):
            if _says_part(one, known, count):
                return True
            continue
        is_sum = isinstance(one, float) and not one.is_integer()  # the price of all
        is_limit = bool(words & _LIMITS) and "total" not in words
        is_met = is_limit and "size" not in words and one == count
        is_all = is_limit and isinstance(one, int) and one > count
        is_only = "total" in words and "page" in words and one == 1
        if is_met or not (one in (None, False, "", 0, [], count) or is_sum or is_all or is_only):
            return True
    return False


def shows_all(world: World, calls: Sequence[Call]) -> bool:
    """Whether the last of some calls lists all there is: no first rows up to a limit, and no page of more."""
    *before, call = calls
    tool = world.tools[call.tool]
    for name, schema in tool.properties.items():
        given, words = call.args.get(name, schema.get("default")), {*words_of(name)}
        number = given if isinstance(given, int) and not isinstance(given, bool) else None
        if words & _LIMITS and words <= _OF_LIMITS | {*words_of(tool.name)}:
            if number is not None and max(_counts(world, calls), default=0) >= number:
                return False
            continue
        if words & PLACES and given not in (None, "", 0) and not ("page" in words and given == 1):
            return False
        if "page" not in words or {"token", "cursor"} & words:
            continue
        later: dict[str, Json] = {**call.args, name: 2 if number is None else number + 1}
        if tool.problem(later) is None and any(_counts(world, [*before, Call(tool=call.tool, args=later)])):
            return False
    return True


def _counts(world: World, calls: Sequence[Call]) -> list[int]:
    """Return the number of rows of each list in the result of the last of some calls; none if it fails."""
    outcome = world.play(calls).outcomes[-1]
    return [] if outcome.error else [len(rows) for _, rows in _lists(outcome.result, ())]


def _of_rows(rows: Sequence[Json], part: str) -> Json:
    if part == HOW_MANY:
        return len(rows)
    word, field = choice(part)
    values = _compared(rows, field) if word in _words_for(rows, field) else None
    if not values:
        raise LookupError(part)
    extreme = _EXTREMES[word](values)
    if values.count(extreme) > 1:
        raise LookupError(part)
    return rows[values.index(extreme)]


def _choices(rows: Sequence[Json]) -> Iterator[str]:
    """Yield the parts of paths that choose one of the rows."""
    first = rows[0] if rows else None
    for field in first if isinstance(first, Mapping) else ():
        values = _compared(rows, field)
        for word in _words_for(rows, field) if values and field and "." not in field else ():
            if values and values.count(_EXTREMES[word](values)) == 1:
                yield f"{word} {field}"


def _words_for(rows: Sequence[Json], field: str) -> tuple[str, ...]:
    """Return the words that compare a field: of numbers, or of days and years."""
    first = rows[0] if rows else None
    is_number = isinstance(first, Mapping) and isinstance(first.get(field), int | float)
    return _OF_NUMBERS if is_number and "year" not in parts_of(field)[-1:] else _OF_DAYS


def _compared(rows: Sequence[Json], field: str) -> list[Any] | None:
    """Return the values of a field, all numbers or all days or moments; None if they cannot be compared."""
    if len(rows) < _FEWEST or refers(field) or _RANKS & {*words_of(field)}:
        return None
    values = [row.get(field) if isinstance(row, Mapping) else None for row in rows]
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return None if any(one != one for one in values) else values  # NaN
    days = [_DAY.fullmatch(one) if isinstance(one, str) else None for one in values]
    alike = {(len(day[0]), day[1]) if day else None for day in days}
    return values if len(alike) == 1 and None not in alike else None


def _naming(rows: Sequence[Json]) -> str:
    """Return the field by which a row is named: its values differ. Empty if there is none."""
    first = rows[0]
    fields = [one for one in first if "." not in one] if isinstance(first, Mapping) else []
    named = [one for one in fields if NAMING & {*words_of(one)[-1:]} and _is_field(rows, one)]
    return named[0] if named else ""


def _is_field(rows: Sequence[Json], field: str) -> bool:
    """Whether all rows have a text or a whole number in a field, and none the same."""
    values = [row.get(field) if isinstance(row, Mapping) else None for row in rows]
    single = all(isinstance(one, str | int) and not isinstance(one, bool) for one in values)
    return single and len(set(map(str, values))) == len(values)
