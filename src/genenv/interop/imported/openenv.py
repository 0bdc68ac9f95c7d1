"""An OpenEnv server as an environment: `[environment] name = "openenv:http://HOST:PORT"`.

A rollout is a session of it; what `reset` is given is the task, and what the simulator sets of it. No package
of OpenEnv's is needed here.

A reply becomes an action by the schema of the server's actions, in one of four forms: words and calls (as of
servers that `genenv export-env` wrote), tools of MCP, one field that is the whole reply, and JSON.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast, get_args

from pydantic import BaseModel

from genenv.chat.tool_calls import read_calls
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.environment import (
    RANDOM_WORDS,
    ImportedEnvironment,
    RemoteRollout,
    Space,
    Start,
    random_call,
    sampled,
    words_and_calls,
)
from genenv.interop.imported.settings import OpenEnvConfig
from genenv.interop.imported.wire import Answer, Refused, Server, Session
from genenv.texts import inert
from genenv.types import Json, JsonObject, Message, Role
from genenv.untrusted.schemas import BadSchema, plain_schema

_GENERIC = {"Action", "CallToolAction", "ListToolsAction"}
"""Titles of the schemas of servers whose actions are calls of MCP tools."""


class Actions(ABC):
    """How replies become actions."""

    instructions = ""
    """How to reply, in words for the agent."""
    choices: Sequence[str] = ()
    """The only replies there are; none: any text."""

    @abstractmethod
    def read(self, text: str) -> list[JsonObject] | str:
        """The actions of a reply, or why there are none, in a sentence for the agent."""

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A reply at random: a call, or words where there are no tools."""
        return random_call(tools, rng)


class Chat(Actions):
    """Words and calls, in OpenAI's form."""

    def read(self, text: str) -> list[JsonObject] | str:
        """One action, with all calls."""
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
    """Tools of MCP: an action each."""

    def read(self, text: str) -> list[JsonObject] | str:
        """The calls of a reply."""
        calls = read_calls(text)[1]
        if not calls:
            return "That calls no tool."
        return [{"type": "call_tool", "tool_name": call.name, "arguments": call.arguments} for call in calls]


class OneField(Actions):
    """One field, which is the whole reply: text as it is, another value as JSON.

    Args:
        name: of the field.
        schema: of its value.
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
        """One action."""
        if self._is_text:
            return [{self._name: text}]
        try:
            value: Json = json.loads(text.strip())
        except (ValueError, RecursionError):
            value = text.strip()
        return [{self._name: value}]

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A value at random."""
        if self.choices:
            return rng.choice(self.choices)
        if self._is_text:
            return rng.choice(RANDOM_WORDS)
        return json.dumps(sampled(self._schema, rng))


class Fields(Actions):
    """An object of several fields, as JSON."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        shown = {key: value for key, value in schema.items() if key not in ("title", "description")}
        self.instructions = f"Reply with JSON of this schema alone: {json.dumps(shown, ensure_ascii=False)}"

    def read(self, text: str) -> list[JsonObject] | str:
        """The object in a reply, which may stand in a fence."""
        bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        try:
            value: object = json.loads(bare)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return "That is no JSON object."
        return [cast(JsonObject, value)]

    def random_reply(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """An object at random."""
        return json.dumps(sampled(self._schema, rng))


def actions_of(schema: JsonObject) -> Actions:
    """How replies become actions.

    Args:
        schema: of a server's actions.

    Raises:
        UsageError: it cannot be used.
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
    """A schema without the alternative of none."""
    options = [
        cast(JsonObject, one)
        for one in cast("Sequence[Any]", schema.get("anyOf", ()))
        if isinstance(one, Mapping) and cast(JsonObject, one).get("type") != "null"
    ]
    return {**options[0], **schema} if len(options) == 1 else schema


_HELD_OUT_SEED = 1_000_000_000
"""The first seed of held-out tasks: no task for training has one as high."""
_HIDDEN = ("done", "reward", "metadata")
"""Fields of an observation that an agent is not shown by default."""


class OpenEnv(ImportedEnvironment):
    """A server of OpenEnv.

    Args:
        settings: see `OpenEnvConfig`.
        address: `http://HOST:PORT`.
    """

    name: ClassVar[str] = "openenv"
    config: ClassVar[type[BaseModel]] = OpenEnvConfig

    def __init__(self, settings: OpenEnvConfig | None, address: str) -> None:
        chosen = settings or OpenEnvConfig()
        space = Space(chosen.vary, "seed", chosen.seeds)
        super().__init__(chosen, space, 0 if chosen.given_held_out else _HELD_OUT_SEED)
        self.chosen = chosen
        self.world = Server(
            address, sessions=chosen.sessions, connect_s=chosen.connect_s, step_s=chosen.step_s
        )

    @cached_property
    def actions(self) -> Actions:
        """How replies become actions of this server.

        Raises:
            UsageError: there is no server, or it says nothing of actions.
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

    @cached_property
    def _about(self) -> str:
        """What the server says of itself."""
        try:
            said = self.world.get("/metadata").get("description")
        except UsageError:
            return ""
        return inert(str(said))[:500] if isinstance(said, str) else ""

    @cached_property
    def tools(self) -> list[JsonObject]:
        """The tools of a server of MCP tools; of other servers, those listed when a rollout begins."""
        if not isinstance(self.actions, Calls):
            return []
        session = self.world.take()
        try:
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
        while (found := self._begun(start, await self.world.wait())) is None:
            pass
        return found

    def _begun(self, start: Start, session: Session) -> RemoteRollout | None:
        """A rollout in a session; None where that had one before and is of no more use: then in another."""
        again, session.used = session.used, True
        numbered: JsonObject = {} if start.number is None else {"seed": start.number}
        try:
            answer = session.reset({**start.given, **numbered})
            return OpenEnvRollout(self, session, answer)
        except RolloutError:
            self.world.give_back(session)
            if again and session.broken:
                return None
            raise
        except BaseException:
            self.world.give_back(session)
            raise


class OpenEnvRollout(RemoteRollout):
    """One rollout, in a session."""

    def __init__(self, env: OpenEnv, session: Session, first: Answer) -> None:
        self._env, self._session = env, session
        self._rewards: list[float] = []
        self.tools = env.tools or _objects(first.observation.get("tools"))
        self._receive(first)
        if isinstance(env.actions, Chat) and first.observation.get("messages"):
            return
        system = env.chosen.system or "\n".join(filter(None, (env.about, env.actions.instructions)))
        if system:
            self.messages = (Message(role="system", content=system), *self.messages)

    def reply(self, text: str) -> None:
        """See `RemoteRollout`. What is no action is answered, and costs a turn."""
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
        """The rewards of its steps, as the settings have it."""
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
        """Take in what the environment says."""
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
        """An observation as text: a field alone as it is, several as JSON."""
        wanted = self._env.chosen.show
        if missing := [name for name in wanted if name not in seen]:
            raise UsageError(
                f"environment.show names {missing[0]!r}, which no observation of {self._env.world.shown} "
                f"has; "
                f"it has {', '.join(seen) or 'no fields'}"
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
    """A tool of MCP's in OpenAI's form."""
    schema = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    function = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": schema}
    return {"type": "function", "function": function}


def _message(said: JsonObject) -> Message | None:
    """A message in OpenAI's form."""
    role, content = said.get("role"), said.get("content")
    if role not in get_args(Role):
        return None
    return Message(
        role=cast(Role, role), content=content if isinstance(content, str) else json.dumps(content)
    )


def _result(seen: JsonObject) -> str:
    """What a tool of MCP's found."""
    error, result = seen.get("error"), seen.get("result")
    if isinstance(error, Mapping):
        return f"Error: {error.get('message')}"
    if isinstance(result, Mapping):
        texts = [one["text"] for one in _objects(result.get("content")) if isinstance(one.get("text"), str)]
        if texts:
            return "\n".join(map(str, texts))
        result = result.get("data", result)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
