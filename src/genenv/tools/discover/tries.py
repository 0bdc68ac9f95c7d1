"""What tries of calls showed: how often they succeeded, and why an optional parameter is not used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from genenv.tools.discover.recipes import is_refused
from genenv.tools.worlds.base import Outcome
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
    """Whether answers tell arguments apart, other than by repeating them."""
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
