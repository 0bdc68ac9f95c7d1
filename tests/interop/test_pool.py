"""What rollouts wait for, and work in threads whose rollout ends meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from genenv.environments.stepwise import blocking
from genenv.errors import UsageError
from genenv.interop.imported.pool import Places
from genenv.rollout.driver import OutOfTime, play


class Waiting:
    """An episode whose work takes a place for a while."""

    max_turns = 1

    def __init__(self, places: Places, work: Callable[[], None]) -> None:
        self._places, self._work = places, work

    async def run(self, ask: Any) -> None:
        await self._places.wait()
        try:
            await blocking(self._work)
        finally:
            self._places.leave()


@pytest.mark.long
def test_the_work_of_others_is_not_the_environments_time() -> None:
    places, running, most = Places(2), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1

    async def run() -> None:
        ask: Any = None
        await asyncio.gather(*(play(lambda: Waiting(places, work), ask, timeout_s=0.5) for _ in range(40)))

    asyncio.run(run())
    assert most == 2


@pytest.mark.parametrize(("error", "raised"), [(UsageError("lost"), UsageError), (ValueError(), OutOfTime)])
def test_what_must_end_the_run_does_so_though_the_rollout_ran_out_of_time(
    error: Exception, raised: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        time.sleep(0.2)
        raise error

    async def run() -> None:
        ask: Any = None
        await play(lambda: Waiting(Places(1), work), ask, timeout_s=0.05)

    with pytest.raises(raised):
        asyncio.run(run())
    assert "never retrieved" not in caplog.text
