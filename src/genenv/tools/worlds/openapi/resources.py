"""Infer mock tables from an OpenAPI document: its resources, and what each operation does to them.

Paths are read by REST conventions: `/orders` is a table, `/orders/{orderId}` one of its records,
`/orders/{orderId}/items` a table whose records belong to an order, and a POST to `/orders/{orderId}/cancel`
an action on a record. An operation that does not fit these conventions is left out with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from genenv.tools.discover.state_values import VALUES, singular, words_of
from genenv.tools.language.words import VERBS
from genenv.tools.worlds.openapi.document import Operation, is_blank
from genenv.tools.worlds.openapi.shapes import (
    IDS,
    KEYS,
    OF_A_REFERENCE,
    OF_THE_PROTOCOL,
    Answer,
    Field,
    Fields,
    answer_of,
    fields_of,
    is_fixed,
    is_reference,
    items_of,
    looks_like_an_id,
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

_Place = tuple[Stem, tuple[str, ...]]
"""A path up to its last word, and the names of the placeholders after it, which identify a record."""

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


_DOES = {
    **{("get", False): Does.LIST, ("post", False): Does.CREATE},
    **{("get", True): Does.READ, ("delete", True): Does.DELETE},
}
"""What methods do to a table, or to a record (True); others update."""


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
    """Fields of the request body, by the table's names."""
    spelled: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each of them, the name in the request body."""
    refers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields of the request body that hold keys of a table, or lists of them, with that table."""
    answer: Answer | None = None
    """The declared response; None if the document declares none."""


class Resources:
    """The tables and actions inferred from the operations of a document."""

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
        self._blanks: dict[Stem, int] = {}
        """How many placeholders identify a record, by path: two in `/repos/{owner}/{repo}`."""
        for stem, blanks in [_place_of(one.segments) for one in usable]:
            self._blanks |= {stem: min(len(blanks), self._blanks.get(stem, len(blanks)))} if blanks else {}
        self._made_at = {_stem(one.segments) for one in usable if _makes(one)}
        elsewhere = _sent_elsewhere(usable)
        self._names: dict[Stem, str] = {}
        self._shown: dict[Stem, set[str]] = {}
        self._places: dict[str, _Place | None] = {}
        for named in (True, False):  # paths of identifiable records come first; a search may list these, too
            some = [one for one in usable if one.segments and self._is_named(one) is named]
            self._places |= {one.name: None if one.name in elsewhere else self._place(one) for one in some}
            self._assign(some)
        own: dict[str, list[tuple[Operation, _Place]]] = {name: [] for name in self._names.values()}
        for one in usable:
            if place := self._places.get(one.name):
                own[self._names[place[0]]].append((one, place))
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
        place = _place_of(operation.segments)
        is_known = self._is_record(place) if place[1] else self._is_table(operation)
        return place if place[0] and is_known else None

    def _is_record(self, place: _Place) -> bool:
        """Whether a place has as many placeholders as identify its records."""
        return len(place[1]) == self._blanks.get(place[0], 1)

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
        return set[str]().union(*(self._shown[stem] for stem, one in self._names.items() if one == name))

    def _assign(self, operations: Sequence[Operation]) -> None:
        """Assign a table to each path; paths with the same last word and similar records share one."""
        for one in operations:
            if (place := self._places[one.name]) is not None:
                answer = self._answer(one, place[0][-1], listing=one.method == "get")
                shown = answer.fields if answer is not None and one.method in ("get", "post") else ()
                self._shown.setdefault(place[0], set()).update(map(plain, shown))
        for stem, shown in self._shown.items():
            if stem in self._names:
                continue
            same_word = [
                name for other, name in self._names.items() if other[-1] == stem[-1] or _beside(stem, other)
            ]
            known = next((name for name in same_word if _same(shown, self._known_fields(name))), None)
            words = [one for one in stem if one != "{}"]
            ways = ("_".join(words[-n:]) for n in range(1, len(words) + 1))
            taken = {*self._names.values()}
            self._names[stem] = known or next((one for one in ways if one not in taken), "/".join(stem))

    def _answer(self, operation: Operation, word: str, *, listing: bool) -> Answer | None:
        listing = listing and not is_blank(operation.segments[-1])
        return answer_of(operation.result, word, self._references, listing=listing)

    def _sent(self, operation: Operation, word: str) -> dict[str, Field]:
        return fields_of(operation.body, word, self._references)

    # tables

    def _table(self, name: str, own: Sequence[tuple[Operation, _Place]]) -> Table:
        word = next(stem for stem, other in self._names.items() if other == name)[-1]
        fields: dict[str, dict[str, Any]] = {}
        required: set[str] = set()
        # responses with one record come first, then lists, then responses to changes
        ordered = sorted(own, key=lambda p: (len(p[1][0]), 2 * (p[0].method != "get") or not p[1][1]))
        for one, _ in ordered:
            answer = self._answer(one, word, listing=one.method == "get")
            for field_name, shown in _named_alike(answer.fields, fields).items() if answer else ():
                fields.setdefault(field_name, shown.schema)
                required |= {field_name} if shown.required else set()
        bodies: list[tuple[Operation, dict[str, Field]]] = []
        for one in [one for one, _ in own if one.method in ("post", "put", "patch")]:
            bodies.append((one, sent := _named_alike(self._sent(one, word), fields)))
            fields |= {name: one.schema for name, one in sent.items() if name not in fields}
        fields = {one: inner for one, inner in fields.items() if one not in OF_THE_PROTOCOL}
        asked = [
            (p.name, p.schema)
            for one, (_, blanks) in own
            for p in one.parameters
            if p.place == "path" and blanks[-1:] == (p.name,)
        ]
        blank, schema = asked[0] if asked else ("", {})
        key = _key(word, blank, schema, fields)
        fields[key] = {**({"type": schema.get("type", "string")}), **fields.get(key, {})}
        for _, schema in asked:
            fields[key] |= {one: schema[one] for one in _BOUNDS if one in schema}
        posted = [sent for one, sent in bodies if one.method == "post" and not _only_names(sent, key)]
        spoken = words_of(key)[-1:] and words_of(key)[-1] in ("username", "name", "slug", "code")
        given = any(key in sent and (sent[key].required or spoken) for sent in posted)
        named = (*dict.fromkeys(name for _, (_, blanks) in own for name in blanks[-1:]),)
        return Table(
            name=name, word=word, key=key, fields=fields, required=required, named=named, given=given
        )

    def _belonging(self, table: Table, own: Sequence[tuple[Operation, _Place]]) -> None:
        """Record the owners of a table's records, from the paths that lead to the table."""
        for one, place in own:
            for parameter, parent, schema in self._above(one, place[1][-1:]):
                linked = self._link(table, parameter, parent)
                table.owners.setdefault((parameter, parent), linked)
                if parent:
                    schema = self.tables[parent].fields[self.tables[parent].key]
                    table.parents[linked] = parent
                table.fields.setdefault(linked, schema)

    def _above(self, operation: Operation, named: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the path parameters other than `named` that identify owners, their tables and schemas."""
        segments = operation.segments
        schemas = {p.name: p.schema for p in operation.parameters if p.place == "path"}
        for i, one in enumerate(segments):
            parameter = one[1:-1]
            if is_blank(one) and (i < len(segments) - 1 or [parameter] != [*named]):
                place = _place_of(segments[: i + 1])
                parent = self._names.get(place[0], "") if self._is_record(place) else ""
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
            # its description may say that it is an id: `project`, "The gid of a project."
            said = re.search(r"\b(?:g|s|uu)?id\b", str(schema.get("description", "")).lower())
            named = not is_word or plain(name) in map(plain, table.named) or said
            if named and table.fields[table.key].get("type", "string") == schema.get("type"):
                return other
        return None

    def _refers(self, table: Table, sent: Fields) -> dict[str, str]:
        """Return the fields of a request that name records by their keys, with the tables of these.

        Such a field is called like a table, or `parent`, or its description says what the id is of: "An array
        of task gids", "The gid of a custom field".
        """
        found: dict[str, str] = {}
        for name, one in sent.items():
            schema = items_of(one.schema) if one.schema.get("type") == "array" else one.schema
            told = f"{one.schema.get('description', '')} {schema.get('description', '')}".lower()
            ways = [plain(phrase) for phrase in _ids_of(told)]
            if one_of(name) == "parent":
                ways.append(one_of(table.word))
            elif _may_refer(name, schema, told) and one_of(name) in plain(" ".join(words_of(told))):
                ways.append(one_of(name))
            is_own = name == table.key or "external" in told  # an id of another system is none of these
            for way in ways if not is_own and "enum" not in schema else ():
                for other in self._called.get(way, ()):
                    key = self.tables[other].fields[self.tables[other].key]
                    if key.get("type", "string") == schema.get("type"):
                        found.setdefault(name, other)
        return found

    # actions

    def _action(self, operation: Operation) -> Action:
        place, segments = self._places.get(operation.name), operation.segments
        if len({*filter(is_blank, segments)}) < sum(map(is_blank, segments)):
            raise _NoAction("its path has two blanks of one name")
        if place is not None:
            return self._on_place(operation, place)
        *before, last = segments or ("",)
        record = _place_of(before)
        if record[1] and record[0] in self._names and self._is_record(record):
            return self._on_part(operation, record)
        answer = self._answer(operation, last, listing=True) if segments else None
        if operation.method == "get" and answer is not None and answer.many:
            for stem, name in self._names.items():
                if stem[-1] in segments and _alike(answer, self._known_fields(name)):
                    return self._made(operation, Does.LIST, (stem, ()), answer=answer)
        what = f"{operation.method.upper()} {operation.path}"
        raise _NoAction(f"{what} is about no records that this document lists or names")

    def _made(self, operation: Operation, does: Does, place: _Place, **more: Any) -> Action:  # noqa: ANN401
        """Build an action on a table or a record in it."""
        table, named = self.tables[self._names[place[0]]], place[1][-1:]
        above = {one: (one, parent) for one, parent, _ in self._above(operation, named) if (one,) != named}
        word = operation.segments[-1] if does is Does.READ_PART else table.word
        listing = does in (Does.LIST, Does.READ_PART)
        body, answer = self._sent(operation, word), more.get("answer")
        answer = answer or self._answer(operation, word, listing=listing)
        is_part = more.get("part") in table.fields  # with fields of its own
        sent = body if is_part else _named_alike(body, table.fields)
        if answer is not None and not is_part:
            answer = replace(answer, fields=_named_alike(answer.fields, table.fields))
        return Action(
            operation=operation,
            does=does,
            table=table.name,
            key=more.get("key") or (named[0] if named else None),
            parents={one: self._link(table, *owner) for one, owner in above.items()},
            above=above,
            part=more.get("part", ""),
            sent=sent,
            spelled=dict(zip(sent, body, strict=True)),
            refers=self._refers(table, sent),
            answer=answer,
        )

    def _on_place(self, operation: Operation, place: _Place) -> Action:
        method, is_record, table = operation.method, bool(place[1]), self.tables[self._names[place[0]]]
        does = _DOES.get((method, is_record), Does.UPDATE)
        in_body = does is Does.UPDATE and not is_record
        made = self._made(operation, does, place, key=table.key if in_body else None)
        lists = does is not Does.LIST or made.answer is None or made.answer.many
        links = does is Does.CREATE and made.parents and _only_names(made.sent, table.key)
        stems = [stem for stem, name in self._names.items() if name == table.name]
        takes = does is Does.DELETE and any(len(stem) < len(place[0]) for stem in stems)
        for is_wrong, why in (
            (method == "delete" and not is_record, "it deletes all records at once"),
            (not lists, f"GET {operation.path} lists no records"),
            (links, "it links records that are there, which mock tables do not hold"),
            (in_body and table.key not in made.sent, "it changes a record that it does not name"),
            (does is Does.UPDATE and not made.sent, "what it does to a record is not said"),
            (takes, "it may delete a record, or only take it from what it belongs to"),
        ):
            if is_wrong:
                raise _NoAction(why)
        return made

    def _on_part(self, operation: Operation, place: _Place) -> Action:
        last = operation.segments[-1]
        does = Does.READ_PART if operation.method == "get" else Does.SET_PART
        if operation.method == "delete":
            raise _NoAction("it deletes a part of a record")
        if operation.method != "get" and not operation.body and _verb(last) is None:
            raise _NoAction("what it does to a record is not said")
        part = "_".join(words_of(last)) or last
        if does is Does.READ_PART:  # the field may have the very name
            fields = self.tables[self._names[place[0]]].fields
            part = next((one for one in fields if plain(one) == plain(last)), part)
        return self._made(operation, does, place, part=part)


def _named_alike(fields: Fields, known: Collection[str]) -> dict[str, Field]:
    """Return fields under the known names that differ from their own only in case and separators.

    So `FriendlyName` of a request is `friendly_name` of a table.
    """
    names = {plain(one): one for one in reversed(list(known))}
    found: dict[str, Field] = {}
    for name, one in fields.items():
        own = name if name in known else names.get(plain(name), name)
        found[name if own in found or (own != name and own in fields) else own] = one
    return found


class _NoAction(Exception):
    """An operation cannot be mapped to an action. The message says why."""


_NAME = re.compile(r"\b(?:name|names|named|title|label)\b")


def _may_refer(name: str, schema: Mapping[str, Any], told: str) -> bool:
    """Whether a field that is called like a table may hold keys of it: not a name, an address or `sent`."""
    examples = [str(one) for one in schema.get("examples", ())]
    of_values = VALUES & {*words_of(name)[-1:]} or schema.get("format", "uuid") != "uuid"
    return not of_values and not _NAME.search(told) and all(map(looks_like_an_id, examples))


_ID_OF = re.compile(
    r"\b(?:g|s|uu)?id(?:entifier)?s? (?:of|for) (?:an? |the |some )?((?:\w+ ?){1,3})(?![\w'’])"
)
_IDS_OF = re.compile(r"\b((?:\w+ ){1,3})(?:g|s|uu)?ids?\b")


def _ids_of(told: str) -> Iterator[str]:
    """Yield what a description says an id is of, in the singular, longest first: `custom field`, `custom`."""
    for pattern, of in ((_ID_OF, True), (_IDS_OF, False)):
        for match in pattern.findall(told):
            words = [singular(word) for word in match.split()]
            for n in range(len(words)):
                yield " ".join(words[: len(words) - n] if of else words[n:])


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


def _beside(stem: Stem, other: Stem) -> bool:
    """Whether one path is the other with its last word in the singular: `/user/{id}` and `/users`."""
    return stem[:-1] == other[:-1] and one_of(stem[-1]) == one_of(other[-1])


def _sent_elsewhere(usable: Sequence[Operation]) -> set[str]:
    """Return operations that send something to a record at a path of their own: `/import/table/{id}`.

    Their word is the singular of another path's, and nothing reads a record at theirs.
    """
    places = {one.name: _place_of(one.segments) for one in usable if one.segments}
    several = {(one_of(stem[-1]), stem[:-1]) for stem, _ in places.values() if stem and _is_several(stem[-1])}
    words = {word for word, _ in several}
    read = {places[one.name][0] for one in usable if one.segments and one.method == "get"}
    return {
        name
        for name, (stem, blanks) in places.items()
        if stem
        and blanks
        and stem not in read
        and not _is_several(stem[-1])
        and one_of(stem[-1]) in words
        and (one_of(stem[-1]), stem[:-1]) not in several
    }


def _makes(operation: Operation) -> bool:
    """Whether an operation creates a record of the collection that its path names."""
    (last,) = operation.segments[-1:] or ("{}",)
    sends = operation.method == "post" and operation.body and properties_of(operation.result or {})
    return bool(sends) and not is_blank(last) and not _acts(last) and _is_several(last)


def _is_several(word: str) -> bool:
    return singular(word.lower()) != word.lower()


def _acts(word: str) -> bool:
    """Whether a part of a path is an action: `cancel` is one, `orders` is not."""
    return _verb(word) is not None and (len(words_of(word)) > 1 or not _is_several(word))


def _stem(segments: Sequence[str]) -> Stem:
    return tuple("{}" if is_blank(one) else one for one in segments)


def _place_of(segments: Sequence[str]) -> _Place:
    """Split a path after its last word."""
    number = next((n for n, one in enumerate(reversed(segments)) if not is_blank(one)), len(segments))
    words = len(segments) - number
    return _stem(segments[:words]), tuple(one[1:-1] for one in segments[words:])


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


def _verb(segment: str) -> str | None:
    return next((word for word in words_of(segment)[:1] if word in VERBS), None)
