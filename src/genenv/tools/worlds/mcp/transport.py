"""How messages come from an MCP server and go there, over stdio and over HTTP; each is of bounded size."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from httpx2 import Response
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

MOST_BYTES = 16 << 20
"""Of a message."""
_CONNECT_S, _READ_S = 30.0, 300.0
_ENDING_S = 5.0
"""How long a process may take to end all that it has started."""


class TooLong(ValueError):
    """A message is larger than any that could be of use."""

    def __init__(self) -> None:
        super().__init__(f"it sent a message of more than {MOST_BYTES >> 20} MiB")


@dataclass(slots=True)
class Traffic:
    """What has come from a server."""

    received: int = 0
    """Bytes of messages."""
    too_long: bool = False
    """Whether it ended with a message that was too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started."""

    name: str
    """How people know it."""
    command: Sequence[str]
    folder: Path
    """Where it runs."""
    log: Path
    """A file for what it writes to standard error."""
    environment: Mapping[str, str]


@contextlib.asynccontextmanager
async def over_stdio(how: Launch, traffic: Traffic) -> AsyncGenerator[TransportStreams]:
    """A process that is started, and ended with all that it has started.

    Args:
        how: it is started.
        traffic: is told what comes.

    Raises:
        TooLong: it sends a message that is too long; in a group, as tasks raise.
        OSError: it cannot be started.
    """
    import anyio
    from mcp.client.stdio import get_default_environment

    arriving, read = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    write, leaving = anyio.create_memory_object_stream["SessionMessage"](0)
    with how.log.open("ab") as log:
        process = await _started(how, get_default_environment(), log)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

    async def hear() -> None:
        output = cast(asyncio.StreamReader, process.stdout)
        with contextlib.suppress(*gone):
            async with arriving:
                while line := await _line(output, traffic):
                    await arriving.send(_message(line))

    async def speak() -> None:
        to = cast(asyncio.StreamWriter, process.stdin)
        with contextlib.suppress(*gone):
            async with leaving:
                async for one in leaving:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                    to.write(text.encode("utf-8", "replace") + b"\n")
                    await to.drain()
        await arriving.aclose()  # what waits for an answer is told that there will be none

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            tasks.start_soon(speak)
            try:
                yield cast(Any, read), write
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _started(how: Launch, usual: Mapping[str, str], log: IO[bytes]) -> Process:
    return await asyncio.create_subprocess_exec(
        *how.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=log,
        cwd=how.folder,
        env={**usual, **how.environment},
        start_new_session=True,
        limit=MOST_BYTES,
    )


async def _line(output: asyncio.StreamReader, traffic: Traffic) -> bytes:
    """The next line; empty at the end."""
    try:
        line = await output.readline()
    except ValueError as error:  # it is longer than the limit
        traffic.too_long = True
        raise TooLong from error
    traffic.received += len(line)
    return line


def _message(line: bytes) -> SessionMessage | Exception:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
    except ValueError as error:
        return error
    return SessionMessage(message)


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _ENDING_S)
    except TimeoutError:  # it was stopped, or cannot be ended
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    cast(Any, process)._transport.close()  # its pipes, which something that is left may hold open


@contextlib.asynccontextmanager
async def over_http(address: str, traffic: Traffic) -> AsyncGenerator[TransportStreams]:
    """A connection to a server by its address.

    Args:
        address: of it.
        traffic: is told what comes.
    """
    from httpx2 import AsyncByteStream, AsyncClient, ReadError, Timeout
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(AsyncByteStream):
        """The body of an answer, which breaks off where it is too long, but for a stream of events."""

        def __init__(self, response: Response) -> None:
            self._stream = cast(AsyncByteStream, response.stream)
            self._packed = response.headers.get("content-encoding", "identity").lower() != "identity"
            self._events = response.headers.get("content-type", "").startswith("text/event-stream")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if self._packed:
                raise ReadError("it packed its answer, which it was asked not to")
            size = 0
            async for part in self._stream:
                traffic.received += len(part)
                size += len(part)
                if size > MOST_BYTES and not self._events:  # the client bounds each event
                    raise ReadError(str(TooLong()))
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Response) -> None:
        response.stream = Bounded(response)

    hooks = {"response": [bound]}
    times = Timeout(_CONNECT_S, read=_READ_S)
    async with (
        AsyncClient(timeout=times, headers={"accept-encoding": "identity"}, event_hooks=hooks) as client,
        streamable_http_client(address, http_client=client) as (read, write),
    ):
        yield read, write
