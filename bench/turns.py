"""Contenders that take turns, each in a process of its own: what the scripts for speed share.

A contender sets itself up, says so, and then does its work once for every line it is sent. The others wait
meanwhile, without using a core, so all of them see the machine in the same state, and each has a peak memory
of its own. The interpreter may differ: vLLM needs an environment to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genenv.agent.policy import AgentConfig
    from genenv.backends.local.sampler import LocalSampler
    from genenv.types import Group

READY = "ready"


def serve(
    work: Callable[[], Mapping[str, Any] | None],
    about: Mapping[str, Any] | None = None,
    beside: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """The contender's side: does the work once per line of the standard input, and tells how long it took.

    Args:
        work: what is timed; may tell more.
        about: told once, before the first turn.
        beside: run after each turn, outside its time; may tell more.
    """
    import torch

    on_gpu = torch.cuda.is_available()
    gpu = {"gpu": torch.cuda.get_device_name()} if on_gpu else {}
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not stand between the answers
    print(json.dumps({READY: True, **gpu, **(about or {})}), file=channel, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        found = dict(work() or {})
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if on_gpu:
            found["gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
        print(json.dumps({"seconds": seconds, **found, **beside()}), file=channel, flush=True)


def our_sampler(model: str, *, dtype: str, **settings: int) -> LocalSampler:
    """Our sampler with a fresh adapter, on as many threads as are fastest; settings are those of a run."""
    from genenv.backends.local.hardware import choose_threads
    from genenv.backends.local.model import LocalModel
    from genenv.backends.local.policy_weights import PolicyWeights
    from genenv.backends.local.sampler import LocalSampler
    from genenv.backends.settings import PolicyConfig

    config: Any = {"dtype": dtype, "threads": choose_threads(), **settings}
    loaded = LocalModel(model, PolicyConfig(**config))
    loaded.add_adapter("agent", seed=0)
    return LocalSampler(PolicyWeights(loaded, "agent"))


def our_update(
    sampler: LocalSampler, config: AgentConfig, *, rate: float
) -> Callable[[Sequence[Group]], Mapping[str, float]]:
    """Our GRPO update of a sampler's weights, at a learning rate: groups in, metrics out."""
    from genenv.algorithms.advantages import grpo_credit
    from genenv.algorithms.update import learn
    from genenv.backends.local.trainer import LocalTrainer

    trainer = LocalTrainer(sampler.weights, config)

    def update(groups: Sequence[Group]) -> Mapping[str, float]:
        lesson = grpo_credit(groups, {}, config, temperature=config.temperature)
        done = learn(trainer, lesson, player="agent", learning_rate=rate, seed=0)
        metrics = asyncio.run(done).metrics()
        if metrics["agent/skipped_updates"]:
            sys.exit(
                "the update was skipped: there is no time to tell (a group of one has nothing to compare)"
            )
        return metrics

    return update


def matrix_work(work: Callable[[], object]) -> float:
    """TFLOP of matrix products that one turn takes, padding and all; without those in compiled code."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def packed(x: Sequence[int], *_: object, out_shape: Sequence[int], **__: object) -> int:
        return 2 * x[0] * x[1] * out_shape[1]

    known = {torch.ops.mkldnn._linear_pointwise: packed}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        work()
    return counter.get_total_flops() / 1e12


def share_of(
    work: Callable[[], object], dtype: str
) -> tuple[dict[str, float], Callable[[], Mapping[str, float]]]:
    """What `Contender.share_of_peak` needs to be told once, and after each turn.

    Nothing on a GPU: graphs that were captured hide their products from whatever counts.
    """
    import torch

    if torch.cuda.is_available():
        return {}, dict
    return {"tflop": matrix_work(work)}, lambda: matrix_peak(dtype)


def matrix_peak(dtype: str) -> Mapping[str, float]:
    """The machine's best speed now: products of two square matrices of 2,048. TFLOP/s."""
    import torch

    size, best = 2048, float("inf")
    a = torch.randn(size, size).to(getattr(torch, dtype))
    for _ in range(6):
        begin = time.perf_counter()
        torch.matmul(a, a)
        best = min(best, time.perf_counter() - begin)
    return {"peak_tflops": 2 * size**3 / best / 1e12}


def resident_kib(pid: int, which: str) -> int:
    """Resident memory of a process: `VmRSS` is that of now, `VmHWM` the largest so far.

    Raises:
        OSError: the process is gone, or the system does not tell.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = next((line.split()[1] for line in status.splitlines() if line.startswith(which)), None)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found)


class Contender:
    """One process, and what it has answered."""

    def __init__(
        self, name: str, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        self.answers: list[dict[str, Any]] = []
        with log.open("wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own programs
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.about = {key: value for key, value in self._hear().items() if key != READY}

    def turn(self, *, counts: bool = True) -> dict[str, Any]:
        """Let it do its work once."""
        print(file=self.process.stdin, flush=True)
        answer = self._hear()
        if counts:
            self.answers.append(answer)
        return answer

    def _hear(self) -> dict[str, Any]:
        for line in self.process.stdout or ():
            if line.startswith("{"):
                return json.loads(line)
            with self.log.open("a", encoding="utf-8") as log:  # libraries print while they load, too
                log.write(line)
        tail = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        sys.exit(f"{self.name} ended early: {' '.join(tail)} (all of it in {self.log})")

    @property
    def seconds(self) -> float:
        """Median."""
        return statistics.median(answer["seconds"] for answer in self.answers)

    @property
    def share_of_peak(self) -> float | None:
        """What the matrix work of a turn makes of the speed that its process measured after each turn.

        None where that was not measured.
        """
        if "tflop" not in self.about:
            return None
        shares = [self.about["tflop"] / answer["seconds"] / answer["peak_tflops"] for answer in self.answers]
        return statistics.median(shares)

    @property
    def peak_gib(self) -> float | None:
        """Largest resident memory so far; None where the system does not tell."""
        try:
            return resident_kib(self.process.pid, "VmHWM") / 2**20
        except OSError:
            return None

    @property
    def gpu_gib(self) -> float | None:
        """Largest memory of tensors on the GPU so far; None without one."""
        return self.answers[-1].get("gpu_gib")

    def end(self) -> None:
        """Let it go."""
        self.process.communicate()


def parser_of(about: str | None, sides: Sequence[str]) -> argparse.ArgumentParser:
    """The options that every script with sides has."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    peers = [side for side in sides if side != "ours"]
    parser.add_argument("--without", nargs="+", choices=peers, default=[], help="peers that are left out")
    parser.add_argument("--side", choices=list(sides), help=argparse.SUPPRESS)
    return parser


def learning_parser_of(about: str | None, sides: Sequence[str]) -> argparse.ArgumentParser:
    """And those of every script in which genenv and TRL learn."""
    parser = parser_of(about, sides)
    parser.add_argument("--microbatch", type=int, default=1024, help="tokens at a time, genenv")
    parser.add_argument("--peer-batch", type=int, default=8, help="sequences at a time, TRL")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def settle(options: argparse.Namespace) -> None:
    """Put a model's folder or hub name in place of its short name, and a number format in place of `auto`."""
    from genenv.backends.local import hardware, loading

    options.model = loading.resolve(options.model)
    if options.dtype == "auto":
        dtype = hardware.choose_dtype("auto", hardware.choose_device("auto"))
        options.dtype = str(dtype).removeprefix("torch.")


def sides_of(
    script: str, options: argparse.Namespace, keys: Sequence[str], programs: Mapping[str, str], folder: Path
) -> list[Contender]:
    """A contender for each side of a script.

    Args:
        script: takes `--side NAME`, and the options.
        options: of the whole comparison, settled.
        keys: those that the sides must know.
        programs: side -> interpreter.
        folder: for their logs.
    """
    left_out = getattr(options, "without", ())
    words = [script]
    for key in keys:
        words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    return [
        Contender(name, [program, *words, "--side", name], folder / f"{name}.log")
        for name, program in programs.items()
        if name not in left_out
    ]


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """So many other processes that have work all the time, until this one ends."""
    work = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    others = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(count)]  # noqa: S603 - our own text
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def alternate(contenders: Sequence[Contender], repeats: int, seed: int = 0) -> None:
    """One turn each to warm up, then `repeats` rounds of one turn each, in an order drawn for every round."""
    rng = random.Random(seed)
    for contender in contenders:
        contender.turn(counts=False)
    for _ in range(repeats):
        for contender in rng.sample(list(contenders), len(contenders)):
            answer = contender.turn()
            print(f"{contender.name}: {answer['seconds']:.2f} s", file=sys.stderr, flush=True)


def say(**facts: Any) -> None:  # noqa: ANN401
    """One JSON line."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items() if v is not None}
    print(json.dumps(rounded), flush=True)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        )
        if Path("/proc/cpuinfo").exists()
        else iter(()),
        "unknown",
    )
    return {"cpu": model, "cores": os.cpu_count()}
