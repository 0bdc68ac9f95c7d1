"""A connection to an MCP server: its address, the official client, and answers as outcomes."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from genenv.errors import UsageError
from genenv.http.guard import client_options
from genenv.tools.worlds.base import MOST_CHARS, TOO_LONG, Outcome, Tool
from genenv.tools.worlds.jsonable import NotJson, result_of
from genenv.types import Json, JsonObject
from genenv.untrusted.schemas import BadSchema, Validator, plain_schema

if TYPE_CHECKING:
    from httpx2 import Response
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool


MOST_BYTES = 16 << 20
"""Maximum size of a message in bytes."""
_CONNECT_S, _READ_S = 30.0, 300.0


class TooLong(ValueError):
    """A message is larger than `MOST_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"it sent a message of more than {MOST_BYTES >> 20} MiB")


@contextlib.asynccontextmanager
async def over_http(address: str, connection: Connection) -> AsyncGenerator[TransportStreams]:
    """Connect to a server by its address, and yield its streams.

    Args:
        address: the address of the server.
        connection: counts the data that arrive.
    """
    from httpx2 import AsyncByteStream, AsyncClient, ReadError, Timeout
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(AsyncByteStream):
        """A response body that fails if it is too long, unless it is a stream of events."""

        def __init__(self, response: Response) -> None:
            self._stream = cast(AsyncByteStream, response.stream)
            self._packed = response.headers.get("content-encoding", "identity").lower() != "identity"
            self._events = response.headers.get("content-type", "").startswith("text/event-stream")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if self._packed:
                raise ReadError("it packed its answer, which it was asked not to")
            size = 0
            async for part in self._stream:
                connection.received += len(part)
                size += len(part)
                if size > MOST_BYTES and not self._events:  # the client bounds each event
                    raise ReadError(str(TooLong()))
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Response) -> None:
        response.stream = Bounded(response)

    made = AsyncClient(
        timeout=Timeout(_CONNECT_S, read=_READ_S),
        headers={"accept-encoding": "identity"},
        event_hooks={"response": [bound]},
        **client_options(address),
    )
    async with (
        made as client,
        streamable_http_client(address, http_client=client) as (read, write),
    ):
        yield read, write


_WRAPPED = "result"
"""The field in which the official package wraps a result that is not an object."""
_MOST_DESCRIBED = 600
_MOST_BEGUN = 200
"""Characters at the beginning of a text in which a report of an error is looked for."""
_ERROR = re.compile(
    r"(?!(?:no|0|zero|without|found no)\b)"
    r"(?![^:\n]*\berrors?\b[^:\n]*:\s*(?:none|no|nothing|[-+±~]?\d[\d.,e+-]*)\s*(?:%|[,;(\n]|$))"
    r"(?:(?:[\w-]+ ){0,2}errors?\s*[:\[({—–-]|errors? (?:\w+ing|in|while|occurred|for|from|at)\b"
    r"|an (?:\w+ )?error occurred\b|failed to\b|exception\s*[:\[(]"
    r"|(?-i:[A-Z]\w*(?:Error|Exception)):)",
    re.IGNORECASE,
)
"""Prefixes of texts that report an error without the protocol's error flag; a number of errors, or their
size, is none."""


def tool_of(listed: McpTool) -> Tool:
    """Return a listed MCP tool as a `Tool`."""
    described = " ".join((listed.description or listed.title or "").split())
    sentence, point, _ = described.partition(". ")
    schema: dict[str, Any] = dict(listed.input_schema)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    reads = listed.annotations.read_only_hint if listed.annotations else None
    return Tool(
        name=listed.name,
        description=f"{sentence}{point.strip()}"[:_MOST_DESCRIBED],
        parameters=cast(JsonObject, schema),
        writes=None if reads is None else not reads,
    )


def answers_checked(tools: Sequence[McpTool]) -> Callable[[str, CallToolResult], Awaitable[None]]:
    """Return a check of results against the tools' output schemas, with the limits that the package lacks.

    Args:
        tools: the tools of the server.
    """
    promised: dict[str, Validator] = {}
    for one in tools:
        with contextlib.suppress(BadSchema):  # a schema that cannot be used is not checked
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


def outcome_of(answer: CallToolResult | str) -> Outcome:
    """Return a tool's answer as an outcome for the agent."""
    if isinstance(answer, str):
        return Outcome(error=answer)
    if answer.is_error:
        told = "\n".join(map(_said, answer.content)).strip()
        return Outcome(error=told[:MOST_CHARS] or "The tool failed.")
    try:
        result = result_of(_result(answer))
    except NotJson as error:
        return Outcome(error=f"The tool returned {error}.")
    if isinstance(result, str) and _ERROR.match(result[:_MOST_BEGUN]):
        return Outcome(error=result[:MOST_CHARS])
    if len(json.dumps(result, ensure_ascii=False)) > MOST_CHARS:
        return Outcome(error=TOO_LONG)
    return Outcome(result=result)


def _result(answer: CallToolResult) -> Json:
    structured = cast(Json, answer.structured_content)
    if isinstance(structured, Mapping) and set(structured) == {_WRAPPED}:
        structured = structured[_WRAPPED]
    if structured is not None:
        return _parsed(structured) if isinstance(structured, str) else structured
    said = [_parsed(_said(one)) for one in answer.content]
    return said[0] if len(said) == 1 else said


def _said(content: object) -> str:
    """Return a piece of content as text; pictures and other data as their type and size."""
    for held in (content, getattr(content, "resource", None)):
        if isinstance(text := getattr(held, "text", None), str):
            return text
    kind = str(getattr(content, "type", "content")).replace("_", " ")
    data = getattr(content, "data", None)
    named = getattr(content, "mime_type", None) or getattr(content, "uri", None)
    told: Sequence[str] = [kind, *([str(named)] if named else [])]
    return f"[{', '.join(told)}{f', {len(data)} characters' if isinstance(data, str) else ''}]"


def _parsed(text: str) -> Json:
    """Return text that is a JSON or Python object or list in parsed form, other text unchanged."""
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
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # NotJson is a ValueError
        return text


START_S = 60.0
"""Seconds that a server has to answer and list its tools."""
_PAGES = 100
"""Maximum number of pages of tools that are read."""


class NotRunning(Exception):
    """The server has ended, or does not answer. The message is a sentence's end."""


class Silent(NotRunning):
    """The server did not answer a call in time."""


class Flooded(NotRunning):
    """The server was ended because it sent more than `MOST_BYTES` at once."""


class Connection:
    """A connection to an MCP server that has listed its tools. All methods run in one event loop.

    Args:
        streams: connects to the server, and counts what it sends.
        before: an earlier connection to a process of the same server: its version is used, and its list of
            tools is not asked for again.
    """

    def __init__(
        self,
        streams: Callable[[Connection], AbstractAsyncContextManager[TransportStreams]],
        before: Connection | None = None,
    ) -> None:
        client_class()
        self._streams, self._before = streams, before
        self.received = 0
        """Bytes of all messages of the server."""
        self.is_flooded = False
        """Whether the connection ended because a message was too long."""
        self.nonsense = 0
        """Lines that were no messages of MCP."""
        self.tools: list[McpTool] = []
        self.left_out: dict[str, str] = {}
        """What the server lists and is not read, with the reason."""
        self.greeting: Mapping[str, Any] = {}
        """Settings of a client that begins with the version of the protocol that the server has."""
        self._check = answers_checked(())
        self._client: Client | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop, self._failure = asyncio.Event(), "it ended"

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._client is not None and self._serving is not None and not self._serving.done()

    async def open(self, limit_s: float | None = None) -> None:
        """Connect, and list the tools.

        Args:
            limit_s: time limit in seconds; None: `START_S`.

        Raises:
            NotRunning: the server does not answer in time, or does not speak MCP.
        """
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(ready))
        self._serving.add_done_callback(lambda task: ready.set() or task.cancelled() or task.exception())
        failure, limit_s = "", START_S if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                await ready.wait()
        except TimeoutError:
            failure = f"it did not answer within {limit_s:g} s"
        finally:
            if self._client is None:
                await self.close()
        if self._client is None:
            raise NotRunning(failure or self._failure)

    async def _serve(self, ready: asyncio.Event) -> None:
        """Run the client from start to end in one task, as anyio's cancel scopes require."""
        from httpx2 import HTTPError
        from mcp import MCPError

        try:
            streams, before, self._before = self._streams(self), self._before, None
            how: Mapping[str, Any] = before.greeting if before is not None else {}
            async with client_class()(streams, message_handler=self._heard, cache=None, **how) as client:
                if before is None:
                    self.tools, self.left_out = await listed(client)
                    self._check, self.greeting = answers_checked(self.tools), _greeting(client)
                else:
                    self.tools, self.left_out = before.tools, before.left_out
                    self._check, self.greeting = before._check, before.greeting
                    if how.get("mode") != "legacy":  # there was no greeting, so nothing was answered yet
                        await client.list_tools()
                client.session.validate_tool_result = self._check  # pyright: ignore[reportAttributeAccessIssue]
                self._client = client
                ready.set()
                await self._stop.wait()
        except* (MCPError, HTTPError, OSError, ValueError, RuntimeError, UsageError) as group:
            self._failure = failure_of(group)

    async def _heard(self, message: object) -> None:
        if isinstance(message, Exception):
            self.nonsense += 1

    async def call(self, tool: str, args: Mapping[str, Json], limit_s: float) -> CallToolResult | str:
        """Call a tool, and return its answer, or the error text if the protocol refuses the call.

        Raises:
            NotRunning: the server has ended, or takes too long.
        """
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None or not self.is_open:
            raise self._ended()
        try:
            async with asyncio.timeout(limit_s):
                return await self._client.call_tool(tool, dict(args))
        except TimeoutError as error:
            raise Silent("it took too long") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._ended() from error
            return error.message or "The call was refused."
        except (BrokenResourceError, ClosedResourceError) as error:
            raise self._ended() from error
        except (RuntimeError, ValueError) as error:  # the answer violates its schema, or the protocol
            return " ".join(str(error).split())[:500] or "The call was refused."

    def _ended(self) -> NotRunning:
        return Flooded("it sent too much") if self.is_flooded else NotRunning(self._failure)

    async def close(self) -> None:
        """End the connection, and the process if it has one, even while it starts or works."""
        if self._serving is None:
            return
        if self._client is None:  # it has not listed its tools yet: do not wait for it
            self._serving.cancel()
        self._stop.set()
        _, working = await asyncio.wait([self._serving], timeout=10)
        for one in working:
            one.cancel()


def client_class() -> type[Client]:
    """Return the class of the official client.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        from mcp import Client
    except ModuleNotFoundError as error:
        raise UsageError("MCP servers need the package mcp: pip install 'genenv[mcp]'") from error
    except ImportError as error:  # an older version
        there = "another module of this name"
        with contextlib.suppress(metadata.PackageNotFoundError):
            there = metadata.version("mcp")
        raise UsageError(
            f"MCP servers need mcp 2.3 or newer, and {there} is installed: pip install -U mcp"
        ) from error
    logger = logging.getLogger("mcp")
    if not logger.handlers:  # else it would print errors of servers
        logger.addHandler(logging.NullHandler())
    return Client


async def listed(client: Client) -> tuple[list[McpTool], dict[str, str]]:
    """Return all tools of a server, and what of its list is not read, with the reason."""
    tools: dict[str, McpTool] = {}
    left_out: dict[str, str] = {}
    cursors = set[str | None]()
    cursor: str | None = None
    while cursor not in cursors:
        if len(cursors) == _PAGES:
            left_out = {"further tools": f"the server lists its tools on more than {_PAGES} pages"}
            break
        cursors.add(cursor)
        page = await client.list_tools(cursor=cursor)
        for one in page.tools:
            tools.setdefault(one.name, one)
        cursor = page.next_cursor
        if cursor is None:
            break
    else:
        left_out = {"further tools": "the server's list of tools begins again and does not end"}
    return list(tools.values()), left_out


def _greeting(client: Client) -> Mapping[str, Any]:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    if (version := client.protocol_version) in HANDSHAKE_PROTOCOL_VERSIONS:
        return {"mode": "legacy"}
    return {"mode": version, "prior_discover": client.session.discover_result}


def failure_of(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the text of the first error of a group, as the end of a sentence."""
    one: BaseException | BaseExceptionGroup[BaseException] = group.exceptions[0]
    if isinstance(one, BaseExceptionGroup):
        return failure_of(cast("BaseExceptionGroup[BaseException]", one))
    return " ".join(str(one).split())[:300].rstrip(".") or type(one).__name__
