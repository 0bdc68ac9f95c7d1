"""Text from models, servers and users, made harmless to show: what a reader sees is what is there.

Control characters move a terminal's cursor, right-to-left overrides turn names around, and a lone half of a
surrogate pair cannot be written at all. Shown, each stands as its escape; what is stored in JSON is equal to
what was there.
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
"""A JSON object; specs, payloads and states are stored in this form."""

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for line ends and tabs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions of writing
    "\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb"  # invisible, or a line end of some programs
    "\U000e0000-\U000e007f"  # tags: a whole alphabet that nobody sees
    "\ud800-\udfff"
    "]"
)
_HALVES = re.compile("[\ud800-\udfff]")
_USER_INFO = re.compile(r"(?<=//)[^/\s@#?\"']+@")
SHORTEST_SECRET = 6
"""Shorter ones occur in words; in addresses they are masked all the same."""
MASK = "***"


def clean(text: str) -> str:
    """Text that can be encoded: halves of surrogate pairs are replaced, as a decoder would have done."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def inert(text: str) -> str:
    r"""The text with every character that could deceive a reader or a terminal as its escape, `\u202e`."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def json_line(value: Json, *, indent: int | None = None) -> str:
    """JSON that is safe to print and to write as UTF-8; reading it gives an equal value.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    return inert(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent))


def tallied(counts: Counter[Any]) -> str:
    """What was counted, the most frequent first: `3 leak, 1 schema`."""
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without user names and passwords in addresses, and without the given secrets."""
    return _USER_INFO.sub(f"{MASK}@", without(text, (one for one in secrets if len(one) >= SHORTEST_SECRET)))


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret masked, longer ones first: one may hold another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) != 0x7F else "\\u007f"
