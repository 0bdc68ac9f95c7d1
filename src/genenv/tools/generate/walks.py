"""Programs drawn at random: typed walks over a world's tools, each call tried before it is kept.

They are tasks on the first day, without any model; who sets parameters has tasks drawn here too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date as Day
from typing import cast

from pydantic import JsonValue

from genenv.environments.common import Refused
from genenv.tools.bundle import Starts
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph, Link
from genenv.tools.discover.result_values import read
from genenv.tools.discover.state_values import leaves, single_paths
from genenv.tools.generate.missing_values import left_out
from genenv.tools.generate.plans import Plan
from genenv.tools.language.words import Sayings
from genenv.tools.spec import Program, Question, Step, ToolsParameters, Use
from genenv.tools.worlds.base import Call, World
from genenv.types import Json, RejectReason

_LONGEST_ANSWER = 60
_WAYS = 8
"""How many ways a plan is tried in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What programs are drawn with beside the world and its graph."""

    starts: Starts | None = None
    today: str = ""
    """The value of the state that is today's date."""
    sayings: Sayings = field(default_factory=Sayings)
    wordings: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Tell what users leave out."""
    measuring: bool = False
    """Whether they are for measuring."""

    def kinds(self, state: Json) -> Mapping[str, list[Json]]:
        """What people say of their own, by kind."""
        return self.sayings.kinds(day_of(state, self.today))


def day_of(state: Json, name: str) -> Day | None:
    """Today, as a state has it under a name; None where it has no date there."""
    told = state.get(name) if isinstance(state, Mapping) else None
    return Day.fromisoformat(told) if isinstance(told, str) and told else None


class Walker:
    """Draws programs of a world."""

    def __init__(self, world: World, graph: Graph, around: Surroundings | None = None) -> None:
        self._world, self._graph, self._around = world, graph, around or Surroundings()

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
