"""Convert Python values to JSON: results of tools, and states of worlds so that they can be compared.

A result must be JSON, or something that has one JSON form (a dataclass, a date, an array). A state may hold
anything: objects are read by the pickle protocol (`__reduce_ex__`), which gives all that makes them up. What
it cannot read is named (`States.unseen`); nothing is known by its `repr`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import itertools
import logging
import math
import pathlib
import random
import sqlite3
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, cast

from pydantic import BaseModel

DEEPEST = 32
"""Containers in containers; deeper ones, and those that hold themselves, are refused."""
_KEYS: tuple[type, ...] = (str, int, float, bool, enum.Enum, datetime.date, uuid.UUID, type(None))
"""Types that the keys of an object may have in a result."""
_YIELDING = (GeneratorType, MappingView, map, filter, zip)
_MOST_YIELDED = 100_000
"""A result of so many items is too long for an agent."""
_SCALARS = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, pathlib.PurePath)


FILES, FOLDERS, HIDDEN, TABLES = "files", "folders", "hidden", "tables"
"""Tables in a folder's state whose entries are always records by name, whatever the names look like."""
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
OF_SQLALCHEMY = "_sa_"
"""How names begin under which SQLAlchemy keeps its books in mapped classes and their objects."""
Row = tuple[object, ...]
OWN_MODULES: set[str] = {TOOLS_MODULE}
"""Names of a user's own modules: an object of their classes is state also if it can be called."""


class NotJson(ValueError):
    """It has no JSON form. The message goes after `it returned`: `bytes, which are no JSON`."""


def result_of(value: object) -> Any:  # noqa: ANN401 - JSON
    """What a tool returned, as JSON.

    Raises:
        NotJson: it has no JSON form.
    """
    return _Result().json(value)


def state_of(value: object) -> Any:  # noqa: ANN401 - JSON
    """A state as JSON: equal states have equal ones.

    Raises:
        NotJson: containers are too deep.
    """
    return States().read("", value)


def _with_classes(container: object, found: Any) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a list or a mapping, with the class of each of the user's objects if they have several.

    Else two objects with equal attributes would be the same: a payment by card and one in cash.
    """
    places: Iterable[tuple[Any, object]] = ()
    if isinstance(container, Mapping):
        items = cast("Mapping[object, object]", container).items()
        places = ((text_of(str(key)), one) for key, one in items)
    elif isinstance(container, list | tuple | deque):
        places = enumerate(cast("Iterable[object]", container))
    own = {place: type(one).__qualname__ for place, one in places if type(one).__module__ in OWN_MODULES}
    for place, name in own.items() if len(set(own.values())) > 1 else ():
        with contextlib.suppress(LookupError, TypeError):
            if isinstance(found[place], dict):
                found[place] = {"class": name, **found[place]}
    return found


def is_code(value: object) -> bool:
    """Whether a value is code, not state: functions, classes, modules, and what a library made to be called.

    A connection to SQLite is state, though it can be called; so are objects of the user's own classes.
    """
    if isinstance(value, _CODE):
        return True
    own = isinstance(value, sqlite3.Connection) or type(value).__module__ in OWN_MODULES
    return callable(value) and not own


class _Result:
    """Converts what a tool returned; what has no JSON form is an error."""

    most_deep, key_types = DEEPEST, _KEYS

    def json(self, value: object, depth: int = 0) -> Any:  # noqa: ANN401 - JSON
        """A value as JSON.

        Raises:
            NotJson: it has no JSON form.
        """
        if value is None or isinstance(value, bool | str):
            return text_of(value) if isinstance(value, str) else value
        if isinstance(value, enum.Enum):
            return self.json(value.value, depth)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return self.number(value)
        if isinstance(value, _SCALARS):
            return self.scalar(value)
        if depth >= self.most_deep:
            raise NotJson("something that is too deeply nested, or holds itself")
        return self.container(value, depth + 1)

    def container(self, value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
        """A value that holds others, as JSON.

        Raises:
            NotJson: it has no JSON form.
        """
        if isinstance(value, Mapping | sqlite3.Row):
            items = dict(cast("Mapping[object, object]", value))
            values = (self.json(one, depth) for one in items.values())
            return dict(zip(self.names(items), values, strict=True))
        if isinstance(value, list | tuple | deque):
            return [self.json(one, depth) for one in cast("Iterable[object]", value)]
        if isinstance(value, set | frozenset):
            return sorted((self.json(one, depth) for one in cast("set[object]", value)), key=repr)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (field.name for field in dataclasses.fields(value))
            return {name: self.json(getattr(value, name), depth) for name in fields if hasattr(value, name)}
        if isinstance(value, BaseModel):
            return {name: self.json(getattr(value, name), depth) for name in type(value).model_fields}
        if (records := _records(value)) is not None:
            return self.json(records, depth - 1)
        return self.other(value, depth)

    def number(self, value: float) -> float | str:
        """A float as JSON, which has no infinity and no NaN."""
        if not math.isfinite(value):
            raise NotJson(f"{value}, which is no JSON")
        return float(value)

    def scalar(self, value: object) -> str:
        """A date, a decimal number, an id or a path as text."""
        timed = isinstance(value, datetime.date | datetime.time)
        return value.isoformat() if timed else text_of(str(value))

    def key(self, key: object) -> str:
        """The key of an object."""
        if not isinstance(key, self.key_types):
            raise NotJson("an object whose keys are no texts")
        return text_of(key) if isinstance(key, str) else _key(key)

    def names(self, keys: Iterable[object]) -> list[str]:
        """The keys of an object, with the type of those that are no texts where two would be the same."""
        found = [(self.key(key), "" if isinstance(key, str) else f" ({type(key).__name__})") for key in keys]
        alike = len({name for name, _ in found}) < len(found)
        return [name + kind * alike for name, kind in found]

    def other(self, value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
        """A value of any other type: what a generator yields, the public attributes of the user's objects."""
        if isinstance(value, _YIELDING):
            return self.json([*itertools.islice(cast("Iterable[object]", value), _MOST_YIELDED)], depth - 1)
        if type(value).__module__ in OWN_MODULES and not callable(value):
            found = attributes(value).items()
            return {name: self.json(one, depth) for name, one in found if not name.startswith("_")}
        named = type(value).__name__
        raise NotJson(f"{'bytes' if named in ('bytes', 'bytearray') else 'a ' + named}, which is no JSON")


class _TooLarge(Exception):
    """An object of a library holds too many containers, or the same ones by too many paths."""


_MOST_CONTAINERS = 300_000
_MOST_PATHS = 5_000
"""After so many containers of a value, none is read twice."""
_NOTHING: tuple[object, ...] = ()
"""One object wherever it stands."""
_TOO_LARGE: dict[int, object] = {}
"""Objects of libraries that could not be read, which a session tries once."""


def _is_in_memory(engine: Any) -> bool:  # noqa: ANN401 - SQLAlchemy has no part here
    """Whether an engine of SQLAlchemy has a database of SQLite in memory."""
    url = engine.url
    in_memory = url.database in (None, "", ":memory:") or "mode=memory" in str(url)
    return engine.dialect.name == "sqlite" and in_memory


class States(_Result):
    """Converts values of a state to JSON, so that equal states are equal as JSON.

    Attributes:
        unseen: types of values that cannot be read, by their path.
    """

    most_deep, key_types = 100, (object,)

    def __init__(self) -> None:
        self.unseen: dict[str, str] = {}
        self._name = ""
        self._shown: list[sqlite3.Connection] = []
        self._inside: list[object] = []
        self._read: dict[int, tuple[object, str]] | None = None
        """The containers of a value that are read, by id, each with its place; None outside of `read`."""
        self._visits = 0
        self._places: list[int] = []
        """Where the container is that is read now: in each container around it, how many were before."""
        self._left: int | None = None
        """How many more containers an object of a library may hold, inside one."""

    def read(self, name: str, value: object) -> Any:  # noqa: ANN401 - JSON
        """One value of the state.

        Args:
            name: by which what cannot be read is named.
            value: it.

        Raises:
            NotJson: it is too deep.
        """
        self._name, self._read, self._places, self._visits = name, {}, [0], 0
        try:
            return self.json(value)
        finally:
            self._read = None

    def container(self, value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
        """See `_Result`; what holds itself is cut there, what cannot be read is known by its type.

        Objects that refer to each other are on exponentially many paths. So in a large value a container that
        is read already is cut too, and known by the place where it came first and is shown whole.
        """
        if any(one is value for one in self._inside):
            return "(itself)"
        place = ""
        if self._read is not None:
            self._visits += 1
            before = self._read.get(id(value)) if self._visits > _MOST_PATHS else None
            if before is not None and before[0] is not _NOTHING:
                return f"<{type(value).__qualname__} at {before[1]}>"
            self._places[-1] += 1
            place = ".".join(map(str, self._places))
            self._places.append(0)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise _TooLarge
        self._inside.append(value)
        try:
            found = _with_classes(value, super().container(value, depth))
            if isinstance(value, dict | list | set | deque) and (own := attributes(cast(object, value))):
                return {"items": found, **{name: self.json(one, depth) for name, one in own.items()}}
            return found
        except (NotJson, MemoryError, _TooLarge):
            raise
        except Exception:  # noqa: BLE001 - whatever a class of somebody's does
            return self._unread(cast(object, value))
        finally:
            self._inside.pop()
            if self._read is not None:
                self._places.pop()
                self._read.setdefault(id(cast(object, value)), (cast(object, value), place))

    def _unread(self, value: object) -> str:
        """A value that cannot be read, which is noted."""
        kind = type(value)
        self.unseen[self._name] = f"{kind.__module__}.{kind.__qualname__}"
        return f"<{kind.__qualname__}>"

    def number(self, value: float) -> float | str:
        """See `_Result`; a fraction without its last digits, which in a sum depend on the order of calls."""
        plain = float(value)
        if plain.is_integer() or not math.isfinite(plain):
            return plain if math.isfinite(plain) else repr(plain)
        return round(plain, 5) if abs(plain) > 1e7 else float(f"{plain:.12g}")  # by 5 decimals times differ

    def scalar(self, value: object) -> str:
        """See `_Result`; decimal numbers that are equal, such as 980 and 980.00, as the same text."""
        if isinstance(value, decimal.Decimal) and value.is_finite():
            text = f"{value or decimal.Decimal(0):f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        return super().scalar(value)

    def other(self, value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
        """See `_Result`: bytes by their digest, connections by their rows, objects by what makes them up."""
        if isinstance(value, bytes | bytearray):
            return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
        if isinstance(value, sqlite3.Connection | sqlite3.Cursor):
            connection = value if isinstance(value, sqlite3.Connection) else value.connection
            if any(connection is one for one in self._shown):
                return None  # its rows are in the state already
            self._shown.append(connection)
            return tables_of(connection)
        if is_code(value):
            return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"
        if type(value).__module__.partition(".")[0] == "sqlalchemy":
            return self._of_sqlalchemy(value, depth)
        mapped = getattr(value, "__dict__", {}).get(f"{OF_SQLALCHEMY}instance_state")
        if (key := getattr(mapped, "key", None)) is not None:
            return f"<{type(value).__qualname__} {key[1]!r}>"  # a row: which one, as it may have to be read
        if id(value) in _TOO_LARGE:
            return self._unread(value)
        if self._left is not None or type(value).__module__ in OWN_MODULES:
            return self._object(value, depth)
        self._left, shown = _MOST_CONTAINERS, len(self._shown)
        try:
            return self._object(value, depth)
        except (_TooLarge, NotJson):
            _TOO_LARGE[id(value)] = value
            del self._shown[shown:]
            return self._unread(value)
        finally:
            self._left = None

    def _of_sqlalchemy(self, value: Any, depth: int) -> Any:  # noqa: ANN401 - JSON
        """A row of a result, or all rows of the SQLite database in memory that an object works on.

        A database in a file is state by itself. Everything else is machinery.
        """
        kind = type(value).__name__
        if kind == "Row":
            return [self.json(one, depth) for one in value]
        engine: Any = value if kind == "Engine" else getattr(value, "bind", getattr(value, "engine", None))
        if type(engine).__name__ != "Engine" or not _is_in_memory(engine):
            return f"<{kind}>"
        if type(engine.pool).__name__ == "StaticPool":  # a connection that is given back rolls back
            return self.other(engine.pool.connection.dbapi_connection, depth)
        with contextlib.closing(engine.raw_connection()) as connection:
            return self.other(connection.driver_connection, depth)

    def _object(self, value: object, depth: int) -> Any:  # noqa: ANN401 - JSON
        """An object: its attributes, where nothing else makes it up, else all that a pickle would have."""
        kind = type(value)
        drawing = any(one.__module__.startswith("numpy.random") for one in kind.__mro__)
        if drawing or isinstance(value, _MACHINERY):
            return f"<{kind.__qualname__}>"
        if kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__:
            own = dict(attributes(value))
            if not own and kind.__module__ in OWN_MODULES:  # nothing but its class says what it is
                return f"<{kind.__qualname__}>"
            if own or kind.__module__ in OWN_MODULES:
                return {name: self.json(one, depth) for name, one in own.items() if not is_code(one)}
        made: Any = value.__reduce_ex__(4)
        if isinstance(made, str):
            return made
        args, more = cast("Sequence[object]", made[1]), cast("Sequence[object]", made[2:5])
        parts = [list(cast("Iterator[object]", one)) if isinstance(one, Iterator) else one for one in more]
        shown = [one for one in (*args, *parts) if one is not None and not is_code(one)]
        return {kind.__qualname__: [self.json(one, depth) for one in shown]}


_LOCKS = type(threading.Lock()), type(threading.RLock())
_MACHINERY = (*_LOCKS, threading.Thread, logging.Logger, random.Random)
"""Objects that programs need and that are not part of what tools change; those of `numpy.random` are too."""
_MOST_ITEMS = 256
"""A larger array is known by its digest."""


def _records(value: object) -> object | None:
    """The values of an array, a number, a table or a column of numpy and pandas; None for anything else."""
    module = type(value).__module__.partition(".")[0]
    array: Any = value
    if module == "numpy" and hasattr(array, "tolist"):
        if getattr(array, "size", 1) <= _MOST_ITEMS or array.dtype.hasobject:
            return array.tolist()
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
    if module == "pandas" and hasattr(array, "to_dict"):
        return _labelled(array)
    if module == "pandas" and hasattr(array, "isoformat"):
        return str(array)
    return None


def _labelled(table: Any) -> object:  # noqa: ANN401 - pandas has no part here
    """The rows of a table, or the values of a column, with their labels unless these are numbers of rows."""
    labels, is_column = table.index, not hasattr(table, "columns")
    of_rows = not is_column or table.name is not None or labels.tolist() == [*range(len(labels))]
    if of_rows and labels.name is None and labels.dtype.kind == "i":
        return table.tolist() if is_column else table.to_dict("records")
    if is_column and labels.nlevels == 1 and labels.is_unique:
        keys = (one if isinstance(one, _KEYS) else str(one) for one in labels)
        return dict(zip(keys, table.tolist(), strict=True))
    named = {"name": "value"} if is_column and table.name is None else {}
    return table.reset_index(**named).to_dict("records")


def attributes(value: object) -> dict[str, object]:
    """The attributes of an object, those in slots included."""
    found: dict[str, object] = dict(getattr(value, "__dict__", None) or {})
    for made in type(value).__mro__:
        slots: str | Iterable[str] = vars(made).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            place = f"_{made.__name__.lstrip('_')}{name}" if private else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, place):
                found[place] = getattr(value, place)
    return {name: one for name, one in found.items() if not name.startswith(OF_SQLALCHEMY)}


def tables_of(
    connection: sqlite3.Connection, row_factory: Callable[[sqlite3.Cursor, Row], Row] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """All rows of an SQLite database, by table, in an order that does not depend on how they came there.

    Args:
        connection: to it. Its own row factory is left aside: rows are read as tuples.
        row_factory: is given each row as it is read, and returns it; it may raise.
    """
    states = States()

    def cell(value: object) -> Any:  # noqa: ANN401 - JSON
        return value.hex() if isinstance(value, bytes) else states.json(value)

    plain = sqlite3.Cursor(connection)
    plain.row_factory = row_factory
    databases = [str(row[1]) for row in plain.execute("PRAGMA database_list").fetchall()]
    found: dict[str, list[dict[str, Any]]] = {}
    for database in databases:
        master = "sqlite_temp_master" if database == "temp" else "sqlite_master"
        names = plain.execute(
            f"SELECT name FROM {_quoted(database)}.{master} "  # noqa: S608 - its own tables
            "WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        for (name,) in names.fetchall():
            rows = plain.execute(f"SELECT * FROM {_quoted(database)}.{_quoted(name)}")  # noqa: S608
            columns = [column[0] for column in rows.description]
            listed = [dict(zip(columns, map(cell, row), strict=True)) for row in rows]
            found[str(name) if database == "main" else f"{database}.{name}"] = sorted(listed, key=repr)
    return found


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


def _key(key: object) -> str:
    plain = States().read("", key) if not isinstance(key, tuple) else repr(cast(object, key))
    return plain if isinstance(plain, str) else repr(plain)


_HOME = "/files"
"""How a session's folder is called in results and states: the path that it has differs between sessions."""
_home = ""


def set_home(folder: pathlib.Path) -> None:
    """Have the path of this session's folder be `/files` in all results and states from now on."""
    global _home
    _home = str(folder)


def at_home(args: Any) -> Any:  # noqa: ANN401 - JSON
    """Arguments in which `/files` is the path of this session's folder again."""

    def placed(text: str) -> str:
        inside = text == _HOME or text.startswith(f"{_HOME}/")
        return _home + text.removeprefix(_HOME) if inside and _home else text

    return with_texts(args, placed)


def with_texts(value: Any, change: Callable[[str], str], *, keys: bool = False) -> Any:  # noqa: ANN401 - JSON
    """JSON with changed texts, the keys of objects too if that is wanted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(one, change, keys=keys) for one in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value).items()
        return {change(key) if keys else key: with_texts(one, change, keys=keys) for key, one in held}
    return value


def text_of(text: str) -> str:
    """A text as JSON can hold it, with `/files` in place of the path of the session's folder."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return plain.replace(_home, _HOME) if _home and _home in plain else plain
