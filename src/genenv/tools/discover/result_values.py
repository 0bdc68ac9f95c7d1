"""What tools say as a source of values: fields in lines of text, and what readers find of a state.

A state may not show what a tool wants: the branches of a repository stand in no file of that name, and the
state of a service cannot be seen at all. A tool that reads tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from genenv.tools.discover.recipes import Recipe
from genenv.tools.discover.state_values import ANY, KEY, leaves
from genenv.types import Json

SAID = "()."
"""Between the tool and the kind of what it finds: `list_branches().#`."""
_LINE = re.compile(r"\s*([A-Za-z][\w -]{0,30}?):[ \t]+(\S.*?)\s*")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,14})")
_ITEM = re.compile(r"[\s*+•-]*(\S{1,64})\s*")
_LONGEST = 80
_LEAST_FIELDS = 2


def read(result: Json) -> Json:
    """A result as its fields: a text of lines `name: value` is a record, or a list of them."""
    if isinstance(result, str):
        return _records(result) or result
    if isinstance(result, Mapping):
        return {name: read(one) for name, one in result.items()}
    return [read(one) for one in result] if isinstance(result, list) else result


def _records(text: str) -> Json:
    """Its records; None if there is a line that is no field. A first line `heading:` is none."""
    records: list[dict[str, Json]] = [{}]
    for number, line in enumerate(line for line in text.splitlines() if line.strip()):
        match = _LINE.fullmatch(line)
        if match is None:
            if number == 0 and line.rstrip().endswith(":"):
                continue
            return None
        name, value = match[1], match[2]
        if name in records[-1]:
            records.append({})
        records[-1][name] = int(value) if _WHOLE.fullmatch(value) else value
    if sum(map(len, records)) < _LEAST_FIELDS:
        return None
    return cast(Json, records[0] if len(records) == 1 else records)


def said(tool: str, results: Iterable[Json]) -> dict[str, list[Json]]:
    """The single values in what a tool found, by kind."""
    found: dict[str, dict[str, Json]] = {}
    for result in results:
        for kind, value in _values(read(result)):
            found.setdefault(kind_said(tool, kind), {}).setdefault(repr(value), value)
    return {kind: list(values.values()) for kind, values in found.items()}


def _values(result: Json) -> Iterator[tuple[str, Json]]:
    for kind, values in leaves(result).items():
        named = plain_kind(kind)
        for value in values:
            if isinstance(value, str) and not named:
                yield from ((KEY, word) for word in _items(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield named or KEY, value
            elif isinstance(value, str) and value.strip() and "\n" not in value and len(value) <= _LONGEST:
                yield named, value


def _items(text: str) -> list[str]:
    """The lines of a text that are a word each, as lists of names are printed."""
    return [match[1] for line in text.splitlines() if (match := _ITEM.fullmatch(line))]


def kind_said(tool: str, kind: str) -> str:
    """How a kind of a tool's result is called as a source of values."""
    return f"{tool}{SAID}{plain_kind(kind)}"


def plain_kind(kind: str) -> str:
    """A kind without its lists: `*.commit` of a list is `commit` of its only record."""
    return ".".join(part for part in kind.split(".") if part != ANY)


def source_of(way: str) -> str | None:
    """The tool that tells values of a kind; None: the state holds them."""
    tool, mark, _ = way.partition(SAID)
    return tool if mark else None


def sources_of(recipe: Recipe) -> list[str]:
    """The tools that tell values of a recipe's arguments."""
    return [source for way in recipe.ways.values() if (source := source_of(way)) is not None]
