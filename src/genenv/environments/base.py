"""The interface of environments: build tasks from specs, run episodes, and grade rollouts with code.

An environment sees messages, never tokens: `genenv.chat.format` converts between the two.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel

from genenv.errors import EnvironmentCodeError, RolloutError
from genenv.types import Json, JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

P = ParamSpec("P")
T = TypeVar("T")

Ask = Callable[[Sequence[Message]], Awaitable[str]]
"""Append these messages to the conversation and return the agent's next reply."""

Options = Sequence[Mapping[str, Sequence[Json]]]
"""Alternatives, each a product: it allows every combination of the values that it lists for its fields."""


class OutOfTurns(Exception):
    """Raised by an episode when the agent has used all its turns; the replies so far are graded."""


class Episode(Protocol):
    """The conversation of one rollout, which an environment implements. Each is new, so it may hold state.

    Optional attributes:
        tools: tools in OpenAI's form, `{"type": "function", "function": {...}}`, for the model's chat
            template; none if messages describe them. For every model, calls have the same form in the
            agent's replies and in the task's demonstration: each is `<tool_call>`, a line with
            `{"name": ..., "arguments": {...}}`, `</tool_call>`.
        choices: the replies that are allowed now, read before each `ask`: the policy samples, and is trained,
            within them. Every text is allowed if there are none.
        verdict: a method without arguments that grades the episode by what it has become, so that nothing is
            executed a second time. It is called once, after `run` has returned, or has raised `OutOfTurns`,
            and agrees with `Environment.check` of the same replies.
        remote: whether replies act on a server. Then no reply is sent a second time, and `verdict` grades an
            episode that has not ended, too.
    """

    max_turns: int
    """The maximum number of replies; between turns the policy may keep the KV cache."""

    async def run(self, ask: Ask) -> None:
        """Hold the conversation until the episode ends. The first call of `ask` passes `task.messages`.

        Raises:
            RolloutError: the rollout cannot continue.
        """
        ...


class SeatedEpisode:
    """Base class of episodes with several seats, each played by a policy or by the environment's code.

    A subclass defines `seats`, `max_turns`, `take_turns`, `coded` and `verdicts`. Its environment has the
    attribute `seats` too. Without policies for other seats it is an `Episode` of the first seat.
    """

    seats: ClassVar[tuple[str, ...]]
    """The names of the seats. Tools and `task.messages` are those of the first one."""
    max_turns: int
    """The maximum number of replies of each seat."""

    async def take_turns(self, asks: Mapping[str, Ask]) -> None:
        """Hold the conversations of all seats until the episode ends.

        Args:
            asks: for each seat, appends messages to its conversation and returns its next reply. The first
                call for the first seat passes `task.messages`, for every other seat a prompt of its own.
                Only one seat is asked at a time.
        """
        raise NotImplementedError

    def coded(self, seat: str, messages: Sequence[Message]) -> str:
        """Return the reply of the environment's code at a seat. Code may know the solution.

        Args:
            seat: the seat to reply for.
            messages: what a policy at this seat would be asked with.
        """
        raise NotImplementedError

    def verdicts(self) -> Mapping[str, Verdict]:
        """Grade every seat. Called once, after the episode has ended."""
        raise NotImplementedError

    async def play_seats(self, asks: Mapping[str, Ask]) -> None:
        """Hold the episode with policies at some seats, and code at all others."""

        async def code(seat: str, messages: Sequence[Message]) -> str:
            return self.coded(seat, messages)

        await self.take_turns(
            {seat: asks.get(seat) or functools.partial(code, seat) for seat in self.seats},
        )

    async def run(self, ask: Ask) -> None:
        """Hold the episode with a policy at the first seat; see `Episode`."""
        await self.play_seats({self.seats[0]: ask})

    def verdict(self) -> Verdict:
        """Grade the first seat; see `Episode`."""
        return self.verdicts()[self.seats[0]]


def tools_of(episode: Episode) -> Sequence[JsonObject]:
    """The tools that the model's chat template is to offer; none where messages describe them."""
    tools: Sequence[JsonObject] = getattr(episode, "tools", ())  # isinstance of a protocol takes 30 us
    return tools


def choices_of(episode: Episode) -> Sequence[str]:
    """The replies that are possible now; none where any text is."""
    choices: Sequence[str] = getattr(episode, "choices", ())
    return choices


def is_remote(episode: Episode) -> bool:
    """Whether replies act on a server, which must get none twice."""
    return getattr(episode, "remote", False)


def failed(why: str) -> Verdict:
    """The verdict on a rollout that left nothing to grade."""
    return Verdict(reward=0.0, success=False, explanation=why, readable=False)


class Environment(Protocol):
    """Tasks of one kind: how specs become tasks, how tasks are rolled out, and how rollouts are graded.

    Implemented by every environment of genenv and by the environments of users.
    """

    name: ClassVar[str]
    spec: ClassVar[type[BaseModel]]
    """The pydantic model of specs; defines the simulator's grammar and parser. Difficulty fields first."""

    config: ClassVar[type[BaseModel]]
    """The settings class (`genenv.settings.Settings`); the environment is constructed with an instance."""

    def seeds(self) -> Sequence[Seed]:
        """Return the base data: always the same seeds in the same order."""
        ...

    def held_out(self) -> Sequence[Task]:
        """Return the tasks for evaluation only: always the same tasks in the same order.

        Certain combinations of values in these tasks occur neither in a seed nor in any spec that a simulator
        can write; each environment documents which. An optional property `main_held_out` is the number of
        tasks, from the first, that `genenv eval held-out` uses by default; without it, all are used.
        """
        ...

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the JSON schema that constrains the simulator's sampling when it varies a seed."""
        ...

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt that asks the simulator for a variation of a seed.

        Args:
            seed: the item to vary.
            profile: the agent's success rate per skill.
            target: the success rate that the new task should have, alpha in (0, 1).
        """
        ...

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a good spec that varies the seed, as a target for the simulator's supervised warm-up."""
        ...

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Execute a spec: derive the ground truth and the messages that the agent sees."""
        ...

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Run the environment's checks of the gate: values stated, no leaks, checkers agree. None: passed."""
        ...

    def episode(self, task: Task) -> Episode:
        """Return a new episode of a task."""
        ...

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a rollout from the agent's replies. Deterministic: equal replies get equal verdicts.

        Replies after the end of the episode or beyond its last turn are ignored.
        """
        ...

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a well-formed, uninformed rollout. If one of them passes, the gate rejects the task."""
        ...

    def steps(self, task: Task) -> int:
        """Return the length of the task's solution in units such as calls, commands, hops or days."""
        ...

    def surface(self, task: Task) -> str:
        """Return the text that represents a task when its novelty is measured, compared as a set of words.

        It is also compared with the texts of held-out tasks. The text must contain whatever distinguishes
        tasks; if all tasks share one wording, it must not be the wording.
        """
        ...


def base_spec(env: Environment) -> type[BaseModel]:
    """Return the model of the specs of the base data: `spec`, unless the simulator writes parameters."""
    return getattr(env, "base_spec", env.spec)


def verdict_of(env: Environment, task: Task, episode: Episode | None, replies: Sequence[str]) -> Verdict:
    """Return the verdict on an episode that has ended: its own (`Episode`), or else the environment's."""
    own: Callable[[], Verdict] | None = getattr(episode, "verdict", None)
    return own() if own is not None else env.check(task, replies)


@runtime_checkable
class HasParameters(Protocol):
    """Extends `Environment` for environments that can generate a task from a few parameters."""

    parameters: ClassVar[type[BaseModel]]
    """The pydantic model of parameters, which the simulator writes: some fields of `spec`, difficulty
    first."""

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters that suit a seed, which gives only the subject. Every combination works."""
        ...

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt for a simulator that writes parameters. It has no example, to prevent copying."""
        ...

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with these parameters; its remaining fields are drawn at random."""
        ...


class HasEdits(Protocol):
    """Extends `Environment` for environments that edit specs, for a search that holds whole specs."""

    edits: bool
    """Whether specs can be edited with the environment's settings."""

    def edited(self, spec: JsonObject, rng: random.Random) -> JsonObject:
        """Return a spec after a small random change."""
        ...


class ForwardingEnvironment:
    """Base class of an environment that passes every call on, by one method: `call`."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method has it
        """Call a method of another environment."""
        raise NotImplementedError

    @staticmethod
    def _passed_on(
        method: Callable[Concatenate[Environment, P], T],
    ) -> Callable[Concatenate[ForwardingEnvironment, P], T]:
        """Return a method of `Environment` that passes its call on."""

        @functools.wraps(method)
        def passed_on(self: ForwardingEnvironment, *args: P.args, **kwargs: P.kwargs) -> T:
            return self.call(method.__name__, *args, **kwargs)

        return passed_on

    seeds = _passed_on(Environment.seeds)
    held_out = _passed_on(Environment.held_out)
    spec_schema = _passed_on(Environment.spec_schema)
    simulator_messages = _passed_on(Environment.simulator_messages)
    variation = _passed_on(Environment.variation)
    build = _passed_on(Environment.build)
    audit = _passed_on(Environment.audit)
    episode = _passed_on(Environment.episode)
    check = _passed_on(Environment.check)
    random_replies = _passed_on(Environment.random_replies)
    steps = _passed_on(Environment.steps)
    surface = _passed_on(Environment.surface)


class EnvironmentWrapper(ForwardingEnvironment):
    """Base class of wrappers: an environment that passes every call on to another environment.

    A subclass overrides single methods, or `call`, which all of them use.

    Args:
        env: the environment to wrap.
    """

    def __init__(self, env: Environment) -> None:
        self.inner = env
        self.wrapped: tuple[Environment, ...] = (env,)
        """All environments that it holds, which are closed with it."""
        self.name, self.config = env.name, env.config

    @property
    def spec(self) -> type[BaseModel]:
        """See `Environment`. An environment may set it by its settings, so it is that of the present one."""
        return self.inner.spec

    @property
    def base_spec(self) -> type[BaseModel]:
        """The model of the specs of the base data."""
        return base_spec(self.inner)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """Call a method of the wrapped environment."""
        return getattr(self.inner, method)(*args, **kwargs)

    @property
    def edits(self) -> bool:
        """See `HasEdits`."""
        return bool(getattr(self.inner, "edits", False))

    def edited(self, spec: JsonObject, rng: random.Random) -> JsonObject:
        """See `HasEdits`."""
        return self.call("edited", spec, rng)


class _OneSeat:
    """An episode of one seat of several; code plays the others."""

    def __init__(self, episode: SeatedEpisode, seat: str) -> None:
        self._episode, self._seat, self.max_turns = episode, seat, episode.max_turns

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools of the first seat; none at another one."""
        return tools_of(self._episode) if self._seat == self._episode.seats[0] else ()

    @property
    def choices(self) -> Sequence[str]:
        """See `Episode`."""
        return choices_of(self._episode)

    async def run(self, ask: Ask) -> None:
        """See `Episode`."""
        await self._episode.play_seats({self._seat: ask})

    def verdict(self) -> Verdict:
        """Grade this seat; see `Episode`."""
        return self._episode.verdicts()[self._seat]


class SeatView(EnvironmentWrapper):
    """An environment as one of its seats has it: the agent plays that seat, and code plays the others.

    Args:
        env: an environment with seats.
        seat: the agent's seat.
    """

    def __init__(self, env: Environment, seat: str) -> None:
        super().__init__(env)
        self.seat = seat
        self._whole = dict[str, Task]()
        """The tasks that `seen` was given, by id: the other seats need them as they are."""

    def episode(self, task: Task) -> Episode:
        """Return an episode of this seat, of a task or of what `seen` made of it."""
        return _OneSeat(self._of_all(task), self.seat)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade the replies of this seat: the episode is held again, with code at the other seats.

        Raises:
            EnvironmentCodeError: the episode awaits something other than replies.
        """
        episode, given = _OneSeat(self._of_all(task), self.seat), iter(replies)

        async def ask(messages: Sequence[Message]) -> str:
            if (reply := next(given, None)) is None:
                raise OutOfTurns
            return reply

        try:
            _to_its_end(episode.run(ask), task)
        except RolloutError as error:
            return failed(str(error))
        return episode.verdict()

    async def seen(self, task: Task) -> Task:
        """Return a task as this seat has it: with its prompt, and the replies of code as demonstration."""
        self._whole[task.id], episode = task, self._of_all(task)
        prompts, replies = list[Sequence[Message]](), list[str]()

        async def ask(messages: Sequence[Message]) -> str:
            prompts.append(messages)
            replies.append(episode.coded(self.seat, messages))
            return replies[-1]

        with contextlib.suppress(OutOfTurns):
            await episode.play_seats({self.seat: ask})
        known = tuple(replies) if task.oracle else ()  # else code plays, but knows no solution
        return replace(task, messages=tuple(prompts[0]) if prompts else task.messages, oracle=known)

    def _of_all(self, task: Task) -> SeatedEpisode:
        return cast(SeatedEpisode, super().episode(self._whole.get(task.id, task)))


def _to_its_end(episode: Coroutine[Any, Any, None], task: Task) -> None:
    """Run an episode whose replies are known, outside of any event loop."""
    try:
        episode.send(None)
    except (StopIteration, OutOfTurns):
        return
    episode.close()
    raise EnvironmentCodeError(
        f"the episode of {task.id} waits for something else than a reply, so its seats cannot be graded by "
        "their replies alone"
    )
