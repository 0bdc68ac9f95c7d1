"""The process that runs a user's Python tools.

    python -m genenv.tools.worlds.python_child ORIGINAL FILE NAME SOCKET SESSIONS SETTINGS

It loads the libraries that the file imports, listens on SOCKET, and forks a *session* for each connection. A
session has a copy of the folder ORIGINAL to itself, in SESSIONS; it imports the file there and answers JSON
lines with JSON lines. So nothing that tools do reaches another session, whatever it is: global variables,
class attributes, caches, files, connections, threads.

    {"do": "describe"}                             {"tools": [...], "left_out": {...}, "unseen": {...}}
    {"do": "call", "tool", "args", "call_s"}       {"result": ..., "drew": if at random} or {"error": ...}
    {"do": "state"}                                {"state": ...}
    {"do": "play", "calls", "call_s", "first"}     {"outcomes": [...], "states": [...], "first": state}

Each answer may instead be `{"refused": sentence}`, and names files that were missing (`asked`). A program is
executed in a fork of the session, which is then as it was, so that it can execute others. If the file opens
files or starts threads when it is imported, or a program changed the folder, the next program is answered
with `{"spent": true}`: it needs a fresh session. What tools print goes to the log, never into an answer.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import marshal
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from pydantic import ValidationError

from genenv.errors import first_problem
from genenv.tools.worlds import seeding
from genenv.tools.worlds.base import MOST_CHARS, TOO_LONG, TOOK_TOO_LONG
from genenv.tools.worlds.differences import difference
from genenv.tools.worlds.folder import SessionFolder, data_files
from genenv.tools.worlds.importing import (
    YIELDS,
    Loader,
    NotLoaded,
    SessionSettings,
    awaited,
    imported,
    instance_of,
    is_constant,
    is_raised,
    kept_open,
    no_tools,
    open_files,
    said_by,
    state_of_module,
    threads,
    value_of,
    without_second_names,
)
from genenv.tools.worlds.in_process import (
    Arguments,
    Described,
    NoTool,
    decorated,
    described,
    methods,
    public_classes,
    public_functions,
)
from genenv.tools.worlds.jsonable import (
    OWN_MODULES,
    TOOLS_MODULE,
    NotJson,
    States,
    at_home,
    attributes,
    is_code,
    result_of,
    set_home,
    text_of,
)
from genenv.tools.worlds.launch import confine, die_with_parent, limit, without_local_sockets

_LARGE = 4096
"""Size in bytes of plain data from which on its parts are looked at by themselves."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MEMORY = 2 << 30
_MOST_SOURCES, _MOST_SOURCE_BYTES = 256, 1 << 20
"""Files of the folder that are compiled once for all sessions."""


def main(original: str, file: str, name: str, address: str, sessions: str, settings: str) -> None:
    """Load libraries, say so with a line, and fork a session for each connection.

    Args:
        original: the folder of the tools.
        file: of that folder.
        name: of its class whose methods are the tools; empty: its functions, or its only class.
        address: of the socket on which it listens.
        sessions: the folder of the sessions' folders.
        settings: `SessionSettings` as JSON.
    """
    ready = os.fdopen(os.dup(1), "w", encoding="utf-8")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(2, 1)  # what tools print joins the log
    limit(resource.RLIMIT_AS, _MEMORY)
    limit(resource.RLIMIT_CORE, 0)
    chosen = SessionSettings(**json.loads(settings))
    if chosen.seeded:
        seeding.take_over()
    prepared = _Prepared(Path(original), file, name or None, Path(sessions), chosen)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(256)
    without_local_sockets()
    signal.signal(signal.SIGCHLD, partial(_remove_ended, prepared.sessions))
    gc.collect()
    if chosen.seeded:
        seeding.reseed("")  # knows the generators of libraries, which it does not find once they are frozen
    gc.freeze()
    ready.write("{}\n")
    ready.close()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _serve(connection, prepared)
            finally:
                os._exit(1)
        connection.close()


def _remove_ended(sessions: Path, *_: object) -> None:
    """Remove the folders of sessions that have ended, however they did."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            shutil.rmtree(sessions / str(pid), ignore_errors=True)


class _Prepared:
    """What all sessions share: compiled Python files, the contents of data files, and loaded libraries."""

    def __init__(
        self,
        original: Path,
        file: str,
        name: str | None,
        sessions: Path,
        settings: SessionSettings,
    ) -> None:
        self.original, self.file, self.name, self.sessions = original, file, name, sessions
        self.settings = settings
        self.data = data_files(original)
        self.codes = _compiled(original)
        libraries = _imported_by(self)
        for library in libraries:
            with contextlib.suppress(Exception):
                importlib.import_module(library)
        described(text_of, "first")  # imports what pydantic imports when it first needs it


def _compiled(folder: Path) -> dict[str, CodeType]:
    """Return the compiled Python files of a folder, by path, without those that do not compile."""
    codes: dict[str, CodeType] = {}
    for path in sorted(folder.rglob("*.py"))[:_MOST_SOURCES]:
        with contextlib.suppress(Exception):
            if path.is_file() and path.stat().st_size <= _MOST_SOURCE_BYTES:
                codes[str(path.relative_to(folder))] = compile(
                    path.read_bytes(), path, "exec", dont_inherit=True
                )
    return codes


def _imported_by(prepared: _Prepared) -> list[str]:
    """Return the library modules that the file imports, found in a fork; none if they start threads.

    A thread does not survive a fork, and its locks stay locked. Libraries with threads are therefore imported
    in each session.
    """
    reading, writing = os.pipe()
    before = set(sys.modules)
    child = os.fork()
    if child == 0:
        found: list[str] = []
        with contextlib.suppress(BaseException):
            folder = SessionFolder(prepared.original, prepared.sessions / "first", prepared.data)
            os.chdir(folder.path)
            with contextlib.suppress(BaseException):
                imported(folder.path / prepared.file, folder.path, prepared.codes)
            if threads() == 1:
                own = f"{folder.path}{os.sep}"
                found = [
                    name
                    for name, module in sys.modules.items()
                    if name not in before
                    and name != TOOLS_MODULE
                    and not str(getattr(module, "__file__", None) or "").startswith(own)
                    and getattr(module, "__spec__", None) is not None
                ]
            folder.remove()
        with os.fdopen(writing, "wb") as names:
            names.write(json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    try:
        return cast("list[str]", json.loads(told or b"[]"))
    except ValueError:
        return []


def _serve(connection: socket.socket, prepared: _Prepared) -> None:
    """Run one session: import the file in a copy of its folder, and answer until the connection closes."""
    os.setsid()
    folder = SessionFolder(prepared.original, prepared.sessions / str(os.getpid()), prepared.data)
    try:
        os.chdir(folder.path)
        os.environ["TMPDIR"] = str(folder.path.parent / "tmp")
        confine([str(folder.path), str(folder.path.parent / "tmp"), *prepared.settings.may_write])
        signal.signal(signal.SIGALRM, _too_long)
        _answer_all(connection, prepared, folder)
    finally:
        os.killpg(0, signal.SIGKILL)  # itself, and what its tools have started


def _answer_all(connection: socket.socket, prepared: _Prepared, folder: SessionFolder) -> None:
    asked = connection.makefile("r", encoding="utf-8")
    answers = connection.makefile("w", encoding="utf-8", errors="replace")

    def say(answer: Mapping[str, object]) -> None:
        answers.write(
            json.dumps({**answer, "asked": sorted(folder.asked)}, ensure_ascii=False, allow_nan=False)
        )
        answers.write("\n")
        answers.flush()

    say({"pid": os.getpid()})
    set_home(folder.path)
    open_before = open_files()
    try:
        begin = partial(seeding.reseed, "") if prepared.settings.seeded else partial(random.seed, 0)
        begin()
        tools = Tools.loaded(folder, prepared)
        begin()
    except NotLoaded as error:
        for _ in asked:
            say({"refused": str(error)})
        return
    gc.freeze()  # what is made from now on is soon looked through, for generators
    tools.kept_open = kept_open(open_before)
    begun = folder.signature() if not tools.kept_open else None
    played = False
    for line in asked:
        request = json.loads(line)
        if request["do"] == "play" and not played:
            tools.told()  # once, not in each fork
            tools.first_state = tools.state()
            gc.freeze()  # a collection in a fork would copy the memory of everything it looks at
            played = True
        if request["do"] != "play":
            say(_answer(tools, request))
        elif begun is None:  # a copy of the process would share what it has open
            say(_answer(tools, request))
            begun = ""
        elif folder.signature() != begun:
            say({"spent": True})
            return
        elif not _answered_in_a_fork(say, tools, request):
            say({"ended": True})


def _answered_in_a_fork(
    say: Callable[[Mapping[str, object]], None], tools: Tools, request: Mapping[str, Any]
) -> bool:
    """Answer in a forked process, so that the session stays as it is. Return whether it could."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            die_with_parent()
            say(_answer(tools, request))
            status = 0
        finally:
            os._exit(status)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # what its tools have started
    return status == 0


def _answer(tools: Tools, request: Mapping[str, Any]) -> dict[str, object]:
    try:
        match request["do"]:
            case "describe":
                tools.state()  # says what cannot be read
                told = {"tools": tools.told(), "left_out": tools.left_out, "unseen": tools.unseen}
                return {**told, "kept_open": tools.kept_open, "too_large": tools.too_large}
            case "call":
                return tools.call(request["tool"], request["args"], request["call_s"])
            case "state":
                return {"state": tools.state()}
            case _:
                return _played(tools, request)
    except NotJson as error:
        return {"refused": f"the tools' state cannot be read: it holds {error}"}


def _played(tools: Tools, request: Mapping[str, Any]) -> dict[str, object]:
    """Make calls one after the other, and look at the state after each.

    Returns:
        Their outcomes, and how the states differ from the first state of all: before the calls, then after
        each call that changed it. The first state of all (`first`) only if it is asked for.
    """
    before = tools.state()
    states = [difference(tools.first_state, before)]
    outcomes: list[object] = []
    for call in request["calls"]:
        outcome = tools.call(call["tool"], call["args"], request["call_s"])
        after = tools.state()
        outcome["changed"] = difference(before, after) is not None
        if outcome["changed"]:
            states.append(difference(tools.first_state, after))
        before = after
        outcomes.append(outcome)
    answer: dict[str, object] = {"outcomes": outcomes, "states": states}
    return {**answer, "first": tools.first_state} if request["first"] else answer


def _too_long(*_: object) -> None:
    raise TimeoutError(TOOK_TOO_LONG)


def _content(value: object) -> bytes | None:
    """A value as bytes, to see quickly that it is as it was; None if it is not plain data."""
    try:
        return _dumped(value)
    except ValueError:
        return None


def _is_same(one: object, other: object) -> bool:
    """Whether a constant is what it was; other values than plain data are if they are the same object."""
    content = _content(one)
    return one is other or (content is not None and content == _content(other))


def _dumped(value: Any) -> bytes:  # noqa: ANN401 - what marshal takes
    return marshal.dumps(value, 2)  # later versions depend on how often an object is referred to


class Tools:
    """The tools of a file in one session, and the state that they share.

    Args:
        module: the imported file.
        made: the class whose methods are the tools; None: the module's functions are.
        folder: of the session.
        given: values of parameters that the agent does not choose, by name: of the functions, and of the
            class's constructor. They are state.
        seeded: whether random numbers are seeded before each call.
    """

    def __init__(
        self,
        module: ModuleType,
        made: type | None,
        folder: SessionFolder,
        given: Mapping[str, object],
        *,
        seeded: bool,
    ) -> None:
        self._module, self._class, self._folder, self._given = module, made, folder, given
        self.left_out: dict[str, str] = {}
        self.unseen: dict[str, str] = {}
        """Values of the state that no walk can read: their types, by path."""
        self._functions: dict[str, Callable[..., object]] = (
            {name: cast("Callable[..., object]", getattr(made, name)) for name in methods(made)}
            if made is not None
            else public_functions(module)
        )
        self._arguments: dict[str, Arguments] = {}
        self._instance: object = None
        if made is not None:
            self._instance = instance_of(made, given)
        self.too_large = folder.too_large()
        """Databases that are compared by their bytes."""
        self._own: tuple[object, list[tuple[str, ModuleType]]] = None, []
        """The modules of the session's folder, and by what it is seen that there may be others."""
        self._known: dict[tuple[object, ...], tuple[bytes, Any]] = {}
        """Parts of the state that are plain data, by path: as bytes, and as JSON."""
        self._seeded = seeding.Calls() if seeded else None
        self.kept_open: list[str] = []
        """Files and threads that importing the file leaves open."""
        self.first_state: Any = None
        """The state before the first program, of which states are sent as differences."""
        self._constants = self._values(constants=True)

    @classmethod
    def loaded(cls, folder: SessionFolder, prepared: _Prepared) -> Tools:
        """The tools of a file.

        Raises:
            NotLoaded: it cannot be imported, has no such class, or no functions and no methods.
        """
        file, name = folder.path / prepared.file, prepared.name
        module = imported(file, folder.path, prepared.codes)
        classes = public_classes(module)
        if name is not None and not isinstance(getattr(module, name, None), type):
            raise NotLoaded(f"{file.name} has no class {name!r}")
        if name is None and not public_functions(module) and len(classes) == 1:
            name = next(iter(classes))
        if name is None and not public_functions(module):
            which = (
                f"several classes ({', '.join(classes)}): name one, {file.name}:{next(iter(classes))}"
                if classes
                else "no functions, and no class with methods"
            )
            raise NotLoaded(f"{file.name} has {which}")
        given = {one: value_of(one, where, module) for one, where in prepared.settings.given.items()}
        return cls(
            module, getattr(module, name) if name else None, folder, given, seeded=prepared.settings.seeded
        )

    def told(self) -> list[dict[str, object]]:
        """Return the descriptions of the functions that can be tools; `left_out` has the others."""
        tools = decorated(self._module).values() if self._class is None else ()
        said = {one.name: one.description for one in tools}
        found: list[Described] = []
        for name, function in self._functions.items():
            try:
                if inspect.isasyncgenfunction(inspect.unwrap(function)):
                    raise NoTool(YIELDS)
                found.append(described(self._bound(name), name, self._given, said.get(name, "")))
            except NoTool as error:
                self.left_out[name] = str(error)
        if self._class is None:
            self.left_out = {**no_tools(self._module), **self.left_out}
        self._arguments.update((one.name, one.arguments) for one in found)
        return [{"name": one.name, "description": one.description, "parameters": one.schema} for one in found]

    def _arguments_of(self, name: str) -> Arguments:
        """The arguments of a function, read from its signature when it is first called."""
        if name not in self._arguments:
            self._arguments[name] = Arguments.of(self._bound(name), name, given=self._given)
        return self._arguments[name]

    def _bound(self, name: str) -> Callable[..., object]:
        """A function as it is called: a method without its first parameter."""
        function, made = self._functions[name], self._class
        if made is None or not inspect.isfunction(inspect.getattr_static(made, name)):
            return function
        return cast("Callable[..., object]", cast(Any, function).__get__(object.__new__(cast(Any, made))))

    def state(self) -> Any:  # noqa: ANN401 - JSON
        """All that the session's own modules, the instance and the folder hold, as JSON.

        Raises:
            NotJson: it is too deep.
        """
        seen = States()
        fields: dict[str, Any] = {}
        for name, value in self._values().items():
            content = _content(value)
            fields[name] = (
                seen.read(name, value) if content is None else self._plain((name,), value, content, seen)
            )
        self.unseen = seen.unseen
        return {**fields, **self._folder.contents(fields)}

    def _plain(self, path: tuple[object, ...], value: object, content: bytes, seen: States) -> Any:  # noqa: ANN401
        """Plain data as JSON, read again only where it changed.

        Args:
            path: where it is in the state.
            value: it.
            content: it as bytes.
            seen: reads what changed.
        """
        known = self._known.get(path)
        if known is not None and known[0] == content:
            return known[1]
        depth = len(path) - 1
        if len(content) < _LARGE or depth >= seen.most_deep or not isinstance(value, dict | list):
            found = seen.json(value, depth)
        elif isinstance(value, dict):
            held = cast("dict[object, object]", value)
            found = {
                name: self._plain((*path, key), one, _dumped(one), seen)
                for name, (key, one) in zip(seen.names(held), held.items(), strict=True)
            }
        else:
            found = [
                self._plain((*path, place), one, _dumped(one), seen)
                for place, one in enumerate(cast("list[object]", value))
            ]
        self._known[path] = content, found
        return found

    def _values(self, *, constants: bool = False) -> dict[str, object]:
        """Values that are state, by name: of the instance, the module, its classes, and modules beside it.

        A value that has several names is under the first one. Constants (capital names of numbers and texts,
        None, tuples) are state only if they are no longer what they were when the file was imported.

        Args:
            constants: whether the constants are wanted instead.
        """
        found: dict[str, object] = {}
        if self._instance is not None:
            for name, value in attributes(self._instance).items():
                if not constants and not is_code(value):
                    found[name] = value
        modules = self._modules()
        for module_name, module in modules:
            prefix = "" if module is self._module else f"{module_name}."
            for name, value in state_of_module(module, prefix):
                key = name if name not in found else f"{module_name}.{name}"
                if is_constant(name.rpartition(".")[2], value):
                    if constants or key not in self._constants or not _is_same(self._constants[key], value):
                        found[key] = value
                elif not constants:
                    found[key] = value
        if constants:
            return found
        return without_second_names(
            {**found, **{name: one for name, one in self._given.items() if name not in found}}
        )

    def _modules(self) -> list[tuple[str, ModuleType]]:
        """The imported file, then the modules of its folder that are loaded by now.

        Looking at a module copies its memory in a fork, so only those that came after the fork are looked at.
        """
        signature = len(sys.modules), Loader.executed
        if self._own[0] != signature:
            own = f"{self._folder.path}{os.sep}"
            recent = islice(reversed(sys.modules.items()), max(0, len(sys.modules) - Loader.loaded_before))
            found = [(TOOLS_MODULE, self._module)] + [
                (name, module)
                for name, module in sorted(recent)
                if module is not self._module and str(getattr(module, "__file__", None) or "").startswith(own)
            ]
            OWN_MODULES.update(module.__name__ for _, module in found)
            self._own = signature, found
        return self._own[1]

    def call(self, tool: str, args: Mapping[str, object], limit_s: float) -> dict[str, object]:
        """What one call returns or raises; the state changes."""
        try:
            if tool not in self._functions:
                return {"error": f"There is no tool {tool!r}."}
            arguments = self._arguments_of(tool)
            checked = arguments.checked(at_home(args))
            placed, named = arguments.placed(checked)
        except NoTool:
            return {"error": f"There is no tool {tool!r}."}
        except ValidationError as error:
            return {"error": first_problem(error, "arguments")}
        written = f"{tool} {_ADDRESS.sub('', repr(checked))}"
        if self._seeded is not None:
            self._seeded.begin(written)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        self._folder.in_call = True
        try:
            function: Any = self._functions[tool] if self._class is None else getattr(self._instance, tool)
            result = result_of(awaited(function(*placed, **named)))
            if len(json.dumps(result, ensure_ascii=False)) > MOST_CHARS:
                return {"error": TOO_LONG}
        except NotJson as error:
            return {"error": f"The tool returned {error}."}
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - a user's own code
            return {"error": text_of(said_by(error)), "is_raised": is_raised(error)}
        finally:
            self._folder.in_call = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        drew = self._seeded is not None and self._seeded.succeeded(written)
        return {"result": result, "drew": True} if drew else {"result": result}


if __name__ == "__main__":
    main(*sys.argv[1:7])
