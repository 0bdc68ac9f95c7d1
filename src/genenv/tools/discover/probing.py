"""One tool, tried in one state: which ways of choosing its arguments succeed, and which arguments matter."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.tools.discover.recipes import FRESH, Held, Luck, Recipe, drawn, inner_fields, single, succeeded
from genenv.tools.discover.result_values import read, source_of
from genenv.tools.discover.state_values import single_paths, wanted, words_of
from genenv.tools.generate.fresh_values import fresh, is_closed
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.types import Json

_TRIES = 3
_MORE_TRIES = 9
_MOST_COMBINATIONS = 24
_LAST = 4
"""Kinds of told values that are tried for a parameter that goes by its name with none."""
_FEW = 6
"""So many distinct values at most make a category, if they look like one."""
_CATEGORY = re.compile(r"[A-Za-z]+(?:[_-][a-z]+)*")
_QUARTER = 4
"""Rates are compared by quarters: a few tries tell no more."""
IDLE = "it is said to write, and nothing that can be seen changed"
"""What is said of a tool whose calls go well and do nothing."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """What some tries of one combination came to."""

    rate: float
    """Share that succeeded, of those without a value that always fails."""
    writes: bool
    good: tuple[Outcome, ...]


class Probe:
    """Tries a tool after some calls.

    Args:
        world: whose tool it is.
        tool: it.
        before: calls that make the state in which it is tried.
        held: what that state holds.
        rng: draws arguments.
        luck: what values have come to so far.
    """

    def __init__(
        self, world: World, tool: Tool, before: Sequence[Call], held: Held, rng: random.Random, luck: Luck
    ) -> None:
        self._world, self._tool, self._rng, self._luck = world, tool, rng, luck
        self._before, self._state, self._values = before, held, held.values
        self.said = "it was given no value that there is"
        """What the last call that failed said; or that calls go well, and do nothing."""

    def recipe(self) -> Recipe | None:
        """How the tool can be called; None if it never succeeds."""
        tool = self._tool
        choices = [
            [(name, way) for way in self._ways(name)]
            for outer in tool.properties
            if outer in tool.required
            for name in (outer, *inner_fields(tool, outer))
        ]
        found: list[tuple[tuple[int, float], dict[str, str], _Tried]] = []
        for combination in itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS):
            ways = dict(combination)
            if self._tried(tool, ways, _TRIES).rate > 0:
                tried = self._tried(tool, ways, _MORE_TRIES)
                if tool.writes and not tried.writes:
                    self.said = IDLE
                elif tried.rate > 0:
                    suits = sum(self._suits(name, way, writes=tried.writes) for name, way in ways.items())
                    found.append(((round(tried.rate * _QUARTER), suits), ways, tried))
        if not found:
            return None
        # what changed nothing was no success of a tool that can
        writing = [one for one in found if one[2].writes]
        _, ways, tried = max(writing or found, key=lambda one: one[0])
        optional, changed = self._optional(ways, tried)
        writes = tried.writes or changed
        shown: dict[str, set[str]] = {}
        for outcome in tried.good:
            for kind, (_, value) in single_paths(read(outcome.result)).items():
                shown.setdefault(kind, set()).add(repr(value))
        return Recipe(
            tool=tool.name,
            writes=writes,
            ways={**ways, **optional},
            success=tried.rate,
            shows=tuple(shown),
            told=tuple(kind for kind, values in shown.items() if kind and len(values) > 1),
            unseen=tuple(name for name in ways if tried.writes and not self._matters(name, ways, tried)),
        )

    def _ways(self, name: str) -> list[str]:
        """Ways of an argument, or of a field of a record in one."""
        tool = self._tool
        if name not in tool.properties:
            outer, _, field = name.partition(".")
            schema = inner_fields(tool, outer)[name]
            tool, name = (
                Tool(name=tool.name, parameters={**tool.parameters, "properties": {field: schema}}),
                field,
            )
        if is_closed(tool, name):
            return [FRESH]
        fitting = [kind for kind, held in self._values.items() if tool.fits(name, held[0])]
        held = [kind for kind in fitting if source_of(kind) is None]
        told = [kind for kind in fitting if source_of(kind) not in (None, tool.name)]
        named = wanted(name, tool.name, told)
        return [*wanted(name, tool.name, held), *named, FRESH, *(told[:_LAST] if not named else ())]

    def _tried(self, tool: Tool, ways: Mapping[str, str], tries: int) -> _Tried:
        outcomes: list[tuple[dict[str, Json], Outcome]] = []
        for _ in range(tries):
            args = drawn(tool, ways, self._state, self._rng, self._luck.fails(tool.name, ways))
            if args is None:
                break
            outcome = self._play(args).outcomes[-1]
            outcomes.append((args, outcome))
            good = outcome.changed or (not tool.writes and succeeded(outcome, writes=False))
            self._luck.note(Call(tool=tool.name, args=args), ways, good=good)
            if outcome.error and self.said != IDLE:
                self.said = outcome.error
        writes = any(outcome.changed for _, outcome in outcomes)
        good = tuple(outcome for _, outcome in outcomes if succeeded(outcome, writes=writes))
        fails = self._luck.fails(tool.name, ways)
        avoided = sum(
            any(single(args.get(name)) in values for name, values in fails.items())
            for args, outcome in outcomes
            if outcome not in good
        )
        return _Tried(len(good) / max(1, tries - avoided), writes, good)

    def _suits(self, name: str, way: str, *, writes: bool) -> float:
        """Of ways that succeed alike: reads ask for what there is, writes name it and say what is new."""
        if way == FRESH:
            return 0.5 if writes else 0.0
        rank = 1 - 0.1 * self._ways(name).index(way)
        if not writes or "id" in words_of(name):
            return rank
        held = self._values[way]
        category = len(held) <= _FEW and all(_CATEGORY.fullmatch(str(one)) for one in held)
        return (
            rank
            if category and words_of(way.rsplit(".", 1)[-1]) == words_of(name.rpartition(".")[2])
            else 0.0
        )

    def _optional(self, ways: Mapping[str, str], without: _Tried) -> tuple[dict[str, str], bool]:
        """Optional arguments that can be given without spoiling the call, and make a difference.

        Also whether with one of them it writes: what changes a record changes nothing where nothing is given.
        """
        tool, found, writes = self._tool, dict[str, str](), False
        for name in tool.properties:
            if name in tool.required:
                continue
            forced = Tool(name=tool.name, parameters={**tool.parameters, "required": [*tool.required, name]})
            for way in self._ways(name):
                with_it = {**ways, name: way}
                tried = self._tried(forced, with_it, _TRIES)
                if tried.rate < without.rate * 0.75 * (without.writes or not tried.writes):
                    continue
                if self._matters(name, with_it, without, forced):
                    found[name] = way
                    writes = writes or tried.writes
                break
        return found, writes

    def _matters(self, name: str, ways: Mapping[str, str], tried: _Tried, tool: Tool | None = None) -> bool:
        """Whether another value of an argument makes another end, or of a tool that reads another result.

        Where there is no other value, or none that succeeds, nothing speaks against it.
        """
        compared = False
        for _ in range(_MORE_TRIES):
            fails = self._luck.fails(self._tool.name, ways)
            args = drawn(tool or self._tool, ways, self._state, self._rng, fails)
            if args is None or name not in args:
                continue
            other = dict(args)
            if name in self._tool.required:
                other[name] = self._other(name, ways[name])
            else:
                del other[name]
            one, two = self._play(args), self._play(other)
            if other == args or one.outcomes[-1].error or two.outcomes[-1].error:
                continue
            compared = True
            seen = (
                (one.state, two.state) if tried.writes else (one.outcomes[-1].result, two.outcomes[-1].result)
            )
            if seen[0] != seen[1]:
                return True
        return not compared

    def _other(self, name: str, way: str) -> Json:
        return fresh(self._tool, name, self._rng) if way == FRESH else self._rng.choice(self._values[way])

    def _play(self, args: Mapping[str, Json]) -> Played:
        return self._world.play([*self._before, Call(tool=self._tool.name, args=args)], watch=True)
