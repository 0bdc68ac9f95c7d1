"""Coroutines from where none can be awaited, within a limit of time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def apart(make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
    """Run a coroutine in a thread and a loop of its own: where a loop runs already, none can be run in it.

    Raises:
        TimeoutError: it took longer; it goes on without anyone who waits for it.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 - handed on
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="genenv-tinker")
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return done[0]
