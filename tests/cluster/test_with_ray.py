"""`genenv launch` on real nodes of Ray, all on this machine, some of which are lost in the middle."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.runs.store.store import PoolStore

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("GENENV_RAY_PYTHON") or sys.executable
_HERE = "GENENV_RAY_PYTHON" in os.environ or importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _HERE, reason="no Python with ray: install ray 2.50 there, and name it by GENENV_RAY_PYTHON"
    ),
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc"),
]
ROLLOUTS = 4
RUN = (
    *("policy.tuning=lora", "policy.threads=1", "policy.vllm.timeout_s=60", "run.eval_every=0"),
    *("simulator.contexts=3", "simulator.variations=2", f"agent.rollouts={ROLLOUTS}"),
    *("agent.warmup.steps=40", "agent.warmup.check_tasks=8", "simulator.warmup.steps=10"),
)
LIMIT_S = 400.0


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


class Nodes:
    """A cluster; its nodes may be killed."""

    def __init__(self, *has: int | str) -> None:
        """Nodes of so many CPUs, or of "CPUS:GPUS"."""
        words = [PYTHON, str(Path(__file__).parent / "ray_nodes.py"), *map(str, has)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.address = self.heard()["address"]

    def heard(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise AssertionError("the nodes have ended")

    def kill_that_of(self, process: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"kill {process}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        try:
            self.process.communicate(timeout=60)
        finally:
            self.process.kill()


class Launched:
    """A `genenv launch` that runs, and what it says when."""

    def __init__(
        self, nodes: Nodes, *words: object, rounds: int = 2, settings: tuple[str, ...] = RUN
    ) -> None:
        said = [word for one in (*settings, f"run.rounds={rounds}") for word in ("--set", one)]
        self.process = subprocess.Popen(
            [PYTHON, "-m", "genenv", "launch", "--ray", nodes.address, *map(str, words), *said],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: list[tuple[float, str]] = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def awaits(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not what():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until, self.text
            time.sleep(0.1)

    def ends(self) -> int:
        status = self.process.wait(LIMIT_S)
        self.reader.join()
        return status

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def nodes() -> Iterator[Callable[..., Nodes]]:
    with contextlib.ExitStack() as stack:

        def begin(*has: int | str) -> Nodes:
            found = Nodes(*has)
            stack.callback(found.end)
            return found

        yield begin


def processes(run: Path, command: str) -> list[int]:
    """Those of a run: `train`, or `serve`."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text().split("\0")
            mine = str(run) in " ".join(words) or command == "serve"
            own = [word for word in words[:5] if word != "-u"]  # of several processes each has that
            if own[1:4] == ["-m", "genenv", command] and mine and own[0] == PYTHON:
                found.append(int(folder.name))
    return found


def raylet(process: int) -> bytes:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next(one for one in variables if one.startswith(b"RAY_RAYLET_PID="))


def committed(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else -1


def whole(run: Path, rounds: int) -> None:
    """All rounds are there once, with all attempts, none of which has failed."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(rounds + 1))
    assert all(row["agent/failed_traces"] == 0 for row in rows[1:])
    with PoolStore.open(run / "pool.db", create=False) as store:
        assert list(store.rounds()) == list(range(rounds + 1))
        for number in range(1, rounds + 1):
            groups = store.groups(number)
            assert len(groups) == len({group.task.id for group in groups})
            assert all(len(group.traces) == len(group.valid) == ROLLOUTS for group in groups)


@pytest.mark.parametrize(("lost", "rounds"), [("server", 40), ("trainer", 10)])
def test_a_node_is_lost_and_the_run_is_played_to_its_end_with_all_attempts(
    nodes: Callable[..., Nodes], tmp_path: Path, lost: str, rounds: int
) -> None:
    there, run = nodes(0, 3, 3), tmp_path / "run"
    with Launched(there, "tiny", "--out", run, "--servers", "2", rounds=rounds) as launched:
        launched.awaits(lambda: committed(run) >= 2)
        (trainer,) = processes(run, "train")
        servers = processes(run, "serve")
        assert len(servers) == 2
        assert len({raylet(one) for one in servers} | {raylet(trainer)}) == 2
        elsewhere = [one for one in servers if raylet(one) != raylet(trainer)]
        there.kill_that_of(trainer if lost == "trainer" else elsewhere[0])
        killed, before = time.monotonic(), committed(run)
        assert launched.ends() == 0, launched.text
    anew = [(when - killed, line) for when, line in launched.lines if when > killed]
    found = [f"{s:.1f} s: {line}" for s, line in anew if " answers at " in line or "anew" in line]
    assert any(" answers at " in line for line in found), launched.text
    assert ("the trainer was started anew" in launched.text) == (lost == "trainer")
    whole(run, rounds)
    assert processes(run, "serve") == processes(run, "train") == []
    sys.stdout.write(f"{lost}: killed after round {before}; {'; '.join(found)}\n")


def test_an_interrupt_stops_all_and_the_run_goes_on_when_it_is_typed_again(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    there, run = nodes(3), tmp_path / "run"
    with Launched(there, "tiny", "--out", run, "--servers", "2", rounds=20) as launched:
        launched.awaits(lambda: committed(run) >= 1)
        launched.process.send_signal(signal.SIGINT)
        assert launched.ends() == 130, launched.text
    last = launched.text.splitlines()[-1]
    assert last.startswith(
        "genenv: stopped, servers and trainer have ended; committed rounds are kept, `genenv"
    )
    assert "Traceback" not in launched.text
    until = time.monotonic() + 20
    while (left := processes(run, "serve") + processes(run, "train")) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []
    with Launched(there, "tiny", "--out", run, settings=RUN) as again:
        assert again.ends() == 2
        assert "already holds a run of" in again.text.splitlines()[-1]
    with Launched(there, "--out", run, "--resume", rounds=20, settings=()) as again:
        assert again.ends() == 0, again.text
    whole(run, 20)


def test_a_trainer_of_two_gpus_is_two_processes_and_goes_on_on_another_node(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    """Ray is told of GPUs that are not there, so the processes train on the CPU."""
    there, run = nodes(0, "3:2", "3:2"), tmp_path / "run"
    words = ("--servers", "1", "--trainer-gpus", "2", "--trainer-cpus", "2")
    with Launched(there, "tiny", "--out", run, *words, rounds=8) as launched:
        launched.awaits(lambda: committed(run) >= 2)
        both = processes(run, "train")
        assert len(both) == 2
        there.kill_that_of(both[0])
        assert launched.ends() == 0, launched.text
    assert "the trainer was started anew" in launched.text
    whole(run, 8)
    assert processes(run, "train") == []


def test_what_a_cluster_cannot_give_is_told_in_a_sentence(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    there = nodes(2)
    words = ("--out", tmp_path / "run", "--servers", "3", "--gpus-per-server", "1", "--wait", "3")
    with Launched(there, "tiny", *words) as launched:
        assert launched.ends() == 2
        assert (
            "the cluster has no room for the run within 3 s (--wait): it asks for 3 servers, each of 1 CPU "
            "and 1 GPU, and a trainer of 1 CPU and 0 GPUs; its node has 2 CPUs and 0 GPUs in all"
        ) in launched.text.splitlines()[-1]
    nowhere = ("policy.model=/nowhere",)
    with Launched(
        there, "tiny", "--out", tmp_path / "other", settings=("policy.tuning=lora", *nowhere)
    ) as launched:
        assert launched.ends() == 2
        assert "server-0 does not start: " in launched.text.splitlines()[-1]
        assert not (tmp_path / "other" / "config.toml").exists()


def test_an_address_that_takes_calls_and_answers_none_is_given_up_within_a_minute(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = [PYTHON, "-m", "genenv", "launch", "tiny", "--ray", address, "--out", str(tmp_path / "run")]
        words += ["--set", "policy.tuning=lora"]
        since = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert time.monotonic() - since < 60
    assert done.returncode == 2
    assert f"genenv: no Ray cluster answers at {address}: " in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()
