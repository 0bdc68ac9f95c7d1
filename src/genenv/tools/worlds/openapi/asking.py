"""Asks a service over HTTP, politely: one request at a time, no more than were allowed, waiting when told to.

The service is not trusted either. It is the only host that is asked, whatever it redirects to; an answer that
does not end, or one that is packed, costs a call and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from genenv.errors import first_line
from genenv.tools.worlds.openapi.headers import Headers
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.recorded import Ended, NoAnswer

if TYPE_CHECKING:
    from httpx2 import URL, AsyncClient, Response

CALL_S = 30.0
"""How long a call may take with all that it is redirected to."""
MOST_BYTES = 1 << 20
"""Of an answer."""
TOO_LARGE = f"The service answers more than {MOST_BYTES >> 20} MiB."
_TRIES = 4
_MOST_WAIT_S, _MOST_WAITED_S = 120.0, 900.0
"""So long a service may have itself waited for, once and in all."""
_MOST_HOPS = 5
_MOVED = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

Wait = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent."""

    method: str
    target: str
    """Path and query, to go after the service's address."""
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back."""

    status: int
    kind: str
    """Its media type."""
    body: bytes


class NotTaken(Exception):
    """An answer that is none for an agent. The message is a sentence."""


class Asker:
    """A connection to a service.

    Args:
        address: of it, without a slash at its end.
        headers: that go along.
        most: so many requests are sent.
        wait: waits so many seconds.
    """

    def __init__(self, address: str, headers: Headers, most: int, wait: Wait = asyncio.sleep) -> None:
        self._address, self._headers, self._most, self._wait = address, headers, most, wait
        self._thread = Thread()
        self._client: AsyncClient | None = None
        self.sent = 0
        """How many requests were."""
        self.received = 0
        """Bytes of all answers."""
        self._waited_s = 0.0

    def ask(self, request: Request) -> Reply:
        """What the service answers.

        Raises:
            NotTaken: an answer that is none: too long, packed, or at another host.
            NoAnswer: there is none.
            Ended: there will be none any more.
        """
        return self._thread.start(self._asked(request)).result()

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._thread.start(self._client.aclose()).result(10)
        self._thread.close()

    async def _asked(self, request: Request) -> Reply:
        from httpx2 import ConnectError, ConnectTimeout, HTTPError, InvalidURL, TimeoutException

        busy = ""
        for number in range(_TRIES):
            is_last, wait_s = number == _TRIES - 1, 2.0**number
            try:
                async with asyncio.timeout(CALL_S):
                    reply, told_s = await self._once(request)
                if reply.status not in _BUSY:
                    return reply
                busy, wait_s = status_said(reply.status), wait_s if told_s is None else told_s
            except (ConnectError, ConnectTimeout) as error:
                if is_last:
                    raise Ended(f"it cannot be reached ({self._said(error)})") from error
            except (TimeoutError, TimeoutException) as error:
                raise NoAnswer(f"it takes longer than {CALL_S:g} s") from error
            except InvalidURL as error:
                raise NotTaken("The service is asked for something that has no address.") from error
            except HTTPError as error:
                if number or request.method != "GET":
                    raise NoAnswer(f"the connection breaks ({self._said(error)})") from error
            if not is_last:
                await self._pause(wait_s)
        raise NoAnswer(f"it is too busy ({busy})")

    async def _pause(self, seconds: float) -> None:
        """Wait, as long as a service may ask for.

        Raises:
            Ended: that is too long.
        """
        if seconds > _MOST_WAIT_S or self._waited_s + seconds > _MOST_WAITED_S:
            raise Ended(f"it wants to be left alone for {max(1.0, seconds):.0f} s")
        self._waited_s += seconds
        await self._wait(seconds)

    async def _once(self, request: Request) -> tuple[Reply, float | None]:
        """The answer at the end of all redirects, and how long it asks to wait.

        Raises:
            NotTaken: see `ask`.
            Ended: as many requests were sent as may be.
        """
        from httpx2 import URL

        client = self._opened()
        url = first = URL(self._address + request.target)
        for _ in range(_MOST_HOPS + 1):
            if self.sent >= self._most:
                raise Ended(f"{self._most} requests were sent, as many as are allowed")
            self.sent += 1
            client.cookies.clear()
            headers = {**request.headers, **self._headers.sent}
            async with client.stream(request.method, url, headers=headers, content=request.body) as response:
                target = response.headers.get("location", "")
                if response.status_code not in _MOVED or not target:
                    return await self._read(response), _asked_to_wait(response)
            if request.method != "GET":
                raise NotTaken("The service sends this call elsewhere, and what may write is not sent twice.")
            url = url.join(target)
            if not _same_host(first, url):
                raise NotTaken(
                    f"The service sends this call to {self._headers.safe(_host(url))}, and only "
                    f"{_host(first)} is asked."
                )
        raise NotTaken("The service sends this call in circles.")

    async def _read(self, response: Response) -> Reply:
        packed = response.headers.get("content-encoding", "identity").lower()
        if packed != "identity":
            raise NotTaken("The service packed its answer, which it was asked not to.")
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_raw():
            self.received += len(part)
            size += len(part)
            if size > MOST_BYTES:
                raise NotTaken(TOO_LARGE)
            parts.append(part)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Reply(status=response.status_code, kind=kind, body=b"".join(parts))

    def _opened(self) -> AsyncClient:
        from httpx2 import AsyncClient, Timeout

        if self._client is None:
            self._client = AsyncClient(
                timeout=Timeout(CALL_S),
                follow_redirects=False,
                headers={
                    "accept": "application/json, */*;q=0.1",
                    "accept-encoding": "identity",
                    "user-agent": "genenv",
                },
            )
        return self._client

    def _said(self, error: Exception) -> str:
        return self._headers.safe(first_line(error)).rstrip(".")


def status_said(status: int) -> str:
    """A status with its name, if it has one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _host(url: URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _same_host(first: URL, url: URL) -> bool:
    """Whether an address is one of the service, or the same host over TLS."""
    if url.host != first.host or url.username or url.password:
        return False
    if (url.scheme, url.port) == (first.scheme, first.port):
        return True
    return (first.scheme, first.port, url.scheme, url.port) == ("http", None, "https", None)


def _asked_to_wait(response: Response) -> float | None:
    """What `Retry-After` says, in seconds; None: nothing that can be read."""
    told = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", told):
        return float(told)
    try:
        moment = parsedate_to_datetime(told)
    except (ValueError, TypeError):
        return None
    now = datetime.fromtimestamp(time.time(), UTC)
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())
