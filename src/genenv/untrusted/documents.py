"""Readers of untrusted JSON, YAML and TOML that return plain JSON values of bounded size.

A short text can stand for endless data: YAML aliases multiply, and containers can be nested without end. So
every reader counts the values that it creates, and refuses more than one budget allows. The result is a tree
of JSON values: no number is infinite or NaN, every string can be encoded, no container is shared.
"""

from __future__ import annotations

import functools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from genenv.errors import UsageError, first_line
from genenv.texts import clean
from genenv.types import Json

MOST_BYTES = 32 << 20
"""Maximum size of a document."""
MOST_YAML_BYTES, MOST_TOML_BYTES = 16 << 20, 4 << 20
"""Lower limits, because these formats take longer to parse."""
MOST_VALUES = 1_000_000
"""Maximum values in a document, with aliases expanded."""
MOST_CHARS = 64 << 20
"""Maximum characters in all strings of a document, with aliases expanded."""
DEEPEST = 100
"""Maximum nesting of containers."""
_LARGEST = 1e300
"""Larger numbers count as infinite."""
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % DEEPEST)  # noqa: UP031
"""A dotted TOML key that is nested too deeply; its parsing time grows with the square of its length."""


class Unreadable(UsageError):
    """Raised if a text cannot be read as a document. The message is a sentence with the document's name."""


def plain(value: object, name: str, *, finite: bool = True) -> Json:
    """Copy parsed data as a tree of JSON values.

    Infinite numbers and NaN become null, halves of surrogate pairs are replaced, and values of other types
    become strings.

    Args:
        value: the output of any parser.
        name: the document's name in error messages.
        finite: whether infinite numbers become null; if not, they are kept.

    Raises:
        Unreadable: the data is too large, nested too deeply, or contains itself.
    """
    return _Copy(name, finite=finite).of(value, 0)


def read_json(text: str, name: str) -> Json:
    """Read JSON.

    Raises:
        Unreadable: the text is not JSON, or it is too large.
    """
    _limit_size(text, name, MOST_BYTES)
    if text.count(",") + text.count("[") + text.count("{") > 4 * MOST_VALUES:
        raise _too_many(name)
    try:
        return plain(json.loads(text), name)
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise Unreadable(f"{name} is not valid JSON: {first_line(error)}") from error


def read_toml(text: str, name: str) -> dict[str, Json]:
    """Read TOML.

    Raises:
        Unreadable: the text is not TOML, or it is too large.
    """
    _limit_size(text, name, MOST_TOML_BYTES)
    if _LONG_KEY.search(text):
        raise _too_deep(name)
    try:
        return cast("dict[str, Json]", plain(tomllib.loads(text), name, finite=False))
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise Unreadable(f"{name} is not valid TOML: {first_line(error)}") from error


def read_yaml(text: str, name: str) -> Json:
    """Read YAML 1.2 as plain data: `no`, `2026-01-05` and `18:00` are strings, tags are ignored.

    Raises:
        Unreadable: the text is not YAML, or it is too large.
    """
    import yaml  # takes a while to load, and most documents are JSON

    _limit_size(text, name, MOST_YAML_BYTES)
    try:
        events: Iterator[Any] = cast(Any, yaml).parse(clean(text), Loader=_loader())
        return plain(_Builder(name).built(events), name)
    except yaml.YAMLError as error:
        raise Unreadable(f"{name} is not valid YAML: {first_line(error)}") from error


def read_document(text: str, name: str) -> Json:
    """Read JSON, or else YAML.

    Raises:
        Unreadable: the text is neither, or it is too large.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            return read_json(text, name)
        except Unreadable as error:
            if not isinstance(error.__cause__, json.JSONDecodeError):
                raise
    try:
        return read_yaml(text, name)
    except Unreadable as error:
        if error.__cause__ is None:
            raise
        raise Unreadable(f"{name} is neither JSON nor YAML: {first_line(error.__cause__)}") from error


def as_object(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def _limit_size(text: str, name: str, most: int) -> None:
    if len(text) > most:
        raise Unreadable(f"{name} is larger than {most >> 20} MiB, which is more than is read")


def _too_many(name: str) -> Unreadable:
    return Unreadable(f"{name} stands for over {MOST_VALUES} values, which is more than is read")


def _too_long(name: str) -> Unreadable:
    return Unreadable(f"{name} stands for over {MOST_CHARS >> 20} MiB of text, which is more than is read")


def _too_deep(name: str) -> Unreadable:
    return Unreadable(f"{name} is nested too deeply to be read, or holds itself")


class _Copy:
    """Copies data within the budget."""

    def __init__(self, name: str, *, finite: bool) -> None:
        self._name, self._finite = name, finite
        self._values, self._chars = MOST_VALUES, MOST_CHARS

    def of(self, value: object, depth: int) -> Json:
        self._values -= 1
        if self._values < 0:
            raise _too_many(self._name)
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value if not self._finite or -_LARGEST < value < _LARGEST else None
        if depth >= DEEPEST:
            raise _too_deep(self._name)
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            return {self._text(str(key)): self.of(one, depth + 1) for key, one in items}
        if isinstance(value, list | tuple):
            return [self.of(one, depth + 1) for one in cast("Sequence[object]", value)]
        return self._text(str(value))  # such as dates of TOML

    def _text(self, text: str) -> str:
        self._chars -= len(text)
        if self._chars < 0:
            raise _too_long(self._name)
        return clean(text)


@dataclass(slots=True)
class _Open:
    """A YAML container whose end has not been parsed yet."""

    anchor: str | None
    is_mapping: bool
    items: list[object] = field(default_factory=list[object])
    values: int = 1
    chars: int = 0
    """Number of values and characters so far, with aliases expanded."""


_KINDS = (
    ("merge", r"^<<$", ["<"]),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"^[-+]?[0-9]+$", [*"-+0123456789"]),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", [*"-+.0123456789"]),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", [*"-+."]),
)
"""The core schema of YAML 1.2: kind, form and first letters of a scalar; hexadecimal numbers stay strings."""


class _Key(str):
    """The source text of a YAML scalar with its typed value. As a key, `no` or `200` is a string."""

    __slots__ = ("value",)
    value: object


class _Builder:
    """Builds data from the events of a YAML parser, without recursion; aliases share their target."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = MOST_VALUES
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[object, int, int]] = {}
        """Value, number of values and number of characters of each anchor."""
        self._documents: list[object] = []
        self._resolver = _loader()("")

    def built(self, events: Iterator[Any]) -> object:
        """Return the only document of a stream, or None if the stream is empty."""
        import yaml

        for event in events:
            match event:
                case yaml.ScalarEvent():
                    self._add(self._scalar(event), 1, len(event.value), event.anchor)
                case yaml.AliasEvent():
                    if event.anchor not in self._anchors:
                        raise Unreadable(
                            f"{self._name} has an alias *{event.anchor[:80]} of nothing, or of what holds it"
                        )
                    self._add(*self._anchors[event.anchor], None)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    if len(self._open) >= DEEPEST:
                        raise _too_deep(self._name)
                    self._open.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    ended = self._open.pop()
                    value = self._mapping(ended) if ended.is_mapping else [*map(_value, ended.items)]
                    self._add(value, ended.values, ended.chars, ended.anchor)
                case _:
                    pass
        if len(self._documents) > 1:
            raise Unreadable(f"{self._name} holds {len(self._documents)} documents of YAML; keep one")
        return _value(self._documents[0]) if self._documents else None

    def _add(self, value: object, values: int, chars: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = value, values, chars
        if not self._open:
            self._documents.append(value)
            return
        into = self._open[-1]
        into.items.append(value)
        into.values += values
        into.chars += chars
        if into.values > MOST_VALUES:
            raise _too_many(self._name)
        if into.chars > MOST_CHARS:
            raise _too_long(self._name)

    def _mapping(self, ended: _Open) -> dict[str, object]:
        """Return a mapping with the merged keys of `<<`; explicit keys take precedence."""
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        for key, value in zip(ended.items[::2], ended.items[1::2], strict=True):
            if not isinstance(key, str):
                raise Unreadable(f"{self._name} has a key that is no text")
            if isinstance(key, _Key) and key == "<<" and isinstance(value, dict | list):
                parts = cast("list[object]", value if isinstance(value, list) else [value])
                for part in reversed(parts):
                    found = cast("dict[str, object]", part) if isinstance(part, dict) else {}
                    self._left -= len(found)
                    if self._left < 0:
                        raise _too_many(self._name)
                    merged |= found
            else:
                own[str(key)] = _value(value)
        return {**merged, **own}

    def _scalar(self, event: Any) -> str:  # noqa: ANN401 - PyYAML has no types
        """Return a string, or a `_Key` for a scalar that is a number, a truth value or null."""
        import yaml

        text = cast(str, event.value)
        if not event.implicit[0]:
            return text
        tag = str(self._resolver.resolve(yaml.ScalarNode, text, (True, False))).removeprefix(
            "tag:yaml.org,2002:"
        )
        if tag == "str":
            return text
        key = _Key(text)
        key.value = _typed(tag, text)
        return key


def _value(value: object) -> object:
    return value.value if isinstance(value, _Key) else value


def _typed(tag: str, text: str) -> object:
    try:
        match tag:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text)
            case "float":
                number = float(text)
                return number if math.isfinite(number) else None
            case _:
                return text
    except ValueError:  # `.inf`, more digits than Python reads
        return None if text.lower().strip("+-") in (".inf", ".nan") else text


@functools.cache
def _loader() -> Any:  # noqa: ANN401 - PyYAML has no types
    """Return PyYAML's fastest parser, with the null, truth values and numbers of YAML 1.2."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        """Reads plain data."""

    Loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in _KINDS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), first)
    return Loader
