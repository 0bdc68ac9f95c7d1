"""`genenv serve` as a server of this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genenv.http.guard import Access
from genenv.http.http import HttpServer, Service
from genenv.http.parsing import Parser
from genenv.servers.vllm.folders import Folders
from genenv.servers.vllm.routes import Routes, form
from genenv.servers.vllm.worker import Worker
from genenv.types import JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import LoadedBase


class SamplingServer(HttpServer):
    """A server of one base."""

    keyless = ("/health",)

    def __init__(  # noqa: PLR0913 - all but two are optional
        self,
        base: LoadedBase,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        access: Access = Access(),  # noqa: B008 - frozen
        adapters: Sequence[Path] = (),
        slow_s: float = 0.0,
    ) -> None:
        """Bind an address; nothing is answered yet.

        Args:
            base: what is served.
            name: what clients call it.
            host: the address.
            port: 0 takes a free one.
            access: who may use it, and how much of it.
            adapters: folders from which adapters are loaded; without any, see `Folders`.
            slow_s: seconds that go by before each batch, for tests of clients.

        Raises:
            UsageError: the address is not to be had.
        """
        super().__init__(host, port, access)
        self._base, self._name, self._slow_s = base, name, slow_s
        self._folders = Folders(adapters)

    def form(self, status: int, sentence: str) -> JsonObject:
        """See `HttpServer`: vLLM's."""
        return form(status, sentence)

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        worker, parser = Worker(self._base, self._slow_s), Parser()
        routes = Routes(self._base, worker, self._name, folders=self._folders, parser=parser)
        try:
            yield Service(routes.application())
        finally:
            parser.close()
            worker.close()
