"""A running MCP server: its process, and the official client that talks to it from a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING, cast

from genenv.errors import UsageError
from genenv.tools.worlds.event_loop import Thread
from genenv.tools.worlds.mcp.results import answers_checked
from genenv.tools.worlds.mcp.transport import Launch, Traffic, over_stdio
from genenv.types import Json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

START_S = 60.0
"""How long a server may take until it says which tools it has."""
_MOST_LOG = 1 << 20
_PAGES = 100


class NotRunning(Exception):
    """The server has ended, or does not answer. The message is a sentence's end."""


class Flooded(NotRunning):
    """It has ended because it sent more than anybody could read."""


class Server:
    """A server that was started and has said which tools it has.

    Args:
        how: it is started.
        thread: where its client lives.

    Raises:
        UsageError: it does not start, or speaks no MCP.
    """

    def __init__(self, how: Launch, thread: Thread) -> None:
        client_class()
        self._how, self._thread = how, thread
        self._how.log.write_bytes(b"")
        self._nonsense = 0
        self.traffic = Traffic()
        """What has come from it."""
        self.tools: list[McpTool] = []
        self._stop = asyncio.Event()
        self._client: Client | None = None
        ready = threading.Event()
        self._failure = "it ended"
        self._serving = thread.start(self._serve(ready))
        self._serving.add_done_callback(lambda _: ready.set())
        in_time = ready.wait(START_S)
        if self._client is None:
            self.close()
            failure = self._failure if in_time else f"it did not answer within {START_S:g} s"
            raise UsageError(f"{how.name} gives no tools: {failure}{self._last_words()}")

    async def _serve(self, ready: threading.Event) -> None:
        """The whole life of the process, in one task, as scopes of cancellation want it."""
        from mcp import MCPError

        try:
            streams = over_stdio(self._how, self.traffic)
            async with client_class()(streams, message_handler=self._heard, cache=None) as client:
                self.tools = await listed(client)
                self._client = client
                ready.set()
                await self._stop.wait()
        except* (MCPError, OSError, ValueError, RuntimeError) as group:
            self._failure = failure_of(group)

    async def _heard(self, message: object) -> None:
        if isinstance(message, Exception):
            self._nonsense += 1

    def call(self, tool: str, args: Mapping[str, Json], limit_s: float) -> CallToolResult | str:
        """What a tool answers, or the error with which the protocol refuses it.

        Raises:
            NotRunning: the process has ended, or takes too long.
        """
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None or self._serving.done():
            raise NotRunning("it has ended")
        if self._how.log.stat().st_size > _MOST_LOG:
            os.truncate(self._how.log, 0)
        answer = self._thread.start(self._client.call_tool(tool, dict(args)))
        try:
            return answer.result(limit_s)
        except TimeoutError as error:
            answer.cancel()
            raise NotRunning("it took too long") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._ended() from error
            return error.message or "The call was refused."
        except (CancelledError, BrokenResourceError, ClosedResourceError) as error:
            raise self._ended() from error
        except (
            RuntimeError,
            ValueError,
        ) as error:  # an answer that is none by its own schema, or by the protocol's
            return " ".join(str(error).split())[:500]

    def _ended(self) -> NotRunning:
        return Flooded("it sent too much") if self.traffic.too_long else NotRunning("it has ended")

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._client is None:  # it has not said which tools it has, and is not waited for
            self._serving.cancel()
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._thread.start(_set(self._stop))
        if wait([self._serving], 10).not_done:
            self._serving.cancel()

    def _last_words(self) -> str:
        """The end of what it wrote to its log, and whether it wrote nonsense."""
        with contextlib.suppress(OSError):
            lines = self._how.log.read_text(encoding="utf-8", errors="replace").split("\n")
            told = next((line.strip() for line in reversed(lines) if line.strip()), "")
            nonsense = "; it prints lines that are no MCP" if self._nonsense else ""
            return nonsense + (f" ({told[:300]})" if told else "")
        return ""


def client_class() -> type[Client]:
    """The official client.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from mcp import Client
    except ImportError as error:
        raise UsageError("MCP servers need the package mcp: pip install 'genenv[mcp]'") from error
    logger = logging.getLogger("mcp")
    if not logger.handlers:  # it would print what servers do wrong
        logger.addHandler(logging.NullHandler())
    return Client


async def listed(client: Client) -> list[McpTool]:
    """All tools of a server; from now on its answers are checked within limits."""
    tools: list[McpTool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    client.session.validate_tool_result = answers_checked(tools)  # pyright: ignore[reportAttributeAccessIssue]
    return tools


async def _set(event: asyncio.Event) -> None:
    event.set()


def failure_of(group: BaseExceptionGroup[BaseException]) -> str:
    """The first of some errors, as the end of a sentence."""
    one: BaseException | BaseExceptionGroup[BaseException] = group.exceptions[0]
    if isinstance(one, BaseExceptionGroup):
        return failure_of(cast("BaseExceptionGroup[BaseException]", one))
    return " ".join(str(one).split())[:300].rstrip(".") or type(one).__name__
