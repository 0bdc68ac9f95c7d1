"""Which sessions are tasks: their length, the length of what they print, and their skills."""

from __future__ import annotations

import ast

LIBRARIES = ("numpy", "networkx", "scipy", "sympy")
MOST_LINES, MOST_CHARS, MOST_VALUE = 5, 240, 24
MOST_CALLS = 4
"""Names of called functions among the skills of a task."""
_KINDS = (bool, int, float, complex, str, list, tuple, dict, set)


def is_short(value: str) -> bool:
    """Return whether a value can be asked for: one line, short, no truth value, no address."""
    plain = value.strip()
    return (
        0 < len(plain) <= MOST_VALUE
        and "\n" not in plain
        and plain not in ("True", "False", "None")
        and "..." not in plain
        and "0x" not in plain
        and "Traceback" not in plain
    )


def shape_fault(code: str) -> str:
    """Return why a session cannot be a task, before it is executed; empty if it can."""
    if len(code) > MOST_CHARS or code.count("\n") >= MOST_LINES:
        return "it is too long"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "it is not Python"
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return "its last line is no expression"
    if len(tree.body) != code.count("\n") + 1:
        return "a line is not one statement"
    if isinstance(tree.body[-1].value, ast.Constant):
        return "its last line is a constant"
    return ""


def is_given_away(code: str, value: str) -> bool:
    """Return whether the last line is what it prints."""
    return code.rpartition("\n")[2].strip() == value


def session(code: str) -> str:
    """Return a session as the interpreter shows it."""
    return "\n".join(f">>> {line}" for line in code.split("\n"))


def skills_of(code: str, value: str) -> tuple[str, ...]:
    """Return the libraries, the functions called, the kind of value, and the number of lines."""
    tree = ast.parse(code)
    libraries = [f"library:{one}" for one in LIBRARIES if one in code] or ["library:none"]
    calls = dict.fromkeys(
        one.func.attr if isinstance(one.func, ast.Attribute) else one.func.id
        for one in ast.walk(tree.body[-1])
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute | ast.Name)
    )
    names = [f"call:{one}" for one in list(calls)[:MOST_CALLS]]
    nodes = dict.fromkeys(
        type(one).__name__.lower()
        for one in ast.walk(tree.body[-1])
        if isinstance(one, ast.BinOp | ast.Subscript | ast.ListComp | ast.Attribute | ast.Compare | ast.IfExp)
    )
    return (*libraries, *names, *nodes, f"value:{kind_of(value)}", f"lines:{len(tree.body)}")


def kind_of(value: str) -> str:
    """Return the type of a printed value, `other` if it is no literal."""
    try:
        literal = ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return "other"
    return next((kind.__name__ for kind in _KINDS if type(literal) is kind), "other")


def operations(code: str) -> int:
    """Return the number of calls and operations in a session."""
    counted = ast.Call | ast.BinOp | ast.Subscript | ast.UnaryOp | ast.comprehension
    return max(1, sum(isinstance(one, counted) for one in ast.walk(ast.parse(code))))
