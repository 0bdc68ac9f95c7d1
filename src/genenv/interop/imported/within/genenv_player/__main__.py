# pyright: basic, reportMissingImports=false
"""Entry point: loads verifiers and the taskset, reports readiness, and runs rollouts until the input ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

from .player import REPLIES, Cannot, Player, harness_module, said

WANTED = "0.4"
_LAST_S = 5.0


def _loaded(told: Mapping[str, Any]) -> None:
    """Import verifiers and the taskset.

    Raises:
        Cannot: verifiers or the taskset cannot be imported, or the version is unsupported.
    """
    sys.path[:0] = [told["path"]] if told["path"] else []
    try:
        import verifiers.v1  # noqa: F401 - whether it is there
    except ImportError as error:
        if not (error.name or "").startswith("verifiers"):
            raise Cannot(f"{sys.executable} cannot import verifiers: {error}") from error
        raise Cannot(
            f"{sys.executable} has no package verifiers {WANTED}: install it there "
            f"(pip install 'verifiers=={WANTED}.*'), or set environment.python to a Python that has it"
        ) from error
    version = importlib.metadata.version("verifiers")
    if not version.startswith(f"{WANTED}."):
        raise Cannot(f"verifiers {version} is installed for {sys.executable}; genenv speaks that of {WANTED}")
    from verifiers.v1.utils.loaders import taskset_class

    sys.modules[REPLIES] = harness_module()
    try:
        taskset_class(told["taskset"])
    except Exception as error:
        traceback.print_exc()
        raise Cannot(f"the taskset {told['taskset']!r} cannot be loaded: {said(error)}") from error


async def _played(
    told: Mapping[str, Any], orders: IO[str], tell: Callable[[Mapping[str, Any]], None]
) -> None:
    player = Player(told, tell)
    await player.serve()
    tell({"ready": importlib.metadata.version("verifiers")})
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        for line in orders:
            loop.call_soon_threadsafe(player.order, json.loads(line))
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(player.close(), _LAST_S)


def main() -> None:
    """Report whether rollouts can be run, then run them until the input ends."""
    answers, orders = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), encoding="utf-8")
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(2, 1)  # tasksets' prints go to the log
    logging.disable(logging.ERROR)
    lock = threading.Lock()

    def tell(said: Mapping[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(said) + "\n")
            answers.flush()

    told = json.loads(orders.readline())
    try:
        _loaded(told)
    except Cannot as error:
        tell({"refused": str(error)})
        os._exit(1)
    asyncio.run(_played(told, orders, tell))
    os._exit(0)  # do not wait for threads that a taskset has started


if __name__ == "__main__":
    main()
