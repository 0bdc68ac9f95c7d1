# pyright: standard
"""The official client, with a bound on what a server may send and secrets that are never shown.

A server is not trusted: an answer without an end, one that unpacks to gigabytes, and one that quotes the key
cost the item that was asked, not the evaluation.
"""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import openai

from genenv.backends.settings import EndpointConfig
from genenv.errors import UsageError
from genenv.texts import inert, masked

try:  # what the official client uses, by version
    import httpx2 as httpx  # pyright: ignore[reportMissingImports]
except ImportError:
    import httpx  # pyright: ignore[reportMissingImports]

MAX_BODY_BYTES = 16 * 2**20
"""Longest answer that is read. A million tokens of text are 5 MB."""


class TooMuch(Exception):
    """A server sent more than any answer needs, or sent it packed."""


class Address:
    """Where an endpoint is, and what must not be shown of it."""

    def __init__(self, address: str, endpoint: EndpointConfig) -> None:
        """Take `BASE_URL#MODEL` apart.

        Raises:
            UsageError: the address is not of that form.
        """
        self.base_url, self.model = _parts(address)
        self.key = os.environ.get(endpoint.key_variable) or "none"
        self._secrets = frozenset({self.key, *_credentials(self.base_url)} - {"none"})

    @property
    def shown(self) -> str:
        """The base URL without user and password."""
        return self.safe(self.base_url)

    def safe(self, text: str) -> str:
        """Text of a server's, fit to be stored and shown: without secrets."""
        return masked(text, self._secrets)

    def sentence(self, error: BaseException) -> str:
        """What an error says, on one short line."""
        lines = str(error).strip()[:10_000].splitlines()
        return inert(self.safe(lines[0])[:200]) if lines else type(error).__name__


def client(address: Address, endpoint: EndpointConfig) -> openai.AsyncOpenAI:
    """A client for the running event loop."""
    return openai.AsyncOpenAI(
        base_url=address.base_url,
        api_key=address.key,
        timeout=endpoint.timeout_s,
        max_retries=0,  # ours: they also cover answers that are no answers, and each costs
        default_headers={"Accept-Encoding": "identity"},
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_bound]}),
    )


class _Bounded(httpx.AsyncByteStream):  # pyright: ignore[reportGeneralTypeIssues]
    """A body that ends with an error where it is too long."""

    def __init__(self, body: Any) -> None:  # noqa: ANN401
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise TooMuch(f"it sent more than {MAX_BODY_BYTES >> 20} MiB")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: Any) -> None:  # noqa: ANN401
    packed = response.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise TooMuch(f"it sent its answer packed ({packed[:20]}), which was not asked for")
    response.stream = _Bounded(response.stream)


def _credentials(url: str) -> set[str]:
    """User and password of a URL, in all forms in which a server may quote them."""
    parsed = urllib.parse.urlsplit(url)
    if parsed.password is None and parsed.username is None:
        return set()
    user, password = (urllib.parse.unquote(part or "") for part in (parsed.username, parsed.password))
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {password, parsed.password or "", basic, f"{user}:{password}"} - {""}


def _parts(address: str) -> tuple[str, str]:
    """Base URL and model.

    Raises:
        UsageError: the address is not of that form.
    """
    base_url, _, model = address.rpartition("#")
    try:
        parsed = urllib.parse.urlsplit(base_url)
        sound = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        sound = False
    if not (sound and model):
        raise UsageError(
            f"an endpoint is named openai:BASE_URL#MODEL, e.g. openai:http://localhost:8000/v1#my-model, "
            f"not openai:{masked(address)}"
        )
    return base_url, model
