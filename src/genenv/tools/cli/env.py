"""`genenv env`: make a checked environment of your own tools, and let a model write wordings for it."""

from __future__ import annotations

import shlex
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import begin, ended, stoppable
from genenv.cli.progress import ConsoleReporter
from genenv.errors import UsageError
from genenv.files import check_writable
from genenv.gate.gate import examined
from genenv.texts import inert
from genenv.tools.bundle import as_typed
from genenv.tools.generate import make_bundle
from genenv.tools.generate.training_config import TRAINING, USUAL_CALLS
from genenv.tools.language.model_wordings import Wanted, Writer, reasons, write_wordings
from genenv.tools.worlds.limits import USUAL, Limits
from genenv.tools.worlds.openapi.service import Service
from genenv.tools.worlds.origins import configure, given_of, origin_of
from genenv.tools.worlds.recorded import MOST_SENT


class Action(StrEnum):
    """The actions of `genenv env`."""

    NEW = "new"
    WORDS = "words"
    TASKS = "tasks"


What = Annotated[
    Action,
    typer.Argument(
        help="new: make a bundle. words: have a model write ways to ask for the tools of one. tasks: draw "
        "the tasks of one anew, after its files were edited."
    ),
]
Where = Annotated[Path, typer.Argument(metavar="NAME", help="The folder of the bundle.")]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="FILE.py[:CLASS] | OPENAPI | mcp:COMMAND | mcp:ADDRESS",
        help="Python file whose functions, or whose class's methods, are the tools: it is imported and its "
        "tools are called, in a process of their own and on copies. Or an OpenAPI 3 document, a file or an "
        "address: its operations are the tools, on mock tables of its resources; nothing is sent anywhere, "
        "unless --server has them asked for real. "
        "Or the command of an MCP server, in which {folder} stands for the folder that it works in: it is "
        "run, on copies of that folder. Or an MCP server's address: it is asked, and its answers are kept.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="/PATH | TOOL",
        help="Of an OpenAPI document: operations whose path begins so. Of other tools: those with this name, "
        "or whose names match a pattern such as 'git_*'. Can be given again.",
    ),
]
Files = Annotated[
    Path | None,
    typer.Option(
        "--files",
        metavar="FOLDER",
        help="What is in the folder of an MCP server when an attempt begins; left out, nothing. Of a Python "
        "file: a folder above it that the file reads from, such as .., or its own, which is then copied.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Of an OpenAPI document: where its service is. It is asked with GET, and its answers are kept "
        "and replayed; left out, mock tables take its place.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="'NAME: VALUE'",
        help="Goes along with each request to --server, such as 'Authorization: Bearer $TOKEN' in single "
        "quotes: the bundle keeps the variable's name, never what it holds. Can be given again.",
    ),
]
MostRequests = Annotated[
    int | None,
    typer.Option(
        "--most-requests",
        min=1,
        max=100_000,
        help="So many requests at most are sent to --server, or to an MCP server with an address; left out, "
        f"{MOST_SENT}.",
    ),
]
Writes = Annotated[
    bool,
    typer.Option(
        "--allow-writes",
        help="Of --server, or an MCP server with an address: call tools too that may write, for real. Left "
        "out, operations other than GET, and tools that do not say that they only read, are none.",
    ),
]
MayWrite = Annotated[
    list[Path] | None,
    typer.Option(
        "--may-write",
        metavar="FOLDER",
        help="Of a Python file or an MCP server that is started: a folder, beside the copy of its own, in "
        "which it may write. Can be given again.",
    ),
]
GivenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        metavar="PARAMETER=MODULE:NAME",
        help="Of a Python file: an argument that the agent does not choose, of its functions or of the "
        "class's constructor, such as a framework's context or a database: what NAME of that module is, or "
        "makes when it is called. Can be given again.",
    ),
]
MostSeconds = Annotated[
    float,
    typer.Option(
        "--most-seconds", min=1.0, help="What all of it may take; tasks that were found by then are kept."
    ),
]
MostMiB = Annotated[int, typer.Option("--most-mib", min=1, help="So much at most tools send, in MiB.")]
Tasks = Annotated[int, typer.Option("--tasks", min=1, max=100_000, help="How many tasks for training.")]
HeldOut = Annotated[int, typer.Option("--held-out", min=1, max=100_000, help="How many for measuring.")]
MostCalls = Annotated[
    int, typer.Option("--most-calls", min=1, max=8, help="So many calls at most solve a task.")
]
RandomSeed = Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")]
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="BASE_URL#MODEL | MODEL | RUN",
        help="Of words: who writes them. A model behind an OpenAI-compatible endpoint, one on this machine, "
        "or the agent of a run.",
    ),
]
Each = Annotated[
    int, typer.Option("--each", min=1, max=64, help="Of words: so many each tool is to have in the end.")
]
WriterOption = Annotated[
    str,
    typer.Option(
        "--writer",
        metavar="BASE_URL#MODEL | MODEL | RUN",
        help="Of new: a model that writes the tasks: the calls, and what users say. All of it is executed "
        "and checked, and a new conversation with the model must solve each task. Left out, rules draw them.",
    ),
]
UserAnswers = Annotated[
    bool,
    typer.Option(
        "--user-answers",
        help="Of new: in some tasks the user leaves a value out, and gives it when the agent asks for it.",
    ),
]
Refusals = Annotated[
    bool,
    typer.Option(
        "--refusals",
        help="Of new: some tasks ask for what the tools refuse, and the agent has to say so.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Of words, and of --writer: a setting of how the model is loaded and asked, as for "
        "`genenv eval`. Repeatable.",
    ),
]


def env(  # noqa: PLR0913 - each is an option
    action: What,
    name: Where,
    source: From = "",
    only: Only = None,
    files: Files = None,
    server: Server = None,
    header: Header = None,
    most_requests: MostRequests = None,
    allow_writes: Writes = False,
    may_write: MayWrite = None,
    given: GivenOption = None,
    most_seconds: MostSeconds = USUAL.seconds,
    most_mib: MostMiB = USUAL.mib,
    tasks: Tasks = 200,
    held_out: HeldOut = 100,
    most_calls: MostCalls = USUAL_CALLS,
    seed: RandomSeed = 0,
    writer: WriterOption = "",
    user_answers: UserAnswers = False,
    refusals: Refusals = False,
    by: By = "",
    each: Each = 6,
    overrides: Overrides = None,
) -> None:
    """Make an environment of your own tools: `genenv env new NAME --from tools.py`.

    Finds out how they can be called, draws tasks, plays and checks them. What comes out is a bundle: a
    folder, all of it data that can be edited.

    `genenv env words NAME --by MODEL` has a model write ways in which users ask for its tools; those
    that pass every check are added to the bundle.

    `genenv env tasks NAME` draws the tasks of a bundle anew, by what its files say now: its states,
    values, ways to call, circles of tools.
    """
    own = (source, only, files, server, header, most_requests, allow_writes, may_write, given)
    of_new = any((*own, user_answers, refusals, writer))
    _check(action, name, of_new=of_new, by=by, of_words=bool(by or (overrides and not writer)))
    if action is Action.WORDS:
        _words(name, Wanted(by=by, each=each, seed=seed, overrides=overrides or ()))
        return
    limits = Limits(seconds=most_seconds, mib=most_mib)
    asked = make_bundle.Asked(base=tasks, held_out=held_out, seed=seed, most_calls=most_calls, limits=limits)
    if action is Action.TASKS:
        _tasks(name, asked)
        return
    if not source:
        raise UsageError(f"say what the tools are: genenv env new {name} --from tools.py")
    begin(f"making {name}")
    if header and server is None:
        raise UsageError("--header goes along with requests to --server, and there is none")
    service = Service(address=server, headers=tuple(header or ())) if server is not None else None
    origin = origin_of(source, only or (), files, writes=allow_writes, service=service, most=most_requests)
    check_writable(name, "name")
    configure(origin, may_write or (), given_of(given or ()))
    typer.echo(origin.warning, err=True)
    _new(
        name,
        make_bundle.Wanted(
            origin=origin,
            user_answers=user_answers,
            refusals=refusals,
            writer=Writer(by=writer, overrides=overrides or (), seed=seed) if writer else None,
            **{one.name: getattr(asked, one.name) for one in fields(asked)},
        ),
    )


def _new(folder: Path, wanted: make_bundle.Wanted) -> None:
    """Make a bundle, and print the result.

    Raises:
        typer.Exit: the user stopped it (status 130 or 143), or the bundle has no tasks (status 1).
    """
    with stoppable(f"nothing of {folder} is kept, and the same command begins anew"):
        made = make_bundle.make(folder, wanted, examined, ConsoleReporter())
    typer.echo(inert(make_bundle.summary(made)))
    again = f"genenv env tasks {shlex.quote(str(folder))}"
    if made.stopped:
        drawn = f"{made.drawn.base} tasks for training and {made.drawn.held_out} for measuring"
        raise ended(f"stopped; {folder} is kept, with {drawn}; `{again}` draws them anew", 130)
    for warning in make_bundle.warnings(made):
        typer.echo(f"warning: {inert(warning)}", err=True)
    if (lacking := made.drawn.lacking) is not None:
        kept = f"{folder} keeps what was found out: edit it and draw again with `{again}`, or remove it"
        raise ended(f"{lacking}; {kept}", 1)
    typer.echo(
        f"the bundle is in {folder}; `genenv check {as_typed(folder)}` says whether it keeps its promises,"
    )
    run = shlex.quote(f"runs/{made.bundle.name}")
    typer.echo(f"and `genenv train {shlex.quote(str(folder / TRAINING))} --out {run}` trains on it")


def _check(action: Action, name: Path, *, of_new: bool, by: str, of_words: bool) -> None:
    """Refuse options that belong to another action than the requested one.

    Raises:
        UsageError: there is such an option, or `--by` is missing.
    """
    if action is not Action.NEW and of_new:
        raise UsageError(
            "--from, --only, --files, --server, --header, --most-requests, --allow-writes, --may-write, "
            "--user-answers, --given and --writer are of `genenv env new`"
        )
    if action is not Action.WORDS and of_words:
        raise UsageError("--by and --set are of `genenv env words`")
    if action is Action.WORDS and not by:
        raise UsageError(
            f"say who writes them: genenv env words {name} --by BASE_URL#MODEL, or a model's name"
        )


def _tasks(folder: Path, asked: make_bundle.Asked) -> None:
    """Draw the tasks of a bundle again, and print the result."""
    begin(f"drawing the tasks of {folder} anew")
    with stoppable(f"the tasks of {folder} are as they were"):
        done = make_bundle.redraw(folder, asked, examined, ConsoleReporter())
    drawn = done.drawn
    typer.echo(f"{folder}: {drawn.base} tasks for training and {drawn.held_out} for measuring")
    if drawn.refused:
        typer.echo(f"drawn programs that are no tasks: {drawn.no_tasks}")
    typer.echo(f"their replies need agent.max_new_tokens = {done.tokens} in {folder / TRAINING}")
    for warning in drawn.warnings:
        typer.echo(f"warning: {inert(warning)}", err=True)


def _words(folder: Path, wanted: Wanted) -> None:
    """Let a model write wordings, and print the result for each tool."""
    begin(f"asking {wanted.by} for wordings")
    with stoppable("what passed is kept, and the same command goes on"):
        done = write_wordings(folder, wanted, ConsoleReporter())
    if not done:
        typer.echo(f"every tool has {wanted.each} wordings or more; --each asks for others")
        return
    for one in done:
        typer.echo(f"{one.tool}: {one.before} were there, {one.read} read, {len(one.kept)} added")
        for text in one.kept:
            typer.echo(f"  + {inert(text)}")
    for reason, count in reasons(done).most_common():
        said, why = next((text, no.why) for one in done for text, no in one.refused if no.reason == reason)
        typer.echo(f"refused, {reason}: {count}, such as {inert(said[:80])!r}: {inert(why)}")
    kept, read = sum(len(one.kept) for one in done), sum(one.read for one in done)
    typer.echo(f"{kept} of {read} wordings pass; they are in {folder / 'wordings.toml'}")
