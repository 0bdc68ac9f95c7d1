"""Plans (which tools a program calls, in which order), and programs drawn from plans by execution."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Day
from typing import cast

from pydantic import JsonValue

from genenv.environments.common import Refused
from genenv.tools.bundle import Bundle, ToolCircles, companions
from genenv.tools.discover.answers import given_in
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph, Link, parsed_result
from genenv.tools.discover.rows import row_answers, shows_all
from genenv.tools.discover.state_values import is_inside_record, single_paths
from genenv.tools.language.wording import left_out, omittable
from genenv.tools.language.words import day_of
from genenv.tools.spec import AND, SIZES, THEN, Program, Question, Step, ToolsParameters, Use
from genenv.tools.worlds.base import Call, World
from genenv.types import Json, RejectReason


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tools a program calls, in order, and which calls use the result of the call before."""

    tools: tuple[str, ...]
    links: frozenset[int]
    """Indices of calls that use the result of the call before them."""

    @classmethod
    def read(cls, text: str) -> Plan:
        """Parse a plan as task parameters contain it: `find_customer>list_orders+close_ticket`."""
        tools: list[str] = []
        links: set[int] = set()
        for part in text.split(AND):
            chain = part.split(THEN)
            links |= {len(tools) + number for number in range(1, len(chain))}
            tools += chain
        return cls(tuple(tools), frozenset(links))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Restrictions on which plans exist."""

    most_calls: int
    each: int = 12
    """Maximum number of plans for each number of calls, chained or not."""
    together: ToolCircles | None = None
    """Tools that may occur together; None: any."""
    measuring: bool = False
    """Whether the plans are for held-out tasks."""


def plans(graph: Graph, subject: str, rng: random.Random, rules: Rules) -> dict[tuple[int, bool], list[str]]:
    """Return the plans that call a tool, by their number of calls and whether they chain.

    Args:
        graph: the recipes and links of the tools.
        subject: the tool.
        rng: samples plans if there are many.
        rules: restrictions on plans.
    """
    if rules.together is not None:
        return _plans_of(graph, subject, rng, rules, rules.together)
    each = rules.each
    others = [name for name in graph.recipes if name != subject]
    repeated = [name for name, one in graph.recipes.items() if one.ways]
    linked = sorted({(link.reader, link.user) for link in graph.links})
    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    chains = [THEN.join(pair) for pair in linked if subject in pair]
    for n in range(2, rules.most_calls + 1):
        distinct = len(others) >= n - 1
        flat: list[str] = []
        for _ in range(each if distinct else _FEW * bool(repeated)):
            names = [subject, *(rng.sample(others, n - 1) if distinct else rng.choices(repeated, k=n - 1))]
            rng.shuffle(names)
            flat.append(AND.join(names))
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
    """Return plans of tools that may occur together; tools with a link between them occur only as a chain."""
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


_FEW = 3
"""Maximum number of plans in which a tool is called repeatedly."""


def sizes_shown(n_tools: int, least: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """Return the allowed numbers of shown tools: at least the number of calls, at most all tools."""
    return [size for size in sizes if least <= size <= n_tools] or [
        max(size for size in SIZES if size <= n_tools)
    ]


_LONGEST_ANSWER = 60
_WAYS = 8
"""Number of tries to find a program for given parameters."""
_MOST_SETUPS = 32
"""Number of random initial states that many programs share."""


def today_in(state: Json, name: str) -> Day | None:
    """Return the date that a state has under a name; None if there is no date."""
    return day_of(state.get(name)) if isinstance(state, Mapping) else None


class ProgramSampler:
    """Draws programs: fills a plan with arguments and executes it, so that every program is known to run.

    Args:
        world: the tools.
        graph: their recipes and links.
        bundle: has the initial states, and the values that users state.
        wordings: by tool; these determine which values a request can omit.
        measuring: whether the programs are for held-out tasks.
        learning: the random numbers of all programs, if what earlier ones showed is kept: which values fail,
            and a few initial states. None: a program depends on its own random numbers alone.
    """

    def __init__(
        self,
        world: World,
        graph: Graph,
        bundle: Bundle,
        wordings: Mapping[str, Sequence[str]],
        *,
        measuring: bool,
        learning: random.Random | None = None,
    ) -> None:
        self._world, self._graph, self._bundle = world, graph, bundle
        self._wordings, self._measuring = wordings, measuring
        self._lasting = None if learning is None else self.explorer(learning)
        self._setups: list[tuple[Call, ...]] = []

    def drawn(self, parameters: ToolsParameters, rng: random.Random, state: int | None = None) -> Program:
        """Draw a program with given parameters.

        Args:
            parameters: the difficulty and the tools.
            rng: the only source of randomness.
            state: number of the initial state, if there are several; None: a random one.

        Raises:
            Refused: no program is found.
        """
        plan = Plan.read(parameters.tools)
        if unknown := [name for name in plan.tools if name not in self._graph.recipes]:
            raise Refused(RejectReason.SCHEMA, f"there is no tool {unknown[0]!r} that can be called")
        explorer = self._lasting or self.explorer(rng)
        for _ in range(_WAYS):
            explorer.known = None
            before = self._before(explorer, state, rng)
            explorer.known = len(before)
            is_refused = parameters.gap == "refused"
            walked = (self._refused if is_refused else self._walk)(explorer, plan, before, rng)
            questions = self._questions(walked, before, rng) if walked and parameters.answer else ()
            steps = self._said(walked, parameters, rng) if walked else ()
            omits = self._omitted(plan, rng) if parameters.gap == "user_answers" else ""
            if not walked or not steps or (parameters.answer and not questions):
                continue
            return Program(
                n_calls=len(walked),
                chained=bool(plan.links),
                answer=parameters.answer,
                n_tools=parameters.n_tools,
                gap=parameters.gap,
                omits=omits,
                calls=steps,
                questions=questions,
                before=tuple(step_of(call) for call in before),
            )
        raise Refused(RejectReason.EXECUTION, f"no way is found to play {parameters.tools}")

    def explorer(self, rng: random.Random) -> Explorer:
        """Return an explorer that knows how the tools are called, and the values that users state."""
        explorer = Explorer.of(self._world, self._graph, rng)
        explorer.also = self._kinds
        return explorer

    def _kinds(self, state: Json) -> Mapping[str, list[Json]]:
        """Return the values that users state, by kind."""
        bundle = self._bundle
        spoken = bundle.measuring_spoken_values if self._measuring else bundle.spoken_values
        return spoken.kinds(today_in(state, bundle.about.today))

    def _before(self, explorer: Explorer, state: int | None, rng: random.Random) -> tuple[Call, ...]:
        """Return calls that set up a random initial state, or the given one."""
        starts = self._bundle.about.starts
        if starts is None:
            if rng.random() < 0.5:
                return ()
            if len(self._setups) >= _MOST_SETUPS:
                return rng.choice(self._setups)
            setup = explorer.setup()
            if self._lasting is not None:
                self._setups.append(setup)
            return setup
        if state is None:
            state = rng.choice(starts.states(measuring=self._measuring))
        return (starts.call(state),)

    def _omitted(self, plan: Plan, rng: random.Random) -> str:
        """Return an argument of the first call that the user can give later."""
        names = omittable(self._world.tools[plan.tools[0]], self._wordings)
        if not names:
            raise Refused(RejectReason.INCONSISTENT, f"{plan.tools[0]} requires no value")
        return rng.choice(names)

    def _said(
        self, walked: Sequence[tuple[Step, Call]], parameters: ToolsParameters, rng: random.Random
    ) -> tuple[Step, ...]:
        """Return the steps, without one value for a missing-info task; empty if no value can be omitted."""
        steps = tuple(step for step, _ in walked)
        if parameters.gap != "missing_info":
            return steps
        tool = self._world.tools[steps[0].tool]
        names = left_out(tool, self._wordings)
        if not names:
            return ()
        missing = rng.choice(names)
        kept = {k: v for k, v in steps[0].args.items() if k != missing and k in tool.required}
        return (steps[0].model_copy(update={"args": kept}),)

    def _walk(
        self, explorer: Explorer, plan: Plan, before: Sequence[Call], rng: random.Random
    ) -> list[tuple[Step, Call]] | None:
        """Return the steps of a plan with their calls; None if a call does not succeed."""
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

    def _refused(
        self, explorer: Explorer, plan: Plan, before: Sequence[Call], rng: random.Random
    ) -> list[tuple[Step, Call]] | None:
        """Return a step whose call the tool refuses, of a plan of one call; None if none is found."""
        call = explorer.refused(self._graph.recipes[plan.tools[0]], before, rng)
        return None if call is None else [(step_of(call), call)]

    def _pair(
        self, explorer: Explorer, plan: Plan, number: int, played: Sequence[Call], rng: random.Random
    ) -> list[tuple[Step, Call]] | None:
        reader, user = plan.tools[number : number + 2]
        links = [link for link in self._graph.links if (link.reader, link.user) == (reader, user)]
        if not links:
            raise Refused(RejectReason.INCONSISTENT, f"nothing that {reader} finds goes into {user}")
        link: Link = rng.choice(links)
        if (found := explorer.linked(link, played, rng)) is None:
            return None
        first, path, second = found
        use = Use(parameter=link.parameter, call=number, path=path)
        return [(step_of(first), first), (step_of(second, use), second)]

    def _questions(
        self, walked: Sequence[tuple[Step, Call]], before: Sequence[Call], rng: random.Random
    ) -> tuple[Question, ...]:
        """Return a question about the last call's result; empty if no value is worth asking for."""
        calls = [call for _, call in walked]
        last = self._world.play([*before, *calls]).outcomes[-1].result
        tool = self._world.tools[calls[-1].tool]
        known = {value for call in calls for value in given_in(call.args)}
        known |= {repr(schema.get("default")) for schema in tool.properties.values()}
        recipe = self._graph.recipes[calls[-1].tool]
        result = parsed_result(last)
        found = single_paths(result).items()
        echoed = [value for value in calls[-1].args.values() if isinstance(value, str) and recipe.writes]
        of_values = [
            path
            for kind, (path, value) in found
            if kind in recipe.told
            and can_be_told(value, known)
            and not is_inside_record(result, path)
            and not any(one in str(value) for one in echoed)  # "wrote a.txt" repeats an argument
        ]
        of_rows = [
            path
            for kind, (path, value) in row_answers(result).items()
            if kind in recipe.told and can_be_told(value, known)
        ]
        if of_rows and not shows_all(self._world, [*before, *calls]):
            of_rows = []
        worth = [some for some in (of_values, of_rows) if some]
        return (Question(call=len(calls) - 1, path=rng.choice(rng.choice(worth))),) if worth else ()


def step_of(call: Call, *uses: Use) -> Step:
    """Return a call as a step of a program; arguments that `uses` provide are omitted."""
    found = {use.parameter for use in uses}
    literal = {name: value for name, value in call.args.items() if name not in found}
    return Step(tool=call.tool, args=cast("dict[str, JsonValue]", literal), uses=uses)


def can_be_told(value: Json, known: set[str]) -> bool:
    """Whether a user can ask for a value: it is short, not empty, and not known before.

    Args:
        value: the value.
        known: what is known, as `repr` gives it.
    """
    if value is None or isinstance(value, bool) or repr(value) in known:
        return False
    return len(str(value)) <= _LONGEST_ANSWER and str(value).strip() != "" and "\n" not in str(value)
