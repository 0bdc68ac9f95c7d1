"""A trainer of several processes on one node: what it says is genenv's, and nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genenv.backends.local.served.loaded import LoadedBase
from genenv.backends.settings import PolicyConfig
from genenv.servers.vllm import SamplingServer

HERE = PolicyConfig(model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc"),
]


def begun(address: str, run: Path, *said: str) -> subprocess.Popen[str]:
    wanted = (
        *("policy.tuning=lora", "policy.backend=vllm", "policy.threads=1", "policy.compiled=false"),
        *("agent.warmup.steps=0", "simulator.warmup.steps=0", "run.eval_every=0", "run.rounds=500"),
        *("simulator.contexts=2", "simulator.variations=2", "agent.rollouts=2"),
        f"policy.vllm.addresses={json.dumps([address])}",
        *said,
    )
    settings = [word for one in wanted for word in ("--set", one)]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "genenv.backends.local.several",
            "2",
            "train",
            "tiny",
            "--out",
            str(run),
            *settings,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def trainers(run: Path) -> list[str]:
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_text().replace("\0", " "))
    return [line for line in found if f"train tiny --out {run}" in line]


def test_a_setting_that_several_cannot_follow_is_one_sentence_and_its_status(tmp_path: Path) -> None:
    with SamplingServer(LoadedBase("tiny", HERE), "tiny") as server:
        refused = begun(server.url, tmp_path / "run", "policy.decoder=fused")
        said, _ = refused.communicate(timeout=120)
    assert refused.returncode == 2, said
    (sentence,) = [line for line in said.splitlines() if line.startswith("genenv: ")]
    assert "policy.decoder needs the whole base in one process" in sentence
    assert "Traceback" not in said
    assert "FAILED" not in said


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_and_a_kill_end_all_of_them(tmp_path: Path, how: signal.Signals) -> None:
    run = tmp_path / "run"
    with SamplingServer(LoadedBase("tiny", HERE), "tiny") as server:
        running = begun(server.url, run)
        try:
            assert running.stdout is not None
            while not (said := running.stdout.readline()).lstrip().startswith("2/500"):
                assert said, "it has ended"
            assert len(trainers(run)) == 3  # with what has started them
            running.send_signal(how)
            rest = running.stdout.read()
            running.wait(60)
        finally:
            running.kill()
            running.communicate()
    assert "Traceback" not in rest
    assert trainers(run) == []
    if how is signal.SIGINT:
        assert running.returncode == 130, rest
        assert "--resume" in rest
