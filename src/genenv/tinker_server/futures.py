"""Answers that are not fetched yet, by the id of their request. Clients ask for them again and again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from genenv.tinker_server.refusals import NotHere
from genenv.tinker_server.replies import Reply

_KEPT_S = 600.0
"""An answer stays for so long after it was fetched: it may have been lost on its way."""


@dataclass(slots=True)
class _Entry:
    session: str
    done: asyncio.Future[Reply]
    fetched: float | None = None


class Futures:
    """Requests under way and their answers. For one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def known(self, request: str) -> bool:
        """Whether there is such a request: a client sends one again whose acknowledgement was lost."""
        return request in self._entries

    def open(self, request: str, session: str) -> asyncio.Future[Reply]:
        """Remember a request; what it returns is to get the answer."""
        entry = _Entry(session, asyncio.get_running_loop().create_future())
        self._entries[request] = entry
        return entry.done

    async def fetch(self, request: str, patience_s: float) -> Reply | None:
        """The answer; None where it is not there after so long.

        Raises:
            NotHere: there is no such request.
        """
        entry = self._entries.get(request)
        if entry is None:
            raise NotHere(
                f"there is no request {request}: its session has ended, or the server has been started anew"
            )
        done, _ = await asyncio.wait([entry.done], timeout=patience_s)
        if not done:
            return None
        entry.fetched = time.monotonic()
        return entry.done.result()

    def sweep(self) -> None:
        """Let go of what was fetched long ago."""
        old = time.monotonic() - _KEPT_S
        self._entries = {
            request: entry
            for request, entry in self._entries.items()
            if entry.fetched is None or entry.fetched > old
        }

    def end(self, session: str) -> None:
        """Let go of what belongs to a session."""
        self._entries = {
            request: entry for request, entry in self._entries.items() if entry.session != session
        }
