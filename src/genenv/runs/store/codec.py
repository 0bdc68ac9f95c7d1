"""Converts dataclasses to SQLite rows and back, with one codec per type of field.

Token ids, log-probabilities and flags are little-endian BLOBs of 4, 8 and 1 bytes per item. Structures are
JSON. Reading returns values equal to those written, for every string and every finite number. Numbers that
are not finite are refused, because neither JSON nor SQLite can store them.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from genenv.runs.store.records import BatchRate, Evaluation
from genenv.types import (
    Context,
    Generation,
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Rejection,
    RejectReason,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    Trace,
)

SqlValue = str | bytes | int | float | None
"""The types of values in a column."""
Row = Mapping[str, SqlValue]
RecordT = TypeVar("RecordT")


def finite(name: str, value: float | None) -> float | None:
    """Return the value unchanged, which may be None.

    Raises:
        ValueError: the value is infinite or NaN (which SQLite would silently store as NULL).
    """
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    return value


def to_json(value: Json) -> str:
    """Return compact JSON with keys in the given order. Text with a lone surrogate is escaped.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if _has_utf8(text) else json.dumps(value, allow_nan=False, separators=(",", ":"))


def object_from_json(text: str) -> JsonObject:
    """Parse a JSON object. Sequences become lists.

    Raises:
        ValueError: the text is not a JSON object.
    """
    value = cast("object", json.loads(text))
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return cast("JsonObject", value)


def strings_from_json(text: str) -> tuple[str, ...]:
    """Parse a JSON list of strings.

    Raises:
        ValueError: the text is not a JSON list of strings.
    """
    value = cast("object", json.loads(text))
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
        raise ValueError("expected a JSON list of strings")
    return tuple(cast("list[str]", value))


def messages_from_json(text: str) -> tuple[Message, ...]:
    """Parse a JSON list of messages.

    Raises:
        ValueError: the text is not a JSON list of messages.
    """
    items = cast("list[dict[str, Any]]", json.loads(text))
    try:
        return tuple(Message(role=item["role"], content=item["content"]) for item in items)
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError("expected a JSON list of messages") from err


def to_text(text: str) -> str | bytes:
    """Return text for a column: as text, or as a BLOB in the rare case of a lone surrogate."""
    return text if _has_utf8(text) else text.encode("utf-8", "surrogatepass")


def from_text(value: str | bytes) -> str:
    """Return the text that `to_text` converted."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def sha256_of(rows: Iterable[Iterable[SqlValue]]) -> bytes:
    """Return the SHA-256 of rows. Each is a line of JSON with lengths for BLOBs, followed by its BLOBs."""
    sha = hashlib.sha256()
    for row in rows:
        values = tuple(row)
        blobs = [value for value in values if isinstance(value, bytes)]
        shown = [[len(value)] if isinstance(value, bytes) else value for value in values] if blobs else values
        sha.update(json.dumps(shown).encode() + b"\n")
        for blob in blobs:
            sha.update(blob)
    return sha.digest()


def _has_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pack(what: str, code: str, values: Sequence[float]) -> bytes:
    if code == "d" and not all(map(math.isfinite, values)):
        bad = next(value for value in values if not math.isfinite(value))
        raise ValueError(f"{what} must be finite, not {bad}")
    try:
        return struct.pack(f"<{len(values)}{code}", *values)
    except struct.error as err:
        raise ValueError(f"{what} must be integers in [0, 2^32): {err}") from err


def _unpack(code: str, blob: bytes) -> tuple[Any, ...]:
    size = struct.calcsize(f"<{code}")
    items, rest = divmod(len(blob), size)
    if rest:
        raise ValueError(f"a BLOB of {len(blob)} bytes does not hold items of {size} bytes")
    return struct.unpack(f"<{items}{code}", blob)


def _same(value: Any) -> Any:  # noqa: ANN401 - any type of SQLite
    return value


_Codec = tuple[Callable[[Any], SqlValue], Callable[[Any], Any]]
"""`put` converts a value for a column, `get` converts it back."""
_CODECS: Mapping[str, _Codec] = {
    "str": (to_text, from_text),
    "bool": (int, bool),
    "bool | None": (
        lambda value: None if value is None else int(value),
        lambda value: None if value is None else bool(value),
    ),
    "tuple[int, ...]": (partial(_pack, "token ids", "I"), partial(_unpack, "I")),
    "tuple[float, ...]": (partial(_pack, "log-probabilities", "d"), partial(_unpack, "d")),
    "tuple[bool, ...]": (bytes, lambda blob: tuple(map(bool, blob))),
    "tuple[str, ...]": (to_json, strings_from_json),
    "tuple[Message, ...]": (
        lambda items: to_json([{"role": item.role, "content": item.content} for item in items]),
        messages_from_json,
    ),
    "JsonObject": (to_json, object_from_json),
    **{kind.__name__: (attrgetter("value"), kind) for kind in (Origin, RejectReason, StopReason)},
    **dict.fromkeys(("int", "int | None", "str | None", "float", "float | None"), (_same, _same)),
}
"""Codecs by the annotation of a field."""


class RowCodec(Generic[RecordT]):
    """Converts a dataclass to rows with one column per field; `row` and `of` are inverse to each other."""

    def __init__(self, kind: type[RecordT], *, without: Collection[str] = ()) -> None:
        """Find the codec of each field.

        Args:
            kind: the dataclass.
            without: fields without a column; they have a default or are passed to `of`.
        """
        self._kind = kind
        self._columns: list[tuple[str, str, *_Codec]] = []
        for field in fields(cast("Any", kind)):
            if field.name in without:
                continue
            put, get = _CODECS[str(field.type)]
            if put is _same and str(field.type).startswith("float"):
                put = partial(finite, field.name)
            column = "domain" if field.name == "environment" else field.name  # the name in older versions
            self._columns.append((field.name, column, put, get))

    def row(self, record: RecordT, **more: SqlValue) -> Row:
        """Return the row of a record, with additional columns that are not fields of it."""
        return {column: put(getattr(record, field)) for field, column, put, _ in self._columns} | more

    def of(self, row: sqlite3.Row, **more: object) -> RecordT:
        """Return the record of a row, with the given values for fields without a column."""
        return self._kind(**{field: get(row[column]) for field, column, _, get in self._columns}, **more)


SEED = RowCodec(Seed)
CONTEXT = RowCodec(Context, without=("seed",))
GENERATION = RowCodec(Generation, without=("stream",))
SAMPLE = RowCodec(SimulatorSample, without=("generation",))
REJECTION = RowCodec(Rejection)
BATCH_RATE = RowCodec(BatchRate)
TRACE = RowCodec(Trace, without=("choices", "left_out", "team"))
EVALUATION = RowCodec(Evaluation)
_TASK, _LINEAGE = RowCodec(Task, without=("lineage",)), RowCodec(Lineage)


def task_row(task: Task) -> Row:
    """Return a row of `tasks`, without the round and the surface."""
    return {**_TASK.row(task), **_LINEAGE.row(task.lineage)}


def task_of(row: sqlite3.Row) -> Task:
    """Return the task of a row."""
    return _TASK.of(row, lineage=_LINEAGE.of(row))
