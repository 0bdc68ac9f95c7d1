"""Answers that are not fetched yet, by the id of their request. Clients ask for them again and again."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from genenv.servers.tinker.refusals import NotHere, TooMuch
from genenv.servers.tinker.replies import Reply

_KEPT_S = 600.0
"""An answer stays for so long after it was fetched: it may have been lost on its way."""
_MOST_WAITING, _MOST_WAITING_BYTES = 8192, 2**30
"""Requests whose answers are not there yet, and what their bodies have together."""
_MOST_KEPT = 65_536
"""Requests and answers in all; of those that were fetched the oldest go first."""


@dataclass(slots=True)
class _Entry:
    session: str
    done: asyncio.Future[Reply]
    opened: float = field(default_factory=time.monotonic)
    fetched: float | None = None


class Futures:
    """Requests under way and their answers. For one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._waiting = self._waiting_bytes = 0

    def known(self, request: str) -> bool:
        """Whether there is such a request: a client sends one again whose acknowledgement was lost."""
        return request in self._entries

    def open(self, request: str, session: str, size_bytes: int = 0) -> asyncio.Future[Reply]:
        """Remember a request; what it returns is to get the answer.

        Args:
            request: its id.
            session: whose it is; "" for nobody's.
            size_bytes: of its body, where that is kept until it is worked.

        Raises:
            TooMuch: there are too many.
        """
        if self._waiting >= _MOST_WAITING or self._waiting_bytes + size_bytes > _MOST_WAITING_BYTES:
            raise TooMuch(
                f"{self._waiting} requests wait to be worked; fetch their answers before you send more"
            )
        if len(self._entries) >= _MOST_KEPT:
            self._make_room()
        entry = _Entry(session, asyncio.get_running_loop().create_future())
        self._entries[request] = entry
        self._waiting += 1
        self._waiting_bytes += size_bytes

        def settled(_: object) -> None:
            self._waiting -= 1
            self._waiting_bytes -= size_bytes

        entry.done.add_done_callback(settled)
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
        """Let go of what was fetched long ago, and of answers without a session that nobody fetched."""
        old = time.monotonic() - _KEPT_S
        self._entries = {
            request: entry
            for request, entry in self._entries.items()
            if not entry.done.done() or (entry.fetched or (math.inf if entry.session else entry.opened)) > old
        }

    def _make_room(self) -> None:
        """Let go of what was fetched, the older half first.

        Raises:
            TooMuch: nothing was.
        """
        fetched = [request for request, entry in self._entries.items() if entry.fetched is not None]
        if not fetched:
            raise TooMuch(f"{len(self._entries)} answers were not fetched; fetch them before you send more")
        for request in fetched[: len(fetched) // 2 + 1]:
            del self._entries[request]

    def end(self, session: str) -> None:
        """Let go of what belongs to a session."""
        self._entries = {
            request: entry for request, entry in self._entries.items() if entry.session != session
        }
