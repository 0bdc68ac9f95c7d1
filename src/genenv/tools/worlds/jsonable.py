"""Convert Python values to JSON: results of tools, and states of worlds so that they can be compared.

Results must be JSON, or something that has one JSON form (a dataclass, a date). Of a state anything is taken:
what has no JSON form is shown by its `repr`, without addresses.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import re
import sqlite3
import struct
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from pydantic import BaseModel

DEEPEST = 32
"""Containers in containers; deeper ones, and those that hold themselves, are refused."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SCALARS = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
    pathlib.PurePath,
)


TOOLS_MODULE = "genenv_tools"
"""The name under which a user's file is imported."""
_CODE = (
    ModuleType,
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    functools.partial,
    type(functools.lru_cache(str)),
)
Row = tuple[object, ...]
Shown = list[sqlite3.Connection] | None
"""Connections whose rows a state holds already; None for a tool's result, which holds none."""


class NotJson(ValueError):
    """It has no JSON form. The message goes after `it returned`: `bytes, which are no JSON`."""


def result_of(value: object) -> Any:  # noqa: ANN401 - JSON
    """What a tool returned, as JSON.

    Raises:
        NotPlain: it has no JSON form.
    """
    return _to_json(value, 0, None)


def state_of(value: object) -> Any:  # noqa: ANN401 - JSON
    """A state as JSON: equal states have equal ones.

    Raises:
        NotPlain: containers are too deep, or hold themselves.
    """
    return _to_json(value, 0, [])


def is_code(value: object) -> bool:
    """Whether a value is code, not state: functions, classes, modules, and what a library made to be called.

    A connection to SQLite is state, though it can be called; so are objects of the user's own classes.
    """
    if isinstance(value, _CODE):
        return True
    own = isinstance(value, sqlite3.Connection) or type(value).__module__ == TOOLS_MODULE
    return callable(value) and not own


def _to_json(value: object, depth: int, shown: Shown) -> Any:  # noqa: ANN401 - JSON
    if value is None or isinstance(value, bool | str):
        return _text(value) if isinstance(value, str) else value
    if isinstance(value, enum.Enum):
        return _to_json(value.value, depth, shown)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(value, shown)
    if isinstance(value, _SCALARS):
        return (
            _text(str(value)) if not isinstance(value, datetime.date | datetime.time) else value.isoformat()
        )
    if depth >= DEEPEST:
        raise NotJson("something that is too deeply nested, or holds itself")
    return _container(value, depth + 1, shown)


def _container(value: object, depth: int, shown: Shown) -> Any:  # noqa: ANN401 - JSON
    def inner(one: object) -> Any:  # noqa: ANN401 - JSON
        return _to_json(one, depth, shown)

    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_key(key, shown): inner(one) for key, one in items}
    if isinstance(value, list | tuple | deque):
        return [inner(one) for one in cast("list[object]", value)]
    if isinstance(value, set | frozenset):
        return sorted((inner(one) for one in cast("set[object]", value)), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: inner(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return {name: inner(getattr(value, name)) for name in type(value).model_fields}
    if shown is None:
        named = type(value).__name__
        raise NotJson(f"{'bytes' if named in ('bytes', 'bytearray') else 'a ' + named}, which is no JSON")
    if isinstance(value, sqlite3.Connection | sqlite3.Cursor):
        connection = value if isinstance(value, sqlite3.Connection) else value.connection
        if any(connection is one for one in shown):
            return None  # its rows are in the state already
        shown.append(connection)
        return tables_of(connection)
    if own := getattr(value, "__dict__", None):
        return {name: inner(one) for name, one in own.items() if not is_code(one)}
    return _ADDRESS.sub("", repr(value))


def tables_of(
    connection: sqlite3.Connection, row_factory: Callable[[sqlite3.Cursor, Row], Row] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """All rows of an SQLite database, by table, in an order that does not depend on how they came there.

    Args:
        connection: to it. Its own row factory is left aside: rows are read as tuples.
        row_factory: is given each row as it is read, and returns it; it may raise.
    """
    plain = sqlite3.Cursor(connection)
    plain.row_factory = row_factory
    names = plain.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for (name,) in names.fetchall():
        quoted = str(name).replace('"', '""')
        rows = plain.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - its own table
        columns = [column[0] for column in rows.description]
        listed = [dict(zip(columns, map(_cell, row), strict=True)) for row in rows]
        found[str(name)] = sorted(listed, key=repr)
    return found


def _cell(cell: object) -> Any:  # noqa: ANN401 - JSON
    return cell.hex() if isinstance(cell, bytes) else state_of(cell)


def _key(key: object, shown: Shown) -> str:
    if isinstance(key, str):
        return _text(key)
    if shown is None and not isinstance(
        key, int | float | bool | enum.Enum | datetime.date | uuid.UUID | None
    ):
        raise NotJson("an object whose keys are no texts")
    plain = _to_json(key, DEEPEST, []) if not isinstance(key, tuple) else repr(cast(object, key))
    return plain if isinstance(plain, str) else repr(plain)


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _number(value: float, shown: Shown) -> float | str:
    if math.isfinite(value):
        return value
    if shown is None:
        raise NotJson(f"{value}, which is no JSON")
    return repr(value)


MARK = b"DIRC"
_HEADER = struct.Struct(">4sLL")
_FIXED = 62
"""Bytes of an entry before its path: 40 of times and places, a digest of 20, flags of 2."""
_EXTENDED, _LENGTH = 0x4000, 0x0FFF


def staged(raw: bytes) -> str | None:
    """The staging area of a Git repository, as `git ls-files --stage` prints it; None: of another version.

    The bytes of `.git/index` differ whenever the same is staged again: they hold times and places on the
    disk.
    """
    try:
        mark, version, count = _HEADER.unpack_from(raw)
        if mark != MARK or version not in (2, 3):
            return None
        lines: list[str] = []
        place = _HEADER.size
        for _ in range(count):
            (mode,) = struct.unpack_from(">L", raw, place + 24)
            (flags,) = struct.unpack_from(">H", raw, place + 60)
            start = place + _FIXED + 2 * bool(flags & _EXTENDED)
            end = raw.index(b"\0", start + (flags & _LENGTH) % _LENGTH)
            digest, path = raw[place + 40 : place + 60].hex(), raw[start:end].decode("utf-8", "replace")
            lines.append(f"{mode:06o} {digest} {flags >> 12 & 3}\t{path}")
            place += (end - place + 8) // 8 * 8  # at least one zero byte, up to a multiple of eight
    except (struct.error, ValueError):
        return None
    return "\n".join(lines)
