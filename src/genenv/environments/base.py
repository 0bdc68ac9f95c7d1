"""The environment interface: specs become tasks, tasks become episodes, code gives verdicts.

An environment author sees messages only; one class alone (`genenv.chat.format`) handles tokens.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from genenv.types import Json, JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

Ask = Callable[[Sequence[Message]], Awaitable[str]]
"""Append these messages to the conversation and return the agent's next reply."""

Options = Sequence[Mapping[str, Sequence[Json]]]
"""Alternatives: in each of them every value of a field goes with every value of the other fields."""


class OutOfTurns(Exception):
    """Raised by an episode whose agent has used all its turns; what it did so far is graded."""


class Episode(Protocol):
    """One rollout of one task. Fresh for every rollout, so it may hold state."""

    max_turns: int
    """It asks for no more replies than this; between turns a policy may keep its KV cache."""

    async def run(self, ask: Ask) -> None:
        """Converse until the episode ends. The first `ask` gets `task.messages`.

        Raises:
            RolloutError: the rollout cannot go on.
        """
        ...


@runtime_checkable
class OffersTools(Protocol):
    """An episode whose tools the model's chat template offers in its own form, instead of a message.

    Calls are then in the agent's replies, and in the task's known solution, as text of one form, whatever
    the model's: for each `<tool_call>`, a line with `{"name": ..., "arguments": {...}}`, `</tool_call>`.
    """

    @property
    def tools(self) -> Sequence[JsonObject]:
        """In OpenAI's form, `{"type": "function", "function": {...}}`; none where messages describe them."""
        ...


class OffersChoices(Protocol):
    """An episode whose agent may reply with one of some texts only: it samples, and learns, among them."""

    @property
    def choices(self) -> Sequence[str]:
        """The replies that are possible now, before each `ask`; none where any text is."""
        ...


class HasVerdict(Protocol):
    """An episode that grades itself by what it has become, so that nothing is executed a second time.

    Its verdict is the one that `Environment.check` gives for the same replies.
    """

    def verdict(self) -> Verdict:
        """Grade the episode. Called once, after `run` has returned, or has raised `OutOfTurns`."""
        ...


class Environment(Protocol):
    """Tasks of one kind: how they are written, rolled out and checked."""

    name: ClassVar[str]
    spec: ClassVar[type[BaseModel]]
    """What the simulator writes; also its grammar, parser and documentation. Difficulty fields come first."""

    config: ClassVar[type[BaseModel]]
    """The environment's own settings (`genenv.settings.Settings`). The class is called with an instance."""

    def seeds(self) -> Sequence[Seed]:
        """The base data, always the same, in a fixed order."""
        ...

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only, always the same, in a fixed order.

        They share with the seeds no combination of values, and nothing that a simulator can write shares one
        with them; the environment says which values it means. A property `main_held_out` may say how many of
        them, from the first, `genenv eval held-out` asks unasked; else it asks all.
        """
        ...

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The JSON schema under whose grammar the simulator varies a seed."""
        ...

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The conversation that asks the simulator for a variation of a seed.

        Args:
            seed: the item to vary.
            profile: the agent's success per skill.
            target: the success rate to aim at, alpha in (0, 1).
        """
        ...

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """A hand-written-quality spec that varies the seed: the supervised warm-up's target."""
        ...

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Execute a spec: derive the ground truth and the messages the agent sees."""
        ...

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """The environment's own gate checks: literals stated, nothing leaked, checks agree. None: passed."""
        ...

    def episode(self, task: Task) -> Episode:
        """A fresh episode."""
        ...

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a rollout from the agent's replies alone. Pure: equal replies get equal verdicts.

        Replies after the episode has ended, or is out of turns, do not count.
        """
        ...

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """A well-formed but uninformed rollout. A task that some of them pass is refused as trivial."""
        ...

    def steps(self, task: Task) -> int:
        """How long its solution is, in what the environment counts: calls, commands, hops, days."""
        ...

    def surface(self, task: Task) -> str:
        """The text by which two tasks are compared for novelty, and with held-out ones, as sets of words.

        What tells tasks apart belongs into it; where all tasks are worded alike, that is not the wording.
        """
        ...


@runtime_checkable
class HasParameters(Protocol):
    """What an environment has in addition to `Environment`, if its tasks can be drawn from parameters."""

    parameters: ClassVar[type[BaseModel]]
    """What the simulator writes in place of `spec`: some of its fields, difficulty first."""

    def parameter_options(self, seed: Seed) -> Options:
        """All parameters that go with a seed: the seed is the subject, no more. There is a task for each."""
        ...

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The prompt of a simulator that sets parameters; without an example, which would be copied."""
        ...

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """A spec that has them: the rest is drawn."""
        ...


class EnvironmentWrapper:
    """An environment that passes every call on to another one.

    A subclass overrides single methods, or `call`, through which all of them go.

    Args:
        env: the environment that is wrapped.
    """

    def __init__(self, env: Environment) -> None:
        self.inner = env
        self.name, self.spec, self.config = env.name, env.spec, env.config

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method has it
        """Call a method of the wrapped environment."""
        return getattr(self.inner, method)(*args, **kwargs)

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return self.call("seeds")

    def held_out(self) -> Sequence[Task]:
        """See `Environment`."""
        return self.call("held_out")

    def spec_schema(self, seed: Seed) -> JsonObject:
        """See `Environment`."""
        return self.call("spec_schema", seed)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Environment`."""
        return self.call("simulator_messages", seed, profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """See `Environment`."""
        return self.call("variation", seed, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """See `Environment`."""
        return self.call("build", spec, task_id=task_id, lineage=lineage, rng=rng)

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """See `Environment`."""
        return self.call("audit", task, rng)

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        return self.call("episode", task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """See `Environment`."""
        return self.call("check", task, replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """See `Environment`."""
        return self.call("random_replies", task, rng)

    def steps(self, task: Task) -> int:
        """See `Environment`."""
        return self.call("steps", task)

    def surface(self, task: Task) -> str:
        """See `Environment`."""
        return self.call("surface", task)
