"""Finds out how a world's tools can be called, and what one finds that another one can use.

Names propose (`leaves.wanted`), calls decide: each way is tried on copies of the state, and the one that
succeeds most often is kept.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from genenv.domains.tools.leaves import leaves, single_paths, wanted
from genenv.domains.tools.probing import Probe
from genenv.domains.tools.recipes import FRESH, Graph, Link, Recipe, drawn, succeeded
from genenv.domains.tools.world import Call, Outcome, World
from genenv.types import Json

_PASSES = 4
_SETUPS = 6
"""How many other states, made by random writes, each pass looks at."""
_LONGEST_SETUP = 4
_TRIES = 3
_MORE_TRIES = 9


class Explorer:
    """Finds out how a world's tools can be called."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.known: int | None = None
        """After so many calls a user knows the values there are, and can name none that is made later."""
        self._recipes: dict[str, Recipe] = {}
        self._failures: dict[str, str] = {}
        self._values: dict[str, dict[str, list[Json]]] = {}

    @classmethod
    def of(cls, world: World, graph: Graph, rng: random.Random) -> Explorer:
        """One that knows already what another one found out."""
        made = cls(world, rng)
        made._recipes = dict(graph.recipes)
        return made

    def explore(self) -> Graph:
        """Try every tool on the first state, and those that never succeed after random writes."""
        for number in range(_PASSES):
            setups = [(), *(self.setup() for _ in range(_SETUPS * bool(number)))]
            left = [tool for name, tool in self.world.tools.items() if name not in self._recipes]
            for tool in left:
                for before in setups:
                    probe = Probe(self.world, tool, before, self._rng)
                    if (recipe := probe.recipe()) is not None:
                        self._recipes[tool.name] = recipe
                        self._failures.pop(tool.name, None)
                        break
                    self._failures[tool.name] = probe.said
            if not left:
                break
        return Graph(self._ordered(), tuple(self._links()), self._failures)

    def setup(self, longest: int = _LONGEST_SETUP) -> tuple[Call, ...]:
        """Random writes that succeed one after the other."""
        writers = [one for one in self._ordered().values() if one.writes]
        calls: list[Call] = []
        for _ in range(self._rng.randint(1, longest) if writers else 0):
            call = self.attempt(self._rng.choice(writers), calls, self._rng)
            if call is not None:
                calls.append(call)
        return tuple(calls)

    def attempt(self, recipe: Recipe, before: Sequence[Call], rng: random.Random) -> Call | None:
        """A call that succeeds after others, if one is found in a few tries."""
        tool, values = self.world.tools[recipe.tool], self.values(before[: self.known])
        for _ in range(_MORE_TRIES):
            args = drawn(tool, recipe.ways, values, rng)
            if args is None:
                continue
            call = Call(tool=recipe.tool, args=args)
            if succeeded(self._last([*before, call]), writes=recipe.writes):
                return call
        return None

    def values(self, before: Sequence[Call]) -> dict[str, list[Json]]:
        """The values of the state after some calls, by kind."""
        key = repr([call.json for call in before])
        if key not in self._values:
            self._values[key] = leaves(self.world.play(before).state)
        return self._values[key]

    # pairs

    def _links(self) -> Iterator[Link]:
        """What readers show that other tools can use, each one tried."""
        readers = [one for one in self._ordered().values() if not one.writes and one.ways]
        for reader, user in itertools.product(readers, self._ordered().values()):
            if reader.tool == user.tool:
                continue
            for parameter, way in user.ways.items():
                if way == FRESH or parameter not in self.world.tools[user.tool].properties:
                    continue  # what is said anew need not be found
                for kind in wanted(parameter, user.tool, reader.shows)[:1]:
                    if self.linked(
                        Link(reader=reader.tool, user=user.tool, parameter=parameter, kind=kind),
                        (),
                        self._rng,
                    ):
                        yield Link(reader=reader.tool, user=user.tool, parameter=parameter, kind=kind)

    def linked(
        self, link: Link, before: Sequence[Call], rng: random.Random
    ) -> tuple[Call, tuple[str | int, ...], Call] | None:
        """Both calls, and where in the first one's result the second one's value stands, if they succeed.

        A value that the first call's arguments hold already is not found by it.
        """
        reader, user = self._recipes[link.reader], self._recipes[link.user]
        tool = self.world.tools[link.user]
        for _ in range(_TRIES):
            first = self.attempt(reader, before, rng)
            if first is None:
                return None
            result = self._last([*before, first]).result
            path, value = single_paths(result).get(link.kind, ((), None))
            if value is None or value in first.args.values():
                continue
            for _ in range(_TRIES):
                args = drawn(tool, user.ways, self.values(before[: self.known]), rng)
                if args is None:
                    continue
                second = Call(tool=link.user, args={**args, link.parameter: value})
                if tool.problem(second.args) is None and succeeded(
                    self._last([*before, first, second]), writes=user.writes
                ):
                    return first, path, second
        return None

    def _last(self, calls: Sequence[Call]) -> Outcome:
        return self.world.play(calls, watch=True).outcomes[-1]

    def _ordered(self) -> dict[str, Recipe]:
        return {name: self._recipes[name] for name in self.world.tools if name in self._recipes}
