"""A bundle of tools as an environment: programs are written, executed and graded by their end state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date as Day
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Ask, Episode, OutOfTurns
from genenv.environments.common import OneQuestion, Refused, held_out_tasks, request
from genenv.environments.parameters import Options, asked_for
from genenv.evaluation.environment_check import Finding
from genenv.tools.audit import audit, random_replies
from genenv.tools.build import build, is_for_measuring, skills_of
from genenv.tools.bundle import Bundle
from genenv.tools.calls import Known, read_reply
from genenv.tools.check import calls_of, carried_out, check
from genenv.tools.discover.recipes import Graph
from genenv.tools.discover.state_values import leaves, stands_at
from genenv.tools.generate.plans import (
    DrawingContext,
    ProgramSampler,
    Rules,
    day_of,
    plans,
    reads_last,
    sizes_shown,
)
from genenv.tools.grammar import schema_from_state
from genenv.tools.language.wording import MEASURING_MANNERS, Manner, Request, RequestStyle, left_out, said
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import AND, THEN, Gap, Program, ToolsParameters, Use
from genenv.tools.worlds.base import Call, Played, Tool, World
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
    counts_calls: ClassVar[bool] = False
    """Whether more calls than the solution has fail where there is one reply, though they do no harm."""

    # longer methods, each in a module of its own; their first argument is the environment
    build = build
    audit = audit
    check = check
    random_replies = random_replies

    def __init__(self, settings: ToolsConfig | None = None, folder: Path | str = "") -> None:
        self.settings = settings or ToolsConfig()
        self.bundle = Bundle.open(Path(folder))

    @cached_property
    def world(self) -> World:
        """The tools, ready to be called."""
        return self.bundle.world(self.settings.call_s)

    @cached_property
    def graph(self) -> Graph:
        """How they can be called; nobody calls what makes the states to begin in."""
        graph, starts = self.bundle.graph, self.bundle.about.starts
        if starts is None or starts.tool not in graph.recipes:
            return graph
        kept = {tool: one for tool, one in graph.recipes.items() if tool != starts.tool}
        links = tuple(one for one in graph.links if starts.tool not in (one.reader, one.user))
        return replace(graph, recipes=kept, links=links)

    @property
    def wordings(self) -> Mapping[str, Sequence[str]]:
        """How each is asked for, in tasks for training."""
        return self.bundle.wordings

    def wordings_of(self, *, measuring: bool) -> Mapping[str, Sequence[str]]:
        """How each is asked for in tasks of one side; those for measuring may have wordings of their own."""
        other = self.bundle.measuring_wordings if measuring else None
        return self.wordings if other is None else other

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are tasks that nothing solves."""
        return bool(self.bundle.about.alike) or any(
            left_out(tool, self.wordings) for tool in self.world.tools.values()
        )

    def is_for_measuring(self, program: Program) -> bool:
        """Whether a program may only be a held-out task: by its state, or by its calls."""
        starts = self.bundle.about.starts
        if starts is None:
            return is_for_measuring(program)
        state = starts.state_of(program)
        return state is not None and state in starts.states(measuring=True)

    @cached_property
    def kept_texts(self) -> frozenset[str]:
        """Texts that people give in tasks for measuring alone."""
        measuring, training = (
            {text for texts in spoken_values.kinds(None).values() for text in texts if isinstance(text, str)}
            for spoken_values in (self.bundle.measuring_spoken_values, self.bundle.spoken_values)
        )
        return frozenset(measuring - training)

    @property
    def beginning(self) -> tuple[Call, ...]:
        """Calls that make a state to begin in, where no program says which: the first one there is."""
        starts = self.bundle.about.starts
        return (starts.call(0),) if starts else ()

    def today(self, before: Program | Sequence[Call]) -> Day | None:
        """The day on which a program begins, or that it is after some calls, where that is known."""
        name = self.bundle.about.today
        if not name:
            return None
        played = self.begun(before) if isinstance(before, Program) else self.world.play(before)
        return day_of(played.state, name)

    def begun(self, program: Program) -> Played:
        """What the calls before a program come to."""
        return self.world.play([Call(tool=one.tool, args=dict(one.args)) for one in program.before])

    def values(self, program: Program) -> Mapping[str, list[Json]]:
        """What there is to be named when a program begins, by kind: of the state, and of what people say."""
        state, bundle = self.begun(program).state, self.bundle
        other = bundle.measuring_spoken_values
        spoken_values = other if other.values and self.is_for_measuring(program) else bundle.spoken_values
        return {**leaves(state), **spoken_values.kinds(day_of(state, bundle.about.today))}

    def speech(self, program: Program, *, measuring: bool = False) -> RequestStyle:
        """How a program is asked for."""
        bundle, today, spoken_values = self.bundle, self.today(program), self.bundle.spoken_values
        wordings = self.wordings_of(measuring=measuring)
        manner = Manner(
            quoted=bundle.about.quoted, **(MEASURING_MANNERS if wordings is not self.wordings else {})
        )

        def in_words(tool: str, name: str, value: Json, form: str) -> Sequence[str]:
            return spoken_values.in_words(self.graph.recipes[tool].ways.get(name, ""), value, form, today)

        def usual(reader: str, user: str, use: Use) -> bool:
            return any(
                (link.reader, link.user, link.parameter) == (reader, user, use.parameter)
                and stands_at(use.path, link.kind)
                for link in self.graph.links
            )

        return RequestStyle(wordings=wordings, manner=manner, in_words=in_words, usual=usual)

    def said(self, program: Program, rng: random.Random, *, measuring: bool = False) -> Request:
        """What a user says who wants a program done."""
        return said(self.world.tools, program, self.speech(program, measuring=measuring), rng)

    @cached_property
    def known(self) -> Known:
        """The tools, and their parameters in order."""
        return {name: list(tool.properties) for name, tool in self.world.tools.items()}

    def comparable(self, state: Json) -> Json:
        """A state without what is declared volatile."""
        return self.bundle.comparable(state)

    def seeds(self) -> Sequence[Seed]:
        """The base data: programs of the bundle that can be played in this mode."""
        groups = self.bundle.about.groups
        return [
            Seed(id=name, environment=self.name, spec=self.dumped(one), skills=skills_of(one, groups))
            for name, one in self.playable(self.bundle.base)
        ]

    def dumped(self, program: Program) -> JsonObject:
        """A program as a spec; where every task has a solution it does not say so."""
        return program.model_dump(mode="json", exclude=None if self.has_gaps else {"gap"})

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only: their calls, with these arguments, are in no task for training."""
        return held_out_tasks(self, self.playable(self.bundle.held_out))

    def playable(self, programs: Mapping[str, Program]) -> list[tuple[str, Program]]:
        """Programs that can be played in this mode, with the tools there are."""
        single, most = self.settings.mode == "single", self.settings.most_calls
        known = self.world.tools
        return [
            (name, program)
            for name, program in programs.items()
            if program.n_calls <= most
            and not (single and (program.chained or program.answer))
            and all(step.tool in known for step in program.calls)
        ]

    def findings(self) -> Iterator[Finding]:
        """What `genenv check` says of tools beside what it says of every environment."""
        from genenv.tools.bundle_check import check_tools

        return check_tools(self)

    @property
    def omitted(self) -> str | None:
        """How many tasks of the bundle these settings leave out, and why; None where it is none."""
        sides = {"training": self.bundle.base, "measuring": self.bundle.held_out}
        kept = {side: len(self.playable(programs)) for side, programs in sides.items()}
        lost = [
            f"{len(programs) - kept[side]} of {len(programs)} tasks for {side}"
            for side, programs in sides.items()
            if kept[side] < len(programs)
        ]
        why = [f"environment.most_calls is {self.settings.most_calls}"]
        if self.settings.mode == "single":
            why.insert(
                0,
                'environment.mode is "single", and calls that use a result or ask for an answer need "auto"',
            )
        return f"{' and '.join(lost)} are left out: {'; '.join(why)}" if lost else None

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The schema of programs, in which calls are of tools there are, with arguments of their schemas.

        Where there are several states to begin in, programs begin as the seed does.
        """
        if self.bundle.about.starts is not None:
            own = parameters_of(Program.model_validate(seed.spec))
            return schema_from_state(self, seed, own)
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
                for name, tool in self.told_of(seed).items()
            ]
        }
        fields = cast("dict[str, Any]", schema["properties"])
        if not self.has_gaps:
            del fields["gap"]
        return schema

    def told_of(self, seed: Seed) -> Mapping[str, Tool]:
        """The tools that a simulator is told of: of the seed's groups, where there are some, else all."""
        groups = self.bundle.about.groups
        used = {step.tool for step in Program.model_validate(seed.spec).calls}
        near = {one for tools in groups.values() if not used.isdisjoint(tools) for one in tools}
        tools = self.world.tools
        return {name: tool for name, tool in tools.items() if name in near | used} if groups else tools

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The job, the tools, how the agent does, and the seed as an example."""
        lines = "\n".join(tool.heading for tool in self.told_of(seed).values())
        system = (
            "Write tasks for an assistant with tools, as JSON: difficulty, then the calls that solve it. "
            f"It should solve {target:.0%}. Tools:\n{lines}"
        )
        return request(system, seed.spec, profile, seed.skills, thing="task")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Another program with the seed's tools and difficulty."""
        program, starts = Program.model_validate(seed.spec), self.bundle.about.starts
        state = starts.state_of(program) if starts else None
        try:
            return self.dumped(self._drawn(parameters_of(program), rng, state))
        except Refused:
            return self.dumped(program)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`: the seed's first tool is the subject."""
        return self.options(Program.model_validate(seed.spec).calls[0].tool)

    def options(self, subject: str) -> Options:
        """All parameters of tasks that call a tool."""
        if subject not in self._known_options:
            self._known_options[subject] = _options(self, subject)
        return self._known_options[subject]

    @cached_property
    def _known_options(self) -> dict[str, Options]:
        return {}

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """What the simulator is told that sets parameters."""
        names = ", ".join(name for name in self.graph.recipes if name in self.told_of(seed))
        gap = "gap (none, missing_info, no_tool), " if self.has_gaps else ""
        system = (
            "Set up a task for an assistant with tools, as JSON: n_calls, chained (a call uses what another "
            f"finds), answer (something is asked for), n_tools (how many are shown), {gap}tools. "
            f"It should solve {target:.0%}. Subject: {seed.skills[0]}. Tools: {names}."
        )
        return asked_for(system, profile, seed.skills, thing="task")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        try:
            return self._drawn(cast(ToolsParameters, parameters), rng)
        except Refused as refused:
            told = refused.rejection
            return Rejection(told.reason, f"{told.explanation}.")

    def walker(self, *, measuring: bool = False) -> ProgramSampler:
        """Draws programs, for training or for measuring."""
        bundle, about = self.bundle, self.bundle.about
        around = DrawingContext(
            starts=about.starts,
            today=about.today,
            spoken_values=bundle.measuring_spoken_values if measuring else bundle.spoken_values,
            wordings=self.wordings_of(measuring=measuring),
            measuring=measuring,
        )
        return ProgramSampler(self.world, self.graph, around)

    def _drawn(self, parameters: ToolsParameters, rng: random.Random, state: int | None = None) -> Program:
        walker = self.walker()
        for _ in range(_DRAWS):
            program = walker.drawn(parameters, rng, state)
            if not self.is_for_measuring(program):
                return program
        raise Refused(RejectReason.HELD_OUT, f"of {parameters.tools} all that is found is kept for measuring")

    def offered(self, task: Task) -> Sequence[JsonObject]:
        """The tools of a task in the form of the OpenAI chat API."""
        return [self.world.tools[name].schema for name in cast("Sequence[str]", task.payload["tools"])]

    def episode(self, task: Task) -> Episode:
        """A fresh attempt."""
        native = self.settings.style == "native"
        tools = self.offered(task) if native else ()
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
        tools += (THEN if step.uses else AND) + step.tool
    shape = {name: getattr(program, name) for name in ("n_calls", "chained", "answer", "n_tools", "gap")}
    return ToolsParameters(**shape, tools=tools)


def _options(env: Tools, subject: str) -> Options:
    graph, settings, about = env.graph, env.settings, env.bundle.about
    found: list[dict[str, Sequence[Json]]] = []
    single, n_tools = settings.mode == "single", len(env.world.tools)
    rules = Rules(most_calls=settings.most_calls, together=about.together)
    for (n, chained), written in plans(graph, subject, random.Random(subject), rules).items():
        for answer in (False, True):
            fitting = [plan for plan in written if not answer or reads_last(graph, plan)]
            if fitting and not (single and (chained or answer)):
                shape: dict[str, Sequence[Json]] = {
                    "n_calls": (n,),
                    "chained": (chained,),
                    "answer": (answer,),
                    "n_tools": sizes_shown(n_tools, n, about.shown),
                }
                gaps = _gaps(env, subject) if n == 1 and not answer else ()
                if env.has_gaps:
                    shape["gap"] = ("none", *gaps)
                found.append({**shape, "tools": fitting})
    return tuple(found)


def _gaps(env: Tools, subject: str) -> Sequence[Gap]:
    """In which ways a call of a tool can have no solution."""
    withheld: Sequence[Gap] = ("no_tool",) if env.bundle.about.alike else ()
    incomplete = left_out(env.world.tools[subject], env.wordings)
    return (*withheld, *(("missing_info",) if incomplete else ()))


class ToolsEpisode:
    """One attempt: a conversation with a state of its own."""

    def __init__(self, env: Tools, task: Task, tools: Sequence[JsonObject] = ()) -> None:
        self._env, self._task, self.tools = env, task, tools
        self.max_turns = env.settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the episode ends: at a reply without calls, or after `max_turns`."""
        env, payload = self._env, self._task.payload
        messages: Sequence[Message] = self._task.messages
        calls: list[Any] = []
        for _ in range(self.max_turns):
            reply = read_reply(await ask(messages), env.settings.style, env.known)
            if reply.malformed or not reply.calls:
                return
            calls += reply.calls
            shown = cast("Sequence[str]", payload["tools"])
            played = carried_out(env.world, shown, calls_of(payload, "before"), calls)
            messages = [
                Message(role="tool", content=one.text) for one in played.outcomes[-len(reply.calls) :]
            ]
        raise OutOfTurns
