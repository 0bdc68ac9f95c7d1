# pyright: standard
"""States that a server keeps for a player: named, and given up when no checkpoint names them any more."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import tinker
from tinker.lib.api_future_impl import _APIFuture
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from genenv.backends.tinker.service import ServerError, Service
from genenv.errors import first_line

log = logging.getLogger(__name__)


class States:
    """What one trainer has had saved, of adapters of one base and rank."""

    def __init__(self, service: Service, role: str, *, model: str, rank: int) -> None:
        self._service, self._role, self._model, self._rank = service, role, model, rank
        self._saved: set[str] = set()

    def name(self, what: str) -> str:
        """A name that nothing there has."""
        return f"genenv-{self._role}-{what}-{uuid.uuid4().hex[:12]}"

    async def save(self, client: tinker.TrainingClient, *, replaces: str | None = None) -> str:
        """Have weights and moments saved; returns the path of the state.

        Args:
            client: whose they are.
            replaces: a state that nobody will go back to any more.
        """
        asked = client.save_state(self.name("state"))
        path = str((await self._service.within(asked, "save its state")).path)
        if replaces is not None:
            await self.delete(replaces)
        return path

    async def opened(self, path: str, *, optimizer: bool) -> tinker.TrainingClient:
        """A new adapter with a state.

        The SDK does the same by what the server says of the state; one that does not say whether the output
        layer is adapted would have it adapted from then on.

        Args:
            path: of the state.
            optimizer: whether the moments are taken along.

        Raises:
            ServerError: there is no such state, or no place for another adapter.
        """
        client = await self._service.adapter(self._model, self._rank)
        asked = client.load_state_with_optimizer(path) if optimizer else client.load_state(path)
        try:
            await self._service.within(asked, f"restore {path}")
        except ServerError:
            await self.let_go(client)
            raise
        return client

    async def forget_unless(self, path: str, named: Iterable[Path]) -> None:
        """Give up states of checkpoints that are gone.

        Args:
            path: of the checkpoint that was just written.
            named: the files of those that are left.
        """
        self._saved.add(path)
        alive = {path}
        for file in named:
            try:
                alive.add(str(json.loads(file.read_text(encoding="utf-8"))["state"]))
            except (OSError, ValueError, KeyError, TypeError):
                return  # what cannot be read may name anything
        for gone in self._saved - alive:
            await self.delete(gone)
            self._saved.discard(gone)

    async def let_go(self, client: tinker.TrainingClient) -> None:
        """Free an adapter's place, and wait until it is free. A server that does not know how frees it later.

        Until then what the place holds may spoil others: SkyRL multiplies it by zero, and NaN stays NaN.
        """

        async def unload() -> None:
            began = time.time()
            with client.holder.aclient(ClientConnectionPoolType.TRAIN) as asked:
                request = tinker.types.UnloadModelRequest(model_id=client.model_id)
                future = await asked.models.unload(request=request)
            await _APIFuture(
                tinker.types.UnloadModelResponse,
                client.holder,
                future,
                request_start_time=began,
                request_type="UnloadModel",
            )

        try:
            await self._service.within(client.holder.run_coroutine_threadsafe(unload()), "free an adapter")
        except Exception as error:  # noqa: BLE001 - it costs a place, not the run
            log.debug("an adapter's place was not freed: %s", first_line(error))

    async def delete(self, path: str) -> None:
        """Give up a state. A server that does not know how keeps it."""
        try:
            asked = self._service.client.create_rest_client().delete_checkpoint_from_tinker_path_async(path)
            await self._service.within(asked, "delete a state")
        except Exception as error:  # noqa: BLE001 - it costs room, not the run
            log.debug("%s was not deleted: %s", path, first_line(error))
