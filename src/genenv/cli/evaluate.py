"""`genenv eval`: evaluate a model on benchmarks, or grade stored answers again, and print tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from genenv.cli.console import begin, stoppable
from genenv.cli.progress import ConsoleReporter
from genenv.cli.tables import figures_table, show
from genenv.errors import UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.evaluate import Request
from genenv.evaluation.models import check_name
from genenv.evaluation.results import Outcome

_FAILED = 1
"""Exit status if some items were not answered."""

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="api-bank, alfworld, bfcl, bamboogle, travelplanner, all of these, or held-out: "
        "the held-out tasks of a run's environment.",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="A model's name or folder, a run's adapter such as runs/demo@12:agent, or openai:BASE_URL#MODEL."
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="At most so many items of each, spread evenly over its groups.")
]
Split = Annotated[str | None, typer.Option(help="Which part; the benchmark's main one when left out.")]
Protocol = Annotated[
    str | None, typer.Option(help="Of bfcl: official, or genenv for the paper's form: sets bfcl.protocol.")
]
Judge = Annotated[str | None, typer.Option(help="Of bamboogle: a policy that also judges the answers.")]
Data = Annotated[
    Path | None, typer.Option(help="Folder of the benchmarks' files; GENENV_DATA when left out.")
]
ChangedData = Annotated[
    bool, typer.Option("--changed-data", help="Also read files that differ from the known ones.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="File of one benchmark's results, NAME.jsonl, or a folder; evaluations/POLICY when left out."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue: ask only for items not answered yet.")]
ExportTo = Annotated[
    Path | None,
    typer.Option(help="Folder for the answers in the form of the authors' scorers: bfcl, travelplanner."),
]
Regrade = Annotated[
    list[Path],
    typer.Option(
        metavar="RESULTS",
        help="Grade stored answers again by the present rules; asks no model, takes no NAME. Repeatable.",
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting, e.g. sampling.temperature=1. Repeatable."
    ),
]


def evaluate(  # noqa: PLR0913 - each option is an argument
    names: Names = [],  # noqa: B006 - Typer's form
    policy: Policy = None,
    limit: Limit = None,
    split: Split = None,
    protocol: Protocol = None,
    judge: Judge = None,
    data: Data = None,
    changed_data: ChangedData = False,
    out: Out = None,
    resume: Resume = False,
    export: ExportTo = None,
    regrade: Regrade = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Measure a model on benchmarks, scored as their authors score them."""
    if regrade:
        if any((names, policy, split, limit, judge, out, resume, protocol, overrides)):
            raise UsageError(
                "--regrade goes with --data, --changed-data and --export only: results say the rest"
            )
        begin("grading again")
        with stoppable("results that were graded again are kept; type the command again for the rest"):
            _show_all(evaluation.regrade(regrade, data, changed_data=changed_data, export=export))
        return
    if not names or policy is None:
        raise UsageError("name a benchmark and a --policy: genenv eval bamboogle --policy smollm2-135m")
    request = Request(
        names=names,
        policy=policy,
        split=split,
        limit=limit,
        judge=judge,
        data=data,
        changed_data=changed_data,
        out=out,
        resume=resume,
        export=export,
    )
    measured = evaluation.check(request)
    if protocol is not None and "bfcl" not in measured:
        raise UsageError("--protocol is of bfcl, which is not among the benchmarks named")
    form = [] if protocol is None else [f"bfcl.protocol={json.dumps(protocol)}"]
    models = [name for name in (policy, judge) if name]
    config = load_evaluation_config([*overrides, *form], models)
    for name in models:
        check_name(name)
    begin(f"measuring {policy}")
    with stoppable("items that were done are kept, continue with --resume"):
        _show_all(evaluation.evaluate(request, config, ConsoleReporter()))


def _show_all(outcomes: Iterable[Outcome]) -> None:
    """Print a table for each evaluation as soon as it ends.

    Raises:
        typer.Exit: some items have no answer (status 1).
    """
    console, failed = Console(highlight=False), 0
    for outcome in outcomes:
        show_outcome(outcome, console)
        failed += len(outcome.failed)
    if failed:
        raise typer.Exit(_FAILED)


def show_outcome(outcome: Outcome, console: Console) -> None:
    """Print one benchmark's figures, and the notes that a reader needs to interpret them."""
    asked, seconds = len(outcome.records), outcome.seconds
    part = "" if asked == outcome.of else f", {asked} of {outcome.of} items"
    show(figures_table(f"{outcome.name}{part}", outcome.figures), console)
    console.print(
        Text(
            f"{asked} items in {seconds:,.0f} s, {outcome.tokens('prompt'):,} prompt tokens, "
            f"{outcome.tokens('sampled'):,} sampled, {outcome.tokens('cut'):,} of "
            f"{outcome.tokens('replies'):,} replies cut off by the token limit"
        )
    )
    if outcome.overflow:
        console.print(Text(f"{outcome.overflow} items do not fit into the model's window: wrong"))
    if outcome.unread:
        first = outcome.unread[0]
        console.print(
            Text(
                f"of {len(outcome.unread)} answers a part could not be read and was not graded "
                f"({first.id}: {first.unread[0]}); the items' field unread has all"
            ),
            soft_wrap=True,
        )
    if outcome.failed:
        console.print(
            Text(
                f"{len(outcome.failed)} of {asked} items were not answered and are in no figure "
                f"({outcome.failed[0].explanation}); ask for them again with --resume",
                style="bold",
            )
        )
    for note in outcome.notes:
        console.print(Text(note), soft_wrap=True)
    for path in outcome.exported:
        console.print(Text(f"exported: {path}"), soft_wrap=True)
    console.print(Text(f"items: {outcome.results.path}\nsummary: {outcome.results.summary}"), soft_wrap=True)
