"""Base classes of environments whose tasks, rollouts and rewards come from another library.

Their tasks have no known demonstrations, so the gate requires none. The verdict is the reward that the
environment gave in the agent's session. If the replies were not sent in a session, they are replayed.
"""

from __future__ import annotations

import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from genenv.chat.assistant import ToolCall
from genenv.chat.tool_calls import UNREADABLE, read_calls
from genenv.config.tables import merged
from genenv.environments.base import Ask, Episode, Options, OutOfTurns, failed
from genenv.environments.common import asked_for, once, request
from genenv.environments.promises import ROUNDING, rounded
from genenv.environments.stepwise import blocking
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.settings import ImportedConfig
from genenv.interop.imported.space import Chosen, Space, digest
from genenv.simulator.schema_sampling import sample_json
from genenv.types import (
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)
from genenv.untrusted.schemas import plain_schema

_OFFER = (
    "You may call tools. To call one, reply with\n<tool_call>\n"
    '{"name": NAME, "arguments": {...}}\n</tool_call>\nTools:'
)
RANDOM_WORDS = ("yes", "no", "I do not know", "help", "look", "0", "1", "42")
"""Replies of an uninformed policy in environments that accept any text."""
HELD_OUT_SEED = 1_000_000_000
"""The seed of the first held-out task, above all seeds of training tasks."""
_MOST_VERDICTS = 1000
"""The most verdicts kept in memory (`keep_verdict`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The arguments and the number (seed or row) that start a rollout."""

    given: JsonObject
    number: int | None


class RemoteRollout(ABC):
    """One rollout in an environment of another library; implemented for OpenEnv, verifiers and TextArena."""

    messages: tuple[Message, ...] = ()
    """The messages before the next reply."""
    tools: Sequence[JsonObject] = ()
    choices: Sequence[str] = ()
    """The allowed next replies; empty if any text is allowed."""
    done: bool = False
    """Whether the rollout has ended."""
    explanation: str = ""
    """The environment's explanation of the reward."""

    @property
    @abstractmethod
    def total(self) -> float:
        """Return the environment's reward so far."""

    @abstractmethod
    def reply(self, text: str) -> None:
        """Send a reply and update `messages` and the other attributes from the environment's answer.

        Raises:
            RolloutError: the environment failed, and this rollout is over.
            UsageError: no further rollout is possible, as the server is lost or speaks another protocol.
        """

    @abstractmethod
    def random_reply(self, rng: random.Random) -> str:
        """Return a random reply of a form that the environment accepts."""

    @abstractmethod
    def close(self) -> None:
        """End the rollout and free its session."""


class ImportedEnvironment(ABC):
    """Implements `Environment` for tasks of another library. Subclasses define `begin` and the settings.

    Args:
        settings: the environment's settings.
        space: the space of its tasks.
    """

    first_held_out: int = 0
    """The number of the first held-out task."""
    name: ClassVar[str]
    spec: ClassVar[type[BaseModel]] = Chosen
    config: ClassVar[type[BaseModel]]
    parameters: ClassVar[type[BaseModel]] = Chosen
    thing: ClassVar[str] = "task"

    def __init__(self, settings: ImportedConfig, space: Space) -> None:
        self.settings, self._space = settings, space
        self._verdicts: dict[tuple[str, tuple[str, ...]], Verdict] = {}
        if twice := space.shared(settings.given_held_out):
            raise UsageError(
                f"environment.given_held_out sets {twice!r}, which environment.vary sets for each task; "
                "leave it out of one of the two"
            )

    @property
    def space(self) -> Space:
        """The space of its tasks."""
        return self._space

    @abstractmethod
    def begin(self, start: Start) -> RemoteRollout:
        """Start a rollout without waiting for a free session.

        Raises:
            RolloutError: this rollout cannot start.
            UsageError: no rollout can start.
        """

    async def begin_when_free(self, start: Start) -> RemoteRollout:
        """Start a rollout in a worker thread, as soon as a session is free."""
        return await blocking(lambda: self.begin(start), lambda begun: begun.close())

    def check_opening(self, task: Task, rollout: RemoteRollout) -> None:
        """Check that a rollout began with the messages of its task.

        Raises:
            RolloutError: it began differently.
        """
        if self.opening(rollout) != task.messages:
            raise RolloutError(
                "The environment began otherwise than before, though it was given the same; tasks must "
                "begin alike whenever they are attempted."
            )

    @property
    def about(self) -> str:
        """Return a short description of the environment for a simulator, or "" if there is none."""
        return ""

    # base data

    def seeds(self) -> Sequence[Seed]:
        """Return the base tasks: the first numbers, with the values of `vary` in turn."""
        count = min(self.settings.base, self.space.numbers or self.settings.base)
        return [
            Seed(
                id=f"{self.space.number}{place}",
                environment=self.name,
                spec=chosen,
                skills=self.space.skills(chosen, self.name),
            )
            for place, chosen in enumerate(self.space.spread(count, 0))
        ]

    @once
    def held_out(self) -> Sequence[Task]:
        """Return held-out tasks: with other numbers, or with the same numbers under `given_held_out`."""
        found: list[Task] = []
        if not self.space.numbers and not self.settings.given_held_out:
            return found  # there is nothing by which they would be others
        for place, chosen in enumerate(self.space.spread(self.settings.held_out, self.first_held_out)):
            lineage = Lineage(origin=Origin.HELD_OUT)
            task = self._built(chosen, f"held-out-{place}", lineage)
            if isinstance(task, Rejection):
                raise UsageError(
                    f"{self.name}: held-out task {place} ({chosen}) is none: {task.explanation}; "
                    "set environment.held_out lower, or environment.given_held_out to what there is"
                )
            found.append(task)
        return found

    # tasks

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the JSON schema of a task's parameters, including the number."""
        return self.space.schema()

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt of a simulator that writes specs: parameters, the agent's profile, an example."""
        names = ", ".join([*self.space.values, *([self.space.number] if self.space.numbers else [])])
        return request(self._job(names, target), seed.spec, profile, seed.skills, thing=self.thing)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return parameters drawn at random."""
        return self.space.drawn(rng)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`: return the values of `vary`; the number is drawn at random."""
        return self.space.options()

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt of a simulator that sets parameters."""
        names = ", ".join(self.space.options()[0])
        return asked_for(self._job(names, target), profile, seed.skills, thing=self.thing)

    def _job(self, names: str, target: float) -> str:
        about = f"{self.about}\n" if self.about else ""
        return f"{about}Set up tasks for an agent, as JSON: {names}. It should solve {target:.0%}."

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`: add a random number to the parameters."""
        return Chosen(**self.space.numbered(cast(Chosen, parameters).values, rng))

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Start the environment with the spec; its first messages become the task."""
        return self._built(cast(Chosen, spec).values, task_id, lineage)

    def _built(self, chosen: JsonObject, task_id: str, lineage: Lineage) -> Task | Rejection:
        if problem := self.space.problem(chosen):
            return Rejection(RejectReason.SCHEMA, f"{problem[0].upper()}{problem[1:]}.")
        number = chosen.get(self.space.number)
        if lineage.origin is not Origin.HELD_OUT and isinstance(number, int) and number >= self.space.numbers:
            sentence = f"{self.space.number} {number} is not for training."
            return Rejection(RejectReason.HELD_OUT, sentence)
        beneath = cast(JsonObject, self.settings.given)
        if lineage.origin is Origin.HELD_OUT:
            beneath = merged(beneath, cast(JsonObject, self.settings.given_held_out))
        given = self.space.given(chosen, beneath)
        numbered = number if isinstance(number, int) else None
        try:
            rollout = self.begin(Start(given=given, number=numbered))
        except RolloutError as error:
            return Rejection(RejectReason.EXECUTION, str(error))
        rollout.close()
        if rollout.done or not rollout.messages:
            return Rejection(RejectReason.EXECUTION, "The environment asks for nothing.")
        native = self.settings.tools == "native"
        return Task(
            id=task_id,
            environment=self.name,
            skills=self.space.skills(chosen, self.name),
            messages=self.opening(rollout),
            spec=chosen,
            payload={
                "given": given,
                "number": numbered,
                "tools": list(rollout.tools) if native else [],
                "choices": list(rollout.choices),
            },
            oracle=(),
            lineage=lineage,
        )

    def opening(self, rollout: RemoteRollout) -> tuple[Message, ...]:
        """Return the first messages of a rollout, including the tools if the setting `tools` is "prompt"."""
        if not rollout.tools or self.settings.tools == "native":
            return rollout.messages
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in rollout.tools)
        return with_system(rollout.messages, f"{_OFFER}\n{listed}")

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Return None: these environments add no checks to those of the gate."""
        return None

    def steps(self, task: Task) -> int:
        """Return 1, as the number of steps is unknown."""
        return 1

    def surface(self, task: Task) -> str:
        """Return a hash of the environment's arguments; tasks with equal arguments are duplicates."""
        return digest([task.payload["given"], task.payload["number"]])

    # rollouts

    def episode(self, task: Task) -> Episode:
        """Return a fresh episode."""
        return ImportedEpisode(self, task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Return the verdict that was kept, or else the verdict on a replay of the replies."""
        known, left = self._verdicts.get((self.surface(task), tuple(replies))), iter(replies)
        return known or self._rolled_out(task, lambda _: next(left, None))

    def keep_verdict(self, task: Task, replies: Sequence[str], verdict: Verdict) -> None:
        """Keep the verdict on a rollout for `check`, so that it need not be replayed."""
        self._verdicts[self.surface(task), tuple(replies)] = verdict
        if len(self._verdicts) > _MOST_VERDICTS:
            self._verdicts.pop(next(iter(self._verdicts)), None)

    def _rolled_out(self, task: Task, reply_to: Callable[[RemoteRollout], str | None]) -> Verdict:
        """Run a rollout with the replies that a function returns, until it returns None."""
        try:
            rollout = self.begin(start_of(task))
        except RolloutError as error:
            return failed(str(error))
        try:
            for _ in range(self.settings.max_turns):
                if rollout.done or (reply := reply_to(rollout)) is None:
                    break
                rollout.reply(reply)
            return self.verdict(rollout)
        except RolloutError as error:
            return failed(str(error))
        finally:
            rollout.close()

    def verdict(self, rollout: RemoteRollout) -> Verdict:
        """Return the verdict on a rollout; see `graded`."""
        total = rollout.total
        return self.graded(total, rollout.explanation, ended=rollout.done)

    def graded(self, total: float, explanation: str, *, ended: bool) -> Verdict:
        """Return the verdict: the environment's reward scaled to [0, 1], and success by `success_at`."""
        low, high, wanted = self.settings.reward_low, self.settings.reward_high, self.settings.success_at
        if not math.isfinite(total):
            return failed(f"The environment gave the reward {total}.")
        share = min(1.0, max(0.0, (total - low) / (high - low)))
        enough = (high if wanted is None else wanted) - ROUNDING * (high - low)
        solved = total > 0 and ended if wanted == 0 else total >= enough
        said = explanation or f"The environment gives {total:g}."
        return Verdict(reward=rounded(share), success=solved, explanation=said)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Run a rollout with random replies, keep its verdict for `check`, and return the replies."""
        replies: list[str] = []

        def say(rollout: RemoteRollout) -> str:
            replies.append(rollout.random_reply(rng))
            return replies[-1]

        verdict = self._rolled_out(task, say)
        self.keep_verdict(task, replies, verdict)
        return tuple(replies)


class ImportedEpisode:
    """An episode that runs in its own session of the environment.

    The first messages are known since the task was built. So the session is taken only after the first reply:
    first replies can be sampled in one batch even if there are few sessions.
    """

    remote = True

    def __init__(self, env: ImportedEnvironment, task: Task) -> None:
        self._env, self._task = env, task
        self._rollout: RemoteRollout | None = None
        self.max_turns = env.settings.max_turns
        self.tools = cast("Sequence[JsonObject]", task.payload["tools"])

    @property
    def choices(self) -> Sequence[str]:
        """See `Episode`."""
        if self._rollout is not None:
            return self._rollout.choices
        return cast("Sequence[str]", self._task.payload["choices"])

    async def run(self, ask: Ask) -> None:
        """Run the conversation until the environment ends it or the turns are used up.

        Raises:
            RolloutError: the environment failed, or started differently from when the task was built.
        """
        env, task = self._env, self._task
        replies = [await ask(task.messages)]
        rollout = self._rollout = await env.begin_when_free(start_of(task))
        try:
            env.check_opening(task, rollout)
            await blocking(lambda: rollout.reply(replies[0]))
            while not rollout.done and len(replies) < self.max_turns:
                replies.append(await ask(rollout.messages))
                await blocking(lambda: rollout.reply(replies[-1]))
        finally:
            rollout.close()
        if not rollout.done:
            raise OutOfTurns

    def verdict(self) -> Verdict:
        """See `Episode`: return the verdict on the session, by the rewards so far."""
        rollout = self._rollout
        return failed("No reply was sent.") if rollout is None else self._env.verdict(rollout)


def with_system(messages: Sequence[Message], said: str) -> tuple[Message, ...]:
    """Return messages with a text added to their system message, or as one."""
    first, *others = messages
    if first.role == "system":
        return Message(role="system", content=f"{first.content}\n\n{said}"), *others
    return Message(role="system", content=said), *messages


def start_of(task: Task) -> Start:
    """Return the arguments and number that start a rollout of a task."""
    number = task.payload["number"]
    return Start(
        given=cast(JsonObject, task.payload["given"]), number=number if isinstance(number, int) else None
    )


def words_and_calls(text: str) -> tuple[str, Sequence[ToolCall]]:
    """Split a reply into text and tool calls; if a call cannot be parsed, the whole reply is text."""
    words, calls = read_calls(text) if "<tool_call>" in text else (text, ())
    if any(not call.name or call.arguments == UNREADABLE for call in calls):
        return text, ()
    return words, calls


def random_call(tools: Sequence[JsonObject], rng: random.Random) -> str:
    """Return a call of a random tool with random arguments, or random words if there are no tools."""
    if not tools:
        return rng.choice(RANDOM_WORDS)
    function = cast("Mapping[str, Any]", rng.choice(tools)["function"])
    call = {
        "name": function["name"],
        "arguments": sampled(cast(JsonObject, function.get("parameters") or {}), rng),
    }
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def sampled(schema: JsonObject, rng: random.Random) -> Json:
    """Return a random value that is valid for a schema, or an empty object if the schema is unsupported."""
    try:
        return sample_json(plain_schema(schema), rng)
    except (UsageError, KeyError, TypeError, ValueError):  # schemas of others hold what ours do not
        return {}
