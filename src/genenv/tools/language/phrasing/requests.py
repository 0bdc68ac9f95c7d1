"""What a model is told when it is to write wordings, and when it is to say which tool one asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from genenv.tools.discover.state_values import words_of
from genenv.tools.language.wording import ARGUMENTS
from genenv.tools.worlds.base import Tool

_LONGEST_SCHEMA = 4_000
_LONGEST_LINE = 200


def writing(tool: Tool, parameters: Sequence[str], examples: Sequence[str], number: int) -> str:
    """The request for wordings of a tool.

    Args:
        tool: which.
        parameters: that may have a blank, in order.
        examples: wordings that there are.
        number: how many are wanted.
    """
    properties = {name: tool.properties[name] for name in parameters}
    schema = {**tool.parameters, "properties": properties}
    told = {"name": tool.name, "description": tool.description, "parameters": schema}
    needed = [f"{{{name}}}" for name in parameters if name in tool.required]
    others = [f"{{{name}}}" for name in parameters if name not in tool.required]
    lines = [
        "Users ask an assistant for things. It has this tool:",
        json.dumps(told, ensure_ascii=False)[:_LONGEST_SCHEMA],
        "",
        f"Write {number} ways in which a user would ask for it, one a line, each in other words. A way is a "
        "short order that begins with a verb. Values are blanks in braces, which are filled in later.",
    ]
    if needed:
        lines.append(f"Each has these blanks, once: {' '.join(needed)}")
    if others:
        lines.append(f"It may also have: {' '.join(others)}")
    if parameters:
        lines.append(f"Or it ends with a colon and {{{ARGUMENTS}}}, which stands for all values together.")
    lines.append(
        "No values, no names of tools or parameters outside blanks, no quotation marks, nothing else."
    )
    if examples:
        lines += ["These are there already:", *examples]
    return "\n".join(lines)


def naming(request: str, tools: Sequence[Tool]) -> str:
    """The question which tool a request asks for.

    Args:
        request: what a user says.
        tools: in the order in which they are listed.
    """
    listed = [f"{tool.name}: {' '.join(tool.description.split())[:_LONGEST_LINE]}" for tool in tools]
    return "\n".join(
        [
            "These are the tools of an assistant:",
            *listed,
            "",
            f"A user says: {request}",
            "",
            "Which one tool does this ask for? Answer with its name.",
        ]
    )


def named(reply: str, tools: Mapping[str, Tool]) -> str | None:
    """The tool that a reply names; None if it names none, or several without saying which.

    Args:
        reply: what the model answered.
        tools: those there are.
    """
    bare = reply.strip().strip("`\"'*_.: \n").removesuffix("()")
    if bare in tools:
        return bare
    pattern = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
    found = set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", reply)) if tools else set[str]()
    return found.pop() if len(found) == 1 else None


_LONGEST_REPLY = 100_000
_LONGEST_ANSWER_LINE = 1_000
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_MARK = re.compile(r"\s*(?:>\s*)*(?:[-*+•–—·]|\(?\d{1,4}[.):]|\(?[A-Za-z][.)])\s+")
_BLANK = re.compile(
    r"[\"'`“”‘’*_]*\$?(?:\{\{? ?([A-Za-z_][\w. -]{0,63}?) ?\}?\}|<([A-Za-z_][\w.-]{0,63})>"
    r"|\[([A-Za-z_][\w.-]{0,63})\])[\"'`“”‘’*_]*"
)
_POLITE = re.compile(
    r"(?:please|kindly|(?:can|could|would|will) you(?: please| kindly)?"
    r"|i(?: would|'d|’d) like(?: you)? to|i (?:want|need)(?: you)? to|help me(?: to)?)[\s,:]+(?=\S)",
    re.IGNORECASE,
)
_PAIRS = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’", "«": "»", "*": "*", "_": "_"}


def proposed(reply: str, parameters: Iterable[str]) -> list[str]:
    """The wordings in a reply, in order, each once.

    Args:
        reply: what the model wrote, whatever it is.
        parameters: of the tool; what looks like a blank for one becomes one.
    """
    names = {words_of(name): name for name in (*parameters, ARGUMENTS)}
    text = reply[:_LONGEST_REPLY]
    found = (_tidy(one[:_LONGEST_ANSWER_LINE], names) for one in _items(text))
    return list(dict.fromkeys(one for one in found if one))


def _items(text: str) -> list[str]:
    lines = text.splitlines()
    if fenced := _fenced(lines):
        lines = fenced
    listed = _json("\n".join(lines))
    if listed:
        return listed
    marked = [line[match.end() :] for line in lines if (match := _MARK.match(line))]
    if len(marked) > 1:
        return marked
    return [line for line in lines if not _FENCE.match(line) and not line.rstrip().endswith(":")]


def _fenced(lines: list[str]) -> list[str]:
    """The lines within fences; none if there are no fences."""
    inside, found = False, list[str]()
    for line in lines:
        if _FENCE.match(line):
            inside = not inside
        elif inside:
            found.append(line)
    return found


def _json(text: str) -> list[str]:
    """The texts of a JSON value that is all of a text, or a list within it; none if there is none."""
    start, end = text.find("["), text.rfind("]")
    for part in (text, text[start : end + 1] if 0 <= start < end else ""):
        try:
            value: object = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list | dict):
            return list(_texts(cast(object, value)))
    return []


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < 4 and isinstance(value, list | Mapping):
        held = cast("list[object] | Mapping[str, object]", value)
        for one in held.values() if isinstance(held, Mapping) else held:
            yield from _texts(one, depth + 1)


def _tidy(line: str, names: Mapping[tuple[str, ...], str]) -> str:
    """A line without quotation marks around it, `please` and a full stop; its blanks in their own form."""
    text = _BLANK.sub(lambda match: _blank(match, names), _bare(" ".join(line.split())))
    text = _bare(text)
    first = re.match(r"[^\W\d_]+", text)
    return text[0].lower() + text[1:] if first and first[0][1:].islower() else text


def _bare(text: str) -> str:
    while True:
        before = text
        text = text.strip().rstrip(",").removesuffix(".").removesuffix("!").removesuffix("?").rstrip()
        if len(text) > 1 and _PAIRS.get(text[0]) == text[-1]:
            text = text[1:-1]
        if match := _POLITE.match(text):
            text = text[match.end() :]
        if text == before:
            return text


def _blank(match: re.Match[str], names: Mapping[tuple[str, ...], str]) -> str:
    """A blank of a parameter in its own form; anything else stays as it stands."""
    inner = next(part for part in match.groups() if part)
    name = inner if inner in names.values() else names.get(words_of(inner))
    return match[0] if name is None else f"{{{name}}}"
