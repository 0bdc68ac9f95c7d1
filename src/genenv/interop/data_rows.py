"""Rows of exported data: tasks and trajectories of a run, as `genenv.interop.data` writes them.

Rows are read from the store one group at a time, in one state of the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from sqlite3 import Row
from typing import Any, cast

from genenv.chat.tool_calls import message_of
from genenv.environments import close_environment, load_environment
from genenv.environments.base import tools_of
from genenv.exporting.agent import holds_tools, offers_tools
from genenv.interop.exported import task_text
from genenv.progress import advance
from genenv.runs.folder import RunFolder
from genenv.runs.store.codec import from_text, messages_from_json, task_of
from genenv.runs.store.database import Database
from genenv.runs.store.reader import leading_seat, rollouts_that_count
from genenv.texts import clean, json_line
from genenv.types import Json, JsonObject, Message, Origin, StopReason, Task, seat_of
from genenv.untrusted.documents import read_toml

Rows = Iterator[JsonObject]

LAST = 2**53
"""The last round if no other is given."""
_UNGRADED = (StopReason.ERROR.value, StopReason.TIMEOUT.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which tasks and trajectories are exported."""

    first: int = 0
    last: int = LAST
    """The rounds."""
    solved: bool = False
    """Only trajectories that solved their task, and tasks that have one."""
    low: float = 0.0
    high: float = 1.0
    """Bounds of a task's success rate. With others than 0 and 1, tasks without rollouts are left out."""
    held_out: bool = False
    """Held-out tasks, as a split of their own."""

    def fits(self, solved: int, tried: int) -> bool:
        """Return whether a task with these successes and graded rollouts is exported."""
        if self.solved and not solved:
            return False
        return (self.low, self.high) == (0.0, 1.0) or (tried > 0 and self.low <= solved / tried <= self.high)


@dataclass(frozen=True, slots=True)
class Rolled:
    """A task of the store with its rounds and rates."""

    task: Task
    round: int | None
    """The round that stored it; None for held-out tasks."""
    tried: int
    """Graded rollouts."""
    solved: int

    @property
    def about(self) -> JsonObject:
        """Columns that every layout of tasks has."""
        return {
            "id": self.task.id,
            "round": self.round,
            "origin": self.task.lineage.origin.value,
            "skills": list(map(clean, self.task.skills)),
            "demonstration": list(map(clean, self.task.oracle)),
            "attempts": self.tried,
            "success_rate": self.solved / self.tried if self.tried else None,
        }


@dataclass(frozen=True, slots=True)
class Tried:
    """A trajectory of the store."""

    id: str
    messages: tuple[Message, ...]
    reward: float
    success: bool
    explanation: str
    stop_reason: str
    version: int | None
    tokens: int

    @property
    def said(self) -> tuple[Message, ...]:
        """The messages up to the agent's last reply, which is where a training example ends."""
        ends = [at + 1 for at, one in enumerate(self.messages) if one.role == "assistant"]
        return self.messages[: ends[-1]] if ends else ()


@dataclass(frozen=True, slots=True)
class Tries:
    """The trajectories of a task in a round."""

    task: Task
    round: int
    all: Sequence[Tried]
    seat: str
    """The seat that was played; empty in an environment without seats."""
    offered: bool
    """Whether the task's tools were offered: to the first seat alone, which has no prompt of its own."""

    def distinct(self, *, success: bool) -> list[Tried]:
        """Return the graded trajectories that solved the task, or did not; of equal ones, one."""
        graded = [one for one in self.all if one.success == success and one.stop_reason not in _UNGRADED]
        found = {one.said: one for one in graded if one.said}
        return list(found.values())


class Source:
    """The rows of a run, read in one state of its store."""

    def __init__(self, folder: RunFolder, database: Database, filters: Filters) -> None:
        """Read from an open store."""
        self.filters, self._db = filters, database
        settings = cast(
            "dict[str, Any]", read_toml(folder.unedited.read_text(encoding="utf-8"), str(folder.unedited))
        )
        named = settings.get("environment", {})
        self.environment = str(named.get("name", "unknown"))
        self.model = str(settings.get("policy", {}).get("model", "unknown"))
        may = named.get("style") == "native" or "members" in named
        self._opens = may and offers_tools(folder.settings().environment.settings)
        self.native = self._opens or holds_tools(database)
        """Whether the chat template offered the tools, so that messages do not describe them."""
        self.seated = bool(leading_seat(database))
        """Whether the run has seats, so that trajectories name theirs."""
        self.tools: Callable[[Task], list[JsonObject]] = _held_tools
        """Returns the tools of a task in OpenAI's form; none where messages describe them."""
        self._rounds = filters.first, filters.last

    @contextmanager
    def offering(self, folder: RunFolder) -> Generator[None]:
        """Open the run's environment in the block if it is needed to know which tools a task offers."""
        if not self._opens:
            yield
            return
        config = folder.settings().environment
        env = load_environment(config.name, config.settings)
        self.tools = lambda task: [dict(one) for one in tools_of(env.episode(task))]
        try:
            yield
        finally:
            close_environment(env)

    def tools_of(self, group: Tries) -> list[JsonObject]:
        """Return the tools that the chat template offered in these trajectories, in OpenAI's form."""
        return self.tools(group.task) if self.native and group.offered else []

    def count(self, *, held_out: bool | None) -> int:
        """Return the number of rows that are read: tasks, or trajectories (None)."""
        if held_out is None:
            sql, values = "SELECT count(*) FROM traces WHERE round BETWEEN ? AND ?", self._rounds
        else:
            sql, values = f"SELECT count(*) FROM tasks WHERE {_origin(held_out)}", ()  # noqa: S608 - constants
        return int(self._db.rows(sql, values)[0][0])

    def tasks(self, *, held_out: bool = False) -> Iterator[Rolled]:
        """Yield the tasks that fit the filters; held-out tasks fit all of them."""
        graded = f"task_id = tasks.id AND {rollouts_that_count(self._db)} AND round BETWEEN ?1 AND ?2"
        sql = f"""SELECT tasks.*,
                         round BETWEEN ?1 AND ?2 OR EXISTS (
                             SELECT 1 FROM groups WHERE task_id = tasks.id AND round BETWEEN ?1 AND ?2
                         ) AS wanted,
                         (SELECT count(*) FROM traces WHERE {graded}) AS tried,
                         (SELECT sum(success) FROM traces WHERE {graded}) AS solved
                  FROM tasks WHERE {_origin(held_out)} ORDER BY n"""  # noqa: S608 - constants
        with self._db.decoding():
            for row in self._db.each(sql, self._rounds):
                advance(items=1)
                found = Rolled(_cleaned(task_of(row)), row["round"], row["tried"], row["solved"] or 0)
                if held_out or (row["wanted"] and self.filters.fits(found.solved, found.tried)):
                    yield found

    def tries(self) -> Iterator[Tries]:
        """Yield the groups of the rounds whose success rate fits the filters."""
        sql = """SELECT id, round, group_position, task_id, messages, reward, success, explanation, version,
                        stop_reason, length(sampled) - prompt_tokens AS tokens
                 FROM traces WHERE round BETWEEN ? AND ? ORDER BY round, group_position, n"""
        rows = self._db.each(sql, self._rounds)
        with self._db.decoding():
            for (round_, _), group in groupby(rows, lambda row: (row["round"], row["group_position"])):
                found = list(group)
                advance(items=len(found))
                graded = [row["success"] for row in found if row["stop_reason"] not in _UNGRADED]
                if self.filters.fits(sum(graded), len(graded)):
                    of = (found[0]["task_id"],)
                    for task in self._db.read(task_of, "SELECT * FROM tasks WHERE id = ?", of):
                        seat = seat_of(from_text(found[0]["id"]))
                        for prompt, own in _by_prompt(map(_tried, found)).items():
                            seen = _cleaned(replace(task, messages=prompt or task.messages))
                            yield Tries(seen, round_, own, seat, offered=not prompt)


def _held_tools(task: Task) -> list[JsonObject]:
    """Return the tools that a task of another library's environment holds."""
    return [one for one in cast("Sequence[Json]", task.payload.get("tools", ())) if isinstance(one, Mapping)]


def _origin(held_out: bool) -> str:
    return f"origin {'=' if held_out else '<>'} '{Origin.HELD_OUT.value}'"


def _by_prompt(tried: Iterable[Tried]) -> dict[tuple[Message, ...], list[Tried]]:
    """Return trajectories by their own prompt; it is empty where the prompt is the task's.

    Those of a later seat of an episode begin with a prompt of their own, see `Trace.messages`.
    """
    found: dict[tuple[Message, ...], list[Tried]] = {}
    for one in tried:
        prompt = tuple(takewhile(lambda message: message.role != "assistant", one.messages))
        found.setdefault(prompt, []).append(replace(one, messages=one.messages[len(prompt) :]))
    return found


def _tried(row: Row) -> Tried:
    return Tried(
        id=clean(from_text(row["id"])),
        messages=messages_from_json(from_text(row["messages"])),
        reward=row["reward"],
        success=bool(row["success"]),
        explanation=clean(from_text(row["explanation"])),
        stop_reason=row["stop_reason"],
        version=row["version"],
        tokens=row["tokens"],
    )


def _cleaned(task: Task) -> Task:
    return replace(task, id=clean(task.id), skills=tuple(map(clean, task.skills)))


# rows of the layouts


def _plain(messages: Iterable[Message]) -> list[JsonObject]:
    return [{"role": one.role, "content": one.content} for one in messages]


def _calling(messages: Iterable[Message], *, native: bool, as_text: bool) -> list[JsonObject]:
    """Return messages in OpenAI's form, with calls as data if the chat template offered the tools.

    A tool's result that answers no such call becomes a message of the user, as in prompts that describe their
    tools.

    Args:
        messages: the conversation.
        native: whether calls in the text of a reply are calls of offered tools.
        as_text: whether arguments are JSON text, as OpenAI has them, or an object, as templates want them.
    """
    found, open_ids, called = list[JsonObject](), list[str](), 0
    for one in messages:
        shown: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.role == "assistant" and native:
            shown = message_of(one.content)
            open_ids = list[str]()
            for call in shown.get("tool_calls", []):
                call["id"] = f"call{called:05d}"
                called += 1
                open_ids.append(call["id"])
                if as_text:
                    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        elif one.role == "tool":
            shown = shown | ({"tool_call_id": open_ids.pop(0)} if open_ids else {"role": "user"})
        found.append(cast("JsonObject", shown))
    return found


def hf_tasks(source: Source, *, held_out: bool = False) -> Rows:
    """Yield tasks with everything that the store holds of them."""
    for one in source.tasks(held_out=held_out):
        lineage = one.task.lineage
        yield {
            **one.about,
            "prompt": _plain(one.task.messages),
            "spec": clean(json_line(one.task.spec)),
            "payload": clean(json_line(one.task.payload)),
            "seed_id": lineage.seed_id,
            "context_id": lineage.context_id,
        }


def hf_trajectories(source: Source) -> Rows:
    """Yield trajectories with their prompts and grades."""
    for group in source.tries():
        for one in group.all:
            if one.success or not source.filters.solved:
                yield {
                    "id": one.id,
                    "task_id": group.task.id,
                    **_seat(source, group),
                    "round": group.round,
                    "prompt": _plain(group.task.messages),
                    "completion": _plain(one.messages),
                    "reward": one.reward,
                    "success": one.success,
                    "explanation": one.explanation,
                    "stop_reason": one.stop_reason,
                    "tokens": one.tokens,
                    "weights_version": one.version,
                }


def grpo(source: Source, *, held_out: bool = False) -> Rows:
    """Yield tasks as TRL's online trainers read them; further columns go to the reward function."""
    for one in source.tasks(held_out=held_out):
        yield {"prompt": _plain(one.task.messages), **one.about, "task": clean(task_text(one.task))}


def sft(source: Source) -> Rows:
    """Yield solved trajectories as prompt and completion."""
    for group in source.tries():
        shape = partial(_calling, native=bool(source.tools_of(group)), as_text=False)
        for one in group.distinct(success=True):
            yield _pair(source, group, completion=shape(one.said))


def preference(source: Source) -> Rows:
    """Yield pairs of a solved and a failed trajectory of the same group."""
    for group in source.tries():
        shape = partial(_calling, native=bool(source.tools_of(group)), as_text=False)
        pairs = zip(group.distinct(success=True), group.distinct(success=False), strict=False)
        for good, bad in pairs:
            yield _pair(source, group, chosen=shape(good.said), rejected=shape(bad.said))


def _pair(source: Source, group: Tries, **said: list[JsonObject]) -> JsonObject:
    tools: JsonObject = {"tools": json_line(source.tools_of(group))} if source.native else {}
    return {
        "prompt": _plain(group.task.messages),
        **said,
        **tools,
        "task_id": group.task.id,
        **_seat(source, group),
    }


def _seat(source: Source, group: Tries) -> JsonObject:
    return {"seat": group.seat} if source.seated else {}


def openai(source: Source) -> Rows:
    """Yield solved trajectories as OpenAI's fine-tuning reads them."""
    for group in source.tries():
        for one in group.distinct(success=True):
            conversation = (*group.task.messages, *one.said)
            tools = source.tools_of(group)
            yield {
                "messages": _calling(conversation, native=bool(tools), as_text=True),
                **({"tools": tools} if tools else {}),
            }


def verl_tasks(source: Source, *, held_out: bool = False) -> Rows:
    """Yield tasks as verl's `RLHFDataset` reads them."""
    for index, one in enumerate(source.tasks(held_out=held_out)):
        yield {
            "data_source": f"genenv/{source.environment}",
            "prompt": _plain(one.task.messages),
            "ability": source.environment,
            "reward_model": {"style": "rule", "ground_truth": clean(task_text(one.task))},
            "extra_info": {"split": "test" if held_out else "train", "index": index, **one.about},
        }


def verl_sft(source: Source) -> Rows:
    """Yield solved trajectories as verl's `MultiTurnSFTDataset` reads them."""
    for group in source.tries():
        for one in group.distinct(success=True):
            said = _calling((*group.task.messages, *one.said), native=False, as_text=True)
            yield {"messages": said, "task_id": group.task.id}
