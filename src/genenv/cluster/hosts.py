"""The resources that a run requests of a cluster, and its processes on a node: server and trainer.

These processes may be lost with their node. A restarted server announces its address in a file, and a
restarted trainer continues from the last committed round. All folders are on a shared disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from genenv.backends.settings import PolicyConfig
from genenv.backends.vllm.child import Child
from genenv.backends.vllm.client import remove_address, write_address
from genenv.backends.vllm.launcher import VLLM_KEY, answers, free_port
from genenv.config.run import load_config
from genenv.errors import GenenvError, UsageError, first_line
from genenv.files import write_whole
from genenv.runs.folder import RunFolder

_GENENV = (sys.executable, "-m", "genenv")
_SEVERAL = (sys.executable, "-m", "genenv.backends.local.launch_ranks")
_NOT_SERVED = frozenset(("backend", "model", "simulator_model", "tuning"))
"""Settings of the policies that do not apply to a server."""


OWN_OPTIONS = "--"
"""Separates the options of genenv from those of vLLM."""


def at(words: Sequence[str], host: str, port: int) -> list[str]:
    """Return the command line of a server with its address."""
    end = words.index(OWN_OPTIONS) if OWN_OPTIONS in words else len(words)
    return [*words[:end], "--host", host, "--port", str(port), *words[end:]]


def counted(cpus: float, gpus: float) -> str:
    """Return the numbers of CPUs and GPUs in words."""
    return f"{cpus:g} CPU{'s' * (cpus != 1)} and {gpus:g} GPU{'s' * (gpus != 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The resources of one part of a run."""

    cpus: float
    gpus: float

    def bundle(self) -> dict[str, float]:
        """Return the resources under Ray's names."""
        return {name: count for name, count in (("CPU", self.cpus), ("GPU", self.gpus)) if count}

    def __str__(self) -> str:
        return counted(self.cpus, self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run on a cluster: its folder, its parts and the options of the command."""

    run: Path
    """The absolute path of its folder."""
    servers: int
    server: Needs
    trainer: Needs
    vllm: bool
    """Whether servers run vLLM instead of genenv's engine."""
    overrides: Sequence[str] = ()
    """The `key=value` overrides of the command line."""
    resume: bool = False
    named: bool = False
    """Whether the command line names a CONFIG."""
    typed_in: Path
    """The folder where the command was typed, for relative paths in settings."""

    @property
    def folder(self) -> Path:
        """The folder in which the parts exchange files."""
        return self.run / "cluster"

    @property
    def addresses(self) -> Path:
        """The folder in which servers write their addresses."""
        return self.folder / "addresses"

    @property
    def adapters(self) -> Path:
        """The folder in which the trainer writes weights for the servers."""
        return self.folder / "adapters"

    @property
    def config(self) -> Path:
        """A copy of CONFIG for the trainer; the file itself may exist only where the command was typed."""
        return self.folder / "config.toml"

    def parts(self) -> list[Needs]:
        """Return the resources of all parts: the trainer, then the servers."""
        return [self.trainer, *([self.server] * self.servers)]

    def __str__(self) -> str:
        servers = "a server of" if self.servers == 1 else f"{self.servers} servers, each of"
        return f"{servers} {self.server}, and a trainer of {self.trainer}"

    def serving(self, policy: PolicyConfig) -> list[str]:
        """Return the command line of a server without its address."""
        said = policy.model_dump(mode="json", exclude_defaults=True)
        words = [*_GENENV, "serve", "--model", policy.model]
        for name, value in said.items():
            if name not in _NOT_SERVED and not isinstance(value, Mapping):
                words += ["--set", f"policy.{name}={json.dumps(value)}"]
        if not self.vllm:
            return [*words, "--adapters", str(self.adapters)]
        if policy.vllm.command is not None:
            words += ["--set", f"policy.vllm.command={json.dumps(policy.vllm.command)}"]
        size = str(max(1, int(self.server.gpus)))
        return [*words, "--vllm", OWN_OPTIONS, "--tensor-parallel-size", size, *policy.vllm.options]

    def training(self, *, again: bool) -> list[str]:
        """Return the command line of the trainer, with a process for each of its GPUs.

        Args:
            again: whether an earlier trainer of this launch began the run on a node that was lost.
        """
        many = int(self.trainer.gpus)
        own = (*_SEVERAL, str(many)) if many > 1 else _GENENV
        words = [*own, "train", "--out", str(self.run)]
        if again or self.resume:
            words.append("--resume")
        if self.named and (self.resume or not again):
            words.append(str(self.config))
        for one in (
            *self.overrides,
            "policy.backend=vllm",
            f"policy.vllm.addresses_folder={json.dumps(str(self.addresses))}",
            f"policy.vllm.folder={json.dumps(str(self.adapters))}",
        ):
            words += ["--set", one]
        return words


_LOOK_S = 0.5
_AGAIN_S = 10.0
"""Seconds before a server that failed to start is started again."""
_STOPPING_S = 20.0
_LOCKED_S = 60.0
"""Maximum seconds that a trainer waits for the previous one to release the run's lock."""
_TOKEN = "shared"  # noqa: S105 - the name of a file


class ServerState(NamedTuple):
    """The state of a server."""

    address: str | None
    """None until the server answers."""
    complaint: str | None
    """The last line of output if the server ended before it answered, or why it could not be started."""


class ServerHost:
    """Runs a server on a node and announces its address; this process ends when the server ends."""

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
        """Start the server.

        Args:
            name: the server's name, the same after a restart.
            words: its command line without an address.
            plan: the run; gives the folder for addresses.
            host: the address of the node.
            key: the API key that the server requires; None if only this machine reaches it.
            die: ends this process, so that Ray restarts it.
        """
        self._name, self._words, self._plan, self._host, self._die = name, words, plan, host, die
        self._key = key
        self._state = ServerState(None, None)
        self._child: Child | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def state(self) -> ServerState:
        """Return the state of the server."""
        return self._state

    def end(self) -> None:
        """End the server; this process also ends if the server has answered."""
        self._over.set()
        if self._child is not None:
            self._child.end()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                complaint = self._complaint()
            except Exception as error:  # noqa: BLE001 - else nobody would learn that the thread has ended
                complaint = f"{type(error).__name__}: {first_line(error)}"
                if self._child is not None:
                    self._child.end()
            if complaint is None:
                self._die(1)
                return
            self._state = ServerState(None, complaint)
            self._over.wait(_AGAIN_S)

    def _complaint(self) -> str | None:
        """Run the server until it ends; return why it never answered, or None if it did.

        Raises:
            OSError: no process can be started, or a file of the run cannot be written.
        """
        port = free_port(self._host)
        address = f"http://{self._host}:{port}"
        log = self._plan.folder / f"{self._name}.log"
        variables = {} if self._key is None else {VLLM_KEY: self._key}
        self._child = child = Child(
            at(self._words, self._host, port), log=log, folder=self._plan.typed_in, variables=variables
        )
        while not (running := answers(address, self._key)) and child.wait(_LOOK_S) is None:
            pass
        if not running:
            return child.last_line
        write_address(self._plan.addresses, self._name, address)
        self._state = ServerState(address, None)
        child.wait()
        with contextlib.suppress(OSError):  # this process has to end anyway
            remove_address(self._plan.addresses, self._name)
        return None


class News(NamedTuple):
    """The trainer's output since the previous request."""

    life: str
    """Identifies the trainer process; changes after a restart."""
    lines: tuple[str, ...]
    next: int
    status: int | None
    """Its exit status; None while it runs."""


class TrainerHost:
    """Runs the trainer on a node; after a restart on another node, the trainer continues the run."""

    def __init__(self, plan: Plan, begun: str, variables: Mapping[str, str]) -> None:
        """Start the trainer.

        Args:
            plan: the run.
            begun: identifies this launch; a file of that name shows that its trainer has begun.
            variables: environment variables.
        """
        self._life = secrets.token_hex(4)
        mark = plan.folder / f"begun-{begun}"
        again = mark.exists() and (plan.run / "config.toml").exists()
        _await_lock(plan.run)
        shutil.rmtree(plan.adapters, ignore_errors=True)  # left by an earlier trainer
        mark.touch()
        words = plan.training(again=again)
        self._child = Child(words, log=plan.folder / "trainer.log", folder=plan.typed_in, variables=variables)

    def news(self, life: str, after: int) -> News:
        """Return lines from number `after` on; all lines if `life` names an earlier trainer process."""
        status = self._child.status  # read first: later output is reported with the next news
        said = self._child.said(after if life == self._life else 0, wait_s=1.0)
        return News(self._life, said.lines, said.next, None if said.lines else status)

    def interrupt(self) -> None:
        """Send Ctrl-C and wait until the trainer has ended."""
        self._child.interrupt()
        if self._child.wait(_STOPPING_S) is None:
            self._child.end()


def _await_lock(run: Path) -> None:
    """Wait until no process holds the run's lock; after the loss of a node this may take a moment."""
    until = time.monotonic() + _LOCKED_S
    while run.is_dir() and time.monotonic() < until:
        try:
            with RunFolder(run).lock():
                return
        except UsageError:
            time.sleep(1.0)


def prepare(plan: Plan, settings: str | None, token: str) -> PolicyConfig | str:
    """Prepare the folder of a run on the node of its trainer.

    Args:
        plan: the run.
        settings: the content of CONFIG as TOML.
        token: text that the other nodes must find in the folder.

    Returns:
        The settings of the policy to serve, or a sentence about what is wrong.
    """
    try:
        if plan.resume:
            with RunFolder.open(plan.run).lock():
                pass
        else:
            RunFolder.vacant(plan.run)
        for left in (plan.addresses, plan.adapters):  # left by an earlier launch
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
    """Return whether a node reads what another node wrote, and may write; network disks may need a moment."""
    until = time.monotonic() + limit_s
    while True:
        try:
            if (plan.folder / _TOKEN).read_text(encoding="utf-8") == token:
                with tempfile.TemporaryFile(dir=plan.folder):
                    return True
        except OSError:
            pass
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
