"""Find state that cannot be read, by calls after which tools answer otherwise, and questions that show it.

A server may keep its data in memory, and a library in a cache. A tool that changes such data looks like one
that only reads: nothing visible changes. It gives itself away, as later calls answer otherwise. The answers
of tools that read then become part of the state (`ObservedWorld`).
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from genenv.environments.stepwise import blocking
from genenv.progress import Reporter, staged
from genenv.tools.discover.answers import result_values
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import FRESH, Graph, Recipe, parsed_result
from genenv.tools.discover.trials import IDLE
from genenv.tools.language.wording import value_text
from genenv.tools.worlds.base import (
    GONE,
    Call,
    KnownPrograms,
    Outcome,
    Played,
    Session,
    Step,
    World,
    WrappedWorld,
)
from genenv.tools.worlds.differences import is_equal
from genenv.tools.worlds.mcp.world import McpWorld
from genenv.tools.worlds.python import PythonWorld
from genenv.types import Json

_EACH, _MOST = 3, 24
"""Calls of each tool, and of all tools, whose effects on each other are compared."""
_SHOWN = 12
"""Calls of each tool that writes; questions are about the same records."""
_MOST_ASKED = 48
"""Maximum number of questions."""
_DRAWS = 4
"""Number of draws for each distinct call that is wanted of a tool."""
_LEAST_ALIKE = 3
"""Minimum number of different calls with the same answer after which a tool counts as answering nothing."""
_MOST_BEGUN = 12
"""Maximum number of tools that are called to see whether first calls set up the state."""
_A_SECOND = 1.1
"""Time in seconds after which clocks that count seconds have moved on."""
UNSEEN = "it changes what later calls answer, and nothing that can be seen or asked shows what it changed"
"""Why no task calls a tool that writes where nothing shows it."""
SAME = "it answers the same whatever it is given, and changes nothing that can be seen or asked"
"""Why no task calls a tool whose calls no check can tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What is known of a world's state that cannot be read."""

    questions: tuple[Call, ...] = ()
    """Calls of tools that only read; their answers may show it."""
    writers: frozenset[str] = frozenset()
    """Tools that change it."""
    alike: frozenset[str] = frozenset()
    """Tools whose answers are the same whatever they are given."""

    def checked(self, graph: Graph, questions: Sequence[Call]) -> Graph:
        """Return a graph with the questions, and without tools that no check could judge.

        Args:
            graph: the graph of the world that asks them.
            questions: none if they show nothing.
        """
        reads = {name for name, one in graph.recipes.items() if not one.writes}
        lost = dict.fromkeys(sorted(reads & self.alike), SAME) | dict.fromkeys(
            sorted(reads & self.writers), UNSEEN
        )
        return replace(
            graph,
            recipes={name: one for name, one in graph.recipes.items() if name not in lost},
            links=tuple(one for one in graph.links if lost.keys().isdisjoint((one.reader, one.user))),
            failures={**graph.failures, **lost},
            asked=tuple((one.tool, dict(one.args)) for one in questions),
        )


def first_call(world: World) -> str:
    """Return a tool whose call sets up the state that the first call of any tool would; empty if none does.

    It is found by calls without arguments: two different tools lead to one state, which is not the first one,
    and which a second call leaves as it is. Most tools change the first state: `pause` and `stop` beside
    `start` and `status` set up nothing.
    """
    start = world.play([]).state
    ends: dict[str, str] = {}
    idle = [name for name, tool in world.tools.items() if not tool.required and tool.writes is not True]
    found, changed, tried = "", 0, idle[:_MOST_BEGUN]
    for name in tried:
        call = Call(tool=name, args={})
        end = world.play([call]).state
        told = json.dumps(end, sort_keys=True)
        changed += end != start
        if found or end == start or world.play([call, call]).state != end:
            continue
        if told in ends:
            other = Call(tool=ends[told], args={})
            if world.play([other, call]).state == end:
                found = ends[told]
        ends[told] = name
    return found if 2 * changed > len(tried) else ""


def with_questions(
    explorer: Explorer, graph: Graph, world: World, seed: int, reporter: Reporter
) -> tuple[Explorer, Graph]:
    """Explore the tools again in a world that asks for state that cannot be read, if there is such state.

    Args:
        explorer: has explored the tools.
        graph: what it found.
        world: the tools as they were opened; kinds of worlds that show all of their state need no questions.
        seed: of all draws.
        reporter: shows the progress.
    """
    if not isinstance(world, PythonWorld | McpWorld):
        return explorer, graph
    with staged(reporter, "looking for state that cannot be read", items=None, unit="programs"):
        rng = random.Random(f"{seed} asking")
        found = find_unseen(explorer, graph, rng, is_partly_unseen=bool(world.unseen))
    if not found.questions:
        return explorer, found.checked(graph, ())
    asked = ObservedWorld(explorer.world, found.questions)
    asking = Explorer.of(asked, graph, random.Random(f"{seed} probing"))
    asking.also, asking.seconds_left, asking.writers = explorer.also, explorer.seconds_left, found.writers
    with staged(reporter, "trying the tools again", items=len(asking.world.tools), unit="tools"):
        after = asking.explore(graph)
    found = _with_new(found, explorer.world, asking, graph, after, rng)
    wrote = {name for name, one in graph.recipes.items() if one.writes}
    if any(one.writes and name not in wrote for name, one in after.recipes.items()):  # the questions show it
        return asking, found.checked(after, found.questions)
    return explorer, found.checked(graph, ())


def _with_new(
    found: Unseen, world: World, asking: Explorer, graph: Graph, after: Graph, rng: random.Random
) -> Unseen:
    """Return what is known with the tools that have a recipe only since questions are asked.

    Args:
        found: what is known of the others.
        world: executes calls without questions.
        asking: the explorer that asks them.
        graph: the recipes before.
        after: the recipes since.
        rng: draws calls.
    """
    new = {name: one for name, one in after.recipes.items() if not one.writes and name not in graph.recipes}
    calls = {name: list(_drawn(asking, one, _EACH, rng)) for name, one in new.items()}
    begins = [(), *(asking.setup() for _ in range(_LEAST_ALIKE if new else 0))]
    alike = {name for name, made in calls.items() if _is_alike(asking, name, made, begins)}
    made = _in_turn(calls, _MOST)
    later = _distinct([*made, *found.questions])
    writers = _writers(world, [*made, *found.questions], later) if made else frozenset[str]()
    return replace(found, alike=found.alike | alike, writers=found.writers | (writers & new.keys()))


def unjudged(graph: Graph) -> tuple[str, ...]:
    """Return the tools that may write where nothing shows it: nobody should be offered them."""
    reasons = (IDLE, UNSEEN, SAME)
    return tuple(name for name, why in graph.failures.items() if why in reasons and name not in graph.recipes)


def said_of_unseen(graph: Graph) -> Iterator[str]:
    """Yield sentences about state that cannot be read, or is set up late, for the README of a bundle."""
    if graph.begins_with:
        late = f"each attempt begins after {graph.begins_with}()"
        yield f"The first call sets up the state, whichever it is: {late}"
    if graph.asked:
        told = "; ".join(
            f"{one.tool}({', '.join(map(value_text, one.args.values()))})" for one in graph.questions
        )
        yield f"What cannot be seen of the state is asked for after each attempt: {told}"
    if hidden := unjudged(graph):
        yield f"Agents are not offered what may write where no check sees it: {', '.join(hidden)}"


def find_unseen(explorer: Explorer, graph: Graph, rng: random.Random, *, is_partly_unseen: bool) -> Unseen:
    """Find tools that change state which cannot be read, and questions that may show it.

    Args:
        explorer: knows how the tools are called.
        graph: the recipes that it found.
        rng: draws calls.
        is_partly_unseen: whether there is such state for sure.
    """
    world = explorer.world
    readers = {name: one for name, one in graph.recipes.items() if not one.writes}
    calls = {name: list(_drawn(explorer, one, _EACH, rng)) for name, one in readers.items()}
    begins = [(), *(explorer.setup() for _ in range(_LEAST_ALIKE))]
    alike = frozenset(name for name, found in calls.items() if _is_alike(explorer, name, found, begins))
    made = _in_turn(calls, _MOST)
    beside = [call for call in _of_the_same(explorer, readers, made, rng) if call.tool not in alike]
    writers = _writers(world, made, _distinct([*made, *beside])[:_MOST_ASKED])
    idle = any(error == IDLE for error in graph.failures.values())
    if not (writers or idle or is_partly_unseen):
        return Unseen(alike=alike)
    written = {name: list(_drawn(explorer, readers[name], _SHOWN, rng)) for name in sorted(writers)}
    beside += _of_the_same(explorer, readers, _in_turn(written, _SHOWN * len(written)), rng)
    asked: dict[str, list[Call]] = {}
    for name, recipe in readers.items():
        if name not in writers | alike:
            most = _EACH if FRESH in recipe.ways.values() else _MOST_ASKED
            named = [call for call in beside if call.tool == name]
            asked[name] = _distinct([*_plain(world, name), *named, *_drawn(explorer, recipe, most, rng)])
    while True:
        kept = {name: found for name, found in asked.items() if name not in writers}
        questions = _steady(world, _in_turn(kept, _MOST_ASKED))
        forms = {_form(call): call for call in (*questions, *made)}  # inbox() reads all, inbox(box) may not
        tried = [one for one in _distinct([*made, *forms.values()]) if one.tool not in writers]
        more = _writers(world, tried, questions) if questions else frozenset[str]()
        if not more:
            wrote = [call for name in sorted(writers) for call in calls[name]]
            questions = _without_parts(world, questions, wrote)
            return Unseen(questions=questions, writers=writers, alike=alike)
        writers |= more  # what writes is no question


def _plain(world: World, name: str) -> list[Call]:
    """Return the call of a tool without arguments, if it succeeds: it lists what there is."""
    call = Call(tool=name, args={})
    is_possible = world.tools[name].problem({}) is None
    return [call] if is_possible and world.play([call]).outcomes[-1].error is None else []


def _without_parts(world: World, questions: Sequence[Call], wrote: Sequence[Call]) -> tuple[Call, ...]:
    """Return the questions without those whose lists are parts of the list of another one.

    `list_orders(status="open")` shows nothing that `list_orders()` does not. It has to be so for all lists
    of the tool, in the first state and after calls that write, as a list may have its first page alone. Where
    such a call changes the part, it must change the whole, too: titles of one shelf are among all titles
    wherever a book is moved.
    """
    lists: list[list[list[str] | None]] = []
    for before in ([], *([call] for call in wrote)):
        outcomes = world.play_uncached([*before, *questions]).outcomes[len(before) :]
        told = [parsed_result(one.result) if one.error is None else None for one in outcomes]
        lists.append([[*map(repr, one)] if isinstance(one, list) else None for one in told])
    left = list(questions)
    for place, whole in enumerate(questions):
        parts = [
            number
            for number, one in enumerate(questions)
            if one.tool == whole.tool and whole.args.items() < one.args.items()
        ]
        if all(
            (all_of_it := shown[place]) is not None
            and (part := shown[number]) is not None
            and {*part} <= {*all_of_it}
            and (part == lists[0][number] or all_of_it != lists[0][place])
            for shown in lists
            for number in parts
        ):
            left = [one for one in left if one not in [questions[number] for number in parts]]
    return tuple(left)


def _form(call: Call) -> tuple[str, ...]:
    return (call.tool, *sorted(call.args))


def _distinct(calls: Iterable[Call]) -> list[Call]:
    return [*{repr(call): call for call in calls}.values()]


def _of_the_same(
    explorer: Explorer, recipes: Mapping[str, Recipe], calls: Sequence[Call], rng: random.Random
) -> list[Call]:
    """Return calls of all tools about what other calls are about, such as `show(7)` for `cancel(7)`.

    They have the same argument, or one that the other call has answered.
    """
    found: list[Call] = []
    for call in calls:
        told = result_values(call.tool, [explorer.world.play([call]).outcomes[-1].result])
        ways = {way: call.args[slot] for slot, way in recipes[call.tool].ways.items() if slot in call.args}
        for name, recipe in recipes.items():
            for slot, way in recipe.ways.items() if name != call.tool else ():
                known = [ways[way]] if way in ways and way != FRESH else told.get(way, [])[:1]
                if known and (other := explorer.attempt(recipe, (), rng, {slot: known[0]})) is not None:
                    found.append(other)
    return found


def _steady(world: World, calls: Sequence[Call]) -> tuple[Call, ...]:
    """Return the calls that two fresh sessions answer alike: other answers tell the time, or chance."""
    if not calls:
        return ()
    first = world.play_uncached(calls).outcomes
    time.sleep(_A_SECOND)
    again = world.play_uncached(calls).outcomes
    return tuple(call for call, one, other in zip(calls, first, again, strict=True) if one.text == other.text)


def _drawn(explorer: Explorer, recipe: Recipe, most: int, rng: random.Random) -> Iterator[Call]:
    """Yield different calls that succeed."""
    known: set[str] = set()
    for _ in range(_DRAWS * most if recipe.ways else 1):
        call = explorer.attempt(recipe, (), rng)
        if call is not None and repr(call) not in known:
            known.add(repr(call))
            yield call
        if len(known) >= most or not known:
            return


def _is_alike(explorer: Explorer, name: str, calls: Sequence[Call], begins: Sequence[Sequence[Call]]) -> bool:
    """Whether a tool that must be given something answers the same to all calls, whatever was done before."""
    if len(calls) < _LEAST_ALIKE or not explorer.world.tools[name].required:
        return False
    made = ([*before, call] for before in begins for call in calls)
    first = explorer.world.play([calls[0]]).outcomes[-1].text
    return all(explorer.world.play(one).outcomes[-1].text == first for one in made)


def _in_turn(calls: Mapping[str, Sequence[Call]], most: int) -> list[Call]:
    """Return calls, the first one of each tool before the second one of any; tools with few calls first."""
    ordered = sorted(calls.values(), key=len)
    turns = itertools.zip_longest(*ordered)
    return list(itertools.islice((one for turn in turns for one in turn if one is not None), most))


def _writers(world: World, calls: Sequence[Call], later: Sequence[Call]) -> frozenset[str]:
    """Return the tools that change what calls answer; empty if no call changes any answer.

    The later calls are made in both orders, as a call may undo what an earlier one did.

    Args:
        world: executes the calls.
        calls: calls of the tools.
        later: the calls whose answers are compared.
    """
    orders = [list(later), list(later)[::-1]]

    drew: set[str] = set()
    """Calls that draw at random: that they answer otherwise when they are made again says nothing."""

    def answers(first: Sequence[Call], order: Sequence[Call]) -> list[str]:
        outcomes = world.play_uncached([*first, *order]).outcomes[len(first) :]
        drew.update(repr(call) for call, one in zip(order, outcomes, strict=True) if one.drew)
        return [one.text for one in outcomes]

    usual = [answers((), order) for order in orders]
    if all(answers([*calls, *order], order) == told for order, told in zip(orders, usual, strict=True)):
        return frozenset()
    time.sleep(_A_SECOND)
    steady = [
        {repr(call) for call, one, other in zip(order, told, answers((), order), strict=True) if one == other}
        for order, told in zip(orders, usual, strict=True)
    ]
    changed: dict[str, set[str]] = {}
    """For each call the calls that answer otherwise after it."""
    for call in calls:
        changed[repr(call)] = {
            repr(made)
            for order, told, same in zip(orders, usual, steady, strict=True)
            for made, one, other in zip(order, told, answers((call,), order), strict=True)
            if one != other and repr(made) in same and not (made == call and repr(call) in drew)
        }
    everywhere = {repr(made) for made in later if len(calls) >= _LEAST_ALIKE}
    for found in changed.values():  # what every call changes counts calls, or tells the time
        everywhere &= found
    return frozenset(call.tool for call in calls if changed[repr(call)] - everywhere)


ASKED = "asked"
"""The key of the answers in the state."""


class ObservedWorld(WrappedWorld):
    """A world with the answers to some questions in its state, next to what the world itself shows.

    Args:
        world: executes the calls.
        questions: calls of tools that only read, with fixed arguments. They are made after all others.
    """

    def __init__(self, world: World, questions: Sequence[Call]) -> None:
        super().__init__(world)
        self.unseen = {}  # the questions are about it
        self._questions, self._known = tuple(questions), KnownPrograms()

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. To watch is to ask after each call, in a program of its own."""
        played = self._observed(calls)
        if not watch:
            return played
        states = [self._observed(calls[:number]).state for number in range(len(calls))] + [played.state]
        outcomes = (
            replace(outcome, changed=not is_equal(states[number + 1], states[number]))
            for number, outcome in enumerate(played.outcomes)
        )
        return Played(outcomes=tuple(outcomes), state=played.state)

    def _observed(self, calls: Sequence[Call]) -> Played:
        return self._known.play(calls, watch=False, execute=lambda: [Step.alone(self.play_uncached(calls))])

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        played = self.world.play_uncached([*calls, *self._questions])
        outcomes, answers = played.outcomes[: len(calls)], played.outcomes[len(calls) :]
        gone = next((number for number, one in enumerate(outcomes) if one.error == GONE), None)
        if gone is not None:  # nobody answers any more
            return Played(outcomes=outcomes, state=self._observed(calls[:gone]).state)
        return Played(outcomes=outcomes, state=self.state(played.state, answers))

    def state(self, seen: Json, answers: Sequence[Outcome]) -> Json:
        """Return a state with answers in it.

        Args:
            seen: the state that the world shows.
            answers: the outcomes of the questions.
        """
        asked: dict[str, dict[str, Json]] = {}
        for question, answer in zip(self._questions, answers, strict=True):
            told: Json = answer.result if answer.error is None else {"error": answer.error}
            asked.setdefault(question.tool, {})[_name_of(question.args)] = told
        named: dict[str, Json] = {
            tool: found[""] if [*found] == [""] else {key or "()": one for key, one in found.items()}
            for tool, found in asked.items()
        }
        return {**(seen if isinstance(seen, Mapping) else {"state": seen}), ASKED: named}

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`. Its state asks the questions; make no calls after it."""
        async with self.world.session() as session:
            yield _ObservedSession(self, session, self._questions)


class BegunWorld(WrappedWorld):
    """A world whose sessions begin after one call, which nobody sees.

    Some tools set up their state when the first of them is called, whichever it is. Without this, every tool
    would seem to write.

    Args:
        world: executes the calls.
        first: the call.
    """

    def __init__(self, world: World, first: Call) -> None:
        super().__init__(world)
        self._first = first

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        return _without_first(super().play([self._first, *calls], watch=watch))

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        return _without_first(super().play_uncached([self._first, *calls]))

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`."""
        async with self.world.session() as session:
            await session.call(self._first)
            yield session


def _without_first(played: Played) -> Played:
    return replace(played, outcomes=played.outcomes[1:])


def observed(world: World, questions: Sequence[Call], begins_with: str = "") -> World:
    """Return a world that asks questions, and whose sessions begin with a call; the world itself if neither.

    Args:
        world: executes the calls.
        questions: see `ObservedWorld`.
        begins_with: the tool that is called without arguments first, see `BegunWorld`; empty: none.
    """
    begun = BegunWorld(world, Call(tool=begins_with, args={})) if begins_with else world
    return ObservedWorld(begun, questions) if questions else begun


def _name_of(args: Mapping[str, Json]) -> str:
    """Return the name of a question among those of its tool: the value of its only argument, or all."""
    values = list(args.values())
    if not values:
        return ""
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(args, sort_keys=True)


class _ObservedSession:
    """A session of an `ObservedWorld`.

    Args:
        world: puts the answers into the state.
        session: makes the calls, and asks the questions.
        questions: calls of tools that only read.
    """

    def __init__(self, world: ObservedWorld, session: Session, questions: Sequence[Call]) -> None:
        self._world, self._session, self._questions = world, session, questions
        self._made: list[Call] = []

    async def call(self, call: Call) -> Outcome:
        """See `Session`."""
        outcome = await self._session.call(call)
        if outcome.error != GONE:
            self._made.append(call)
        return outcome

    async def state(self) -> Json:
        """See `Session`. If nobody answers, the calls before are made again in another session."""
        seen = await self._session.state()
        answers = [await self._session.call(question) for question in self._questions]
        if all(answer.error != GONE for answer in answers):
            return self._world.state(seen, answers)
        return (await blocking(lambda: self._world.play(self._made))).state
