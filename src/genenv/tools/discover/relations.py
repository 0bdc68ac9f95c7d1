"""Relations between records of a state: which ids belong together, as one record holds the id of the other.

In `{"customers": {"C1": {"line_ids": ["L1"]}}, "lines": {"L1": {"plan": "basic"}}}` the customer C1 holds the
id of the line L1. A tool that takes both is rarely meant for a line of another customer, though it may not
check it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from genenv.tools.discover.state_values import ANY, KEY, NAMES, NAMING, records, refers, words_of
from genenv.types import Json

Slot = tuple[str, str]
"""The name of an argument, and the source of its values."""
Pair = tuple[Json, Json]
"""An id of one record, and an id of another."""
_LONGEST = 80
"""Maximum length in characters of an id."""


class Records:
    """The records of a state, and how they are related; computed on first use."""

    def __init__(self, state: Json = None) -> None:
        self._state = state
        self._related: dict[tuple[Slot, Slot], list[Pair]] = {}

    @cached_property
    def by_kind(self) -> Mapping[str, Sequence[Mapping[str, Sequence[Json]]]]:
        """The records by kind; each record is a mapping of kinds to its values."""
        return records(self._state)

    @cached_property
    def _ids(self) -> Mapping[str, Mapping[str, set[str]]]:
        """The values of each field by the kind of its records, as texts; only of fields that may hold ids."""
        found: dict[str, dict[str, set[str]]] = {}
        for kind, alike in self.by_kind.items():
            fields: dict[str, set[str]] = {}
            for record in alike:
                for name, values in record.items():
                    fields.setdefault(name, set()).update(map(_text, values))
            found[kind] = {name: held for name, held in fields.items() if "" not in held}
        return found

    def related(self, one: Slot, other: Slot, values: Mapping[str, Sequence[Json]]) -> list[Pair]:
        """Return the pairs of ids of two arguments of which one record holds the id of the other.

        Args:
            one: an argument and the source of its values.
            other: another one.
            values: the values by source; always the same for a source, as results are cached.
        """
        key = one, other
        if key not in self._related:
            self._related[key] = self._pairs(one, other, values) if _is_id(one) and _is_id(other) else []
        return self._related[key]

    def _pairs(self, one: Slot, other: Slot, values: Mapping[str, Sequence[Json]]) -> list[Pair]:
        found: dict[str, Pair] = {}
        wanted = [{_text(value) for value in values.get(way, ())} for _, way in (one, other)]
        for kind, fields in self._ids.items():
            firsts, seconds = _holding(fields, one, wanted[0]), _holding(fields, other, wanted[1])
            own = self._own(kind, (one[1], other[1]))
            for first in firsts:
                for second in seconds:
                    if len(own & {first, second}) != 1 or first == second:
                        continue
                    for record in self.by_kind[kind]:
                        pairs = [(a, b) for a in record.get(first, ()) for b in record.get(second, ())]
                        found |= {repr(pair): pair for pair in pairs}
        return list(found.values())

    def _own(self, kind: str, ways: Collection[str]) -> set[str]:
        """Return the fields that are the id of their record: each record has one, and no two have the same.

        The name of the table says which they are, or it is the key; else it is where an argument is from.
        """
        single = [
            name
            for name, held in self._ids[kind].items()
            if len(held) == len(self.by_kind[kind])
            and all(len(record.get(name, ())) == 1 for record in self.by_kind[kind])
        ]
        key, noun = f"{kind.removesuffix(ANY)}{KEY}", _noun(f"{kind}.{KEY}")
        inside = [name for name in single if name.rpartition(".")[0] == kind]
        own = {name for name in single if name == key or (name in inside and _noun(name) == noun)}
        return own or {name for name in inside if name in ways}


def _holding(fields: Mapping[str, set[str]], slot: Slot, values: set[str]) -> list[str]:
    """Return the fields that hold ids of the records that an argument stands for.

    Their names say so, or their values do: texts that are all among those of the argument. Of several fields,
    those that are called like the argument are returned.
    """
    nouns = {_noun(slot[0]), _noun(slot[1])} - {""}
    found = [
        name
        for name, held in fields.items()
        if not held.isdisjoint(values)
        and (
            _noun(name) in nouns or ((held <= values or values <= held) and not all(map(str.isdecimal, held)))
        )
    ]
    alike = [name for name in found if words_of(_stem(name).rpartition(".")[2]) == words_of(slot[0])]
    return alike or found


def _is_id(slot: Slot) -> bool:
    """Whether the values of an argument come from ids of records."""
    return refers(_stem(slot[1].rstrip(")")))


def _stem(kind: str) -> str:
    """Return a kind without the lists at its end."""
    return _stem(kind[: -len(ANY) - 1]) if kind.endswith(f".{ANY}") else kind


def _noun(kind: str) -> str:
    """Return the word for the records whose ids a kind holds: `line` for `customers.*.line_ids.*`."""
    *above, last = [part for part in _stem(kind).split(".") if part != ANY] or [""]
    words = [] if last in (KEY, NAMES) else [word for word in words_of(last) if word not in NAMING]
    return next(reversed(words or words_of(above[-1] if above else "")), "")


def _text(value: Json) -> str:
    """Return an id as a text, as keys in JSON are; empty for what is no id."""
    is_id = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value) if is_id and len(str(value)) <= _LONGEST else ""
