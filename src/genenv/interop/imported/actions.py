"""A reply of the agent as actions of an OpenEnv server, by the schema of what it takes.

Four forms: words and calls (servers that `genenv export-env` wrote), tools of MCP, one field that is the
whole reply, and JSON.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from genenv.chat.assistant import ToolCall
from genenv.chat.tool_calls import UNREADABLE, read_calls
from genenv.errors import UsageError
from genenv.simulator.schema_sampling import sample_json
from genenv.types import Json, JsonObject
from genenv.untrusted.schemas import BadSchema, plain_schema

_GENERIC = {"Action", "CallToolAction", "ListToolsAction"}
"""Titles of the schemas of servers whose actions are calls of MCP tools."""
_WORDS = ("yes", "no", "I do not know", "help", "look", "0", "1", "42")


class Actions(ABC):
    """How replies become actions."""

    told = ""
    """How to reply, in words for the agent."""
    choices: Sequence[str] = ()
    """The only replies there are; none: any text."""

    @abstractmethod
    def read(self, text: str) -> list[JsonObject] | str:
        """The actions of a reply, or why there are none, in a sentence for the agent."""

    @abstractmethod
    def uninformed(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A reply at random."""


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

    def uninformed(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A call at random, or words."""
        return random_call(tools, rng)


class Calls(Actions):
    """Tools of MCP: an action each."""

    def read(self, text: str) -> list[JsonObject] | str:
        """The calls of a reply."""
        calls = read_calls(text)[1]
        if not calls:
            return "That calls no tool."
        return [{"type": "call_tool", "tool_name": call.name, "arguments": call.arguments} for call in calls]

    def uninformed(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A call at random."""
        return random_call(tools, rng)


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
        self.told = f"Reply with this alone: {about}"

    def read(self, text: str) -> list[JsonObject] | str:
        """One action."""
        if self._is_text:
            return [{self._name: text}]
        try:
            value: Json = json.loads(text.strip())
        except (ValueError, RecursionError):
            value = text.strip()
        return [{self._name: value}]

    def uninformed(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """A value at random."""
        if self.choices:
            return rng.choice(self.choices)
        if self._is_text:
            return rng.choice(_WORDS)
        return json.dumps(_sample(self._schema, rng))


class Fields(Actions):
    """An object of several fields, as JSON."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        shown = {key: value for key, value in schema.items() if key not in ("title", "description")}
        self.told = f"Reply with JSON of this schema alone: {json.dumps(shown, ensure_ascii=False)}"

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

    def uninformed(self, tools: Sequence[JsonObject], rng: random.Random) -> str:
        """An object at random."""
        return json.dumps(_sample(self._schema, rng))


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


def words_and_calls(text: str) -> tuple[str, Sequence[ToolCall]]:
    """A reply as it goes over a wire; one with a call that cannot be read goes as it is, as words."""
    words, calls = read_calls(text) if "<tool_call>" in text else (text, ())
    if any(not call.name or call.arguments == UNREADABLE for call in calls):
        return text, ()
    return words, calls


def random_call(tools: Sequence[JsonObject], rng: random.Random) -> str:
    """A call of some tool with arguments at random; words where there are no tools."""
    if not tools:
        return rng.choice(_WORDS)
    function = cast("Mapping[str, Any]", rng.choice(tools)["function"])
    call = {
        "name": function["name"],
        "arguments": _sample(cast(JsonObject, function.get("parameters") or {}), rng),
    }
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _sample(schema: JsonObject, rng: random.Random) -> Json:
    try:
        return sample_json(plain_schema(schema), rng)
    except (UsageError, KeyError, TypeError, ValueError):  # schemas of others hold what ours do not
        return {}


def _plain(schema: JsonObject) -> JsonObject:
    """A schema without the alternative of none."""
    options = [
        cast(JsonObject, one)
        for one in cast("Sequence[Any]", schema.get("anyOf", ()))
        if isinstance(one, Mapping) and cast(JsonObject, one).get("type") != "null"
    ]
    return {**options[0], **schema} if len(options) == 1 else schema
