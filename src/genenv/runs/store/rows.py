"""Each noun as a row of its table, and back. A column has the name of the field that it keeps, or its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from genenv.runs.store.encode import (
    SqlValue,
    finite,
    from_json,
    from_text,
    object_from_json,
    pack_flags,
    pack_floats,
    pack_ids,
    strings_from_json,
    to_json,
    to_text,
    unpack_flags,
    unpack_floats,
    unpack_ids,
)
from genenv.runs.store.records import BatchRate, Evaluation
from genenv.types import (
    Context,
    Generation,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Role,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    Trace,
)

Row = Mapping[str, SqlValue]
NounT = TypeVar("NounT")


@dataclass(frozen=True, slots=True)
class Column:
    """How a field is kept: `get` reads what `put` gave."""

    put: Callable[[Any], SqlValue] = lambda value: value
    get: Callable[[Any], Any] = lambda value: value
    name: str = ""
    """Of the column, where it is not the field's."""


class Noun(Generic[NounT]):
    """A noun by its columns: `row` and `of` are inverse to each other."""

    def __init__(self, kind: Callable[..., NounT], **columns: Column) -> None:
        """Say how each field is kept.

        Args:
            kind: the class, which takes its fields by name.
            columns: by field; those that are left out are given to `row` and `of`.
        """
        self._kind, self._columns = kind, columns

    def row(self, noun: NounT, **more: SqlValue) -> Row:
        """The row of a noun, with further columns that are no field of it."""
        kept = self._columns.items()
        return {column.name or field: column.put(getattr(noun, field)) for field, column in kept} | more

    def of(self, row: sqlite3.Row, **more: object) -> NounT:
        """The noun of a row, with the fields that are no column of it."""
        kept = self._columns.items()
        return self._kind(**{field: column.get(row[column.name or field]) for field, column in kept}, **more)


def _messages_json(messages: Sequence[Message]) -> str:
    return to_json([{"role": message.role, "content": message.content} for message in messages])


def messages_of(text: str) -> tuple[Message, ...]:
    """The messages in a column.

    Raises:
        ValueError: it holds something else.
    """
    items = cast("list[dict[str, str]]", from_json(text))
    try:
        return tuple(Message(role=cast("Role", item["role"]), content=item["content"]) for item in items)
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError("expected a JSON list of messages") from err


def _number(name: str) -> Column:
    return Column(put=lambda value: finite(value, name))


def _one_of(kind: type[StrEnum]) -> Column:
    return Column(attrgetter("value"), kind)


_PLAIN = Column()
_FLAG = Column(int, bool)
_MAYBE_FLAG = Column(
    lambda value: None if value is None else int(value), lambda value: None if value is None else bool(value)
)
_TEXT = Column(to_text, from_text)
_IDS = Column(pack_ids, unpack_ids)
_FLOATS = Column(pack_floats, unpack_floats)
_OBJECT = Column(to_json, object_from_json)
_STRINGS = Column(to_json, strings_from_json)
_MESSAGES = Column(_messages_json, messages_of)

_ENVIRONMENT = Column(name="domain")  # as stores of older versions call it

SEED = Noun(Seed, id=_PLAIN, environment=_ENVIRONMENT, spec=_OBJECT, skills=_STRINGS)
CONTEXT = Noun(Context, id=_PLAIN, round=_PLAIN, messages=_MESSAGES)
GENERATION = Noun(
    Generation,
    id=_PLAIN,
    context_id=_PLAIN,
    prompt_ids=_IDS,
    token_ids=_IDS,
    logprobs=_FLOATS,
    text=_TEXT,
    finished=_FLAG,
)
SAMPLE = Noun(SimulatorSample, weight=_number("weight"))
REJECTION = Noun(Rejection, reason=_one_of(RejectReason), explanation=_TEXT)
BATCH_RATE = Noun(
    BatchRate, context_id=_PLAIN, p_hat=_number("p_hat"), env_reward=_number("env_reward"), selected=_FLAG
)
TRACE = Noun(
    Trace,
    id=_PLAIN,
    task_id=_PLAIN,
    token_ids=_IDS,
    sampled=Column(pack_flags, unpack_flags),
    logprobs=_FLOATS,
    prompt_tokens=_PLAIN,
    messages=_MESSAGES,
    reward=_number("reward"),
    success=_FLAG,
    explanation=_TEXT,
    stop_reason=_one_of(StopReason),
    version=_PLAIN,
    readable=_MAYBE_FLAG,
)
EVALUATION = Noun(
    Evaluation,
    task_id=_PLAIN,
    success=_FLAG,
    reward=_number("reward"),
    replies=_STRINGS,
    explanation=_TEXT,
)
_LINEAGE = Noun(Lineage, origin=_one_of(Origin), seed_id=_PLAIN, context_id=_PLAIN, generation_id=_PLAIN)
_TASK = Noun(
    Task,
    id=_PLAIN,
    environment=_ENVIRONMENT,
    skills=_STRINGS,
    messages=_MESSAGES,
    spec=_OBJECT,
    payload=_OBJECT,
    oracle=_STRINGS,
)


def task_row(task: Task) -> Row:
    """A row of `tasks`, without the round and the surface."""
    return {**_TASK.row(task), **_LINEAGE.row(task.lineage)}


def task_of(row: sqlite3.Row) -> Task:
    """The task of a row."""
    return _TASK.of(row, lineage=_LINEAGE.of(row))
