"""Adds wordings to `wordings.toml` and leaves all else in it as it was typed: order, layout, comments."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence

from genenv.tools.bundle import toml_key

_TOKEN = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|#[^\n]*|\[|\]|[^\"'#\[\]]+",
    re.DOTALL,
)
_KEY = re.compile(
    r"(?:[ \t\r\n]++|#[^\n]*+)*+(\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*=[ \t]*(?=\[)"
)


def with_more(text: str, tool: str, more: Sequence[str]) -> str:
    """The file's text with wordings added to a tool's.

    Args:
        text: lists of texts by name, as TOML that was read without error.
        tool: whose wordings they are; one that is not there yet comes last.
        more: new ones.
    """
    if not more:
        return text
    place = _list_of(text, tool)
    if place is None:
        listed = ", ".join(map(_quoted, more))
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{toml_key(tool)} = [{listed}]\n"
    start, last, end = place
    lines = re.match(r"\[[ \t]*(?:#[^\n]*)?\r?\n([ \t]*)", text[start:])
    tail = text[last:end]
    comma = "" if last == start + 1 or "," in re.sub(r"#[^\n]*", "", tail) else ","
    if lines is None:
        added = ", ".join(map(_quoted, more))
        return f"{text[:last]}{'' if last == start + 1 else ', '}{added}{text[last:]}"
    tail = tail.rstrip(" \t")
    added = "".join(f"{lines[1]}{_quoted(one)},\n" for one in more)
    return f"{text[:last]}{comma}{tail}{'' if tail.endswith(chr(10)) else chr(10)}{added}{text[end:]}"


def _list_of(text: str, tool: str) -> tuple[int, int, int] | None:
    """Where a tool's list begins, where the last text in it ends, and where its closing bracket is."""
    place = 0
    while match := _KEY.match(text, place):
        ours = tomllib.loads(f"{match[1]} = 0").popitem()[0] == tool
        start = place = match.end()
        last, depth = start + 1, 0
        while token := _TOKEN.match(text, place):
            place = token.end()
            depth += {"[": 1, "]": -1}.get(token[0], 0)
            if token[0][0] in "\"'":
                last = place
            if not depth:
                break
        if ours:
            return start, last, place - 1
    return None


def _quoted(wording: str) -> str:
    return json.dumps(wording, ensure_ascii=False)
