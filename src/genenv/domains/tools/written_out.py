"""Functions or a class of a notebook or a program as a file of their own: what they use is written along.

Text, so that a bundle stays a folder of data that can be read and edited. Of the modules that define the
tools the file holds the source of functions and classes and the values of data, as they are now; everything
else is imported.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from genenv.errors import UsageError

Tool = Callable[..., object] | type

_TYPING = ("typing", "types")
_HEAD = "from __future__ import annotations"


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """Tools as a file."""

    text: str
    """Of the file."""
    made_of: str
    """The class whose methods are the tools; empty where the tools are functions."""
    beside: Path
    """Where files lie that the tools read or import: the folder of the file that defines them."""


def written_out(tools: Sequence[Tool]) -> WrittenOut:
    """Functions, or one class, as a Python file.

    Args:
        tools: functions with type hints and docstrings; or a class whose methods are the tools.

    Raises:
        UsageError: something of them cannot be written down; the sentence names it.
    """
    if not tools:
        raise UsageError("there are no tools: give functions, or a class whose methods are the tools")
    classes = [one for one in tools if isinstance(one, type)]
    if classes and len(tools) > 1:
        raise UsageError("a class whose methods are the tools is given alone; give one class, or functions")
    for one in tools:
        if not isinstance(one, type) and not inspect.isfunction(one):
            raise UsageError(
                f"{_named(one)} is neither a function nor a class; give functions (no methods of an "
                "object, no partial ones), or a class whose methods are the tools"
            )
    found = _Found(homes=frozenset(one.__module__ for one in tools))
    for one in tools:
        found.define(one.__name__, one, of="the tools")
    made_of = classes[0].__name__ if classes else ""
    if not classes:
        listed = ", ".join(repr(one.__name__) for one in tools)
        found.parts.append(f"__all__ = [{listed}]")
    imports = "\n".join(dict.fromkeys(found.imports))
    text = "\n\n\n".join(part for part in (_HEAD, imports, *found.parts) if part) + "\n"
    return WrittenOut(text=text, made_of=made_of, beside=_folder_of(tools[0]))


def _named(thing: object) -> str:
    return repr(getattr(thing, "__name__", None) or thing)


def _folder_of(tool: Tool) -> Path:
    try:
        file = Path(inspect.getfile(tool))
    except (TypeError, OSError):
        return Path()
    return file.parent if file.is_file() else Path()


@dataclass(slots=True)
class _Found:
    """What has been written so far."""

    homes: frozenset[str]
    """Modules whose own definitions are written; of others is imported."""
    imports: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    _done: dict[str, object] = field(default_factory=dict[str, object])

    def define(self, name: str, value: object, *, of: str) -> None:
        """Write what a name stands for, after what it uses itself.

        Args:
            name: as the text has it.
            value: what it is now.
            of: who uses it, for errors.
        """
        if name in self._done:
            if self._done[name] is not value:
                raise UsageError(
                    f"{name!r} is one thing in one of the tools and another in another; rename one of them"
                )
            return
        self._done[name] = value
        if isinstance(value, types.ModuleType):
            whole = value.__name__
            self.imports.append(f"import {whole}" if whole == name else f"import {whole} as {name}")
        elif _is_defined(value) and cast(type, value).__module__ in self.homes:
            self._write_source(name, cast(Tool, value))
        elif _is_defined(value) and "." not in cast(type, value).__qualname__:
            made = cast(type, value)
            renamed = "" if made.__name__ == name else f" as {name}"
            self.imports.append(f"from {made.__module__} import {made.__name__}{renamed}")
        else:
            self._write_value(name, value, of)

    def _write_source(self, name: str, value: Tool) -> None:
        if value.__name__ == "<lambda>":
            raise UsageError(f"{name!r} is a lambda; write it as a function, with type hints and a docstring")
        if not isinstance(value, type) and (inner := _plain(value).__code__.co_freevars):
            raise UsageError(
                f"{name!r} uses {inner[0]!r} of the function it was made in; make that an "
                "argument or a global"
            )
        try:
            source = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError) as error:
            raise UsageError(
                f"the source of {name!r} cannot be found; put the tools into a file and give its path instead"
            ) from error
        known = _names_around(value)
        for used in _names_in(source):
            if used in known and used != value.__name__:
                self.define(used, known[used], of=repr(name))
        self.parts.append(source.rstrip())
        if value.__name__ != name:
            self.parts.append(f"{name} = {value.__name__}")

    def _write_value(self, name: str, value: object, of: str) -> None:
        told = repr(value)
        if type(value).__module__ in _TYPING or isinstance(value, types.GenericAlias | types.UnionType):
            if "typing." in told:
                self.imports.append("import typing")
        elif not _says_it_all(told, value):
            raise UsageError(
                f"{of} uses {name!r}, a {type(value).__name__} that cannot be written down as text; make "
                "it in a class whose methods are the tools, or put the tools into a file and give its path"
            )
        self.parts.append(f"{name} = {told}")


def _plain(function: Callable[..., object]) -> types.FunctionType:
    """A function without what decorates it."""
    return cast(types.FunctionType, inspect.unwrap(function))


def _is_defined(value: object) -> bool:
    """Whether something has a module and a name of its own there: a class or a function."""
    return isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) and not isinstance(
        value, types.GenericAlias
    )


def _says_it_all(told: str, value: object) -> bool:
    try:
        return bool(ast.literal_eval(told) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _names_around(value: Tool) -> Mapping[str, object]:
    """The globals of what is defined, less those that Python has itself."""
    if isinstance(value, type):
        module = inspect.getmodule(value)
        around = vars(module) if module is not None else {}
    else:
        around = _plain(value).__globals__
    return {name: one for name, one in around.items() if getattr(builtins, name, around) is not one}


def _names_in(source: str) -> list[str]:
    """The names that a text reads, in order; those of annotations in quotes too."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found[node.id] = None
        elif isinstance(node, ast.Global):
            found.update(dict.fromkeys(node.names))
        elif isinstance(node, ast.arg | ast.AnnAssign) and isinstance(node.annotation, ast.Constant):
            found.update(dict.fromkeys(_names_of_text(node.annotation.value)))
    return list(found)


def _names_of_text(annotation: object) -> list[str]:
    try:
        return _names_in(annotation) if isinstance(annotation, str) else []
    except SyntaxError:
        return []
