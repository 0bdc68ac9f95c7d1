"""`genenv serve`: what samples for a run whose trainer is elsewhere; genenv's own engine, or vLLM itself."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Annotated

import typer

from genenv.backends.settings import EMBEDDED, PolicyConfig
from genenv.cli.console import begin
from genenv.cli.options import Overrides
from genenv.config.run import load_config
from genenv.errors import UsageError

Base = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="The base: a short name, a folder, or a name on the hub."),
]
Host = Annotated[str, typer.Option(help="Address to listen on. There is no authentication.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Vllm = Annotated[
    bool, typer.Option("--vllm", help="Start vLLM, which has to be installed, with what a run needs of it.")
]
Split = Annotated[
    int, typer.Option("--tensor-parallel", min=1, max=64, help="GPUs that vLLM splits the base over.")
]
Slow = Annotated[
    float,
    typer.Option("--slow", min=0, metavar="SECONDS", help="Wait before each batch, to try a client out."),
]


def serve(  # noqa: PLR0913 - Typer: a parameter an option
    model: Base = EMBEDDED,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    vllm: Vllm = False,
    tensor_parallel: Split = 1,
    slow: Slow = 0.0,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
) -> None:
    """Sample for runs with policy.backend = "vllm": token ids in, token ids and log-probabilities out."""
    policy = load_config(None, overrides).policy.model_copy(update={"model": model})
    if vllm:
        _become_vllm(model, host, port, policy=policy, gpus=tensor_parallel)
    if missing := [package for package in ("starlette", "uvicorn") if find_spec(package) is None]:
        raise UsageError(
            f"this command needs {' and '.join(missing)}: pip install 'genenv[serve]', or the same "
            "of your clone"
        )
    begin(f"loading {model}")
    from genenv.backends.local.arithmetic import chosen
    from genenv.backends.local.served.loaded import LoadedBase
    from genenv.sampling_server.serving import SamplingServer

    server = SamplingServer(LoadedBase(model, chosen(policy)), model, host=host, port=port, slow_s=slow)
    try:
        server.run(
            lambda: typer.echo(f'serving {model} at {server.url}; policy.vllm.addresses = ["{server.url}"]')
        )
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


def _become_vllm(model: str, host: str, port: int, *, policy: PolicyConfig, gpus: int) -> None:
    """Turn this process into vLLM's server.

    Raises:
        UsageError: it is not installed.
    """
    program = shutil.which("vllm")
    if program is None:
        raise UsageError(
            "there is no vllm here: install it, in an environment of its own if need be, or leave --vllm out"
        )
    from genenv.backends.local.loading import resolve

    folder = resolve(model)
    words = [
        *("vllm", "serve", folder, "--served-model-name", model, "--host", host, "--port", str(port)),
        *("--enable-lora", "--max-lora-rank", str(policy.lora_rank), "--max-loras", "4"),
        *("--logprobs-mode", "processed_logprobs", "--max-model-len", str(policy.context_tokens)),
    ]
    if gpus > 1:
        words += ["--tensor-parallel-size", str(gpus)]
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    typer.echo(" ".join(words))
    os.execv(program, words)  # noqa: S606 - the program that was asked for
