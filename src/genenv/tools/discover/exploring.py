"""Finds out how a world's tools can be called, and what one finds that another one can use.

Names propose (`leaves.wanted`), calls decide: each way is tried on copies of the state, and the one that
succeeds most often is kept.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from genenv.progress import advance
from genenv.tools.discover.probing import IDLE, Probe
from genenv.tools.discover.recipes import FRESH, Graph, Held, Link, Luck, Recipe, Records, drawn, succeeded
from genenv.tools.discover.result_values import kind_said, read, said, source_of, sources_of
from genenv.tools.discover.state_values import leaves, single_paths, wanted
from genenv.tools.worlds.base import Call, Outcome, World
from genenv.types import Json

_PASSES = 4
_SETUPS = 6
"""How many other states, made by random writes, each pass looks at."""
_LONGEST_SETUP = 4
_TRIES = 3
_MORE_TRIES = 9
_SAME = 2
"""So often a call is tried with the same values of the state and others that are new."""
_ASKED = 3
"""So many different calls of a tool say what it tells."""


class Explorer:
    """Finds out how a world's tools can be called."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.known: int | None = None
        """After so many calls a user knows the values there are, and can name none that is made later."""
        self.also: Callable[[Json], Mapping[str, list[Json]]] | None = None
        """Values beside those of the state that calls led to, by kind."""
        self._recipes: dict[str, Recipe] = {}
        self._failures: dict[str, str] = {}
        self._held: dict[str, Held] = {}
        self._told: dict[tuple[str, str], dict[str, list[Json]]] = {}
        self._luck = Luck()

    @classmethod
    def of(cls, world: World, graph: Graph, rng: random.Random) -> Explorer:
        """One that knows already what another one found out."""
        made = cls(world, rng)
        made._recipes = dict(graph.recipes)
        for recipe in graph.recipes.values():
            made._luck.recall(recipe)
        return made

    def explore(self) -> Graph:
        """Try every tool on the first state, and those that never succeed after random writes.

        Those are also given what tools that succeed tell. The stage around it counts tools of the first pass.
        """
        for number in range(_PASSES):
            setups = [(), *(self.setup() for _ in range(_SETUPS * bool(number)))]
            left = [tool for name, tool in self.world.tools.items() if name not in self._recipes]
            for place, tool in enumerate(left, start=1):
                again = f"again, {place} of {len(left)}: {tool.name}" if number else tool.name
                advance(items=0 if number else 1, note=again)
                for before in setups:
                    held = self.held(before, everything=number > 0)
                    probe = Probe(self.world, tool, before, held, self._rng, self._luck)
                    if (recipe := probe.recipe()) is not None:
                        self._recipes[tool.name] = recipe
                        self._failures.pop(tool.name, None)
                        break
                    if self._failures.get(tool.name) != IDLE:
                        self._failures[tool.name] = probe.said
            if not left:
                break
        advance(note="what they find for each other")
        links = tuple(self._links())
        learned = {
            name: replace(recipe, fails=self._luck.fails(name, recipe.ways))
            for name, recipe in self._ordered().items()
        }
        return Graph(learned, links, self._failures)

    def setup(self, longest: int = _LONGEST_SETUP) -> tuple[Call, ...]:
        """Random writes that succeed one after the other."""
        writers = [one for one in self._ordered().values() if one.writes]
        calls: list[Call] = []
        for _ in range(self._rng.randint(1, longest) if writers else 0):
            call = self.attempt(self._rng.choice(writers), calls, self._rng)
            if call is not None:
                calls.append(call)
        return tuple(calls)

    def attempt(
        self,
        recipe: Recipe,
        before: Sequence[Call],
        rng: random.Random,
        given: Mapping[str, Json] | None = None,
    ) -> Call | None:
        """A call that succeeds after others, if one is found in a few tries; some arguments may be given."""
        held = self.held(before[: self.known])
        failed = Counter[str]()
        for _ in range(_MORE_TRIES):
            args = self._drawn(recipe, held, rng)
            if args is None:
                continue
            found = repr([args.get(name) for name, way in recipe.ways.items() if way != FRESH])
            if failed[found] >= _SAME and found != "[]":
                continue
            call = Call(tool=recipe.tool, args={**args, **(given or {})})
            good = succeeded(self._last([*before, call]), writes=recipe.writes)
            self._luck.note(call, recipe.ways, good=good)
            if good:
                return call
            failed[found] += 1
        return None

    def _drawn(self, recipe: Recipe, held: Held, rng: random.Random) -> dict[str, Json] | None:
        fails = self._luck.fails(recipe.tool, recipe.ways)
        return drawn(self.world.tools[recipe.tool], recipe.ways, held, rng, fails)

    def held(self, before: Sequence[Call], *, everything: bool = False) -> Held:
        """What the state holds after some calls, and what tools tell of it.

        Args:
            before: the calls.
            everything: whether all that tools tell is wanted, or what other tools are known to take.
        """
        readers = [name for name, one in self._recipes.items() if not one.writes] if everything else ()
        sources = dict.fromkeys(
            (*readers, *(source for one in self._recipes.values() for source in sources_of(one)))
        )
        told: dict[str, list[Json]] = {}
        for reader in sources:
            told |= self._said(reader, before, frozenset())
        return self._in_state(before).with_told(told)

    def _in_state(self, before: Sequence[Call]) -> Held:
        key = repr([call.json for call in before])
        if key not in self._held:
            state = self.world.play(before).state
            values = {**leaves(state), **(self.also(state) if self.also else {})}
            self._held[key] = Held(values, Records(state))
        return self._held[key]

    def _said(self, reader: str, before: Sequence[Call], above: frozenset[str]) -> dict[str, list[Json]]:
        """What a tool tells after some calls, which may need what another one tells."""
        key = reader, repr([call.json for call in before])
        recipe = self._recipes.get(reader)
        if recipe is None or recipe.writes or reader in above:
            return {}
        if key not in self._told:
            told: dict[str, list[Json]] = {}
            for source in sources_of(recipe):
                told |= self._said(source, before, above | {reader})
            here = self._in_state(before).with_told(told)
            rng = random.Random(repr(key))
            calls: dict[str, Call] = {}
            for _ in range(_ASKED):
                if (args := self._drawn(recipe, here, rng)) is not None:
                    calls.setdefault(repr(args), Call(tool=reader, args=args))
            outcomes = [self._last([*before, call]) for call in calls.values()]
            self._told[key] = said(reader, (one.result for one in outcomes if one.error is None))
        return self._told[key]

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
                for kind in _fitting(parameter, way, reader, user.tool):
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
            first = self.attempt(reader, before, rng, link.first)
            if first is None:
                return None
            result = read(self._last([*before, first]).result)
            path, value = single_paths(result).get(link.kind, ((), None))
            if value is None or value in first.args.values():
                continue
            for _ in range(_TRIES):
                args = self._drawn(user, self.held(before[: self.known]), rng)
                if args is None:
                    continue
                shared = {name: first.args[name] for name in link.shared if name in first.args}
                second = Call(tool=link.user, args={**args, **shared, link.parameter: value})
                if tool.problem(second.args) is None and succeeded(
                    self._last([*before, first, second]), writes=user.writes
                ):
                    return first, path, second
        return None

    def _last(self, calls: Sequence[Call]) -> Outcome:
        return self.world.play(calls, watch=True).outcomes[-1]

    def _ordered(self) -> dict[str, Recipe]:
        return {name: self._recipes[name] for name in self.world.tools if name in self._recipes}


def _fitting(parameter: str, way: str, reader: Recipe, user: str) -> list[str]:
    """The kind of what a reader shows that a parameter may take: by its name, or as it was found to."""
    if source_of(way) == reader.tool:
        return [kind for kind in reader.shows if kind_said(reader.tool, kind) == way][:1]
    return wanted(parameter, user, reader.shows)[:1]
