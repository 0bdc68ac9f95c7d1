"""Infer mock tables from an OpenAPI document: its resources, and what each operation does to them.

Paths are read by REST conventions: `/orders` is a table, `/orders/{orderId}` one of its records,
`/orders/{orderId}/items` a table whose records belong to an order, and a POST to `/orders/{orderId}/cancel`
an action on a record. An operation that does not fit these conventions is left out with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from genenv.tools.discover.state_values import singular, words_of
from genenv.tools.language.words import VERBS
from genenv.tools.worlds.openapi.document import Operation, is_blank
from genenv.tools.worlds.openapi.shapes import (
    IDS,
    KEYS,
    OF_A_REFERENCE,
    OF_THE_PROTOCOL,
    Answer,
    Fields,
    answer_of,
    fields_of,
    is_fixed,
    is_reference,
    one_of,
    plain,
    properties_of,
)

_ALIKE = 0.6
"""Minimum share of common fields for two records to be of the same table."""
_USUAL = frozenset(map(plain, (*KEYS, *OF_A_REFERENCE, "description", "status", "created_at", "updated_at")))
"""Fields that are common in records of all kinds."""
_BOUNDS = ("minimum", "maximum", "pattern", "format", "minLength", "maxLength", "enum", "multipleOf")
"""Keywords of a path parameter's schema that also restrict the key field."""

Stem = tuple[str, ...]
"""A path up to the word that names a table, with `{}` for each placeholder."""

Owner = tuple[str, str]
"""A path parameter, and the table of the record that it names; empty if no table has it."""


class Does(StrEnum):
    """What an operation does to a table."""

    LIST = "list"
    CREATE = "create"
    READ = "read"
    UPDATE = "update"
    DELETE = "delete"
    READ_PART = "read part"
    SET_PART = "set part"


@dataclass(slots=True, kw_only=True)
class Table:
    """The records of a resource: their key, fields and links to other tables."""

    name: str
    word: str
    """The part of the path that names the records."""
    key: str
    """The field that identifies a record."""
    fields: dict[str, dict[str, Any]]
    """The schema of each field."""
    required: set[str] = field(default_factory=set[str])
    """Fields that a response must have."""
    named: tuple[str, ...] = ()
    """Path parameters that identify a record."""
    given: bool = False
    """Whether the caller chooses the key of a new record."""
    first: int = 100
    """Lower bound of integer keys, if the schema allows it; each table has different keys."""
    owners: dict[Owner, str] = field(default_factory=dict[Any, str])
    """For each owner of records in a path, the field that holds the owner's key."""
    parents: dict[str, str] = field(default_factory=dict[str, str])
    """Fields that hold the key of a record's owner, with the owner's table."""
    refers: dict[str, str] = field(default_factory=dict[str, str])
    """Other fields that hold keys of a table, with that table."""

    @property
    def links(self) -> Mapping[str, str]:
        """All fields that hold keys of tables, with the tables."""
        return {**self.refers, **self.parents}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An operation as an action on a table or a record."""

    operation: Operation
    does: Does
    table: str
    key: str | None = None
    """The parameter that identifies the record."""
    parents: Mapping[str, str] = field(default_factory=dict[str, str])
    """For other path parameters, which name owners: the record's field that holds the owner's key."""
    above: Mapping[str, Owner] = field(default_factory=dict[str, Owner])
    """For the same parameters, the owner."""
    part: str = ""
    """For `READ_PART` and `SET_PART`, the field of the record."""
    sent: Fields = field(default_factory=dict[str, Any])
    """Fields of the request body."""
    answer: Answer | None = None
    """The declared response; None if the document declares none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The target of a path: a table, or a record in it."""

    stem: Stem
    blanks: tuple[str, ...]
    """Placeholders after the word that names the table; these identify a record."""


class Resources:
    """The tables and actions inferred from the operations of a document.

    Args:
        operations: all operations of the document.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.tables: dict[str, Table] = {}
        self.actions: list[Action] = []
        self.left_out: dict[str, str] = {one.name: one.problem for one in operations if one.problem}
        paths = {(one.method, one.path) for one in operations}
        for one in operations:
            other = f"/{'/'.join(one.segments)}"
            if other != one.path and (one.method, other) in paths:
                self.left_out[one.name] = f"it is {other} with another ending"
        usable = [one for one in operations if one.name not in self.left_out]
        self._references = _references(usable)
        self._blanks = _numbers_of_blanks(usable)
        self._made_at = {_stem(one.segments) for one in usable if _makes(one)}
        self._names: dict[Stem, str] = {}
        self._shown: dict[Stem, set[str]] = {}
        self._places: dict[str, _Place | None] = {}
        for named in (True, False):  # paths of identifiable records come first; a search may list these, too
            some = [one for one in usable if one.segments and self._is_named(one) is named]
            self._places |= {one.name: self._place(one) for one in some}
            self._assign(some)
        own: dict[str, list[tuple[Operation, _Place]]] = {name: [] for name in self._names.values()}
        for one in usable:
            if place := self._places.get(one.name):
                own[self._names[place.stem]].append((one, place))
        for name in own:
            self.tables[name] = self._table(name, own[name])
        self._called: dict[str, list[str]] = {}
        for number, table in enumerate(self.tables.values(), 1):
            table.first *= number
            self._belonging(table, own[table.name])
            one = plain(singular(table.word.lower()))
            for way in dict.fromkeys((one, f"{one}id", f"{one}{plain(table.key)}", f"{one}uuid")):
                self._called.setdefault(way, []).append(table.name)
        for table in self.tables.values():
            table.refers = {
                name: other
                for name, schema in table.fields.items()
                if name not in table.parents and name != table.key
                if (other := self._referred(name, schema)) is not None
            }
        for one in usable:
            try:
                self.actions.append(self._action(one))
            except _NoAction as error:
                self.left_out[one.name] = str(error)

    # paths to tables

    def _place(self, operation: Operation) -> _Place | None:
        """Return the table or record that a path stands for, or None."""
        segments = operation.segments
        blanks = _last_blanks(segments)
        words = segments[: len(segments) - len(blanks)]
        if not words or (not blanks and not self._is_table(operation)):
            return None
        stem = _stem(words)
        if blanks and len(blanks) != self._blanks.get(stem, 1):
            return None
        return _Place(stem, tuple(one[1:-1] for one in blanks))

    def _is_named(self, operation: Operation) -> bool:
        """Whether a path, or a longer path that continues it, identifies a record."""
        return is_blank(operation.segments[-1]) or _stem(operation.segments) in self._blanks

    def _is_table(self, operation: Operation) -> bool:
        """Whether a path that ends in a word is a table: its records are identified, listed or created."""
        *before, last = operation.segments
        known_word = any(stem[-1] == last for stem in self._names) and operation.method == "get"
        if self._is_named(operation) or _stem(operation.segments) in self._made_at or known_word:
            return True
        if _acts(last) or not (_is_several(last) or not before):
            return False
        answer = self._answer(operation, last, listing=True)
        if operation.method != "get" or answer is None or not answer.many:
            return False
        known = [name for stem, name in self._names.items() if stem[-1] in before]
        return not any(_alike(answer, self._known_fields(name)) for name in known)

    def _known_fields(self, name: str) -> set[str]:
        return {one for stem, other in self._names.items() if other == name for one in self._shown[stem]}

    def _assign(self, operations: Sequence[Operation]) -> None:
        """Assign a table to each path; paths with the same last word and similar records share one."""
        for one in operations:
            if (place := self._places[one.name]) is not None:
                answer = self._answer(one, place.stem[-1], listing=one.method == "get")
                shown = answer.fields if answer is not None and one.method in ("get", "post") else ()
                self._shown.setdefault(place.stem, set()).update(map(plain, shown))
        for stem, shown in self._shown.items():
            if stem in self._names:
                continue
            same_word = [name for other, name in self._names.items() if other[-1] == stem[-1]]
            known = next((name for name in same_word if _same(shown, self._known_fields(name))), None)
            words = [one for one in stem if one != "{}"]
            ways = ("_".join(words[-n:]) for n in range(1, len(words) + 1))
            taken = {*self._names.values()}
            self._names[stem] = known or next((one for one in ways if one not in taken), "/".join(stem))

    def _answer(self, operation: Operation, word: str, *, listing: bool) -> Answer | None:
        listing = listing and not is_blank(operation.segments[-1])
        return answer_of(operation.result, word, self._references, listing=listing)

    def _sent(self, operation: Operation, word: str) -> dict[str, Any]:
        return fields_of(operation.body, word, self._references)

    # tables

    def _table(self, name: str, own: Sequence[tuple[Operation, _Place]]) -> Table:
        word = next(stem for stem, other in self._names.items() if other == name)[-1]
        fields: dict[str, dict[str, Any]] = {}
        required: set[str] = set()
        answers = [
            self._answer(one, word, listing=one.method == "get")
            for one, _ in sorted(own, key=lambda pair: (len(pair[1].stem), _tells_most(pair[0])))
        ]
        for answer in answers:
            for field_name, one in answer.fields.items() if answer else ():
                fields.setdefault(field_name, one.schema)
                required |= {field_name} if one.required else set()
        bodies = [(one, self._sent(one, word)) for one, _ in own if one.method in ("post", "put", "patch")]
        for _, sent in bodies:
            for field_name, one in sent.items():
                fields.setdefault(field_name, one.schema)
        fields = {one: inner for one, inner in fields.items() if one not in OF_THE_PROTOCOL}
        asked = [
            (place.blanks[-1], p.schema)
            for one, place in own
            if place.blanks
            for p in one.parameters
            if p.name == place.blanks[-1]
        ]
        blank, schema = asked[0] if asked else ("", {})
        key = _key(word, blank, schema, fields)
        fields[key] = {**({"type": schema.get("type", "string")}), **fields.get(key, {})}
        for _, schema in asked:
            fields[key] |= {one: schema[one] for one in _BOUNDS if one in schema}
        posted = [sent for one, sent in bodies if one.method == "post" and not _only_names(sent, key)]
        spoken = words_of(key)[-1:] and words_of(key)[-1] in ("username", "name", "slug", "code")
        given = any(key in sent and (sent[key].required or spoken) for sent in posted)
        named = tuple({place.blanks[-1]: None for _, place in own if place.blanks})
        return Table(
            name=name, word=word, key=key, fields=fields, required=required, named=named, given=given
        )

    def _belonging(self, table: Table, own: Sequence[tuple[Operation, _Place]]) -> None:
        """Record the owners of a table's records, from the paths that lead to the table."""
        for one, place in own:
            for parameter, parent, schema in self._above(one, place):
                linked = self._link(table, parameter, parent)
                table.owners.setdefault((parameter, parent), linked)
                if parent:
                    schema = self.tables[parent].fields[self.tables[parent].key]
                    table.parents[linked] = parent
                table.fields.setdefault(linked, schema)

    def _above(self, operation: Operation, place: _Place) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the path parameters that identify owners, each with the owner's table and its schema."""
        segments = operation.segments
        schemas = {p.name: p.schema for p in operation.parameters}
        named = place.blanks[-1:]
        for i, one in enumerate(segments):
            parameter = one[1:-1]
            if not is_blank(one) or (i == len(segments) - 1 and (parameter,) == named):
                continue
            before = segments[:i]
            run = len(_last_blanks(before)) + 1
            stem = _stem(before[: len(before) - run + 1])
            parent = self._names.get(stem, "") if run == self._blanks.get(stem, 1) else ""
            yield parameter, parent, dict(schemas.get(parameter, {"type": "string"}))

    def _link(self, table: Table, parameter: str, parent: str) -> str:
        """Return the field that holds an owner's key: a field of that name, or a new one."""
        if (parameter, parent) in table.owners:
            return table.owners[parameter, parent]
        single = singular(self.tables[parent].word) if parent else ""
        named = {plain(parameter), *(plain(f"{single}_{one}") for one in ("id", "gid", "uuid", "key"))}
        named -= {plain(one) for one in KEYS}
        for name, schema in table.fields.items():
            if plain(name) in named and name != table.key and schema.get("type") in ("string", "integer"):
                return name
        if plain(parameter) in {plain(one) for one in KEYS} or parameter in table.fields:
            return f"{single or singular(table.word)}_{parameter}"
        return parameter

    def _referred(self, name: str, schema: Mapping[str, Any]) -> str | None:
        """Return the table to whose records a field refers, or None."""
        if schema.get("type") not in ("string", "integer"):
            return None
        for other in self._called.get(plain(name), ()):
            table = self.tables[other]
            is_word = plain(name) == plain(singular(table.word.lower()))
            named = not is_word or plain(name) in map(plain, table.named) or _says_id(schema)
            if named and table.fields[table.key].get("type", "string") == schema.get("type"):
                return other
        return None

    # actions

    def _action(self, operation: Operation) -> Action:
        place = self._places.get(operation.name)
        if _repeats(operation.segments):
            raise _NoAction("its path has two blanks of one name")
        if place is not None and place.blanks:
            return self._on_record(operation, place)
        if place is not None:
            return self._on_table(operation, place)
        *before, last = operation.segments or ("",)
        blanks = _last_blanks(before)
        stem = _stem(before[: len(before) - len(blanks)])
        if blanks and stem in self._names and len(blanks) == self._blanks.get(stem, 1):
            return self._on_part(operation, _Place(stem, tuple(one[1:-1] for one in blanks)))
        answer = self._answer(operation, last, listing=True) if operation.segments else None
        if operation.method == "get" and answer is not None and answer.many:
            for stem, name in self._names.items():
                if stem[-1] in operation.segments and _alike(answer, self._known_fields(name)):
                    return self._made(operation, Does.LIST, _Place(stem, ()), answer=answer)
        what = f"{operation.method.upper()} {operation.path}"
        raise _NoAction(f"{what} is about no records that this document lists or names")

    def _made(self, operation: Operation, does: Does, place: _Place, **more: Any) -> Action:  # noqa: ANN401
        """Build an action on a table or a record in it."""
        name = self._names[place.stem]
        table = self.tables[name]
        named = more.get("named", place.blanks[-1:])
        all_above = self._above(operation, _Place(place.stem, named))
        above = {one: (one, parent) for one, parent, _ in all_above if (one,) != named}
        parents = {one: self._link(table, *owner) for one, owner in above.items()}
        word = operation.segments[-1] if does is Does.READ_PART else table.word
        listing = does in (Does.LIST, Does.READ_PART)
        return Action(
            operation=operation,
            does=does,
            table=name,
            key=more.get("key") or (place.blanks[-1] if place.blanks else None),
            parents=parents,
            above=above,
            part=more.get("part", ""),
            sent=self._sent(operation, word),
            answer=more.get("answer") or self._answer(operation, word, listing=listing),
        )

    def _on_record(self, operation: Operation, place: _Place) -> Action:
        does = {"get": Does.READ, "delete": Does.DELETE}.get(operation.method, Does.UPDATE)
        made = self._made(operation, does, place)
        if does is Does.UPDATE and not made.sent:
            raise _NoAction("what it does to a record is not said")
        if does is Does.DELETE and any(
            len(stem) < len(place.stem) for stem, name in self._names.items() if name == made.table
        ):
            raise _NoAction("it may delete a record, or only take it from what it belongs to")
        return made

    def _on_table(self, operation: Operation, place: _Place) -> Action:
        method = operation.method
        table = self.tables[self._names[place.stem]]
        if method == "delete":
            raise _NoAction("it deletes all records at once")
        if method == "get":
            made = self._made(operation, Does.LIST, place)
            if made.answer is not None and not made.answer.many:
                raise _NoAction(f"GET {operation.path} lists no records")
            return made
        if method == "post":
            made = self._made(operation, Does.CREATE, place)
            if made.parents and _only_names(made.sent, table.key):
                raise _NoAction("it links records that are there, which mock tables do not hold")
            return made
        if table.key not in self._sent(operation, table.word):
            raise _NoAction("it changes a record that it does not name")
        return self._made(operation, Does.UPDATE, place, key=table.key)

    def _on_part(self, operation: Operation, place: _Place) -> Action:
        last = operation.segments[-1]
        does = Does.READ_PART if operation.method == "get" else Does.SET_PART
        if operation.method == "delete":
            raise _NoAction("it deletes a part of a record")
        if operation.method != "get" and not operation.body and _verb(last) is None:
            raise _NoAction("what it does to a record is not said")
        part = "_".join(words_of(last)) or last
        return self._made(operation, does, place, part=part, named=place.blanks[-1:])


class _NoAction(Exception):
    """An operation cannot be mapped to an action. The message says why."""


def _only_names(sent: Fields, key: str) -> bool:
    """Whether a body only identifies a record."""
    return key in sent and all(name == key or is_fixed(one.schema) for name, one in sent.items())


def _references(usable: Sequence[Operation]) -> frozenset[str]:
    """Return normalized names of objects that stand for a record: table names, or objects with only an id."""
    words = {one_of(part) for one in usable for part in one.segments if not is_blank(part)}

    def walk(schema: Mapping[str, Any], depth: int) -> Iterator[str]:
        for name, one in properties_of(schema).items():
            if depth < 4 and properties_of(one):
                if is_reference(one) and depth:
                    yield one_of(name)
                yield from walk(one, depth + 1)

    bodies = {name for one in usable if one.body for name in walk({"properties": {"": one.body}}, 0)}
    return frozenset((words | bodies) - {""})


def _numbers_of_blanks(usable: Sequence[Operation]) -> dict[Stem, int]:
    """Return how many placeholders identify a record, by path: two in `/repos/{owner}/{repo}`."""
    numbers: dict[Stem, int] = {}
    for one in usable:
        if blanks := _last_blanks(one.segments):
            stem = _stem(one.segments[: len(one.segments) - len(blanks)])
            numbers[stem] = min(len(blanks), numbers.get(stem, len(blanks)))
    return numbers


def _makes(operation: Operation) -> bool:
    """Whether an operation creates a record of the collection that its path names."""
    last = operation.segments[-1] if operation.segments else "{}"
    if operation.method != "post" or is_blank(last) or _acts(last):
        return False
    return bool(operation.body and properties_of(operation.result or {})) and _is_several(last)


def _is_several(word: str) -> bool:
    return singular(word.lower()) != word.lower()


def _acts(word: str) -> bool:
    """Whether a part of a path is an action: `cancel` is one, `orders` is not."""
    return _verb(word) is not None and (len(words_of(word)) > 1 or not _is_several(word))


def _stem(segments: Sequence[str]) -> Stem:
    return tuple("{}" if is_blank(one) else one for one in segments)


def _last_blanks(segments: Sequence[str]) -> tuple[str, ...]:
    """Return the placeholders at the end of a path."""
    number = next((n for n, one in enumerate(reversed(segments)) if not is_blank(one)), len(segments))
    return tuple(segments[len(segments) - number :])


def _repeats(segments: Sequence[str]) -> bool:
    blanks = [one for one in segments if is_blank(one)]
    return len(blanks) != len(set(blanks))


def _tells_most(operation: Operation) -> int:
    """Return a sort key: responses with one record first, then lists, then responses to changes."""
    if operation.method == "get":
        return 0 if is_blank(operation.segments[-1]) else 1
    return 2


def _key(word: str, blank: str, schema: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the field that identifies a table's records, whose values the path parameter takes."""
    one, named = plain(singular(word.lower())), plain(blank)
    bare = named.removeprefix(one)
    ids = ["id", f"{one}id", f"{one}uuid"]
    is_id = named.endswith("id")
    last = [one for one in words_of(blank)[-1:] if one in KEYS]
    wanted = [named, *last, *([*ids, bare] if is_id or not bare else [bare, *ids]), *(IDS if is_id else KEYS)]
    kind = schema.get("type", "string")
    for name in wanted:
        for field_name, inner in fields.items():
            same = is_id or not blank or inner.get("type", kind) == kind
            if name and plain(field_name) == name and same and not properties_of(inner):
                return field_name
    return "id" if "id" not in fields else blank or "id"


def _alike(answer: Answer, known: set[str]) -> bool:
    """Whether listed records belong to a table."""
    names = {plain(name) for name in answer.fields}
    return len(names & known) >= _ALIKE * len(names)


def _same(shown: set[str], known: set[str]) -> bool:
    """Whether two paths with the same name have the same records, by their less common fields."""
    one, other = shown - _USUAL, known - _USUAL
    return len(one & other) >= _ALIKE * min(len(one), len(other))


def _says_id(schema: Mapping[str, Any]) -> bool:
    """Whether a field's description says that it is an id: `project`, "The gid of a project."."""
    return re.search(r"\b(?:g|s|uu)?id\b", str(schema.get("description", "")).lower()) is not None


def _verb(segment: str) -> str | None:
    words = words_of(segment)
    return words[0] if words and words[0] in VERBS else None
