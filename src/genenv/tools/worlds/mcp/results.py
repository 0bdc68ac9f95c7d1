"""What MCP servers answer, as JSON: structured content first, texts that are JSON parsed, else text."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from genenv.tools.worlds.base import Outcome, Tool
from genenv.tools.worlds.jsonable import NotPlain, result_of
from genenv.types import Json, JsonObject
from genenv.untrusted.schemas import BadSchema, Validator, plain_schema

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

_WRAPPED = "result"
"""The official package puts an answer that is no object under this name."""
_MOST_DESCRIBED = 600
_ERROR = re.compile(r"(?:[\w-]+ ){0,2}errors?\b[^\w]|failed to\b|exception\b", re.IGNORECASE)
"""How texts begin in which servers say that something went wrong, though the protocol has a mark for that."""


def tool_of(listed: McpTool) -> Tool:
    """A tool as a server lists it."""
    described = " ".join((listed.description or listed.title or "").split())
    schema: dict[str, Any] = dict(listed.input_schema)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    reads = listed.annotations.read_only_hint if listed.annotations else None
    return Tool(
        name=listed.name,
        description=_first_sentence(described)[:_MOST_DESCRIBED],
        parameters=cast(JsonObject, schema),
        writes=None if reads is None else not reads,
    )


def _first_sentence(text: str) -> str:
    head, point, _ = text.partition(". ")
    return head + "." if point else text


def answers_checked(tools: Sequence[McpTool]) -> Callable[[str, CallToolResult], Awaitable[None]]:
    """What holds answers to their tools' output schemas, within limits; the package's own check has none.

    Args:
        tools: of the server.
    """
    promised: dict[str, Validator] = {}
    for one in tools:
        with contextlib.suppress(BadSchema):  # then nothing is promised that could be held to
            if one.output_schema is not None:
                promised[one.name] = Validator(plain_schema(one.output_schema))

    async def check(name: str, answer: CallToolResult) -> None:
        validator = promised.get(name)
        if validator is None:
            return
        if answer.structured_content is None:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if found := validator.problem(cast(Json, answer.structured_content)):
            raise RuntimeError(
                f"Invalid structured content returned by tool {name}: {': '.join(filter(None, found))}"
            )

    return check


def outcome_of(answer: CallToolResult | str, most_chars: int) -> Outcome:
    """What the agent is told."""
    if isinstance(answer, str):
        return Outcome(error=answer)
    if answer.is_error:
        told = "\n".join(map(_said, answer.content)).strip()
        return Outcome(error=told[:most_chars] or "The tool failed.")
    try:
        result = result_of(_result(answer))
    except NotPlain as error:
        return Outcome(error=f"The tool returned {error}.")
    if isinstance(result, str) and _ERROR.match(result):
        return Outcome(error=result[:most_chars])
    if len(json.dumps(result, ensure_ascii=False)) > most_chars:
        return Outcome(error=too_long(most_chars))
    return Outcome(result=result)


def too_long(most_chars: int) -> str:
    """What the agent is told of a result that nobody could read."""
    return f"The result is longer than {most_chars} characters."


def _result(answer: CallToolResult) -> Json:
    structured = cast(Json, answer.structured_content)
    if isinstance(structured, Mapping) and set(structured) == {_WRAPPED}:
        structured = structured[_WRAPPED]
    if structured is not None:
        return _parsed(structured) if isinstance(structured, str) else structured
    said = [_parsed(_said(one)) for one in answer.content]
    return said[0] if len(said) == 1 else said


def _said(content: object) -> str:
    """A piece of content as text; pictures and the like are named."""
    for held in (content, getattr(content, "resource", None)):
        if isinstance(text := getattr(held, "text", None), str):
            return text
    kind = str(getattr(content, "type", "content")).replace("_", " ")
    data = getattr(content, "data", None)
    named = getattr(content, "mime_type", None) or getattr(content, "uri", None)
    told: Sequence[str] = [kind, *([str(named)] if named else [])]
    return f"[{', '.join(told)}{f', {len(data)} characters' if isinstance(data, str) else ''}]"


def _parsed(text: str) -> Json:
    """Text that is a JSON object or list, or one as Python prints it, as that."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return cast(Json, json.loads(text))
    except RecursionError:
        return text
    except ValueError:
        pass
    try:
        return cast(Json, result_of(ast.literal_eval(text.strip())))
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # NotPlain is a ValueError
        return text
