"""Find out by experiment how tools can be called, which results feed other tools, and what varies."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from genenv.progress import advance
from genenv.tools.discover.answers import has_list, result_kind, result_values, shown_by
from genenv.tools.discover.probing import Probe
from genenv.tools.discover.recipes import (
    FRESH,
    CallStats,
    Graph,
    Held,
    Link,
    Patience,
    Recipe,
    draw_arguments,
    is_refused,
    is_said_refusal,
    parsed_result,
    source_of,
    sources_of,
    succeeded,
)
from genenv.tools.discover.rows import chosen_paths, shows_all
from genenv.tools.discover.state_values import (
    ANY,
    NAMES,
    Records,
    about,
    held_in,
    indices,
    is_inside_record,
    names_records,
    refers,
    single_paths,
    wanted,
)
from genenv.tools.discover.trials import IDLE, NO_TIME
from genenv.tools.worlds.base import Call, Outcome, Tool, World
from genenv.types import Json

_TRIES, _MORE_TRIES = 3, 9
"""Tries of the second call of a link, and of a call with other arguments."""
_CALLS, _SECONDS = 900, 10.0
"""What trying values that no name suggests may take, for each tool. A program of calls takes 3 to 10 ms, so
this is 3 to 9 s for a tool that nothing helps. Two parameters and 48 kinds of values take half of it."""
_ALL_SECONDS = 150.0
"""What trying such values may take for all tools together."""
_RECORD_SECONDS = 15.0
"""What trying ids of records in place of made-up ones may take for all tools together."""
_WEAK = 3
"""A tool whose calls succeed, though it is not sure that they do what they are for, gets this part of it."""
_PASSES = 4
_SETUPS = 6
"""Number of states, made by random writes, that each later pass tries."""
_LONGEST_SETUP = 4
_SHARES = 2.0
"""How much longer one tool may take than the others, of which each has the same share of the time."""
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
        self.seconds_left: Callable[[], float] = lambda: math.inf
        """Returns the time that is left to try other ways to call tools; what was found by then is kept."""
        self.prefers_records = True
        """Whether to try ids of records where made-up ones succeed as well, which takes many calls."""
        self.writers: Collection[str] = ()
        """Tools that are known to change something, though nothing may show it."""
        self._recipes: dict[str, Recipe] = {}
        self._weak: set[str] = set()
        """Tools of whose recipes it is not sure that calls do what they are for."""
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

    def explore(self, start: Graph | None = None, other: Graph | None = None) -> Graph:
        """Try every tool in the first state, then retry those that never succeeded after random writes.

        Retries also use values from the results of other tools. The progress bar counts tools of the first
        pass only.

        Args:
            start: the graph that this explorer starts with (`of`), from a world that shows less of its state:
                its recipes are tried for writes, and its other tools anew.
            other: the graph of the same tools, opened in another way: its recipes are tried again, as far as
                there is time, and are kept otherwise.
        """
        seconds = min(_SECONDS, _ALL_SECONDS / len(self.world.tools))
        patience = {name: Patience(_CALLS, seconds) for name in self.world.tools}
        if other is not None:
            self._recheck(other, patience)
        if start is not None:
            self._see_again([()], patience)
            self._forget_users_of_writers(start)
        for number in range(_PASSES):
            drawn = [(), *(self.setup() for _ in range(_SETUPS * bool(number)))]
            setups = {repr(one): one for one in drawn}.values()
            known, weak, self._weak = len(self._recipes), self._weak, set()
            left = [
                one for name, one in self.world.tools.items() if name not in self._recipes or name in weak
            ]
            for place, tool in enumerate(left, start=1):
                if self.is_late():
                    if tool.name not in self._recipes:
                        self._failures.setdefault(tool.name, NO_TIME)
                    continue
                again = f"again, {place} of {len(left)}: {tool.name}" if number else tool.name
                advance(items=0 if number else 1, note=again)
                share = min(1.0, _SHARES / (len(left) - place + 1))
                for before in setups:
                    own = share * self.seconds_left() / len(setups)
                    probe = self._probe(tool, before, everything=number > 0, seconds=own)
                    probe.try_named()
                    probe.try_all(patience[tool.name])
                    self._keep(tool, probe)
                    if probe.is_sure or self.is_late():
                        break
            if number == 1:
                self._see_again([one for one in setups if one], patience)
            for name in self._weak:
                patience[name].calls //= _WEAK
            if not left or (number and len(setups) == 1 and len(self._recipes) == known):
                break
        if self.prefers_records:
            self._prefer_records()
        setups = [(), *(self.setup() for _ in range(_SETUPS))]
        self._read_again(setups)
        advance(note="what they find for each other")
        links = tuple(self._links(start, setups[:_TRIES]))
        if other is not None and self.is_late():  # of those that were not tried again
            found = {(one.reader, one.user, one.parameter) for one in links}
            links += tuple(
                one
                for one in other.links
                if {one.reader, one.user} <= {*self._recipes}
                and (one.reader, one.user, one.parameter) not in found
            )
        learned = {
            name: replace(recipe, fails=self._luck.fails(name, recipe.ways))
            for name, recipe in self._ordered().items()
        }
        return Graph(learned, links, self._failures)

    def is_late(self) -> bool:
        """Whether there is no time to try anything else."""
        return self.seconds_left() <= 0

    def _probe(
        self, tool: Tool, before: Sequence[Call], *, everything: bool = False, seconds: float = math.inf
    ) -> Probe:
        """Return a probe of a tool after some calls.

        Args:
            tool: the tool.
            before: the calls.
            everything: whether values are also taken from the results of all tools that read.
            seconds: what the probe may take of the time that is left.
        """
        end = time.monotonic() + seconds
        held = self.held(before, everything=everything)
        probe = Probe(self.world, tool, before, held, self._rng, self._luck)
        probe.is_late = lambda: self.is_late() or time.monotonic() > end
        return probe

    def _keep(self, tool: Tool, probe: Probe) -> None:
        """Keep what a probe found about a tool, unless something better is known already."""
        known = tool.name in self._recipes
        if (not known or probe.is_sure) and (recipe := probe.recipe()) is not None:
            self._recipes[tool.name] = recipe
            self._failures.pop(tool.name, None)
            if not probe.is_sure:
                self._weak.add(tool.name)
        elif not known and self._failures.get(tool.name) != IDLE:
            self._failures[tool.name] = probe.said

    def _recheck(self, other: Graph, patience: Mapping[str, Patience]) -> None:
        """Try the recipes of another graph; for tools that it has none of, there is less patience.

        Recipes for which there is no time are kept: tasks that they do not fit are refused later.
        """
        for name, tool in self.world.tools.items():
            known = other.recipes.get(name)
            if known is None:
                patience[name].calls //= _WEAK
                continue
            probe = None
            if not self.is_late():
                advance(note=f"once more: {name}")
                probe = self._probe(tool, ())
                probe.try_ways(known.ways)
            if probe is None or self.is_late():  # what is found then is not whole
                self._recipes[name] = known
                self._luck.recall(known)
                advance(items=1)
                continue
            self._keep(tool, probe)
            advance(items=int(name in self._recipes and name not in self._weak))  # others are tried further

    def _see_again(self, setups: Iterable[Sequence[Call]], patience: Mapping[str, Patience]) -> None:
        """Look whether tools that changed nothing so far do so after some calls, as `stop` does."""
        for name, recipe in self._ordered().items():
            tool = self.world.tools[name]
            for before in setups if not recipe.writes and tool.writes is None else ():
                if self.is_late():
                    return
                probe = self._probe(tool, before)
                if probe.try_again(recipe.ways, is_sure=name in self.writers):
                    probe.try_all(patience[name])
                    self._recipes[name] = probe.recipe() or recipe
                    break

    def _forget_users_of_writers(self, start: Graph) -> None:
        """Have tools be tried anew whose arguments come from the answers of a tool that is found to write."""
        wrote = {
            one.tool for one in self._recipes.values() if one.writes and not start.recipes[one.tool].writes
        }
        for name, recipe in self._ordered().items():
            if not wrote.isdisjoint(sources_of(recipe)):
                del self._recipes[name]

    def _prefer_records(self) -> None:
        """Have tools that write take ids of records, where made-up ones succeed but say less.

        What one tool needs to be a record is one for a parameter of the same name of another tool, too. If
        there is none when a session begins, this does not hold: some tool has to make the first.
        """
        needed: dict[str, set[str]] = {}
        for recipe in self._recipes.values():
            for slot, way in recipe.ways.items():
                if way != FRESH and names_records(way) and wanted(slot, recipe.tool, [way]):
                    needed.setdefault(slot, set()).add(way)
        made_up = {
            name: [
                slot for slot, way in one.ways.items() if way == FRESH and (refers(slot) or slot in needed)
            ]
            for name, one in self._ordered().items()
            if one.writes
        }
        end = time.monotonic() + _RECORD_SECONDS
        for before in self._setups_until(end) if any(made_up.values()) else ():
            for name, slots in made_up.items():
                if not slots:
                    continue
                known = self._recipes[name]
                probe = self._probe(self.world.tools[name], before, seconds=end - time.monotonic())
                others = {
                    slot: needed[slot]
                    for slot in (slots if not before else ())
                    if slot in needed and not probe.makes(known, slot, needed[slot])
                }
                self._recipes[name] = probe.of_records(known, others) or known

    def _setups_until(self, end: float) -> Iterator[tuple[Call, ...]]:
        """Yield the first state, and states that random writes lead to, each with what is known by then."""
        seen: set[str] = set()
        for number in range(1 + 2 * _SETUPS * (_PASSES - 1)):
            before = self.setup() if number else ()
            if self.is_late() or time.monotonic() > end:
                return
            if repr(before) not in seen:
                seen.add(repr(before))
                yield before

    def _read_again(self, setups: Sequence[Sequence[Call]]) -> None:
        """Look what tools that read show, with optional arguments or after calls: one item, a count."""
        for name, recipe in self._ordered().items():
            found: list[tuple[Mapping[str, Json], Outcome]] = []
            for before in () if recipe.writes else [*setups, *setups]:
                if not self.is_late() and (call := self.attempt(recipe, before, self._rng)):
                    found.append((call.args, self._last([*before, call])))
                if found and recipe.told and not has_list(found[0][1].result):
                    break
            shows, told = shown_by(found)
            self._recipes[name] = replace(
                recipe,
                shows=tuple(dict.fromkeys([*recipe.shows, *shows])),
                told=tuple(dict.fromkeys([*recipe.told, *told])),
            )

    def setup(self, longest: int = _LONGEST_SETUP) -> tuple[Call, ...]:
        """Return random writing calls that succeed one after the other."""
        writers = [one for one in self._ordered().values() if one.writes]
        calls: list[Call] = []
        for _ in range(self._rng.randint(1, longest) if writers else 0):
            if self.is_late():
                break
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
        held, given = self.held(before[: self.known]), given or {}
        failed = Counter[str]()
        for _ in range(_MORE_TRIES):
            args = self._drawn(recipe, held, rng, given)
            if args is None:
                continue
            found = repr([args.get(name) for name, way in recipe.ways.items() if way != FRESH])
            if failed[found] >= _SAME and found != "[]":
                continue
            call = Call(tool=recipe.tool, args={**args, **given})
            good = succeeded(self._last([*before, call]), writes=recipe.writes, args=call.args)
            self._luck.note(call, recipe.ways, good=good)
            if good:
                return call
            failed[found] += 1
        return None

    def refused(self, recipe: Recipe, before: Sequence[Call], rng: random.Random) -> Call | None:
        """Return a call that the tool refuses in words after others, or None after some tries."""
        held = self.held(before[: self.known])
        for _ in range(_MORE_TRIES):
            args = draw_arguments(self.world.tools[recipe.tool], replace(recipe, fails={}), held, rng)
            if args is None or self.world.tools[recipe.tool].problem(args) is not None:
                continue
            call = Call(tool=recipe.tool, args=args)
            outcome = self._last([*before, call])
            if is_said_refusal(outcome, args) and not outcome.changed:
                return call
        return None

    def _drawn(
        self, recipe: Recipe, held: Held, rng: random.Random, given: Mapping[str, Json] = MappingProxyType({})
    ) -> dict[str, Json] | None:
        recipe = replace(recipe, fails=self._luck.fails(recipe.tool, recipe.ways))
        return draw_arguments(self.world.tools[recipe.tool], recipe, held, rng, given=given)

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
            played = self.world.play(before)
            state = played.state
            held = held_in(state, (one.ways for one in self._recipes.values()))
            values = {**held, **(self.also(state) if self.also else {})}
            values |= {kind: one for kind, one in indices(state).items() if kind != NAMES}
            # what earlier calls were given and answered is known, though a state may not show it
            for call, outcome in zip(before, played.outcomes, strict=True):
                for name, value in call.args.items():
                    values.setdefault(f"{call.tool}({name})", []).append(value)
                if self._writes(call.tool):
                    for kind, told in result_values(call.tool, [outcome.result]).items():
                        if refers(kind) and not kind.endswith(NAMES):
                            values.setdefault(kind, []).extend(told)
            self._held[key] = Held(values, Records(state))
        return self._held[key]

    def _writes(self, tool: str) -> bool:
        return tool in self._recipes and self._recipes[tool].writes

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
            self._told[key] = result_values(reader, (one.result for one in outcomes if not is_refused(one)))
        return self._told[key]

    def with_untraced(self, graph: Graph, comparable: Callable[[Json], Json]) -> Graph:
        """Return a graph in which arguments also count as unseen if only ignored values show them.

        Args:
            graph: the recipes.
            comparable: returns a state without the values that checks ignore.
        """
        found = dict(graph.recipes)
        for name, recipe in graph.recipes.items():
            if recipe.writes:
                probe = self._probe(self.world.tools[name], ())
                probe.comparable = comparable
                found[name] = replace(recipe, unseen=(*recipe.unseen, *probe.untraced(recipe)))
        return replace(graph, recipes=found)

    def without_traces(
        self, graph: Graph, comparable: Callable[[Json], Json], begin: Sequence[Call] = ()
    ) -> Graph:
        """Return a graph in which tools only read that change nothing but what checks ignore: a log, a cache.

        Args:
            graph: the recipes.
            comparable: returns a state without the values that checks ignore.
            begin: calls that set up the first state.
        """
        writers = [one for one in graph.recipes.values() if one.writes]
        reads = {
            one.tool: replace(one, writes=False, unseen=())
            for one in writers
            if not (self.world.tools[one.tool].writes or self.is_late())
            and self._only_reads(one, comparable, begin)
        }
        if not reads:
            return graph
        self._recipes = {**graph.recipes, **reads}
        others = {name: one for name, one in graph.recipes.items() if name not in reads}
        links = tuple(one for one in graph.links if reads.keys().isdisjoint((one.reader, one.user)))
        known = replace(graph, recipes=others, links=links)
        return replace(graph, recipes=self._ordered(), links=tuple(self._links(known)))

    def _only_reads(self, recipe: Recipe, comparable: Callable[[Json], Json], begin: Sequence[Call]) -> bool:
        """Whether calls of a tool that writes return something, and change nothing that is comparable."""
        returned = False
        for number in range(_MORE_TRIES):
            before = (*begin, *(self.setup() if number else ()))
            call = self.attempt(recipe, before, self._rng)
            if call is None:
                continue
            played = self.world.play([*before, call])
            if comparable(self.world.play(before).state) != comparable(played.state):
                return False
            returned = returned or succeeded(played.outcomes[-1], writes=False, args=call.args)
        return returned

    # links

    def _links(self, known: Graph | None, setups: Sequence[Sequence[Call]] = ((),)) -> Iterator[Link]:
        """Yield the links between tools; each link was executed successfully.

        The first tool reads and is given something, or it writes and its result names what it has made. A
        list that has never one item in the first state may have one after some calls.
        """
        old: Collection[str] = known.recipes if known is not None else ()
        if known is not None:
            for link in known.links:
                if self._recipes[link.reader].writes == known.recipes[link.reader].writes:
                    yield link
        readers = [one for one in self._ordered().values() if one.ways and (not one.writes or one.shows)]
        for reader, user in itertools.product(readers, self._ordered().values()):
            if reader.tool == user.tool or (reader.tool in old and user.tool in old) or self.is_late():
                continue
            for parameter, way in user.ways.items():
                if way == FRESH or parameter not in self.world.tools[user.tool].properties:
                    continue  # a fresh value does not come from a result
                for kind in _fitting(parameter, way, reader, user):
                    link = Link(reader=reader.tool, user=user.tool, parameter=parameter, kind=kind)
                    begins = setups if ANY in kind else setups[:1]
                    if any(self.linked(link, before, self._rng) for before in begins):
                        yield link

    def linked(
        self, link: Link, before: Sequence[Call], rng: random.Random
    ) -> tuple[Call, tuple[str | int, ...], Call] | None:
        """Return two linked calls that succeed, and the path of the value in the first result; else None.

        A value that is already an argument of the first call does not count, nor one that a tool that writes
        has found instead of made.
        """
        reader, user = self._recipes[link.reader], self._recipes[link.user]
        tool, tried = self.world.tools[link.user], 0
        for _ in range(_MORE_TRIES):
            first = self.attempt(reader, before, rng, link.first)
            if first is None:
                return None
            result = parsed_result(self._last([*before, first]).result)
            path, value = single_paths(result).get(link.kind, ((), None))
            if value is None and (chosen := chosen_paths(result, link.kind)):  # a list of several items
                if not shows_all(self.world, [*before, first]):
                    continue
                path, value = rng.choice(chosen)
            if value is None:
                continue
            if (tried := tried + 1) > _TRIES:
                return None
            if value in first.args.values() or is_inside_record(result, path):
                continue
            if reader.writes and any(value in one for one in self._in_state(before).values.values()):
                continue
            given = {name: first.args[name] for name in link.shared if name in first.args}
            given |= {link.parameter: value}
            for _ in range(_TRIES):
                args = self._drawn(user, self.held(before[: self.known]), rng, given)
                if args is None and reader.writes:  # of what there is only now
                    args = self._drawn(user, self.held([*before, first]), rng, given)
                if args is None:
                    continue
                second = Call(tool=link.user, args={**args, **given})
                if tool.problem(second.args) is None and succeeded(
                    self._last([*before, first, second]), writes=user.writes, args=second.args
                ):
                    return first, path, second
        return None

    def _last(self, calls: Sequence[Call]) -> Outcome:
        return self.world.play(calls, watch=True).outcomes[-1]

    def _ordered(self) -> dict[str, Recipe]:
        return {name: self._recipes[name] for name in self.world.tools if name in self._recipes}


def _fitting(parameter: str, way: str, reader: Recipe, user: Recipe) -> list[str]:
    """Return at most one kind of a tool's results for a parameter, by its recipe or its name."""
    if user.writes and not refers(parameter) and not refers(way):
        return []  # the name or the flags that a record is to have are stated, and not looked up
    if source_of(way) == reader.tool:
        return [kind for kind in reader.shows if result_kind(reader.tool, kind) == way][:1]
    of_tool = {
        f"{reader.tool}.{kind}": kind for kind in reader.shows if about(parameter, user.tool, reader.tool)
    }
    found = wanted(parameter, user.tool, reader.shows) or wanted(parameter, user.tool, list(of_tool))
    return [of_tool.get(kind, kind) for kind in found[:1]]
