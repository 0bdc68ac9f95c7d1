"""How calls of the apps' tools are written and read: see `genenv.domains.tools.calls`."""

from __future__ import annotations

from genenv.domains.tool_calling.toolbox import TOOLS
from genenv.domains.tools import calls
from genenv.domains.tools.calls import (
    MAX_CALLS,
    MAX_DEPTH,
    MAX_LINE_CHARS,
    MAX_NUMBER,
    MAX_REPLY_CHARS,
    Reply,
    format_calls,
    python_literal,
)
from genenv.domains.tools.settings import Style
from genenv.domains.tools.world import Call as ParsedCall

__all__ = [
    "MAX_CALLS",
    "MAX_DEPTH",
    "MAX_LINE_CHARS",
    "MAX_NUMBER",
    "MAX_REPLY_CHARS",
    "ParsedCall",
    "Reply",
    "Style",
    "format_calls",
    "parse_calls",
    "python_literal",
    "read_reply",
]

_KNOWN = {tool.name: [parameter.name for parameter in tool.parameters] for tool in TOOLS.values()}


def parse_calls(text: str, style: Style) -> list[ParsedCall]:
    """The calls of a reply; none when it is words or malformed."""
    return calls.parse_calls(text, style, _KNOWN)


def read_reply(text: str, style: Style) -> Reply:
    """Read an assistant reply. Never raises, whatever the text."""
    return calls.read_reply(text, style, _KNOWN)
