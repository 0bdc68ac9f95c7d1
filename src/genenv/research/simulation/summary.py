"""What came out, an arm a row, the best first."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from genenv.research.simulation.arms import ARMS
from genenv.research.simulation.run import Lives, standard_error

REFERENCE = "random"
"""The arm that the others are held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm."""

    arm: str
    about: str
    held_out: float
    """After the last round, the mean over seeds."""
    error: float
    """Its standard error."""
    gain: float | None
    """Held-out success minus that of the reference, the mean over seeds; None without the reference."""
    gain_error: float | None
    """The standard error of the paired differences, in which the luck of a seed cancels."""
    attempts: float | None
    """Until the goal was reached, the median over seeds; None where fewer than half of them got there."""
    mixed: float
    """Share of attempted tasks with mixed outcomes, over all rounds."""


def summary(lives: Mapping[str, Lives], goal: float) -> list[Row]:
    """The rows of the table."""
    reference = lives.get(REFERENCE)
    rows: list[Row] = []
    for name, own in lives.items():
        gains = None if reference is None else own.final() - reference.final()
        rows.append(
            Row(
                arm=name,
                about=ARMS[name].about,
                held_out=float(own.final().mean()),
                error=standard_error(own.final()),
                gain=None if gains is None else float(gains.mean()),
                gain_error=None if gains is None else standard_error(gains),
                attempts=own.attempts_to(goal),
                mixed=float(own.mixed.mean()),
            )
        )
    return sorted(rows, key=lambda row: -row.held_out)


def curves_csv(lives: Mapping[str, Lives]) -> str:
    """Held-out success of every arm and round: means over seeds and their standard errors."""
    rows = [["arm", "round", "attempts", "held_out", "standard_error", "mixed"]]
    for name, own in lives.items():
        for number in range(own.held_out.shape[1]):
            values = own.held_out[:, number]
            mixed = f"{own.mixed[:, number - 1].mean():.6f}" if number else ""
            mean, error = f"{values.mean():.6f}", f"{standard_error(values):.6f}"
            rows.append([name, str(number), str(number * own.attempts), mean, error, mixed])
    return _csv(rows)


def lives_csv(lives: Mapping[str, Lives]) -> str:
    """Held-out success after the last round, a seed a row and an arm a column."""
    columns = [own.final() for own in lives.values()]
    numbers = [
        [str(seed), *(f"{value:.6f}" for value in row)] for seed, row in enumerate(zip(*columns, strict=True))
    ]
    return _csv([["seed", *lives], *numbers])


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
