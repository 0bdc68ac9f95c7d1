"""Tool calls in a model's text: the formats that chat templates ask for. Nothing is evaluated.

Read are Hermes and Qwen blocks, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, and replies that
are JSON altogether: an object or a list of objects, as Llama 3 (`parameters`) and Mistral (`[TOOL_CALLS]`)
write them. What is in the place of a call and cannot be read is a call all the same, with arguments that are
right nowhere: from an endpoint it would come as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast

from genenv.assistants.base import ToolCall
from genenv.texts import clean
from genenv.types import JsonObject

MAX_CHARS = 200_000
"""Longer text holds no calls."""
MAX_DEPTH = 64
"""Lists and objects inside each other; deeper ones are no arguments."""
UNREADABLE: JsonObject = {"": "arguments that cannot be read"}
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_BEFORE = re.compile(r"\A\s*(?:\[TOOL_CALLS\]|<\|python_tag\|>|```(?:json)?)")
_AFTER = re.compile(r"```\s*\Z")


def read_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The words of a reply, and its tool calls."""
    if len(text) > MAX_CHARS:
        return text, ()
    if "<tool_call>" in text:
        calls = [call for block in _BLOCK.finditer(text) for call in _block(block[1])]
        return _BLOCK.sub("", text).strip(), tuple(calls)
    bare = _AFTER.sub("", _BEFORE.sub("", text)).strip()
    calls = list(_bare(bare)) if bare[:1] in ("{", "[") else []
    return ("", tuple(calls)) if calls else (text, ())


def arguments_of(given: object) -> JsonObject:
    """A call's arguments out of JSON text or an object; `UNREADABLE` where they are neither."""
    value = _loads(given) if isinstance(given, str) else given
    if value is None or not isinstance(value, dict) or not _is_shallow(cast(object, value)):
        return UNREADABLE
    return cast(JsonObject, _cleaned(cast(object, value)))


def _block(text: str) -> Iterator[ToolCall]:
    value = _loads(text)
    for one in cast("list[object]", value) if isinstance(value, list) else [value]:
        fields = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        name = fields.get("name")
        given = fields.get("arguments", fields.get("parameters", {} if fields else None))
        yield ToolCall(name=clean(name) if isinstance(name, str) else "", arguments=arguments_of(given))


def _bare(text: str) -> Iterator[ToolCall]:
    """Calls where all of the text is JSON; other JSON is words."""
    value = _loads(text)
    for one in cast("list[object]", value) if isinstance(value, list) else [value]:
        fields = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        name, given = fields.get("name"), fields.get("arguments", fields.get("parameters"))
        if isinstance(name, str) and isinstance(given, dict | str):
            yield ToolCall(name=clean(name), arguments=arguments_of(cast(object, given)))


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_shallow(value: object) -> bool:
    """Whether lists and objects are inside each other no deeper than allowed. Does not recurse."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inside: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inside += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inside += cast("list[object]", one)
        if not inside:
            return True
        level = inside
    return False


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(inner) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_cleaned(inner) for inner in cast("list[object]", value)]
    return value
