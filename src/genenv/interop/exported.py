"""Exported environments: tasks as JSON rows on disk, and the environment that runs and grades them.

A row holds everything that a rollout starts with, and nothing is drawn at random during one. So equal rows
and equal replies get equal verdicts in every trainer.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, JsonValue, ValidationError

from genenv.chat.assistant import ChatMessage, ToolCall
from genenv.chat.reasoning import answer_of
from genenv.chat.tool_calls import arguments_of, as_text
from genenv.environments import FOLDER_MARK, close_environment, environment_config, load_environment
from genenv.environments.base import Environment, is_remote, tools_of
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import DataError, UsageError, first_line, first_problem
from genenv.settings import with_places
from genenv.types import JsonObject, Lineage, Message, Task, Verdict

ABOUT, BUNDLE = "environment.json", "bundle"
SPLITS = ("train", "held_out")


class About(BaseModel, frozen=True, extra="forbid"):
    """The contents of `environment.json`: the environment's name and settings."""

    version: int = 1
    name: str
    environment: str
    """The environment's name, `./bundle` for the bundle in the same folder, or `package.module:Class`."""
    settings: dict[str, Any]
    """The environment's settings."""


class Session(StepwiseRollout):
    """One rollout of a task, in OpenAI's chat format; the adapters for other trainers run it.

    Sessions in several threads may share an environment.

    Args:
        exported: the environment of the task.
        task: the task to roll out.
    """

    def __init__(self, exported: Exported, task: Task) -> None:
        self._lock = exported.lock
        with self._lock:
            super().__init__(exported.env, task)
        self.chat = _chat(self.messages, ())
        """The messages before the next reply, in OpenAI's format."""

    @property
    def choices(self) -> list[str]:
        """Return the allowed next replies; empty if any text is allowed."""
        with self._lock:
            return list(super().choices)

    def send(self, content: str, calls: Sequence[JsonObject] = ()) -> list[ChatMessage]:
        """Send a reply and return the environment's messages in answer.

        Args:
            content: the text of the reply.
            calls: its tool calls, in OpenAI's format: `{"id", "function": {"name", "arguments"}}`.

        Raises:
            UsageError: the rollout has ended.
        """
        with self._lock:
            answer = self.reply(reply_text(content, calls))
        self.chat = _chat(answer, [str(one.get("id", "")) for one in calls])
        return self.chat

    def verdict(self) -> Verdict:
        """Return the verdict on the replies so far."""
        with self._lock:
            return super().verdict()


class Exported:
    """An environment written by `genenv export-env`, opened from its folder.

    Args:
        folder: the folder with `environment.json` and the tasks.

    Raises:
        UsageError: the folder holds no exported environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        """Guards the environment, which rollouts of several sessions share."""
        self._rows: dict[str, list[JsonObject]] = {}
        try:
            self.about = About.model_validate_json((folder / ABOUT).read_bytes())
        except OSError as error:
            raise UsageError(
                f"{folder} holds no environment: {ABOUT} cannot be read; write one with `genenv export-env`"
            ) from error
        except ValidationError as error:
            raise DataError(f"{folder / ABOUT}: {first_problem(error)}") from error

    @cached_property
    def env(self) -> Environment:
        """Return the environment, which is opened at the first use."""
        name = self._unpacked(self.about.environment)
        settings = environment_config(name).model_validate(self.about.settings)
        return load_environment(name, with_places(settings, self._unpacked))

    def _unpacked(self, name: str) -> str:
        """Return the path of an environment's folder that came along; any other text as it is."""
        return str(self.folder / name) if (self.folder / name / FOLDER_MARK).is_file() else name

    def rows(self, split: str = "train") -> list[JsonObject]:
        """Return the rows of a split: dicts with `id`, `prompt` (chat messages) and `task` (text).

        Args:
            split: `train` or `held_out`.

        Raises:
            UsageError: there is no such split.
        """
        if split not in SPLITS:
            raise UsageError(f"there is no split {split!r}; there are {' and '.join(SPLITS)}")
        if split not in self._rows:
            self._rows[split] = self._read(split)
        return self._rows[split]

    def _read(self, split: str) -> list[JsonObject]:
        file = self.folder / f"{split}.jsonl"
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        return [cast(JsonObject, json.loads(line)) for line in lines]

    def row(self, split: str, task_id: str | None, place: Callable[[int], int]) -> JsonObject:
        """Return a row of a split: that of a task, or else the row at a place.

        Args:
            split: see `rows`.
            task_id: the task; None for a row by its place.
            place: returns the place, given the number of rows.

        Raises:
            UsageError: there is no such split, it has no tasks, or none with this id.
        """
        rows = self.rows(split)
        if not rows:
            raise UsageError(f"the split {split!r} of {self.about.name} has no tasks")
        if task_id is None:
            return rows[place(len(rows))]
        for row in rows:
            if row["id"] == task_id:
                return row
        raise UsageError(f"there is no task {task_id!r} in the split {split!r}")

    def tasks(self, split: str = "train") -> list[Task]:
        """Return the tasks of a split."""
        return [task_of(str(row["task"])) for row in self.rows(split)]

    def close(self) -> None:
        """End the processes that run the environment's tools, if there are any."""
        if "env" in self.__dict__:
            close_environment(self.env)

    def grade(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Return the verdict on a rollout by the agent's replies as sampled; thoughts do not count."""
        return self.graded(task, [answer_of(reply) for reply in replies])

    def graded(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Return the verdict on a rollout, computed from replies that have no thoughts."""
        with self.lock:
            return self.env.check(task, replies)

    def session(self, task: Task | str) -> Session:
        """Start a rollout.

        Args:
            task: the task, or the text in a row's field `task`.
        """
        return Session(self, task_of(task) if isinstance(task, str) else task)

    @cached_property
    def tools(self) -> list[JsonObject]:
        """Return the tools of all tasks, without duplicates; a single task may offer fewer."""
        found: dict[str, JsonObject] = {}
        for split in SPLITS:
            for task in self.tasks(split):
                for tool in tools_of(self.env.episode(task)):
                    found.setdefault(str(cast(JsonObject, tool["function"])["name"]), tool)
        return list(found.values())

    @cached_property
    def has_text_games(self) -> bool:
        """Return whether a task is a conversation in text."""
        return any(self.is_text_game(task) for split in SPLITS for task in self.tasks(split))

    def is_text_game(self, task: Task) -> bool:
        """Return whether a task is a conversation in text: several turns without tools."""
        episode = self.env.episode(task)
        return episode.max_turns > 1 and not tools_of(episode)

    def is_remote(self, task: Task) -> bool:
        """Return whether replies to a task act on a server; see `Episode`."""
        return is_remote(self.env.episode(task))


CALLS = (
    'Write each call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one after the other; '
    "a reply without a call ends the task."
)
"""Instructions for calling tools in a text reply."""


def reply_text(content: str, calls: Sequence[JsonObject]) -> str:
    """Return a reply as the single text that an environment parses, without thoughts.

    Args:
        content: the text of the reply, perhaps with `<think>...</think>` before it.
        calls: its tool calls, in OpenAI's format.
    """
    return as_text(answer_of(content), map(call_of, calls))


def row_of(env: Environment, task: Task) -> JsonObject:
    """Return a task as a row: `id`, `prompt` and `task`."""
    return {"id": task.id, "prompt": _chat(StepwiseRollout(env, task).messages, ()), "task": task_text(task)}


def task_text(task: Task) -> str:
    """Return a task as JSON text, which `task_of` parses."""
    return json.dumps(dataclasses.asdict(task), ensure_ascii=False, separators=(",", ":"))


def task_of(text: str) -> Task:
    """Parse a task from JSON text.

    Raises:
        DataError: the text is not a task.
    """
    try:
        found = _TaskText.model_validate_json(text)
    except ValidationError as error:
        raise DataError(f"a row's task cannot be read: {first_line(error)}") from error
    return Task(**dict(found))


class _TaskText(BaseModel, frozen=True, extra="forbid"):
    id: str
    environment: str
    skills: tuple[str, ...]
    messages: tuple[Message, ...]
    spec: dict[str, JsonValue]
    payload: dict[str, JsonValue]
    oracle: tuple[str, ...]
    lineage: Lineage


def _chat(messages: Iterable[Message], ids: Sequence[str]) -> list[ChatMessage]:
    """Return messages in OpenAI's format; tool results get the ids of the calls, in order."""
    left = iter(ids)
    return [
        {"role": one.role, "content": one.content}
        if one.role != "tool"
        else {"role": "tool", "content": one.content, "tool_call_id": next(left, "")}
        for one in messages
    ]


def call_of(given: JsonObject) -> ToolCall:
    """Return a tool call from OpenAI's format, or from its part `function` alone."""
    function = given.get("function")
    named = cast(JsonObject, function) if isinstance(function, dict) else given
    return ToolCall(
        name=str(named.get("name", "")),
        arguments=arguments_of(named.get("arguments")),
        id=str(given.get("id", "")),
    )
