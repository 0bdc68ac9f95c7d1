"""A world of mock tables made from an OpenAPI document: one interpreter, no code that anybody generated.

Operations list, find, make, change and delete records, as their paths and methods say (`resources`).
Nothing is sent anywhere. Arguments have passed the operation's schema; what is referred to has to be there.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from genenv.domains.tools.leaves import words_of
from genenv.domains.tools.openapi.operations import Operation, operations
from genenv.domains.tools.openapi.reading import Document
from genenv.domains.tools.openapi.resources import Action, Does, Resources, Table, plain
from genenv.domains.tools.openapi.rows import MOMENT, Record, State, first_state, new_key, varied
from genenv.domains.tools.world import Call, Outcome, Played, Tool
from genenv.errors import UsageError
from genenv.types import Json, JsonObject

MOST_TOOLS = 48
"""More operations than this are too many for one agent's prompt."""
_MOST_FIELDS = 8
"""Optional fields of a body that can be given."""
_PAGING = frozenset(
    {"limit", "offset", "page", "perpage", "pagesize", "size", "cursor", "sort", "sortby", "order", "orderby"}
)
"""Parameters about how a list is cut and ordered, which tasks do without."""
_SEARCH = frozenset({"q", "query", "search", "filter", "keyword", "term", "text"})


class _Refused(Exception):
    """A call fails; the message is what the agent is told."""


class MockWorld:
    """The tools of a document.

    Args:
        text: the document.
        name: how people know it.
        only: operations whose path begins with one of these; none: all.

    Raises:
        UsageError: it is no OpenAPI 3 document, or holds no operation on records.
    """

    def __init__(self, text: str, name: str, only: Sequence[str] = ()) -> None:
        document = Document(text, name)
        listed = [one for one in operations(document) if not only or one.path.startswith(tuple(only))]
        if only and not listed:
            raise UsageError(f"{name} has no path that begins with {' or '.join(only)}")
        resources = Resources(listed)
        chosen = _chosen(resources)
        kept = {one.operation.name for one in chosen}
        self.left_out: dict[str, str] = dict(resources.left_out)
        self.left_out |= {
            one.operation.name: f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
            for one in resources.actions
            if one.operation.name not in kept
        }
        if not chosen:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in list(self.left_out.items())[:3])
            raise UsageError(f"no operation of {name} reads or changes records ({reasons[:300]})")
        self.network = False
        self.confined = True
        self.received = 0
        self.asked: Collection[str] = ()
        self._tables = resources.tables
        self._actions = {one.operation.name: one for one in chosen}
        self.tools: dict[str, Tool] = {
            one.operation.name: _tool(one, self._tables[one.table]) for one in chosen
        }
        used = {one.table for one in chosen}
        used |= {other for name in used for other in self._tables[name].links.values()}
        self._first = first_state({key: one for key, one in self._tables.items() if key in used}, name)

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        state = copy.deepcopy(self._first)
        made = {name: len(rows) for name, rows in state.items()}
        outcomes: list[Outcome] = []
        before = json.dumps(state, sort_keys=True) if watch else ""
        for call in calls:
            try:
                outcome = Outcome(result=self._done(state, made, call))
            except _Refused as error:
                outcome = Outcome(error=str(error))
            if watch:
                after = json.dumps(state, sort_keys=True)
                outcome = Outcome(result=outcome.result, error=outcome.error, changed=after != before)
                before = after
            outcomes.append(outcome)
        return Played(outcomes=tuple(outcomes), state=cast(Json, state))

    def close(self) -> None:
        """See `World`: there is nothing to let go of."""

    def _done(self, state: State, made: dict[str, int], call: Call) -> Json:
        action = self._actions.get(call.tool)
        if action is None:
            raise _Refused(f"There is no tool {call.tool!r}.")
        if problem := self.tools[call.tool].problem(call.args):
            raise _Refused(problem)
        table, args = self._tables[action.table], copy.deepcopy(dict(call.args))
        rows = state[table.name]
        owner = {field: args.pop(name) for name, field in action.parents.items() if name in args}
        for field, value in owner.items():
            self._there(state, table.parents.get(field, ""), value)
        match action.does:
            case Does.LIST:
                return _listed(action, table, rows, {**args, **owner})
            case Does.CREATE:
                return self._created(state, made, table, {**args, **owner})
            case _:
                return self._on_record(state, action, table, (args, owner))

    def _on_record(
        self, state: State, action: Action, table: Table, given: tuple[dict[str, Json], Record]
    ) -> Json:
        args, owner = given
        key = args.pop(cast(str, action.key))
        rows = state[table.name]
        record = rows.get(str(key))
        if record is None or any(str(record.get(field)) != str(value) for field, value in owner.items()):
            raise _Refused(f"There is no {_one(table)} {key}.")
        match action.does:
            case Does.READ:
                return cast(Json, copy.deepcopy(record))
            case Does.DELETE:
                del rows[str(key)]
                return {"deleted": key}
            case Does.READ_PART:
                if action.part not in record:
                    raise _Refused(
                        f"{_one(table).capitalize()} {key} has no {' '.join(words_of(action.part))}."
                    )
                return copy.deepcopy(record[action.part])
            case Does.SET_PART:
                self._part(record, action, table, args)
            case _:
                self._referred(state, table, args)
                record.update(args)
        return cast(Json, copy.deepcopy(record))

    def _part(self, record: Record, action: Action, table: Table, args: dict[str, Json]) -> None:
        """What is done to a record: to a status that is called so, to its fields, or to a part of it."""
        status = _status(table, action.part)
        if status is not None:
            record[status[0]] = status[1]
        own = {name: value for name, value in args.items() if name in table.fields}
        if own and len(own) == len(args):
            record.update(own)
        elif args:
            record[action.part] = cast(Json, args)
        elif status is None:
            record[action.part] = True

    def _created(self, state: State, made: dict[str, int], table: Table, args: Record) -> Json:
        self._referred(state, table, args)
        rows = state[table.name]
        key = args.get(table.key)
        if key is None:
            made[table.name] += 1
            key = new_key(table, made[table.name])
        if str(key) in rows:
            raise _Refused(f"There is a {_one(table)} {key} already.")
        record: Record = {
            table.key: key,
            **{name: value for name, value in args.items() if name != table.key},
        }
        for name, schema in table.fields.items():
            if name not in record and (value := _given_by_server(schema)) is not None:
                record[name] = value
        rows[str(key)] = record
        return cast(Json, copy.deepcopy(record))

    def _referred(self, state: State, table: Table, args: Mapping[str, Json]) -> None:
        for field, other in table.refers.items():
            if field in args:
                self._there(state, other, args[field])

    def _there(self, state: State, table: str, key: Json) -> None:
        if table in state and str(key) not in state[table]:
            raise _Refused(f"There is no {_one(self._tables[table])} {key}.")


def _one(table: Table) -> str:
    return " ".join(words_of(table.name)) or table.name


def _given_by_server(schema: Mapping[str, Any]) -> Json:
    """What a new record has in a field that nobody set; None: nothing."""
    if "default" in schema:
        return cast(Json, schema["default"])
    if schema.get("format") == "date-time":
        return MOMENT
    listed = cast("Sequence[Json]", schema.get("enum", ()))
    return listed[0] if listed else None


def _status(table: Table, part: str) -> tuple[str, str] | None:
    """The field and the value that a verb leads to: `cancel` to status `cancelled`."""
    verb = plain(part)
    for name, schema in table.fields.items():
        for value in schema.get("enum", ()):
            word = plain(str(value))
            if len(verb) > 2 and (word.startswith(verb) or word.startswith(verb[:-1] + "ied")):
                return name, str(value)
    return None


def _listed(action: Action, table: Table, rows: Mapping[str, Record], asked: Record) -> Json:
    """The records that fit; a parameter without a field of its name is looked for in all texts."""
    found = [one for one in rows.values() if all(_fits(table, one, *pair) for pair in asked.items())]
    records = cast(Json, copy.deepcopy(found))
    return {action.wrapped: records} if action.wrapped else records


def _fits(table: Table, record: Record, name: str, value: Json) -> bool:
    field = _field(table, name)
    if field is None:
        texts = [one for one in record.values() if isinstance(one, str)]
        return any(str(value).lower() in one.lower() for one in texts)
    held = record.get(field)
    wanted = value if isinstance(value, list) else [value]
    if isinstance(held, list):
        parts = [part for one in held for part in (one.values() if isinstance(one, Mapping) else (one,))]
        return any(one in parts for one in wanted)
    return any(str(held).lower() == str(one).lower() for one in wanted)


def _field(table: Table, name: str) -> str | None:
    return next((one for one in table.fields if plain(one) in (plain(name), plain(name).rstrip("s"))), None)


def _chosen(resources: Resources) -> list[Action]:
    """All actions, or of many those of the tables that most can be done to."""
    if len(resources.actions) <= MOST_TOOLS:
        return resources.actions
    own: dict[str, list[Action]] = {}
    for one in resources.actions:
        own.setdefault(one.table, []).append(one)
    kept: set[str] = set()
    for listed in sorted(own.values(), key=lambda listed: -len({one.does for one in listed})):
        if len(kept) + len(listed) <= MOST_TOOLS:
            kept |= {one.operation.name for one in listed}
    return [one for one in resources.actions if one.operation.name in kept]


def _tool(action: Action, table: Table) -> Tool:
    operation = action.operation
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in operation.parameters:
        if one.place == "path" or _is_of_use(action, table, one.name, one.schema):
            properties[one.name] = varied(one.schema)
            if one.required:
                required.append(one.name)
    body = _body(operation, action, table)
    for name, schema in body.items():
        properties.setdefault(name, schema)
    required += _needed(operation, action, table, body)
    schema: JsonObject = {"type": "object", "properties": cast(Json, properties)}
    if required:
        schema = {**schema, "required": cast(Json, list(dict.fromkeys(required)))}
    told = operation.told or f"{' '.join(words_of(operation.name))}"
    return Tool(name=operation.name, description=told, parameters=schema)


def _needed(operation: Operation, action: Action, table: Table, body: Mapping[str, Any]) -> list[str]:
    """Fields of a body without which it says too little.

    Documents often require nothing. Whoever makes a record says what it refers to, and its key where people
    give it; whoever makes one or sets a part of one says something.
    """
    wanted = {*cast("Sequence[str]", (operation.body or {}).get("required", ())), action.key}
    if action.does is Does.CREATE:
        wanted |= {*table.refers} | ({table.key} if table.given else set())
    found = [name for name in body if name in wanted]
    single = [name for name, schema in body.items() if schema.get("type") not in ("array", "object")]
    says = action.does in (Does.CREATE, Does.SET_PART)
    return found or (single[:1] if says else [])


def _is_of_use(action: Action, table: Table, name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a parameter of the query says which records are meant."""
    if plain(name) in _PAGING or action.does is not Does.LIST:
        return False
    field = _field(table, name)
    if field is None:
        return plain(name) in _SEARCH
    kept = table.fields[field]  # a station's id finds no trip that has its name
    return "uuid" not in (kept.get("format"), schema.get("format")) or kept.get("format") == schema.get(
        "format"
    )


def _body(operation: Operation, action: Action, table: Table) -> dict[str, Any]:
    """Fields that can be sent: those that are needed, and some of the others; no key that the server sets."""
    sent = operation.body or {}
    properties = cast("dict[str, Any]", sent.get("properties", {}))
    needed = set(cast("Sequence[str]", sent.get("required", ())))
    hidden = {*action.parents.values()}
    if not (table.given and action.does is Does.CREATE) and table.key != action.key:
        hidden.add(table.key)
    kept: dict[str, Any] = {}
    optional = 0
    for name, schema in properties.items():
        if name in hidden - needed or name in operation.path:
            continue
        if name not in needed and name != action.key:
            optional += 1
            items = cast("Mapping[str, Any]", schema.get("items") or {})
            of_objects = {schema.get("type"), items.get("type", "string")} & {"object", None}
            if optional > _MOST_FIELDS or of_objects:
                continue
        kept[name] = varied(schema)
    return kept
