"""Which values of the state tools have succeeded with: of all folders one alone may be a repository."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.tools.discover.recipes import FRESH, Recipe
from genenv.tools.worlds.base import Call
from genenv.types import Json

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
