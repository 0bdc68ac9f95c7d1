"""A server in this process: in the main thread for commands, in its own for tests and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Self

import uvicorn
from starlette.applications import Starlette

from genenv.errors import UsageError

_GRACE_S = 2


class Service(NamedTuple):
    """What a server serves."""

    application: Starlette
    work: Awaitable[None] | None = None
    """What goes on beside the requests; the server ends with it. None: nothing."""


class HttpServer(ABC):
    """A server; `with` runs it in a thread of its own, `run` in this one."""

    def __init__(self, host: str, port: int) -> None:
        """Bind an address; nothing is answered yet.

        Args:
            host: the address.
            port: 0 takes a free one.

        Raises:
            UsageError: the address is not to be had.
        """
        self._socket = _bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        """What clients are pointed at."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _service(self) -> AbstractAsyncContextManager[Service]:
        """What is served, in the loop that serves; it is closed when the address is given up."""

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `stop` ends it; `ready` is called when clients may come."""
        asyncio.run(self._run(ready))

    def stop(self) -> None:
        """End `run`, from another thread."""
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
            self._server = uvicorn.Server(
                uvicorn.Config(
                    service.application,
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
                self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UsageError: the address is not to be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{host}:{port} is not to be had: {why.lower()}; choose another --port or --host"
        ) from error
