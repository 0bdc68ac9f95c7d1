# pyright: standard
"""`genenv reproduce`, and its page: the paper's figures (arXiv:2512.19682v2) with ours beside them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from genenv.cli.console import Overrides, begin, seeds_of
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import load_config
from genenv.environments import shown_name
from genenv.errors import UsageError
from genenv.files import check_writable, locked, write_whole
from genenv.research.reproduction import (
    AGAINST,
    ALL_ROWS,
    BEFORE,
    PARAMETERS,
    ROWS,
    Columns,
    Measured,
    Reproduction,
    Result,
    Results,
    collect,
    rows_of,
)
from genenv.research.sweeps.compare import compare_runs, findings
from genenv.research.sweeps.grid import FILE
from genenv.research.sweeps.page import PAPERS_BAND, along_rounds, learning_curves
from genenv.research.sweeps.sweep import Jobs, Seeds, SweepConfig
from genenv.statistics import Figure, counted, mean_interval
from genenv.texts import inert, masked
from genenv.types import JsonObject
from genenv.viewer.frozen import chart_page

DASH = "–"

KEPT = "finished runs and committed rounds are kept; the same command with --resume goes on"
"""The outcome to report if the command is interrupted."""

COLUMN_OF: Mapping[str, str] = {
    "alfworld": "ALFWorld",
    "bfcl": "BFCL",
    "api-bank": "API-Bank",
    "bamboogle": "Bamboogle",
    "travelplanner": "TravelPlanner",
}
"""The paper's name of each benchmark."""

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


def write_pages(results: Results, folder: Path) -> str:
    """Write `reproduce.md` and `reproduce.html`.

    Args:
        results: the rows.
        folder: the folder of the reproduction.

    Returns:
        The text of `reproduce.md`.
    """
    shown, (found, more) = tables(results), differences(results)
    notes = [*results.notes, *more]
    title = f"The paper beside {results.config.run.name}"
    text = markdown(title, subtitle(results), shown, found, notes)
    write_whole(folder / "reproduce.md", text)
    page = chart_page(
        "genenv.research",
        "reproduce.html",
        charts(results),
        title=title,
        maker="genenv reproduce",
        subtitle=subtitle(results),
        tables=shown,
        findings=found,
        notes=notes,
    )
    write_whole(folder / "reproduce.html", page)
    return text


def subtitle(results: Results) -> str:
    """Return the model, the environment, and the size of the runs, as a sentence without its full stop."""
    config = results.config
    new = f"{config.simulator.contexts} x {config.simulator.variations}"
    env = shown_name(config.environment.name)
    return (
        f"{config.policy.model}, {env}: {counted(config.run.rounds, 'round')} of {new} "
        f"new tasks, {config.agent.rollouts} rollouts each; {counted(len(results.before), 'seed')}"
    )


def tables(results: Results) -> list[Table]:
    """Return the paper's Table 1, ours, and the rows that both have."""
    ours = [(one.name, one.ends, one) for one in results.rows]
    body = [_line(BEFORE, results.before, None, results.columns)]
    body += [_line(name, ends, one, results.columns) for name, ends, one in ours]
    interval = "; ± is half of the 95% interval over seeds" if len(results.before) > 1 else ""
    both = [
        (
            one.row.paper,
            f"{PAPER_VALIDATION[one.name]:.1f}",
            _percent([_mean(ends, results.columns) for ends in one.ends]),
        )
        for one in results.rows
        if one.name in PAPER_VALIDATION
    ]
    return [
        Table(
            "The paper's Table 1",
            "Success in percent, models of 7B (GenEnv, arXiv:2512.19682v2).",
            ("model", *COLUMN_OF.values(), "mean"),
            [(name, *(f"{value:.1f}" for value in values)) for name, values in PAPER_TABLE.items()],
        ),
        Table(
            "Ours",
            f"Held-out success in percent, by environment; the mean is over all tasks{interval}. "
            "Rollouts, tokens and seconds are of a run without its warm-up, which the rows of a seed share.",
            ("row", *results.columns, "mean", "rollouts", "tokens", "seconds", "seeds", "what it is"),
            body,
        ),
        *_on_benchmarks(results),
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


def _on_benchmarks(results: Results) -> list[Table]:
    """Return the rows' agents on the paper's benchmarks; none if they were not measured."""
    figures = [one for by_seed in results.benchmarks.values() for found in by_seed for one in found.items()]
    names = [name for name in COLUMN_OF if name in {name for name, _ in figures}]
    if not names:
        return []
    items = {name: max(figure.items for of, figure in figures if of == name) for name in names}
    return [
        Table(
            "Ours on the benchmarks",
            "The main figure of each benchmark in percent, scored as in the paper; items: "
            + ", ".join(f"{COLUMN_OF[name]} {items[name]:,}" for name in names)
            + ". Near 0 a benchmark does not distinguish rows.",
            ("row", *(COLUMN_OF[name] for name in names), "mean", "seeds"),
            [_benchmark_line(name, by_seed, names) for name, by_seed in results.benchmarks.items()],
        )
    ]


def _benchmark_line(
    row: str, by_seed: Sequence[Mapping[str, Figure]], names: Sequence[str]
) -> tuple[str, ...]:
    whole = [found for found in by_seed if all(name in found for name in names)]
    shown = whole or by_seed  # the same seeds in all cells, if some have all benchmarks
    cells = [_percent([found[name].value for found in shown if name in found]) for name in names]
    means = [fmean(found[name].value for name in names) for found in whole]
    return (row, *cells, _percent(means), str(len(whole)))


def _line(
    name: str, ends: Sequence[Columns], one: Result | None, tasks: Mapping[str, int]
) -> tuple[str, ...]:
    cells = [_percent([found[column] for found in ends]) for column in tasks]
    spent = [DASH] * 3
    if one is not None and one.runs:
        spent = [f"{one.spent(budget):,.0f}" for budget in ("attempts", "all tokens", "seconds")]
    about = "after the warm-up" if one is None else one.row.about
    return (name, *cells, _percent([_mean(found, tasks) for found in ends]), *spent, str(len(ends)), about)


def _mean(found: Columns, tasks: Mapping[str, int]) -> float:
    """Return the mean over all tasks, as in the differences."""
    return fmean([found[column] for column in tasks], list(tasks.values()))


def _percent(values: Sequence[float]) -> str:
    if not values:
        return DASH
    mean, low, _ = mean_interval(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * (mean - low):.1f}" if len(values) > 1 else "")


def differences(results: Results) -> tuple[Sequence[str], Sequence[str]]:
    """Return each row held against GenEnv-Random (or the base data) as sentences, and notes on that.

    There are none if it was not run.
    """
    there = [one.row.variant for one in results.rows if one.runs]
    against = next((name for name in AGAINST if name in there), None)
    if against is None or len(there) < 2:
        return [], []
    try:
        runs = [run for one in results.rows for run in one.runs]
        compared = compare_runs(runs, [(name, against) for name in there if name != against])
    except UsageError as error:
        return [f"not compared: {error}"], []
    return findings(compared), compared.notes


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


Out = Annotated[Path, typer.Option(help="Folder of the reproduction.", show_default=False)]
Rows = Annotated[str, typer.Option(help="Rows, separated by commas.")]
Offline = Annotated[str, typer.Option(help="Numbers of tasks of the rows `offline`, separated by commas.")]
Writer = Annotated[
    str,
    typer.Option(
        metavar="BASE_URL#MODEL",
        help="The endpoint that writes the tasks of `offline`; left out, the simulator after its warm-up.",
        show_default=False,
    ),
]
Benchmarks = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Also measure the agents of all rows on these benchmarks: all, or bfcl,bamboogle, ...",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="At most so many items of each benchmark.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the benchmarks' files; GENENV_DATA when left out.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the reproduction in --out, or extend it.")]


def reproduce(  # noqa: PLR0913 - a command has the options it has
    config: SweepConfig,
    out: Out,
    rows: Rows = ALL_ROWS,
    seeds: Seeds = "3",
    jobs: Jobs = 1,
    offline: Offline = "957,1777",
    writer: Writer = "",
    benchmarks: Benchmarks = "",
    limit: Limit = None,
    data: Data = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    resume: Resume = False,
) -> None:
    """Train the rows of the paper's comparison on CONFIG; print its Table 1 with ours beside it."""
    begin("looking at the rows")
    chosen = rows_of([name.strip() for name in rows.split(",") if name.strip()], _numbers(offline))
    if not chosen:
        raise UsageError(f"--rows names none; there are {', '.join(ROWS)}")
    there = [name for name in ("rows", PARAMETERS) if (out / name / FILE).is_file()]
    if there and not resume:
        raise UsageError(
            f"{out} holds a reproduction already; add --resume to go on, or choose another --out"
        )
    check_writable(out)
    named = [name.strip() for name in benchmarks.split(",") if name.strip()]
    if not named and (limit is not None or data is not None):
        raise UsageError("--limit and --data go with --benchmarks; name some, or leave these out")
    policy = load_config(config, overrides).policy
    asked = Measured.checked(named, policy, limit=limit, data=data) if named else None
    plan = Reproduction.begin(out, config, overrides, rows=chosen, seeds=seeds_of(seeds), writer=writer)
    each = counted(len(plan.trained[0].seeds), "seed")
    typer.echo(f"{counted(len(chosen), 'row')}, {each} each, in {out}", err=True)
    with locked(out, out / ".lock"):
        failed = plan.train(jobs=jobs, say=lambda line: typer.echo(masked(inert(line)), err=True))
        text = write_pages(collect(plan, asked), out)  # before a measurement, which may fail
        unanswered = 0
        if asked is not None:
            unanswered = plan.measure(asked, ConsoleReporter())
            text = write_pages(collect(plan, asked), out)
    typer.echo(inert(text))
    for name, why in failed.items():
        typer.echo(masked(inert(f"failed: {name}: {why}")))
    typer.echo(f"page: {out / 'reproduce.html'}, as text: {out / 'reproduce.md'}")
    if unanswered:
        typer.echo(f"{counted(unanswered, 'item')} of benchmarks without an answer")
    if failed or unanswered:
        typer.echo(f"the same command with --resume tries them again: --out {shlex.quote(str(out))}")
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and 0 < int(word) <= 100_000_000 for word in words):
        raise UsageError(f"--offline takes numbers of tasks, such as 957,1777, not {text!r}")
    return list(dict.fromkeys(map(int, words)))
