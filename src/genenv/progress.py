"""Progress reports of long work: the core reports to the `Reporter` protocol, and the command line draws it.

Code inside a stage calls `advance`, however deep it is nested, so no stage object is passed along. Each
coroutine has its current stage in a context variable, so two stages can run at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Protocol


class Stage(Protocol):
    """A callback that records progress in one stage of a round. Reporters implement it."""

    def __call__(self, tokens: int, items: int, note: str = "") -> None:
        """Add finished tokens and items. The note, such as a running score, is shown next to the counts."""
        ...


class Reporter(Protocol):
    """A receiver of progress reports. The command line and `Silent` implement it."""

    def stage(self, name: str, *, items: int | None, unit: str) -> contextlib.AbstractContextManager[Stage]:
        """Return a context manager for one stage, which lasts as long as the context.

        Args:
            name: description of the work.
            items: total number of items; None if unknown.
            unit: plural name of the items. Empty for work without items, such as loading.
        """
        ...

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Report that a round is committed."""
        ...

    def note(self, text: str) -> None:
        """Show a message to the user."""
        ...


def silent(tokens: int, items: int, note: str = "") -> None:
    """Show nothing. This is the stage outside of any reporter."""


class Silent:
    """A reporter that shows nothing."""

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        """Yield a stage that shows nothing."""
        yield silent

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""


@contextlib.contextmanager
def staged(reporter: Reporter, name: str, *, items: int | None, unit: str) -> Generator[None]:
    """Open a stage of a reporter. `advance` reports to it in this context and in coroutines started there."""
    with reporter.stage(name, items=items, unit=unit) as stage, _in_place(stage):
        yield


def aside() -> contextlib.AbstractContextManager[None]:
    """Return a context in which `advance` reports nothing, for work that is not part of the current stage."""
    return _in_place(silent)


@contextlib.contextmanager
def _in_place(stage: Stage) -> Generator[None]:
    before = _STAGE.set(stage)
    try:
        yield
    finally:
        _STAGE.reset(before)


def advance(tokens: int = 0, items: int = 0, note: str = "") -> None:
    """Add finished tokens and items to the current stage."""
    _STAGE.get()(tokens, items, note)


_STAGE: ContextVar[Stage] = ContextVar("stage", default=silent)
