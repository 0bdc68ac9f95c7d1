"""A dataset with a reward function as an environment: `[environment] name = "dataset"`.

Each row is a task, and the reward function grades the conversation. No simulator writes rows: a run draws
them uniformly, or a task bandit chooses among kinds of rows, or their demonstrations' likelihood decides.

A reward function has the arguments of TRL's, for one rollout: `prompt`, `completion`, and columns of the row
by name. One that takes `prompts` and `completions` is called as TRL does, with lists, of one rollout.
"""

from __future__ import annotations

import copy
import gzip
import inspect
import json
import random
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from genenv.cli.console import check_packages
from genenv.environments.base import Ask, Episode, OutOfTurns, failed
from genenv.environments.common import QuestionEnvironment, closed_object, held_out_tasks, once
from genenv.environments.guard import Watch, limited
from genenv.environments.promises import ROUNDING, rounded
from genenv.environments.stepwise import STEPPED, StepwiseRollout
from genenv.errors import EnvironmentCodeError, GenenvError, UsageError, first_line, line_of
from genenv.interop.imported.environment import RANDOM_WORDS, with_system
from genenv.interop.imported.settings import DatasetConfig
from genenv.interop.imported.space import digest, skills_of
from genenv.plugins import own_part
from genenv.statistics import counted
from genenv.threads import CallTimeout, run_in_loop, without_loop
from genenv.tools.build import how_to_call
from genenv.tools.environment import Conversation
from genenv.tools.worlds.base import LoadedWorld, Session
from genenv.tools.worlds.origins import PythonOrigin
from genenv.types import (
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)
from genenv.untrusted.documents import Unreadable, as_list, plain, read_json

_FEW_HELD_OUT = 20
"""With fewer held-out rows it is said that success on them is coarse."""
_EXAMPLE = '{"prompt": "What is 2 + 3?", "answer": "5"}'

Text = Annotated[str, StringConstraints(pattern=r"\S")]


class _Said(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: Text


class _Columns(BaseModel, extra="allow"):
    prompt: Text | list[_Said]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a dataset."""

    line: int
    """The row's line in its file, or its number in a list."""
    place: str
    """File and line, for messages."""
    messages: tuple[Message, ...]
    """The prompt."""
    is_chat: bool
    """Whether the prompt is a list of messages; the reward function then gets messages, else text."""
    columns: JsonObject
    """The other columns."""
    prompt_key: str
    """A hash of the prompt."""
    key: str
    """A hash of the row."""

    @property
    def spec(self) -> JsonObject:
        """Return what identifies the row in a run."""
        return {"line": self.line, "row": self.key}


def read_rows(path: str, needed: Mapping[str, str]) -> tuple[list[Row], str]:
    """Return the rows of a JSON Lines file, and a note about repeated rows, which are left out.

    The file may also be a JSON list of rows, or a Parquet file, and compressed by gzip.

    Args:
        path: the file.
        needed: columns that every row must have, and what needs them.

    Raises:
        UsageError: the file cannot be read or has no rows, or a line is no row or lacks a column.
    """
    rows: dict[str, Row] = {}
    again: list[str] = []
    for line, place, value in _values(path):
        row = _row(value, line, place)
        for name in needed:
            if name not in row.columns:
                listed = ", ".join(["prompt", *row.columns])
                raise UsageError(
                    f"{row.place} has no column {name!r}, which {needed[name]} needs; it has {listed}"
                )
        if rows.setdefault(row.key, row) is not row:
            again.append(row.place)
    if not rows:
        raise UsageError(f"{path} has no rows; write a JSON object a line, such as {_EXAMPLE}")
    note = f"{len(again)} rows repeat earlier ones and are left out (first: {again[0]})" if again else ""
    return list(rows.values()), note


def _values(path: str) -> Iterator[tuple[int, str, Json]]:
    """Yield number, place and value of each line that is not empty, or of each row of a list or table.

    Raises:
        UsageError: the file cannot be read, or has another format.
    """
    data, name = _bytes_of(path), Path(path).name
    if data.startswith(_PARQUET):
        listed = _of_parquet(data, path)
    elif (text := _text_of(data, path)).lstrip().startswith("["):
        try:
            listed = cast("list[Json]", read_json(text, name))
        except Unreadable as error:
            raise UsageError(f"{error}; write a row a line, such as {_EXAMPLE}") from error
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f"{name}, line {number}"
                try:
                    yield number, place, read_json(line, place)
                except Unreadable as error:
                    raise UsageError(f"{error}; each line is a row, such as {_EXAMPLE}") from error
        return
    for number, value in enumerate(listed, start=1):
        yield number, f"{name}, row {number}", value


def _bytes_of(path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path} cannot be read ({why}); name a JSON Lines file, with a row a line"
        ) from error


def _of_parquet(data: bytes, path: str) -> list[Json]:
    """Return the rows of a Parquet file; values that JSON does not have, such as dates, become text."""
    check_packages("parquet", by=f"{path}, a Parquet file,", pyarrow="pyarrow")
    try:
        rows: list[object] = import_module("pyarrow.parquet").read_table(BytesIO(data)).to_pylist()
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} is a damaged Parquet file ({first_line(error)}); write it again") from error
    return [plain(row, f"{path}, row {number}") for number, row in enumerate(rows, start=1)]


def _text_of(data: bytes, path: str) -> str:
    if reader := _READERS.get(Path(path).suffix.lower()):
        raise UsageError(
            f"{path} is a table, not JSON Lines; convert it by pandas.{reader}({path!r}).to_json("
            "'tasks.jsonl', orient='records', lines=True)"
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no text in UTF-8; save it so, as JSON Lines with a row a line"
        ) from error


_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
"""First bytes of a file."""
_READERS = {".csv": "read_csv", ".tsv": "read_table", ".xlsx": "read_excel"}
"""Suffix of a table -> the function of pandas that reads it."""


def _row(value: Json, line: int, place: str) -> Row:
    if not isinstance(value, dict) or "prompt" not in value:
        said = ", ".join(value)[:200] or "no column" if isinstance(value, dict) else f"{value!r:.40}"
        raise UsageError(f"{place} is no row: it needs a prompt, and has {said}; write it like {_EXAMPLE}")
    try:
        prompt = _Columns.model_validate(value).prompt
    except ValidationError as error:
        raise UsageError(
            f"{place} is no row: its prompt is {value['prompt']!r:.80}; a prompt is a text that is not "
            "empty, or a list of messages, each with a role (system, user or assistant) and a text as content"
        ) from error
    said = [_Said(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    if not said or said[-1].role != "user":
        raise UsageError(
            f"{place}: the last message of its prompt is not the user's; the agent replies to it"
        )
    return Row(
        line=line,
        place=place,
        messages=tuple(Message(role=one.role, content=one.content) for one in said),
        is_chat=not isinstance(prompt, str),
        columns={name: one for name, one in value.items() if name != "prompt"},
        prompt_key=digest([[one.role, one.content] for one in said]),
        key=digest(value),
    )


def chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages as a reward function gets them."""
    return [{"role": one.role, "content": one.content} for one in messages]


class Reward:
    """A user's reward function.

    Args:
        where: `FILE.py:NAME` or `module:name`.
        limit_s: maximum seconds for one call.

    Raises:
        UsageError: there is no such function.
    """

    def __init__(self, where: str, limit_s: float) -> None:
        self.where, self._limit_s = where, limit_s
        self._function = cast("Callable[..., object]", own_part("environment.reward", where, takes=None))
        if inspect.isclass(self._function):
            raise UsageError(f"environment.reward is {where!r}, which is a class; name a function")
        parameters = inspect.signature(self._function).parameters.values()
        self._takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self.takes = {one.name: one.default is one.empty for one in parameters if one.kind in by_name}
        """The function's arguments; whether each must be given."""
        self._in_lists = not self.takes.keys().isdisjoint(("prompts", "completions"))

    def needs(self, given: Sequence[str]) -> dict[str, str]:
        """Return the columns that the function needs, with the name of the function.

        Args:
            given: further arguments that every call has.
        """
        known = {"prompt", "completion", "prompts", "completions", *given}
        return {name: self.where for name, needed in self.takes.items() if needed and name not in known}

    async def of(self, given: Mapping[str, object], place: str) -> float:
        """Return the reward of a rollout. Where there is no event loop, the call blocks.

        Args:
            given: `prompt`, `completion` and columns; those that the function takes are passed.
            place: file and line of the row.

        Raises:
            EnvironmentCodeError: the function raises an error, hangs, or returns no number from 0 to 1.
        """
        wanted = dict(given)
        if self._in_lists:
            wanted |= {"prompts": wanted.pop("prompt"), "completions": wanted.pop("completion")}
            wanted = {name: [value] for name, value in wanted.items()}
        if not self._takes_all:
            wanted = {name: value for name, value in wanted.items() if name in self.takes}
        try:
            found: Any = limited(lambda: self._called(wanted), self._limit_s)
            if inspect.isawaitable(found):
                found = await self._awaited(_coroutine(found))
            value: Any = found.tolist() if hasattr(found, "tolist") else found  # of NumPy and torch
            value = float(value) if isinstance(value, Decimal) else value
        except GenenvError:
            raise
        except CallTimeout:
            raise EnvironmentCodeError(
                f"the reward function {self.where} took longer than {self._limit_s:g} s for {place}; mend "
                "it, or allow more with environment.reward_s"
            ) from None
        except (Exception, SystemExit) as error:
            raise EnvironmentCodeError(
                f"the reward function {self.where} raised {type(error).__name__}: {first_line(error)}"
                f"{line_of(error)} for {place}; mend it"
            ) from error
        return self._number(value, place, listed=self._in_lists or value is not found)

    def _called(self, given: Mapping[str, object]) -> object:
        """Call the function with arguments that it may change, and may start an event loop."""
        own = copy.deepcopy(dict(given))
        try:
            return without_loop(lambda: self._function(**own))
        except RuntimeError as error:
            if "no running event loop" not in str(error):
                raise
            return self._function(**own)  # it begins a task of the loop that runs

    def _number(self, value: object, place: str, *, listed: bool) -> float:
        """Return a reward as a number.

        Args:
            value: what the function returned.
            place: file and line of the row.
            listed: whether it may be in a list, alone.
        """
        several = as_list(value)
        if self._in_lists and len(several) != 1:
            what = "it gets lists of one rollout, and returns a list of one reward"
        else:
            what = "a reward is a number from 0 to 1"
            number = several[0] if listed and len(several) == 1 else value
            if isinstance(number, Real) and -ROUNDING <= cast(float, number) <= 1 + ROUNDING:
                return rounded(float(number))
        raise EnvironmentCodeError(
            f"the reward function {self.where} returned {value!r:.80} for {place}; {what}"
        )

    async def _awaited(self, coming: Coroutine[Any, Any, object]) -> object:
        """Await the reward; where there is no event loop, block."""
        if STEPPED.get():
            return run_in_loop(coming, self._limit_s)
        return await Watch(self._limit_s).steps(coming)


async def _coroutine(coming: Awaitable[object]) -> object:
    return await coming


class Line(BaseModel, frozen=True, extra="forbid"):
    """The spec of a task: which row it is."""

    line: int = Field(ge=1)
    """Line of the row in its file."""
    row: str = ""
    """A hash of the row, so that a run notices another one in its place."""


class Dataset(QuestionEnvironment):
    """A dataset with a reward function as an environment.

    Args:
        settings: see `DatasetConfig`.

    Raises:
        UsageError: there is no such file or function, or a row lacks something.
    """

    name: ClassVar[str] = "dataset"
    spec: ClassVar[type[BaseModel]] = Line
    config: ClassVar[type[BaseModel]] = DatasetConfig
    job: ClassVar[str] = "Choose a row of a dataset as a task for an agent, as JSON: its line."

    def __init__(self, settings: DatasetConfig | None = None) -> None:
        super().__init__(settings)
        chosen = self.chosen = cast(DatasetConfig, self.settings)
        for key, example in (("data", "tasks.jsonl"), ("reward", "reward.py:score")):
            if not getattr(chosen, key):
                raise UsageError(f"environment.{key} is not set; name it, such as {example} (--{key})")
        self.reward = Reward(chosen.reward, chosen.reward_s)
        needed = self.reward.needs(["state"] if chosen.tools else [])
        needed |= dict.fromkeys(chosen.columns, "environment.columns")
        if chosen.demonstration:
            needed[chosen.demonstration] = "environment.demonstration"
        self._train, self._held_out, self.omitted = _split(chosen, needed)
        for row in (*self._train.values(), *self._held_out.values()) if chosen.demonstration else ():
            if isinstance(shown := row.columns[chosen.demonstration], list | dict | bool):
                raise UsageError(
                    f"{chosen.data}, line {row.line}: {chosen.demonstration!r} (environment.demonstration) "
                    f"is {json.dumps(shown)[:60]}, no text; write the agent's whole reply, or null for none"
                )

    @cached_property
    def world(self) -> LoadedWorld | None:
        """The tools, ready to be called; None if there are none."""
        if not self.chosen.tools:
            return None
        file, code, name = self.chosen.tools.partition(".py:")
        folder = tempfile.mkdtemp(prefix="genenv-tools-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        files = Path(folder) / "files"
        return PythonOrigin(Path(file + code.rstrip(":")), name).bring(files).open(files)

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the rows for training."""
        return [
            Seed(id=f"line{line}", environment=self.name, spec=row.spec, skills=self._skills(row))
            for line, row in self._train.items()
        ]

    @once
    def held_out(self) -> Sequence[Task]:
        """Return the held-out rows as tasks: their prompts are those of no row for training."""
        lines = ((f"held-out-line{line}", Line(line=line)) for line in self._held_out)
        return held_out_tasks(self, lines)

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return a schema that allows the lines of all rows for training."""
        return closed_object({"line": {"enum": list(self._train)}})

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a row for training, drawn uniformly."""
        return self._train[rng.choice(list(self._train))].spec

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Return the task of a row."""
        row, style = self._row(cast(Line, spec), lineage), self.chosen.style
        if row is None:
            return Rejection(RejectReason.SCHEMA, "It is no row for training.")
        messages, column = row.messages, self.chosen.demonstration
        if self.world is not None and style != "native":
            messages = with_system(messages, how_to_call(list(self.world.tools.values()), style))
        return Task(
            id=task_id,
            environment=self.name,
            skills=self._skills(row),
            messages=messages,
            spec=row.spec,
            payload={},
            oracle=() if not column or row.columns[column] is None else (str(row.columns[column]),),
            lineage=lineage,
        )

    def _skills(self, row: Row) -> tuple[str, ...]:
        return skills_of({name: row.columns[name] for name in self.chosen.columns}) or (self.name,)

    def _row(self, spec: Line, lineage: Lineage) -> Row | None:
        rows = self._held_out if lineage.origin is Origin.HELD_OUT else self._train
        row = rows.get(spec.line)
        return row if row is not None and spec.row in ("", row.key) else None

    def row_of(self, task: Task) -> Row:
        """Return the row of a task.

        Raises:
            UsageError: the task is of other data.
        """
        row = self._row(Line.model_validate(task.spec), task.lineage)
        if row is None:
            raise UsageError(f"{task.id} is no row of {self.chosen.data}; name the data that it is of")
        return row

    def steps(self, task: Task) -> int:
        """Return 1, as the number of steps is unknown."""
        return 1

    def surface(self, task: Task) -> str:
        """Return a hash of the prompt; rows with equal prompts are duplicates."""
        return self.row_of(task).prompt_key

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a reply that knows nothing of the task."""
        return (rng.choice(RANDOM_WORDS),)

    def episode(self, task: Task) -> Episode:
        """Return a fresh episode: one reply; with tools, replies until one calls none."""
        return DatasetEpisode(self, task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Run the episode with these replies, and return its verdict."""
        made = StepwiseRollout(self, task)
        for reply in replies:
            if not made.done:
                made.reply(reply)
        return made.verdict() if made.done else failed("The episode has not ended.")


class DatasetEpisode:
    """An episode of a row: one reply; with tools, replies until one calls none, in a session of the tools."""

    def __init__(self, env: Dataset, task: Task) -> None:
        self._env, self._task = env, task
        tools = () if env.world is None else tuple(env.world.tools.values())
        self.max_turns = env.chosen.max_turns if tools else 1
        self.tools = [tool.schema for tool in tools] if env.chosen.style == "native" else []
        self._verdict = failed("The episode has not ended.")

    async def run(self, ask: Ask) -> None:
        """Hold the conversation, and grade it.

        Raises:
            EnvironmentCodeError: the reward function has a fault.
            OutOfTurns: the last reply that is allowed calls a tool.
        """
        world, messages = self._env.world, self._task.messages
        if world is None:
            await self._grade([Message(role="assistant", content=await ask(messages))])
            return
        known = {name: list(tool.properties) for name, tool in world.tools.items()}
        talk = Conversation(world, self._env.chosen.style, known, list(known))
        async with world.session() as session:
            ended = await talk.converse(session, ask, messages, self.max_turns)
            await self._grade(talk.messages, session)
        if not ended:
            raise OutOfTurns

    async def _grade(self, said: Sequence[Message], session: Session | None = None) -> None:
        env, row = self._env, self._env.row_of(self._task)
        in_chat = row.is_chat or session is not None
        given = {
            **row.columns,
            "prompt": chat(row.messages) if in_chat else row.messages[0].content,
            "completion": chat(said) if in_chat else said[0].content,
        }
        if session is not None and "state" in env.reward.takes:
            given["state"] = await session.state()
        reward = await env.reward.of(given, row.place)
        self._verdict = Verdict(
            reward=reward,
            success=reward >= env.chosen.success_at - ROUNDING,
            explanation=f"The reward function gives {reward:g}.",
            readable=any(one.content.strip() for one in said),
        )

    def verdict(self) -> Verdict:
        """See `Episode`."""
        return self._verdict


def _split(
    chosen: DatasetConfig, needed: Mapping[str, str]
) -> tuple[dict[int, Row], dict[int, Row], str | None]:
    """Return the rows for training and the held-out rows, by line, and a note about rows that are left out.

    Raises:
        UsageError: the rows cannot be read, or none is left for training.
    """
    rows, note = read_rows(chosen.data, needed)
    if chosen.eval_data:
        held_out, _ = read_rows(chosen.eval_data, needed)
        keys = {row.prompt_key for row in held_out}
        if lost := sum(row.prompt_key in keys for row in rows):
            note += f"{'; ' * bool(note)}{lost} rows are left out, as their prompts are held out"
    else:
        shares = {row.prompt_key: int(row.prompt_key[:8], 16) / 16**8 for row in rows}
        most = max(chosen.held_out, min(shares.values())) if chosen.held_out else -1.0
        keys = {key for key, share in shares.items() if share <= most}
        held_out = [row for row in rows if row.prompt_key in keys]
    train = {row.line: row for row in rows if row.prompt_key not in keys}
    if held_out and len(held_out) < _FEW_HELD_OUT and not chosen.eval_data:
        note += (
            f"{'; ' * bool(note)}only {counted(len(held_out), 'row')} held out: success on them is coarse; "
            "set environment.held_out higher, or eval_data"
        )
    if not train:
        raise UsageError(
            f"all rows of {chosen.data} are held out (environment.held_out or eval_data); add rows with "
            "other prompts, or set environment.held_out to 0 and no eval_data"
        )
    return train, {row.line: row for row in held_out}, note or None
