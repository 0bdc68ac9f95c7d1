# pyright: standard
"""What calls a reply holds: the official decoding, without its `eval`.

Source: `default_decode_ast_prompting`, `resolve_ast_by_type` and `decoded_output_to_execution_list` of
bfcl-eval's `model_handler/utils.py`. Theirs evaluates arithmetic among the arguments; here constants alone
are worked out (`syntax.folded`). A reply with any other arithmetic is `Unevaluated`, and holds no calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genenv.assistants.call_formats import UNREADABLE
from genenv.errors import first_line
from genenv.evaluation.bfcl.package import foreign_parser
from genenv.evaluation.bfcl.syntax import (
    FOREIGN_TOKENS,
    BeyondBounds,
    NeedsEvaluation,
    SyntaxRefused,
    check_depth,
    folded,
    parse,
)

Calls = list[dict[str, dict[str, Any]]]
"""`[{name: {parameter: value}}, ...]`, what the official checker reads."""

_MAX_FOREIGN = 8000
"""Characters of a reply in Java or JavaScript: their parser recurses without a bound of its own."""
_MAX_WRITTEN = 200_000
_MAX_VALUE = 2000
_MAX_BLANKS = 40
_MAX_ROWS = 12
_ROWS = re.compile(r"\s*\[\s*\[[^\[\]]*\]\s*(?:,\s*\[[^\[\]]*\]\s*)*\]")
_BLANKS = re.compile(rf"\s{{{_MAX_BLANKS}}}")


class Undecodable(ValueError):
    """The reply holds no calls in the form that was asked for."""


class NotRead(Undecodable):
    """It may hold calls, of a size that is not read here."""


class Unevaluated(Undecodable):
    """It holds calls with a value that the official decoding evaluates, as code."""

    def __init__(self, why: str, *, likely_read: bool) -> None:
        """Say why.

        Args:
            why: what would have to be evaluated.
            likely_read: whether the official evaluation would most likely give a value.
        """
        super().__init__(why)
        self.likely_read = likely_read


def calls_in_text(text: str, language: str = "python") -> Any:  # noqa: ANN401
    """The calls of a reply in text; mostly `Calls`, but in Java or JavaScript also `{}` or None, as official.

    Raises:
        Undecodable: there are none that can be read.
        NotRead: there may be some, beyond the bounds of what is read.
        Unevaluated: there are some, with a value that only evaluation gives.
    """
    text = text.strip("`\n ")
    if not text.startswith("["):
        text = "[" + text
    if not text.endswith("]"):
        text = text + "]"
    if language == "python":
        return _python_calls(text)
    return _foreign_calls(text[1:-1], language)


def _python_calls(text: str) -> Calls:
    try:
        body = parse(text.strip().strip("'"))
        elements = [body] if isinstance(body, ast.Call) else getattr(body, "elts", None)
        if elements is None or not all(isinstance(element, ast.Call) for element in elements):
            raise SyntaxRefused("it is not a list of calls")
        return _within_bounds([_call(element) for element in elements])
    except BeyondBounds as error:
        raise NotRead(first_line(error)) from error
    except NeedsEvaluation as error:
        raise Unevaluated(first_line(error), likely_read=not error.has_unknown_names) from error
    except (
        ValueError,
        TypeError,
        RecursionError,
    ) as error:  # the first also where text cannot be written again
        raise Undecodable(first_line(error)) from error


def _within_bounds(calls: Calls) -> Calls:
    """The calls, where writing them out is affordable: values that arithmetic repeats share their memory.

    Raises:
        BeyondBounds: they are much longer than a reply can be.
    """
    waiting: list[Any] = list(calls)
    size = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
        size += len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 1
        if size > _MAX_WRITTEN:
            raise BeyondBounds(f"longer than {_MAX_WRITTEN} characters when written out")
    return calls


def _call(node: ast.Call) -> dict[str, Any]:
    """Name and keyword arguments; positional ones are dropped, as officially."""
    parts: list[str] = []
    function: ast.expr = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return {".".join(reversed(parts)): {word.arg: _value(word.value) for word in node.keywords}}


def _value(node: ast.expr | None) -> Any:  # noqa: ANN401
    match node:
        case ast.Constant():
            return "..." if node.value is Ellipsis else node.value
        case ast.UnaryOp():
            return _negated(node.operand)  # whatever the operator is: an official quirk
        case ast.List():
            return [_value(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_value(element) for element in node.elts)
        case ast.Dict():
            return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.BinOp():
            return folded(node)
        case ast.Name():
            return node.id
        case ast.Call():
            return _call(node) if node.keywords else ast.unparse(node)
        case ast.Subscript():
            return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
        case _:
            raise SyntaxRefused(f"a value may not be of the form {type(node).__name__}")


def _negated(operand: ast.expr) -> Any:  # noqa: ANN401
    if not isinstance(operand, ast.Constant) or not isinstance(operand.value, (int, float, complex)):
        raise SyntaxRefused("only a number can be negated")
    return -operand.value


def _foreign_calls(text: str, language: str) -> Any:  # noqa: ANN401
    if len(text) > _MAX_FOREIGN:
        raise NotRead(f"longer than {_MAX_FOREIGN} characters")
    try:
        check_depth(text, FOREIGN_TOKENS)
        calls = foreign_parser(language)(text)
    except BeyondBounds as error:
        raise NotRead(first_line(error)) from error
    except Exception as error:  # it raises Exception itself, among others
        raise Undecodable(first_line(error)) from error
    check_foreign_values(calls)
    return calls


def check_foreign_values(calls: Any) -> None:  # noqa: ANN401
    """Refuse values of Java or JavaScript on which the official converters' patterns take exponential time.

    Raises:
        NotRead: there is one.
    """
    values = [value for call in calls or () for words in call.values() for value in words.values()]
    for value in values:
        if not isinstance(value, str):
            continue
        rows = value.count("[") > _MAX_ROWS and not _ROWS.match(value)
        if len(value) > _MAX_VALUE or rows or _BLANKS.search(value):
            raise NotRead("a value is too long or too entangled")


def well_formed(calls: Any) -> bool:  # noqa: ANN401
    """Whether this is `Calls`: the official `is_function_calling_format_output`."""
    return type(calls) is list and all(
        type(call) is dict and len(call) == 1 and type(next(iter(call.values()))) is dict for call in calls
    )


def is_empty(calls: Any) -> bool:  # noqa: ANN401
    """Whether no call was made, officially `is_empty_output`: also what is no list of calls at all."""
    return not well_formed(calls) or not calls


def commands(calls: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Decoded calls as the text that is carried out: `["cd(folder='docs')"]`.

    Raises:
        Undecodable: an argument is an empty dictionary, which the official form cannot write.
    """
    return [
        f"{name}({', '.join(f'{key}={_written(value)}' for key, value in arguments.items())})"
        for call in calls
        for name, arguments in call.items()
    ]


def native_commands(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Calls in the model's own format as the text that is carried out (`convert_to_function_call`).

    Raises:
        Undecodable: some arguments are no JSON: then no call of the reply counts, as officially.
    """
    return [
        f"{name}({','.join(f'{key}={value!r}' for key, value in readable(arguments).items())})"
        for name, arguments in calls
    ]


def readable(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call in the model's own format.

    Raises:
        Undecodable: they are what stands for arguments that are no JSON.
    """
    if arguments == UNREADABLE:
        raise Undecodable("the arguments of a call are no JSON")
    return arguments


def _written(value: Any) -> str:  # noqa: ANN401
    """The official `parse_nested_value`: a dictionary of dictionaries is taken for a call."""
    if not isinstance(value, dict):
        return repr(value)
    inner: dict[Any, Any] = value
    if not inner:
        raise Undecodable("an argument is an empty dictionary")
    if all(isinstance(part, dict) for part in inner.values()):
        name, arguments = next(iter(inner.items()))
        return f"{name}({', '.join(f'{key}={_written(part)}' for key, part in arguments.items())})"
    return "{" + ", ".join(f"'{key}': {_written(part)}" for key, part in inner.items()) + "}"
