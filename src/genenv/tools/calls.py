r"""Write and parse tool calls as text, in two formats. Nothing is evaluated.

python: one call a line, `create_event(title="Dentist", date="2025-03-17", start="09:30")`. Compact, for small
models. A call that Python cannot write, of a tool `get-order` or with an argument `from`, is a block as in
json. json: Hermes and Qwen blocks, `<tool_call>\n{"name": "create_event", "arguments":
{...}}\n</tool_call>`. A third style, native, is parsed as json: the model's own format is converted to json
before a reply is read (`genenv.environments.base.Episode`).

A reply is read as calls, as words, or as malformed. Text that looks like a call and cannot be parsed is
malformed, never words, so that a broken call cannot pass for a refusal.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from genenv.tools.settings import Style
from genenv.tools.worlds.base import Call, is_plain
from genenv.types import Json

Known = Mapping[str, Sequence[str]]
"""The tools, with their parameter names in order."""

MAX_REPLY_CHARS = 20_000
"""Maximum length of a reply; a longer one is malformed."""
MAX_LINE_CHARS = 4_000
MAX_CALLS = 32
MAX_DEPTH = 8
"""Maximum nesting depth of brackets in a call."""
MAX_NUMBER = 1e15
"""Maximum absolute value of a fraction; beyond it, a float cannot distinguish neighboring integers."""
WHOLE_NUMBERS = range(-(2**63), 2**64)
"""Integers of 64 bits, such as ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed assistant reply: its calls, its words, or why it is malformed."""

    calls: tuple[Call, ...] = field(default=())
    malformed: str | None = None
    """Why the reply cannot be parsed, as the end of a sentence; None if it can be."""
    words: str = ""
    """Readable text besides or instead of calls."""


class _Unreadable(Exception):
    """Raised for text that looks like a call but is not a valid one. The message ends a sentence."""


def format_calls(calls: Iterable[Call], style: Style) -> str:
    """Return calls as text in a given style; `read_reply` reads them back unchanged."""
    return "\n".join(
        _python_call(call) if style == "python" and is_plain(call.tool, *call.args) else _json_call(call)
        for call in calls
    )


def read_reply(text: str, style: Style, known: Known) -> Reply:
    """Parse an assistant reply. Never raises, whatever the text.

    Args:
        text: the reply.
        style: the format of calls.
        known: the tools and their parameters.
    """
    if len(text) > MAX_REPLY_CHARS:
        return Reply(malformed=f"it is longer than {MAX_REPLY_CHARS} characters")
    try:
        calls, rest = _read_python(text, known) if style == "python" else _read_json(text)
        if len(calls) > MAX_CALLS:
            return Reply(malformed=f"it holds more than {MAX_CALLS} calls")
        if _looks_like_call(rest, known):
            return Reply(malformed="it holds a call that is not written as asked")
    except _Unreadable as err:
        return Reply(malformed=str(err))
    # "42" is an answer; "1." before a call is none
    said = re.search(r"[^\W\d_]{2}" if calls else r"[^\W_]", rest)
    return Reply(calls=tuple(calls), words=rest if said else "")


def python_literal(value: Json) -> str:
    """Return a JSON value as a Python literal with double-quoted strings, on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python_literal(k)}: {python_literal(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return "[" + ", ".join(map(python_literal, value)) + "]"


def _python_call(call: Call) -> str:
    args = ", ".join(f"{name}={python_literal(value)}" for name, value in call.args.items())
    return f"{call.tool}({args})"


def _json_call(call: Call) -> str:
    block = json.dumps({"name": call.tool, "arguments": dict(call.args)}, ensure_ascii=False)
    return f"<tool_call>\n{block}\n</tool_call>"


# --- reading the python style ---

_LINE_CALL = re.compile(r"\[?\s*([^\W\d]\w*)\s*\(")
_WHOLE_CALL = re.compile(r"\[?[A-Za-z_]\w*\(.*\)\]?", re.ASCII)
"""A call of any name that fills its line; "Sorry (no tool fits)" does not match."""
_INNER_CALL = re.compile(r"(?<!\w)([^\W\d]\w*)\(")


def _looks_like_call(text: str, known: Known) -> bool:
    """Whether text contains something that looks like a call; "event(s)" and "(sorry)" do not."""
    if "tool_call>" in text or re.search(r'[{,]\s*"arguments"\s*:', text):
        return True
    if any(name in known for name in re.findall(r'[{,]\s*"name"\s*:\s*"([^"]*)"', text)):
        return True
    if any(f"{name}(" in text for name in known if not is_plain(name)):
        return True
    return any(_is_tool_like(match[1], known) for match in _INNER_CALL.finditer(text))


def _is_tool_like(name: str, known: Known) -> bool:
    return name in known or (name.isascii() and "_" in name.strip("_"))


def _read_python(text: str, known: Known) -> tuple[list[Call], str]:
    calls: list[Call] = []
    words: list[str] = []
    is_python = all(is_plain(name, *parameters) for name, parameters in known.items())
    for number, part in enumerate([text] if is_python else _BLOCK.split(text)):
        if number % 2:
            calls += _json_calls(part)
        else:
            more, rest = _read_lines(part, known)
            calls += more
            words.append(rest)
    return calls, "\n".join(words)


def _read_lines(text: str, known: Known) -> tuple[list[Call], str]:
    calls: list[Call] = []
    words: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("```"):
            continue
        start = _LINE_CALL.match(stripped)
        if start is not None and (_is_tool_like(start[1], known) or _WHOLE_CALL.fullmatch(stripped)):
            calls += _python_calls(stripped, known)
        else:
            words.append(line)
    return calls, "\n".join(words)


def _python_calls(line: str, known: Known) -> list[Call]:
    """Return the calls of one line: `f(x=1)`, `f(x=1); g(y=2)` or `[f(x=1), g(y=2)]`."""
    if len(line) > MAX_LINE_CHARS or _depth(line) > MAX_DEPTH:
        raise _Unreadable("a call in it is too long or too deeply nested")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            statements = ast.parse(line).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Unreadable("a call in it is not valid Python syntax") from None
    calls: list[Call] = []
    for statement in statements:
        if not isinstance(statement, ast.Expr):
            raise _Unreadable("a line in it is Python, but not a call")
        node = statement.value
        calls += [
            _python_parsed(item, known) for item in (node.elts if isinstance(node, ast.List) else [node])
        ]
    return calls


_MARK = re.compile(r"""\\.|\"{3}|'{3}|["'()\[\]{}]""", re.DOTALL)
"""An escape, the start or end of a string, or a bracket."""


def _depth(text: str) -> int:
    """Return the maximum nesting depth of brackets outside of strings."""
    depth = deepest = 0
    quote = ""
    for mark in _MARK.findall(text):
        if quote:
            quote = "" if mark in (quote, 3 * quote) else quote
        elif mark[0] in "\"'":
            quote = mark
        elif mark in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in ")]}":
            depth -= 1
    return deepest


def _python_parsed(node: ast.expr, known: Known) -> Call:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise _Unreadable("a line in it is Python, but not a plain call")
    tool = node.func.id
    names = known.get(tool, [f"arg{i + 1}" for i in range(len(node.args))])
    if len(node.args) > len(names):
        raise _Unreadable(f"it gives {tool} more arguments than it has parameters")
    args = {name: _literal(value) for name, value in zip(names, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in args:
            raise _Unreadable(f"it gives {tool} the same argument twice or unpacks one")
        args[keyword.arg] = _literal(keyword.value)
    return Call(tool=tool, args=args)


_NAMED: dict[str, Json] = {"true": True, "false": False, "null": None, "none": None}


def _literal(node: ast.expr) -> Json:
    if isinstance(node, ast.Constant):
        return _checked(node.value)
    if isinstance(node, ast.Name) and node.id in _NAMED:
        return _NAMED[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _checked(-value if isinstance(node.op, ast.USub) else value)
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        items: dict[str, Json] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            key = _literal(key_node) if key_node is not None else None
            if not isinstance(key, str):
                raise _Unreadable("an object in it has a key that is not a string")
            items[key] = _literal(value_node)
        return items
    raise _Unreadable("an argument in it is not a literal")


def _checked(value: object) -> Json:
    """Return a scalar that JSON can hold, else raise `_Unreadable`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not (value in WHOLE_NUMBERS if isinstance(value, int) else abs(value) <= MAX_NUMBER):  # e.g. NaN
            raise _Unreadable("a number in it is out of range")
        return value
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise _Unreadable("a string in it is not valid Unicode")
        return value
    raise _Unreadable("an argument in it is not a JSON value")


# --- reading the json style ---

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _read_json(text: str) -> tuple[list[Call], str]:
    blocks = _BLOCK.findall(text)
    if not blocks and text.lstrip().startswith(("{", "[")) and text.rstrip().endswith(("}", "]")):
        blocks, rest = [text], ""  # a model may leave out the tags when it says nothing else
    else:
        rest = _BLOCK.sub(" ", text)
    return [call for block in blocks for call in _json_calls(block)], rest


def _json_calls(block: str) -> list[Call]:
    if _depth(block) > MAX_DEPTH:
        raise _Unreadable("a call in it is too deeply nested")
    try:
        value = cast(Json, json.loads(block, object_pairs_hook=_unique, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        raise _Unreadable("a call in it is not valid JSON") from None
    items = value if isinstance(value, list) else [value]
    return [_json_parsed(item) for item in items]


def _json_parsed(item: Json) -> Call:
    if not isinstance(item, Mapping) or set(item) != {"name", "arguments"}:
        raise _Unreadable('a call in it is not an object with "name" and "arguments"')
    name, arguments = item["name"], item["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise _Unreadable('a call in it has a "name" or "arguments" of the wrong type')
    return Call(tool=name, args={key: _checked_tree(value) for key, value in arguments.items()})


def _checked_tree(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _checked_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked_tree(item) for item in value]
    return _checked(value)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise ValueError("a key appears twice")
    return items


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
