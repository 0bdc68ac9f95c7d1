"""What rollouts share and wait for: sessions of a server, or places in a process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from genenv.rollout.driver import not_counted

ItemT = TypeVar("ItemT")


class Pool(ABC, Generic[ItemT]):
    """Items that one rollout at a time uses. Threads and event loops may share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards the items: several threads take them and give them back."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @abstractmethod
    def free(self) -> ItemT | None:
        """Return an item that is no longer free, or None if there is none. It is called with the lock."""

    async def wait(self) -> ItemT:
        """Return an item as soon as there is a free one. The wait is not the environment's time."""
        with not_counted():
            while True:
                with self.lock:
                    if (found := self.free()) is not None:
                        return found
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting.append(turn)
                try:
                    await turn
                except BaseException:
                    self.wake()  # it may have been this rollout's turn
                    raise

    def wake(self) -> None:
        """Let the rollout that has waited the longest look for an item; called when one is given back."""
        with self.lock:
            while self._waiting:
                turn = self._waiting.popleft()
                with contextlib.suppress(RuntimeError):  # its event loop is closed
                    if not turn.done():
                        turn.get_loop().call_soon_threadsafe(_set, turn)
                        return


class Places(Pool[bool]):
    """A limit on the rollouts at a time.

    Args:
        most: the limit.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def free(self) -> bool | None:
        """See `Pool`."""
        if self._left == 0:
            return None
        self._left -= 1
        return True

    def leave(self) -> None:
        """Give a place back."""
        with self.lock:
            self._left += 1
        self.wake()


def _set(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
