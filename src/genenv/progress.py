"""Progress reports of long work: the core reports to the `Reporter` protocol, and the command line draws it.

Code inside a stage calls `advance`, however deep it is nested, so no stage object is passed along. Each
coroutine has its current stage in a context variable, so two stages can run at the same time.

`LiveFile` is a reporter that also writes the current stages to a small file, for other processes to read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field

from genenv.texts import clean


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
    before = _STAGE.get()
    _STAGE.set(stage)
    try:
        yield
    finally:
        _STAGE.set(before)  # by value: what was interrupted twice ends in another context


def advance(tokens: int = 0, items: int = 0, note: str = "") -> None:
    """Add finished tokens and items to the current stage."""
    _STAGE.get()(tokens, items, note)


_STAGE: ContextVar[Stage] = ContextVar("stage", default=silent)


_WRITE_S, _BEAT_S = 0.5, 5.0
"""Seconds between two writes of a live file; between those without news, which only renew its times."""
_MOST_BYTES, _NAME, _NOTE = 1 << 16, 200, 300
"""Maximum size of a live file, and maximum characters of its names and notes."""
_Count = Annotated[int, Field(ge=0, le=10**15)]
_Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]


class StageState(BaseModel):
    """How far one stage is."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(max_length=_NAME)]
    done: _Count
    total: _Count | None
    """The number of items; None if unknown."""
    unit: Annotated[str, Field(max_length=_NAME)]
    """Plural name of the items; empty if the stage has none."""
    tokens: _Count
    note: Annotated[str, Field(max_length=_NOTE)]
    seconds: _Seconds
    """Since the stage began."""

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens per second over the whole stage; None without tokens."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def left_s(self) -> float | None:
        """Seconds left if the rest takes as long per item; None if that is unknown."""
        if not self.total or not self.done or self.done >= self.total:
            return None
        return self.seconds * (self.total - self.done) / self.done


class LiveState(BaseModel):
    """Where a run is inside a round: the contents of its live file."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    began: _Seconds
    """When the process began the run or went on with it, in seconds since 1970."""
    at: _Seconds
    """When this was written, in seconds since 1970."""
    round_s: _Seconds
    """Seconds since the last round was committed, or since `began`."""
    stages: Annotated[tuple[StageState, ...], Field(max_length=16)]
    """The current stages; empty between two stages."""


class Counted:
    """A stage that adds up what is done."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.tokens = self.items = 0
        self.note = ""
        self._start = time.monotonic()

    def __call__(self, tokens: int, items: int, note: str = "") -> None:
        """Add progress."""
        self.tokens, self.items, self.note = self.tokens + tokens, self.items + items, note or self.note

    def state(self) -> StageState:
        """Return how far the stage is now."""
        return StageState(
            name=clean(self.name)[:_NAME],
            done=max(0, int(self.items)),
            total=None if self.total is None else max(0, int(self.total)),
            unit=clean(self.unit)[:_NAME],
            tokens=max(0, int(self.tokens)),
            note=clean(self.note)[:_NOTE],
            seconds=time.monotonic() - self._start,
        )


class LiveFile:
    """A reporter that passes everything on, and writes the current stages to a file while its context lasts.

    A thread writes, at most twice a second and without waiting for the disk, so a slow or full disk neither
    stops nor slows the work. The file is removed at the end; one that is left is of a killed process.
    """

    def __init__(self, path: Path, reporter: Reporter) -> None:
        self.reporter = reporter
        """The reporter that everything is passed on to."""
        self._path, self._stages = path, list[Counted]()
        self._began, self._committed = time.time(), time.monotonic()

    def __enter__(self) -> Self:
        self._began, self._committed = time.time(), time.monotonic()
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="live", daemon=True)
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._writer.join(timeout=1.0)
        with contextlib.suppress(OSError):
            self._path.unlink()

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        """Write a stage until it ends."""
        counted = Counted(name, items, unit)

        def both(tokens: int, items: int, note: str = "") -> None:
            counted(tokens, items, note)
            told(tokens, items, note)

        with self.reporter.stage(name, items=items, unit=unit) as told:
            self._stages.append(counted)
            try:
                yield both
            finally:
                self._stages.remove(counted)

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Note the time of the commit."""
        self._committed = time.monotonic()
        self.reporter.round(number, rounds, metrics)

    def note(self, text: str) -> None:
        """Pass a message on."""
        self.reporter.note(text)

    def _write_on(self) -> None:
        hidden = self._path.with_name(f".writing-{self._path.name}")
        known, written = "", 0.0
        while True:
            now = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # the next state may be written again
                state = LiveState(
                    began=self._began,
                    at=time.time(),
                    round_s=now - self._committed,
                    stages=tuple(stage.state() for stage in list(self._stages)[-16:]),
                )
                news = repr([(stage.name, stage.done, stage.tokens, stage.note) for stage in state.stages])
                if news != known or now - written >= _BEAT_S:
                    hidden.write_text(state.model_dump_json(), encoding="utf-8")
                    hidden.replace(self._path)
                    known, written = news, now
            if self._over.wait(_WRITE_S):
                return


def read_live(path: Path) -> LiveState | None:
    """Return what a live file says; None if it is missing, damaged, or of another version."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return LiveState.model_validate_json(os.read(descriptor, _MOST_BYTES))
        finally:
            os.close(descriptor)
    return None
