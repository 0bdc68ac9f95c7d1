"""`genenv tinker-server`: genenv's own engine behind the Tinker protocol."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from genenv.backends.settings import EMBEDDED
from genenv.cli.console import AllowHost, BodyMib, Host, Overrides, Requests, begin
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.http.guard import MIB, Access
from genenv.http.keys import key_in

Base = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="The base: a short name, a folder, or a name on the hub."),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="ALIAS", help="What clients call it; its own name when left out.", show_default=False
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="For checkpoints; those in it are served.")]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0 measures and chooses.")]
Silence = Annotated[
    float, typer.Option("--forget-after", min=1, help="Let go of a client not heard of for so many seconds.")
]
QuirkNames = Annotated[
    list[str],
    typer.Option("--quirk", metavar="NAME", help="A manner of other servers, to test a client. Repeatable."),
]


def tinker_server(  # noqa: PLR0913 - Typer: a parameter an option
    model: Base = EMBEDDED,
    name: Name = "",
    host: Host = "127.0.0.1",
    port: Port = 8123,
    out: Out = Path("runs/tinker"),
    threads: Threads = 0,
    forget_after: Silence = 600.0,
    quirk: QuirkNames = [],  # noqa: B006 - Typer's form
    allow_host: AllowHost = [],  # noqa: B006 - Typer's form
    max_body_mib: BodyMib = 64.0,
    max_requests: Requests = 4096,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
) -> None:
    """Serve a base model over the Tinker protocol: clients train adapters on it and sample."""
    if missing := [package for package in ("starlette", "uvicorn") if find_spec(package) is None]:
        raise UsageError(
            f"this command needs {' and '.join(missing)}: pip install 'genenv[tinker-server]', or the same "
            "of your clone"
        )
    from genenv.servers.tinker.quirks import Quirks

    Quirks(quirk)  # wrong ones are told before a model is loaded
    policy = load_config(None, overrides).policy
    variable = policy.tinker.key_variable
    given = key_in(variable)
    access = Access(
        key=given, names=tuple(allow_host), body_bytes=int(max_body_mib * MIB), requests=max_requests
    )
    update = {"model": model} | ({"threads": threads} if threads else {})
    begin(f"loading {model}")
    from genenv.servers.tinker.serving import KEY, PREFIX, TinkerServer, open_base

    if given is not None and not given.startswith(PREFIX):
        raise UsageError(
            f"the environment variable {variable} holds no key of a Tinker server: they begin with {PREFIX}"
        )

    base = open_base(policy.model_copy(update=update), out)
    server = TinkerServer(
        base,
        out,
        name=name or None,
        host=host,
        port=port,
        access=access,
        quirks=quirk,
        forget_after_s=forget_after,
    )

    def ready() -> None:
        key = f"${variable}" if given else server.access.key or KEY
        typer.echo(
            f"serving {server.name} at {server.url}; point a client at it with "
            f"TINKER_BASE_URL={server.url} TINKER_API_KEY={key}"
        )

    try:
        server.run(ready)
    except KeyboardInterrupt:
        typer.echo(f"stopped; checkpoints are kept in {out}", err=True)
