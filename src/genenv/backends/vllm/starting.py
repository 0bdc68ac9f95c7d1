"""The command that starts vLLM with all that a run needs of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError

ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Variables that it starts with."""
VLLM_KEY = "VLLM_API_KEY"
"""The variable in which vLLM's server finds its API key."""
_ADAPTERS = 4
"""Two versions of two players in one batch."""
_GRAMMARS = {"backend": "xgrammar", "disable_any_whitespace": True}
"""Specs have no spaces between their parts, as those that are sampled here."""


def command(
    policy: PolicyConfig, folder: str, *, host: str, port: int, context: int, more: Sequence[str] = ()
) -> list[str]:
    """The words of it.

    Args:
        policy: names the model, and how its weights and adapters are.
        folder: of the base, or its name on the hub.
        host: to listen on.
        port: the same.
        context: the longest sequence.
        more: options of vLLM's own, which come last.

    Raises:
        UsageError: vLLM is not installed.
    """
    options = [
        *("--served-model-name", policy.model, "--host", host, "--port", str(port)),
        *("--enable-lora", "--max-lora-rank", str(policy.lora_rank), "--max-loras", str(_ADAPTERS)),
        *("--logprobs-mode", "processed_logprobs", "--max-model-len", str(context)),
        *("--allowed-origins", "[]"),  # no web page may read what it answers
        *("--enable-scale-out", "--structured-outputs-config", json.dumps(_GRAMMARS)),
    ]
    if policy.dtype != "auto":
        options += ["--dtype", policy.dtype]
    return [*_program(), "--model", folder, *options, *more]


def check_players(policy: PolicyConfig) -> None:
    """Refuse players that servers cannot hold: they have one base, and adapters on it.

    Raises:
        UsageError: these are such.
    """
    if policy.tuning != "lora" or policy.simulator_model is not None:
        raise UsageError(
            "servers hold one base and adapters on it: add --set policy.tuning=lora, and leave "
            "policy.simulator_model out"
        )


def _program() -> list[str]:
    """What starts it: the interpreter beside `vllm`, as the program of the package for CPUs ends at once.

    Raises:
        UsageError: there is none.
    """
    found = shutil.which("vllm")
    if found is None:
        raise UsageError(
            "there is no vllm here: install it, in an environment of its own if need be, and put that one's "
            "bin folder on PATH; or leave --vllm out"
        )
    python = Path(found).with_name("python")
    if python.is_file():
        return [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    return [found, "serve"]
