"""The shape of the code as a test: files that fit into a head, functions that fit onto a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "genenv"
FILES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FILE, MOST_FILES, LONGEST_FUNCTION = 600, 400, 80
"""Lines, modules, lines. A guide: one idea in 500 lines beats five modules with one importer each."""
LOOSE = 13
"""Modules at the top of the package: all others are in rooms."""


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Every function, methods and inner ones too: (its name, lines from `def` to its end)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_files_are_short() -> None:
    long = [path for path in FILES if lines(path) > LONGEST_FILE]
    assert not long, "a file that grew beyond this becomes a package"


def test_functions_are_short() -> None:
    found = [(path, *one) for path in FILES for one in functions(path.read_text(encoding="utf-8"))]
    assert not [one for one in found if one[2] > LONGEST_FUNCTION]


def test_there_are_few_modules() -> None:
    assert len(FILES) <= MOST_FILES, "a thin module belongs into its only user"


def test_few_modules_lie_loose() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= LOOSE


def test_a_function_is_measured_from_its_def_to_its_end() -> None:
    source = "@decorated(\n    1\n)\nasync def outer():\n    '''Text.'''\n\n    def inner():\n        pass\n"
    assert sorted(functions(source)) == [("inner", 2), ("outer", 5)]
