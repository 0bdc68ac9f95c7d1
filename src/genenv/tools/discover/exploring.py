"""Find out by experiment how tools can be called, which results feed other tools, and what varies.

Names of parameters suggest where their values come from (`state_values.wanted`). Each suggestion is tried on
copies of the state. The suggestion that succeeds most often is kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from genenv.progress import advance
from genenv.tools.discover.recipes import (
    FRESH,
    CallStats,
    Graph,
    Held,
    Link,
    Recipe,
    Records,
    draw_arguments,
    inner_fields,
    parsed_result,
    result_kind,
    result_values,
    single,
    source_of,
    sources_of,
    succeeded,
)
from genenv.tools.discover.state_values import ANY, FILES, HIDDEN, KEY, leaves, single_paths, wanted, words_of
from genenv.tools.generate.fresh_values import fresh, is_closed
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.types import Json

_TRIES, _MORE_TRIES = 3, 9
"""Tries of one combination of argument sources: at first, and again if any of the first succeeded."""
_MOST_COMBINATIONS = 24
_LAST = 4
"""Number of kinds of result values that are tried for a parameter whose name suggests none."""
_FEW = 6
"""Maximum number of distinct values of a category."""
_CATEGORY = re.compile(r"[A-Za-z]+(?:[_-][a-z]+)*")
_QUARTER = 4
"""Success rates are rounded to quarters before they are compared: a few tries are no more precise."""
IDLE = "it is said to write, and nothing that can be seen changed"
"""Failure message of a tool that is declared to write, but whose calls change nothing visible."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """The outcome of some tries of one combination of argument sources."""

    rate: float
    """Share of tries that succeeded, without failed tries that used a value known to fail."""
    writes: bool
    good: tuple[Outcome, ...]


class Probe:
    """Finds a recipe for one tool by calling it in a given state.

    Args:
        world: the world that has the tool.
        tool: the tool to explore.
        before: calls that set up the state in which the tool is tried.
        held: the values in that state.
        rng: draws arguments.
        call_stats: success statistics of argument values so far.
    """

    def __init__(
        self,
        world: World,
        tool: Tool,
        before: Sequence[Call],
        held: Held,
        rng: random.Random,
        call_stats: CallStats,
    ) -> None:
        self._world, self._tool, self._rng, self._luck = world, tool, rng, call_stats
        self._before, self._state, self._values = before, held, held.values
        self.said = "it was given no value that there is"
        """The last error of a call, or `IDLE` if calls succeed without changing anything."""

    def recipe(self) -> Recipe | None:
        """Return the tool's recipe, or None if the tool never succeeds."""
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
        # if some calls write, a call that changed nothing did not succeed
        writing = [one for one in found if one[2].writes]
        _, ways, tried = max(writing or found, key=lambda one: one[0])
        optional, changed = self._optional(ways, tried)
        writes = tried.writes or changed
        shown: dict[str, set[str]] = {}
        for outcome in tried.good:
            for kind, (_, value) in single_paths(parsed_result(outcome.result)).items():
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
        """Return the candidate sources of an argument, or of a field of a record in an argument."""
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
            args = draw_arguments(tool, ways, self._state, self._rng, self._luck.fails(tool.name, ways))
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
        """Return a score that ranks sources of equal success rate.

        Tools that read prefer existing values. Tools that write prefer existing ids and categories, and fresh
        other values.
        """
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
        """Return the sources of optional arguments that make a difference and do not make calls fail.

        Also return whether the tool writes if one of them is given: an update without values changes nothing.
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
        """Whether another value of an argument changes the end state, or the result of a tool that reads.

        Return True if no other value can be compared.
        """
        compared = False
        for _ in range(_MORE_TRIES):
            fails = self._luck.fails(self._tool.name, ways)
            args = draw_arguments(tool or self._tool, ways, self._state, self._rng, fails)
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


_PASSES = 4
_SETUPS = 6
"""Number of states, made by random writes, that each later pass tries."""
_LONGEST_SETUP = 4
_SAME = 2
"""Maximum tries of a call with the same state values and different fresh values."""
_ASKED = 3
"""Number of distinct calls of a tool whose results provide values for other tools."""


class Explorer:
    """Finds recipes for all tools of a world, and links between them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.known: int | None = None
        """Number of calls after which the user learns no new values; None: users know the current values."""
        self.also: Callable[[Json], Mapping[str, list[Json]]] | None = None
        """Returns additional values by kind for a state, such as values that users state."""
        self._recipes: dict[str, Recipe] = {}
        self._failures: dict[str, str] = {}
        self._held: dict[str, Held] = {}
        self._told: dict[tuple[str, str], dict[str, list[Json]]] = {}
        self._luck = CallStats()

    @classmethod
    def of(cls, world: World, graph: Graph, rng: random.Random) -> Explorer:
        """Return an explorer that starts with the recipes of a graph."""
        made = cls(world, rng)
        made._recipes = dict(graph.recipes)
        for recipe in graph.recipes.values():
            made._luck.recall(recipe)
        return made

    def explore(self) -> Graph:
        """Try every tool in the first state, then retry those that never succeeded after random writes.

        Retries also use values from the results of other tools. The progress bar counts tools of the first
        pass only.
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
        """Return random writing calls that succeed one after the other."""
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
        """Return a call that succeeds after others, or None after some tries; `given` fixes arguments."""
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
        return draw_arguments(self.world.tools[recipe.tool], recipe.ways, held, rng, fails)

    def held(self, before: Sequence[Call], *, everything: bool = False) -> Held:
        """Return the values in the state after some calls, and in the results of tools that read.

        Args:
            before: the calls.
            everything: whether to include the results of all tools, or only those that recipes use.
        """
        readers = [name for name, one in self._recipes.items() if not one.writes] if everything else ()
        sources = dict.fromkeys(
            (*readers, *(source for one in self._recipes.values() for source in sources_of(one)))
        )
        told: dict[str, list[Json]] = {}
        for reader in sources:
            told |= self._said(reader, before, frozenset())
        return self._in_state(before).with_results(told)

    def _in_state(self, before: Sequence[Call]) -> Held:
        key = repr([call.json for call in before])
        if key not in self._held:
            state = self.world.play(before).state
            values = {**leaves(state), **(self.also(state) if self.also else {})}
            self._held[key] = Held(values, Records(state))
        return self._held[key]

    def _said(self, reader: str, before: Sequence[Call], above: frozenset[str]) -> dict[str, list[Json]]:
        """Return the values in a tool's results after some calls, as the tools it depends on provide them."""
        key = reader, repr([call.json for call in before])
        recipe = self._recipes.get(reader)
        if recipe is None or recipe.writes or reader in above:
            return {}
        if key not in self._told:
            told: dict[str, list[Json]] = {}
            for source in sources_of(recipe):
                told |= self._said(source, before, above | {reader})
            here = self._in_state(before).with_results(told)
            rng = random.Random(repr(key))
            calls: dict[str, Call] = {}
            for _ in range(_ASKED):
                if (args := self._drawn(recipe, here, rng)) is not None:
                    calls.setdefault(repr(args), Call(tool=reader, args=args))
            outcomes = [self._last([*before, call]) for call in calls.values()]
            self._told[key] = result_values(reader, (one.result for one in outcomes if one.error is None))
        return self._told[key]

    # links

    def _links(self) -> Iterator[Link]:
        """Yield the links from tools that read to other tools; each link was executed successfully."""
        readers = [one for one in self._ordered().values() if not one.writes and one.ways]
        for reader, user in itertools.product(readers, self._ordered().values()):
            if reader.tool == user.tool:
                continue
            for parameter, way in user.ways.items():
                if way == FRESH or parameter not in self.world.tools[user.tool].properties:
                    continue  # a fresh value does not come from a result
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
        """Return two linked calls that succeed, and the path of the value in the first result; else None.

        A value that is already an argument of the first call does not count.
        """
        reader, user = self._recipes[link.reader], self._recipes[link.user]
        tool = self.world.tools[link.user]
        for _ in range(_TRIES):
            first = self.attempt(reader, before, rng, link.first)
            if first is None:
                return None
            result = parsed_result(self._last([*before, first]).result)
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
    """Return at most one kind of a reader's values for a parameter, by its recipe or its name."""
    if source_of(way) == reader.tool:
        return [kind for kind in reader.shows if result_kind(reader.tool, kind) == way][:1]
    return wanted(parameter, user, reader.shows)[:1]


_PLAYED_TWICE = 8
_EACH_TWICE, _MOST_PROGRAMS = 3, 8
"""Programs per tool that end with a call of the tool, and the maximum number of tries to find them."""
_FEW_FILES = 12
"""Maximum number of differing files that are listed by name; if more differ, all files are ignored."""


@dataclasses.dataclass(frozen=True, slots=True)
class Nondeterminism:
    """Values that differ between equal executions, which checks must ignore."""

    state: tuple[str, ...]
    """Kinds of values in the state."""
    results: tuple[str, ...]
    """Kinds of values in results, as `TOOL.KIND`; `TOOL.` without a kind means the whole result."""


def find_nondeterminism(explorer: Explorer, again: World, graph: Graph, rng: random.Random) -> Nondeterminism:
    """Find nondeterministic values: execute programs in two worlds, a second apart.

    Args:
        explorer: the explorer of the first world.
        again: the second world, newly opened.
        graph: the recipes of the tools.
        rng: draws the programs.
    """
    programs = [explorer.setup() for _ in range(_PLAYED_TWICE)]
    programs += _each(explorer, graph, rng)
    first = [explorer.world.play(program) for program in programs]
    time.sleep(1.1)
    state: dict[str, None] = {}
    results: dict[str, None] = {}
    steady_ones: set[str] = set()
    begin = _hidden_files(explorer.world.play(()).state)
    for program, one in zip(programs, first, strict=True):
        other = again.play(program)
        advance(items=1)
        left, right = _hidden_files(one.state), _hidden_files(other.state)
        steady_ones |= {
            name for name in left if left[name] != begin.get(name) and left[name] == right.get(name)
        }
        if other.state != one.state:
            state |= dict.fromkeys(differing(one.state, other.state))
        results |= dict.fromkeys(_results(program, one, other, graph))
    named = dict.fromkeys(_by_folder(kind, steady_ones) for kind in _without_inner(state))
    return Nondeterminism(tuple(named), tuple(results))


def _hidden_files(state: Json) -> Mapping[str, Json]:
    """Return the hidden files of a folder's state."""
    held = cast("Mapping[str, Json]", state).get(HIDDEN) if isinstance(state, Mapping) else None
    return cast("Mapping[str, Json]", held) if isinstance(held, Mapping) else {}


def _by_folder(kind: str, steady_ones: Iterable[str]) -> str:
    """Return the folder of a hidden file that differs, unless a file in it changes equally both times.

    Files that do not exist yet, such as the log of a new branch, are covered by their folder.
    """
    folder, slash, _ = kind.rpartition("/")
    inside = f"{folder.removeprefix(f'{HIDDEN}.')}/"
    if kind.startswith(f"{HIDDEN}.") and slash and not any(one.startswith(inside) for one in steady_ones):
        return f"{folder}/"
    return kind


def _each(explorer: Explorer, graph: Graph, rng: random.Random) -> Iterator[tuple[Call, ...]]:
    """Yield programs that end with a call of each tool; some begin with random writes."""
    for recipe in graph.recipes.values():
        found = 0
        for number in range(_MOST_PROGRAMS):
            before = explorer.setup() if number else ()
            call = explorer.attempt(recipe, before, rng)
            if call is not None:
                yield (*before, call)
                found += 1
            if found == _EACH_TWICE:
                break


def _results(program: Sequence[Call], one: Played, other: Played, graph: Graph) -> Iterator[str]:
    for call, left, right in zip(program, one.outcomes, other.outcomes, strict=True):
        if not graph.recipes[call.tool].writes and left.result != right.result:
            yield from (
                f"{call.tool}.{kind}"
                for kind in differing(parsed_result(left.result), parsed_result(right.result))
            )


def _without_inner(kinds: Iterable[str]) -> Iterator[str]:
    """Yield the kinds without values of records whose keys differ."""
    keys = [one for one in kinds if one.endswith(KEY)]
    yield from (
        kind for kind in kinds if not any(kind.startswith(f"{one.removesuffix(KEY)}{ANY}") for one in keys)
    )


def differing(one: Json, other: Json) -> list[str]:
    """Return the kinds of values that differ between two states; files are listed by name."""
    left, right = leaves(one), leaves(other)
    found: list[str] = []
    for kind in left | right:
        if left.get(kind) == right.get(kind):
            continue
        table = kind.removesuffix(f".{ANY}")
        named = _files(one, other, table) if table in (FILES, HIDDEN) and table != kind else []
        found += [f"{table}.{name}" for name in named] or [kind]
    return found


def _files(one: Json, other: Json, table: str) -> list[str]:
    """Return the files that differ in content; none if there are many or the sets of files differ."""
    left, right = (cast("Mapping[str, Mapping[str, Json]]", state).get(table, {}) for state in (one, other))
    named = [name for name in left if name in right and left[name] != right[name]]
    return named if len(named) <= _FEW_FILES and set(left) == set(right) else []


def without_nondeterminism(graph: Graph, found: Nondeterminism) -> Graph:
    """Return the graph without nondeterministic values, and without tools that read nothing else."""
    shifting: dict[str, set[str]] = {}
    for one in found.results:
        tool = next(name for name in graph.recipes if one.startswith(f"{name}."))
        shifting.setdefault(tool, set()).add(one.removeprefix(f"{tool}."))
    lost = {
        tool
        for tool, kinds in shifting.items()
        if not graph.recipes[tool].writes and set(graph.recipes[tool].shows) <= kinds
    }
    recipes = {
        name: dataclasses.replace(
            recipe, told=tuple(kind for kind in recipe.told if kind not in shifting.get(name, ()))
        )
        for name, recipe in graph.recipes.items()
        if name not in lost
    }
    links = tuple(
        link
        for link in graph.links
        if lost.isdisjoint((link.reader, link.user)) and link.kind not in shifting.get(link.reader, ())
    )
    said = dict.fromkeys(sorted(lost), "what it finds differs from one time to the next")
    return Graph(recipes, links, {**graph.failures, **said})
