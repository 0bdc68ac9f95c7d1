"""The source of what a program or a notebook defines: of functions and classes, and of what binds a name."""

from __future__ import annotations

import ast
import inspect
import linecache
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

Defined = Callable[..., object] | type


def plain(function: Callable[..., object]) -> types.FunctionType | None:
    """A function without what decorates it; None for what is none."""
    found = inspect.unwrap(function)
    return found if isinstance(found, types.FunctionType) else None


def definition(value: Defined) -> str | None:
    """The source of a function or a class, with its decorators; None where it cannot be found."""
    try:
        return dedented(inspect.getsource(value))
    except (OSError, TypeError, SyntaxError):
        pass
    if not isinstance(value, type):
        return None
    for text in texts(value.__module__):  # a class of a notebook's cell: inspect wants a file of its module
        for node in _statements(text):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                return _with_decorators(text, node)
    return None


def binding(name: str, module: str) -> str | None:
    """The last statement at the top of a module, or of a notebook's cells, that gives a name its value."""
    for text in texts(module):
        for node in reversed(_statements(text)):
            if name in _bound(node):
                return _imported(node, name, module) or ast.get_source_segment(text, node)
    return None


def texts(module: str) -> Iterator[str]:
    """The text of a module's file, or of a notebook's cells, the newest first."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and (lines := linecache.getlines(file)):
        yield "".join(lines)
        return
    for name in reversed(list(linecache.cache)):
        if not Path(name).is_file():
            yield "".join(linecache.getlines(name))


def dedented(source: str) -> str:
    """A definition as it stands at the beginning of a line.

    Raises:
        SyntaxError: it is none.
    """
    text = textwrap.dedent(source)
    try:
        ast.parse(text)
    except IndentationError:  # a text in it begins further left than the definition
        (inner,) = cast(ast.If, ast.parse("if True:\n" + source).body[0]).body
        return ast.unparse(inner)
    return text.rstrip()


def names_read(source: str) -> list[str]:
    """The globals that a text reads, also those of annotations in quotes, in alphabetical order."""
    found = set(_globals(symtable.symtable(source, "tools", "exec")))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= _quoted(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found |= _quoted(node.annotation)
    return sorted(found)


def dotted(source: str, name: str) -> set[str]:
    """What a text reads of a name by dots: `xml.etree.ElementTree.parse` and all that begins it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id == name:
            found |= {".".join([name, *parts[:count]]) for count in range(len(parts) + 1)}
    return found


def _globals(table: symtable.SymbolTable, *, top: bool = True) -> Iterator[str]:
    for symbol in table.get_symbols():
        if (symbol.is_referenced() and (top or symbol.is_global())) or symbol.is_declared_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child, top=False)


def _quoted(annotation: ast.expr | None) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                inner = ast.parse(node.value, mode="eval")
            except (SyntaxError, ValueError):
                continue
            found |= {one.id for one in ast.walk(inner) if isinstance(one, ast.Name)}
    return found


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):  # a cell may hold more than Python
        return []


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(one.asname or one.name).partition(".")[0] for one in node.names]
    return []


def _imported(node: ast.stmt, name: str, module: str) -> str | None:
    """An import of a name alone, from where it is whatever imports it."""
    if not isinstance(node, ast.ImportFrom):
        return None
    origin = node.module or ""
    if node.level:
        known = sys.modules.get(module)
        package = (getattr(known, "__package__", None) or module).split(".")
        origin = ".".join([*package[: len(package) - node.level + 1], *([origin] if origin else [])])
    (one,) = (one for one in node.names if (one.asname or one.name) == name)
    return f"from {origin} import {one.name}" + (f" as {one.asname}" if one.asname else "")


def _with_decorators(text: str, node: ast.ClassDef) -> str:
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
