"""The base class of genenv's HTTP servers, run in the main thread for commands or in another for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from genenv.errors import UsageError
from genenv.http.guard import Access, Guard, Unread, detail, is_loopback, new_key, nothing
from genenv.types import JsonObject

_GRACE_S = 2
_HEAD_S = 20.0
"""Time limit for the head of a request, from the connection or the request's first byte."""
_CONNECTIONS = 8192
"""Maximum open connections; further ones are closed at once."""


class Service(NamedTuple):
    """The application of a server and its background work."""

    application: Starlette
    work: Awaitable[None] | None = None
    """Work that runs concurrently with requests; the server ends when it ends. None for no work."""
    unread: Unread = nothing
    """Called with each body of a valid request that is refused for its size or type."""


_ANYBODY_HERE = Access()


class HttpServer(ABC):
    """A server; `with` runs it in a new thread, `run` in the current one."""

    types: ClassVar[tuple[str, ...]] = ("application/json",)
    """Content types that a body may have."""
    keyless: ClassVar[tuple[str, ...]] = ()
    """Paths that need no key."""
    key_prefix: ClassVar[str] = ""
    """Prefix of a generated key."""

    def __init__(self, host: str, port: int, access: Access = _ANYBODY_HERE) -> None:
        """Bind an address; requests are not answered yet.

        Args:
            host: the address.
            port: 0 for a free port.
            access: key, names and limits. If other machines can reach the server, it always has a key.

        Raises:
            UsageError: the address is not available.
        """
        self._socket, self._host = _bound(host, port), host
        shown = f"[{host}]" if ":" in host else host
        bound, number = self._socket.getsockname()[:2]
        self.url = f"http://{shown}:{number}"
        """The base URL for clients."""
        if access.key is None and not is_loopback(bound):
            access = replace(access, key=new_key(self.key_prefix))
        self.access = access
        """The key, the names and the limits."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @staticmethod
    def form(status: int, sentence: str) -> JsonObject:
        """Return the body of a refusal, in the form that clients expect."""
        return detail(status, sentence)

    @abstractmethod
    def _service(self) -> AbstractAsyncContextManager[Service]:
        """Return a context with the application and its work; it closes when the server ends."""

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `stop` ends the server; call `ready` when clients may connect."""
        with self._socket:
            asyncio.run(self._run(ready))

    def stop(self) -> None:
        """End `run` from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(ready.set,), name="genenv-http", daemon=True)
        self._thread.start()
        while not ready.wait(0.1):
            if not self._thread.is_alive():
                raise UsageError("the server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    async def _run(self, ready: Callable[[], None]) -> None:
        async with self._service() as service:
            guard = Guard(
                service.application,
                self.access,
                bound=self._host,
                form=self.form,
                types=self.types,
                keyless=self.keyless,
                unread=service.unread,
            )
            self._server = uvicorn.Server(
                uvicorn.Config(
                    guard,
                    http=_Protocol,
                    ws="none",
                    log_level="warning",
                    access_log=False,
                    lifespan="off",
                    timeout_keep_alive=120,
                    timeout_graceful_shutdown=_GRACE_S,
                )
            )
            serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
            work = None if service.work is None else asyncio.ensure_future(service.work)
            try:
                while not (self._server.started or serving.done()):
                    await asyncio.sleep(0.01)
                ready()
                ends = {serving} if work is None else {serving, work}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                self._server.should_exit = True
                await serving
            finally:
                if work is not None:
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await work


class _Protocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of a request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn's
        """Start the time limit of a new connection."""
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.abort()
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Handle data; an incomplete head must be complete in time."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self._expect_head()
        else:
            self._let_be()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._let_be()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HEAD_S, self.transport.abort)

    def _let_be(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: the address is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{host}:{port} is not to be had: {why.lower()}; choose another --port or --host"
        ) from error
