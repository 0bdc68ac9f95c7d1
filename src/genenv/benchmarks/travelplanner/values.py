r"""Parses lists and objects in a text: JSON, Python literals, and hand-written variants by models.

Accepted beyond JSON and Python literals: keys and brackets with markdown's escapes (`"current\_city"`),
typographic quotes, doubled quotes, keys and values without quotes, unescaped quotes within a text
(`'Dunkin' Donuts, Bay'`), comments, surplus commas, missing commas at the end of a line, byte order marks and
zero-width characters.

A string ends at the first quote of its kind after which the list or object continues: with `,` and the next
key or entry, or with a closing bracket. That is JSON's rule for well-formed text. If it is not the first
quote, the string must not contain anything that looks like a key; otherwise the text is ambiguous and
refused. Text that cannot be parsed is always reported, with position and reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from genenv.types import Json

_MAX_DEPTH = 40
_MAX_STEPS = 40_000
"""The most keys, values and quotes per text, including backtracking; a plan for a week has 200."""
_LONGEST_GUESS = 1_000
"""The most characters of a string with unescaped quotes."""
_CLOSING: Final = {'"': '"', "'": "'", **dict.fromkeys("“”„", "“”"), **dict.fromkeys("‘’‚", "‘’")}
"""The closing quotes of each opening quote."""
_QUOTES = "".join(_CLOSING)
_SPACE = re.compile(
    r"(?:[\s\ufeff\u200b-\u200d\u2060]|\\(?:[nrt](?![a-z]))?|//[^\n]*+|#[^\n]*+|/\*(?:[^*]|\*(?!/)){0,500}+\*/)*+"
)
_NUMBER = re.compile(r"[+-]?\d++(?:\.\d*+)?(?:[eE][+-]?\d++)?(?=[\s,}\]\\]|//|#|\Z)")
_WORD = re.compile(r"(?:null|none|nil|undefined|nan|true|false)\b(?=[\s,}\]\\]|//|#|\Z)", re.IGNORECASE)
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False}
_BARE_KEY = re.compile(r"\*{0,2}([A-Za-z_][\w\\ -]{0,39}?)\*{0,2}[ \t]*+:")
_BARE_VALUE = re.compile(rf"[^\n{_QUOTES}{{}}\[\]]++")
_QUOTED_KEY = re.compile(rf"[{_QUOTES}]{{1,3}}[^{_QUOTES}\n:,]{{1,60}}[{_QUOTES}]{{1,3}}\s*+:")
_KEY_WITHIN = re.compile(rf"[{_QUOTES}]\s*+:|\n\s*+\w{{1,30}}\s*+:")
"""Forbidden in a string whose end is a guess."""
_OPENING = re.compile(r"[\[{]")
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])|\\(?=[^\w\s])')


class Found(NamedTuple):
    """A list or an object, and its position in the text."""

    value: Json
    start: int


@dataclass(frozen=True, slots=True)
class Unread:
    """A malformed list or object."""

    start: int
    at: int
    """The position at which parsing stopped."""
    why: str


class _Stop(Exception):
    """Raised if no value can be parsed at a position."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


class _Exhausted(Exception):
    """Raised if the limit of steps is reached."""


def values(text: str) -> Iterator[Found | Unread]:
    """Yield the outermost lists and objects of a text, parsed or malformed."""
    reader, at = _Reader(text), 0
    while (opening := _OPENING.search(text, at)) is not None:
        start = opening.start()
        try:
            value, at = reader.value(start, 0)
        except _Stop as stop:
            yield Unread(start, stop.at, stop.why)
            at = opening.end()
        except _Exhausted:
            yield Unread(start, start, "the reply has too many brackets and quotes to be read on")
            return
        else:
            yield Found(value, start)


class _Reader:
    """Parses values at positions of a text, within a limit of steps."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = _MAX_STEPS

    def value(self, at: int, depth: int, *, bare_keys: bool | None = None) -> tuple[Json, int]:
        """Return the value at a position, and its end.

        Args:
            at: the start of the value.
            depth: the number of lists and objects around it.
            bare_keys: for the value of a key, whether the object's keys have no quotes; None: not the value
                of a key.
        """
        self._step()
        text = self._text
        if at >= len(text):
            raise _Stop(at, "the text is cut off")
        if depth > _MAX_DEPTH:
            raise _Stop(at, "it is nested too deep")
        if text[at] == "[":
            return self._list(at + 1, depth)
        if text[at] == "{":
            return self._object(at + 1, depth)
        if text[at] in _CLOSING:
            return self._string(at, bare_keys)
        if (number := _NUMBER.match(text, at)) is not None:
            return _number(number[0], at), number.end()
        if (word := _WORD.match(text, at)) is not None:
            return _WORDS.get(word[0].lower()), word.end()
        if bare_keys is None:
            raise _Stop(at, "it is no list")
        return self._bare(at)

    def _list(self, at: int, depth: int) -> tuple[Json, int]:
        entries: list[Json] = []
        at = self._space(at)
        while not self._text.startswith("]", at):
            entry, at = self.value(at, depth + 1)
            entries.append(entry)
            at = self._next(at, "]")
        return entries, at + 1

    def _object(self, at: int, depth: int) -> tuple[Json, int]:
        entries: dict[str, Json] = {}
        at = self._space(at)
        bare = _BARE_KEY.match(self._text, at) is not None
        while not self._text.startswith("}", at):
            key, at = self._key(at)
            value, at = self.value(self._space(at), depth + 1, bare_keys=bare)
            entries[key] = value
            at = self._next(at, "}")
        return entries, at + 1

    def _next(self, at: int, closing: str) -> int:
        """Return the position of the next entry, or of the closing bracket."""
        after = self._space(at)
        if self._text.startswith(",", after):
            return self._space(after + 1)
        if self._text.startswith(closing, after) or (closing == "}" and "\n" in self._text[at:after]):
            return after
        why = "the text is cut off" if after >= len(self._text) else f"a comma or {closing} is missing"
        raise _Stop(after, why)

    def _key(self, at: int) -> tuple[str, int]:
        """Return a key, and the start of its value."""
        self._step()
        bare = _BARE_KEY.match(self._text, at)
        if bare is not None:
            return bare[1], bare.end()
        if self._text[at : at + 1] not in _CLOSING or at >= len(self._text):
            raise _Stop(at, "the text is cut off" if at >= len(self._text) else "a key is missing")
        opening = self._text[at]
        for count, end in enumerate(self._quotes(at + 1, _CLOSING[opening])):
            raw, after = self._text[at + 1 : end], self._space(end + 1)
            if self._text.startswith(":", after) and (count == 0 or not _KEY_WITHIN.search(raw)):
                key = _unescaped(raw, opening)
                return key if count == 0 else _bared(key), after + 1
            if raw.strip(_QUOTES) and self._text[end + 1 : end + 2] not in (*_CLOSING,):
                break
        raise _Stop(at, "a key has no certain end")

    def _string(self, at: int, bare_keys: bool | None) -> tuple[str, int]:
        """Return a quoted string and its end."""
        opening = self._text[at]
        line_end = self._text.find("\n", at)
        for count, end in enumerate(self._quotes(at + 1, _CLOSING[opening])):
            if count == 0 and 0 <= line_end < end and self._ends(line_end, bare_keys):
                break
            if not self._ends(end + 1, bare_keys, certain=count == 0):
                continue
            raw = self._text[at + 1 : end]
            if count == 0:
                return _unescaped(raw, opening), end + 1
            if len(raw) > _LONGEST_GUESS or _KEY_WITHIN.search(raw):
                break
            return _bared(_unescaped(raw, opening)), end + 1
        if line_end >= 0 and self._ends(line_end, bare_keys):
            raw = self._text[at + 1 : line_end]
            if not re.search(f"[{_CLOSING[opening]}]", raw):
                return _unescaped(raw.rstrip().removesuffix(","), opening), line_end
        raise _Stop(at, "a text has no certain end")

    def _quotes(self, at: int, closing: str) -> Iterator[int]:
        """Yield positions of quotes that may close a string; the first may be anywhere in the reply."""
        pattern, most = _UNESCAPED[closing], len(self._text)
        while (found := pattern.match(self._text, at, most)) is not None:
            self._step()
            yield found.end() - 1
            most = min(len(self._text), max(at, found.end()) + _LONGEST_GUESS)
            at = found.end()

    def _ends(self, at: int, bare_keys: bool | None, *, certain: bool = False) -> bool:
        """Return whether the list or object continues or ends after a quote; `certain`: the first quote."""
        after = self._space(at)
        rest = self._text[after : after + 1]
        if bare_keys is None:
            if rest != ",":
                return rest == "]"
            entry = self._space(after + 1)
            head = self._text[entry : entry + 1]
            known = _WORD.match(self._text, entry) or _NUMBER.match(self._text, entry)
            return head in ("]", "[", "{") or (head != "" and head in _CLOSING) or known is not None
        if rest == "}":
            return True
        line_ends = "\n" in self._text[at:after]
        if rest != "," and not line_ends:
            return False
        key = self._space(after + 1) if rest == "," else after
        if certain and rest == "," and self._text[key : key + 1] in (*_CLOSING, "}"):
            return True
        if self._text.startswith("}", key) or _QUOTED_KEY.match(self._text, key):
            return True
        return bare_keys and _BARE_KEY.match(self._text, key) is not None

    def _bare(self, at: int) -> tuple[Json, int]:
        """Parse a value without quotes, up to the line's end, the bracket, or the next key's comma."""
        found = _BARE_VALUE.match(self._text, at)
        text = "" if found is None else found[0].rstrip()
        stop = self._text[at if found is None else found.end() :][:1]
        whole = stop == "\n" or (stop == "}" and not _BARE_KEY.search(text))
        if not text.strip(", ") or not (whole or (stop in _CLOSING and stop and text.endswith(","))):
            raise _Stop(at, "a value has no quotes and no certain end")
        return text.removesuffix(",").strip(), at + len(text.removesuffix(","))

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        end = at if found is None else found.end()
        self._left -= (end - at) // 64  # a comment may extend to the end of the text
        return end

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Exhausted


_UNESCAPED = {
    closing: re.compile(rf"[^\\{closing}]*+(?:\\[\s\S][^\\{closing}]*+)*+[{closing}]")
    for closing in set(_CLOSING.values())
}
"""The pattern of the text up to the first unescaped closing quote, by the closing quotes."""


def _number(text: str, at: int) -> Json:
    try:
        return json.loads(text.removeprefix("+").removesuffix("."))
    except ValueError as error:  # 007, or more digits than Python reads
        raise _Stop(at, "a number is none") from error


def _unescaped(raw: str, opening: str) -> str:
    """Return the value of a quoted string.

    Between single quotes, only a backslash before a quote is removed, as Python prints escapes unlike JSON.
    """
    if opening == "'":
        return raw.replace("\\'", "'")
    if opening != '"':  # typographic quotes come with typographic apostrophes
        return raw.replace("’", "'").replace("‘", "'")
    try:
        said = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        said = _ESCAPE.sub(lambda match: json.loads(f'"{match[0]}"') if match[1] else "", raw)
    return str(said)


def _bared(text: str) -> str:
    """Remove pairs of quotes around a text."""
    while len(text) > 1 and text[0] in _CLOSING and text[-1] in _CLOSING[text[0]]:
        text = text[1:-1]
    return text
