"""Makes text from models, servers and users safe to display, and masks secrets in it.

Control characters move a terminal's cursor, right-to-left overrides reorder names, and a lone surrogate
cannot be encoded. Displayed text has escapes in their place. JSON with these escapes parses to the original
text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value."""

JsonObject: TypeAlias = Mapping[str, Json]
"""A JSON object. Specs, payloads and states are stored in this form."""

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except line ends and tabs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks of writing direction
    "\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb"  # invisible, or a line end for some programs
    "\U000e0000-\U000e007f"  # tags: an invisible alphabet
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"  # halves of characters, and what is none
    "]"
)
_HALVES = re.compile("[\ud800-\udfff]")
_USER_INFO = re.compile(r"(?<=//)[^/\s#?\"']+@")
SHORTEST_SECRET = 6
"""Shorter secrets are not masked, because they occur in words. In addresses they are masked all the same."""
MASK = "***"


def clean(text: str) -> str:
    """Replace lone surrogates, as a decoder would, so that the text can be encoded."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def inert(text: str) -> str:
    r"""Escape every character that could deceive a reader or a terminal, e.g. as `\u202e`."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def json_line(value: Json, *, indent: int | None = None) -> str:
    """Return JSON that is safe to print and to write as UTF-8; parsing it gives an equal value.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    return inert(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent))


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names with commas, and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def tallied(counts: Counter[Any]) -> str:
    """Format counts, the most frequent first: `3 leak, 1 schema`."""
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask user names and passwords in addresses, and the given secrets, in a text."""
    return _USER_INFO.sub(f"{MASK}@", without(text, (one for one in secrets if len(one) >= SHORTEST_SECRET)))


def without(text: str, secrets: Iterable[str]) -> str:
    """Mask every secret in a text, longer ones first, because one secret may contain another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) != 0x7F else "\\u007f"
