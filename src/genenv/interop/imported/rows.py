"""The rows of a dataset, and the reward function that grades replies to them.

A reward function has the arguments of TRL's, for one rollout: `prompt`, `completion`, and columns of the row
by name. One that takes `prompts` and `completions` is called as TRL does, with lists, of one rollout.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, StringConstraints, ValidationError

from genenv.cli.console import check_packages
from genenv.environments.guard import Watch, limited, line_of
from genenv.environments.stepwise import STEPPED
from genenv.errors import EnvironmentCodeError, GenenvError, UsageError, first_line
from genenv.interop.imported.environment import digest
from genenv.plugins import own_part
from genenv.threads import CallTimeout, run_in_thread
from genenv.types import Json, JsonObject, Message
from genenv.untrusted.documents import Unreadable, plain, read_json

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
            found: Any = limited(lambda: self._function(**wanted), self._limit_s)
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

    def _number(self, value: object, place: str, *, listed: bool) -> float:
        """Return a reward as a number.

        Args:
            value: what the function returned.
            place: file and line of the row.
            listed: whether it may be in a list, alone.
        """
        several = _several(value)
        if self._in_lists and len(several) != 1:
            what = "it gets lists of one rollout, and returns a list of one reward"
        else:
            what = "a reward is a number from 0 to 1"
            number = several[0] if listed and len(several) == 1 else value
            if isinstance(number, Real) and 0 <= cast(float, number) <= 1:
                return float(number)
        raise EnvironmentCodeError(
            f"the reward function {self.where} returned {value!r:.80} for {place}; {what}"
        )

    async def _awaited(self, coming: Coroutine[Any, Any, object]) -> object:
        """Await the reward; where there is no event loop, block."""
        if STEPPED.get():
            return run_in_thread(lambda: asyncio.run(coming), self._limit_s)
        return await Watch(self._limit_s).steps(coming)


def _several(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


async def _coroutine(coming: Awaitable[object]) -> object:
    return await coming
