"""Imports the file of a user's tools from a session's folder, and makes the objects that its tools need.

Also says what importing it leaves open (files and threads, which a fork would share or lack), and which
values its modules hold. They are what the state of Python tools is made of: global variables, attributes of
classes, and what functions hold, mutable defaults and variables of closures.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import enum
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from genenv.tools.worlds.in_process import closure_of, decorated, needed_by, public_classes, registered
from genenv.tools.worlds.jsonable import OF_SQLALCHEMY, OWN_MODULES, TOOLS_MODULE, is_code

_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Folders of Python's own code, and of packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What sessions of Python tools may do and are given."""

    may_write: Sequence[str] = ()
    """Folders, beside the copy of the tools' folder, in which the tools may write."""
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the values of arguments come from that the agent does not choose, by name of the parameter:
    `MODULE:NAME`, or a name in the file."""
    seeded: bool = True
    """Whether random numbers are seeded before each call: see `seeding`."""


class NotLoaded(Exception):
    """The file does not give tools. The message is a sentence's end."""


class Loader(importlib.machinery.SourceFileLoader):
    """Imports files of the session's folder from code that was compiled before the fork."""

    codes: Mapping[str, CodeType] = {}
    folder = Path()
    loaded_before = 0
    """Modules in `sys.modules` before the first of the folder."""
    executed = 0
    """Modules of the folder so far."""

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        Loader.executed += 1
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType | None:
        """See `importlib.abc.InspectLoader`."""
        made = self.codes.get(os.path.relpath(self.path, self.folder))
        return made if made is not None else super().get_code(fullname)


def imported(file: Path, folder: Path, codes: Mapping[str, CodeType]) -> ModuleType:
    """The imported file of the tools.

    Args:
        file: the file.
        folder: of the session.
        codes: compiled files of the folder, by path.

    Raises:
        NotLoaded: it cannot be imported.
    """
    sys.dont_write_bytecode = True
    Loader.codes, Loader.folder, Loader.loaded_before = codes, folder, len(sys.modules)
    finder = importlib.machinery.FileFinder.path_hook((Loader, importlib.machinery.SOURCE_SUFFIXES))

    def hook(path: str) -> Any:  # noqa: ANN401 - what importlib wants
        if Path(path).resolve().is_relative_to(folder.resolve()):
            return finder(path)
        raise ImportError

    sys.path_hooks.insert(0, hook)
    root = package_root(file)
    name = ".".join(file.relative_to(root).with_suffix("").parts) if root != file.parent else TOOLS_MODULE
    sys.path.insert(0, str(root))
    sys.path.append(str(file.parent))  # a script in a package imports its neighbors by their short names
    try:
        if name != TOOLS_MODULE:
            module = importlib.import_module(name)
            sys.modules[TOOLS_MODULE] = module
            return module
        spec = importlib.util.spec_from_file_location(
            TOOLS_MODULE, file, loader=Loader(TOOLS_MODULE, str(file))
        )
        if spec is None or spec.loader is None:
            raise NotLoaded(f"{file.name} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[TOOLS_MODULE] = module
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        missing = f"(module {error.name})"
        if (error.name or "").partition(".")[0] == "mcp":
            missing += f"; a Python with the mcp that it needs can run it: --from 'mcp:PYTHON {file.name}'"
        raise NotLoaded(f"{file.name} cannot be imported: {said_by(error)} {missing}") from error
    except (Exception, SystemExit) as error:
        raise NotLoaded(f"{file.name} cannot be imported: {said_by(error)}") from error
    return module


def package_root(file: Path) -> Path:
    """The folder of the outermost package that a file is in; without a package, the file's own folder."""
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


YIELDS = "it yields its results one by one; return a list of them"
"""Why a function is no tool."""


def no_tools(module: ModuleType) -> dict[str, str]:
    """What looks like tools, in a file whose functions are the tools, and is none, with the reason."""
    found: dict[str, str] = {}
    for name, one in public_classes(module).items():
        if not any(isinstance(value, one) for value in vars(module).values()):
            file = Path(str(module.__file__)).name
            found[name] = f"the functions of the file are the tools; for its methods name {file}:{name}"
    for name, value in vars(module).items() if not decorated(module) else ():
        if inspect.isgeneratorfunction(value) and value.__module__ == module.__name__ and name[0] != "_":
            found[name] = YIELDS
    return found


def instance_of(made: type, given: Mapping[str, object]) -> object:
    """An instance of a class.

    Args:
        made: the class.
        given: values for parameters of its constructor, by name.

    Raises:
        NotLoaded: it needs other arguments, or its constructor fails.
    """
    parameters: Collection[str] = ()
    needed: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(made).parameters
        needed = [name for name in needed_by(made) if name not in given]
    if needed:
        options = " ".join(f"--given {name}=MODULE:NAME" for name in needed)
        raise NotLoaded(
            f"{made.__name__} cannot begin without {' and '.join(needed)}; give it with {options}"
        )
    try:
        return made(**{name: one for name, one in given.items() if name in parameters})
    except Exception as error:
        raise NotLoaded(f"{made.__name__}() fails: {said_by(error)}") from error


def value_of(name: str, where: str, tools: ModuleType) -> object:
    """A value that the agent does not choose.

    Args:
        name: of the parameter.
        where: `MODULE:NAME`, or a name in the tools' file; what can be called is called without arguments.
        tools: the imported file of the tools.

    Raises:
        NotLoaded: it is not there, or calling it fails.
    """
    module_name, _, attribute = where.rpartition(":")
    try:
        value: object = importlib.import_module(module_name) if module_name else tools
        for part in attribute.split("."):
            value = getattr(value, part)
        return awaited(value()) if callable(value) else value
    except (Exception, SystemExit) as error:
        missing = f" (module {error.name})" if isinstance(error, ModuleNotFoundError) else ""
        raise NotLoaded(f"--given {name}={where} cannot be had: {said_by(error)}{missing}") from error


def awaited(value: object) -> object:
    """A value, or what a coroutine returns."""
    return asyncio.run(cast(Any, value)) if inspect.iscoroutine(value) else value


def said_by(error: BaseException) -> str:
    """What an error says, in one line; a key that is missing says nothing by itself."""
    text = " ".join(str(error).split())[:500]
    return (
        text
        if text and not isinstance(error, KeyError)
        else f"{type(error).__name__}{': ' * bool(text)}{text}"
    )


def is_raised(error: BaseException) -> bool:
    """Whether a `raise` or an `assert` outside of Python's own and installed code raises an error.

    That of a validator of pydantic's counts as well.
    """
    if isinstance(error, ValidationError):
        found = (one.get("ctx", {}).get("error") for one in error.errors())
        return any(isinstance(one, Exception) and is_raised(one) for one in found)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_INSTALLED):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def open_files() -> set[str]:
    """Return the files, sockets and pipes that this process has open."""
    place = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    found: set[str] = set()
    for number in os.listdir(place):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"{place}/{number}") if place.startswith("/proc") else number)
    return {one for one in found if not one.startswith("/proc/")}


def kept_open(before: set[str]) -> list[str]:
    """Return what a fork of this process would share or lack: files that were opened, and threads."""
    files = sorted(open_files() - before)
    if files or threads() == 1:
        return files
    named = [f"thread {one.name}" for one in threading.enumerate() if one is not threading.main_thread()]
    return named or ["threads of a library"]


_FORKED = "jemalloc_bg_thd"
"""A thread, of pyarrow and others, that its library starts again after a fork."""


def threads() -> int:
    """Return how many threads this process has, without those that a fork does not harm."""
    with contextlib.suppress(OSError):
        tasks = Path("/proc/self/task").iterdir()
        return sum((task / "comm").read_text().strip() != _FORKED for task in tasks)
    return threading.active_count()


def without_second_names(values: Mapping[str, object]) -> dict[str, object]:
    """Values without those that an earlier name has already: a name that was imported is not state twice.

    Where two names have one object of a class of the user's, the later one says which, as `turn` does in
    `white, black = Side(), Side(); turn = white`.
    """
    seen: dict[int, str] = {}
    kept: dict[str, object] = {}
    for name, value in values.items():
        first = seen.setdefault(id(value), name)
        if first == name or isinstance(value, _UNCHANGING):
            kept[name] = value
        elif type(value).__module__ in OWN_MODULES:
            kept[name] = f"= {first}"
    return kept


_UNCHANGING = (str, int, float, bool, type(None), enum.Enum, bytes, tuple, frozenset)
"""Values that many names may have without being the same thing."""


def state_of_module(module: ModuleType, prefix: str) -> list[tuple[str, object]]:
    """The values that a module's names, its classes and its functions hold, by name."""
    found: list[tuple[str, object]] = []
    tools = decorated(module)
    for name, value in list(vars(module).items()):
        if name in tools or name.startswith("__") or type(value).__module__ in ("__future__", "typing"):
            continue
        if not is_code(value):
            if not registered(value, module):
                found.append((f"{prefix}{name}", value))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            found += [(f"{prefix}{name}.{key}", one) for key, one in _class_attributes(value)]
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found += [(f"{prefix}{name}.{key}", one) for key, one in _held_by(value)]
    return found


def _class_attributes(made: type[object]) -> list[tuple[str, object]]:
    if issubclass(made, BaseModel | enum.Enum):
        return []
    methods = [one for one in vars(made).items() if isinstance(one[1], FunctionType) and one[0][:2] != "__"]
    held = [(f"{name}.{key}", one) for name, method in methods for key, one in _held_by(method)]
    return held + [
        (name, value)
        for name, value in vars(made).items()
        if not name.startswith(("__", "_abc_", OF_SQLALCHEMY))
        and not is_code(value)
        and not hasattr(cast(object, type(value)), "__get__")  # properties, slots
    ]


def _held_by(function: FunctionType) -> list[tuple[str, object]]:
    """What a function keeps between calls: attributes, and mutable values of defaults and of a closure.

    Attributes of a function that wraps another one are of its decorator: counts of calls, and times.
    """
    found = [
        (f"default {place}", value)
        for place, value in enumerate(
            (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        )
    ]
    found += closure_of(function).items()
    containers = (list, dict, set, bytearray)
    objects = [one for one in closure_of(function).items() if type(one[1]).__module__ in OWN_MODULES]
    held = {} if hasattr(function, "__wrapped__") else vars(function)
    own = [one for one in held.items() if not one[0].startswith("__") and not is_code(one[1])]
    return [*objects, *own, *((name, value) for name, value in found if isinstance(value, containers))]


def is_constant(name: str, value: object) -> bool:
    """Whether a value cannot change, and its name does not say that it will be bound anew."""
    if isinstance(value, str | int | float | bool):
        return name.isupper()
    return value is None or isinstance(value, bytes | tuple | frozenset)
