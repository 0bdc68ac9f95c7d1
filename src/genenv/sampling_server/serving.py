"""A server in this process: in the main thread for the command line, in its own for tests and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import uvicorn

from genenv.errors import UsageError
from genenv.sampling_server.routes import Routes
from genenv.sampling_server.worker import Worker
from genenv.tinker_server.serving import bound

if TYPE_CHECKING:
    from genenv.backends.local.served.loaded import LoadedBase

_GRACE_S = 2


class SamplingServer:
    """A server of one base; `with` runs it in a thread of its own, `run` in this one."""

    def __init__(
        self, base: LoadedBase, name: str, *, host: str = "127.0.0.1", port: int = 0, slow_s: float = 0.0
    ) -> None:
        """Bind an address; nothing is answered yet.

        Args:
            base: what is served.
            name: what clients call it.
            host: the address.
            port: 0 takes a free one.
            slow_s: seconds that go by before each batch, for tests of clients.

        Raises:
            UsageError: the address is not to be had.
        """
        self._base, self._name, self._slow_s = base, name, slow_s
        self._socket = bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        """What `policy.vllm.addresses` should hold."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `stop` ends it; `ready` is called when clients may come."""
        asyncio.run(self._run(ready))

    def stop(self) -> None:
        """End `run`, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(ready.set,), name="serve-http", daemon=True)
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
        worker = Worker(self._base, self._slow_s)
        config = uvicorn.Config(
            Routes(self._base, worker, self._name).application(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            while not (self._server.started or serving.done()):
                await asyncio.sleep(0.01)
            ready()
            await serving
        finally:
            self._socket.close()
            worker.close()
