"""An environment whose tasks, rollouts and verdicts are those of another library: what all of them share.

Nobody knows solutions of such tasks, so the gate asks for none. The verdict is the reward that the
environment gave in the session that the agent had. Replies that it did not get there are replayed to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

from pydantic import BaseModel, JsonValue

from genenv.chat.assistant import ToolCall
from genenv.chat.tool_calls import UNREADABLE, read_calls
from genenv.config.tables import merged
from genenv.environments.base import Ask, Episode, Options, OutOfTurns
from genenv.environments.common import at_random, request, schema_of
from genenv.environments.simulator_prompts import asked_for
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.settings import ImportedConfig
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

_NO_SKILL = re.compile(r"[^A-Za-z0-9_.:+=-]+")
_FEW = 64
"""So many numbers stand one by one where nothing but a number can be set."""


class Chosen(BaseModel, frozen=True, extra="allow"):
    """What is set of a task: a value for each name of `vary`, and the number."""

    @property
    def values(self) -> JsonObject:
        """By name."""
        return cast(JsonObject, self.model_dump(mode="json"))


class Space:
    """All tasks that can be set.

    Args:
        vary: lists of values, in tables that may be deep.
        number: what the number is called, `seed` or `row`.
        numbers: how many there are for training; 0: none is given.

    Raises:
        UsageError: `vary` holds something else than lists.
    """

    def __init__(self, vary: Mapping[str, JsonValue], number: str, numbers: int) -> None:
        paths = dict(_leaves(vary, ()))
        last = [path[-1] for path in paths]
        self._paths = {
            path[-1] if last.count(path[-1]) == 1 and path[-1] != number else ".".join(path): path
            for path in paths
        }
        self.number, self.numbers = number, numbers
        self.values: dict[str, Sequence[Json]] = {name: paths[path] for name, path in self._paths.items()}
        """The possible values, by name."""

    def options(self) -> Options:
        """What a simulator sets; the number is drawn, unless there is nothing else."""
        if self.values or not self.numbers:
            return (dict(self.values),)
        return ({self.number: range(min(_FEW, self.numbers))},)

    def schema(self) -> JsonObject:
        """The schema of all that can be set, the number included."""
        if not self.numbers:
            return schema_of(self.options())
        number: JsonObject = {"type": "integer", "minimum": 0, "maximum": self.numbers - 1}
        fields = {name: {"enum": list(values)} for name, values in self.values.items()}
        return {
            "type": "object",
            "properties": {**fields, self.number: number},
            "required": [*fields, self.number],
            "additionalProperties": False,
        }

    def drawn(self, rng: random.Random) -> dict[str, Json]:
        """Anything that can be set, at random."""
        return self.numbered(at_random(self.options(), rng), rng)

    def numbered(self, chosen: JsonObject, rng: random.Random) -> dict[str, Json]:
        """What was chosen, with a number drawn where it has none."""
        if not self.numbers or self.number in chosen:
            return dict(chosen)
        return {**chosen, self.number: rng.randrange(self.numbers)}

    def spread(self, count: int, first: int) -> list[dict[str, Json]]:
        """So many that differ, as different as they can be.

        Args:
            count: how many.
            first: the first number.
        """
        ways = math.prod(len(values) for values in self.values.values())
        if not self.numbers:
            count = min(count, ways)
        return [
            self._way(place, ways, count) | ({self.number: first + place} if self.numbers else {})
            for place in range(count)
        ]

    def _way(self, place: int, ways: int, count: int) -> dict[str, Json]:
        """The values of one of them: in turn where all have room, else at random."""
        if self.numbers and ways > count:
            rng = random.Random(place)
            return {name: rng.choice(values) for name, values in self.values.items()}
        found: dict[str, Json] = {}
        for name, values in self.values.items():
            place, which = divmod(place, len(values))
            found[name] = values[which]
        return found

    def problem(self, chosen: JsonObject) -> str:
        """What is wrong with what was set; nothing if it is empty."""
        wanted = {*self.values, *([self.number] if self.numbers else [])}
        if odd := sorted(wanted ^ set(chosen)):
            return f"{odd[0]!r} is {'missing' if odd[0] in wanted else 'nothing that can be set'}"
        for name, values in self.values.items():
            if chosen[name] not in values:
                return f"{name} is {chosen[name]!r}, which is none of its values"
        number = chosen.get(self.number, 0)
        if self.numbers and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            return f"{self.number} is {number!r}, not a whole number from 0 on"
        return ""

    def given(self, chosen: JsonObject, beneath: JsonObject) -> dict[str, Json]:
        """What the environment is given, without the number.

        Args:
            chosen: what was set.
            beneath: what it is given in addition.
        """
        found = dict(beneath)
        for name, path in self._paths.items():
            value: Json = chosen[name]
            for part in reversed(path):
                value = {part: value}
            found = merged(found, cast(JsonObject, value))
        return found

    def skills(self, chosen: JsonObject, otherwise: str) -> tuple[str, ...]:
        """What a task exercises: the values that were set."""
        named = [f"{name}={value}" for name, value in chosen.items() if name != self.number]
        return tuple(_NO_SKILL.sub("_", one)[:64] for one in named) or (otherwise,)


def digest(value: Json) -> str:
    """A word for a value: equal values have the same."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _leaves(
    table: Mapping[str, JsonValue], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Sequence[Json]]]:
    for name, value in table.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif isinstance(value, list) and value:
            yield here, value
        else:
            raise UsageError(
                f"environment.vary: {'.'.join(here)} must be a list of values, such as [1, 2, 3]"
            )


_OFFER = (
    "You may call tools. To call one, reply with\n<tool_call>\n"
    '{"name": NAME, "arguments": {...}}\n</tool_call>\nTools:'
)
RANDOM_WORDS = ("yes", "no", "I do not know", "help", "look", "0", "1", "42")
"""Replies of an uninformed agent where any text is possible."""
_MOST_VERDICTS = 20_000
"""Verdicts of rollouts that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a rollout begins with."""

    given: JsonObject
    number: int | None


class RemoteRollout(ABC):
    """One rollout in an environment of another library."""

    messages: tuple[Message, ...] = ()
    """The messages before the next reply."""
    tools: Sequence[JsonObject] = ()
    choices: Sequence[str] = ()
    """The replies among which the next one must be; none: any text."""
    done: bool = False
    """Whether nothing more is asked for."""
    explanation: str = ""
    """What the environment says of it."""

    @property
    @abstractmethod
    def total(self) -> float:
        """The environment's reward so far."""

    @abstractmethod
    def reply(self, text: str) -> None:
        """Send a reply, and take in the environment's answer.

        Raises:
            RolloutError: the environment failed; this rollout is over.
            UsageError: no rollout can run any more.
        """

    @abstractmethod
    def random_reply(self, rng: random.Random) -> str:
        """A reply that could be one, at random."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class ImportedEnvironment(ABC):
    """See `Environment`. A subclass says how a rollout begins, and what its settings are.

    Args:
        settings: of the environment.
        space: of its tasks.
        first_held_out: the number of the first held-out task.
    """

    name: ClassVar[str]
    spec: ClassVar[type[BaseModel]] = Chosen
    config: ClassVar[type[BaseModel]]
    parameters: ClassVar[type[BaseModel]] = Chosen
    thing: ClassVar[str] = "task"

    def __init__(self, settings: ImportedConfig, space: Space, first_held_out: int) -> None:
        self.settings, self.space = settings, space
        self._first_held_out = first_held_out
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()

    @abstractmethod
    def begin(self, start: Start) -> RemoteRollout:
        """A rollout, at once.

        Raises:
            RolloutError: it cannot begin.
            UsageError: none can.
        """

    async def begin_when_free(self, start: Start) -> RemoteRollout:
        """A rollout, as soon as there is room for one."""
        return self.begin(start)

    @property
    def about(self) -> str:
        """What it is, in a sentence or two, for a simulator; nothing where that is not known."""
        return ""

    # base data

    def seeds(self) -> Sequence[Seed]:
        """The first numbers, with the values of `vary` in turn."""
        return [
            Seed(
                id=f"{self.space.number}{place}",
                environment=self.name,
                spec=chosen,
                skills=self.space.skills(chosen, self.name),
            )
            for place, chosen in enumerate(self.space.spread(self._base, 0))
        ]

    @property
    def _base(self) -> int:
        numbers = self.space.numbers
        return min(self.settings.base, numbers) if numbers else self.settings.base

    def held_out(self) -> Sequence[Task]:
        """Other numbers, or the same ones of what `given_held_out` says."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Task]:
        found: list[Task] = []
        if not self.space.numbers and not self.settings.given_held_out:
            return found  # there is nothing by which they would be others
        for place, chosen in enumerate(self.space.spread(self.settings.held_out, self._first_held_out)):
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
        """All that can be set, the number included."""
        return self.space.schema()

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """What can be set, how the agent does, and an example."""
        names = ", ".join([*self.space.values, *([self.space.number] if self.space.numbers else [])])
        return request(self._job(names, target), seed.spec, profile, seed.skills, thing=self.thing)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Anything that can be set."""
        return self.space.drawn(rng)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`: the values of `vary`; the number is drawn."""
        return self.space.options()

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The prompt of a simulator that sets parameters."""
        names = ", ".join(self.space.options()[0])
        return asked_for(self._job(names, target), profile, seed.skills, thing=self.thing)

    def _job(self, names: str, target: float) -> str:
        about = f"{self.about}\n" if self.about else ""
        return f"{about}Set up tasks for an agent, as JSON: {names}. It should solve {target:.0%}."

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        return Chosen(**self.space.numbered(cast(Chosen, parameters).values, rng))

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """The environment begins with it, and what it says first is the task."""
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
            beneath = {**beneath, **cast(JsonObject, self.settings.given_held_out)}
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
        """The first messages of a rollout, with the tools where the prompt is to offer them."""
        if not rollout.tools or self.settings.tools == "native":
            return rollout.messages
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in rollout.tools)
        said = f"{_OFFER}\n{listed}"
        first, *others = rollout.messages
        if first.role == "system":
            return Message(role="system", content=f"{first.content}\n\n{said}"), *others
        return Message(role="system", content=said), *rollout.messages

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """No checks in addition to those of every gate."""
        return None

    def steps(self, task: Task) -> int:
        """Unknown: 1."""
        return 1

    def surface(self, task: Task) -> str:
        """A word for what the environment is given: tasks are the same where that is the same."""
        return digest([task.payload["given"], task.payload["number"]])

    # rollouts

    def episode(self, task: Task) -> Episode:
        """A fresh episode."""
        return ImportedEpisode(self, task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """The verdict that the environment gave in the rollout, or gives on a replay."""
        known = self._verdicts.get(_key(task, replies))
        if known is not None:
            return known
        try:
            rollout = self.begin(start_of(task))
        except RolloutError as error:
            return failed(str(error))
        try:
            for reply in replies[: self.settings.max_turns]:
                if rollout.done:
                    break
                rollout.reply(reply)
            verdict = self.verdict(rollout)
        except RolloutError as error:
            verdict = failed(str(error))
        finally:
            rollout.close()
        self.keep_verdict(task, replies, verdict)
        return verdict

    def keep_verdict(self, task: Task, replies: Sequence[str], verdict: Verdict) -> None:
        """Keep the verdict on a rollout: its trace is graded by it."""
        key = _key(task, replies)
        self._verdicts[key] = verdict
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > _MOST_VERDICTS:
            self._verdicts.popitem(last=False)

    def verdict(self, rollout: RemoteRollout) -> Verdict:
        """The environment's reward as a verdict."""
        settings, total = self.settings, rollout.total
        if not math.isfinite(total):
            return failed(f"The environment gave the reward {total}.")
        share = (total - settings.reward_low) / (settings.reward_high - settings.reward_low)
        solved = total > 0 and rollout.done if settings.success_at == 0 else total >= settings.success_at
        said = rollout.explanation or f"The environment gives {total:g}."
        return Verdict(reward=min(1.0, max(0.0, share)), success=solved, explanation=said)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Replies at random, to what the environment says to them."""
        replies: list[str] = []
        try:
            rollout = self.begin(start_of(task))
        except RolloutError:
            return ()
        try:
            while not rollout.done and len(replies) < self.settings.max_turns:
                replies.append(rollout.random_reply(rng))
                rollout.reply(replies[-1])
            self.keep_verdict(task, replies, self.verdict(rollout))
        except RolloutError as error:
            self.keep_verdict(task, replies, failed(str(error)))
        finally:
            rollout.close()
        return tuple(replies)


class ImportedEpisode:
    """One rollout, in a session of its own.

    How it begins is known since the task was built, so that a session is taken when there is a reply: first
    replies are sampled together however few sessions there are.
    """

    def __init__(self, env: ImportedEnvironment, task: Task) -> None:
        self._env, self._task = env, task
        self._rollout: RemoteRollout | None = None
        self.max_turns = env.settings.max_turns
        self.tools = cast("Sequence[JsonObject]", task.payload["tools"])

    @property
    def choices(self) -> Sequence[str]:
        """See `OffersChoices`."""
        if self._rollout is not None:
            return self._rollout.choices
        return cast("Sequence[str]", self._task.payload["choices"])

    async def run(self, ask: Ask) -> None:
        """Converse until the environment ends it, or the turns are used.

        Raises:
            RolloutError: the environment failed, or began otherwise than when the task was built.
        """
        env, task = self._env, self._task
        replies = [await ask(task.messages)]
        rollout = self._rollout = await env.begin_when_free(start_of(task))
        try:
            if env.opening(rollout) != task.messages:
                raise RolloutError(
                    "The environment began otherwise than before, though it was given the same; tasks must "
                    "begin alike whenever they are attempted."
                )
            rollout.reply(replies[0])
            while not rollout.done and len(replies) < self.max_turns:
                replies.append(await ask(rollout.messages))
                rollout.reply(replies[-1])
            env.keep_verdict(task, replies, env.verdict(rollout))
        finally:
            rollout.close()
        if not rollout.done:
            raise OutOfTurns


def failed(why: str) -> Verdict:
    """The verdict on a rollout that the environment could not run."""
    return Verdict(reward=0.0, success=False, explanation=why, readable=False)


def start_of(task: Task) -> Start:
    """What a rollout of a task begins with."""
    number = task.payload["number"]
    return Start(
        given=cast(JsonObject, task.payload["given"]), number=number if isinstance(number, int) else None
    )


def _key(task: Task, replies: Sequence[str]) -> str:
    said: Json = [task.payload["given"], task.payload["number"], list(replies)]
    return digest(said)


def words_and_calls(text: str) -> tuple[str, Sequence[ToolCall]]:
    """A reply as it goes over a wire; one with a call that cannot be read goes as it is, as words."""
    words, calls = read_calls(text) if "<tool_call>" in text else (text, ())
    if any(not call.name or call.arguments == UNREADABLE for call in calls):
        return text, ()
    return words, calls


def random_call(tools: Sequence[JsonObject], rng: random.Random) -> str:
    """A call of some tool with arguments at random; words where there are no tools."""
    if not tools:
        return rng.choice(RANDOM_WORDS)
    function = cast("Mapping[str, Any]", rng.choice(tools)["function"])
    call = {
        "name": function["name"],
        "arguments": sampled(cast(JsonObject, function.get("parameters") or {}), rng),
    }
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def sampled(schema: JsonObject, rng: random.Random) -> Json:
    """A value of a schema at random; an empty object where the schema cannot be sampled."""
    try:
        return sample_json(plain_schema(schema), rng)
    except (UsageError, KeyError, TypeError, ValueError):  # schemas of others hold what ours do not
        return {}
