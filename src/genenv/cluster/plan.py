"""What a run asks of a cluster, and the command lines of its parts; its folders are on a shared disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genenv.backends.settings import PolicyConfig

_GENENV = (sys.executable, "-m", "genenv")
_SEVERAL = (sys.executable, "-m", "genenv.backends.local.launch_ranks")
_NOT_SERVED = frozenset(("backend", "model", "simulator_model", "tuning"))
"""Settings of the policies that are none of a server's."""


OWN_OPTIONS = "--"
"""What comes after it is vLLM's own."""


def at(words: Sequence[str], host: str, port: int) -> list[str]:
    """The command line of a server, with its address."""
    end = words.index(OWN_OPTIONS) if OWN_OPTIONS in words else len(words)
    return [*words[:end], "--host", host, "--port", str(port), *words[end:]]


def counted(cpus: float, gpus: float) -> str:
    """Processors in words."""
    return f"{cpus:g} CPU{'s' * (cpus != 1)} and {gpus:g} GPU{'s' * (gpus != 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a part takes of a node."""

    cpus: float
    gpus: float

    def bundle(self) -> dict[str, float]:
        """By Ray's names."""
        return {name: count for name, count in (("CPU", self.cpus), ("GPU", self.gpus)) if count}

    def __str__(self) -> str:
        return counted(self.cpus, self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run on a cluster."""

    run: Path
    """Its folder, from the root on."""
    servers: int
    server: Needs
    trainer: Needs
    vllm: bool
    """Whether servers are vLLM; else genenv's own engine."""
    overrides: Sequence[str] = ()
    """`key=value` that was said."""
    resume: bool = False
    named: bool = False
    """Whether a CONFIG was named."""

    @property
    def folder(self) -> Path:
        """For what the parts tell each other."""
        return self.run / "cluster"

    @property
    def addresses(self) -> Path:
        """Where servers keep their addresses."""
        return self.folder / "addresses"

    @property
    def adapters(self) -> Path:
        """Where the trainer writes weights for the servers."""
        return self.folder / "adapters"

    @property
    def config(self) -> Path:
        """What CONFIG says, for the trainer: the file itself may be where this command was typed alone."""
        return self.folder / "config.toml"

    def parts(self) -> list[Needs]:
        """What is placed: the trainer, then the servers."""
        return [self.trainer, *([self.server] * self.servers)]

    def __str__(self) -> str:
        servers = "a server of" if self.servers == 1 else f"{self.servers} servers, each of"
        return f"{servers} {self.server}, and a trainer of {self.trainer}"

    def serving(self, policy: PolicyConfig) -> list[str]:
        """The command line of a server, without its address."""
        said = policy.model_dump(mode="json", exclude_defaults=True)
        words = [*_GENENV, "serve", "--model", policy.model]
        for name, value in said.items():
            if name not in _NOT_SERVED and not isinstance(value, Mapping):
                words += ["--set", f"policy.{name}={json.dumps(value)}"]
        if not self.vllm:
            words += ["--adapters", str(self.adapters)]
        else:
            words += ["--vllm", OWN_OPTIONS, "--tensor-parallel-size", str(max(1, int(self.server.gpus)))]
        return words

    def training(self, *, again: bool) -> list[str]:
        """The command line of the trainer: a process for each of its GPUs.

        Args:
            again: for the run that it began, on a node that is no more.
        """
        many = int(self.trainer.gpus)
        own = (*_SEVERAL, str(many)) if many > 1 else _GENENV
        words = [*own, "train", "--out", str(self.run)]
        if again or self.resume:
            words.append("--resume")
        if self.named and (self.resume or not again):
            words.append(str(self.config))
        for one in (*self.overrides, "policy.backend=vllm", *self._places()):
            words += ["--set", one]
        return words

    def _places(self) -> tuple[str, str]:
        return (
            f"policy.vllm.addresses_folder={json.dumps(str(self.addresses))}",
            f"policy.vllm.folder={json.dumps(str(self.adapters))}",
        )
