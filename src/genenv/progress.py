"""Progress reports of long work: the core reports to this protocol, and the command line draws it.

Code inside a stage calls `advance`, however deep it is nested; no stage is passed along. Each coroutine
has its own stage, so two stages can run at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Protocol


class Stage(Protocol):
    """A stage of a round under way."""

    def __call__(self, tokens: int, items: int, note: str = "") -> None:
        """So many more tokens and items are done; a note, such as a running score, stands beside them."""
        ...


class Reporter(Protocol):
    """Where progress goes."""

    def stage(self, name: str, *, items: int | None, unit: str) -> contextlib.AbstractContextManager[Stage]:
        """One stage, which lasts as long as the context.

        Args:
            name: what is being done.
            items: how many items there are; None when that is not known.
            unit: what an item is, in the plural; empty for work that has none, such as loading.
        """
        ...

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """A round is committed."""
        ...

    def note(self, text: str) -> None:
        """Something a person should know."""
        ...


def silent(tokens: int, items: int, note: str = "") -> None:
    """A stage that shows nothing."""


class Silent:
    """A reporter that says nothing."""

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        """Nothing is shown."""
        yield silent

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """Nothing is shown."""


@contextlib.contextmanager
def staged(reporter: Reporter, name: str, *, items: int | None, unit: str) -> Generator[None]:
    """One stage of a reporter; `advance` reports to it, here and in coroutines started here."""
    with reporter.stage(name, items=items, unit=unit) as stage, _in_place(stage):
        yield


def aside() -> contextlib.AbstractContextManager[None]:
    """For work that is no part of the stage around it: it is not reported."""
    return _in_place(silent)


@contextlib.contextmanager
def _in_place(stage: Stage) -> Generator[None]:
    before = _STAGE.set(stage)
    try:
        yield
    finally:
        _STAGE.reset(before)


def advance(tokens: int = 0, items: int = 0, note: str = "") -> None:
    """Tell the stage that this is part of: so many more tokens and items are done."""
    _STAGE.get()(tokens, items, note)


_STAGE: ContextVar[Stage] = ContextVar("stage", default=silent)
