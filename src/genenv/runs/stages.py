"""The stages of one round: shown while they last, timed, and told by name in its metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping

from genenv.progress import Reporter, staged


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
        self._clock, self._start = clock, clock()
        self.seconds = dict[str, float]()
        """Of each stage so far, by metric."""

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
        self.add({f"time/{timer}_s": self._clock() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds of stages that were timed elsewhere."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Seconds of each stage, and of the round so far."""
        return {**self.seconds, "time/round_s": self._clock() - self._start}
