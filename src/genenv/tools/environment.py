"""A bundle of tools as an environment: programs are written, executed and graded by their end state."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Ask, Episode, Options, OutOfTurns, SeatedEpisode
from genenv.environments.common import Refused, asked_for, caseless, held_out_tasks, once, request
from genenv.environments.stepwise import STEPPED, blocking
from genenv.evaluation.environment_check import Finding
from genenv.tools.audit import audit, random_replies
from genenv.tools.build import build, skills_of
from genenv.tools.bundle_check import check_tools
from genenv.tools.calls import Known, Reply, read_reply
from genenv.tools.check import User, calls_of, check, is_solvable, refusal
from genenv.tools.grammar import schema_from_state, schema_of_calls
from genenv.tools.settings import Style, ToolsConfig
from genenv.tools.spec import AND, THEN, Program, ToolsParameters
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Call, Outcome, Played, ReplayingSession, Session, World
from genenv.types import (
    JsonObject,
    Lineage,
    Message,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

AGENT_SEAT, USER_SEAT = SEATS = ("agent", "user")
"""The user's seat is asked only in tasks whose request omits a value, when the agent asks for something."""
_DRAWS = 8
"""Maximum number of programs drawn for given parameters until one is not reserved for held-out tasks."""


class Tools(Toolbox):
    """The environment of your own tools.

    Args:
        settings: see `ToolsConfig`.
        folder: the folder of the bundle.
    """

    spec: ClassVar[type[BaseModel]] = Program
    config: ClassVar[type[BaseModel]] = ToolsConfig
    parameters: ClassVar[type[BaseModel]] = ToolsParameters
    seats: ClassVar[tuple[str, ...]] = SEATS

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Execute a program and write the user's request for it; return the task, or why it is rejected."""
        with self.dates():
            return build(self, cast(Program, spec), task_id=task_id, lineage=lineage, rng=rng)

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Reject a task with a needless call, an unstated value, or a text that gives away an answer."""
        with self.dates():
            return audit(self, task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade the end state and the answers of a rollout, GenEnv eq. (1)."""
        return check(self, task, replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return replies with valid calls of shown tools and random values."""
        with self.dates():
            return random_replies(self, task, rng)

    @once
    def seeds(self) -> Sequence[Seed]:
        """The base data: the bundle's training programs that these settings allow."""
        groups = self.bundle.about.groups
        return [
            Seed(id=name, environment=self.name, spec=self.dumped(one), skills=skills_of(one, groups))
            for name, one in self.playable(self.bundle.base)
        ]

    @once
    def held_out(self) -> Sequence[Task]:
        """Held-out tasks: their calls, with these arguments, are in no training task."""
        return held_out_tasks(self, self.playable(self.bundle.held_out))

    def playable(self, programs: Mapping[str, Program]) -> list[tuple[str, Program]]:
        """Return the programs that these settings allow and whose tools exist, with their ids."""
        single, most = self.settings.mode == "single", self.settings.most_calls
        known = self.world.tools
        return [
            (name, program)
            for name, program in programs.items()
            if program.n_calls <= most
            and (self.user_answers or not program.omits)
            and (self.refusals or program.gap != "refused")
            and not (single and (program.chained or program.answer))
            and all(step.tool in known for step in program.calls)
        ]

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of `genenv check` that are specific to tools."""
        return check_tools(self)

    @property
    def omitted(self) -> str | None:
        """How many of the bundle's tasks these settings leave out, and why; None if none is left out."""
        sides = {"training": self.bundle.base, "measuring": self.bundle.held_out}
        kept = {side: len(self.playable(programs)) for side, programs in sides.items()}
        lost = [
            f"{len(programs) - kept[side]} of {len(programs)} tasks for {side}"
            for side, programs in sides.items()
            if kept[side] < len(programs)
        ]
        why = [f"environment.most_calls is {self.settings.most_calls}"]
        if not self.settings.user_answers:
            why.append("environment.user_answers is off")
        if not self.settings.refusals:
            why.append("environment.refusals is off")
        if self.settings.mode == "single":
            why.insert(
                0,
                'environment.mode is "single", and calls that use a result or ask for an answer need "auto"',
            )
        return f"{' and '.join(lost)} are left out: {'; '.join(why)}" if lost else None

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the JSON schema of programs that call existing tools, of the records that there are.

        If the bundle has several initial states, the programs begin in the state of the seed.
        """
        if self.bundle.about.starts is not None:
            own = parameters_of(Program.model_validate(seed.spec))
            return schema_from_state(self, seed, own)
        return schema_of_calls(self, seed)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the simulator's prompt: instructions, tools, the agent's success rates, and the seed."""
        lines = "\n".join(tool.heading for tool in self.tools_in_prompt(seed).values())
        system = (
            "Write tasks for an assistant with tools, as JSON: difficulty, then the calls that solve it. "
            f"It should solve {target:.0%}. Tools:\n{lines}"
        )
        return request(system, seed.spec, profile, seed.skills, thing="task")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a random program with the seed's tools and difficulty, or the seed's if none is found."""
        program, starts = Program.model_validate(seed.spec), self.bundle.about.starts
        state = starts.state_of(program) if starts else None
        try:
            return self.dumped(self._drawn(parameters_of(program), rng, state))
        except Refused:
            return self.dumped(program.model_copy(update={"request": ""}))

    # task parameters (`HasParameters`)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`. The subject is the first tool of the seed."""
        return self.options(Program.model_validate(seed.spec).calls[0].tool)

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt of a simulator that sets task parameters."""
        names = ", ".join(name for name in self.graph.recipes if name in self.tools_in_prompt(seed))
        gaps = f"none, missing_info, no_tool{', user_answers' if self.user_answers else ''}"
        gaps += ", refused" if self.refusals else ""
        gap = f"gap ({gaps}), " if self.has_gaps else ""
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
            found = refused.rejection
            return Rejection(found.reason, f"{found.explanation}.")

    def _drawn(self, parameters: ToolsParameters, rng: random.Random, state: int | None = None) -> Program:
        walker = self.walker()
        for _ in range(_DRAWS):
            with self.dates():
                program = walker.drawn(parameters, rng, state)
            if not self.is_for_measuring(program):
                return program
        raise Refused(RejectReason.HELD_OUT, f"of {parameters.tools} all that is found is kept for measuring")

    def offered(self, task: Task) -> Sequence[JsonObject]:
        """Return the tools of a task in the format of the OpenAI chat API."""
        return [self.world.tools[name].schema for name in cast("Sequence[str]", task.payload["tools"])]

    def episode(self, task: Task) -> Episode:
        """Return a fresh episode of a task."""
        native = self.settings.style == "native"
        return ToolsEpisode(self, task, self.offered(task) if native else ())

    def steps(self, task: Task) -> int:
        """Return the number of calls in the solution."""
        return int(str(task.spec["n_calls"]))

    def surface(self, task: Task) -> str:
        """Return the text by which tasks are compared for novelty: the user's words and the calls."""
        calls = "; ".join(
            f"{call.tool}({', '.join(map(str, call.args.values()))})"
            for call in calls_of(task.payload, "calls")
        )
        return f"{task.messages[-1].content}\n{calls}"


def parameters_of(program: Program) -> ToolsParameters:
    """Return the difficulty parameters of a program."""
    tools = program.calls[0].tool
    for step in program.calls[1:]:
        tools += (THEN if step.uses else AND) + step.tool
    shape = {name: getattr(program, name) for name in ("n_calls", "chained", "answer", "n_tools", "gap")}
    return ToolsParameters(**shape, tools=tools)


class Conversation:
    """The agent's replies and the results of its calls, which are made in a session of the tools.

    Args:
        world: the tools.
        style: the format of calls.
        known: the tools, with their parameter names in order.
        shown: the names of the tools that may be called.
    """

    def __init__(self, world: World, style: Style, known: Known, shown: Sequence[str]) -> None:
        self._world, self._known, self._shown = world, known, shown
        self._style: Style = style
        self.replies: list[str] = []
        self.messages: list[Message] = []
        """The replies, and after each the results of its calls."""
        self.outcomes: list[Outcome] = []

    async def converse(
        self,
        session: Session,
        ask: Ask,
        messages: Sequence[Message],
        most: int,
        user: Callable[[Reply], Awaitable[str | None]] | None = None,
    ) -> bool:
        """Converse until a reply without calls that the user does not answer; return whether there was one.

        Args:
            session: a session of the tools.
            ask: see `Episode.run`.
            messages: the first messages.
            most: the maximum number of replies.
            user: answers a reply without calls, or ends the episode with None; None: nobody answers.
        """
        for _ in range(most):
            reply = await self.reply(ask, messages)
            if reply.calls:
                made = await self.act(session, reply.calls)
                messages = [Message(role="tool", content=one.text) for one in made]
            elif user is not None and (said := await user(reply)) is not None:
                messages = [Message(role="user", content=said)]
            else:
                return True
            self.messages += messages
        return False

    async def reply(self, ask: Ask, messages: Sequence[Message]) -> Reply:
        """Ask for a reply, and parse it."""
        self.replies.append(await ask(messages))
        self.messages.append(Message(role="assistant", content=self.replies[-1]))
        return read_reply(self.replies[-1], self._style, self._known)

    async def act(self, session: Session, calls: Sequence[Call]) -> Sequence[Outcome]:
        """Execute calls; a call of a tool that is not shown, or with wrong arguments, reaches no tool."""
        made: list[Outcome] = []
        for call in calls:
            error = refusal(self._world, self._shown, call)
            made.append(await session.call(call) if error is None else Outcome(error=error))
        self.outcomes += made
        return made


class ToolsEpisode(SeatedEpisode):
    """An episode in which the agent's calls are executed in a separate session of the world.

    In a one-reply task (`mode = "single"`), the calls of that reply are executed, and the episode ends.

    The user who gives an omitted value has a seat. Code decides when the user is asked. A policy at the seat
    words the answer, and earns the mean of its share of answers with the value and of the agent's success.

    Args:
        env: the environment that has the tools.
        task: the task of the episode.
        tools: the tools that the model's chat template lists; empty if the messages describe them.
    """

    seats: ClassVar[tuple[str, ...]] = SEATS

    def __init__(self, env: Tools, task: Task, tools: Sequence[JsonObject] = ()) -> None:
        self._env, self._task, self.tools = env, task, tools
        self._single = task.payload["mode"] == "single"
        self.max_turns = 1 if self._single else env.settings.max_turns
        shown = cast("Sequence[str]", task.payload["tools"])
        self._talk = Conversation(env.world, env.settings.style, env.known, shown)
        self._executed: Played | None = None
        self._said: list[tuple[str, str]] = []
        """What code would answer as the user, and what was answered."""
        self._answer = ""

    async def take_turns(self, asks: Mapping[str, Ask]) -> None:
        """Run the episode until a reply without calls, or for `max_turns` replies."""
        talk, messages, ask = self._talk, self._task.messages, asks[AGENT_SEAT]
        reply = Reply()
        if self._single:
            reply = await talk.reply(ask, messages)
            if reply.malformed or not reply.calls:
                return
        async with self._env.world.session() as session:
            for call in calls_of(self._task.payload, "before"):
                await session.call(call)
            ended = True
            if self._single:
                await talk.act(session, reply.calls)
            else:
                user = self._user(asks[USER_SEAT])
                ended = await talk.converse(session, ask, messages, self.max_turns, user)
            self._executed = Played(outcomes=tuple(talk.outcomes), state=await session.state())
        if talk.outcomes and not isinstance(session, ReplayingSession):
            await self._solve()
        if not ended:
            raise OutOfTurns

    async def _solve(self) -> None:
        """Execute the solution where it blocks no event loop; the world caches it for the verdict."""
        if not STEPPED.get() and is_solvable(self._task):
            program = [call for key in ("before", "calls") for call in calls_of(self._task.payload, key)]
            await blocking(lambda: self._env.world.play(program))

    def _user(self, ask: Ask) -> Callable[[Reply], Awaitable[str | None]]:
        """Return what answers the agent's replies: code decides whether, and a policy or code how."""
        user = User(self._env, self._task)

        async def answer(reply: Reply) -> str | None:
            if (by_code := user.answer(reply)) is None:
                return None
            self._answer, content = by_code, self._talk.replies[-1]
            if not self._said:
                known = self._task.payload["user_answer"]
                content = (
                    f"You are the user of an assistant. You asked:\n{self._task.messages[-1].content}\n\n"
                    f"What you left out: {known} Answer the assistant in one sentence. Tell it what it asks "
                    f"for if you know it, and nothing else. It says:\n{content}"
                )
            said = await ask((Message(role="user", content=content),))
            self._said.append((by_code, said))
            return said

        return answer

    def coded(self, seat: str, messages: Sequence[Message]) -> str:
        """See `SeatedEpisode`: the user's answer, or the next reply of the demonstration."""
        place = len(self._talk.replies)
        return self._answer if seat == USER_SEAT else "".join(self._task.oracle[place : place + 1])

    def verdicts(self) -> Mapping[str, Verdict]:
        """See `SeatedEpisode`."""
        agent, known = self.verdict(), str(self._task.payload.get("user_answer", ""))
        value = caseless(known.partition(" is ")[2].removesuffix(".").strip('"'))
        told = [value in caseless(said) for wanted, said in self._said if wanted == known]
        share = sum(told) / len(told) if told else 0.0
        explanation = f"{sum(told)} of {len(told)} answers give the value. The agent: {agent.explanation}"
        reward = (share + agent.success) / 2
        user = Verdict(reward=reward, success=bool(told) and all(told), explanation=explanation)
        return {AGENT_SEAT: agent, USER_SEAT: user}

    def verdict(self) -> Verdict:
        """Grade the session's end state without executing calls again. See `check`."""
        return check(self._env, self._task, self._talk.replies, self._executed)
