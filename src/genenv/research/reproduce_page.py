# pyright: standard
"""The page of `genenv reproduce`: the paper's figures (arXiv:2512.19682v2) with ours beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from genenv.errors import UsageError
from genenv.files import write_whole
from genenv.research.reproduce import AGAINST, Columns, Result, Results
from genenv.research.sweeps.compare import compare, findings
from genenv.research.sweeps.grid import Grid
from genenv.research.sweeps.page import PAPERS_BAND, along_rounds, learning_curves
from genenv.statistics import counted, mean_interval
from genenv.types import JsonObject
from genenv.viewer.frozen import chart_page

DASH = "–"

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
    page = chart_page(
        "genenv.research",
        "reproduce.html",
        charts(results),
        title=title,
        maker="genenv reproduce",
        subtitle=_subtitle(results),
        tables=shown,
        findings=found,
        notes=results.notes,
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


def charts(results: Results) -> list[JsonObject]:
    """Return the paper's Figures 4, 5 and 7 with our rows, and the paper's values where they are known.

    Figures 6 and 8 are the table of the rows that both have.
    """
    runs = results.variants
    drawn = (
        learning_curves(runs, "attempts", "The paper's Figure 4, by rollouts. Mean over seeds."),
        along_rounds(
            runs,
            "tasks/text_tokens",
            "Length of what tasks ask",
            "The paper's Figure 5a. Mean over new tasks, in tokens of the agent's model.",
            unit="tokens",
        ),
        along_rounds(
            runs,
            "tasks/required_response_tokens",
            "Required length of replies",
            "The paper's Figure 5b, which grows from 137 to 204 tokens by epoch 6.",
            unit="tokens",
        ),
        along_rounds(
            runs,
            "agent/new_success",
            "Success on generated tasks",
            "The paper's Figure 7. The mean says little: always and never solved tasks give one half too.",
            band=PAPERS_BAND,
            marks={
                "the paper, first epoch": PAPER_NEW_SUCCESS[0],
                "the paper, last epoch": PAPER_NEW_SUCCESS[1],
            },
        ),
    )
    return [chart for chart in drawn if chart is not None]
