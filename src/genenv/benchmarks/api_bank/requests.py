"""Requests in the form of API-Bank's authors: `API-Request: [ApiName(key='value', ...)]`.

The authors read values with a regular expression that ends at the first quotation mark, so that lists of
texts and apostrophes are cut off, in their recorded requests too (31 of 399 of level 1, 10 of 135 of level 2,
10 of 245 of level 3). That is not reproduced. Recorded requests quote lists without escapes,
`attendees='['John', 'Jane']'`, which is no Python, so that a value ends here at a quotation mark that another
parameter or the end follows. Nothing is evaluated, and no parser of code is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from genenv.benchmarks.api_bank.calls import Call

_MAX_REPLY_CHARS = 20_000
_MAX_REQUEST_CHARS = 8_000
_MAX_PARAMETERS = 50
_START = re.compile(r"API-Request:\s*+\[?+\s*+(\w++)\s*+\(")
_BRACKET = re.compile(r"\[\s*+(\w++)\s*+\(")
_NAME = re.compile(r"[\s,]*+(\w++)\s*+=\s*+")
_END = re.compile(r"[\s,]*+\)")
_NEXT = r"(?=\s*+(?:,\s*+\w++\s*+=|,?\s*+\)\s*+(?:\]|$|\n)))"
"""What follows a value: a comma and another name, or the closing brackets."""
_QUOTED = {
    quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*+){quote}(?=\s*+[,)])", re.DOTALL) for quote in "'\""
}
_LOOSELY_QUOTED = {quote: re.compile(rf"{quote}(.*?){quote}{_NEXT}", re.DOTALL) for quote in "'\""}
_MARK = re.compile(r"[\[\](){},]")
_MARK_OR_TEXT = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|[\[\](){},]", re.DOTALL)
_NAMED = re.compile(r",\s*+\w++\s*+=")
_ESCAPE = re.compile(r"\\(['\"\\])")


def request_in(reply: str) -> Call | None:
    """The first request in a reply: the first after `API-Request:`, or else the first `[Name(`.

    Values are texts, as the authors' evaluation reads them, whether they are quoted or not.

    Returns:
        None where there is no request, or what stands between its brackets is not `key=value, ...`.
    """
    text = reply[:_MAX_REPLY_CHARS]
    start = _START.search(text) or _BRACKET.search(text)
    if start is None:
        return None
    parameters = _parameters(text[start.end() : start.end() + _MAX_REQUEST_CHARS])
    return None if parameters is None else Call(start[1], parameters)


def _parameters(text: str) -> Mapping[str, str] | None:
    found: dict[str, str] = {}
    at = 0
    while len(found) < _MAX_PARAMETERS:
        name = _NAME.match(text, at)
        if name is None:
            return found if _END.match(text, at) else None
        value = _value(text, name.end())
        if value is None:
            return None
        found[name[1]], at = value
    return None


def _value(text: str, at: int) -> tuple[str, int] | None:
    """A value and where it ends."""
    quote = text[at : at + 1]
    if quote in _QUOTED and quote:
        exact = _QUOTED[quote].match(text, at)
        if exact:
            return _ESCAPE.sub(r"\1", exact[1]), exact.end()
        loose = _LOOSELY_QUOTED[quote].match(text, at)
        return (loose[1], loose.end()) if loose else None
    return _bare(text, at)


def _bare(text: str, start: int) -> tuple[str, int] | None:
    """A value without quotation marks: up to the bracket that closes the request, or to the next name."""
    depth, at = 0, start
    while found := (_MARK_OR_TEXT if depth else _MARK).search(text, at):
        mark, at = found[0], found.end()
        if mark in "[({":
            depth += 1
        elif mark in "])}":
            depth -= 1
        if depth < 0 or (mark == "," and depth == 0 and _NAMED.match(text, found.start())):
            return text[start : found.start()].strip(), found.start()
    return None
