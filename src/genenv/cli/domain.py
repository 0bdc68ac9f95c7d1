"""`genenv domain new`: a checked training world of your own tools."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from genenv.api.console import ConsoleReporter
from genenv.cli.console import begin
from genenv.domains.tools.bundle import as_typed
from genenv.domains.tools.making import Wanted, make, readme
from genenv.domains.tools.openapi.service import Service
from genenv.domains.tools.origins import origin_of
from genenv.domains.tools.recorded import MOST_SENT
from genenv.domains.tools.training import TRAINING, USUAL_CALLS
from genenv.errors import UsageError
from genenv.gate.gate import examined
from genenv.texts import inert


class Action(StrEnum):
    """What can be done."""

    NEW = "new"


What = Annotated[Action, typer.Argument(help="new: make a bundle.", show_default=False)]
Where = Annotated[
    Path, typer.Argument(metavar="NAME", help="The folder that is made: a bundle.", show_default=False)
]
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
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="/PATH",
        help="Of an OpenAPI document: operations whose path begins so. Can be given again.",
        show_default=False,
    ),
]
Files = Annotated[
    Path | None,
    typer.Option(
        "--files",
        metavar="FOLDER",
        help="What is in the folder of an MCP server when an attempt begins; left out, nothing.",
        show_default=False,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Of an OpenAPI document: where its service is. It is asked with GET, and its answers are kept "
        "and replayed; left out, mock tables take its place.",
        show_default=False,
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="'NAME: VALUE'",
        help="Goes along with each request to --server, such as 'Authorization: Bearer $TOKEN' in single "
        "quotes: the bundle keeps the variable's name, never what it holds. Can be given again.",
        show_default=False,
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
        show_default=False,
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
Tasks = Annotated[int, typer.Option("--tasks", min=1, max=100_000, help="How many tasks for training.")]
HeldOut = Annotated[int, typer.Option("--held-out", min=1, max=100_000, help="How many for measuring.")]
MostCalls = Annotated[
    int, typer.Option("--most-calls", min=1, max=8, help="So many calls at most solve a task.")
]
RandomSeed = Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")]


def domain(  # noqa: PLR0913 - each is an option
    action: What,
    name: Where,
    source: From,
    only: Only = None,
    files: Files = None,
    server: Server = None,
    header: Header = None,
    most_requests: MostRequests = None,
    allow_writes: Writes = False,
    tasks: Tasks = 200,
    held_out: HeldOut = 100,
    most_calls: MostCalls = USUAL_CALLS,
    seed: RandomSeed = 0,
) -> None:
    """Make a domain of your own tools: `genenv domain new NAME --from tools.py`.

    Finds out how they can be called, draws tasks, plays and checks them. What comes out is a bundle: a
    folder, all of it data that can be edited.
    """
    del action  # there is one so far
    begin(f"making {name}")
    if header and server is None:
        raise UsageError("--header goes along with requests to --server, and there is none")
    service = Service(address=server, headers=tuple(header or ())) if server is not None else None
    origin = origin_of(source, only or (), files, writes=allow_writes, service=service, most=most_requests)
    typer.echo(origin.warning, err=True)
    wanted = Wanted(origin=origin, base=tasks, held_out=held_out, seed=seed, most_calls=most_calls)
    made = make(name, wanted, examined, ConsoleReporter())
    typer.echo(inert(readme(made)))
    typer.echo(
        f"the bundle is in {name}; `genenv check {as_typed(name)}` says whether it keeps its promises,"
    )
    run = shlex.quote(f"runs/{made.bundle.name}")
    typer.echo(f"and `genenv train {shlex.quote(str(name / TRAINING))} --out {run}` trains on it")
