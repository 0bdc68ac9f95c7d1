"""The interface of a tool environment ("world"): tools, and the state that they read and change.

Each rollout starts from the same state. It makes its calls in a session; its verdict reads the session's
state. Tasks are made and checked by whole programs: all calls since the start. A world may cache programs
that it has executed; results are the same with and without the cache.
"""

from __future__ import annotations

import fnmatch
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from keyword import iskeyword
from typing import NamedTuple, Protocol, cast
from unicodedata import is_normalized

from genenv.errors import UsageError
from genenv.types import Json, JsonObject
from genenv.untrusted import schemas

GONE = "The tool ended its process, or took too long."
TOOK_TOO_LONG = "The tool took too long."
MOST_CHARS = 64_000
"""Of a result. More is an error for the agent, who could not read it."""
NOT_CHOSEN = "--only does not choose it"
"""Why a tool is none, where the user wants others of the same source."""
TOO_LONG = f"The result is longer than {MOST_CHARS} characters."
NO_REFUSALS = frozenset({GONE, TOOK_TOO_LONG, TOO_LONG})
"""Errors that no tool says by itself."""
_SHORT_LIST, _MOST_LISTED = 3, 20
"""Values of a parameter that a prompt repeats, and that it lists; of longer lists it has the first ones."""
_MOST_DEFAULT = 60
"""Maximum length in characters of a default value in a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call with literal arguments by name."""

    tool: str
    args: Mapping[str, Json]

    @property
    def json(self) -> JsonObject:
        """As JSON."""
        return {"tool": self.tool, "args": dict(self.args)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one tool call: a value or an error, and whether the state changed."""

    result: Json = None
    error: str | None = None
    """The error text that the agent gets instead of a result."""
    is_raised: bool | None = field(default=None, compare=False)
    """Whether the tool's own code raises the error, and not what it calls by mistake; None: not known."""
    changed: bool = False
    """Whether the call changed the state; set where the program was executed with `watch`, or is always."""
    drew: bool = False
    """Whether the tool drew random numbers that are seeded: the same call, made again, draws others."""

    @property
    def text(self) -> str:
        """The tool message that the agent gets, as compact JSON."""
        told: Json = self.result if self.error is None else {"error": self.error}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcomes of an executed program, and the state in which it ended."""

    outcomes: tuple[Outcome, ...]
    """One for each call."""
    state: Json
    """At the end."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as the agent sees it: name, description and argument schema, whatever runs it."""

    name: str
    description: str = ""
    """What it does, in a sentence."""
    parameters: JsonObject = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of its arguments, an object; references in it are resolved."""
    writes: bool | None = None
    """Whether its author declares that it changes the state; None: not declared. Experiments decide."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", schemas.plain_schema(self.parameters))

    @property
    def properties(self) -> Mapping[str, JsonObject]:
        """The schema of each parameter."""
        return cast("Mapping[str, JsonObject]", self.parameters.get("properties", {}))

    @property
    def required(self) -> frozenset[str]:
        """Parameters without which it cannot be called."""
        return frozenset(cast("Sequence[str]", self.parameters.get("required", ())))

    @property
    def schema(self) -> JsonObject:
        """The tool definition as the OpenAI and Hugging Face chat APIs take it, with long lists cut."""
        function: JsonObject = {
            "name": self.name,
            "description": self.description,
            "parameters": _for_prompts(self.parameters),
        }
        return {"type": "function", "function": function}

    @cached_property
    def heading(self) -> str:
        """As one line of Python, short as each prompt token costs: `refund(order_id, amount: number=0)`.

        What may be left out and has no stated default ends in `=...`, as in stub files. Names that Python
        cannot write are in quotation marks: `"get-order"(id, "from"=...)`.
        """
        listed: dict[str, str] = {}
        return f"{_marked(self.name)}({', '.join(self._short(name, listed) for name in self.properties)})"

    @cached_property
    def is_plain(self) -> bool:
        """Whether Python can write all calls of it."""
        return is_plain(self.name, *self.properties)

    def _short(self, name: str, listed: dict[str, str]) -> str:
        """A parameter; a long list that an earlier one has as well is not repeated."""
        schema = self.resolved(self.properties[name])
        if choices := cast("Sequence[Json]", schema.get("enum", ())):
            kind = "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
            twin = listed.setdefault(kind, name)
            if twin != name and len(choices) > _SHORT_LIST:
                kind = f"as {twin}"
            elif len(choices) > _MOST_LISTED:
                kind = _some_of(choices)
        else:
            told = schema.get("format") or schema.get("type")
            kind = "|".join(map(str, told)) if isinstance(told, list) else str(told or "")
        own = self.properties[name]
        may_be_null, default = _takes_null(own), own.get("default", ...)
        if may_be_null and kind and default is not None:
            kind += "|null"
        shown = f"{_marked(name)}: {kind}" if kind not in ("", "string", name) else _marked(name)
        if name in self.required:
            return shown
        is_stated = default is not ... and (default is not None or may_be_null or not kind)
        stated = json.dumps(default, ensure_ascii=False) if is_stated else "..."
        return f"{shown}={stated if len(stated) <= _MOST_DEFAULT else stated[:_MOST_DEFAULT] + '...'}"

    def resolved(self, schema: JsonObject) -> JsonObject:
        """A schema without null: of alternatives the first other one, with the fields that all have."""
        for _ in range(16):
            ways = cast("Sequence[JsonObject]", schema.get("anyOf") or schema.get("oneOf") or ())
            if not ways:
                break
            first = next((way for way in ways if way.get("type") != "null"), ways[0])
            schema = _with_common(first, schema) if "properties" in schema else first
        return _without_null(schema)

    def problem(self, args: Mapping[str, Json]) -> str | None:
        """What is wrong with arguments, in a sentence; None if nothing is."""
        if unknown := sorted(set(args) - set(self.properties)):
            return f"{self.name} has no parameter {unknown[0]!r}."
        if missing := sorted(self.required - set(args)):
            return f"{self.name} lacks the argument {missing[0]!r}."
        found = self._validator.problem(dict(args))
        return f"{found[0] or self.name}: {found[1]}." if found else None

    @cached_property
    def _validator(self) -> schemas.Validator:
        return schemas.Validator(self.parameters)

    def fits(self, parameter: str, value: Json) -> bool:
        """Whether a parameter's schema allows a value, or a list of it."""
        if parameter not in self._parts:
            properties: JsonObject = {parameter: self.properties[parameter]}
            self._parts[parameter] = schemas.Validator(
                {**self.parameters, "properties": properties, "required": []}
            )
        problem = self._parts[parameter].problem
        return problem({parameter: value}) is None or problem({parameter: [value]}) is None

    @cached_property
    def _parts(self) -> dict[str, schemas.Validator]:
        return {}


def _takes_null(schema: JsonObject) -> bool:
    """Whether a schema names null among what it allows."""
    ways = cast("Sequence[JsonObject]", schema.get("anyOf") or schema.get("oneOf") or ())
    return schema.get("type") == "null" or any(map(_takes_null, ways)) or _without_null(schema) != schema


def _without_null(schema: JsonObject) -> JsonObject:
    """A schema without null, if its types or values are listed and null is one of several."""
    kept: dict[str, Json] = dict(schema)
    for keyword, null in (("type", "null"), ("enum", None)):
        listed = schema.get(keyword)
        if isinstance(listed, list) and (others := [one for one in listed if one != null]):
            kept[keyword] = others[0] if keyword == "type" and len(others) == 1 else others
    return kept


def _with_common(first: JsonObject, schema: JsonObject) -> JsonObject:
    """The first alternative of an object, with the fields that stand beside the alternatives."""
    both = [cast("Mapping[str, Json]", one.get("properties", {})) for one in (schema, first)]
    needed = [cast("Sequence[str]", one.get("required", ())) for one in (schema, first)]
    required: list[Json] = [*dict.fromkeys((*needed[0], *needed[1]))]
    return {"type": "object", **first, "properties": {**both[0], **both[1]}, "required": required}


def _some_of(values: Sequence[Json]) -> str:
    """A list of values that is too long for a prompt, in a few words."""
    some = "|".join(json.dumps(value, ensure_ascii=False) for value in values[:_SHORT_LIST])
    return f"one of {len(values)}, such as {some}"


def _for_prompts(schema: Json) -> Json:
    """A schema as prompts have it: without long lists of values, and defaults of null that it refuses.

    Arguments are validated by the full one.
    """
    if isinstance(schema, list):
        return [_for_prompts(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _for_prompts(one) for name, one in schema.items()}
    if found.get("default", 0) is None and "type" in found and not _takes_null(found):
        del found["default"]
    if isinstance(examples := found.get("examples"), list) and len(examples) > _MOST_LISTED:
        found["examples"] = examples[:_SHORT_LIST]
    if isinstance(values := found.get("enum"), list) and len(values) > _MOST_LISTED:
        del found["enum"]
        told = found.get("description")
        found["description"] = f"{told} " * isinstance(told, str) + _some_of(values)
    return found


def is_plain(*names: str) -> bool:
    """Whether all names are identifiers that mean the same in a call in Python, and no keywords."""
    return all(
        name.isidentifier() and not iskeyword(name) and name != "__debug__" and is_normalized("NFKC", name)
        for name in names
    )


def _marked(name: str) -> str:
    return name if is_plain(name) else json.dumps(name, ensure_ascii=False)


def usable(listed: Mapping[str, Callable[[], Tool]]) -> tuple[dict[str, Tool], dict[str, str]]:
    """Build the tools whose schemas can be used; for the others, give the reason.

    Args:
        listed: what makes each, by name; it may raise `BadSchema`.
    """
    tools: dict[str, Tool] = {}
    left_out: dict[str, str] = {}
    for name, make in listed.items():
        if re.search(r"[+>]", name):
            left_out[name] = "its name has a + or a >, which stand between tools in the plan of a task"
            continue
        try:
            tools[name] = make()
        except schemas.BadSchema as error:
            left_out[name] = f"the schema of its arguments cannot be used: {error}"
    return tools, left_out


def chosen(names: Iterable[str], only: Sequence[str], label: str) -> list[str]:
    """Return the names that match a pattern, such as `git_*`; without patterns, all.

    Args:
        names: the names of the tools.
        only: the patterns.
        label: where the tools are from, for messages.

    Raises:
        UsageError: a pattern matches no name.
    """
    listed = list(names)
    for pattern in only:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in listed):
            raise UsageError(
                f"--only {pattern!r} matches no tool of {label}; its tools are {', '.join(listed)[:400]}"
            )
    return [name for name in listed if not only or any(fnmatch.fnmatchcase(name, one) for one in only)]


class Session(Protocol):
    """One run of a world's tools, from the first state on. No other session sees what it does."""

    async def call(self, call: Call) -> Outcome:
        """Make one call. A failed call is an outcome, not an exception.

        Args:
            call: with arguments that the tool's schema allows.
        """
        ...

    async def state(self) -> Json:
        """The state that the calls so far have led to."""
        ...


class World:
    """A tool environment: tools, and a state that they read and change."""

    tools: Mapping[str, Tool]
    """By name, in the order in which they were found."""
    unseen: Mapping[str, str] = {}
    """Parts of the state that cannot be read, with their types, by path."""

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """Execute a program from the initial state; a failed call is an outcome, not an exception.

        Args:
            calls: with arguments that the tools' schemas allow.
            watch: whether to look after each call if it changed the state.
        """
        raise NotImplementedError

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """Execute a program without reading a cache; worlds that cache outcomes override it."""
        return self.play(calls)

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A fresh session; leaving the context ends it. Worlds with processes of their own override it."""
        return nullcontext(ReplayingSession(self))

    def close(self) -> None:
        """Release processes and folders."""


class LoadedWorld(World):
    """A world with what is known about its sandbox and about functions that are not tools."""

    left_out: dict[str, str]
    """Functions that cannot be tools, with the reason."""
    network: bool = False
    """Whether the tools can reach the network, though they need not."""
    confined: bool = True
    """Whether the tools can write in their own folder only, and where the user lets them."""
    asked: Collection[str] = ()
    """Files of the folder that tools wanted to read so far, and that were not there."""

    def received(self) -> int:
        """Return the number of bytes that the tools' process has sent so far."""
        return 0

    def hide(self, names: Collection[str], why: str) -> None:
        """Offer some tools no longer."""
        self.tools = {name: tool for name, tool in self.tools.items() if name not in names}
        self.left_out = {**self.left_out, **dict.fromkeys(names, why)}


class ReplayingSession:
    """A session of a world that can only execute whole programs: each call executes all calls so far.

    Args:
        world: caches programs, so that little is executed twice.
    """

    def __init__(self, world: World) -> None:
        self._world, self._calls = world, list[Call]()

    async def call(self, call: Call) -> Outcome:
        """See `Session`."""
        self._calls.append(call)
        return self._world.play(self._calls).outcomes[-1]

    async def state(self) -> Json:
        """See `Session`."""
        return self._world.play(self._calls).state


_MOST_KNOWN, _MOST_KNOWN_CHARS = 4096, 64 << 20
"""Programs that a world caches, and about how many characters their results and states have."""


class Step(NamedTuple):
    """What a program, or its beginning, led to, for `KnownPrograms`."""

    played: Played
    chars: int
    """About how many characters it takes that no other program takes."""

    @classmethod
    def alone(cls, played: Played) -> Step:
        """Return a step that shares nothing with others."""
        return cls(played, len(repr(played)))


class KnownPrograms:
    """A cache of executed programs. The least recently used are dropped first.

    Args:
        most: the largest number of programs.
    """

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        self._most, self._chars = most, 0
        self._lock = threading.RLock()  # a program that several threads want is executed once
        self._known: OrderedDict[str, tuple[Played, int, tuple[Call, ...]]] = OrderedDict()
        """What each led to, its size, and the program; of one that was only the beginning of others: ()."""

    def play(self, calls: Sequence[Call], *, watch: bool, execute: Callable[[], Sequence[Step]]) -> Played:
        """Return what a program led to. `execute` runs it if it is not in the cache.

        Args:
            calls: the program.
            watch: see `World.play`; programs with and without it are cached separately.
            execute: executes the program. It may return what beginnings of the program led to, before what
                all of it led to; all are cached.
        """
        key = _key(calls, watch)
        with self._lock:
            if key in self._known:
                self._known[key] = *self._known[key][:2], tuple(calls)
                self._known.move_to_end(key)
                return self._known[key][0]
            steps = execute()
            for played, chars in steps:
                is_whole = len(played.outcomes) == len(calls)
                begun = key if is_whole else _key(calls[: len(played.outcomes)], watch)
                self._add(begun, played, chars, tuple(calls) if is_whole else ())
            return steps[-1].played

    def programs(self) -> list[tuple[Call, ...]]:
        """Return the programs that were asked for last, without the empty one."""
        with self._lock:
            return [calls for _, _, calls in self._known.values() if calls]

    def _add(self, key: str, played: Played, chars: int, calls: tuple[Call, ...]) -> None:
        if key in self._known:
            return
        self._known[key] = played, chars, calls
        self._chars += chars
        while len(self._known) > self._most or self._chars > _MOST_KNOWN_CHARS:
            self._chars -= self._known.popitem(last=False)[1][1]


def _key(calls: Sequence[Call], watch: bool) -> str:
    return repr([(call.tool, call.args) for call in calls]) + "!" * watch


class WrappedWorld(World):
    """A world that executes calls in another one, whose tools it has.

    Args:
        world: executes the calls.
    """

    def __init__(self, world: World) -> None:
        self.world, self.tools, self.unseen = world, world.tools, world.unseen

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        return self.world.play(calls, watch=watch)

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        return self.world.play_uncached(calls)

    def session(self) -> AbstractAsyncContextManager[Session]:
        """See `World`."""
        return self.world.session()

    def close(self) -> None:
        """See `World`."""
        self.world.close()


class LimitedWorld(WrappedWorld):
    """A world with some of its tools hidden."""

    def __init__(self, world: World, leave_out: Collection[str]) -> None:
        super().__init__(world)
        self.tools = {name: tool for name, tool in world.tools.items() if name not in leave_out}
