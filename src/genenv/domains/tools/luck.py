"""Which values of the state tools have succeeded with: of all folders one alone may be a repository."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from genenv.domains.tools.recipes import FRESH, Recipe
from genenv.domains.tools.world import Call
from genenv.types import Json

_OFTEN = 2
"""A value that failed so often, and never succeeded where another one did, is avoided."""
_KEPT = 64
"""So many of them are kept for an argument."""


@dataclass(slots=True)
class _Count:
    value: Json
    good: int = 0
    bad: int = 0


@dataclass(slots=True)
class Luck:
    """What calls came to, by the values of their arguments.

    What a tool has not succeeded with itself is told by others whose parameter is called alike and takes the
    same kind of value.
    """

    _own: dict[tuple[str, str, str], dict[str, _Count]] = field(
        default_factory=lambda: defaultdict[tuple[str, str, str], dict[str, _Count]](dict)
    )
    _shared: dict[tuple[str, str], dict[str, _Count]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], dict[str, _Count]](dict)
    )

    def note(self, call: Call, ways: Mapping[str, str], *, good: bool) -> None:
        """Remember what a call came to."""
        for name, way in ways.items():
            if way == FRESH or name not in call.args:
                continue
            value = single(call.args[name])
            for counts in (self._own[call.tool, name, way], self._shared[name, way]):
                one = counts.setdefault(repr(value), _Count(value))
                one.good, one.bad = one.good + good, one.bad + (not good)

    def fails(self, tool: str, ways: Mapping[str, str]) -> dict[str, tuple[Json, ...]]:
        """Values that are better avoided, by parameter."""
        found: dict[str, tuple[Json, ...]] = {}
        for name, way in ways.items():
            counts = self._own.get((tool, name, way), {})
            if not any(one.good for one in counts.values()):
                counts = self._shared.get((name, way), {})
            if any(one.good for one in counts.values()):
                poor = [one.value for one in counts.values() if not one.good and one.bad >= _OFTEN]
                if poor:
                    found[name] = tuple(poor[:_KEPT])
        return found

    def recall(self, recipe: Recipe) -> None:
        """Take over what a recipe knows."""
        for name, values in recipe.fails.items():
            counts = self._own[recipe.tool, name, recipe.ways[name]]
            counts[""] = _Count(None, good=1)  # others do succeed
            counts |= {repr(value): _Count(value, bad=_OFTEN) for value in values}


def single(value: Json) -> Json:
    """What was drawn for an argument: lists hold one value of the state."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
