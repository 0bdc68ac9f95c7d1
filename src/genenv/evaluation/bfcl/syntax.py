# pyright: standard
"""Text of a model as Python's syntax tree, within bounds, and constant arithmetic, within bounds.

Nothing is evaluated: `ast.parse` builds a tree. A very deep one can exhaust the interpreter's own stack, so
that the depth is bounded on the text, before it is parsed.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

MAX_CHARACTERS = 50_000
"""Of a reply. The longest right answer of the benchmark has about 2,000."""
_MAX_DEPTH = 100
_MAX_BITS = 4096
_MAX_SHOWN = 60
_MAX_LETTERS = 30_000
"""Characters that text times a number may have."""
_MAX_ELEMENTS = 500
"""Elements that a list times a number may have."""

FOREIGN_TOKENS = re.compile(
    r"""
    (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    |(?P<word>(?<=\w)\s+(?=\w))
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<comma>[,;])
    |(?P<operator>[-+*/%@&|^~<>=!.:?])
    """,
    re.VERBOSE | re.DOTALL,
)
"""Of Java and JavaScript, for `check_depth`."""

_STRING = r"""
    (?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
"""
_TOKENS = re.compile(
    rf"""
    (?P<formatted>\b(?:[fF][rR]?|[rR][fF]){_STRING})
    |(?P<string>{_STRING})
    |(?P<quote>['"])
    |(?P<comment>\#[^\n]*)
    |(?P<number>\d[\w.]*)
    |(?P<lambda>\blambda\b)
    |(?P<word>\b(?:not|await|if|else|and|or|in|is)\b)
    |(?P<name>\w+)
    |(?P<open>[(\[{{])
    |(?P<close>[)\]}}])
    |(?P<comma>,)
    |(?P<operator>[-+*/%@&|^~<>=!.:])
    """,
    re.VERBOSE | re.DOTALL,
)
_CODE = re.compile(r"\{.*\}", re.DOTALL)
"""What may be code in a formatted string."""
_DEEPENING = re.compile(r"[-+*/%@&|^~<>=!.:([{]|\b(?:not|await|if|else|and|or|in|is|lambda)\b")
_UNTERMINATED = "unterminated string literal (detected at line 1) (<string>, line 1)"  # as Python says


class SyntaxRefused(ValueError):
    """The text is no expression, or one that is not read."""


class BeyondBounds(SyntaxRefused):
    """The text may be an expression, of a size that is not read here."""


class NeedsEvaluation(SyntaxRefused):
    """A value that the official decoding evaluates, as Python code; here nothing is."""

    def __init__(self, node: ast.expr) -> None:
        """Say what would be evaluated.

        Args:
            node: the expression.
        """
        super().__init__(f"{ast.unparse(node)[:_MAX_SHOWN]} would have to be evaluated, which is not done")
        parts = list(ast.walk(node))
        bound = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        bound |= {part.arg for part in parts if isinstance(part, ast.arg)}
        self.has_unknown_names = any(
            isinstance(part, ast.Name) and part.id not in bound and not hasattr(builtins, part.id)
            for part in parts
        )
        """Whether the official evaluation, too, most likely fails."""


def parse(text: str) -> ast.expr:
    """The syntax tree of an expression.

    Raises:
        SyntaxRefused: it is none.
        BeyondBounds: it is too long or too deep.
    """
    if len(text) > MAX_CHARACTERS:
        raise BeyondBounds(f"longer than {MAX_CHARACTERS} characters")
    check_depth(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python may come to refuse
            return ast.parse(text, "<string>", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise SyntaxRefused(str(error)) from error


def check_depth(text: str, tokens: re.Pattern[str] = _TOKENS) -> None:
    """Bound how deep a tree can be: operators and brackets of one stretch without commas, at all levels.

    A comma may belong to a lambda, so that what is before a lambda counts to the end. Of formatted strings
    all counts that may be code, as if without commas. From Python 3.12 on these may hold quotes of their own
    kind, by which this can be misled; the parser's own bounds, and the recursion limit, remain.

    Raises:
        SyntaxRefused: a string has no end.
        BeyondBounds: deeper than that.
    """
    levels, depth = [0], 0
    for token in tokens.finditer(text):
        kind = token.lastgroup or ""
        if kind == "quote":
            raise SyntaxRefused(_UNTERMINATED)
        if kind == "formatted":
            code = _CODE.search(token[0])
            inner = len(_DEEPENING.findall(code[0])) if code else 0
            if depth + inner > _MAX_DEPTH:
                raise BeyondBounds(f"nested deeper than {_MAX_DEPTH}")
        elif kind == "lambda":
            levels[-1], depth = 0, depth + 1
        elif kind == "comma":
            depth -= levels[-1]
            levels[-1] = 0
        elif kind == "close" and len(levels) > 1:
            depth -= levels.pop()
        elif kind in ("open", "operator", "word"):
            levels[-1] += 1
            depth += 1
            if kind == "open":
                levels.append(0)
        if depth > _MAX_DEPTH:
            raise BeyondBounds(f"nested deeper than {_MAX_DEPTH}")


_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}


def folded(node: ast.expr) -> Any:  # noqa: ANN401
    """The value of arithmetic on constants, such as `2 * 3600` or `-1.5`; lists and tuples of such too.

    Raises:
        SyntaxRefused: it has no value.
        NeedsEvaluation: there are names or calls in it, or other than numbers, texts and lists of them.
        BeyondBounds: the value would be too large.
    """
    try:
        return _folded(node)
    except _Unknown as error:
        raise NeedsEvaluation(node) from error


class _Unknown(Exception):
    """A part that has no value without evaluation."""


def _folded(node: ast.expr) -> Any:  # noqa: ANN401
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_folded(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_folded(element) for element in node.elts)
        case ast.UnaryOp():
            return _applied(_UNARY[type(node.op)], _folded(node.operand))
        case ast.BinOp():
            left, right = _folded(node.left), _folded(node.right)
            if isinstance(node.op, ast.Mod) and isinstance(left, (str, bytes)):
                raise _Unknown  # would format a string, perhaps to any width
            _check_size(node.op, left, right)
            return _applied(_BINARY[type(node.op)], left, right)
        case _:
            raise _Unknown


def _applied(function: Callable[..., Any], *values: Any) -> Any:  # noqa: ANN401
    try:
        return function(*values)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SyntaxRefused(str(error)) from error


def _check_size(operation: ast.operator, left: Any, right: Any) -> None:  # noqa: ANN401
    """Refuse what could take much time or memory."""
    match operation:
        case ast.Pow() if isinstance(left, int) and isinstance(right, int):
            large = left.bit_length() * right > _MAX_BITS
        case ast.LShift() if isinstance(left, int) and isinstance(right, int):
            large = left.bit_length() + right > _MAX_BITS
        case ast.Mult():
            large = _repeats_much(left, right) or _repeats_much(right, left)
        case _:
            large = False
    if large:
        raise BeyondBounds("the value would be too large")


def _repeats_much(sequence: Any, times: Any) -> bool:  # noqa: ANN401
    """Whether a sequence repeated would be long; lists of lists always, as they would share their parts."""
    if not isinstance(times, int):
        return False
    if isinstance(sequence, (str, bytes)):
        return len(sequence) * times > _MAX_LETTERS
    if not isinstance(sequence, (list, tuple)):
        return False
    nested = any(isinstance(part, (list, tuple)) for part in sequence)
    return nested or len(sequence) * times > _MAX_ELEMENTS
