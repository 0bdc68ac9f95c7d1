"""What tries of calls showed: how often they succeeded, and why an optional parameter is not used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from genenv.tools.discover.descriptions import says_id
from genenv.tools.discover.recipes import FRESH, is_refused
from genenv.tools.discover.slots import alone, are_categories
from genenv.tools.discover.state_values import INDEX, names_records, words_of
from genenv.tools.worlds.base import Outcome, Tool
from genenv.types import Json

SURE = 0.5
"""Success rate from which on no other sources are tried."""
_MOST_NAMED, _LONGEST = 6, 120
"""Maximum number of values that a reason names, and its maximum length of an error in characters."""
NO_TIME = "there was no time to try it"
"""The reason why what was not tried is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The outcome of some tries of one combination of argument sources."""

    ways: Mapping[str, str]
    rate: float
    """Share of tries that succeeded, without failed tries that used a value known to fail."""
    writes: bool
    good: tuple[tuple[Mapping[str, Json], Outcome], ...]
    """The arguments and outcomes of the calls that succeeded."""
    tells: bool = True
    """Whether answers to other arguments differ, other than by repeating these."""
    constant: bool = False
    """Whether all answers are the same, or one refusal in prose that repeats the arguments."""
    together: bool
    """Whether calls succeed more often if their arguments come from one record."""

    @property
    def is_sure(self) -> bool:
        """Whether the calls are known to do what they are for, so that no other sources need to be tried."""
        return self.rate >= SURE and (self.writes or self.tells)


def pairs_of(options: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all choices of sources for two parameters, those first that are first for both.

    Args:
        options: the sources of each parameter.
    """
    pairs = [
        (number + place, {one: way, other: another})
        for one, other in itertools.combinations(options, 2)
        for number, way in enumerate(options[one])
        for place, another in enumerate(options[other])
    ]
    return [pair for _, pair in sorted(pairs, key=lambda pair: pair[0])]


def why_unused(parameter: str, calls: Iterable[tuple[Mapping[str, Json], Outcome]]) -> str:
    """Return why an optional parameter is not used: the values that it was given, and the last refusal.

    Args:
        parameter: the parameter.
        calls: the arguments and outcomes of the calls that tried it.
    """
    given = [(args, outcome) for args, outcome in calls if parameter in args]
    if not given:
        return "no value was found for it"
    texts = dict.fromkeys(json.dumps(args[parameter], ensure_ascii=False) for args, _ in given)
    named = ", ".join(one[:_LONGEST] for one in [*texts][:_MOST_NAMED])
    refused: Sequence[Outcome] = [outcome for args, outcome in given if is_refused(outcome, args)]
    if not refused:
        return f"tried {named}; it made no difference, or nothing was found"
    last = " ".join((refused[-1].error or refused[-1].text).split())
    return f"tried {named}; last refusal: {last[:_LONGEST]}"


def suits(
    tool: Tool, slot: str, way: str, named: Sequence[str], held: Sequence[Json], *, writes: bool
) -> float:
    """Return a score that ranks sources of equal success rate.

    Tools that read prefer existing values. Tools that write prefer existing ids and categories, and fresh
    other values.

    Args:
        tool: the tool.
        slot: the argument.
        way: the source.
        named: the sources that the argument's name suggests, likeliest first.
        held: the values of the source.
        writes: whether the tool writes.
    """
    if way == FRESH:
        return 0.5 if writes else 0.0
    if way not in named:
        return -0.1 if names_records(way) else -0.2 + 0.05 * way.endswith(INDEX)
    rank = 1 - 0.1 * named.index(way)
    if not writes or "id" in words_of(slot) or says_id(*alone(tool, slot)):
        return rank
    is_same = words_of(way.rsplit(".", 1)[-1]) == words_of(slot.rpartition(".")[2])
    return rank if are_categories(held) and is_same else 0.0
