# pyright: standard
"""What official code gives to `eval`, read as constants and literals: nothing that a model writes is run."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any

_MAX_SHOWN = 60
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
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


class NeedsEvaluation(Exception):
    """A value that the official decoding evaluates, as Python code; here nothing is."""

    def __init__(self, text: str) -> None:
        """Say what would be evaluated.

        Args:
            text: the expression.
        """
        super().__init__(f"{text[:_MAX_SHOWN]} would have to be evaluated, which is not done")
        parts = list(ast.walk(_parsed(text)))
        bound = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        bound |= {part.arg for part in parts if isinstance(part, ast.arg)}
        self.likely_read = not any(
            isinstance(part, ast.Name) and part.id not in bound and not hasattr(builtins, part.id)
            for part in parts
        )
        """Whether the official evaluation would most likely give a value: it has no unknown names."""


def constant(text: str) -> Any:  # noqa: ANN401
    """The value of arithmetic on constants, such as `2 * 3600` or `[0] * 3`.

    Raises:
        NeedsEvaluation: there are names or calls in it, a formatted string, or other than numbers, texts and
            lists of them.
    """
    try:
        return _constant(_parsed(text))
    except _NotConstant:
        raise NeedsEvaluation(text) from None


class _NotConstant(Exception):
    """A part that has no value without evaluation."""


def _constant(node: ast.expr) -> Any:  # noqa: ANN401
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_constant(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_constant(element) for element in node.elts)
        case ast.UnaryOp():
            return _OPERATIONS[type(node.op)](_constant(node.operand))
        case ast.BinOp():
            left, right = _constant(node.left), _constant(node.right)
            if isinstance(node.op, ast.Mod) and isinstance(left, (str, bytes)):
                raise _NotConstant  # formats a string
            return _OPERATIONS[type(node.op)](left, right)
        case _:
            raise _NotConstant


def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), "<string>", mode="eval").body


def call_with_literals(text: str) -> tuple[ast.expr, list[Any], dict[str, Any]]:
    """A call's function, and its arguments by position and by name.

    Raises:
        NameError: an argument is a name.
        ValueError: it is no call, or one with other arguments than literals.
        SyntaxError: it is no expression.
    """
    node = _parsed(text)
    if not isinstance(node, ast.Call):
        raise ValueError("it is not a call")
    words = {word.arg: _literal(word.value) for word in node.keywords if word.arg is not None}
    if len(words) != len(node.keywords):
        raise ValueError("arguments have to have different names")
    return node.func, [_literal(argument) for argument in node.args], words


def _literal(node: ast.expr) -> Any:  # noqa: ANN401
    if isinstance(node, ast.Name):
        raise NameError(f"name {node.id!r} is not defined")
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError("arguments have to be literals") from None
