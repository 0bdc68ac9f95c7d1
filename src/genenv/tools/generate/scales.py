"""The scale of made-up numbers: that of the field of records that a parameter is called like."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from genenv.tools.discover.state_values import ANY, LIMITS, NAMING, Records, refers, words_of
from genenv.types import Json

_STEPS = (1000, 500, 100, 50, 10, 5, 1, 0.5, 0.1, 0.05, 0.01)
"""What numbers are multiples of, largest first."""
_MOST_ALIKE = 3 / 4
"""Share of the known numbers that must be multiples of a step."""
_FEW = 4
"""Least number of steps in a range; a narrower one is widened by half of it on both sides."""
_SMALL = 5
"""Largest number that is made up for a count."""
_COUNTS = frozenset({"count", "qty", "quantity"})
"""Last words of parameters that count things, mostly few."""
_LARGEST = 10**15
"""Larger numbers, keys of ciphers for example, have no scale."""
_MOST = frozenset({"limit", "max", "top"})
LISTED = frozenset({"entry", "hit", "item", "record", "result", "row"})
"""Words of parameters that say how many are listed at most; a mere `limit` does so, too."""
_ADDED = LIMITS | {"new"}
"""First words of a parameter that are not in the name of a field."""
_UNSAID = frozenset({"amount", "level", "value"})
"""Names of parameters whose field the tool's name says: `set_credit_limit(amount)`."""

Range = tuple[float, float, float]
"""The least number, the largest one, and what all are multiples of."""


def numbers_like(tool: str, values: Mapping[str, Sequence[Json]], records: Records, name: str) -> list[float]:
    """Return the positive numbers of the field that a parameter is called like; empty if there is none.

    The names are the same, or one ends or begins like the other: `year` of `queen_year`, and `value` of
    `value_eur`.

    Args:
        tool: the name of the parameter's tool.
        values: the values in the state and in results by kind.
        records: the records of the state; whole numbers that count these one by one are ids.
        name: the name of the parameter.
    """
    for kind in () if refers(name) else _alike(name, tool, tuple(values)):
        found = [number for one in values[kind] if (number := _usual(one))]
        is_dense = found and max(found) - min(found) < len(found) and all(one.is_integer() for one in found)
        if found and not (is_dense and _are_own(kind, len(found), records)):
            return found
    return []


def _are_own(kind: str, count: int, records: Records) -> bool:
    """Whether a field has as many values as there are records."""
    return 1 < len(records.by_kind.get(kind.rpartition(".")[0], ())) <= count


def _usual(value: Json) -> float:
    """Return a positive number, and 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        return 0.0
    return float(value)


@functools.lru_cache(maxsize=1024)
def _alike(name: str, tool: str, kinds: tuple[str, ...]) -> list[str]:
    """Return the kinds of fields that a parameter is called like, likeliest first."""
    words, around = words_of(name), {*words_of(tool)}
    asked = words[1:] if words[:1] and words[0] in _ADDED else words
    scored: list[tuple[int, str]] = []
    for kind in kinds:
        above, _, last = kind.rpartition(".")
        field = words_of(last)
        if not field or kind.endswith(")") or last == ANY or NAMING & {*field[-1:]}:
            continue
        is_of_tool = {*asked} <= _UNSAID and words_of(tool)[1:] == field
        if (rank := _rank(asked, field)) is not None or is_of_tool:
            is_near = around.isdisjoint(words_of(above))
            scored.append((2 * (3 if rank is None else rank) + is_near, kind))
    return [kind for _, kind in sorted(scored, key=lambda pair: pair[0])]


def _rank(asked: tuple[str, ...], field: tuple[str, ...]) -> int | None:
    """Return how well the words of a name fit those of a field, 0 best; None: not at all."""
    short, long = sorted((asked, field), key=len)
    if short and long[-len(short) :] == short:
        return int(short != long)
    return 2 if asked and field[: len(asked)] == asked else None


def range_of(numbers: Sequence[float], *, whole: bool) -> Range | None:
    """Return the range of made-up numbers that are like known ones; None if none are known."""
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    is_one = low == high
    step = next((one for one in _STEPS if _are_of(one, numbers) and not (is_one and one > low / _FEW)), 0)
    step = max(step or _STEPS[-1], 1) if whole else step or _STEPS[-1]
    if is_one:
        low, high = low / 2, high * 2
    is_share = high <= 1
    if high - low < _FEW * step:
        low, high = low - _FEW / 2 * step, high + _FEW / 2 * step
    return max(step, low), min(high, 1) if is_share and not whole else high, step


def _are_of(step: float, numbers: Sequence[float]) -> bool:
    """Whether most numbers are multiples of a step."""
    parts = [one / step for one in numbers]
    return sum(math.isclose(one, round(one), abs_tol=1e-6) for one in parts) >= _MOST_ALIKE * len(parts)


def usual_range(name: str, default: Json, *, whole: bool) -> Range | None:
    """Return the range of made-up numbers that a parameter's name or its default value suggests."""
    words, known = words_of(name), _usual(default)
    is_most = words == ("limit",) or bool(_MOST & {*words} and LISTED & {*words})
    if whole and (0 < known <= _SMALL or is_most or _COUNTS & {*words[-1:]}):
        return 1, _SMALL, 1
    return range_of([known] if known else [], whole=whole)
