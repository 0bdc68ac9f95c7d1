"""A bundle of tools as a domain: programs are drawn or written, played, and graded by their end state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from genenv.domains.base import Ask, Episode, OutOfTurns
from genenv.domains.common import OneQuestion, Refused, held_out_tasks, request, seeds_of
from genenv.domains.parameters import Options, asked_for
from genenv.domains.tools.audit import audit, random_replies
from genenv.domains.tools.build import build, is_for_measuring, skills_of
from genenv.domains.tools.bundle import Bundle
from genenv.domains.tools.calls import Known, read_reply
from genenv.domains.tools.check import calls_of, carried_out, check
from genenv.domains.tools.recipes import Graph
from genenv.domains.tools.settings import ToolsConfig
from genenv.domains.tools.spec import Program, ToolsParameters
from genenv.domains.tools.walks import Walker, plans, reads_last, sizes_shown
from genenv.domains.tools.world import World
from genenv.types import Json, JsonObject, Message, Profile, Rejection, RejectReason, Seed, Task

_DRAWS = 8
"""Programs that are drawn for parameters until one is for training."""


class Tools:
    """Your own tools.

    Args:
        settings: see `ToolsConfig`.
        folder: of the bundle.
    """

    name: ClassVar[str] = "tools"
    spec: ClassVar[type[BaseModel]] = Program
    config: ClassVar[type[BaseModel]] = ToolsConfig
    parameters: ClassVar[type[BaseModel]] = ToolsParameters

    # longer methods, each in a module of its own; their first argument is the domain
    build = build
    audit = audit
    check = check
    random_replies = random_replies

    def __init__(self, settings: ToolsConfig | None = None, folder: Path | None = None) -> None:
        self.settings = settings or ToolsConfig()
        self.bundle = Bundle.open(folder or Path())

    @cached_property
    def world(self) -> World:
        """The tools, ready to be called."""
        return self.bundle.world(self.settings.call_s)

    @property
    def graph(self) -> Graph:
        """How they can be called."""
        return self.bundle.graph

    @property
    def wordings(self) -> Mapping[str, Sequence[str]]:
        """How each is asked for."""
        return self.bundle.wordings

    @cached_property
    def known(self) -> Known:
        """The tools, and their parameters in order."""
        return {name: list(tool.properties) for name, tool in self.world.tools.items()}

    def comparable(self, state: Json) -> Json:
        """A state without what is declared volatile."""
        return self.bundle.comparable(state)

    def seeds(self) -> Sequence[Seed]:
        """The base data: programs of the bundle that can be played in this mode."""
        return seeds_of(self, self._playable(self.bundle.base), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only: their calls, with these arguments, are in no task for training."""
        return held_out_tasks(self, self._playable(self.bundle.held_out))

    def _playable(self, programs: Mapping[str, Program]) -> list[tuple[str, Program]]:
        single, most = self.settings.mode == "single", self.settings.most_calls
        return [
            (name, program)
            for name, program in programs.items()
            if program.n_calls <= most and not (single and (program.chained or program.answer))
        ]

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The schema of programs, in which calls are of tools there are, with arguments of their schemas."""
        schema = Program.model_json_schema()
        definitions = cast("dict[str, Any]", schema["$defs"])
        step = definitions["Step"]
        definitions["Step"] = {
            "anyOf": [
                {
                    **step,
                    "properties": {
                        "tool": {"const": name},
                        "args": {
                            "type": "object",
                            "properties": {key: tool.resolved(one) for key, one in tool.properties.items()},
                            "additionalProperties": False,
                        },
                        "uses": step["properties"]["uses"],
                    },
                }
                for name, tool in self.world.tools.items()
            ]
        }
        return schema

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The job, the tools, how the agent does, and the seed as an example."""
        lines = "\n".join(tool.heading for tool in self.world.tools.values())
        system = (
            "Write tasks for an assistant with tools, as JSON: difficulty, then the calls that solve it. "
            f"It should solve {target:.0%}. Tools:\n{lines}"
        )
        return request(system, seed.spec, profile, seed.skills, thing="task")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Another program with the seed's tools and difficulty."""
        program = Program.model_validate(seed.spec)
        try:
            return self._drawn(parameters_of(program), rng).model_dump(mode="json")
        except Refused:
            return program.model_dump(mode="json")

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`: the seed's first tool is the subject."""
        return self.options(Program.model_validate(seed.spec).calls[0].tool)

    def options(self, subject: str) -> Options:
        """All parameters of tasks that call a tool."""
        if subject not in self._known_options:
            self._known_options[subject] = _options(self.graph, self.settings, subject, len(self.world.tools))
        return self._known_options[subject]

    @cached_property
    def _known_options(self) -> dict[str, Options]:
        return {}

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """What the simulator is told that sets parameters."""
        names = ", ".join(self.graph.recipes)
        system = (
            "Set up a task for an assistant with tools, as JSON: n_calls, chained (a call uses what another "
            "finds), answer (something is asked for), n_tools (how many are shown), tools. "
            f"It should solve {target:.0%}. Subject: {seed.skills[0]}. Tools: {names}."
        )
        return asked_for(system, profile, seed.skills, thing="task")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        try:
            return self._drawn(cast(ToolsParameters, parameters), rng)
        except Refused as refused:
            return refused.rejection

    def _drawn(self, parameters: ToolsParameters, rng: random.Random) -> Program:
        walker = Walker(self.world, self.graph)
        for _ in range(_DRAWS):
            program = walker.drawn(parameters, rng)
            if not is_for_measuring(program):
                return program
        raise Refused(RejectReason.HELD_OUT, f"of {parameters.tools} all that is found is kept for measuring")

    def episode(self, task: Task) -> Episode:
        """A fresh attempt."""
        native = self.settings.style == "native"
        shown = cast("Sequence[str]", task.payload["tools"])
        tools = [self.world.tools[name].schema for name in shown] if native else ()
        return (
            OneQuestion(task, tools) if task.payload["mode"] == "single" else ToolsEpisode(self, task, tools)
        )

    def steps(self, task: Task) -> int:
        """Calls that solve it."""
        return int(str(task.spec["n_calls"]))

    def surface(self, task: Task) -> str:
        """The text by which tasks are compared for novelty: the user's words, and the calls."""
        calls = "; ".join(
            f"{call.tool}({', '.join(map(str, call.args.values()))})"
            for call in calls_of(task.payload, "calls")
        )
        return f"{task.messages[-1].content}\n{calls}"


def parameters_of(program: Program) -> ToolsParameters:
    """What a program is like."""
    tools = program.calls[0].tool
    for step in program.calls[1:]:
        tools += (">" if step.uses else "+") + step.tool
    shape = {name: getattr(program, name) for name in ("n_calls", "chained", "answer", "n_tools")}
    return ToolsParameters(**shape, tools=tools)


def _options(graph: Graph, settings: ToolsConfig, subject: str, n_tools: int) -> Options:
    found: list[dict[str, Sequence[Json]]] = []
    single = settings.mode == "single"
    listed = plans(graph, subject, random.Random(subject), most_calls=settings.most_calls)
    for (n, chained), written in listed.items():
        for answer in (False, True):
            fitting = [plan for plan in written if not answer or reads_last(graph, plan)]
            if fitting and not (single and (chained or answer)):
                shown: Sequence[Json] = sizes_shown(n_tools, n)
                found.append(
                    {
                        "n_calls": (n,),
                        "chained": (chained,),
                        "answer": (answer,),
                        "n_tools": shown,
                        "tools": fitting,
                    }
                )
    return tuple(found)


class ToolsEpisode:
    """One attempt: a conversation with a state of its own."""

    def __init__(self, domain: Tools, task: Task, tools: Sequence[JsonObject] = ()) -> None:
        self._domain, self._task, self.tools = domain, task, tools
        self.max_turns = domain.settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the episode ends: at a reply without calls, or after `max_turns`."""
        domain, payload = self._domain, self._task.payload
        messages: Sequence[Message] = self._task.messages
        calls: list[Any] = []
        for _ in range(self.max_turns):
            reply = read_reply(await ask(messages), domain.settings.style, domain.known)
            if reply.malformed or not reply.calls:
                return
            calls += reply.calls
            shown = cast("Sequence[str]", payload["tools"])
            played = carried_out(domain.world, shown, calls_of(payload, "before"), calls)
            messages = [
                Message(role="tool", content=one.text) for one in played.outcomes[-len(reply.calls) :]
            ]
        raise OutOfTurns
