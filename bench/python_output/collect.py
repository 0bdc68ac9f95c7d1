"""Doctests of installed packages, as sessions whose last line prints a short value.

    python -m python_output.collect FILE

Only what the packages install is read; nothing of it is part of this repository. An example counts if it and
the lines that it needs fit into a few lines, and if executing it prints what its author wrote.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import importlib.metadata
import importlib.util
import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from python_output.sandbox import Sandbox
from python_output.shape import LIBRARIES, is_short, shape_fault

STDLIB = "stdlib"
PACKAGES = (STDLIB, *LIBRARIES)
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3", "turtledemo"}
_USUAL = {"np": "import numpy as np", "nx": "import networkx as nx"}
"""Names that doctests of these packages use without importing them."""


@dataclass(frozen=True, slots=True)
class Doctest:
    """One example."""

    package: str
    place: str
    """Module and object; examples of one docstring have the same place."""
    code: str
    """The session."""
    value: str
    """What its last line prints, as its author wrote it."""


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    if package == STDLIB:
        root = base = Path(sysconfig.get_path("stdlib"))
    else:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return
        root = Path(spec.submodule_search_locations[0])
        base = root.parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        if not _LEFT_OUT & set(parts):
            yield ".".join(parts).removesuffix(".__init__"), path


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and ">>>" in text:
                yield getattr(node, "name", ""), text


def _examples(package: str) -> Iterator[tuple[str, str, list[str], str, str]]:
    """Yield module, place, the lines before, the line, and the value that its author wrote."""
    parser = doctest.DocTestParser()
    for module, path in _modules(package):
        for name, text in _docstrings(path):
            try:
                examples = parser.get_examples(text)
            except ValueError:
                continue
            before: list[str] = []
            for example in examples:
                line, value = example.source.strip(), example.want.rstrip("\n")
                if is_short(value) and _is_expression(line):
                    yield module, f"{module}:{name}", list(before), line, value
                if not value:
                    before.append(line)


def _is_expression(line: str) -> bool:
    try:
        ast.parse(line, mode="eval")
    except SyntaxError:
        return False
    return "\n" not in line


def _used(tree: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def _bound(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        elif isinstance(one, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name).split(".")[0] for name in one.names}
        elif isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.arg):
            found.add(one.arg)
    return found


def _needed(before: list[str], line: str) -> list[str]:
    """Return the earlier lines on which a line depends: those that bind or may change a name it uses."""
    used, kept = _used(ast.parse(line)), list[str]()
    for earlier in reversed(before):
        tree = ast.parse(earlier)
        changes = not isinstance(tree.body[0], ast.Import | ast.ImportFrom) and _used(tree) & used
        if _bound(tree) & used or "*" in _bound(tree) or changes:
            kept.append(earlier)
            used |= _used(tree)
    return kept[::-1]


def _imports(module: str, package: str, lines: list[str]) -> list[str] | None:
    """Return imports of the names that lines use and nothing binds; None if there is a name without one."""
    tree = ast.parse("\n".join(lines))
    free = sorted(_used(tree) - _bound(tree) - set(dir(builtins)))
    found = [_USUAL[name] for name in free if name in _USUAL]
    rest = [name for name in free if name not in _USUAL]
    if "*" in _bound(tree) or not rest:
        return found
    try:
        loaded, top = importlib.import_module(module), sys.modules.get(package)
    except BaseException:  # noqa: BLE001 - some modules exit when they are imported
        return None
    for name in rest:
        if not hasattr(loaded, name):
            return None
        found.append(f"from {package if hasattr(top, name) else module} import {name}")
    return found


def _whole(module: str, package: str, before: list[str], line: str) -> str | None:
    """Return a line with all that it needs; None if a name is missing."""
    try:
        lines = [*_needed(before, line), line]
        imports = _imports(module, package, lines)
    except SyntaxError:
        return None
    return None if imports is None else "\n".join([*imports, *lines])


def collect() -> tuple[list[Doctest], Counter[str]]:
    """Return all examples of the packages that count, and how many were left out, by reason."""
    sandbox, found, left = Sandbox(LIBRARIES), dict[str, Doctest](), Counter[str]()
    for package in PACKAGES:
        print(f"{len(found)} doctests; next: {package}", file=sys.stderr)
        for module, place, before, line, value in _examples(package):
            code = _whole(module, package, before, line)
            fault = "a name is missing" if code is None else shape_fault(code)
            if code is None or fault or code in found:
                left[fault or "twice"] += 1
            elif sandbox.printed(code).get("value") != value:
                left["another value, or none"] += 1
            else:
                found[code] = Doctest(package, place, code, value)
    return list(found.values()), left


def main(file: str) -> None:
    """Collect into a file."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)  # before the minutes that collecting takes
    found, left = collect()
    versions = {one: importlib.metadata.version(one) for one in LIBRARIES}
    data = {
        "versions": {"python": sys.version.split()[0], **versions},
        "doctests": [asdict(o) for o in found],
    }
    Path(file).write_text(json.dumps(data, ensure_ascii=False, indent=0), encoding="utf-8")
    print(len(found), "doctests:", dict(Counter(one.package for one in found)), "; left out:", dict(left))


if __name__ == "__main__":
    main(sys.argv[1])
