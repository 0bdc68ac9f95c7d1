"""Progress in the terminal: one live line per stage with rate and time left, a table line per round."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from genenv.progress import Stage

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
_PLAIN_EVERY_S = 30.0


class _Rate(ProgressColumn):
    """Tokens per second over the whole stage."""

    def render(self, task: Task) -> Text:
        tokens = float(task.fields.get("tokens", 0))
        elapsed = task.elapsed or 0.0
        return Text(f"{tokens / elapsed:,.0f} tokens/s" if tokens and elapsed > 0.5 else "")


class ConsoleReporter:
    """Writes to a terminal; where there is none (a log file), a line now and then instead of a live one."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._headed = False

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Iterator[Stage]:
        """One live line, which goes when the stage ends."""
        if not self.console.is_terminal:
            with self._plain_stage(name, items, unit) as stage:
                yield stage
            return
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
            _Rate(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
        )
        with progress:
            task = progress.add_task(name, total=items, tokens=0)
            tokens_done = 0

            def advance(tokens: int, done: int) -> None:
                nonlocal tokens_done
                tokens_done += tokens
                progress.update(task, advance=done, tokens=tokens_done)

            yield advance

    @contextlib.contextmanager
    def _plain_stage(self, name: str, items: int | None, unit: str) -> Iterator[Stage]:
        start = last = time.monotonic()
        tokens_done = items_done = 0

        def advance(tokens: int, done: int) -> None:
            nonlocal last, tokens_done, items_done
            tokens_done, items_done = tokens_done + tokens, items_done + done
            now = time.monotonic()
            if now - last >= _PLAIN_EVERY_S:
                last = now
                rate = tokens_done / (now - start)
                left = f", {(now - start) * (items - items_done) / items_done:.0f} s left" if items and items_done else ""
                self.console.print(f"  {name}: {items_done}/{items} {unit}, {rate:,.0f} tokens/s{left}")

        yield advance

    def round(self, number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """A line of the table; the head comes first, and again where the terminal is interactive every 20 rounds."""
        widths = [max(len(title), 8) for title, _, _ in _COLUMNS]
        if not self._headed or number % 20 == 0:
            head = " ".join(title.rjust(width) for (title, _, _), width in zip(_COLUMNS, widths, strict=True))
            self.console.print(f"[bold]{'round':>9} {head}[/bold]", soft_wrap=True)
            self._headed = True
        cells = [
            (form.format(metrics[name]) if name in metrics else "").rjust(width)
            for (_, name, form), width in zip(_COLUMNS, widths, strict=True)
        ]
        self.console.print(f"{f'{number}/{rounds}':>9} {' '.join(cells)}", soft_wrap=True)

    def note(self, text: str) -> None:
        """One line."""
        self.console.print(f"[dim]{text}[/dim]", soft_wrap=True)
