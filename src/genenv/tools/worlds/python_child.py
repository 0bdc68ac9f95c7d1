"""The process that runs a user's Python tools: `python -m` this module, `ORIGINAL FILE [NAME]`.

It answers one JSON line with one JSON line. What the tools print goes to the log, never into an answer. A
state is copied for every attempt: attributes of an instance, or global variables of a module; and the folder
that it runs in is put back to what ORIGINAL holds.
"""

from __future__ import annotations

import asyncio
import copy
import copyreg
import functools
import importlib.util
import inspect
import json
import os
import random
import resource
import signal
import sqlite3
import sqlite3.dbapi2
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import ValidationError

from genenv.tools.worlds.base import TOOK_TOO_LONG
from genenv.tools.worlds.in_process import (
    Described,
    NoTool,
    described,
    methods,
    public_classes,
    public_functions,
)
from genenv.tools.worlds.jsonable import TOOLS_MODULE, NotJson, is_code, result_of, state_of
from genenv.tools.worlds.launch import limit
from genenv.tools.worlds.python import Folder

MOST_CHARS = 64_000
"""Of a result. More is an error for the agent, who could not read it."""
_MEMORY = 2 << 30


def main(original: str, file: str, name: str | None) -> None:
    """Load the tools, say what they are, and answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(2, 1)  # what tools print joins the log
    _limit()
    signal.signal(signal.SIGALRM, _too_long)
    folder = Folder(Path.cwd(), Path(original))
    tools: Tools | None = None
    try:
        tools = Tools.loaded(Path.cwd() / file, name, folder)
        _loading.clear()
        folder.keep()
        tools.start()
        first: object = {"tools": tools.told(), "left_out": tools.left_out}
    except (_NotLoaded, _NotCopied) as error:
        first = {"refused": str(error), "asked": sorted(folder.asked)}
    while True:
        answers.write(json.dumps(first, ensure_ascii=False, allow_nan=False) + "\n")
        answers.flush()
        line = asked.readline()
        if not line or tools is None:
            os._exit(0)  # whatever threads a tool has started
        first = {**_answer(tools, json.loads(line)), "asked": sorted(folder.asked)}


def _too_long(*_: object) -> None:
    raise TimeoutError(TOOK_TOO_LONG)


def _answer(tools: Tools, request: Mapping[str, Any]) -> dict[str, object]:
    """What became of calls, one after the other, from the first state on."""
    try:
        state = tools.start()
        before = tools.state(state) if request["states"] else None
        outcomes: list[object] = []
        for call in request["calls"]:
            outcome = tools.call(state, call["tool"], call["args"], request["call_s"])
            if request["states"]:
                after = tools.state(state)
                outcome["changed"] = after != before
                before = after
            outcomes.append(outcome)
        return {"outcomes": outcomes, "state": tools.state(state)}
    except (NotJson, _NotCopied) as error:
        return {"refused": f"the tools' state cannot be read: it holds {error}"}


class _NotLoaded(Exception):
    """The file does not give tools. The message is a sentence's end."""


class _NotCopied(Exception):
    """The state cannot be copied. The message ends a sentence."""


class Tools:
    """The tools of a file.

    Args:
        functions: by name, with their descriptions; each takes a state first.
        first: the state that every attempt starts from.
        call: calls a function with a state.
    """

    def __init__(self, module: ModuleType, made: type | None, folder: Folder) -> None:
        self._module, self._class, self._folder = module, made, folder
        self.left_out: dict[str, str] = {}
        self._tools: dict[str, Described] = {}
        found = (
            {name: cast("Callable[..., object]", getattr(made, name)) for name in methods(made)}
            if made is not None
            else public_functions(module)
        )
        for name, function in found.items():
            try:
                self._tools[name] = described(_bound(function, made, name), name)
            except NoTool as error:
                self.left_out[name] = str(error)
        if made is not None:
            try:
                self._first: Any = made()
            except Exception as error:
                raise _NotLoaded(f"{made.__name__}() fails: {_said(error)}") from error
        else:
            self._first = {name: value for name, value in vars(module).items() if _is_state(name, value)}

    @classmethod
    def loaded(cls, file: Path, name: str | None, folder: Folder) -> Tools:
        """The tools of a file.

        Raises:
            _NotLoaded: it cannot be imported, or there is no such class, or nothing in it is a tool.
        """
        module = _imported(file)
        classes = public_classes(module)
        if name is not None and not isinstance(getattr(module, name, None), type):
            raise _NotLoaded(f"{file.name} has no class {name!r}")
        if name is None and not public_functions(module) and len(classes) == 1:
            name = next(iter(classes))
        if name is None and not public_functions(module):
            which = (
                f"several classes ({', '.join(classes)}): name one, {file.name}:{next(iter(classes))}"
                if classes
                else "no functions, and no class with methods"
            )
            raise _NotLoaded(f"{file.name} has {which}")
        made = cls(module, getattr(module, name) if name else None, folder)
        if not made._tools:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in made.left_out.items())
            raise _NotLoaded(f"nothing in {file.name} can be a tool ({reasons})")
        return made

    def told(self) -> list[dict[str, object]]:
        """The tools, as JSON."""
        return [
            {"name": one.name, "description": one.description, "parameters": one.schema}
            for one in self._tools.values()
        ]

    def start(self) -> Any:  # noqa: ANN401 - a user's own
        """The first state, copied; the module's own random numbers start anew.

        Raises:
            _NotCopied: it holds what cannot be copied.
        """
        random.seed(0)
        _clear_caches(self._module)
        self._folder.restore()
        made = self._first
        try:
            if hasattr(made, "snapshot") and hasattr(made, "restore"):
                fresh = cast(type, self._class)()
                fresh.restore(copy.deepcopy(made.snapshot()))
                return fresh
            return copy.deepcopy(made)
        except Exception as error:
            raise _NotCopied(
                f"what cannot be copied ({_said(error)}); give the class snapshot() and restore(value)"
            ) from error

    def state(self, state: Any) -> Any:  # noqa: ANN401 - a user's own
        """A state as JSON, with the folder's files of data.

        Raises:
            NotPlain: it is too deep, or holds itself.
        """
        plain = state_of(state)
        fields = cast("dict[str, Any]", plain) if isinstance(plain, dict) else {"state": plain}
        files = self._folder.contents(fields)
        return {**fields, **files} if files else cast("Any", plain)

    def call(self, state: Any, tool: str, args: Mapping[str, object], limit_s: float) -> dict[str, object]:  # noqa: ANN401
        """What one call returns or raises; the state changes."""
        told = self._tools.get(tool)
        if told is None:
            return {"error": f"There is no tool {tool!r}."}
        try:
            placed, named = told.arguments(args)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "arguments"
            return {"error": f"{where}: {first['msg']}"}
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            answer = self._run(state, tool, placed, named)
            signal.setitimer(signal.ITIMER_REAL, 0)
            result = result_of(answer)
            if len(json.dumps(result, ensure_ascii=False)) > MOST_CHARS:
                return {"error": f"The result is longer than {MOST_CHARS} characters."}
        except NotJson as error:
            return {"error": f"The tool returned {error}."}
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - a user's own code
            return {"error": _said(error)}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return {"result": result}

    def _run(self, state: Any, tool: str, placed: Sequence[object], named: Mapping[str, object]) -> object:  # noqa: ANN401
        if self._class is not None:
            return _awaited(getattr(state, tool)(*placed, **named))
        names = vars(self._module)
        names.update(state)
        try:
            return _awaited(names[tool](*placed, **named))
        finally:
            state.update({name: names[name] for name in state if name in names})


def _bound(function: Callable[..., object], made: type | None, name: str) -> Callable[..., object]:
    """A method as it is called: without its first parameter."""
    if made is None or not inspect.isfunction(inspect.getattr_static(made, name)):
        return function
    return cast("Callable[..., object]", cast(Any, function).__get__(object.__new__(cast(Any, made))))


def _awaited(value: object) -> object:
    return asyncio.run(cast(Any, value)) if inspect.iscoroutine(value) else value


def _imported(file: Path) -> ModuleType:
    sys.path.insert(0, str(file.parent))
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(TOOLS_MODULE, file)
    if spec is None or spec.loader is None:
        raise _NotLoaded(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[TOOLS_MODULE] = module
    try:
        sqlite3.connect = sqlite3.dbapi2.connect = _remembered(_connect)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        missing = f" (module {error.name})" if isinstance(error, ModuleNotFoundError) else ""
        raise _NotLoaded(f"{file.name} cannot be imported: {_said(error)}{missing}") from error
    return module


def _said(error: BaseException) -> str:
    """What an error says, in one line; a key that is missing says nothing by itself."""
    text = " ".join(str(error).split())[:500]
    return (
        text
        if text and not isinstance(error, KeyError)
        else f"{type(error).__name__}{': ' * bool(text)}{text}"
    )


def _limit() -> None:
    limit(resource.RLIMIT_AS, _MEMORY)
    limit(resource.RLIMIT_CORE, 0)


def _is_state(name: str, value: object) -> bool:
    """Whether a global variable of a module is state: neither code nor a constant that cannot change."""
    if name.startswith("__") or type(value).__module__ in ("__future__", "typing"):
        return False
    if isinstance(value, str | int | float | bool):
        return not name.isupper()
    return not (value is None or isinstance(value, bytes | tuple | frozenset) or is_code(value))


def _clear_caches(module: ModuleType) -> None:
    """Functions under `lru_cache` begin each attempt with nothing cached."""
    for value in vars(module).values():
        if isinstance(value, type(functools.lru_cache(str))):
            cast("Any", value).cache_clear()


_opened: dict[int, tuple[sqlite3.Connection, tuple[object, ...], dict[str, object]]] = {}
"""How each connection to SQLite that the file holds was made, by `id`; held, so that no id is used again."""
_loading = [True]
"""Empty once the file is imported and its class made: what a call opens is its own."""
_KEPT = ("foreign_keys", "recursive_triggers", "ignore_check_constraints")
"""Pragmas of a connection that its database does not hold."""


def _remembered(connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    """`sqlite3.connect`, which remembers how each connection was made while the file is imported."""

    @functools.wraps(connect)
    def remembering(*args: object, **named: object) -> sqlite3.Connection:
        made = connect(*args, **named)
        if _loading:
            _opened[id(made)] = (made, args, named)
            copyreg.pickle(type(made), cast(Any, _connection))
        return made

    return remembering


def _connection(connection: sqlite3.Connection) -> tuple[Callable[..., object], tuple[object, ...]]:
    """How a connection to SQLite is copied: opened as it was, on the file that was put back or in memory.

    A file of the tools' folder is opened again. A database in memory, one elsewhere, and one with uncommitted
    changes are copied into memory.
    """
    rows = sqlite3.Cursor(connection).execute("PRAGMA database_list").fetchall()
    files = {str(name): str(file or "") for _, name, file in rows}
    _refuse_what_is_lost(connection, files)
    _, args, named = _opened.get(id(connection), (connection, (), {}))
    inside = files["main"].startswith(f"{Path.cwd()}{os.sep}")
    if inside and not connection.in_transaction:
        content, args = None, (files["main"], *args[1:])
    else:
        content = connection.serialize() if _pragma(connection, "page_count") else None
        args = (":memory:", *args[1:])
    pragmas = {name: _pragma(connection, name) for name in _KEPT}
    named = {key: value for key, value in named.items() if key not in ("database", "uri")}
    kept = (connection.row_factory, connection.text_factory, connection.isolation_level)
    return _connected, (args[:6], named, content, pragmas, kept)


def _refuse_what_is_lost(connection: sqlite3.Connection, files: Mapping[str, str]) -> None:
    lost = sorted(set(files) - {"main", "temp"})
    if lost:
        raise _NotCopied(f"the attached database {lost[0]!r}")
    if "temp" in files and sqlite3.Cursor(connection).execute("SELECT 1 FROM temp.sqlite_master").fetchone():
        raise _NotCopied("temporary tables of a database")
    if own := _functions(connection) - _builtin_functions():
        raise _NotCopied(f"the function {min(own)!r} of a connection to SQLite")


@functools.cache
def _builtin_functions() -> frozenset[str]:
    with closing(sqlite3.Connection(":memory:")) as plain:
        return _functions(plain)


def _functions(connection: sqlite3.Connection) -> frozenset[str]:
    return frozenset(str(row[0]) for row in sqlite3.Cursor(connection).execute("PRAGMA function_list"))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(sqlite3.Cursor(connection).execute(f"PRAGMA {name}").fetchone()[0])


def _connected(
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    content: bytes | None,
    pragmas: Mapping[str, int],
    kept: tuple[Any, Any, Any],
) -> sqlite3.Connection:
    fresh = _connect(*args, **named)
    if content:
        fresh.deserialize(content[:18] + b"\1\1" + content[20:])  # a log of its own is for files only
    for name, value in pragmas.items():
        fresh.execute(f"PRAGMA {name} = {value}")
    fresh.row_factory, fresh.text_factory, fresh.isolation_level = kept
    return fresh


def _cursor(cursor: sqlite3.Cursor) -> tuple[Callable[..., object], tuple[object, ...]]:
    """How a cursor is copied: a new one, of the copied connection."""
    return _fresh_cursor, (cursor.connection, cursor.row_factory)


def _fresh_cursor(connection: sqlite3.Connection, row_factory: Any) -> sqlite3.Cursor:  # noqa: ANN401
    fresh = connection.cursor()
    fresh.row_factory = row_factory
    return fresh


def _lock(_: object) -> tuple[Callable[[], object], tuple[()]]:
    return threading.Lock, ()


def _rlock(_: object) -> tuple[Callable[[], object], tuple[()]]:
    return threading.RLock, ()


_connect = sqlite3.connect
copyreg.pickle(sqlite3.Connection, cast(Any, _connection))
copyreg.pickle(sqlite3.Cursor, cast(Any, _cursor))
copyreg.pickle(type(threading.Lock()), cast(Any, _lock))
copyreg.pickle(type(threading.RLock()), cast(Any, _rlock))

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
