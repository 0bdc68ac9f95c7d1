# pyright: standard
"""The connection to a Tinker server: requests with timeouts, saved states, and encoding of sequences.

Each refusal becomes a one-sentence error. Saved states are deleted once no checkpoint names them. In an
encoded sequence each position predicts the next token, and each target has its inputs of the loss.

    input   x_1 ... x_{n-1}        target   x_2 ... x_n

Inputs of the loss (weights, advantages, log-probabilities) are 0 for targets in the prompt.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
import tinker
from tinker._base_client import DefaultAsyncHttpxClient
from tinker.lib.api_future_impl import _APIFuture
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from genenv.algorithms.datum import Datum
from genenv.backends.settings import TinkerConfig
from genenv.errors import GenenvError, UsageError, first_line
from genenv.http.guard import client_options, is_loopback, key_in
from genenv.threads import run_coroutine

T = TypeVar("T")

OFFICIAL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The address that the SDK uses by default."""

_MEETING_S = 45.0
"""Timeout of the first requests, seconds."""
_KEPT = "committed rounds are kept; continue with --resume when it answers"


class ServerError(GenenvError):
    """The server refused a request, failed, or did not answer in time."""


class Service:
    """A session with a Tinker server."""

    def __init__(self, address: str, client: tinker.ServiceClient, timeout_s: float) -> None:
        self.address, self.client, self.timeout_s = address, client, timeout_s

    @classmethod
    def connect(cls, settings: TinkerConfig) -> Service:
        """Open a session.

        Raises:
            UsageError: there is no API key, nothing answers at the address, or the answer is not of the
                protocol.
        """
        address = settings.address or os.environ.get("TINKER_BASE_URL") or OFFICIAL
        key = key_in(settings.key_variable)
        if key is None:
            if not _is_here(address):
                raise UsageError(
                    f"{address} wants a key: put it into the environment variable {settings.key_variable} "
                    "(policy.tinker.key_variable)"
                )
            key = "tml-of-this-machine"
        if not key.startswith("tml-"):
            raise UsageError(
                f"what {settings.key_variable} holds is no key of a Tinker server: they begin with tml-"
            )
        _check_health(address)
        _hush()

        async def opened() -> tinker.ServiceClient:
            options: dict[str, Any] = {}
            if _is_here(address) and getproxies():  # the SDK's own client would use them
                options["http_client"] = DefaultAsyncHttpxClient(base_url=address, trust_env=False)
            client = tinker.ServiceClient(base_url=address, api_key=key, **options)
            _ = client.holder  # opens the session
            return client

        try:
            client = run_coroutine(opened, min(_MEETING_S, settings.timeout_s))
        except Exception as error:
            raise UsageError(f"the Tinker server at {address} opens no session: {reason(error)}") from error
        return cls(address, client, settings.timeout_s)

    async def close(self) -> None:
        """End the session, so that the server can free its resources."""
        self.client.holder.close()

    async def adapter(self, model: str, rank: int, seed: int | None = None) -> tinker.TrainingClient:
        """Create an adapter on a base model; the output layer is not adapted.

        Raises:
            ServerError: the server has no room for another adapter.
        """
        made = self.client.create_lora_training_client_async(
            base_model=model, rank=rank, seed=seed, train_unembed=False
        )
        return await self.within(made, f"make an adapter of {model}")

    async def scored(self, client: tinker.TrainingClient, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """[T] of each: log-probabilities of its completion under an adapter. Nats."""
        sent = [encoded(datum, weights=(1.0,) * len(datum.completion_ids)) for datum in data]
        answer = await self.within(client.forward(sent, "cross_entropy"), "score tokens")
        return logprobs_of(answer.loss_fn_outputs, data)

    async def within(self, wanted: Awaitable[T], doing: str) -> T:
        """Await an answer of the server and return it.

        Args:
            wanted: the answer, or a future of it.
            doing: the request in words, as they follow "to" in an error message.

        Raises:
            ServerError: the server failed, or did not answer in time.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                found: Any = await wanted
                while hasattr(found, "result_async"):
                    found = await found.result_async()
                return found
        except Exception as error:
            said = (
                f"no answer within {self.timeout_s:g} s (policy.tinker.timeout_s)"
                if isinstance(error, TimeoutError)
                else reason(error)
            )
            raise ServerError(
                f"the Tinker server at {self.address} was asked to {doing}: {said}; {_KEPT}"
            ) from error


def reason(error: BaseException) -> str:
    """Return the cause of a failed request in one line."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    refused = error.__cause__ if isinstance(error, ValueError) else error  # the SDK wraps refusals
    if isinstance(refused, tinker.APIStatusError):
        return _refusal(refused)
    if isinstance(error, tinker.APIConnectionError):
        return f"it cannot be reached ({first_line(error)})"
    if isinstance(
        error, tinker.APIResponseValidationError | ValueError | KeyError | TypeError | AssertionError
    ):
        return (
            f"its answer is not what version {tinker.__version__} of the protocol has ({first_line(error)})"
        )
    return first_line(error) or type(error).__name__


def _refusal(error: tinker.APIStatusError) -> str:
    status = error.status_code
    if status in (401, 403):
        return f"it does not take the key (status {status})"
    if status == 429:
        return "it has too much to do (status 429)"
    body = error.body
    if isinstance(body, dict):
        said = body.get("detail") or body.get("error") or body.get("message") or body
        return (
            f"status {status}: {first_line(Exception(said if isinstance(said, str) else json.dumps(said)))}"
        )
    if "<html" in str(body or error.message).lower():
        return f"status {status}, and a web page: is there a proxy before it, or another server?"
    return f"status {status}: {first_line(error)}"


def _hush() -> None:
    """Silence the SDK's logger; the caller reports each failure once."""
    logger = logging.getLogger("tinker")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _is_here(address: str) -> bool:
    """Return whether a server is on this machine."""
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def _check_health(address: str) -> None:
    """Refuse an address without a Tinker server at once; the SDK would retry for minutes.

    Raises:
        UsageError: nothing answers, or another kind of server does.
    """
    url = address.rstrip("/") + "/api/v1/healthz"
    try:
        answer = httpx2.get(url, timeout=10, follow_redirects=True, **client_options(url))
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise UsageError(
            f"no Tinker server answers at {address}: {first_line(error) or type(error).__name__}; start one "
            "(`genenv tinker-server`), or set policy.tinker.address"
        ) from error
    if answer.status_code in (401, 403):
        return  # the official server requires a key even for this request
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        raise UsageError(
            f"what answers at {address} is no Tinker server: {url} says status {answer.status_code}, "
            f"{answer.headers.get('content-type', 'no type')}"
        )


log = logging.getLogger(__name__)


class States:
    """The states that one trainer has saved on the server, for adapters of one base and rank."""

    def __init__(self, service: Service, role: str, *, model: str, rank: int) -> None:
        self._service, self._role, self._model, self._rank = service, role, model, rank
        self._saved: set[str] = set()

    async def save(self, client: tinker.TrainingClient, *, replaces: str | None = None) -> str:
        """Have the server save weights and moments; return the path of the state.

        Args:
            client: the adapter to save.
            replaces: an older state, which is deleted.
        """
        asked = client.save_state(f"genenv-{self._role}-state-{uuid.uuid4().hex[:12]}")
        path = str((await self._service.within(asked, "save its state")).path)
        if replaces is not None:
            await self.delete(replaces)
        return path

    async def opened(self, path: str, *, optimizer: bool) -> tinker.TrainingClient:
        """Create an adapter and load a state into it.

        The SDK's own function asks the server for the settings of the state. If the answer omits whether the
        output layer is adapted, the SDK would adapt it.

        Args:
            path: of the state.
            optimizer: whether to load the moments too.

        Raises:
            ServerError: there is no such state, or no room for another adapter.
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
        """Delete the states whose checkpoints no longer exist.

        Args:
            path: the state of the checkpoint that was just written.
            named: the state files of all remaining checkpoints.
        """
        self._saved.add(path)
        alive = {path}
        for file in named:
            try:
                alive.add(str(json.loads(file.read_text(encoding="utf-8"))["state"]))
            except (OSError, ValueError, KeyError, TypeError):
                return  # an unreadable file may name any state
        for gone in self._saved - alive:
            await self.delete(gone)
            self._saved.discard(gone)

    async def let_go(self, client: tinker.TrainingClient) -> None:
        """Unload an adapter and wait until its slot is free; a server without this request frees it later.

        Until the slot is free, its contents may corrupt other adapters: SkyRL multiplies them by zero, and
        NaN times zero is NaN.
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
        except Exception as error:  # noqa: BLE001 - this wastes a slot but must not end the run
            log.debug("an adapter's place was not freed: %s", first_line(error))

    async def delete(self, path: str) -> None:
        """Delete a state; a server without this request keeps it."""
        try:
            asked = self._service.client.create_rest_client().delete_checkpoint_from_tinker_path_async(path)
            await self._service.within(asked, "delete a state")
        except Exception as error:  # noqa: BLE001 - this wastes disk but must not end the run
            log.debug("%s was not deleted: %s", path, first_line(error))


def encoded(datum: Datum, **beside: Sequence[float]) -> tinker.Datum:
    """Encode a sequence for the server, with named inputs of the loss for its completion, [T] each."""
    whole = [*datum.prompt_ids, *datum.completion_ids]
    before = [0.0] * (len(datum.prompt_ids) - 1)
    inputs = {"target_tokens": tinker.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1])}
    for name, values in beside.items():
        row = [*before, *map(float, values)]
        inputs[name] = tinker.TensorData(data=row, dtype="float32", shape=[len(row)])
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(whole[:-1]), loss_fn_inputs=inputs)


def targets(datum: Datum) -> int:
    """Return the number of predicted tokens: all tokens of a sequence but the first."""
    return len(datum.prompt_ids) + len(datum.completion_ids) - 1


def logprobs_of(
    outputs: Sequence[Mapping[str, tinker.TensorData]], data: Sequence[Datum]
) -> list[tuple[float, ...]]:
    """Extract the log-probabilities of each completion, [T], from the output of a forward pass. Nats.

    Raises:
        ValueError: they are missing, or their number does not match the data.
    """
    if len(outputs) != len(data):
        raise ValueError(f"{len(outputs)} answers for {len(data)} sequences")
    found: list[tuple[float, ...]] = []
    for output, datum in zip(outputs, data, strict=True):
        if "logprobs" not in output:
            raise ValueError(f"no logprobs among {', '.join(output) or 'nothing'}")
        values = output["logprobs"].data
        if len(values) != targets(datum):
            raise ValueError(f"{len(values)} log-probabilities for {targets(datum)} tokens")
        found.append(tuple(map(float, values[len(datum.prompt_ids) - 1 :])))
    return found


def losses_of(outputs: Sequence[Mapping[str, tinker.TensorData]]) -> list[list[float]]:
    """Return the loss of each token, per sequence, if the pass returned one."""
    return [
        list(map(float, values.data))
        for output in outputs
        for name, values in output.items()
        if "loss" in name
    ]


def tail(values: Sequence[float | None] | None, datum: Datum) -> tuple[float, ...]:
    """Return the log-probabilities of a completion, [T], from those of its whole sequence.

    The first token of the sequence may be missing in `values`, as nothing predicts it.

    Raises:
        ValueError: there are too few or too many values, or a value is None.
    """
    length = len(datum.prompt_ids) + len(datum.completion_ids)
    if values is None or len(values) not in (length, length - 1):
        raise ValueError(f"{0 if values is None else len(values)} log-probabilities for {length} tokens")
    own = values[len(values) - len(datum.completion_ids) :]
    known = tuple(value for value in own if value is not None)
    if len(known) != len(own):
        raise ValueError("some log-probabilities are missing")
    return known


def all_finite(rows: Sequence[Sequence[float]]) -> bool:
    """Return whether no value is NaN or infinite."""
    return all(math.isfinite(value) for row in rows for value in row)
