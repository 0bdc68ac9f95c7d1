"""A local MCP server process, and the streams over which a client speaks with it.

A server in Python can be loaded once and forked for each connection (`forking.py`), which takes a few
milliseconds instead of the time that its modules take to load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from asyncio.streams import FlowControlMixin
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from genenv.tools.worlds.mcp.client import MOST_BYTES, Connection, NotRunning, TooLong
from genenv.tools.worlds.mcp.forking import END, FORK, READY, VARIABLE

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

FORK_S = 5.0
"""Seconds that a fork has to answer, which takes it some milliseconds."""
_ENDING_S = 5.0
"""Seconds that a process has to end all that it has started."""


class StdioServer:
    """A server process. Without forks, each connection starts it anew and ends it.

    Args:
        command: the words of the command.
        folder: the working folder.
        log: a file for its standard error.
        environment: its environment variables, besides the usual ones.
        loaded: is called in a thread when the server is loaded; returns whether it can be forked. None: it
            is not forked.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        loaded: Callable[[], bool] | None = None,
    ) -> None:
        self._command, self._folder, self._log, self._environment = command, folder, log, environment
        self._loaded = loaded
        self._process: Process | None = None
        self._control: socket.socket | None = None
        self._forking: asyncio.Task[None] | None = None
        self.is_forked = False
        """Whether the server is loaded, and each connection has a fork of it."""

    @contextlib.asynccontextmanager
    async def streams(self, connection: Connection) -> AsyncGenerator[TransportStreams]:
        """Start the server, or fork it; yield its streams, and end what was started.

        Args:
            connection: counts the data that arrive.

        Raises:
            TooLong: the server sends a message that is too long; raised in an exception group.
            OSError: the process cannot be started.
            NotRunning: the loaded server has ended.
        """
        opened = self._forked() if self.is_forked else self._first()
        async with opened as (reader, writer), _spoken(reader, writer, connection) as streams:
            yield streams

    @contextlib.asynccontextmanager
    async def _first(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Start the server, which is forked if it can be, and yield its streams."""
        try:
            process = await self._start()
            if self._control is not None:
                self._forking = asyncio.create_task(self._first_fork(self._control, process))
            yield cast(Any, process.stdout), cast(Any, process.stdin)
        finally:
            await self._over()

    async def _start(self) -> Process:
        from mcp.client.stdio import get_default_environment

        more, passed = dict(self._environment), list[socket.socket]()
        if self._loaded is not None:
            self._control, theirs = socket.socketpair()
            self._control.setblocking(False)
            passed.append(theirs)
            more[VARIABLE] = str(theirs.fileno())
        try:
            with self._log.open("ab") as errors:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=errors,
                    cwd=self._folder,
                    env={**get_default_environment(), **more},
                    start_new_session=True,
                    limit=MOST_BYTES,
                    pass_fds=[one.fileno() for one in passed],
                )
        finally:
            for one in passed:
                one.close()
        return self._process

    async def _first_fork(self, control: socket.socket, process: Process) -> None:
        """Have the server forked once it is loaded. Other servers say nothing, and serve themselves."""
        try:
            is_ready = await asyncio.get_running_loop().sock_recv(control, 1) == READY
            if is_ready and self._loaded is not None and await asyncio.to_thread(self._loaded):
                socket.send_fds(control, [FORK], [])
                self.is_forked = True
        except Exception:  # noqa: BLE001 - such as of its folder, which it may be writing in
            self.is_forked = False
        if not self.is_forked:
            self._unforked()
            return
        await asyncio.sleep(FORK_S)  # `settle` is called before
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    @contextlib.asynccontextmanager
    async def _forked(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Fork the server, and yield the streams of the fork."""
        loop, control = asyncio.get_running_loop(), self._control
        if control is None:
            raise NotRunning("it ended")
        with contextlib.ExitStack() as opened:
            (output, its_output), (its_input, entry) = os.pipe(), os.pipe()
            ours = opened.enter_context(os.fdopen(output, "rb", buffering=0))
            own = opened.enter_context(os.fdopen(entry, "wb", buffering=0))
            try:
                try:
                    socket.send_fds(control, [FORK], [its_input, its_output])
                finally:
                    os.close(its_input)
                    os.close(its_output)
                reader = asyncio.StreamReader(limit=MOST_BYTES)
                reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), ours)
                opened.callback(reading.close)
                writing, protocol = await loop.connect_write_pipe(FlowControlMixin, own)
                opened.callback(writing.abort)
                yield reader, asyncio.StreamWriter(writing, protocol, None, loop)
            finally:  # before its streams are closed, at which it would do what servers do at their end
                await self._over()

    async def _over(self) -> None:
        """End the fork; also the loaded server, if it cannot be forked again."""
        import anyio

        self._watched()
        with anyio.CancelScope(shield=True):
            if not self.is_forked or not await self._fork_ended():
                await self.end()

    def _watched(self) -> None:
        """Stop waiting for the first fork."""
        if self._forking is not None:
            self._forking.cancel()
            self._forking = None

    async def _fork_ended(self) -> bool:
        """End the fork with all that it has started; return whether the loaded server can be forked again."""
        if self._control is None:
            return False
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_ENDING_S):
                await loop.sock_sendall(self._control, END)
                return await loop.sock_recv(self._control, 1) == END
        return False

    def settle(self) -> None:
        """Note that the server has answered: one that was not forked by now is not forked later."""
        self._watched()
        if not self.is_forked:
            self._unforked()

    def _unforked(self) -> None:
        """Let the server serve itself."""
        if self._control is not None:
            self._control.close()
            self._control = None

    async def end(self) -> None:
        """End the process, with all that it has started."""
        process, self._process, self.is_forked = self._process, None, False
        self._unforked()
        if process is not None:
            await _end(process)


@contextlib.asynccontextmanager
async def _spoken(
    output: asyncio.StreamReader, to: asyncio.StreamWriter, connection: Connection
) -> AsyncGenerator[TransportStreams]:
    """Yield streams of messages: what arrives in the output of a server, and what is sent to its input."""
    import anyio

    arriving, read = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    write, leaving = anyio.create_memory_object_stream["SessionMessage"](0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

    async def hear() -> None:
        with contextlib.suppress(*gone):
            async with arriving:
                while line := await _line(output, connection):
                    await arriving.send(_message(line))

    async def speak() -> None:
        with contextlib.suppress(*gone):
            async with leaving:
                async for one in leaving:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                    to.write(text.encode("utf-8", "replace") + b"\n")
                    await to.drain()
        await arriving.aclose()  # pending calls fail now

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        tasks.start_soon(speak)
        try:
            yield cast(Any, read), write
        finally:
            tasks.cancel_scope.cancel()


async def _line(output: asyncio.StreamReader, connection: Connection) -> bytes:
    """Return the next line of output; empty at the end."""
    try:
        line = await output.readline()
    except ValueError as error:  # it is longer than the limit
        connection.is_flooded = True
        raise TooLong from error
    connection.received += len(line)
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
    except TimeoutError:  # it is suspended, or does not end
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    cast(Any, process)._transport.close()  # closes its pipes, which a surviving process may hold open
