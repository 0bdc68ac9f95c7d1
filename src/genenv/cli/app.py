"""The command line. Wrong input ends in one sentence, what is wrong and what to do, and exit status 2."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from genenv import __version__
from genenv.errors import GenenvError, UsageError, disk_is_full, out_of_memory
from genenv.texts import inert, masked

_KEPT = "committed rounds are kept, `genenv train` continues them with --resume"


@contextlib.contextmanager
def one_sentence() -> Generator[None]:
    """Turn what the user can mend into one sentence and exit status 2."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read our output has gone; Typer ends quietly
    except GenenvError as error:
        raise _ended(str(error), 2) from error
    except OSError as error:
        raise _ended(_system_sentence(error), 2) from error
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise _ended(
            "memory ran out, also with smaller batches; set policy.max_batch_rows or "
            f"policy.tokens_per_microbatch lower, or take a smaller model ({_KEPT})",
            2,
        ) from error
    except KeyboardInterrupt as error:
        raise _ended(f"stopped; {_KEPT}", 130) from error


def _ended(text: str, status: int) -> typer.Exit:
    typer.echo(f"genenv: {masked(inert(' '.join(text.split())))}", err=True)
    return typer.Exit(status)


def _system_sentence(error: OSError) -> str:
    if disk_is_full(error):
        return f"the disk is full; free some space ({_KEPT})"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; check that the file or folder is there and that you may use it"


class _Commands(TyperGroup):
    """All commands, each inside `one_sentence`."""

    # The context's class is click's or Typer's own, as the version has it.
    def invoke(self, ctx: typer.Context) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the command that was typed."""
        with one_sentence():
            return super().invoke(ctx)


app = typer.Typer(
    name="genenv",
    cls=_Commands,
    help="Train an LLM agent on tasks that a second LLM learns to write for it (GenEnv, arXiv:2512.19682).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A TOML file, or the name of one that comes with genenv, such as quickstart; "
        "a run that is named has its own.",
        show_default=False,
    ),
]
RunPath = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, such as runs/demo.", show_default=False),
]
Override = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. run.seed=1. Repeatable."),
]

Corpus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl", help="Passages of your own, for domains that read any: sets domain.corpus."
    ),
]


@app.command()
def train(
    config: OptionalConfig = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME when left out.")] = None,
    overrides: Override = [],  # noqa: B006 - Typer's form
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in --out, with its settings; run.rounds may have grown."
        ),
    ] = False,
    other_arithmetic: Annotated[
        bool,
        typer.Option(
            "--allow-other-arithmetic",
            help="With --resume: go on although this machine lacks what the run was computed with, such as a "
            "compiler or as many cores.",
        ),
    ] = False,
    corpus: Corpus = None,
) -> None:
    """Co-evolve an agent and its simulator."""
    _begin("going on with a run" if resume else "starting a run")
    from genenv.cli.commands import train_run

    _check_config(config, "--resume --out RUN", named=resume)
    said = [*overrides, *_reading(corpus)]
    train_run(config, out, said, resume=resume, other_arithmetic=other_arithmetic)


@app.command()
def generate(
    config: OptionalConfig = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 8,
    run: Annotated[
        Path | None, typer.Option(help="A run whose trained simulator writes; else an untrained one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file for the tasks; printed when left out.")] = None,
    overrides: Override = [],  # noqa: B006 - Typer's form
    corpus: Corpus = None,
) -> None:
    """Write checked tasks, without training anything."""
    _begin("writing tasks")
    from genenv.cli.commands import generate_tasks

    _check_config(config, "--run RUN", named=run is not None)
    generate_tasks(config, [*overrides, *_reading(corpus)], n=n, run=run, out=out)


def _begin(what: str) -> None:
    """The first sign of life: libraries and models take seconds to load, and a log file shows no cursor."""
    typer.echo(f"{masked(inert(what))} ...", err=True)


def _check_config(config: Path | None, instead: str, *, named: bool) -> None:
    """Settings come from a CONFIG or from a run.

    Raises:
        typer.BadParameter: neither is named.
    """
    if config is None and not named:
        raise typer.BadParameter(
            f"name a TOML file, such as configs/quickstart.toml, or a run with {instead}", param_hint="CONFIG"
        )


def _reading(corpus: Path | None) -> list[str]:
    """The setting that names a corpus; from the root on, so that a run finds it from any folder."""
    return (
        [] if corpus is None else [f"domain.corpus={json.dumps(str(corpus.resolve()), ensure_ascii=False)}"]
    )


@app.command()
def report(run: RunPath) -> None:
    """Make RUN/report.html: pictures of the run, and tasks with the agent's attempts."""
    from genenv.runs.report import write_report

    typer.echo(f"report: {write_report(run)}")


@app.command(name="eval")
def evaluate(  # noqa: PLR0913 - each option is an argument
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="api-bank, alfworld, bfcl, bamboogle, travelplanner, all of these, or held-out: "
            "the held-out tasks of a run's domain.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - Typer's form
    policy: Annotated[
        str | None,
        typer.Option(
            help="A model's name or folder, a run's adapter such as runs/demo@12:agent, or "
            "openai:BASE_URL#MODEL.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many items of each, spread evenly over its groups.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which part; the benchmark's main one when left out.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Of bfcl: official, or genenv for the paper's form: sets bfcl.protocol."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Of bamboogle: a policy that also judges the answers.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the benchmarks' files; GENENV_DATA when left out.")
    ] = None,
    changed_data: Annotated[
        bool, typer.Option("--changed-data", help="Also read files that differ from the known ones.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File of one benchmark's results, NAME.jsonl, or a folder; evaluations/POLICY when left out."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue: ask only for items not answered yet.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Folder for the answers in the form of the authors' scorers: bfcl, travelplanner."),
    ] = None,
    regrade: Annotated[
        list[Path],
        typer.Option(
            metavar="RESULTS",
            help="Grade stored answers again by the present rules; asks no model, takes no NAME. Repeatable.",
        ),
    ] = [],  # noqa: B006 - Typer's form
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting, e.g. sampling.temperature=1. Repeatable."
        ),
    ] = [],  # noqa: B006 - Typer's form
) -> None:
    """Measure a model on benchmarks, scored as their authors score them."""
    _begin("grading again" if regrade else f"measuring {policy}")
    from genenv.cli.evaluation import run_evaluations, run_regrading
    from genenv.evaluation.command import Request

    if regrade:
        asked = (names, policy, split, limit, judge, out, resume, protocol, overrides)
        if any(asked):
            raise UsageError(
                "--regrade goes with --data, --changed-data and --export only: results say the rest"
            )
        run_regrading(regrade, data, changed_data=changed_data, export=export)
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
    if protocol is not None and not {"bfcl", "all"} & set(names):
        raise UsageError("--protocol is of bfcl, which is not among the benchmarks named")
    form = [] if protocol is None else [f"bfcl.protocol={json.dumps(protocol)}"]
    run_evaluations(request, [*overrides, *form])


@app.command()
def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="Results of one benchmark: .summary.json or .jsonl files of genenv eval.",
            show_default=False,
        ),
    ],
) -> None:
    """Put results side by side; the first is what the others are held against."""
    from genenv.cli.evaluation import show_comparison

    show_comparison(results)


@app.command()
def check(
    domain: Annotated[
        str,
        typer.Argument(
            metavar="DOMAIN",
            help="A domain's name, package.module:Class for one of your own, or a run's TOML file.",
            show_default=False,
        ),
    ],
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks of each kind to look at.")] = 100,
    overrides: Override = [],  # noqa: B006 - Typer's form
) -> None:
    """Say whether a domain keeps what it promises. No model takes part."""
    _begin(f"checking {domain}")
    from genenv.cli.check import show_check

    show_check(domain, overrides, n=n)


@app.command()
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a run to check instead.", show_default=False),
    ] = None,
) -> None:
    """Say what works on this machine, and how to get the rest; or with RUN, whether all of a run is whole."""
    from rich.console import Console

    console = Console(highlight=False)
    if run is not None:
        from genenv.runs.doctor import examine_run, show

        _begin(f"checking every row and file of {run}")
        show(run, examine_run(run), console)
        return
    from genenv.cli.machine import examine

    console.print(examine())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"genenv {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def _interrupt(*_: object) -> None:
    """Stop at once: asyncio's own handler asks its task to, which sampling and updates do not notice."""
    logging.getLogger("asyncio").disabled = True  # that tasks were torn off is no news
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the `genenv` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # beside any other process, OpenMP threads that wait actively stall for whole scheduler ticks
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    app(prog_name="genenv")
