"""Both players on the server of others that is SkyRL, on its JAX backend on a CPU: see `.ci/skyrl`.

It runs where GENENV_SKYRL_PYTHON names a Python that has SkyRL. What JAX compiles is kept beside that Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from genenv.backends.local.loading import tiny_model
from tinker_sdk import PYTHON, Client, needs_tinker

SKYRL = os.environ.get("GENENV_SKYRL_PYTHON", "")
HERE = Path(__file__).parent
CONFIG = HERE.parents[2] / "configs" / "tiny.toml"
READY_S = 180
pytestmark = [
    pytest.mark.slow,
    needs_tinker,
    pytest.mark.skipif(
        not SKYRL, reason="no Python with SkyRL: .ci/skyrl makes one, and names it by GENENV_SKYRL_PYTHON"
    ),
]
RUN = [
    *("--set", "policy.backend=tinker", "--set", "policy.tuning=lora", "--set", "policy.lora_rank=8"),
    *("--set", "policy.tinker.timeout_s=240", "--set", "run.eval_tasks=8", "--set", "run.eval_every=1"),
    *("--set", "simulator.contexts=2", "--set", "simulator.variations=2", "--set", "agent.rollouts=2"),
    *("--set", "agent.warmup.steps=2", "--set", "simulator.warmup.steps=2"),
    *("--set", "agent.warmup.batch=8", "--set", "simulator.warmup.batch=8"),
    *("--set", "agent.warmup.check_tasks=8"),
]


class Server:
    """SkyRL on a folder, which outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        jax = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(Path(SKYRL).parents[1] / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SKYRL, HERE / "serve_skyrl.py", tiny_model(), self.folder, str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, **offline, **jax},
                start_new_session=True,
            )
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            assert self._process.poll() is None, self.said()
            try:
                if httpx2.get(f"{self.url}/api/v1/healthz", timeout=5).status_code == 200:
                    return
            except httpx2.HTTPError:
                time.sleep(0.5)
        raise AssertionError(f"it does not answer: {self.said()}")

    def kill(self) -> None:
        """`kill -9` of the server and of its engine."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def said(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-3000:]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    server = Server(tmp_path / "served")
    server.start()
    yield server
    server.kill()


def genenv(*words: object) -> None:
    command = [PYTHON, "-m", "genenv", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_two_players_learn_on_skyrl_and_are_restored_after_a_kill(server: Server, tmp_path: Path) -> None:
    play = Client(HERE / "skyrl_cases.py")
    try:
        facts = play("found", url=server.url)
        assert (facts["scored"], facts["live_load"], facts["seeds"]) == (-1, False, True)
        assert facts["gap"] < 1e-4
        assert facts["scales"]["cross_entropy"] == pytest.approx(1.0, abs=0.1)  # weights cancel
        for loss in ("ppo", "importance_sampling"):
            assert facts["scales"][loss] == pytest.approx(0.5, abs=0.1)
            assert facts["tails"][loss] == pytest.approx(0.5, abs=0.1)  # a sequence is divided by its length
            assert facts["copies"][loss] == pytest.approx(0.5, abs=0.1)  # and a step by its sequences

        done = play("rounds", url=server.url)
        good, bad, _, *_ = done["agent"]
        *_, heavy, light = done["simulator"]
        assert done["steps"] == [1, 1]
        assert good > 0 > bad
        assert heavy > 1.5 * light > 0
        assert done["others_equal"] == [True, True]

        whole, halves, idle = play("summed", url=server.url)
        assert halves == pytest.approx(whole, rel=1e-3)
        assert idle == pytest.approx(whole, rel=1e-3)

        back = play("taken_back", url=server.url)
        assert 0 < back["capped"]["player/kl_step"] <= back["far"] / 20
        assert back["capped"]["player/kl_retries"] >= 1
        assert (back["spoilt"], back["same"], back["next"], back["finite"]) == (1, True, 1, True)
        assert back["others_equal"]

        folder = str(tmp_path / "checkpoint")
        wanted = play("saved", url=server.url, folder=folder)
        server.kill()
        server.start()
        assert play("restored", url=server.url, folder=folder) == wanted
    finally:
        play.end()


def test_a_run_of_two_rounds_on_skyrl_goes_on_after_a_kill(server: Server, tmp_path: Path) -> None:
    start = [*RUN, "--set", f"policy.tinker.address={server.url}", "--out", tmp_path / "run"]
    genenv("train", CONFIG, *start, "--set", "run.rounds=1")
    server.kill()
    server.start()
    genenv("train", CONFIG, "--resume", *start, "--set", "run.rounds=2")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    facts: list[Any] = [
        json.loads(line)["server"]["models"]["tiny"]
        for line in (tmp_path / "run" / "starts.jsonl").read_text().splitlines()
    ]
    assert facts[0]["losses"] == facts[1]["losses"]
