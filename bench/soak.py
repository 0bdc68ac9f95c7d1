"""Does a long run with servers survive what happens to long runs? Faults it on purpose, and counts attempts.

    python bench/soak.py --rounds 200 --every 5 --timeout 60 --out runs/soak

Two servers of genenv's own engine sample a tiny model, rounds are in flight (`run.staleness = 1`), and every
few rounds one of these happens, drawn at random:

    server    one of them is killed (SIGKILL) and begins anew after two seconds, knowing nothing
    stall     one of them stops answering (SIGSTOP) for `--stall` seconds
    trainer   the run itself is killed (SIGKILL) and continued (`--resume`)
    disk      once: no file can grow, as on a full disk; the run ends with a sentence, and is continued

At the end every round must be there once, with all attempts at all of its tasks, none failed; and no time
without a new round may have been longer than `--limit` seconds. A line of JSON; exit status 1 where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from turns import resident_kib

from genenv.runs.store.store import PoolStore

CONFIG = Path(__file__).parents[1] / "configs" / "tiny.toml"
ROLLOUTS = 4
SETTINGS = (
    *("policy.backend=vllm", "policy.tuning=lora", "policy.threads=1"),
    *("run.staleness=1", "run.eval_every=0", "run.seed=3", "agent.importance_cap=2.0"),
    *("simulator.contexts=3", "simulator.variations=2", f"agent.rollouts={ROLLOUTS}"),
    *("agent.warmup.steps=40", "agent.warmup.check_tasks=8", "simulator.warmup.steps=10"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=5, help="rounds between faults")
    parser.add_argument("--stall", type=float, default=30.0, help="seconds")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds without a new round that are a hang"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        help="seconds a request may take: shorter than a stall, it is asked again of the other server and "
        "rounds go on meanwhile; longer, its round waits",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the faults, not of the run")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    soak = Soak(options)
    try:
        soak.run()
    finally:
        soak.end()
    found = soak.found()
    print(json.dumps(found))
    return 0 if found["passed"] else 1


class Soak:
    """A run, its servers, and what happens to them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rng = options, random.Random(options.seed)
        self.folder: Path = options.out / "run"
        self.ports = [_free_port() for _ in range(2)]
        self.servers = [self._serve(port) for port in self.ports]
        self.trainer: subprocess.Popen[bytes] | None = None
        self.happened: Counter[str] = Counter()
        self.longest_s, self.starts = 0.0, 0
        self.resident: list[int] = []
        self.said = ""
        """The last line of a run that ended by itself too early."""

    def run(self) -> None:
        """Play all rounds, whatever happens."""
        options = self.options
        for port in self.ports:
            _await_port(port, options.limit)
        self._train()
        due, last, since = options.every, -1, time.monotonic()
        while last < options.rounds:
            time.sleep(0.05)
            now = self._rounds()
            if now > last:
                self.longest_s = max(self.longest_s, time.monotonic() - since)
                last, since = now, time.monotonic()
            if time.monotonic() - since > options.limit:
                self.happened["hang"] += 1
                break
            assert self.trainer is not None
            if self.trainer.poll() is not None and last < options.rounds:
                self.said = self._last_line()
                self.happened["ended"] += 1
                print(f"round {last}: the run ended: {self.said}", file=sys.stderr)
                if self.happened["ended"] > self.happened["disk"]:
                    break
                self._train()
            elif last >= due:
                self._note_memory()
                self._fault()
                due += options.every  # where rounds have gone on meanwhile the next one follows at once

    def found(self) -> dict[str, object]:
        """What is in the store, and what happened."""
        lost = doubled = failed = rounds = attempts = 0
        with PoolStore.open(self.folder / "pool.db", create=False) as store:
            numbers = list(store.rounds())
            doubled = len(numbers) - len({*numbers})
            for number in (n for n in numbers if n):
                rounds += 1
                groups = store.groups(number)
                attempts += sum(len(group.traces) for group in groups)
                lost += sum(ROLLOUTS - len(group.traces) for group in groups)
                failed += sum(len(group.traces) - len(group.valid) for group in groups)
                doubled += len(groups) - len({group.task.id for group in groups})
        hangs = self.happened["hang"]
        whole = rounds == self.options.rounds and not (lost or doubled or failed or hangs)
        return {
            "rounds": rounds,
            "attempts": attempts,
            "lost": lost,
            "doubled": doubled,
            "failed": failed,
            "faults": dict(self.happened),
            "starts": self.starts,
            "longest_s_without_a_round": round(self.longest_s, 1),
            "resident_mib": [kib // 1024 for kib in self.resident],
            "last_words_on_a_full_disk": self.said,
            "passed": whole and self.happened["ended"] == self.happened["disk"],
        }

    def end(self) -> None:
        """Stop all that runs."""
        for process in (*self.servers, self.trainer):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def _fault(self) -> None:
        kinds = ["server", "stall", "trainer"] + ["disk"] * (not self.happened["disk"])
        kind = self.rng.choice(kinds)
        if not self.happened["disk"] and self._rounds() + self.options.every >= self.options.rounds:
            kind = "disk"
        self.happened[kind] += 1
        which = self.rng.randrange(len(self.servers))
        assert self.trainer is not None
        if kind == "server":
            self.servers[which].kill()
            self.servers[which].wait()
            time.sleep(2)
            self.servers[which] = self._serve(self.ports[which])
            _await_port(self.ports[which], self.options.limit)  # the other one would be missed meanwhile
        elif kind == "stall":
            self.servers[which].send_signal(signal.SIGSTOP)
            time.sleep(self.options.stall)
            self.servers[which].send_signal(signal.SIGCONT)
        elif kind == "trainer":
            self.trainer.kill()
            self.trainer.wait()
            self._train()
        else:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.prlimit(self.trainer.pid, resource.RLIMIT_FSIZE, (1024, limits[1]))

    def _train(self) -> None:
        addresses = json.dumps([f"http://127.0.0.1:{port}" for port in self.ports])
        options = self.options
        settings = [
            *SETTINGS,
            *(f"run.rounds={options.rounds}", f"policy.vllm.timeout_s={options.timeout}"),
            f"policy.vllm.addresses={addresses}",
        ]
        words = ["train", "--resume", "--out", str(self.folder)]
        if not (self.folder / "config.toml").exists():
            words = ["train", str(CONFIG), "--out", str(self.folder)]
            words += [word for one in settings for word in ("--set", one)]
        self.trainer = self._started(words, "train.log")
        self.starts += 1

    def _serve(self, port: int) -> subprocess.Popen[bytes]:
        words = ["serve", "--model", "tiny", "--port", str(port)]
        return self._started([*words, "--set", "policy.threads=1"], f"serve-{port}.log")

    def _started(self, words: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.options.out / log).open("ab") as file:
            return subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "genenv", *words], stdout=file, stderr=file
            )

    def _rounds(self) -> int:
        """The last round whose metrics are written; -1 before there is one."""
        path = self.folder / "metrics.jsonl"
        return (path.read_bytes().count(b"\n") if path.exists() else 0) - 1

    def _note_memory(self) -> None:
        assert self.trainer is not None
        try:
            self.resident.append(resident_kib(self.trainer.pid, "VmRSS"))
        except OSError:
            return

    def _last_line(self) -> str:
        lines = (self.options.out / "train.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > until:
            sys.exit(f"no server at port {port} within {limit_s:g} s; see its log")
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
