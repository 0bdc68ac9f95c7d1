"""Write functions or a class from a notebook or program, with all that they use, to a Python file.

The file is text, so that people can read and edit the bundle. From the modules that define the tools, it has
the source of functions and classes and the present values of data. Data without a literal form are made again
by their defining statement. All other objects are imported.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from genenv.errors import UsageError

Tool = Callable[..., object] | type


def plain(function: Callable[..., object]) -> types.FunctionType | None:
    """Return a function without its decorators, or None if the object is not a function."""
    found = inspect.unwrap(function)
    return found if isinstance(found, types.FunctionType) else None


def definition(value: Tool) -> str | None:
    """Return the source of a function or a class with its decorators, or None if it cannot be found."""
    try:
        return dedented(inspect.getsource(value))
    except (OSError, TypeError, SyntaxError):
        pass
    if not isinstance(value, type):
        return None
    for text in texts(value.__module__):  # `inspect` does not find classes of notebook cells
        for node in _statements(text):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return None


def binding(name: str, module: str) -> str | None:
    """Return the last top-level statement of a module or notebook that binds a name, or None."""
    for text in texts(module):
        for node in reversed(_statements(text)):
            if name in _bound(node):
                return _imported(node, name, module) or ast.get_source_segment(text, node)
    return None


def texts(module: str) -> Iterator[str]:
    """Yield the text of a module's file, or of a notebook's cells, newest first."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and (lines := linecache.getlines(file)):
        yield "".join(lines)
        return
    for name in reversed(list(linecache.cache)):
        if not Path(name).is_file():
            yield "".join(linecache.getlines(name))


def dedented(source: str) -> str:
    """Return a definition without indentation.

    Raises:
        SyntaxError: the text is not a definition.
    """
    text = textwrap.dedent(source)
    try:
        ast.parse(text)
    except IndentationError:  # a string in it has lines with less indentation
        (inner,) = cast(ast.If, ast.parse("if True:\n" + source).body[0]).body
        return ast.unparse(inner)
    return text.rstrip()


def names_read(source: str) -> list[str]:
    """Return the globals that a source text reads, including those in quoted annotations, sorted."""
    found = set(_globals(symtable.symtable(source, "tools", "exec")))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= _quoted(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found |= _quoted(node.annotation)
    return sorted(found)


def dotted(source: str, name: str) -> set[str]:
    """Return the dotted names that a source text reads of a name, with all prefixes of each."""
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
    except (SyntaxError, ValueError):  # a cell may contain other than Python
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
    """Return an import of one name alone, as an absolute import, or None for other statements."""
    if not isinstance(node, ast.ImportFrom):
        return None
    origin = node.module or ""
    if node.level:
        known = sys.modules.get(module)
        package = (getattr(known, "__package__", None) or module).split(".")
        origin = ".".join([*package[: len(package) - node.level + 1], *([origin] if origin else [])])
    (one,) = (one for one in node.names if (one.asname or one.name) == name)
    return f"from {origin} import {one.name}" + (f" as {one.asname}" if one.asname else "")


_HEAD = "from __future__ import annotations"


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """The source of tools as a Python file."""

    text: str
    """Content of the file."""
    made_of: str
    """The class whose methods are the tools; empty if the tools are functions."""
    beside: Path
    """The folder with files that the tools read or import: that of the file that defines them."""


def written_out(tools: Sequence[Tool]) -> WrittenOut:
    """Return functions, or one class, as a Python file.

    Args:
        tools: functions with type hints and docstrings; or a class whose methods are the tools.

    Raises:
        UsageError: a part cannot be written as source; the message names it.
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
        found.define(one.__name__, one, of="the tools", by="")
    made_of = classes[0].__name__ if classes else ""
    if not classes:
        listed = ", ".join(repr(one.__name__) for one in tools)
        found.parts.append(f"__all__ = [{listed}]")
    imports = "\n".join(sorted(set(found.imports)))
    text = "\n\n\n".join(part for part in (_HEAD, imports, *found.parts) if part) + "\n"
    return WrittenOut(text=text, made_of=made_of, beside=_folder_of(tools[0]))


def _named(thing: object) -> str:
    return repr(getattr(thing, "__name__", None) or thing)


def _folder_of(tool: Tool) -> Path:
    """Return the folder from which the module that defines a tool imports."""
    try:
        file = Path(inspect.getfile(tool))
    except (TypeError, OSError):
        return Path()
    if not file.is_file():
        return Path()
    depth = tool.__module__.count(".") + (file.name == "__init__.py")
    return file.parents[min(depth, len(file.parents) - 1)]


@dataclass(slots=True)
class _Found:
    """Collects the definitions that the file needs, in order."""

    homes: frozenset[str]
    """Modules whose definitions are copied; definitions of other modules are imported."""
    imports: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    _done: dict[str, object] = field(default_factory=dict[str, object])

    def define(self, name: str, value: object, *, of: str, by: str) -> None:
        """Write the definition of a name, after the definitions that it uses.

        Args:
            name: the name in the source text.
            value: the current value of the name.
            of: the user of the name, for error messages.
            by: the source text that uses the name.
        """
        if isinstance(value, types.ModuleType):
            self._import_module(name, value, by)
        if name in self._done:
            if self._done[name] is not value and not isinstance(value, types.ModuleType):
                raise UsageError(
                    f"{name!r} is one thing in one of the tools and another in another; rename one of them"
                )
            return
        self._done[name] = value
        if isinstance(value, types.ModuleType):
            return
        if (own := self._own(value)) is not None:
            self._write_definition(name, own)
        elif (origin := _importable(value)) is not None and origin[0] not in self.homes:
            renamed = "" if origin[1] == name else f" as {name}"
            self.imports.append(f"from {origin[0]} import {origin[1]}{renamed}")
        elif _says_it_all(told := repr(value), value):
            self.parts.append(f"{name} = {told}")
        else:
            self._write_binding(name, value, of)

    def _own(self, value: object) -> Tool | None:
        """Return the value if it is a function or class that a home module defines, else None."""
        if isinstance(value, type) and not isinstance(value, types.GenericAlias):
            return value if value.__module__ in self.homes else None
        if isinstance(value, types.MethodType) or not callable(value):
            return None
        function = plain(value)
        return value if function is not None and function.__module__ in self.homes else None

    def _import_module(self, name: str, module: types.ModuleType, by: str) -> None:
        whole = module.__name__
        self.imports.append(f"import {whole}" if whole == name else f"import {whole} as {name}")
        for chain in dotted(by, name) if by else ():
            inner = whole + chain.removeprefix(name)
            if inner != whole and inner in sys.modules:
                self.imports.append(f"import {inner}")

    def _write_definition(self, name: str, value: Tool) -> None:
        function = None if isinstance(value, type) else plain(value)
        said = value.__name__
        if said == "<lambda>":
            raise UsageError(f"{name!r} is a lambda; write it as a function, with type hints and a docstring")
        if function is not None and function.__code__.co_freevars:
            raise UsageError(
                f"{name!r} uses {function.__code__.co_freevars[0]!r} of the function it was made in; make "
                "that an argument or a global"
            )
        if function is None and "<locals>" in value.__qualname__:
            raise UsageError(f"the class {name!r} is made in a function; make it a global")
        source = definition(value)
        if source is None:
            raise UsageError(
                f"the source of {name!r} cannot be found; put the tools into a file and give its path instead"
            )
        around = _globals_of(value.__module__) if function is None else function.__globals__
        self._write_used(source, around, besides=said, of=repr(name))
        self.parts.append(source)
        if said != name:
            self.parts.append(f"{name} = {said}")

    def _write_binding(self, name: str, value: object, of: str) -> None:
        """Write a value that is neither a definition nor a literal by the statement that makes it."""
        for home in sorted(self.homes):
            source = binding(name, home)
            if source is not None:
                break
        else:
            raise UsageError(
                f"{of} uses {name!r}, which cannot be written down as text ({type(value).__name__}); make "
                "it in a class whose methods are the tools, or put the tools into a file and give its path"
            )
        if source.startswith("from "):
            self.imports.append(source)
            return
        self._write_used(source, _globals_of(home), besides=name, of=repr(name))
        self.parts.append(source)

    def _write_used(self, source: str, around: Mapping[str, object], *, besides: str, of: str) -> None:
        for used in names_read(source):
            if used in around and used != besides and getattr(builtins, used, around) is not around[used]:
                self.define(used, around[used], of=of, by=source)


def _importable(value: object) -> tuple[str, str] | None:
    """Return the module and name from which a value can be imported, or None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    found = getattr(sys.modules.get(module), name, None)
    is_method = isinstance(found, types.MethodType) and found == value
    return (module, name) if found is value or is_method else None


def _says_it_all(told: str, value: object) -> bool:
    """Whether a value's text, read as a literal, gives an equal value of the same types."""
    try:
        return _is_same(ast.literal_eval(told), value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_same(one: object, other: object) -> bool:
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        mine, theirs = cast("dict[object, object]", one), cast("dict[object, object]", other)
        return _is_same([*mine.items()], [*theirs.items()])
    if isinstance(one, list | tuple):
        pairs = zip(cast("Sequence[object]", one), cast("Sequence[object]", other), strict=True)
        return all(_is_same(*pair) for pair in pairs)
    return True


def _globals_of(module: str) -> Mapping[str, object]:
    known = sys.modules.get(module)
    return {} if known is None else vars(known)
