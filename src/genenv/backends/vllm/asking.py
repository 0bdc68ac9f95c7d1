"""HTTP as servers that sample are asked: many small requests, each of which should cost the loop little."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

LOST = (aiohttp.ClientError, OSError)
"""What is raised where no whole answer comes, or none in time."""
NO_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)
"""What is raised where none can come, of what is asked for."""

_IDLE_S = 4.0
"""A connection that was idle for longer is not used again: servers close theirs after five seconds, and a
loop that was held up notices too late."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """As it was read, whatever it is."""
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:  # noqa: ANN401 - whatever a server says
        """The answer as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.body)


class Connections:
    """Connections to servers, of the loop in which they are made, and for as long as it runs."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """Connections.

        Args:
            headers: sent with every request, such as those of `key_headers`.
        """
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers=headers
        )
        self._proxies: dict[str, str | None] = {}

    async def get(self, base: str, path: str, *, timeout_s: float) -> Answer:
        """Ask for something.

        Raises:
            NO_ADDRESS: see there.
            LOST: see there.
        """
        return await self._asked("GET", base, path, None, timeout_s)

    async def post(self, base: str, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """Ask with a JSON body; raises as `get` does."""
        written = json.dumps(body, separators=(",", ":")).encode()
        return await self._asked("POST", base, path, written, timeout_s)

    async def close(self) -> None:
        """End them."""
        await self._session.close()

    async def _asked(self, method: str, base: str, path: str, body: bytes | None, timeout_s: float) -> Answer:
        async with self._session.request(
            method,
            base + path,
            data=body,
            headers=None if body is None else {"Content-Type": "application/json"},
            allow_redirects=False,
            proxy=self._proxy(base),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            return Answer(answer.status, await answer.read())

    def _proxy(self, base: str) -> str | None:
        """The one that the environment names for an address, looked up once."""
        if base not in self._proxies:
            try:
                parts = urlsplit(base)
                passed = proxy_bypass(parts.hostname or "")
                self._proxies[base] = None if passed else getproxies().get(parts.scheme)
            except ValueError as error:
                raise aiohttp.InvalidURL(base, str(error)) from error
        return self._proxies[base]
