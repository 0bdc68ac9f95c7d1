"""Progress in the terminal: one live line per stage with rate and time left, one table line per round.

Without a terminal (a log file, a pipe), a line reports progress after a tenth of the items or half a minute,
but at least ten seconds after the previous line. If nothing advances, the wait doubles each time. Before the
first row of the table, each stage is announced when it begins.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from genenv.progress import Counted, Stage
from genenv.texts import inert

_COLUMNS = (
    ("held-out", "agent/eval_success", "{:.1%}"),
    ("p_hat", "curriculum/p_hat_mean", "{:.2f}"),
    ("in band", "simulator/in_band_rate", "{:.0%}"),
    ("valid", "simulator/valid_rate", "{:.0%}"),
    ("R_env", "simulator/env_reward", "{:.2f}"),
    ("novelty", "simulator/novelty", "{:.2f}"),
    ("agent KL", "agent/kl", "{:.3f}"),
    ("sim KL", "simulator/kl", "{:.3f}"),
    ("sampled", "tokens/sampled", "{:.0f}"),
    ("trained", "tokens/trained", "{:.0f}"),
    ("seconds", "time/round_s", "{:.0f}"),
)
_ALONE = (
    _COLUMNS[0],
    ("success", "agent/success_rate", "{:.1%}"),
    ("reward", "agent/reward", "{:.2f}"),
    *(column for column in _COLUMNS if column[0] in ("agent KL", "sampled", "trained", "seconds")),
)
"""Columns of a run without a simulator."""
PLAIN_EVERY_S = 10.0
"""Minimum seconds between two lines without a terminal."""
_SLOW = 3
"""Factor on the wait between lines if less than a tenth was done since the last one."""
_LONGEST = 30
"""Maximum factor on the wait if nothing advances."""


class _Count(ProgressColumn):
    """A column with the items done and, if known, their total; empty if a stage has no items."""

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        if not task.fields["unit"]:
            return Text("")
        total = "" if task.total is None else f"/{task.total:.0f}"
        return Text(f"{task.completed:.0f}{total} {task.fields['unit']}")


class _Rate(ProgressColumn):
    """A column with the tokens per second over the whole stage."""

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        tokens = float(task.fields.get("tokens", 0))
        elapsed = task.elapsed or 0.0
        return Text(f"{tokens / elapsed:,.0f} tokens/s" if tokens and elapsed > 0.5 else "")


class _PlainStage(Counted):
    """The progress of a stage without a terminal, and the lines that report it."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        super().__init__(name, total, unit)
        self.lines = 0
        self._told, self._wait = 0, 1.0

    def due(self, silent_s: float, every_s: float) -> bool:
        """Return whether to print a line after this many seconds without one."""
        moved = self.items - self._told
        if not moved:
            return silent_s >= self._wait * every_s
        return silent_s >= every_s * (1 if self.total and moved * 10 >= self.total else _SLOW)

    def line(self) -> str:
        """Return a line with items, tokens per second and time left, as far as known."""
        state, moved = self.state(), self.items - self._told
        self.lines, self._told = self.lines + 1, self.items
        self._wait = 1.0 if moved else min(2 * self._wait, _LONGEST)
        parts = [self._done] if self.unit else []
        if not self.items:
            parts.append(f"{state.seconds:.0f} s so far")
        if state.tokens_per_s is not None:
            parts.append(f"{state.tokens_per_s:,.0f} tokens/s")
        if state.left_s is not None:
            parts.append(f"{state.left_s:.0f} s left")
        return f"  {self.name}: {', '.join([*parts, self.note] if self.note else parts)}"

    def last_line(self) -> str:
        """Return the line for the end of the stage."""
        took = f"done in {self.state().seconds:.0f} s"
        return f"  {self.name}: {', '.join([self._done, took] if self.unit else [took])}"

    @property
    def _done(self) -> str:
        return f"{self.items}{'' if self.total is None else f'/{self.total}'} {self.unit}"


class ConsoleReporter:
    """Reports progress to a terminal with live lines, or to a file with occasional lines.

    Args:
        console: the output; None for standard error.
        every_s: minimum seconds between lines without a terminal.
        simulated: whether the run has a simulator, to which some columns belong.
    """

    def __init__(
        self, console: Console | None = None, *, every_s: float = PLAIN_EVERY_S, simulated: bool = True
    ) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.simulated = simulated
        self._every_s, self._last = every_s, time.monotonic()
        self._headed = False
        self._live: Progress | None = None
        self._stages = 0

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        """Show one live line until the stage ends."""
        if not self.console.is_terminal:
            with self._plain_stage(name, items, unit) as stage:
                yield stage
            return
        with self._shared() as progress:
            task = progress.add_task(name, total=items, tokens=0, unit=unit, note="")
            tokens_done = 0

            def advance(tokens: int, items: int, note: str = "") -> None:
                nonlocal tokens_done
                tokens_done += tokens
                progress.update(task, advance=items, tokens=tokens_done)
                if note:
                    progress.update(task, note=note)

            try:
                yield advance
            finally:
                progress.remove_task(task)
                progress.refresh()

    @contextlib.contextmanager
    def _shared(self) -> Generator[Progress]:
        """Provide the display of all current stages; a terminal can have only one."""
        if self._live is None:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                _Count(),
                _Rate(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self._live.start()
        live = self._live
        self._stages += 1
        try:
            yield live
        finally:
            self._stages -= 1
            if not self._stages:
                live.stop()
                self._live = None

    @contextlib.contextmanager
    def _plain_stage(self, name: str, total: int | None, unit: str) -> Generator[Stage]:
        stage, over = _PlainStage(name, total, unit), threading.Event()
        if not self._headed:
            self._line(f"  {name}" + (f": {total} {unit}" if total is not None else ""))

        def speak() -> None:
            while not over.wait(self._every_s / 4):
                if stage.due(time.monotonic() - self._last, self._every_s):
                    self._line(stage.line())

        speaker = threading.Thread(target=speak, name="progress", daemon=True)
        speaker.start()
        try:
            yield stage
        finally:
            over.set()
            speaker.join()
        if stage.lines:
            self._line(stage.last_line())

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Print a line of the table, after its header for the first and every 20th round."""
        columns = _COLUMNS if self.simulated else _ALONE
        widths = [max(len(title), 8) for title, _, _ in columns]
        if not self._headed or number % 20 == 0:
            head = " ".join(title.rjust(width) for (title, _, _), width in zip(columns, widths, strict=True))
            self._line(f"{'round':>9} {head}", "bold")
            self._headed = True
        cells = [
            (form.format(metrics[name]) if name in metrics else "").rjust(width)
            for (_, name, form), width in zip(columns, widths, strict=True)
        ]
        self._line(f"{f'{number}/{rounds}':>9} {' '.join(cells)}")

    def note(self, text: str) -> None:
        """Print one line."""
        self._line(text, "dim")

    def _line(self, text: str, style: str = "") -> None:
        self._last = time.monotonic()
        self.console.print(Text(inert(text), style=style), soft_wrap=True)
