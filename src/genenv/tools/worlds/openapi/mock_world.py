"""A tool environment made from an OpenAPI document: operations run on mock tables, without generated code.

Operations list, find, create, change and delete records, as their paths and methods suggest (`resources`).
Nothing is sent to a service. Arguments satisfy the operation's schema, and records that they refer to must
exist. When the world is made, each operation is checked against the document; one that fails is left out.

`Parameters` is what a tool takes of an operation's parameters and body, `chosen` picks the operations that
become tools, and `MockSession` is one execution of calls.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

from genenv.errors import UsageError
from genenv.tools.discover.state_values import singular, words_of
from genenv.tools.worlds.base import Call, LoadedWorld, Outcome, Played, Session, Tool
from genenv.tools.worlds.differences import is_equal
from genenv.tools.worlds.openapi.document import (
    Document,
    Parameter,
    argument_name,
    deprecated,
    operations,
)
from genenv.tools.worlds.openapi.resources import Action, Does, Resources, Table
from genenv.tools.worlds.openapi.rows import (
    MOMENT,
    AnswerBuilder,
    Record,
    State,
    alone,
    completed,
    defaults_of,
    first_state,
    new_key,
    part_set,
    valued,
    varied,
)
from genenv.tools.worlds.openapi.shapes import (
    is_fixed,
    items_of,
    plain,
    properties_of,
    required_of,
    without_defaults,
)
from genenv.types import Json

_MOST_OPTIONAL = 8
"""Maximum number of optional fields of a request body that become arguments."""
_LONGEST = 8000
"""Maximum length in characters of an argument's schema; of a longer one parts are left out."""
_PAGING = frozenset(
    {"limit", "offset", "page", "perpage", "pagesize", "size", "cursor", "sort", "sortby", "order", "orderby"}
)
"""Parameters for paging and sorting, which tasks omit."""
_SEARCH = frozenset({"q", "query", "search", "keyword", "term", "text"})
_DEPRECATED = re.compile(r"\W*deprecated\b", re.IGNORECASE)
"""The beginning of a description of what should no longer be given."""


class Parameters:
    """The arguments of a tool made from an operation on a table."""

    def __init__(self, action: Action, table: Table) -> None:
        self._action, self._table = action, table
        is_put = action.does is Does.UPDATE and action.operation.method == "put"
        self._replaces = is_put or action.does is Does.CREATE
        """Whether what is left out gets its default. Other changes keep what it was, and show no default."""
        self.unused: list[str] = []
        """Fields of the request body without an argument."""
        body = self._body()
        needed = self._needed(body)
        fields = [Parameter(name=n, place="", required=n in needed, schema=one) for n, one in body.items()]
        self.arguments: dict[str, Parameter] = {}
        """What each argument sets: a parameter, or a field of a record."""
        for one in (*self._listed(), *fields):
            place = one.place or singular(table.word)
            name = one.name if one.place else action.spelled.get(one.name, one.name)
            shown = one if self._replaces else replace(one, schema=without_defaults(one.schema))
            self.arguments[argument_name(name, self.arguments, place)] = shown
        queried = [name for name, one in self.arguments.items() if one.place == "query"]
        self.idle = [name for name in queried if not self._is_of_use(self.arguments[name])]
        """Required arguments without an effect on the tables."""
        says = action.does in (Does.CREATE, Does.UPDATE) or (action.does is Does.SET_PART and action.sent)
        is_lost = action.operation.body is not None and says and not body
        told = "the document names no field of what it sends that could be given"
        self.problem = told if is_lost else None
        """Why the operation cannot be a tool; None if it can."""

    @cached_property
    def tool(self) -> Tool:
        """The tool as the agent sees it."""
        return self._action.operation.tool(self.arguments)

    def read(self, args: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return the values of a call: path parameters by name, and other values by record field."""
        path, others = dict[str, Json](), dict[str, Json]()
        for name in [name for name in args if name not in self.idle]:
            one = self.arguments[name]
            value = completed(one.schema, args[name]) if self._replaces else args[name]
            (path if one.place == "path" else others)[one.name] = value
        left_out = self._defaults if self._replaces else {}
        return path, others | {name: value for name, value in left_out.items() if name not in others}

    def kept(self, record: Record) -> Record:
        """Return what a change keeps of a record: all, or what no argument or the service itself sets."""
        table = self._table
        own = {table.key, *table.links, *table.required}
        own |= {name for name, one in table.fields.items() if one.get("format") == "date-time"}
        set_here = {one.name for one in self.arguments.values() if self._replaces and not one.place}
        return {name: value for name, value in record.items() if name in own or name not in set_here}

    @cached_property
    def _defaults(self) -> dict[str, Json]:
        """The values of a record's fields that a request leaves out, where the document states them."""
        links = {**self._table.links, **self._action.refers, self._table.key: ""}
        return {
            name: value
            for name, value in defaults_of(
                {name: one.schema for name, one in self._action.sent.items()}
            ).items()
            if name not in links
        }

    def _listed(self) -> Iterator[Parameter]:
        """Yield parameters of the path and the query. An untyped id gets the type of the key field."""
        for one in self._action.operation.parameters:
            name = self._action.parents.get(one.name) or self._table.key
            kind = self._table.fields.get(name, {}).get("type")
            told = {key: told for key, told in one.schema.items() if key != "examples"}
            is_any = {**told, "description": ""} == {"type": "string", "description": ""}
            if one.place == "path" and is_any and kind == "integer":
                yield replace(one, schema={**told, "type": kind})
            elif one.place == "path" or (one.place == "query" and (one.required or self._is_of_use(one))):
                yield replace(one, schema=self._varied(one.name, one.schema, one.place))

    def _is_of_use(self, parameter: Parameter) -> bool:
        """Whether a query parameter selects records."""
        name, schema = parameter.name, parameter.schema
        if schema.get("type") == "object" or plain(name) in _PAGING or self._action.does is not Does.LIST:
            return False
        field = field_of(self._table, name)
        if field is None:
            return plain(name) in _SEARCH and "enum" not in schema
        kept = self._table.fields[field]  # an id cannot filter a field of names
        forms = kept.get("format"), schema.get("format")
        return "uuid" not in forms or forms[0] == forms[1]

    def _body(self) -> dict[str, Any]:
        """Return the schemas of the body's fields that become arguments, without server-set keys."""
        action, table = self._action, self._table
        in_path = {one.name for one in action.operation.parameters if one.place == "path"}
        hidden = {*action.parents.values(), *action.parents}
        in_body = action.key is not None and action.key not in in_path
        if not in_body and not (table.given and action.does is Does.CREATE):
            hidden |= {table.key, action.key or table.key}
        asked = {n: one for n, one in action.sent.items() if n not in hidden and not is_fixed(one.schema)}
        kept = [name for name, one in asked.items() if one.required or name == action.key]
        optional = [name for name, one in asked.items() if name not in kept and not _is_free(one.schema)]
        optional.sort(key=lambda name: self._rank(name, asked[name].schema))
        kept += optional[: 0 if action.does is Does.DELETE else _MOST_OPTIONAL]
        self.unused = [action.spelled.get(name, name) for name in asked if name not in kept]
        varied = {name: self._varied(name, one.schema) for name, one in asked.items() if name in kept}
        return {name: _telling(_brief(schema)) for name, schema in varied.items()}

    def _varied(self, name: str, schema: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """Return the schema of an argument; keys of records here do not look like the document's example."""
        is_key = place == "path" or name in {**self._table.links, **self._action.refers}
        return varied(schema, "" if is_key else name)

    def _rank(self, name: str, schema: Mapping[str, Any]) -> tuple[bool, ...]:
        """Return what optional fields are ordered by: single ones first, of these what refers to records."""
        old = _DEPRECATED.match(str(schema.get("description", ""))) is not None
        return _is_nested(schema), old, name not in {**self._table.links, **self._action.refers}

    def _needed(self, body: Mapping[str, Any]) -> set[str]:
        """Return the fields of a body that must be given for a call to make sense.

        Documents often require nothing. In that case, creating a record requires its references, and creating
        a record or setting a part requires at least one field. A key that users choose is always required.
        """
        action, table = self._action, self._table
        required = {name for name, one in action.sent.items() if one.required}
        wanted = {*required, action.key or ""}
        if action.does is Does.CREATE:
            wanted |= {*(() if required else table.refers), *((table.key,) if table.given else ())}
        found = {name for name in body if name in wanted}
        single = [name for name, schema in body.items() if not _is_nested(schema)]
        says = action.does in (Does.CREATE, Does.SET_PART)
        return found or ({*(single or [*body])[:1]} if says else set())


def field_of(table: Table, name: str) -> str | None:
    """Return the field of a record that a query parameter filters, or None."""
    bare = plain(name)
    ways = (bare, bare.rstrip("s"), bare.removeprefix("filter"))
    return next((one for one in table.fields if plain(one) in ways), None)


def _is_nested(schema: Mapping[str, Any]) -> bool:
    """Whether a value is an object, or a list of objects."""
    kinds = {schema.get("type"), items_of(schema).get("type", "string")}
    return bool(kinds & {"object", None}) and "enum" not in schema


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object, or of a list of objects, names no fields."""
    return _is_nested(schema) and not properties_of(schema) and not properties_of(items_of(schema))


def _brief(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that is not too long for a prompt: of inner objects it keeps what they require."""
    if len(json.dumps(schema)) <= _LONGEST:
        return schema
    told = _telling(schema)
    return told | {"properties": {name: _core(one) for name, one in properties_of(told).items()}}


def _core(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the fields that they require."""
    if properties := properties_of(schema):
        required = required_of(schema)
        return schema | {"properties": {name: _core(properties[name]) for name in required}}
    return schema | {"items": _core(schema["items"])} if "items" in schema else schema


def _telling(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which each object requires a field: its first one if it requires none."""
    told = dict(schema)
    if properties := properties_of(schema):
        inner = {name: _telling(one) for name, one in properties.items()}
        required = list(required_of(schema))
        single = [name for name, one in properties.items() if not _is_nested(one) and not is_fixed(one)]
        told |= {"properties": inner, "required": required or single[:1]}
    elif "items" in schema:
        told["items"] = _telling(items_of(schema))
    return told


MOST_TOOLS = 48
"""Maximum number of operations that become tools; more would be too many for one prompt."""
TOO_MANY = f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
_USUAL = (Does.LIST, Does.READ, Does.CREATE, Does.UPDATE, Does.DELETE)
"""The usual actions on a resource."""
_MOST_LINKS = 4


def chosen(
    actions: Sequence[Action], tables: Mapping[str, Table], only: Sequence[str] = ()
) -> tuple[list[Action], dict[str, str]]:
    """Return the actions that become tools, in document order, and the reasons for leaving out the others.

    If there are too many, the usual actions (list, read, create, update, delete) of the most connected tables
    come first, each by its shortest path, then the other actions in the same order.
    """
    left_out = deprecated([one.operation for one in actions], only)
    current = [one for one in actions if one.operation.name not in left_out]
    if len(current) <= MOST_TOOLS:
        return current, left_out
    own: dict[str, list[Action]] = {}
    for one in current:
        own.setdefault(one.table, []).append(one)
    links = Counter(to for name in own for to in {*tables[name].links.values()} - {name})
    ordered = sorted(own, key=lambda name: -_weight(own[name], min(links[name], _MOST_LINKS)))
    usual = [[[one for one in own[name] if one.does is does] for does in _USUAL] for name in ordered]
    first = [[min(some, key=lambda a: len(a.operation.segments)) for some in one if some] for one in usual]
    rest = [[one for one in own[name] if one not in some] for name, some in zip(ordered, first, strict=True)]
    kept: set[str] = set()
    for group in (*first, *rest, *([one] for some in (*first, *rest) for one in some)):
        names = {one.operation.name for one in group}
        kept |= names if len(kept | names) <= MOST_TOOLS else set()
    left_out |= {one.operation.name: TOO_MANY for one in current if one.operation.name not in kept}
    return [one for one in current if one.operation.name in kept], left_out


def _weight(actions: Sequence[Action], links: int) -> int:
    """Return how important a table is: its usual actions, the tables that refer to it, and its path depth."""
    usual = {one.does for one in actions} & {*_USUAL}
    depth = min(len(one.operation.segments) for one in actions)
    alone = Does.LIST not in usual and Does.READ not in usual
    return len(usual) + links - depth - 2 * alone


_READS = frozenset({Does.LIST, Does.READ, Does.READ_PART})


class _Refused(Exception):
    """A call fails; the message is the error for the agent."""


class MockWorld(LoadedWorld):
    """A world whose tools are the operations of an OpenAPI document, on mock tables.

    Args:
        text: the document.
        name: what messages call it.
        only: prefixes of the paths whose operations are tools; empty: all.
        rows: the initial rows of tables; those of others are drawn.

    Raises:
        UsageError: it is not an OpenAPI document, or has no operation on records.
    """

    def __init__(
        self, text: str, name: str, only: Sequence[str] = (), rows: State = MappingProxyType({})
    ) -> None:
        resources = Resources(operations(Document(text, name), only))
        self.tables = resources.tables
        """The tables by name."""
        self.left_out = dict(resources.left_out)
        self.parameters = {
            one.operation.name: Parameters(one, self.tables[one.table]) for one in resources.actions
        }
        self.left_out |= {tool: one.problem for tool, one in self.parameters.items() if one.problem}
        self.made_up: dict[tuple[str, str], Json] = {}
        """The values that the service itself gives new records, by table and field."""
        self._hold(resources.actions, name, only, rows)
        if not self.tools:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in list(self.left_out.items())[:3])
            raise UsageError(f"no operation of {name} reads or changes records ({reasons[:300]})")

    def _hold(self, actions: Sequence[Action], seed: str, only: Sequence[str], rows: State) -> None:
        """Choose the operations, and leave out those that fail their check against the document."""
        sound = [one for one in actions if one.operation.name not in self.left_out]
        checked: set[str] = set()
        while True:
            kept, others = chosen(sound, self.tables, only)
            used = {
                other
                for one in kept
                for other in (one.table, *self.tables[one.table].links.values(), *one.refers.values())
            }
            tables = {key: one for key, one in self.tables.items() if key in used}
            self.first = first_state(tables, seed, rows)
            self.actions = {one.operation.name: one for one in kept}
            self.tellers = {tool: AnswerBuilder(one.answer, tool) for tool, one in self.actions.items()}
            self.tools = {tool: self.parameters[tool].tool for tool in self.actions}
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
        known = [(tool, self.parameters[tool]) for tool in self.tools]
        more = "`{}` takes more than tasks give: {}"
        idle = "{1} of `{0}` must be given, and changes nothing on mock tables"
        return [
            *(more.format(tool, ", ".join(one.unused)) for tool, one in known if one.unused),
            *(idle.format(tool, ", ".join(one.idle)) for tool, one in known if one.idle),
        ]

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        session = MockSession(self)
        outcomes = tuple(session.done(call, watch=watch) for call in calls)
        return Played(outcomes=outcomes, state=session.rows)

    def session(self) -> AbstractAsyncContextManager[Session]:
        """See `World`."""
        return nullcontext(MockSession(self))

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
        (outcome,) = self.play([call]).outcomes
        if outcome.error is not None:
            waits = action.does is Does.READ_PART and any(
                (one.table, one.does, one.part) == (action.table, Does.SET_PART, action.part)
                for one in self.actions.values()
            )
            return None if waits else f"it fails on mock tables: {outcome.error}"
        declared = alone("answer", action.answer.schema if action.answer else {})
        problem = declared.problem({"answer": outcome.result})
        return f"mock tables do not answer as the document says: {problem}" if problem else None

    def sample(self, tool: str) -> Call | None:
        """Return a call of an operation with the ids of an initial record; None if there is none."""
        action, tooled, known = self.actions[tool], self.tools[tool], self.parameters[tool].arguments
        table, rng = self.tables[action.table], random.Random(tool)
        record = next(iter(self.first[table.name].values()), Record())
        held = {**action.parents, **({action.key: table.key} if action.key is not None else {})}
        others = [one for one in tooled.properties if known[one].place != "path"]
        is_bare = action.does is Does.UPDATE and not tooled.required & {*others}
        required = tooled.required | {*others[:is_bare]}
        args: dict[str, Json] = {}
        for argument in [one for one in tooled.properties if one in required]:
            name = known[argument].name
            if name in held and held[name] not in record:
                return None
            if name in held:
                args[argument] = record[held[name]]
            elif (other := table.refers.get(name) or action.refers.get(name)) and self.first.get(other):
                one = next(iter(self.first[other].values()))[self.tables[other].key]
                args[argument] = [one] if known[argument].schema.get("type") == "array" else one
            elif name == table.key:
                taken = self.first[table.name]
                args[argument] = new_key(table, len(taken) + 1, taken)
            else:
                args[argument] = valued(name, known[argument].schema, rng)
        return Call(tool=tool, args=args)


class MockSession:
    """One run of the operations on a copy of the mock tables."""

    def __init__(self, world: MockWorld) -> None:
        self._world, self._tables = world, world.tables
        self._rows = {name: dict(rows) for name, rows in world.first.items()}
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
        """Make one call; with `watch`, look whether it changes the rows."""
        action = self._world.actions.get(call.tool)
        if action is None:
            return Outcome(error=f"There is no tool {call.tool!r}.")
        if problem := self._world.tools[call.tool].problem(call.args):
            return Outcome(error=problem)
        watch = watch and action.does not in _READS
        rows = self._rows[action.table]
        before = json.dumps(rows, sort_keys=True) if watch else ""
        try:
            result = self._result(action, call.args)
        except _Refused as error:  # nothing was changed
            return Outcome(error=str(error))
        return Outcome(result=result, changed=watch and json.dumps(rows, sort_keys=True) != before)

    def _result(self, action: Action, given: Mapping[str, Json]) -> Json:
        table, rows = self._tables[action.table], self._rows[action.table]
        teller = self._world.tellers[action.operation.name]
        path, args = self._world.parameters[action.operation.name].read(given)
        owner = self._owner(action, path)
        if action.does is Does.LIST:
            owned = [one for one in rows.values() if _belongs(one, owner)]
            return teller.told([one for one in owned if all(_fits(table, one, *arg) for arg in args.items())])
        if action.does is Does.CREATE:
            return teller.told(self._created(action, {**args, **owner}))
        key = path[action.key] if action.key in path else args.pop(cast(str, action.key))
        record = rows.get(str(key))
        if record is None or not _belongs(record, owner):
            raise _Refused(f"There is no {_one(table)} {key}.")
        key, part = record[table.key], action.part
        if action.does is Does.READ_PART and part not in record:
            if action.answer is not None and action.answer.many:
                return teller.told([])
            raise _Refused(f"{_one(table).capitalize()} {key} has no {' '.join(words_of(part))}.")
        if action.does is Does.DELETE:
            del rows[str(key)]
        elif action.does not in _READS:
            is_part = action.does is Does.SET_PART
            if not (args or is_part):
                raise _Refused("There is nothing to change.")
            self._referred({**action.refers, **table.links}, args)
            args = part_set(action, table, args) if is_part else args
            whole = {**self._world.parameters[action.operation.name].kept(record), **args}
            cleared = {name for name, value in args.items() if value is None}
            rows[str(key)] = record = {name: one for name, one in whole.items() if name not in cleared}
        elif action.does is Does.READ_PART:
            return teller.told(record[part])
        is_gone = action.does is Does.DELETE and action.answer is None
        return {"deleted": key} if is_gone else teller.told(record)

    def _owner(self, action: Action, path: Mapping[str, Json]) -> Record:
        """Return the fields that link a record to the records in its path; refuse if these do not match."""
        table = self._tables[action.table]
        for parameter, name in action.parents.items():
            above = table.parents.get(name, "")
            if above not in self._rows:
                continue
            parent = self._rows[above].get(str(path[parameter]))
            shared, others = self._tables[above].owners, [one for one in action.above if one != parameter]
            around = {shared[own]: path[one] for one in others if (own := action.above[one]) in shared}
            if parent is None or not _belongs(parent, around):
                raise _Refused(f"There is no {_one(self._tables[above])} {path[parameter]}.")
        return {name: path[parameter] for parameter, name in action.parents.items()}

    def _created(self, action: Action, args: Record) -> Record:
        table, rows = self._tables[action.table], self._rows[action.table]
        self._referred({**action.refers, **table.links}, args)
        key = args.get(table.key)
        while key is None:
            self._made[table.name] += 1
            key = new_key(table, self._made[table.name], rows)
            if key is None:
                raise _Refused(f"There can be no other {_one(table)}.")
            key = None if str(key) in rows else key
        if str(key) in rows:
            raise _Refused(f"There is a {_one(table)} {key} already.")
        others = {name: value for name, value in args.items() if name != table.key and value is not None}
        record: Record = {table.key: key, **others}
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
                return cast(Json, schema[known])
        if "nullable" in schema:
            return None
        if schema.get("format") == "date-time" or "enum" in schema:
            return MOMENT if "enum" not in schema else cast("Sequence[Json]", schema["enum"])[0]
        if name not in table.required:
            return None
        if there := self._rows.get(table.links.get(name, "")):
            return next(iter(there.values()))[self._tables[table.links[name]].key]
        place = (table.name, name)
        if place not in self._world.made_up:
            self._world.made_up[place] = valued(name, schema, random.Random(f"{table.name} {name}"))
        return self._world.made_up[place]

    def _referred(self, links: Mapping[str, str], args: Mapping[str, Json]) -> None:
        for name, other in links.items():
            if name not in args or other not in self._rows:
                continue
            given = args[name]
            for value in given if isinstance(given, list) else [given]:
                if value is not None and str(value) not in self._rows[other]:
                    raise _Refused(f"There is no {_one(self._tables[other])} {value}.")


def _one(table: Table) -> str:
    return " ".join(words_of(table.word)) or table.word


def _belongs(record: Record, owner: Mapping[str, Json]) -> bool:
    return all(str(record.get(name)) == str(value) for name, value in owner.items())


def _fits(table: Table, record: Record, name: str, value: Json) -> bool:
    """Whether a record matches an argument; an unknown one searches all texts of the record."""
    field = field_of(table, name)
    if field is None:
        texts = [one for one in record.values() if isinstance(one, str)]
        return any(str(value).lower() in one.lower() for one in texts)
    held = record.get(field, [])
    parts = held if isinstance(held, list) else [held]
    parts = [part for one in parts for part in (one.values() if isinstance(one, Mapping) else (one,))]
    wanted = value if isinstance(value, list) else [value]
    return any(_is_alike(one, part) for one in wanted for part in parts)


def _is_alike(one: Json, other: Json) -> bool:
    """Whether two values are equal. Texts are compared in any case, also with the text of a number."""
    if isinstance(one, str) or isinstance(other, str):
        return None not in (one, other) and str(one).lower() == str(other).lower()
    return is_equal(one, other)
