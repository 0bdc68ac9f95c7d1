"""The stages of one round: shown while they last, timed, and told by name in its metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator

from genenv.runs.progress import Reporter, staged


class Stages:
    """Stages of a round, as they come."""

    def __init__(
        self, reporter: Reporter, number: int, rounds: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin a round.

        Args:
            reporter: shows what is being done.
            number: of the round; 0 for what comes before the first.
            rounds: of the whole run.
            clock: seconds that only ever grow.
        """
        self._reporter, self._label = reporter, f"round {number}/{rounds}: " if number else ""
        self._clock, self._start, self._seconds = clock, clock(), dict[str, float]()

    @contextlib.contextmanager
    def __call__(
        self, timer: str, shown: str = "", *, items: int | None = None, unit: str = ""
    ) -> Generator[None]:
        """One stage.

        Args:
            timer: names the metric, `time/TIMER_s`; the seconds of stages of one name add up.
            shown: what is being done, for people; empty for what takes no time worth telling.
            items: how many there are to do; None when that is not known.
            unit: what an item is, in the plural.
        """
        start = self._clock()
        told = staged(self._reporter, self._label + shown, items=items, unit=unit)
        with told if shown else contextlib.nullcontext():
            yield
        name = f"time/{timer}_s"
        self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - start

    def metrics(self) -> dict[str, float]:
        """Seconds of each stage, and of the round so far."""
        return {**self._seconds, "time/round_s": self._clock() - self._start}
