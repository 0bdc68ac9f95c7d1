# pyright: standard
"""A Tinker server, as it is spoken to: within limits of time, and each refusal is one sentence."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import tinker

from genenv.backends.settings import TinkerConfig
from genenv.errors import GenenvError, UsageError, first_line
from genenv.threads import run_coroutine as apart

T = TypeVar("T")

OFFICIAL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""Where the client itself goes when nobody says where to."""

_MEETING_S = 45.0
"""In which a server must have answered the first questions."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_KEPT = "committed rounds are kept; continue with --resume when it answers"


class ServerError(GenenvError):
    """The server did not do what it was asked to."""


class Service:
    """A connection to a server."""

    def __init__(self, address: str, client: tinker.ServiceClient, timeout_s: float) -> None:
        self.address, self.client, self.timeout_s = address, client, timeout_s

    @classmethod
    def connect(cls, settings: TinkerConfig) -> Service:
        """Open a session.

        Raises:
            UsageError: nothing answers there, or nothing that speaks the protocol; or there is no key.
        """
        address = settings.address or os.environ.get("TINKER_BASE_URL") or OFFICIAL
        key = os.environ.get(settings.key_variable, "")
        if not key:
            if urlsplit(address).hostname not in _LOOPBACK:
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
            client = tinker.ServiceClient(base_url=address, api_key=key)
            _ = client.holder  # opens the session
            return client

        try:
            client = apart(opened, min(_MEETING_S, settings.timeout_s))
        except Exception as error:
            raise UsageError(f"the Tinker server at {address} opens no session: {reason(error)}") from error
        return cls(address, client, settings.timeout_s)

    async def close(self) -> None:
        """End the session: the server may free what is held for it."""
        self.client.holder.close()

    async def adapter(self, model: str, rank: int, seed: int | None = None) -> tinker.TrainingClient:
        """A new adapter on a base, none of it on the output layer.

        Raises:
            ServerError: there is no place for another one.
        """
        made = self.client.create_lora_training_client_async(
            base_model=model, rank=rank, seed=seed, train_unembed=False
        )
        return await self.within(made, f"make an adapter of {model}")

    async def within(self, wanted: Awaitable[T], doing: str) -> T:
        """What the server answers.

        Args:
            wanted: the answer, or the future of it.
            doing: what it was asked to do, as it stands after "to".

        Raises:
            ServerError: it does not, or not in time.
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
    """What a failure says, in one line: what is wrong, where it can be told."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    refused = error.__cause__ if isinstance(error, ValueError) else error  # the SDK's own, where it waits
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
    """Keep the client from printing what it meets: it is said once, by who asked."""
    logger = logging.getLogger("tinker")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _check_health(address: str) -> None:
    """Refuse what is no Tinker server at once: the client itself would ask again for minutes.

    Raises:
        UsageError: nothing answers, or something else does.
    """
    url = address.rstrip("/") + "/api/v1/healthz"
    try:
        answer = httpx2.get(url, timeout=10, follow_redirects=True)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise UsageError(
            f"no Tinker server answers at {address}: {first_line(error) or type(error).__name__}; start one "
            "(`genenv tinker-server`), or set policy.tinker.address"
        ) from error
    if answer.status_code in (401, 403):
        return  # the official one wants a key even for that
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        raise UsageError(
            f"what answers at {address} is no Tinker server: {url} says status {answer.status_code}, "
            f"{answer.headers.get('content-type', 'no type')}"
        )
