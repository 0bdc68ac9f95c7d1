"""The commands `genenv serve`, `genenv tinker-server` and `genenv view`: each serves over HTTP.

`serve` samples for a run whose trainer is on another machine, with genenv's engine or with vLLM itself.
`tinker-server` also trains adapters for its clients. `view` serves web pages about runs.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.backends.vllm.launcher import ENVIRONMENT, VLLM_KEY, vllm_command
from genenv.cli.console import AllowHost, BodyMib, Host, Overrides, Requests, begin, check_packages
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.http.guard import MIB, Access, is_loopback, key_in, new_key
from genenv.types import Json

Base = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="The base: a short name, a folder, or a name on the hub."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Vllm = Annotated[
    bool, typer.Option("--vllm", help="Start vLLM, which has to be installed, with what a run needs of it.")
]
More = Annotated[
    list[str] | None, typer.Argument(metavar="[-- OPTION...]", help="Options of vLLM's own, after --vllm --.")
]

Adapters = Annotated[
    list[Path],
    typer.Option(
        "--adapters",
        metavar="FOLDER",
        help="Load adapters from this folder and those below it, such as a run's policy.vllm.folder. "
        "Repeatable; left out, from the temporary folders of this user's runs.",
    ),
]


def serve(  # noqa: PLR0913 - Typer: a parameter an option
    model: Base = EMBEDDED,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    vllm: Vllm = False,
    adapters: Adapters = [],  # noqa: B006 - Typer's form
    allow_host: AllowHost = [],  # noqa: B006 - Typer's form
    max_body_mib: BodyMib = 16.0,
    max_requests: Requests = 4096,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    more: More = None,
) -> None:
    """Sample for runs with policy.backend = "vllm": token ids in, token ids and log-probabilities out."""
    policy = load_config(None, overrides).policy.model_copy(update={"model": model})
    variable = policy.vllm.key_variable
    if vllm:
        _become_vllm(policy, host, port, more or [])
    if more:
        raise UsageError(f"{shlex.join(more)}: options of vLLM's own go with --vllm")
    begin(f"loading {model}")
    from genenv.backends.local.model import resolve_settings
    from genenv.backends.local.served.models import LoadedBase
    from genenv.servers.vllm import SamplingServer

    given = key_in(variable)
    access = Access(
        key=given, names=tuple(allow_host), body_bytes=int(max_body_mib * MIB), requests=max_requests
    )
    named = [*adapters, *(() if policy.vllm.folder is None else (Path(policy.vllm.folder),))]
    server = SamplingServer(
        LoadedBase(model, resolve_settings(policy)),
        model,
        host=host,
        port=port,
        access=access,
        adapters=named,
    )

    def ready() -> None:
        typer.echo(f'serving {model} at {server.url}; policy.vllm.addresses = ["{server.url}"]')
        if server.access.key != given:
            typer.echo(_key_line(variable, str(server.access.key)))

    try:
        server.run(ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


def _key_line(variable: str, key: str) -> str:
    """Return the sentence that shows the user an API key generated at the start."""
    return f"whoever trains with it needs its API key, which is new with each start: export {variable}={key}"


def _become_vllm(policy: PolicyConfig, host: str, port: int, more: Sequence[str]) -> None:
    """Replace this process by vLLM's server.

    Raises:
        UsageError: vLLM is not installed, its key holds a colon, or the model's description cannot be read.
    """
    from genenv.backends.local.loading import causal_config, resolve

    folder = resolve(policy.model)
    longest = (
        getattr(causal_config(folder).get_text_config(), "max_position_embeddings", None)
        or policy.context_tokens
    )
    context = min(policy.context_tokens, longest)
    words = vllm_command(policy, folder, host=host, port=port, context=context, more=more)
    typer.echo(shlex.join(words))
    variables = {**os.environ, **ENVIRONMENT}
    key = key_in(policy.vllm.key_variable)
    if key is None and not is_loopback(host):
        key = new_key()
        typer.echo(_key_line(policy.vllm.key_variable, key))
    if key is not None and ":" in key:
        raise UsageError(
            f"vLLM takes no key with a colon, which {policy.vllm.key_variable} holds: set another one"
        )
    if key is not None:
        variables[VLLM_KEY] = key
    os.execvpe(words[0], words, variables)  # noqa: S606 - the program that was asked for


Name = Annotated[str, typer.Option(metavar="ALIAS", help="What clients call it; its own name when left out.")]
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
    check_packages("tinker-server", protobuf="google.protobuf")
    from genenv.servers.tinker.imitation import ServerImitation

    ServerImitation(quirk)  # report unknown quirks before loading a model
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


Folder = Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="The folder of your runs, or of one run.")]
Chatting = Annotated[
    bool, typer.Option("--chat", help="Let readers talk to the agents of the runs; this loads models.")
]
Opened = Annotated[bool, typer.Option("--open", help="Open the page in your browser.")]
PageHost = Annotated[
    str, typer.Option(help="Address to listen on. Beyond loopback the printed address has a token.")
]

EvaluationsFolder = Annotated[
    Path, typer.Option(help="Folder of results of genenv eval; those below RUNS are shown too.")
]

Beside = Annotated[
    bool,
    typer.Option("--beside", hidden=True, help="Of a run that is starting: serve it until stdin is closed."),
]


def _replayed(settings: Mapping[str, object], payload: Json, replies: Sequence[str]) -> Any:  # noqa: ANN401
    from genenv.tools.tool_calling.environment import replayed  # takes a moment, and few pages need it

    return replayed(settings, payload, replies)


def view(  # noqa: PLR0913 - the options of a command
    runs: Folder = Path("runs"),
    port: Port = 8765,
    host: PageHost = "127.0.0.1",
    allow_host: AllowHost = [],  # noqa: B006 - Typer's form
    opened: Opened = False,
    evaluations: EvaluationsFolder = Path("evaluations"),
    chat: Chatting = False,
    beside: Beside = False,
) -> None:
    """Show runs, their tasks and trajectories in a browser, also while they are written."""
    from genenv.viewer.pages import MadeChat, Viewer, address

    made: MadeChat | None = None
    if chat:
        from genenv.tools.cli.chat import Chat as made  # imports what loads models
    try:
        server = Viewer(runs, host, port, names=tuple(allow_host), evaluations=evaluations, chat=made)
    except UsageError:
        if not beside:
            raise
        # the port is taken, often by the viewer of another run
        server = Viewer(runs, host, 0, evaluations=evaluations)
    server.data.replay = _replayed

    def ready() -> None:
        if beside:
            typer.echo(f"the run in your browser: {server.url}{address(runs.resolve().name)}")
            threading.Thread(target=end_with_stdin, daemon=True).start()
            return
        typer.echo(f"{runs} at {server.entrance} (Ctrl-C ends it)")
        if opened:
            webbrowser.open(server.entrance)

    def end_with_stdin() -> None:
        sys.stdin.buffer.read()
        server.stop()

    if beside:
        os.nice(10)  # the run comes first
    try:
        server.run(ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
