"""`genenv serve` as a server of this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from genenv.sampling_server.routes import Routes
from genenv.sampling_server.worker import Worker
from genenv.servers.http import HttpServer, Service

if TYPE_CHECKING:
    from genenv.backends.local.served.loaded import LoadedBase


class SamplingServer(HttpServer):
    """A server of one base."""

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
        super().__init__(host, port)
        self._base, self._name, self._slow_s = base, name, slow_s

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        worker = Worker(self._base, self._slow_s)
        try:
            yield Service(Routes(self._base, worker, self._name).application())
        finally:
            worker.close()
