"""An MCP server that is given by its address: asked over HTTP when a bundle is made, never in training."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.errors import UsageError
from genenv.tools.worlds.base import Call, LoadedWorld, Outcome, usable
from genenv.tools.worlds.limits import USUAL, Budget
from genenv.tools.worlds.mcp.server import (
    START_S,
    Traffic,
    client_class,
    failure_of,
    listed,
    outcome_of,
    over_http,
    tool_of,
)
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.tools.worlds.recorded import MOST_SENT, Ended, NoAnswer, may_write, record
from genenv.tools.worlds.sources import RecordedSource, Source

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as McpTool

_CALL_S = 30.0
_REFUSED = "it may write (it has no readOnlyHint), and --allow-writes was not given"


class RemoteOrigin:
    """An MCP server over streamable HTTP.

    Args:
        address: of the server.
        writes: whether tools that may write are called too.
        most: so many calls at most are sent.
    """

    def __init__(self, address: str, *, writes: bool = False, most: int = MOST_SENT) -> None:
        self._address, self._writes, self._most = address, writes, most

    @property
    def label(self) -> str:
        """See `Origin`."""
        return self._address

    @property
    def warning(self) -> str:
        """See `Origin`."""
        told = "the server is asked now, and its answers are kept"
        return told + (
            "; tools that write are called for real, each different call once"
            if self._writes
            else "; tools that may write are left out"
        )

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `Origin`: what it answers is recorded."""
        server, budget = RemoteServer(self._address), budget or Budget(USUAL)
        budget.received += server.traffic.received  # its list of tools

        def send(call: Call) -> Outcome:
            with budget.spending(lambda: server.traffic.received):
                return server.send(call)

        try:
            tools, left_out = usable({one.name: partial(tool_of, one) for one in server.tools})
            refused = {name: _REFUSED for name, one in tools.items() if may_write(one) and not self._writes}
            kept = {name: one for name, one in tools.items() if name not in refused}
            if not kept:
                reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())[:400]
                raise UsageError(
                    f"all tools of {self._address} may write: none has a readOnlyHint; --allow-writes has "
                    "them called for real"
                    if tools
                    else f"{self._address} gives no tools: {reasons or 'it lists none'}"
                )
            record(kept, send, {**left_out, **refused}, random.Random("recording"), self._most).save(files)
        finally:
            server.close()
        return RecordedSource(address=self._address)

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `Origin`: what was recorded is all there is."""
        del world, source, files
        return None


class RemoteServer:
    """A connection to a server that has said which tools it has.

    Args:
        address: of it.

    Raises:
        UsageError: nothing answers there, or it speaks no MCP.
    """

    def __init__(self, address: str) -> None:
        client_class()
        self._address, self._thread = address, Thread()
        self.traffic = Traffic()
        self.tools: list[McpTool] = []
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._failure = "it ended"
        ready = threading.Event()
        self._serving = self._thread.start(self._serve(ready))
        self._serving.add_done_callback(lambda _: ready.set())
        in_time = ready.wait(START_S)
        if self._client is None:
            self.close()
            failure = self._failure if in_time else f"it did not answer within {START_S:g} s"
            raise UsageError(f"{address} gives no tools: {failure}")

    async def _serve(self, ready: threading.Event) -> None:
        from httpx2 import HTTPError
        from mcp import MCPError

        try:
            streams = over_http(self._address, self.traffic)
            async with client_class()(streams, cache=None) as client:
                self.tools = await listed(client)
                self._client = client
                ready.set()
                await self._stop.wait()
        except* (MCPError, HTTPError, OSError, ValueError, RuntimeError) as group:
            self._failure = failure_of(group)

    def send(self, call: Call) -> Outcome:
        """What the server answers.

        Raises:
            NoAnswer: it takes too long, or the connection is gone.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if self._client is None or self._serving.done():
            raise Ended(f"it does not answer any more: {self._failure}")
        answer = self._thread.start(self._client.call_tool(call.tool, dict(call.args)))
        try:
            return outcome_of(answer.result(_CALL_S), MOST_CHARS)
        except TimeoutError as error:
            answer.cancel()
            raise NoAnswer("it took too long") from error
        except (MCPError, RuntimeError, ValueError) as error:
            if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
                raise Ended("it does not answer any more") from error
            return Outcome(error=" ".join(str(error).split())[:500] or "The call was refused.")

    def close(self) -> None:
        """End the connection."""
        if self._client is None:  # it has not said which tools it has, and is not waited for
            self._serving.cancel()
        self._thread.start(_set(self._stop))
        wait([self._serving], 10)
        self._thread.close()


async def _set(event: asyncio.Event) -> None:
    event.set()
