"""Plans (which tools a program calls, in which order), and programs drawn from them by execution."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date as Day
from typing import cast

from pydantic import JsonValue

from genenv.environments.common import Refused
from genenv.tools.bundle import Starts, ToolCircles, companions
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph, Link, Recipe, parsed_result
from genenv.tools.discover.state_values import leaves, single_paths
from genenv.tools.language.wording import left_out
from genenv.tools.language.words import SpokenValues
from genenv.tools.spec import AND, SIZES, THEN, Program, Question, Step, ToolsParameters, Use
from genenv.tools.worlds.base import Call, World
from genenv.types import Json, RejectReason


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tools a program calls, in order, and which links it follows."""

    tools: tuple[str, ...]
    links: frozenset[int]
    """Numbers of calls that use what the call before them found."""

    @classmethod
    def read(cls, text: str) -> Plan:
        """A plan as it is written in parameters: `find_customer>list_orders+close_ticket`."""
        tools: list[str] = []
        links: set[int] = set()
        for part in text.split(AND):
            chain = part.split(THEN)
            links |= {len(tools) + number for number in range(1, len(chain))}
            tools += chain
        return cls(tuple(tools), frozenset(links))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which plans there are."""

    most_calls: int
    each: int = 12
    """So many at most of each number of calls, chained or not."""
    together: ToolCircles | None = None
    """Which tools may meet; None: any."""
    measuring: bool = False
    """Whether they are for measuring."""


def plans(graph: Graph, subject: str, rng: random.Random, rules: Rules) -> dict[tuple[int, bool], list[str]]:
    """Plans that call a tool, by their number of calls and whether they chain.

    Args:
        graph: what is known of the tools.
        subject: the tool.
        rng: picks some where there are many.
        rules: which there are.
    """
    if rules.together is not None:
        return _plans_of(graph, subject, rng, rules, rules.together)
    each = rules.each
    others = [name for name in graph.recipes if name != subject]
    linked = sorted({(link.reader, link.user) for link in graph.links})
    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    chains = [THEN.join(pair) for pair in linked if subject in pair]
    for n in range(2, rules.most_calls + 1):
        flat = [
            AND.join(_shuffled([subject, *rng.sample(others, n - 1)], rng))
            for _ in range(each * (len(others) >= n - 1))
        ]
        joined = (
            chains
            if n == 2
            else [
                AND.join([chain, *rng.sample(rest, n - 2)])
                for chain in chains
                for rest in [[name for name in others if name not in chain.split(THEN)]]
                if len(rest) >= n - 2
            ]
        )
        found[n, False] = list(dict.fromkeys(flat))
        found[n, True] = rng.sample(joined, min(each, len(joined)))
    return {size: sorted(listed) for size, listed in found.items() if listed}


def _plans_of(
    graph: Graph, subject: str, rng: random.Random, rules: Rules, together: ToolCircles
) -> dict[tuple[int, bool], list[str]]:
    """Plans of tools that may meet; those that a chain could join do not meet without it."""
    linked = sorted({(link.reader, link.user) for link in graph.links})
    chains = [pair for pair in linked if together.allows(pair, measuring=rules.measuring)]
    known = {frozenset(pair) for pair in linked}

    def apart(group: Sequence[str]) -> bool:
        pairs = map(frozenset, itertools.combinations(group, 2))
        return set(group) <= graph.recipes.keys() and known.isdisjoint(pairs)

    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    for n in range(2, rules.most_calls + 1):
        groups = together.groups(subject, n, rng, most=rules.each, measuring=rules.measuring)
        found[n, False] = [AND.join(group) for group in groups if apart(group)]
    found[2, True] = [THEN.join(pair) for pair in chains if subject in pair]
    longer = [
        AND.join([THEN.join(pair), third])
        for pair in chains
        for third in companions(together, pair, measuring=rules.measuring)
        if subject in (*pair, third) and all(apart((one, third)) for one in pair)
    ]
    found[3, True] = rng.sample(longer, min(rules.each, len(longer)))
    return {size: sorted(listed) for size, listed in found.items() if listed and size[0] <= rules.most_calls}


def _shuffled(names: list[str], rng: random.Random) -> list[str]:
    rng.shuffle(names)
    return names


def reads_last(graph: Graph, plan: str) -> bool:
    """Whether the last call of a plan finds something that could be asked for."""
    last: Recipe = graph.recipes[Plan.read(plan).tools[-1]]
    return bool(last.told)


def sizes_shown(n_tools: int, least: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """How many tools can be shown: enough for the calls, and no more than there are."""
    return [size for size in sizes if least <= size <= n_tools] or [
        max(size for size in SIZES if size <= n_tools)
    ]


_LONGEST_ANSWER = 60
_WAYS = 8
"""How many ways a plan is tried in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingContext:
    """What `ProgramSampler` needs besides a world and its graph."""

    starts: Starts | None = None
    today: str = ""
    """The value of the state that is today's date."""
    spoken_values: SpokenValues = field(default_factory=SpokenValues)
    wordings: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Tell what users leave out."""
    measuring: bool = False
    """Whether they are for measuring."""

    def kinds(self, state: Json) -> Mapping[str, list[Json]]:
        """What people say of their own, by kind."""
        return self.spoken_values.kinds(day_of(state, self.today))


def day_of(state: Json, name: str) -> Day | None:
    """Today, as a state has it under a name; None where it has no date there."""
    told = state.get(name) if isinstance(state, Mapping) else None
    return Day.fromisoformat(told) if isinstance(told, str) and told else None


class ProgramSampler:
    """Draws programs: fills a plan with arguments and executes it, so that every program is known to run."""

    def __init__(self, world: World, graph: Graph, around: DrawingContext | None = None) -> None:
        self._world, self._graph, self._around = world, graph, around or DrawingContext()

    def drawn(self, parameters: ToolsParameters, rng: random.Random, state: int | None = None) -> Program:
        """A program with these parameters.

        Args:
            parameters: what it is like.
            rng: the only source of chance.
            state: number of the state that it starts in, where there are several; left out, any of its side.

        Raises:
            Refused: none is found.
        """
        plan = Plan.read(parameters.tools)
        if unknown := [name for name in plan.tools if name not in self._graph.recipes]:
            raise Refused(RejectReason.SCHEMA, f"there is no tool {unknown[0]!r} that can be called")
        explorer = Explorer.of(self._world, self._graph, rng)
        explorer.also = self._around.kinds
        for _ in range(_WAYS):
            explorer.known = None
            before = self._before(explorer, state, rng)
            explorer.known = len(before)
            walked = self._walk(explorer, plan, before, rng)
            questions = self._questions(walked, before, rng) if walked and parameters.answer else ()
            steps = self._said(walked, parameters, rng) if walked else ()
            if not walked or not steps or (parameters.answer and not questions):
                continue
            return Program(
                n_calls=len(walked),
                chained=bool(plan.links),
                answer=parameters.answer,
                n_tools=parameters.n_tools,
                gap=parameters.gap,
                calls=steps,
                questions=questions,
                before=tuple(step_of(call) for call in before),
            )
        raise Refused(RejectReason.EXECUTION, f"no way is found to play {parameters.tools}")

    def _before(self, explorer: Explorer, state: int | None, rng: random.Random) -> tuple[Call, ...]:
        """The calls that make the state."""
        starts = self._around.starts
        if starts is None:
            return explorer.setup() if rng.random() < 0.5 else ()
        if state is None:
            state = rng.choice(starts.states(measuring=self._around.measuring))
        return (starts.call(state),)

    def _said(
        self, walked: Sequence[tuple[Step, Call]], parameters: ToolsParameters, rng: random.Random
    ) -> tuple[Step, ...]:
        """The steps as the user says them, one value left out where that is wanted; none if none can be."""
        steps = tuple(step for step, _ in walked)
        if parameters.gap != "missing_info":
            return steps
        tool = self._world.tools[steps[0].tool]
        names = left_out(tool, self._around.wordings)
        if not names:
            return ()
        missing = rng.choice(names)
        kept = {k: v for k, v in steps[0].args.items() if k != missing and k in tool.required}
        return (steps[0].model_copy(update={"args": kept}),)

    def _walk(
        self, explorer: Explorer, plan: Plan, before: Sequence[Call], rng: random.Random
    ) -> list[tuple[Step, Call]] | None:
        """Steps, with the calls that they come to; None if one does not succeed."""
        walked: list[tuple[Step, Call]] = []
        for number, name in enumerate(plan.tools):
            played = [*before, *(call for _, call in walked)]
            if number in plan.links:
                continue
            if number + 1 in plan.links:
                pair = self._pair(explorer, plan, number, played, rng)
                if pair is None:
                    return None
                walked += pair
                continue
            call = explorer.attempt(self._graph.recipes[name], played, rng)
            if call is None or call in [one for _, one in walked]:
                return None
            walked.append((step_of(call), call))
        return walked

    def _pair(
        self, explorer: Explorer, plan: Plan, number: int, played: Sequence[Call], rng: random.Random
    ) -> list[tuple[Step, Call]] | None:
        reader, user = plan.tools[number : number + 2]
        links = [link for link in self._graph.links if (link.reader, link.user) == (reader, user)]
        if not links:
            raise Refused(RejectReason.INCONSISTENT, f"nothing that {reader} finds goes into {user}")
        link: Link = rng.choice(links)
        found = explorer.linked(link, played, rng)
        if found is None:
            return None
        first, path, second = found
        use = Use(parameter=link.parameter, call=number, path=path)
        return [
            (step_of(first), first),
            (step_of(second, use), second),
        ]

    def _questions(
        self, walked: Sequence[tuple[Step, Call]], before: Sequence[Call], rng: random.Random
    ) -> tuple[Question, ...]:
        """A value of the last call's result to ask for; none if nothing there is worth asking."""
        calls = [call for _, call in walked]
        last = self._world.play([*before, *calls]).outcomes[-1].result
        tool = self._world.tools[calls[-1].tool]
        given = [leaves(dict(call.args)) for call in calls]
        known = {repr(value) for one in given for values in one.values() for value in values}
        known |= {repr(schema.get("default")) for schema in tool.properties.values()}
        recipe = self._graph.recipes[calls[-1].tool]
        varied = recipe.told
        found = single_paths(parsed_result(last)).items()
        echoed = [value for value in calls[-1].args.values() if isinstance(value, str) and recipe.writes]
        worth = [
            path
            for kind, (path, value) in found
            if kind in varied
            and _can_be_told(value, known)
            and not any(one in str(value) for one in echoed)  # "wrote a.txt" is no news
        ]
        return (Question(call=len(calls) - 1, path=rng.choice(worth)),) if worth else ()


def step_of(call: Call, *uses: Use) -> Step:
    """A call as a step of a program; what it uses is no literal."""
    found = {use.parameter for use in uses}
    literal = {name: value for name, value in call.args.items() if name not in found}
    return Step(tool=call.tool, args=cast("dict[str, JsonValue]", literal), uses=uses)


def _can_be_told(value: Json, known: set[str]) -> bool:
    if value is None or isinstance(value, bool) or value == 0 or repr(value) in known:
        return False  # "nothing" is a right answer to what is 0
    return len(str(value)) <= _LONGEST_ANSWER and str(value).strip() != "" and "\n" not in str(value)
