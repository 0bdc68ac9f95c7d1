"""A budget of time and bytes for making a bundle, which also holds for tools that hang."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from genenv.errors import UsageError
from genenv.progress import advance
from genenv.tools.worlds.base import (
    GONE,
    TOOK_TOO_LONG,
    Call,
    LoadedWorld,
    Outcome,
    Played,
    WrappedWorld,
)

MOST_TOOLS = 512
"""Maximum number of tools in a world."""
_SILENT = 3
"""Number of calls without an answer (timeout or ended process) after which a tool is not called again."""
_ALL_SILENT = 6
"""Number of such calls, if no call ever got an answer, after which exploration fails."""
_SILENT_SAID = f"It was not called again: {_SILENT} calls took too long, or ended its process."


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of time and received data for making a bundle."""

    seconds: float = 3600.0
    """Time limit in seconds for exploring and for drawing tasks; tasks drawn by then are kept."""
    mib: int = 1024
    """Maximum data that the tools send, in MiB."""


USUAL = Limits()


class Budget:
    """The time and bytes that are left while a bundle is made.

    Args:
        limits: the limits; time counts from now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._start = limits, time.monotonic()
        self.calls = self.received = 0

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.left(1) < 0

    def left(self, share: float) -> float:
        """The time until a share of all time is over, in seconds; negative afterwards."""
        return share * self._limits.seconds - self.seconds

    @property
    def seconds(self) -> float:
        """The time that is over, in seconds."""
        return time.monotonic() - self._start

    def check(self) -> None:
        """Check that time and bytes are left.

        Raises:
            UsageError: a limit is reached.
        """
        said = f"finding out how the tools can be called took more than {{}} ({self.calls} programs of calls)"
        if self.is_over:
            raise UsageError(
                f"{said.format(f'{self._limits.seconds:g} s')}; allow more with --most-seconds, or give "
                "fewer or faster tools"
            )
        if self.received > self._limits.mib << 20:
            raise UsageError(
                f"{said.format(f'{self._limits.mib} MiB of answers')}; allow more with --most-mib, or give "
                "tools that answer less"
            )

    @contextlib.contextmanager
    def spending(self, received: Callable[[], int]) -> Generator[None]:
        """Count one program of calls, and the bytes received while it runs.

        Args:
            received: returns the bytes received so far.

        Raises:
            UsageError: a limit was reached before the program.
        """
        self.check()
        before = received()
        try:
            yield
        finally:
            self.calls += 1
            self.received += received() - before
        advance(note=self.said)

    @property
    def said(self) -> str:
        """The part of the budget that is used, in a few words."""
        return f"{self.calls} programs of calls, {self.seconds:.0f} of {self._limits.seconds:g} s"


class BoundedWorld(WrappedWorld):
    """A world whose programs spend a budget; a tool that repeatedly does not answer is not called again.

    Args:
        world: the world that executes the calls.
        budget: the budget that its programs spend.

    Raises:
        UsageError: the world has more than `MOST_TOOLS` tools.
    """

    def __init__(self, world: LoadedWorld, budget: Budget) -> None:
        if len(world.tools) > MOST_TOOLS:
            raise UsageError(
                f"there are {len(world.tools)} tools, and at most {MOST_TOOLS} can be learned together; "
                "choose those that belong together with --only"
            )
        super().__init__(world)
        self._received, self._budget = world.received, budget
        self._silent, self._answered = Counter[str](), False

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        return self._within(calls, partial(super().play, watch=watch))

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`."""
        return self._within(calls, super().play_uncached)

    def _within(self, calls: Sequence[Call], play: Callable[[Sequence[Call]], Played]) -> Played:
        able = next((n for n, call in enumerate(calls) if self._silent[call.tool] >= _SILENT), len(calls))
        with self._budget.spending(self._received):
            played = play(calls[:able])
        self._note(calls, played.outcomes)
        left = tuple(Outcome(error=_SILENT_SAID) for _ in calls[able:])
        return Played(outcomes=(*played.outcomes, *left), state=played.state)

    def _note(self, calls: Sequence[Call], outcomes: Sequence[Outcome]) -> None:
        for call, outcome in zip(calls, outcomes, strict=False):
            if outcome.error in (GONE, TOOK_TOO_LONG):
                self._silent[call.tool] += 1
                break  # later calls were not executed
            self._answered = True
            self._silent[call.tool] = 0
        if not self._answered and self._silent.total() >= _ALL_SILENT:
            named: Mapping[str, int] = self._silent
            raise UsageError(
                f"the tools do not answer: {self._silent.total()} calls ({', '.join(named)[:200]}) took too "
                "long, or ended their process, and no other came through"
            )
