# pyright: standard
"""The page of `genenv reproduce`: the paper's figures (arXiv:2512.19682v2) with ours beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from markupsafe import Markup

from genenv.errors import UsageError
from genenv.files import write_whole
from genenv.research.parts import (
    DASH,
    MUTED,
    SERIES,
    Picture,
    chart_style,
    legend_below,
    line_styles,
    new_figure,
    render,
    round_ticks,
    to_svg,
)
from genenv.research.reproduce import AGAINST, Columns, Result, Results
from genenv.research.sweeps.compare import compare, findings
from genenv.research.sweeps.grid import Grid
from genenv.research.sweeps.page import PAPERS_BAND, learning_curves
from genenv.research.sweeps.readings import MeasuredRun
from genenv.statistics import counted, mean_interval

PAPER_COLUMNS = ("ALFWorld", "BFCL", "API-Bank", "Bamboogle", "TravelPlanner", "mean")
PAPER_TABLE: Mapping[str, tuple[float, ...]] = {
    "Qwen2.5-7B": (14.2, 7.0, 61.6, 68.0, 14.3, 33.0),
    "ReSearch": (18.7, 5.0, 65.3, 68.0, 16.4, 34.7),
    "SearchR1": (16.1, 5.0, 63.3, 67.2, 16.1, 33.5),
    "ToRL": (8.0, 0.0, 54.1, 34.4, 14.8, 22.3),
    "GenEnv": (54.5, 41.8, 79.1, 76.0, 16.6, 53.6),
}
"""Table 1, models of 7B: success in percent."""

PAPER_VALIDATION: Mapping[str, float] = {
    "random": 40.8,
    "static": 43.2,
    "offline-957": 43.4,
    "offline-1777": 43.8,
    "paper": 45.8,
}
"""The paper's validation on BFCL, in percent, by our rows."""

PAPER_NEW_SUCCESS = (0.138, 0.524)
"""Success on generated tasks in the first and in the last epoch."""
PAPER_REPLY_GROWTH = 204 / 137
"""Required length of replies by epoch 6, over that at the start: 137 to 204 tokens."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page."""

    title: str
    reading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_pages(results: Results, folder: Path, *, grids: Sequence[Grid]) -> str:
    """Write `reproduce.md` and `reproduce.html`.

    Args:
        results: the rows.
        folder: the folder of the reproduction.
        grids: its sweeps, for the differences between rows.

    Returns:
        The text of `reproduce.md`.
    """
    shown, found = tables(results), differences(results, grids)
    title = f"The paper beside {results.config.run.name}"
    text = markdown(title, _subtitle(results), shown, found, results.notes)
    write_whole(folder / "reproduce.md", text)
    page = render(
        "reproduce.html",
        title=title,
        maker="genenv reproduce",
        subtitle=_subtitle(results),
        tables=shown,
        findings=found,
        notes=results.notes,
        pictures=[picture for picture in pictures(results) if picture.svg is not None],
    )
    write_whole(folder / "reproduce.html", page)
    return text


def _subtitle(results: Results) -> str:
    config = results.config
    new = f"{config.simulator.contexts} x {config.simulator.variations}"
    return (
        f"{config.policy.model}, {config.environment.name}: {counted(config.run.rounds, 'round')} of {new} "
        f"new tasks, {config.agent.rollouts} rollouts each; {counted(len(results.before), 'seed')}"
    )


def tables(results: Results) -> list[Table]:
    """Return the paper's Table 1, ours, and the rows that both have."""
    ours = [(one.name, one.ends, one) for one in results.rows]
    body = [_line("before training", results.before, None, results.columns)]
    body += [_line(name, ends, one, results.columns) for name, ends, one in ours]
    interval = "; ± is half of the 95% interval over seeds" if len(results.before) > 1 else ""
    both = [
        (
            one.row.paper,
            f"{PAPER_VALIDATION[one.name]:.1f}",
            _percent([_mean(ends) for ends in one.ends]),
        )
        for one in results.rows
        if one.name in PAPER_VALIDATION
    ]
    return [
        Table(
            "The paper's Table 1",
            "Success in percent, models of 7B (GenEnv, arXiv:2512.19682v2).",
            ("model", *PAPER_COLUMNS),
            [(name, *(f"{value:.1f}" for value in values)) for name, values in PAPER_TABLE.items()],
        ),
        Table(
            "Ours",
            f"Held-out success in percent, by environment{interval}. Rollouts, tokens and seconds are of "
            "a run without its warm-up, which the rows of a seed share.",
            ("row", *results.columns, "mean", "rollouts", "tokens", "seconds", "seeds", "what it is"),
            body,
        ),
        *(
            [
                Table(
                    "Rows that both have",
                    "The paper's validation on BFCL; ours is the mean column. Models and tasks differ: "
                    "compare the order, not the values.",
                    ("variant", "the paper", "ours"),
                    both,
                )
            ]
            if both
            else []
        ),
    ]


def _line(name: str, ends: Sequence[Columns], one: Result | None, names: Sequence[str]) -> tuple[str, ...]:
    cells = [_percent([found[column] for found in ends]) for column in names]
    spent = [DASH] * 3
    if one is not None and one.runs:
        spent = [f"{one.spent(budget):,.0f}" for budget in ("attempts", "all tokens", "seconds")]
    about = "after the warm-up" if one is None else one.row.about
    return (name, *cells, _percent([_mean(found) for found in ends]), *spent, str(len(ends)), about)


def _mean(found: Columns) -> float:
    return fmean(found.values())


def _percent(values: Sequence[float]) -> str:
    if not values:
        return DASH
    mean, low, _ = mean_interval(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * (mean - low):.1f}" if len(values) > 1 else "")


def differences(results: Results, grids: Sequence[Grid]) -> list[str]:
    """Return each row held against GenEnv-Random (or the base data) as sentences; none if it was not run."""
    there = [one.row.variant for one in results.rows if one.runs]
    against = next((name for name in AGAINST if name in there), None)
    if against is None or len(there) < 2:
        return []
    try:
        return findings(compare([grid.path for grid in grids], [(n, against) for n in there if n != against]))
    except UsageError as error:
        return [f"not compared: {error}"]


def markdown(
    title: str, subtitle: str, shown: Sequence[Table], found: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the page as Markdown."""

    def lines() -> Iterator[str]:
        yield from (f"# {title}", "", f"{subtitle}.", "")
        for table in shown:
            yield from (f"## {table.title}", "", table.reading, "", _row(table.head))
            yield _row(["---"] * len(table.head))
            yield from map(_row, table.rows)
            yield ""
        for heading, items in (("Differences", found), ("Notes", notes)):
            if items:
                yield from (f"## {heading}", "", *(f"- {item}" for item in items), "")

    return "\n".join(lines())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


Runs = Mapping[str, Sequence[MeasuredRun]]


def pictures(results: Results) -> list[Picture]:
    """Return the paper's Figures 4 to 8 with our rows, and the paper's values where they are known."""
    runs = results.variants
    return [
        Picture(
            "Figure 4: success over training",
            learning_curves(runs, "attempts"),
            "Held-out success along rollouts, mean over seeds.",
        ),
        Picture(
            "Figure 5a: length of what tasks ask",
            over_rounds(runs, "tasks/text_tokens", "tokens"),
            "Mean over new tasks, in tokens of the agent's model.",
        ),
        Picture(
            "Figure 5b: required length of replies",
            over_rounds(
                runs,
                "tasks/required_response_tokens",
                "times the first round",
                relative=True,
                marks={"the paper, epoch 6": PAPER_REPLY_GROWTH},
            ),
            "Relative to the first round. The paper's grows from 137 to 204 tokens by epoch 6.",
        ),
        Picture(
            "Figures 6 and 8: variants side by side",
            bars(results),
            "Points are seeds, diamonds the paper's validation on BFCL, where it has the row.",
        ),
        Picture(
            "Figure 7: success on generated tasks",
            over_rounds(
                runs,
                "agent/new_success",
                "success rate",
                band=PAPERS_BAND,
                marks={
                    "the paper, first epoch": PAPER_NEW_SUCCESS[0],
                    "the paper, last epoch": PAPER_NEW_SUCCESS[1],
                },
            ),
            "The mean says little: tasks that are always and never solved give one half too.",
        ),
    ]


def over_rounds(
    runs: Runs,
    metric: str,
    label: str,
    *,
    band: tuple[float, float] | None = None,
    marks: Mapping[str, float] | None = None,
    relative: bool = False,
) -> Markup | None:
    """Draw a metric by round as the mean over seeds; None if no run has it.

    Args:
        runs: the runs by row.
        metric: its name.
        label: of the vertical axis.
        band: a range to shade.
        marks: values of the paper, as horizontal lines.
        relative: divide by the value of the first round that has one.
    """
    lines = {name: line for name, own in runs.items() if (line := mean_line(own, metric, relative=relative))}
    if not lines:
        return None
    with chart_style(metric):
        figure, ax = new_figure(5.2, 3.6)
        if band is not None:
            ax.axhspan(*band, color=SERIES[2], alpha=0.18, lw=0, label=f"{band[0]:g} to {band[1]:g}")
        for place, (name, value) in enumerate((marks or {}).items()):
            ax.axhline(value, color=MUTED, lw=1, ls=(":", "-.")[place % 2], label=f"{name}: {value:.3g}")
        for (color, dashes), (name, line) in zip(line_styles(len(lines)), lines.items(), strict=True):
            ax.plot(list(line), list(line.values()), color=color, ls=dashes, label=name)
        round_ticks(ax)
        ax.set_xlabel("round")
        ax.set_ylabel(label)
        legend_below(figure, ax, columns=3, size=8)
        return to_svg(figure, metric.replace("/", "-"), f"{label} along the rounds, by row")


def mean_line(runs: Sequence[MeasuredRun], metric: str, *, relative: bool = False) -> dict[int, float]:
    """Return the mean over seeds of a metric by round, or that over its first value."""
    numbers = sorted({number for run in runs for number, found in run.metrics.items() if metric in found})
    line = {
        number: fmean(run.metrics[number][metric] for run in runs if metric in run.metrics.get(number, {}))
        for number in numbers
    }
    first = next((value for value in line.values() if value), 0.0)
    if not relative:
        return line
    return {number: value / first for number, value in line.items()} if first else {}


def bars(results: Results) -> Markup | None:
    """Draw held-out success of each row at the end, and the paper's values; None if nothing is trained."""
    shown = [one for one in results.rows if one.ends]
    if not shown:
        return None
    with chart_style("rows"):
        figure, ax = new_figure(5.2, 3.6)
        for place, one in enumerate(shown):
            ends = [100 * _mean(found) for found in one.ends]
            color = SERIES[place % len(SERIES)]
            ax.bar(place, fmean(ends), color=color, alpha=0.35, width=0.7)
            ax.scatter([place] * len(ends), ends, s=14, color=color)
            if one.name in PAPER_VALIDATION:
                value = PAPER_VALIDATION[one.name]
                ax.scatter([place], [value], s=30, marker="D", facecolors="none", edgecolors=MUTED)
        ax.set_xticks(range(len(shown)), [one.name for one in shown], rotation=30, ha="right")
        ax.set_ylabel("held-out success, %")
        return to_svg(figure, "rows", "Held-out success at the end, by row, and the paper's values")
