"""The command `genenv view`: a read-only server of web pages about the runs of a folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import AllowHost, check_packages

Folder = Annotated[
    Path,
    typer.Argument(metavar="[RUNS_DIR]", help="The folder of your runs, or of one run.", show_default=True),
]
"""The folder that is served."""
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Opened = Annotated[bool, typer.Option("--open", help="Open the page in your browser.")]
Address = Annotated[
    str, typer.Option(help="Address to listen on. Beyond loopback the printed address has a token.")
]


def view(
    runs: Folder = Path("runs"),
    port: Port = 8765,
    host: Address = "127.0.0.1",
    allow_host: AllowHost = [],  # noqa: B006 - Typer's form
    open_: Opened = False,
) -> None:
    """Show runs, their tasks and trajectories in a browser, also while they are written."""
    check_packages("viewer", starlette="starlette", uvicorn="uvicorn")
    from genenv.viewer.pages import Viewer

    server = Viewer(runs, host, port, names=tuple(allow_host))

    def ready() -> None:
        typer.echo(f"{runs} at {server.entrance} (Ctrl-C ends it)")
        if open_:
            webbrowser.open(server.entrance)

    try:
        server.run(ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
