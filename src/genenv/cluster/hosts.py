"""What a run asks of a cluster, and what runs on its nodes: a server, the trainer, a look at the disk.

Nothing here survives its node, and nothing needs to: a server that begins anew elsewhere says so by a file,
and the trainer goes on with what is committed. All folders are on a shared disk.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx2

from genenv.backends.settings import PolicyConfig
from genenv.backends.vllm.client import remove_address, write_address
from genenv.cluster.child import Child
from genenv.config.run import load_config
from genenv.errors import GenenvError, UsageError
from genenv.files import write_whole
from genenv.runs.folder import RunFolder
from genenv.servers.cli import VLLM_KEY

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


_AGAIN_S = 10.0
"""A server that does not start is tried again after so long."""
_STOPPING_S = 20.0
_LOCKED_S = 60.0
"""So long a trainer waits for the one before it to be gone."""
_TOKEN = "shared"  # noqa: S105 - the name of a file


class ServerState(NamedTuple):
    """How a server is."""

    address: str | None
    """None while it does not answer yet."""
    complaint: str | None
    """The last line of one that ended before it answered."""


class ServerHost:
    """A server on a node: it says where it is, and this process ends when the server does."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        plan: Plan,
        host: str,
        *,
        key: str | None = None,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        """Start it.

        Args:
            name: the same wherever it begins anew.
            words: its command line, without an address.
            plan: says where addresses are kept.
            host: the node's own address.
            key: the API key that it asks for; None where this machine alone reaches it.
            die: ends this process, so that what placed it starts it anew.
        """
        self._name, self._words, self._plan, self._host, self._die = name, words, plan, host, die
        self._key = key
        self._state = ServerState(None, None)
        self._child: Child | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def state(self) -> ServerState:
        """How it is."""
        return self._state

    def end(self) -> None:
        """End the server, and this process with it if it has answered."""
        self._over.set()
        if self._child is not None:
            self._child.end()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            port = _free_port(self._host)
            address = f"http://{self._host}:{port}"
            log = self._plan.folder / f"{self._name}.log"
            variables = {} if self._key is None else {VLLM_KEY: self._key}
            self._child = child = Child(at(self._words, self._host, port), log=log, variables=variables)
            if _answers(child, address, self._key):
                write_address(self._plan.addresses, self._name, address)
                self._state = ServerState(address, None)
                child.wait()
                remove_address(self._plan.addresses, self._name)
                self._die(1)
                return
            self._state = ServerState(None, child.last_line)
            self._over.wait(_AGAIN_S)


def _answers(child: Child, address: str, key: str | None) -> bool:
    """Whether a server comes to answer, before it ends."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx2.Client(timeout=5.0, headers=headers) as client:
        while child.wait(0.5) is None:
            try:
                if client.get(f"{address}/v1/models").status_code == 200:
                    return True
            except (httpx2.HTTPError, OSError):
                continue
    return False


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class News(NamedTuple):
    """What a trainer has said since it was asked last."""

    life: str
    """Another one where the trainer began anew."""
    lines: tuple[str, ...]
    next: int
    status: int | None
    """Its exit status; None while it runs."""


class TrainerHost:
    """The trainer on a node; one that begins anew elsewhere goes on with the run."""

    def __init__(self, plan: Plan, begun: str, folder: str, variables: Mapping[str, str]) -> None:
        """Start it.

        Args:
            plan: the run.
            begun: names this launch; whether it has begun is a file of that name.
            folder: where the command was typed, for files that settings name.
            variables: of the environment.
        """
        self._life = secrets.token_hex(4)
        mark = plan.folder / f"begun-{begun}"
        again = mark.exists() and (plan.run / "config.toml").exists()
        _await_lock(plan.run)
        shutil.rmtree(plan.adapters, ignore_errors=True)  # of a trainer that is no more
        mark.touch()
        words = plan.training(again=again)
        self._child = Child(words, log=plan.folder / "trainer.log", folder=Path(folder), variables=variables)

    def news(self, life: str, after: int) -> News:
        """Lines from number `after` on of the life that is named; of another one, all that are there."""
        status = self._child.status  # first: what it says after that is told with the next news
        said = self._child.said(after if life == self._life else 0, wait_s=1.0)
        return News(self._life, said.lines, said.next, None if said.lines else status)

    def interrupt(self) -> None:
        """Stop it as Ctrl-C does, and wait until it has."""
        self._child.interrupt()
        if self._child.wait(_STOPPING_S) is None:
            self._child.end()


def _await_lock(run: Path) -> None:
    """Wait until nobody writes the run: what held it on a node that is lost may take a moment to be gone."""
    until = time.monotonic() + _LOCKED_S
    while run.is_dir() and time.monotonic() < until:
        try:
            with RunFolder(run).lock():
                return
        except UsageError:
            time.sleep(1.0)


def prepare(plan: Plan, settings: str | None, token: str) -> PolicyConfig | str:
    """Make ready the folder of a run, where its trainer will stand.

    Args:
        plan: the run.
        settings: what CONFIG says, as TOML.
        token: for other nodes to read.

    Returns:
        The policy that servers are for; or a sentence, what is wrong.
    """
    try:
        if plan.resume:
            with RunFolder.open(plan.run).lock():
                pass
        else:
            RunFolder.vacant(plan.run)
        for left in (plan.addresses, plan.adapters):  # by an earlier launch
            shutil.rmtree(left, ignore_errors=True)
        plan.addresses.mkdir(parents=True)
        if settings is not None:
            write_whole(plan.config, settings)
        write_whole(plan.folder / _TOKEN, token)
        source = plan.run / "config.toml" if plan.resume else plan.config
        return load_config(source, plan.overrides).policy
    except GenenvError as error:
        return str(error)
    except OSError as error:
        return f"{plan.folder}: {error.strerror or error}; name a folder that all nodes may write by --out"


def sees(plan: Plan, token: str, limit_s: float = 10.0) -> bool:
    """Whether a node reads what another one wrote; disks over a network may take a moment."""
    until = time.monotonic() + limit_s
    while True:
        try:
            if (plan.folder / _TOKEN).read_text(encoding="utf-8") == token:
                return True
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
