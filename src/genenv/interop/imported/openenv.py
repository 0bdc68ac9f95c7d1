"""OpenEnv servers as environments: `[environment] name = "openenv:http://HOST:PORT"`.

A rollout runs in a session of the server. The arguments of `reset` are the task, and the simulator sets
them. No package of OpenEnv is needed.

The schema of the server's actions decides how a reply becomes an action. There are four forms: text with
tool calls (servers that `genenv export-env` wrote), MCP tools, a single field, and a JSON object.
"""

from __future__ import annotations

import functools
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast, get_args

from pydantic import BaseModel

from genenv.chat.tool_calls import read_calls
from genenv.environments.stepwise import blocking
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.environment import (
    HELD_OUT_SEED,
    RANDOM_WORDS,
    ImportedEnvironment,
    RemoteRollout,
    Start,
    random_call,
    sampled,
    words_and_calls,
)
from genenv.interop.imported.settings import OpenEnvConfig
from genenv.interop.imported.space import Space
from genenv.interop.imported.wire import Answer, NoRoom, Refused, Server, Session
from genenv.texts import inert
from genenv.types import Json, JsonObject, Message, Role
from genenv.untrusted.schemas import BadSchema, plain_schema

_GENERIC = {"Action", "CallToolAction", "ListToolsAction"}
"""Titles of action schemas of servers whose actions are calls of MCP tools."""


class Actions(ABC):
    """Converts the agent's replies to actions of a server; one subclass for each form of actions."""

    instructions = ""
    """Instructions for the agent about how to reply."""
    choices: Sequence[str] = ()
    """The allowed replies; empty if any text is allowed."""

    @abstractmethod
    def read(self, text: str) -> list[JsonObject] | str:
        """Return the actions of a reply, or a sentence for the agent if it contains none."""

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A reply at random: a call, or words where there are no tools."""
        return random_call(tools, rng)


class Chat(Actions):
    """Actions that hold text and tool calls in OpenAI's format."""

    def read(self, text: str) -> list[JsonObject] | str:
        """Return one action with the text and all calls."""
        words, calls = words_and_calls(text)
        listed: list[Json] = [
            {
                "id": f"call{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls)
        ]
        return [{"content": words, "tool_calls": listed}]


class Calls(Actions):
    """Actions that each call one MCP tool."""

    def read(self, text: str) -> list[JsonObject] | str:
        """Return one action per tool call of the reply."""
        calls = read_calls(text)[1]
        if not calls:
            return "That calls no tool."
        return [{"type": "call_tool", "tool_name": call.name, "arguments": call.arguments} for call in calls]


class OneField(Actions):
    """Actions with a single field: the whole reply, as plain text or as JSON for other types.

    Args:
        name: the name of the field.
        schema: the JSON schema of its value.
    """

    def __init__(self, name: str, schema: JsonObject) -> None:
        self._name, self._schema = name, schema
        self._is_text = schema.get("type") == "string"
        listed = schema.get("enum", [True, False] if schema.get("type") == "boolean" else [])
        self.choices = [
            one if isinstance(one, str) else json.dumps(one) for one in cast("Sequence[Json]", listed)
        ]
        about = str(schema.get("description") or name)
        self.instructions = f"Reply with this alone: {about}"

    def read(self, text: str) -> list[JsonObject] | str:
        """Return one action with the reply as the field's value."""
        if self._is_text:
            return [{self._name: text}]
        try:
            value: Json = json.loads(text.strip())
        except (ValueError, RecursionError):
            value = text.strip()
        return [{self._name: value}]

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """Return a random value of the field."""
        if self.choices:
            return rng.choice(self.choices)
        if self._is_text:
            return rng.choice(RANDOM_WORDS)
        return json.dumps(sampled(self._schema, rng))


class Fields(Actions):
    """Actions with several fields: the reply is a JSON object."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        shown = {key: value for key, value in schema.items() if key not in ("title", "description")}
        self.instructions = f"Reply with JSON of this schema alone: {json.dumps(shown, ensure_ascii=False)}"

    def read(self, text: str) -> list[JsonObject] | str:
        """Return the JSON object of the reply, which may be in a code fence."""
        bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        try:
            value: object = json.loads(bare)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return "That is no JSON object."
        return [cast(JsonObject, value)]

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """Return a random object as JSON."""
        return json.dumps(sampled(self._schema, rng))


def actions_of(schema: JsonObject) -> Actions:
    """Return the converter from replies to actions that fits a server.

    Args:
        schema: the JSON schema of the server's actions.

    Raises:
        UsageError: the schema is unsupported.
    """
    try:
        schema = plain_schema(schema)
    except BadSchema as error:
        raise UsageError(f"the schema of the server's actions cannot be used: {error}") from error
    found = schema.get("properties")
    fields = {
        name: cast(JsonObject, one)
        for name, one in (found.items() if isinstance(found, Mapping) else ())
        if name != "metadata" and isinstance(one, Mapping)
    }
    if {"content", "tool_calls"} <= set(fields):
        return Chat()
    if schema.get("title") in _GENERIC:
        return Calls()
    required = [name for name in cast("Sequence[str]", schema.get("required", ())) if name in fields]
    whole = required if len(required) == 1 else list(fields) if len(fields) == 1 else []
    if len(whole) == 1:
        one = _plain(fields[whole[0]])
        if "enum" in one or one.get("type") in ("string", "integer", "number", "boolean"):
            return OneField(whole[0], one)
    kept = {key: value for key, value in schema.items() if key != "properties"}
    return Fields({**kept, "properties": fields})


def _plain(schema: JsonObject) -> JsonObject:
    """Return a schema with its alternative `null` removed if only one other alternative is left."""
    options = [
        cast(JsonObject, one)
        for one in cast("Sequence[Any]", schema.get("anyOf", ()))
        if isinstance(one, Mapping) and cast(JsonObject, one).get("type") != "null"
    ]
    return {**options[0], **schema} if len(options) == 1 else schema


_HIDDEN = ("done", "reward", "metadata")
"""Fields of an observation that are hidden from the agent by default."""


class OpenEnv(ImportedEnvironment):
    """An OpenEnv server as an environment.

    Args:
        settings: see `OpenEnvConfig`.
        address: the server's address, `http://HOST:PORT`.
    """

    name: ClassVar[str] = "openenv"
    config: ClassVar[type[BaseModel]] = OpenEnvConfig

    def __init__(self, settings: OpenEnvConfig | None, address: str) -> None:
        chosen = settings or OpenEnvConfig()
        super().__init__(chosen, Space(chosen.vary, "seed", chosen.seeds))
        self.first_held_out = 0 if chosen.given_held_out else HELD_OUT_SEED
        self.chosen = chosen
        self.world = Server(
            address, sessions=chosen.sessions, connect_s=chosen.connect_s, step_s=chosen.step_s
        )

    @functools.cached_property
    def actions(self) -> Actions:
        """Return the converter from replies to this server's actions.

        Raises:
            UsageError: the server does not answer or publishes no schema of actions.
        """
        schema = self.world.get("/schema").get("action")
        if not isinstance(schema, Mapping):
            raise UsageError(
                f"{self.world.shown}/schema says nothing of actions; genenv speaks the protocol of OpenEnv "
                "0.3: is it a server of another version?"
            )
        return actions_of(schema)

    @property
    def about(self) -> str:
        """See `ImportedEnvironment`."""
        return self._about

    @functools.cached_property
    def _about(self) -> str:
        """Return the server's description of itself, at most 500 characters, or ""."""
        try:
            said = self.world.get("/metadata").get("description")
        except UsageError:
            return ""
        return inert(str(said))[:500] if isinstance(said, str) else ""

    @functools.cached_property
    def tools(self) -> list[JsonObject]:
        """Return the tools of a server of MCP tools; for other servers, an empty list."""
        if not isinstance(self.actions, Calls):
            return []
        session = self.world.take()
        try:
            self.world.connect(session)
            found = session.step({"type": "list_tools"}).observation.get("tools")
        except (Refused, RolloutError) as error:
            raise UsageError(f"{self.world.shown} does not say which tools it has: {error}") from error
        finally:
            self.world.give_back(session)
        return [_offered(one) for one in _objects(found)]

    def begin(self, start: Start) -> RemoteRollout:
        """See `ImportedEnvironment`."""
        self.tools  # noqa: B018 - before a session is taken: it takes one itself
        while (found := self._begun(start, self.world.take())) is None:
            pass
        return found

    async def begin_when_free(self, start: Start) -> RemoteRollout:
        """See `ImportedEnvironment`."""
        self.tools  # noqa: B018 - as above
        found = None
        while found is None:
            begin = functools.partial(self._begun, start, await self.world.wait())
            found = await blocking(begin, lambda begun: begun and begun.close())
        return found

    def _begun(self, start: Start, session: Session) -> RemoteRollout | None:
        """Start a rollout in a session; return None if another session has to be taken.

        The server allows no further one, or the session was used before and has broken since.
        """
        numbered: JsonObject = {} if start.number is None else {"seed": start.number}
        again = False
        try:
            self.world.connect(session)
            again, session.used = session.used, True
            answer = session.reset({**start.given, **numbered})
            return OpenEnvRollout(self, session, answer)
        except RolloutError as error:
            self.world.give_back(session)
            if isinstance(error, NoRoom) or (again and session.broken):
                return None
            raise
        except BaseException:
            self.world.give_back(session)
            raise


class OpenEnvRollout(RemoteRollout):
    """One rollout in a session of an OpenEnv server."""

    def __init__(self, env: OpenEnv, session: Session, first: Answer) -> None:
        self._env, self._session = env, session
        self._rewards: list[float] = []
        self.tools = env.tools or _objects(first.observation.get("tools"))
        self._receive(first)
        own = isinstance(env.actions, Chat) and first.observation.get("messages")
        if own and not env.chosen.system:
            return
        system = env.chosen.system or "\n".join(filter(None, (env.about, env.actions.instructions)))
        if system:
            self.messages = (Message(role="system", content=system), *self.messages)

    def reply(self, text: str) -> None:
        """See `RemoteRollout`. A reply that is not an action is answered with a sentence and uses a turn."""
        actions = self._env.actions.read(text)
        if isinstance(actions, str):
            if isinstance(self._env.actions, Calls):
                self.messages, self.done = (), True  # words alone end a conversation with tools
                return
            self.messages = (Message(role="user", content=actions),)
            return
        called: list[Message] = []
        for action in actions:
            try:
                answer = self._session.step(action)
            except Refused as error:
                role: Role = "tool" if "tool_name" in action else "user"
                called.append(Message(role=role, content=f"That is no action: {error}"))
                continue
            if answer.reward is not None:
                self._rewards.append(answer.reward)
            self._receive(answer)
            called += self.messages
            if self.done:
                break
        self.messages = () if self.done else tuple(called)

    @property
    def total(self) -> float:
        """Return the sum, last or highest of the steps' rewards, as the setting `reward` says."""
        kept = self._rewards or [0.0]
        how = self._env.chosen.reward
        return sum(kept) if how == "sum" else kept[-1] if how == "last" else max(kept)

    def random_reply(self, rng: random.Random) -> str:
        """See `RemoteRollout`."""
        if self.choices:
            return rng.choice(self.choices)
        return self._env.actions.random_reply(self.tools, rng)

    def close(self) -> None:
        """See `RemoteRollout`."""
        self._env.world.give_back(self._session)

    def _receive(self, answer: Answer) -> None:
        """Update messages, choices and status from the server's answer."""
        seen = answer.observation
        self.done = answer.done
        offered = [one for one in cast("Sequence[Any]", seen.get("choices") or ()) if isinstance(one, str)]
        self.choices = () if answer.done else offered or self._env.actions.choices
        said = seen.get("explanation")
        if answer.done and isinstance(said, str):
            self.explanation = said
        if "messages" in seen:
            found = [_message(one) for one in _objects(seen["messages"])]
            self.messages = tuple(one for one in found if one is not None)
        elif "tool_name" in seen:
            self.messages = (Message(role="tool", content=_result(seen)),)
        else:
            self.messages = (Message(role="user", content=self._shown(seen)),)

    def _shown(self, seen: JsonObject) -> str:
        """Return an observation as text: a single field as it is, several fields as JSON."""
        wanted = self._env.chosen.show
        if missing := [name for name in wanted if name not in seen]:
            raise UsageError(
                f"environment.show names {missing[0]!r}, which no observation of {self._env.world.shown} "
                f"has; it has {', '.join(seen) or 'no fields'}"
            )
        kept = {
            name: value
            for name, value in seen.items()
            if (name in wanted if wanted else name not in _HIDDEN and value not in (None, "", [], {}))
        }
        values = list(kept.values())
        if len(values) == 1:
            return values[0] if isinstance(values[0], str) else json.dumps(values[0], ensure_ascii=False)
        return json.dumps(kept, ensure_ascii=False)


def _objects(found: Json) -> list[JsonObject]:
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else ()
    return [one for one in listed if isinstance(one, Mapping)]


def _offered(tool: JsonObject) -> JsonObject:
    """Return an MCP tool's schema in OpenAI's format."""
    schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    function = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": schema}
    return {"type": "function", "function": function}


def _message(said: JsonObject) -> Message | None:
    """Parse a message in OpenAI's format; None if its role is unknown."""
    role, content = said.get("role"), said.get("content")
    if role not in get_args(Role):
        return None
    return Message(
        role=cast(Role, role), content=content if isinstance(content, str) else json.dumps(content)
    )


def _result(seen: JsonObject) -> str:
    """Return the result of an MCP tool call as text."""
    error, result = seen.get("error"), seen.get("result")
    if isinstance(error, Mapping):
        return f"Error: {error.get('message')}"
    if isinstance(result, Mapping):
        texts = [one["text"] for one in _objects(result.get("content")) if isinstance(one.get("text"), str)]
        if texts:
            return "\n".join(map(str, texts))
        result = result.get("data", result)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
