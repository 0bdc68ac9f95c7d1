"""Values in a state or a result by kind (a path with wildcards), and kinds that suit a parameter.

`{"orders": {"O-1": {"price": 3}}}` has a value `O-1` of the kind `orders.#` (the key of a record) and 3 of
the kind `orders.*.price`. The parameter `order_id` takes the first one; its name suggests it, and trial calls
confirm it. `Records` finds ids of different records that belong together, for tools that take both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import cast

import regex

from genenv.tools.language.words import ORDERS
from genenv.tools.worlds.jsonable import FILES, FOLDERS, HIDDEN, TABLES
from genenv.types import Json

KEY = "#"
"""Marks the key of a record in a kind."""
ANY = "*"
"""Marks a record of a table or an item of a list in a kind."""
NAMES, INDEX = "{}", "[]"
"""Marks the keys of a mapping that is no table, and the indices of a list: what stands in brackets."""
_ARRAY = {"shape", "dtype", "sha256"}
"""Fields that stand for a large array in a state."""
_IDS = frozenset({"id", "gid", "guid", "sid", "uuid"})
NAMING = _IDS | {"key", "name", "number", "no", "code", "title", "slug", "ref", "path"}
"""Words for fields that name a record."""
_SPOKEN = frozenset({"name", "title"})
"""Words for names that people say; the key of a record is seldom one of these."""
_SEARCHED = frozenset({"q", "query", "search", "keyword", "term", "text", "phrase"})
"""Words of parameters that search records by the names that people say."""
LIMITS = frozenset({"min", "max", "minimum", "maximum"})
"""First words of a parameter that bounds the values of a field: `min_length`."""
_PARTS = frozenset({"contain", "fragment", "like", "match", "part", "prefix", "substring"})
"""Last words of a parameter that takes a part of the values of a field: `name_contains`."""
_OWN = _IDS | {"code", "key", "no", "number", "ref", "slug"}
"""Words for fields that are the id of their record, and no text that others may have, too."""
_BOUNDS = frozenset({"after", "before", "since", "till", "until"})
"""Words of parameters that bound the dates of what is listed."""
_WORD = regex.compile(r"\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|[^\W\d_]+|\d+")
_BY_NAME = frozenset({FILES, FOLDERS, HIDDEN, TABLES})
PATHS = frozenset({"path", "file", "filename", "filepath", "source", "destination"})
"""Words of parameters that name a file or a folder."""
PLACES = frozenset({"folder", "directory", "dir", "root", "repo", "repository", "workspace"})
"""Words of parameters and tools that name a folder."""
MOST_WANTED = 3
"""Maximum number of kinds that a parameter's name suggests."""


def parts_of(name: str) -> list[str]:
    """Return the words of an identifier in any alphabet, lower-cased: `orderIds` is order, ids."""
    return [word.lower() for word in _WORD.findall(name)]


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of an identifier in the singular: `orderIds` is order, id."""
    return tuple(map(singular, parts_of(name)))


def _pairs(text: str) -> dict[str, str]:
    return dict(cast("tuple[str, str]", one.split("/")) for one in text.split())


_SINGULARS = _pairs("""
ids/id movies/movie cookies/cookie calories/calorie zombies/zombie selfies/selfie brownies/brownie
genies/genie smoothies/smoothie hoodies/hoodie rookies/rookie caches/cache niches/niche aches/ache
headaches/headache axes/axe alias/alias aliases/alias bias/bias biases/bias canvas/canvas canvases/canvas
atlas/atlas atlases/atlas gases/gas lens/lens lenses/lens statuses/status bonuses/bonus campuses/campus
viruses/virus buses/bus heroes/hero series/series species/species news/news people/person children/child
quizzes/quiz shelves/shelf potatoes/potato analyses/analysis diagnoses/diagnosis indices/index
vertices/vertex matrices/matrix criteria/criterion
""")
"""Nouns whose plural, by its spelling, would be that of another one, by their plural."""


def singular(word: str) -> str:
    """Return a noun in the singular, as far as its spelling shows, or as it is known."""
    if word in _SINGULARS:
        return _SINGULARS[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "ches", "shes", "xes")):
        return word[:-2]
    return (
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
    )


def stands_at(path: Sequence[str | int], kind: str) -> bool:
    """Whether a path in a result matches a kind of value."""
    parts = kind.split(".")
    return len(parts) == len(path) and all(
        part == ANY or part == str(key) for part, key in zip(parts, path, strict=True)
    )


def leaves(value: Json, *, by_file: bool = False) -> dict[str, list[Json]]:
    """Return all single values by kind, without duplicates, in order of appearance.

    Args:
        value: a state or a result.
        by_file: whether each file has kinds of its own, also if others of its folder are alike.
    """
    found: dict[str, dict[str, Json]] = {}
    for kind, leaf in _walk(value if by_file else _with_folders(value), ()):
        found.setdefault(kind, {}).setdefault(repr(leaf), leaf)
    return {kind: list(values.values()) for kind, values in found.items()}


def held_in(state: Json, ways: Iterable[Mapping[str, str]]) -> dict[str, list[Json]]:
    """Return the values in a state by kind, as `leaves` has them, and those of the kinds that recipes name.

    In bundles that were made before files of a folder were records of a table, each has kinds of its own.

    Args:
        state: the state.
        ways: the kinds by argument, of each recipe.
    """
    found = leaves(state)
    if any("/" in kind and kind not in found for one in ways for kind in one.values()):
        found = {**leaves(state, by_file=True), **found}
    return found


def records(value: Json) -> dict[str, list[dict[str, list[Json]]]]:
    """Return the records of tables and lists by kind, such as `orders.*`, as values and keys by kind.

    The keys of the records that a record is in are among its own.
    """
    found: dict[str, list[dict[str, list[Json]]]] = {}

    def note(record: Json, kind: tuple[str, ...], keys: dict[str, list[Json]]) -> None:
        if isinstance(record, Mapping):
            own = {**keys}
            for name, leaf in _walk(record, kind):
                own.setdefault(name, []).append(leaf)
            found.setdefault(".".join(kind), []).append(own)
        walk(record, kind, keys)

    def walk(inner: Json, kind: tuple[str, ...], keys: dict[str, list[Json]]) -> None:
        if isinstance(inner, list):
            for one in inner:
                note(one, (*kind, ANY), keys)
        elif isinstance(inner, Mapping):
            table = _is_table(inner, kind)
            for key, one in inner.items():
                if table:
                    note(one, (*kind, ANY), {**keys, ".".join((*kind, KEY)): [key]})
                else:
                    walk(one, (*kind, key), keys)

    walk(_with_folders(value), (), {})
    return found


def indices(value: Json) -> dict[str, list[Json]]:
    """Return what can stand in brackets after a mapping that is no table, or after a list, by kind."""
    found: dict[str, dict[str | int, None]] = {}

    def walk(inner: Json, kind: tuple[str, ...]) -> None:
        table = isinstance(inner, Mapping) and _is_table(inner, kind)
        if isinstance(inner, Mapping) and set(inner) == _ARRAY and isinstance(inner["shape"], list):
            for depth, size in enumerate(cast("list[int]", inner["shape"])):
                found[".".join((*kind, *(ANY,) * depth, INDEX))] = dict.fromkeys(range(size))
            return
        if isinstance(inner, Mapping | list):
            places = list(inner) if isinstance(inner, Mapping) else range(len(inner))
            if places and not table:
                mark = INDEX if isinstance(inner, list) else NAMES
                found.setdefault(".".join((*kind, mark)), {}).update(dict.fromkeys(places))
            named = isinstance(inner, Mapping) and not table
            for place in places:
                walk(at(inner, (place,)), (*kind, str(place) if named else ANY))

    walk(_with_folders(value), ())
    return {kind: list(places) for kind, places in found.items()}


def at(value: Json, path: Sequence[str | int]) -> Json:
    """Return the value at a path of keys and indices.

    Raises:
        LookupError: there is no such path.
    """
    for part in path:
        try:
            value = cast("Mapping[str | int, Json]", value)[part]
        except (TypeError, KeyError, IndexError) as error:
            raise LookupError(part) from error
    return value


def single_paths(value: Json) -> dict[str, tuple[tuple[str | int, ...], Json]]:
    """Return the path and value of each kind that occurs only once in a result.

    A value in a list of one item counts; keys of records do not, as a question cannot name them. Of several
    fields with the same name, only a single outermost one counts, as a question names only the field.
    """
    found: dict[str, list[tuple[tuple[str | int, ...], Json]]] = {}

    def walk(inner: Json, kind: tuple[str, ...], path: tuple[str | int, ...]) -> None:
        if isinstance(inner, Mapping):
            table = _is_table(inner, kind)
            for key, one in inner.items():
                walk(one, (*kind, ANY if table else key), (*path, key))
        elif isinstance(inner, list):
            for number, one in enumerate(inner):
                walk(one, (*kind, ANY), (*path, number))
        else:
            found.setdefault(".".join(kind), []).append((path, inner))

    walk(value, (), ())
    depths: dict[str, list[int]] = {}
    for kind, places in found.items():
        depths.setdefault(_field(kind), []).extend(len(path) for path, _ in places)
    alone = {field for field, held in depths.items() if held.count(min(held)) == 1}
    return {
        kind: places[0]
        for kind, places in found.items()
        if _field(kind) in alone and len(places[0][0]) == min(depths[_field(kind)])
    }


def is_inside_record(value: Json, path: Sequence[str | int]) -> bool:
    """Whether a field is of a record inside of another record, so that the field's name says too little.

    The `name` in `{"id": 3, "created_by": {"name": "Ada"}}` is no name of record 3. In
    `{"status": "ok", "task": {"name": "Ada"}}` there is only one record.
    """
    for place in range(len(path) - 1):
        inner = at(value, path[:place])
        if isinstance(inner, Mapping) and any(
            not isinstance(one, Mapping | list) and NAMING & {*words_of(name)[-1:]}
            for name, one in inner.items()
        ):
            return True
    return False


_UNREAD = re.compile(r"<[A-Za-z_][\w.<>]*>|\d+ bytes, [0-9a-f]{64}")
"""What stands in a state for what cannot be read: an object's class, a file's size and digest."""


def _field(kind: str) -> str:
    """Return the last name in a kind."""
    return next((part for part in reversed(kind.split(".")) if part != ANY), "")


def _walk(value: Json, kind: tuple[str, ...]) -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping):
        table = _is_table(value, kind)
        for key, inner in value.items():
            if table:
                yield ".".join((*kind, KEY)), key
            yield from _walk(inner, (*kind, ANY if table else key))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, (*kind, ANY))
    elif value is not None and not (isinstance(value, str) and _UNREAD.fullmatch(value)):
        yield ".".join(kind), value


def _is_table(value: Mapping[str, Json], kind: tuple[str, ...]) -> bool:
    """Whether a mapping is a table of records by key, not a record itself."""
    if not value or not kind:
        return False
    inner = list(value.values())
    if len(kind) == 1 and kind[0] in _BY_NAME:
        return not any(isinstance(one, Mapping | list) for one in inner)
    if all(isinstance(one, Mapping) for one in inner):
        fields = [set(cast("Mapping[str, Json]", one)) for one in inner]
        return all(_overlap(fields[0], one) for one in fields)
    if all(isinstance(one, list) for one in inner):
        return any(not key.isidentifier() for key in value)
    return not any(isinstance(one, Mapping | list) for one in inner) and all(
        not re.fullmatch(r"[a-z_][a-z0-9_]*", key) for key in value
    )


def _overlap(one: AbstractSet[str], other: AbstractSet[str]) -> bool:
    """Whether two records have so many fields in common that they may be of one table."""
    return len(one & other) * 2 >= len(one | other)


def _with_folders(state: Json) -> Json:
    """Return a state in which files that hold one record each are tables: one of each folder, by their names.

    In `{"files": {"orders/O-1.json": None, "orders/O-2.json": None}, "orders/O-1": {...}, ...}` both are
    records of the table `orders`. The records of a table are like one of the forms that most files have; a
    file that is unlike it stays what it is.
    """
    names = state.get(FILES) if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or not isinstance(names, Mapping):
        return state
    folders: dict[str, dict[str, dict[_Form, dict[str, str]]]] = {}
    for name, content in names.items():
        start, dot, suffix = name.rpartition(".")
        folder, _, key = start.rpartition("/")
        place = name if name in state else start  # as two files may differ in their endings alone
        if (
            content is not None
            or not folder
            or not dot
            or folder in state
            or not _is_record(state.get(place))
        ):
            continue
        forms = folders.setdefault(folder, {}).setdefault(suffix, {})
        forms.setdefault(_form(cast("Mapping[str, Json]", state[place])), {})[key] = place
    made, tabled = dict[str, Json](), set[str]()
    for folder, by_suffix in folders.items():
        group = max((_largest(by_suffix[suffix]) for suffix in sorted(by_suffix)), key=len)
        if len(group) > 1:
            made[folder] = {key: state[place] for key, place in group.items()}
            tabled |= {*group.values()}
    return {**{key: one for key, one in state.items() if key not in tabled}, **made} if made else state


def _is_record(content: Json) -> bool:
    """Whether a file holds one record, not a table of several."""
    return isinstance(content, Mapping) and len(_single(content)) > 1 and not _is_table(content, (ANY,))


def _single(record: Mapping[str, Json]) -> set[str]:
    """Return the names of the fields that hold single values."""
    return {name for name, one in record.items() if not isinstance(one, Mapping | list)}


_Form = tuple[frozenset[str], frozenset[str], frozenset[str]]
"""A record's fields, its fields with those of inner records, and those of them that hold single values."""
_MOST_GROUPS = 64
"""Number of groups of forms; a form that is like none of them is in no table."""


def _form(record: Mapping[str, Json]) -> _Form:
    kinds = frozenset(kind for kind, _ in _walk(record, (ANY,)))
    return frozenset(record), kinds, frozenset(_single(record))


def _largest(forms: Mapping[_Form, Mapping[str, str]]) -> dict[str, str]:
    """Return the files, by key, of the largest group of forms that are like one, that of most files."""
    groups: list[tuple[_Form, dict[str, str]]] = []
    for form in sorted(forms, key=lambda one: (-len(forms[one]), min(forms[one]))):
        own = dict(sorted(forms[form].items()))
        group = next((files for other, files in groups if _are_alike(other, form)), None)
        if group is not None:
            group |= own
        elif len(groups) < _MOST_GROUPS:
            groups.append((form, own))
    return max((files for _, files in groups), key=len)


def _are_alike(one: _Form, other: _Form) -> bool:
    """Whether records of two forms have mostly the same fields, those of inner records included."""
    fields, kinds, single = zip(one, other, strict=True)
    return _overlap(*fields) and _overlap(*kinds) and len(single[0] & single[1]) > 1


def wanted(parameter: str, tool: str, kinds: Sequence[str]) -> list[str]:
    """Return the kinds that a parameter's name suggests, likeliest first.

    Args:
        parameter: the name of the parameter.
        tool: the name of its tool, which may add words: the `name` of `find_customer` is a customer's.
        kinds: the kinds to choose from.
    """
    name, around = words_of(parameter), set(words_of(tool))
    scored = [(_likeness(name, around, kind), kind) for kind in kinds if not _is_place(kind)]
    scored.sort(key=lambda pair: -pair[0])
    return [kind for score, kind in scored if score > 0][:MOST_WANTED]


def untold(kinds: Mapping[str, Sequence[Json]]) -> list[str]:
    """Return kinds in the order in which they are tried for a parameter whose name suggests none.

    First what names records (keys, and fields such as `code`), then other values, then indices and names of
    fields. Of kinds with the same values only the first counts.
    """
    first: dict[str, str] = {}
    for kind in sorted(kinds, key=lambda kind: 2 if _is_place(kind) else not names_records(kind)):
        first.setdefault(repr(sorted(map(repr, kinds[kind]))), kind)
    return list(first.values())


def about(parameter: str, tool: str, other: str) -> bool:
    """Whether another tool's name says that it is about what a parameter stands for: `task_id`, `add_task`.

    Args:
        parameter: the name of the parameter.
        tool: the name of its tool, which says what a mere `id` is of.
        other: the name of the other tool.
    """
    named = {word for word in words_of(parameter) if word not in NAMING} or {*words_of(tool)} - ORDERS
    return bool(named) and named <= {*words_of(other)}


def refers(name: str) -> bool:
    """Whether a parameter or a kind of values stands for a record: `id` and `branch_name`, but not `name`."""
    last = name.rsplit(".", 1)[-1]
    words = words_of(last)
    return last in (KEY, NAMES) or bool((NAMING if len(words) > 1 else NAMING - _SPOKEN) & {*words[-1:]})


def names_records(kind: str) -> bool:
    """Whether the values of a kind name records: keys, and fields such as `code`."""
    last = kind.rsplit(".", 1)[-1]
    return not _is_place(kind) and (last in (KEY, NAMES) or bool(NAMING & {*words_of(last)[-1:]}))


def names_files(kind: str) -> bool:
    """Whether a kind is names of files or folders."""
    return kind.partition(".")[0] in _BY_NAME


def _is_place(kind: str) -> bool:
    """Whether a kind is indices of a list, or names of the fields of records."""
    return kind.endswith((INDEX, f"{ANY}.{NAMES}"))


VALUES = frozenset({"address", "date", "email", "link", "mail", "phone", "price", "time", "url", "website"})
"""Words of parameters that hold the value itself, also where there is a table of that name."""


def _likeness(name: tuple[str, ...], tool: set[str], kind: str) -> float:
    """Return how well a kind suits a parameter's name; 0: not at all."""
    parts = [part for part in kind.split(".") if part != ANY]
    key = () if parts and parts[-1] in (KEY, NAMES) else words_of(parts[-1] if parts else "")
    around = {word for part in parts[:-1] for word in words_of(part)}
    asked = set(name)
    if asked <= _SEARCHED and key and set(key) <= _SPOKEN:
        return 1.5
    if len(name) > 1 and name[-1] in _PARTS:
        return min(1.2, _likeness(name[:-1], tool, kind))
    if len(name) > 1 and name[0] in LIMITS:
        rest = name[1:]
        is_like = rest in (key[: len(rest)], key[-len(rest) :])  # of `value_eur` and `list_value`
        return min(1.2, max(_likeness(rest, tool, kind), 0.9 * is_like))
    if name == key and asked <= _BOUNDS and not around & tool:
        return 0.0  # of `list_orders(since)`, no customer's `since`
    if name == key:
        return 3.0 if len(name) > 1 or not asked <= NAMING or around & tool else 1.5
    head = [word for word in name if word not in NAMING]
    if set(key) <= NAMING and (not key or not asked & NAMING or asked & set(key)):  # the name of a record
        if not head:
            return 2.2 if around & tool and not key else 0.0
        if not key and asked <= VALUES:  # the `email` of a contact is no key of the table `emails`
            return 0.0
        if set(head) <= around:
            is_own = words_of(parts[-2])[-1:] == (head[-1],) and (asked & set(key) or set(key) <= _OWN)
            return 3.1 if is_own and key else 2.5 if key else 2.4 if asked & _SPOKEN else 3.2
        return 2.0 if head[-1] in around else 0.0
    if key and set(key) < asked and asked - set(key) <= around:
        return 2.5
    return 1.0 if asked < set(key) and set(key) - asked <= tool | NAMING else 0.0


Slot = tuple[str, str]
"""The name of an argument, and the source of its values."""
Pair = tuple[Json, Json]
"""An id of one record, and an id of another."""
_LONGEST_ID = 80
"""Maximum length in characters of an id."""


class Records:
    """The records of a state, and which ids of them belong together; computed on first use.

    In `{"customers": {"C1": {"line_ids": ["L1"]}}, "lines": {"L1": {"plan": "basic"}}}` the customer C1 holds
    the id of the line L1. A tool that takes both is rarely meant for a line of another customer, though it
    may not check it.
    """

    def __init__(self, state: Json = None) -> None:
        self._state = state
        self._related: dict[tuple[Slot, Slot], list[Pair]] = {}

    @cached_property
    def by_kind(self) -> Mapping[str, Sequence[Mapping[str, Sequence[Json]]]]:
        """The records by kind; each record is a mapping of kinds to its values."""
        return records(self._state)

    @cached_property
    def fields(self) -> Mapping[str, Sequence[dict[str, Json]]]:
        """The single fields of the records by kind; kinds without any are left out."""
        found: dict[str, list[dict[str, Json]]] = {}
        for kind, alike in self.by_kind.items():
            for record in alike:
                own = ((name.removeprefix(f"{kind}."), values) for name, values in record.items())
                row = {name: values[0] for name, values in own if len(values) == 1 and "." not in name}
                if row:
                    found.setdefault(kind, []).append(row)
        return found

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
    return str(value) if is_id and len(str(value)) <= _LONGEST_ID else ""
