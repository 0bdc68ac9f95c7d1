"""`genenv serve`: what samples for a run whose trainer is elsewhere; genenv's own engine, or vLLM itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.backends.vllm.starting import ENVIRONMENT, VLLM_KEY, command
from genenv.cli.console import AllowHost, BodyMib, Host, Overrides, Requests, begin
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.http.keys import is_loopback, key_in, new_key

Base = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="The base: a short name, a folder, or a name on the hub."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Vllm = Annotated[
    bool, typer.Option("--vllm", help="Start vLLM, which has to be installed, with what a run needs of it.")
]
More = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- OPTION...]", help="Options of vLLM's own, after --vllm --.", show_default=False
    ),
]
Slow = Annotated[
    float,
    typer.Option("--slow", min=0, metavar="SECONDS", help="Wait before each batch, to try a client out."),
]

Adapters = Annotated[
    list[Path],
    typer.Option(
        "--adapters",
        metavar="FOLDER",
        help="Load adapters from this folder and those below it, such as a run's policy.vllm.folder. "
        "Repeatable; left out, from the temporary folders of this user's runs.",
        show_default=False,
    ),
]


def serve(  # noqa: PLR0913 - Typer: a parameter an option
    model: Base = EMBEDDED,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    vllm: Vllm = False,
    slow: Slow = 0.0,
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
    if missing := [package for package in ("starlette", "uvicorn") if find_spec(package) is None]:
        raise UsageError(
            f"this command needs {' and '.join(missing)}: pip install 'genenv[serve]', or the same "
            "of your clone"
        )
    begin(f"loading {model}")
    from genenv.backends.local.arithmetic import chosen
    from genenv.backends.local.served.loaded import LoadedBase
    from genenv.http.guard import MIB, Access
    from genenv.servers.vllm.serving import SamplingServer

    given = key_in(variable)
    access = Access(
        key=given, names=tuple(allow_host), body_bytes=int(max_body_mib * MIB), requests=max_requests
    )
    named = [*adapters, *(() if policy.vllm.folder is None else (Path(policy.vllm.folder),))]
    server = SamplingServer(
        LoadedBase(model, chosen(policy)),
        model,
        host=host,
        port=port,
        access=access,
        adapters=named,
        slow_s=slow,
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
    """What is said of a key that was made at the start."""
    return f"whoever trains with it needs its API key, which is new with each start: export {variable}={key}"


def _become_vllm(policy: PolicyConfig, host: str, port: int, more: Sequence[str]) -> None:
    """Turn this process into vLLM's server.

    Raises:
        UsageError: it is not installed, or the model's description cannot be read.
    """
    from genenv.backends.local.loading import causal_config, resolve

    folder = resolve(policy.model)
    longest = (
        getattr(causal_config(folder).get_text_config(), "max_position_embeddings", None)
        or policy.context_tokens
    )
    context = min(policy.context_tokens, longest)
    words = command(policy, folder, host=host, port=port, context=context, more=more)
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
