"""Programs drawn at random: typed walks over a world's tools, each call tried before it is kept.

They are tasks on the first day, without any model; who sets parameters has tasks drawn here too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from genenv.domains.common import Refused
from genenv.domains.tools.exploring import Explorer
from genenv.domains.tools.leaves import leaves, single_paths
from genenv.domains.tools.recipes import Graph, Link, Recipe
from genenv.domains.tools.spec import SIZES, Program, Question, Step, ToolsParameters, Use
from genenv.domains.tools.told import read
from genenv.domains.tools.world import Call, World
from genenv.types import Json, RejectReason

AND, THEN = "+", ">"
"""Between tools of a plan; `>`: the second one uses what the first one finds."""
_LONGEST_ANSWER = 60
_WAYS = 8
"""How many ways a plan is tried in."""


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


class Walker:
    """Draws programs of a world."""

    def __init__(self, world: World, graph: Graph) -> None:
        self._world, self._graph = world, graph

    def drawn(self, parameters: ToolsParameters, rng: random.Random) -> Program:
        """A program with these parameters.

        Raises:
            Refused: none is found.
        """
        plan = Plan.read(parameters.tools)
        if unknown := [name for name in plan.tools if name not in self._graph.recipes]:
            raise Refused(RejectReason.SCHEMA, f"there is no tool {unknown[0]!r} that can be called")
        explorer = Explorer.of(self._world, self._graph, rng)
        for _ in range(_WAYS):
            explorer.known = None
            before = explorer.setup() if rng.random() < 0.5 else ()
            explorer.known = len(before)
            walked = self._walk(explorer, plan, before, rng)
            questions = self._questions(walked, before, rng) if walked and parameters.answer else ()
            if walked is None or (parameters.answer and not questions):
                continue
            return Program(
                n_calls=len(walked),
                chained=bool(plan.links),
                answer=parameters.answer,
                n_tools=parameters.n_tools,
                calls=tuple(step for step, _ in walked),
                questions=questions,
                before=tuple(step_of(call) for call in before),
            )
        raise Refused(RejectReason.EXECUTION, f"no way is found to play {parameters.tools}")

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
        found = single_paths(read(last)).items()
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


def plans(
    graph: Graph, subject: str, rng: random.Random, *, most_calls: int, each: int = 12
) -> dict[tuple[int, bool], list[str]]:
    """Plans that call a tool, by their number of calls and whether they chain; at most so many of each.

    Args:
        graph: what is known of the tools.
        subject: the tool.
        rng: picks some where there are many.
        most_calls: of a plan.
        each: how many at most.
    """
    others = [name for name in graph.recipes if name != subject]
    linked = sorted({(link.reader, link.user) for link in graph.links})
    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    chains = [THEN.join(pair) for pair in linked if subject in pair]
    for n in range(2, most_calls + 1):
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


def _shuffled(names: list[str], rng: random.Random) -> list[str]:
    rng.shuffle(names)
    return names


def reads_last(graph: Graph, plan: str) -> bool:
    """Whether the last call of a plan finds something that could be asked for."""
    last: Recipe = graph.recipes[Plan.read(plan).tools[-1]]
    return bool(last.told)


def sizes_shown(n_tools: int, least: int) -> list[int]:
    """How many tools can be shown: enough for the calls, and no more than there are."""
    return [size for size in SIZES if least <= size <= n_tools] or [
        max(size for size in SIZES if size <= n_tools)
    ]
