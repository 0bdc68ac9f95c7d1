"""The benchmark `held-out`: a run's held-out tasks, with the environment's episodes and checks.

A run logs `agent/eval_success`. This benchmark adds a confidence interval and a file of answers to that
number, and measures any model: the base model before training, a checkpoint, an endpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self, cast

from pydantic import BaseModel, Field, model_validator

from genenv.agent.policy import AgentConfig
from genenv.chat.assistant import ChatMessage, Talk
from genenv.chat.tool_calls import as_text
from genenv.config.run import RunConfig, as_tables, load_config
from genenv.environments import environment_seats, load_environment
from genenv.environments.base import Environment, Episode, SeatView, choices_of, tools_of, verdict_of
from genenv.environments.mixture import member_of
from genenv.errors import ContextOverflow, NoAnswer, RolloutError, UsageError
from genenv.evaluation.base import Benchmark, Grade, Graded, Item
from genenv.evaluation.data import DataFolder
from genenv.evaluation.models import named_policy
from genenv.rollout.driver import UNFINISHED, EpisodeOver, play
from genenv.runs.folder import RunFolder
from genenv.settings import Settings
from genenv.statistics import Figure
from genenv.texts import masked
from genenv.types import Json, JsonObject, Message, StopReason, Task, Verdict

TASKS = "held_out_tasks"
"""The name of the tasks' hash in a summary's `data`."""
_EXACT_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a rollout, taken from the run's settings."""

    max_new_tokens: int
    """The most tokens of a reply."""
    context_tokens: int
    """The most tokens of the conversation, including room for a full reply."""
    timeout_s: float
    """Seconds that the environment may take; the model's time is not counted."""

    @classmethod
    def of_run(cls, config: RunConfig, agent: str | None = None) -> Self:
        """Those that a run's settings say for one of its agents; for None, the only one, or `[agent]`."""
        agents = config.population
        only = next(iter(agents.values())) if len(agents) == 1 else config.agent
        own = only if agent is None else agents[agent]
        return cls(
            max_new_tokens=own.max_new_tokens,
            context_tokens=config.policy.context_tokens,
            timeout_s=own.episode_timeout_s,
        )


@dataclass(slots=True)
class Conversation:
    """A rollout with a model that gets the whole conversation in each request.

    As in training, it fails if a reply is truncated, or if the run's context window has no room for another.
    """

    talk: Talk
    limits: Limits
    replies: list[str] = field(default_factory=list[str])
    cut: bool = False
    """Whether the last reply was truncated."""
    waiting: bool = False
    """Whether a reply is asked for. An error is the model's then, and else the environment's."""
    _messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    _calls: list[str] = field(default_factory=list[str])
    """Ids of the last reply's tool calls that have no result yet."""

    async def run(self, episode: Episode) -> None:
        """Run the conversation until the episode ends.

        Raises:
            ContextOverflow: the conversation leaves no room for a reply.
            RolloutError: the model gives no answer (`waiting`), or the environment fails or takes too long.
            UsageError: the model supports no tools, or no constrained choices, and the environment needs
                them.
        """
        tools = tools_of(episode)
        if tools and not self.talk.native_tools:
            raise UsageError(
                "these tasks offer tools in the model's own form, and this model takes none; measure it with "
                "held_out.config, a file whose environment describes tools in the prompt"
            )

        async def ask(messages: Sequence[Message]) -> str:
            return await self._reply(messages, tools, choices_of(episode))

        reason = await play(lambda: episode, ask, timeout_s=self.limits.timeout_s)
        self.cut = reason is StopReason.LENGTH

    async def _reply(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], choices: Sequence[str]
    ) -> str:
        for message in messages:
            added: ChatMessage = {"role": message.role, "content": message.content}
            if message.role == "tool" and self._calls:
                added["tool_call_id"] = self._calls.pop(0)
            self._messages.append(added)
        most, window = self.limits.max_new_tokens, self.limits.context_tokens
        self.waiting = True
        reply = await self.talk(self._messages, tools=tools, choices=choices, max_tokens=most)
        if reply.prompt_tokens > window - most:
            raise ContextOverflow(
                f"the conversation has {reply.prompt_tokens} tokens; a reply of {most} then passes the run's "
                f"window of {window}"
            )
        self.waiting = False
        self._messages.append(reply.message())
        self._calls = [str(call["id"]) for call in self._messages[-1].get("tool_calls", ())]
        self.replies.append(as_text(reply.text, reply.calls))
        if not reply.finished:
            raise EpisodeOver(StopReason.LENGTH)
        return self.replies[-1]


class HeldOutConfig(Settings, frozen=True):
    """Settings of the benchmark `held-out`."""

    run: str | None = Field(default=None, min_length=1)
    """Folder of the run whose environment is used; left out, the run that `--policy` names."""
    config: str | None = Field(default=None, min_length=1)
    """Instead of a run: a TOML file with the environment and its settings, as for `genenv train`."""
    agent: str | None = Field(default=None, min_length=1)
    """Of a run with several agents, the one whose limits and seat count; left out, the one that `--policy`
    names, or the settings of `[agent]`."""
    seat: str | None = Field(default=None, min_length=1)
    """In an environment with seats, the seat that the model plays; left out, the seat of that agent in the
    run, or the first one. Code plays the others."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.run is not None and self.config is not None:
            raise ValueError("run and config both name an environment; set one of them")
        return self


class HeldOut(Benchmark):
    """The held-out tasks of a run's environment, as a benchmark."""

    name: ClassVar[str] = "held-out"
    config = HeldOutConfig
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar[Mapping[str, str]] = {
        "main": "the environment's first lot of held-out tasks: 200 of tool_calling, 120 of household, "
        "else all",
        "all": "all held-out tasks of the environment",
        "measured": "those that the run measures itself on: the first run.eval_tasks",
    }
    max_tokens = AgentConfig().max_new_tokens
    headline = "success"

    def __init__(self, settings: HeldOutConfig | None = None) -> None:
        self._chosen = settings or HeldOutConfig()
        super().__init__(self._chosen)
        self._turns: dict[str, int] = {}
        self._verdicts: dict[str, tuple[tuple[str, ...], Verdict]] = {}
        """Replies and verdict of rollouts that are about to be graded, by item."""

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """Return the settings, completed with the policy's run if they name no environment.

        Raises:
            UsageError: neither the settings nor the policy names an environment.
        """
        given = cast(HeldOutConfig, settings)
        if given.run is not None or given.config is not None:
            return given
        named = named_policy(policy)
        if named is None:
            raise UsageError(
                f"{masked(policy)} is of no run, so nothing says whose held-out tasks to ask; add --set "
                "held_out.run=runs/demo, or --set held_out.config=FILE.toml for an environment without a run"
            )
        config = RunFolder.open(named.run).settings()
        agent = config.agent_of(given.agent or named.policy)
        found = {"run": named.run.as_posix(), "seat": given.seat or config.seat_of(agent)}
        return given.model_copy(update=found | ({"agent": agent} if len(config.population) > 1 else {}))

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the environment's held-out tasks as items, and record their hash among those of files.

        Raises:
            UsageError: the run, file, environment or seat does not exist, or it has no held-out tasks.
        """
        self._of = self._settings_of_run()
        self._env = load_environment(self._of.environment.name, self._of.environment.settings)
        agent = self._chosen.agent and self._of.agent_named(self._chosen.agent)
        seat = self._chosen.seat or self._of.seat_of(agent)
        seats = environment_seats(self._of.environment.name, self._of.environment.settings)
        if seat is not None and seat not in seats:
            raise UsageError(
                f"held_out.seat is {seat!r}, but the seats of {self._of.environment.name} are "
                f"{', '.join(seats) or 'none'}; set one of them, or leave it out"
            )
        self._limits = Limits.of_run(self._of, agent or self._of.seated.get(seat or ""))
        self.max_tokens = self._limits.max_new_tokens
        tasks = list(self._env.held_out())
        main: int = getattr(self._env, "main_held_out", len(tasks))
        tasks = tasks[: {"main": main, "measured": self._of.run.eval_tasks}.get(split)]
        if not tasks:
            raise UsageError(f"environment {self._of.environment.name!r} has no held-out tasks to measure on")
        if seat is not None:
            self._env = cast(Environment, SeatView(self._env, seat))
        data.hashes[TASKS] = _digest(tasks)
        return [_item(self._env, task) for task in tasks]

    def _settings_of_run(self) -> RunConfig:
        if self._chosen.config is not None:
            return load_config(Path(self._chosen.config))
        if self._chosen.run is None:
            raise UsageError("nothing says whose held-out tasks to ask: set held_out.run or held_out.config")
        return RunFolder.open(Path(self._chosen.run)).settings()

    def many_turns(self, item: Item) -> bool:
        """Return whether the episode may have more than one turn."""
        task: Task = item.data
        if task.id not in self._turns:
            self._turns[task.id] = self._env.episode(task).max_turns
        return self._turns[task.id] > 1

    def most_replies(self, item: Item) -> int:
        """Return the maximum number of turns of the episode."""
        return self._turns[item.data.id] if self.many_turns(item) else 1

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Run the environment's episode; return the replies, and whether the last one was truncated.

        If the environment ends it, because it takes too long or fails, the answer says why: in training such
        a rollout has failed too.

        Raises:
            RolloutError: a model gives no answer, or the conversation does not fit into its window.
        """
        conversation, episode = Conversation(talk, self._limits), self._env.episode(item.data)
        try:
            await conversation.run(episode)
        except RolloutError as error:
            if conversation.waiting or isinstance(error, NoAnswer):
                raise
            return {"replies": conversation.replies, "cut": False, "stopped": str(error)}
        if not conversation.cut:
            replies = tuple(conversation.replies)
            self._verdicts[item.id] = replies, verdict_of(self._env, item.data, episode, replies)
        return {"replies": conversation.replies, "cut": conversation.cut}

    def grade(self, item: Item, answer: Json) -> Grade:
        """Return the environment's verdict as a grade; a malformed answer is graded as no reply.

        Replies of the last rollout have their verdict already: a reward function is called once a reply.
        """
        found: Mapping[str, Json] = answer if isinstance(answer, Mapping) else {}
        given = found.get("replies")
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
        replies = tuple(reply for reply in listed if isinstance(reply, str))
        if found.get("cut") is True:
            return Grade(score=0.0, explanation=UNFINISHED[StopReason.LENGTH], measures={"reward": 0.0})
        if isinstance(stopped := found.get("stopped"), str):
            return Grade(score=0.0, explanation=stopped, measures={"reward": 0.0})
        known, verdict = self._verdicts.pop(item.id, (None, None))
        if verdict is None or known != replies:
            verdict = self._env.check(item.data, replies)
        measures = {"reward": float(verdict.reward)}
        return Grade(score=float(verdict.success), explanation=verdict.explanation, measures=measures)

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the success rate overall, by member of a mixture, and by number of solution steps.

        A group of all tasks is left out.
        """
        ordered = sorted(graded, key=lambda pair: int(pair[0].groups["steps"].split("-")[0]))
        return [one for one in super().figures(ordered) if not one.group or one.items < len(graded)]

    def describe(self) -> JsonObject:
        """Return the environment, its settings, and the run's limits."""
        return {
            "environment": as_tables(self._of)["environment"],
            "max_new_tokens": self._limits.max_new_tokens,
            "context_tokens": self._limits.context_tokens,
            "episode_timeout_s": self._limits.timeout_s,
        }


def _item(env: Environment, task: Task) -> Item:
    member = member_of(task)
    column = {} if member is None else {"member": member}
    return Item(id=task.id, groups={**column, "steps": _span(env.steps(task))}, data=task)


def _span(steps: int) -> str:
    """Return the group of a number of solution steps: exact up to 8, then `9-16`, `17-32`, and so on."""
    if steps <= _EXACT_STEPS:
        return str(steps)
    low = _EXACT_STEPS
    while 2 * low < steps:
        low *= 2
    return f"{low + 1}-{2 * low}"


def _digest(tasks: Sequence[Task]) -> str:
    """Return the SHA-256 of everything in the tasks that affects prompts or grading."""
    lines = [
        json.dumps(
            [
                *(task.id, task.spec, task.payload, task.oracle),
                [(message.role, message.content) for message in task.messages],
            ],
            sort_keys=True,
        )
        for task in tasks
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
