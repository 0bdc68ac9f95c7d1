"""Work that blocks, in a thread of its own: the event loop goes on with those who wait for servers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from genenv.backends.base import not_blocking

T = TypeVar("T")


class Beside:
    """One thread, in which coroutines that wait for nothing outside it run one after the other.

    One that is cancelled is not waited for, and what it does is done to its end.
    """

    def __init__(self, name: str) -> None:
        """A thread, which begins with the first that is to do in it.

        Args:
            name: of the thread.
        """
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine that is made and run there, in the context from here."""
        context = contextvars.copy_context()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)

        def there() -> T:
            with not_blocking():
                return asyncio.run(make())

        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, there)

    def close(self) -> None:
        """Wait for what is being done there, and end the thread; what comes later begins another one."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
