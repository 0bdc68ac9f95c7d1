"""A tool environment made from an OpenAPI document: operations run on mock tables, without generated code.

Operations list, find, create, change and delete records, as their paths and methods suggest (`resources`).
Nothing is sent to a service. Arguments satisfy the operation's schema, and records that they refer to must
exist. When the world is made, each operation is checked against the document; one that fails is left out.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from genenv.errors import UsageError
from genenv.tools.discover.state_values import words_of
from genenv.tools.worlds.base import Call, Outcome, Played, Session, Tool
from genenv.tools.worlds.openapi.document import Document, operations
from genenv.tools.worlds.openapi.http_client import AnswerBuilder
from genenv.tools.worlds.openapi.parameters import NEWEST, Parameters, chosen, field_of
from genenv.tools.worlds.openapi.resources import Action, Does, Resources, Table
from genenv.tools.worlds.openapi.rows import MOMENT, Record, State, first_state, new_key, valued
from genenv.tools.worlds.openapi.shapes import plain
from genenv.types import Json, JsonObject

_READS = frozenset({Does.LIST, Does.READ, Does.READ_PART})


class _Refused(Exception):
    """A call fails; the message is the error for the agent."""


class MockWorld:
    """A world whose tools are the operations of an OpenAPI document, on mock tables.

    Args:
        text: the document.
        name: the document's name in messages.
        only: prefixes of the paths whose operations are tools; empty: all.
        version: see `OpenApiSource`.

    Raises:
        UsageError: it is not an OpenAPI document, or has no operation on records.
    """

    def __init__(self, text: str, name: str, only: Sequence[str] = (), version: int = NEWEST) -> None:
        document = Document(text, name)
        listed = [one for one in operations(document) if not only or one.path.startswith(tuple(only))]
        if only and not listed:
            raise UsageError(f"{name} has no path that begins with {' or '.join(only)}")
        resources = Resources(listed)
        self.tables = resources.tables
        """The tables by name."""
        self.left_out: dict[str, str] = dict(resources.left_out)
        """Operations that cannot be tools, with the reasons."""
        self.version = version
        self.parameters = {
            one.operation.name: Parameters(one, self.tables[one.table], version) for one in resources.actions
        }
        self.left_out |= {tool: one.problem for tool, one in self.parameters.items() if one.problem}
        self.network = False
        self.confined = True
        self.received = 0
        self.asked: Collection[str] = ()
        self.keys: dict[tuple[str, int], Json] = {}
        """The keys of new records by table and number, in all sessions the same."""
        self.made_up: dict[tuple[str, str], Json] = {}
        """The values that the service itself gives new records, by table and field."""
        self._hold(resources.actions, name, only)
        if not self.tools:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in list(self.left_out.items())[:3])
            raise UsageError(f"no operation of {name} reads or changes records ({reasons[:300]})")

    def _hold(self, actions: Sequence[Action], seed: str, only: Sequence[str]) -> None:
        """Choose the operations, and leave out those that fail their check against the document."""
        sound = [one for one in actions if one.operation.name not in self.left_out]
        checked: set[str] = set()
        while True:
            kept, others = chosen(sound, self.tables, only)
            used = {other for one in kept for other in (one.table, *self.tables[one.table].links.values())}
            self.first = first_state({key: one for key, one in self.tables.items() if key in used}, seed)
            self.actions = {one.operation.name: one for one in kept}
            self.tellers = {tool: AnswerBuilder(one.answer, tool) for tool, one in self.actions.items()}
            self.tools: dict[str, Tool] = {tool: self.parameters[tool].tool for tool in self.actions}
            faults = {
                tool: fault for tool in self.tools if tool not in checked and (fault := self._fault(tool))
            }
            checked |= {*self.tools}
            self.left_out |= faults
            sound = [one for one in sound if one.operation.name not in faults]
            if not faults:
                self.left_out |= others
                return

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences about what the tools omit of the document."""
        parameters = {tool: self.parameters[tool] for tool in self.tools}
        return [
            *(
                f"`{tool}` takes more than tasks give: {', '.join(one.unused)}"
                for tool, one in parameters.items()
                if one.unused
            ),
            *(
                f"{', '.join(one.idle)} of `{tool}` must be given, and changes nothing on mock tables"
                for tool, one in parameters.items()
                if one.idle
            ),
        ]

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        session = MockSession(self)
        outcomes = tuple(session.done(call, watch=watch) for call in calls)
        return Played(outcomes=outcomes, state=session.rows)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`."""
        yield MockSession(self)

    def close(self) -> None:
        """See `World`: there is nothing to release."""

    # checks against the document

    def _fault(self, tool: str) -> str | None:
        """Return how the mock tables violate the document for an operation; None if no violation is found.

        The operation is called with the ids of a record. Its parameters must accept these, and its answer
        must satisfy the declared response.
        """
        action = self.actions[tool]
        call = self.sample(tool)
        if call is None:
            return "no record can be made that its path names"
        if problem := self.tools[tool].problem(call.args):
            return f"no value can be made that its parameters take: {problem}"
        outcome = self.play([call]).outcomes[0]
        if outcome.error is not None:
            beside = (one for one in self.actions.values() if one.table == action.table)
            is_set = any(one.does is Does.SET_PART and one.part == action.part for one in beside)
            waits = action.does is Does.READ_PART and is_set
            return None if waits else f"it fails on mock tables: {outcome.error}"
        if action.answer is None:
            return None
        properties: JsonObject = {"answer": cast(Json, action.answer.schema)}
        declared = Tool(name=tool, parameters={"type": "object", "properties": properties})
        problem = declared.problem({"answer": outcome.result})
        return f"mock tables do not answer as the document says: {problem}" if problem else None

    def sample(self, tool: str) -> Call | None:
        """Return a call of an operation with the ids of an initial record; None if there is none."""
        action = self.actions[tool]
        table, rng = self.tables[action.table], random.Random(tool)
        record = next(iter(self.first[table.name].values()), Record())
        held = dict(action.parents)
        if action.key is not None:
            held[action.key] = table.key
        args: dict[str, Json] = {}
        known = self.parameters[tool]
        others = [one for one in self.tools[tool].properties if one not in known.in_path]
        required = self.tools[tool].required
        if action.does is Does.UPDATE and not required & {*others}:
            required |= {*others[:1]}
        for argument, schema in self.tools[tool].properties.items():
            if argument not in required:
                continue
            name = known.names[argument]
            if name in held:
                if held[name] not in record:
                    return None
                args[argument] = record[held[name]]
            elif (other := table.refers.get(name)) and self.first.get(other):
                args[argument] = next(iter(self.first[other].values()))[self.tables[other].key]
            else:
                args[argument] = valued(name, schema, rng)
        return Call(tool=tool, args=args)


class MockSession:
    """One run of the operations on a copy of the mock tables.

    Args:
        world: the operations and their tables.
    """

    def __init__(self, world: MockWorld) -> None:
        self._world, self._tables = world, world.tables
        self._rows: State = {name: dict(rows) for name, rows in world.first.items()}
        self._made = {name: len(rows) for name, rows in self._rows.items()}

    async def call(self, call: Call) -> Outcome:
        """See `Session`."""
        return self.done(call)

    async def state(self) -> Json:
        """See `Session`."""
        return self.rows

    @property
    def rows(self) -> Json:
        """The current rows of all tables. Records are shared and never change; a change replaces one."""
        return cast(Json, {name: dict(rows) for name, rows in self._rows.items()})

    def done(self, call: Call, *, watch: bool = False) -> Outcome:
        """Make one call.

        Args:
            call: the call.
            watch: whether to look if it changes the rows.
        """
        action = self._world.actions.get(call.tool)
        if action is None:
            return Outcome(error=f"There is no tool {call.tool!r}.")
        if problem := self._world.tools[call.tool].problem(call.args):
            return Outcome(error=problem)
        watch = watch and action.does not in _READS
        rows = self._rows[action.table]
        before = json.dumps(rows, sort_keys=True) if watch else ""
        result, refused = cast(Json, None), None
        try:
            result = self._result(action, copy.deepcopy(dict(call.args)))
        except _Refused as error:
            refused = str(error)
        changed = watch and json.dumps(rows, sort_keys=True) != before
        return Outcome(result=result, error=refused, changed=changed)

    def _result(self, action: Action, given: dict[str, Json]) -> Json:
        table, teller = self._tables[action.table], self._world.tellers[action.operation.name]
        path, args = self._world.parameters[action.operation.name].read(given)
        owner = self._owner(action, path)
        rows = self._rows[table.name]
        match action.does:
            case Does.LIST:
                found = [one for one in rows.values() if _belongs(one, owner) and _fits_all(table, one, args)]
                return teller.told(found, several=True)
            case Does.CREATE:
                return teller.told([self._created(table, {**args, **owner})], several=False)
            case _:
                key = path[action.key] if action.key in path else args.pop(cast(str, action.key))
                record = rows.get(str(key))
                if record is None or not _belongs(record, owner):
                    raise _Refused(f"There is no {_one(table)} {key}.")
                return self._on_record(action, record, args)

    def _owner(self, action: Action, path: Mapping[str, Json]) -> Record:
        """Return the fields that link a record to the records in its path; refuse if these do not match."""
        table = self._tables[action.table]
        for parameter, name in action.parents.items():
            above = table.parents.get(name, "")
            if above not in self._rows:
                continue
            parent = self._rows[above].get(str(path[parameter]))
            shared = self._tables[above].owners
            around = {
                shared[owner]: path[one]
                for one, owner in action.above.items()
                if owner in shared and one != parameter
            }
            if parent is None or not _belongs(parent, around):
                raise _Refused(f"There is no {_one(self._tables[above])} {path[parameter]}.")
        return {name: path[parameter] for parameter, name in action.parents.items()}

    def _on_record(self, action: Action, record: Record, args: dict[str, Json]) -> Json:
        table, teller = self._tables[action.table], self._world.tellers[action.operation.name]
        key = record[table.key]
        match action.does:
            case Does.READ:
                pass
            case Does.DELETE:
                del self._rows[table.name][str(key)]
                if action.answer is None:
                    return {"deleted": key}
            case Does.READ_PART:
                if action.part not in record:
                    raise _Refused(
                        f"{_one(table).capitalize()} {key} has no {' '.join(words_of(action.part))}."
                    )
                return _part_told(teller, record[action.part])
            case Does.SET_PART:
                self._referred(table, args)
                record = {**record, **_part_set(action, table, args)}
            case _:
                if not args and self._world.version > 1:
                    raise _Refused("There is nothing to change.")
                self._referred(table, args)
                record = {**record, **args}
        if action.does is not Does.DELETE:
            self._rows[table.name][str(key)] = record
        return teller.told([record], several=False)

    def _created(self, table: Table, args: Record) -> Record:
        self._referred(table, args)
        rows = self._rows[table.name]
        key = args.get(table.key)
        while key is None or (str(key) in rows and table.key not in args):
            self._made[table.name] += 1
            place = table.name, self._made[table.name]
            if place not in self._world.keys or str(self._world.keys[place]) in rows:
                self._world.keys[place] = new_key(table, self._made[table.name], rows)
            key = self._world.keys[place]
            if key is None:
                raise _Refused(f"There can be no other {_one(table)}.")
        if str(key) in rows:
            raise _Refused(f"There is a {_one(table)} {key} already.")
        record: Record = {
            table.key: key,
            **{name: value for name, value in args.items() if name != table.key},
        }
        for name in table.fields:
            if name not in record and (value := self._given_by_server(table, name)) is not None:
                record[name] = value
        rows[str(key)] = record
        return record

    def _given_by_server(self, table: Table, name: str) -> Json:
        """Return the value of a new record's field that no argument sets; None: no value."""
        schema = table.fields[name]
        for known in ("default", "const"):
            if known in schema:
                return copy.deepcopy(cast(Json, schema[known]))
        if schema.get("format") == "date-time":
            return MOMENT
        if listed := cast("Sequence[Json]", schema.get("enum", ())):
            return listed[0]
        if name not in table.required:
            return None
        if there := self._rows.get(table.links.get(name, "")):
            return next(iter(there.values()))[self._tables[table.links[name]].key]
        place = (table.name, name)
        if place not in self._world.made_up:
            self._world.made_up[place] = valued(name, schema, random.Random(f"{table.name} {name}"))
        return copy.deepcopy(self._world.made_up[place])

    def _referred(self, table: Table, args: Mapping[str, Json]) -> None:
        for name, other in table.links.items():
            if name in args and other in self._rows and str(args[name]) not in self._rows[other]:
                raise _Refused(f"There is no {_one(self._tables[other])} {args[name]}.")


def _one(table: Table) -> str:
    return " ".join(words_of(table.word)) or table.word


def _belongs(record: Record, owner: Mapping[str, Json]) -> bool:
    return all(str(record.get(name)) == str(value) for name, value in owner.items())


def _part_told(teller: AnswerBuilder, part: Json) -> Json:
    """Return the response for a part of a record, which may be any JSON value."""
    if isinstance(part, dict):
        return teller.told([part], several=False)
    if isinstance(part, list) and part and all(isinstance(one, dict) for one in part):
        return teller.told(cast("list[Record]", part), several=True)
    return copy.deepcopy(part)


def _part_set(action: Action, table: Table, args: Record) -> Record:
    """Return what a change of a part sets: a status named like the action, its fields, or the part itself."""
    status = _status(table, action.part)
    changes: Record = dict([status]) if status is not None else {}
    if args and all(name in table.fields for name in args):
        return {**changes, **args}
    if args or status is None:
        changes[action.part] = args or True
    return changes


def _status(table: Table, part: str) -> tuple[str, str] | None:
    """Return the field and value that a verb sets, such as status `cancelled` for `cancel`."""
    verb = plain(part)
    for name, schema in table.fields.items():
        for value in schema.get("enum", ()):
            word = plain(str(value))
            if len(verb) > 2 and (word.startswith(verb) or word.startswith(verb[:-1] + "ied")):
                return name, str(value)
    return None


def _fits_all(table: Table, record: Record, asked: Mapping[str, Json]) -> bool:
    """Whether a record matches all arguments; an unknown argument searches all texts of the record."""
    return all(_fits(table, record, *pair) for pair in asked.items())


def _fits(table: Table, record: Record, name: str, value: Json) -> bool:
    field = field_of(table, name)
    if field is None:
        texts = [one for one in record.values() if isinstance(one, str)]
        return any(str(value).lower() in one.lower() for one in texts)
    held = record.get(field)
    wanted = value if isinstance(value, list) else [value]
    if isinstance(held, list):
        parts = [part for one in held for part in (one.values() if isinstance(one, Mapping) else (one,))]
        return any(one in parts for one in wanted)
    return any(str(held).lower() == str(one).lower() for one in wanted)
