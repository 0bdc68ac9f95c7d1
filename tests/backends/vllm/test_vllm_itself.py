"""The same players on vLLM itself, where a Python has it: `GENENV_VLLM_PYTHON` names it.

Some minutes on two cores, most of them the start of two servers. vLLM's attention on a CPU knows no heads as
small as those of the tiny model, so the base is the embedded one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Role, open_backend
from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.backends.vllm.client import Refused
from genenv.backends.vllm.fleet import Fleet
from genenv.errors import UsageError
from genenv.sampling import SampleRequest
from genenv.types import Message
from lessons import imitated
from typed import succeeds

PYTHON = os.environ.get("GENENV_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="GENENV_VLLM_PYTHON names no Python that has vLLM 0.32"),
]
MODEL = "smollm2-135m"
CONTEXT = 512
STARTS_IN_S = 300.0
OPTIONS = ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"]
"""On a CPU a request with a seed whose prompt is read in parts ends the engine of 0.32.0."""
ON_A_CPU = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}


class Vllm:
    """vLLM, started by `genenv serve --vllm`."""

    def __init__(self, folder: Path) -> None:
        assert PYTHON is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self._output = f"http://127.0.0.1:{port}", folder / f"{port}.log"
        words = [sys.executable, "-m", "genenv", "serve", "--vllm", "--model", MODEL, "--port", str(port)]
        words += ["--set", "policy.dtype=float32", "--set", f"policy.context_tokens={CONTEXT}"]
        path = {"PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [*words, "--", *OPTIONS],
                stdout=file,
                stderr=file,
                env=os.environ | ON_A_CPU | path,
                start_new_session=True,
            )

    def wait(self) -> None:
        until = time.monotonic() + STARTS_IN_S
        while not answers(self.address):
            assert self.process.poll() is None, self._output.read_text()[-2000:]
            assert time.monotonic() < until, self._output.read_text()[-2000:]
            time.sleep(1)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Vllm, Vllm]]:
    """Two, as their start takes most of the time here."""
    folder = tmp_path_factory.mktemp("vllm")
    both = Vllm(folder), Vllm(folder)
    try:
        for one in both:
            one.wait()
        yield both
    finally:
        for one in both:
            one.kill()


def answers(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/v1/models", timeout=2).status_code == 200
    except httpx2.HTTPError:
        return False


def test_two_players_sample_there_and_learn_here(servers: tuple[Vllm, Vllm]) -> None:
    address = servers[0].address
    config = PolicyConfig(
        backend="vllm",
        model=MODEL,
        dtype="float32",
        device="cpu",
        context_tokens=CONTEXT,
        vllm=VllmConfig(addresses=(address,)),
    )
    roles = [Role(name=name, optimizer=OptimizerConfig(), reference=True) for name in ("agent", "simulator")]
    found = open_backend(config, roles, cast(Any, None), seed=1)
    assert cast(float, found.found["gap"]) < 1e-3
    assert found.close is not None

    async def play() -> None:
        agent, simulator = found.samplers["agent"], found.samplers["simulator"]
        prompt = agent.render([Message(role="user", content="Write a sentence about rivers.")], first=True)

        def asked(stream: int, **more: Any) -> SampleRequest:
            return SampleRequest(
                prompt_ids=prompt, max_tokens=more.pop("max_tokens", 8), stream=stream, **more
            )

        for version in (1, 2):
            trainer = found.trainers["agent"]
            data = [imitated(prompt, agent.encode_reply("The river sings."), temperature=0.7)]
            await trainer.forward_backward(data, Objective())
            await trainer.step(1e-2)
            assert await trainer.publish() == version
            done = await asyncio.gather(*(agent.sample(asked(n, temperature=0.7)) for n in range(4)))
            assert {one.version for one in done} == {version}
            again = await agent.sample(asked(2, temperature=0.7))
            assert again.token_ids == done[2].token_ids
            own = await trainer.logprobs([imitated(prompt, one.token_ids, temperature=0.7) for one in done])
            for one, here in zip(done, own, strict=True):
                assert one.logprobs == pytest.approx(here, abs=1e-3)

        schema = {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y z"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        for stream in range(3):
            spec = await simulator.sample(asked(stream, schema=schema, max_tokens=24))
            assert spec.finished
            assert json.dumps(json.loads(spec.text), separators=(",", ":")) == spec.text
        choices = tuple(agent.encode_reply(text) for text in ("go north", "go south", "go northwest"))
        if found.found["chooses"]:  # not with xgrammar 0.2.8, which takes one list's tokens for another's
            for stream in range(3):
                reply = await agent.sample(asked(stream, choices=choices))
                assert reply.token_ids in choices
        else:
            with pytest.raises(UsageError, match="one list of replies for another"):
                await agent.sample(asked(0, choices=choices))
        fleet = cast(Any, agent).fleet
        with pytest.raises(Refused, match="max_tokens"):
            await fleet.generate(cast(Any, agent).adapter, [1, 2], {"max_tokens": 0})
        await gone(address)

    async def closing() -> None:
        try:
            await play()
        finally:
            assert found.close is not None
            await found.close()

    asyncio.run(closing())


async def gone(address: str) -> None:
    """An adapter whose folder is not there is named."""
    fleet = Fleet(VllmConfig(addresses=(address,)))
    try:
        with pytest.raises(UsageError, match=r"cannot load /nowhere: .*No adapter found"):
            await fleet.load_adapter("gone", Path("/nowhere"), instead_of=None)
    finally:
        await fleet.close()


def test_a_whole_run_ahead_of_itself_outlives_one_of_two_servers(
    servers: tuple[Vllm, Vllm], tmp_path: Path
) -> None:
    """Household steps, rounds in flight, weighed by importance; a server is killed in the second round."""
    run, ended = tmp_path / "run", threading.Event()

    def watch() -> None:
        while not (run / "checkpoints" / "round-0001").is_dir():
            if ended.wait(0.1):
                return
        servers[1].kill()

    watcher = threading.Thread(target=watch)
    watcher.start()
    settings = {
        "policy.backend": "vllm",
        "policy.vllm.addresses": json.dumps([one.address for one in servers]),
        "policy.dtype": "float32",
        "policy.context_tokens": CONTEXT,
        "run.staleness": 1,
        "agent.importance_cap": 2,
        "environment.held_to_commands": "false",
        "run.rounds": 3,
        "run.eval_every": 3,
        "run.eval_tasks": 8,
        "simulator.contexts": 2,
        "simulator.variations": 2,
        "simulator.warmup.steps": 1,
        "agent.rollouts": 4,
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    try:
        succeeds("train", "demo", *overrides, "--out", run)
    finally:
        ended.set()
        watcher.join()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("agent/staleness") for row in rows] == [None, 0, 1, 1]
    assert all(row["agent/failed_traces"] == 0 for row in rows[1:])
    assert servers[1].process.poll() is not None
    assert json.loads((run / "starts.jsonl").read_text().splitlines()[0])["server"]["gap"] < 1e-3


def test_a_run_starts_it_and_ends_it(tmp_path: Path) -> None:
    """Nothing but the backend and the program is named; on a CPU it does not sleep."""
    assert PYTHON is not None
    settings = {
        "policy.backend": "vllm",
        "policy.vllm.command": str(Path(PYTHON).with_name("vllm")),
        "policy.model": MODEL,
        "policy.tuning": "lora",
        "policy.dtype": "float32",
        "policy.context_tokens": CONTEXT,
        "run.rounds": 1,
        "run.eval_every": 0,
        "simulator.contexts": 1,
        "simulator.variations": 2,
        "simulator.warmup.steps": 1,
        "simulator.warmup.batch": 4,
        "agent.warmup.steps": 0,
        "agent.rollouts": 2,
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        succeeds("train", "tiny", *overrides, "--out", tmp_path / "run")
    found = json.loads((tmp_path / "run" / "starts.jsonl").read_text())["server"]
    assert found["gap"] < 1e-3
    assert found["vllm"].startswith("0.")
    (address,) = found["servers"]
    assert not answers(address)
    assert "sleep" not in (tmp_path / "run" / "vllm.log").read_text().partition("non-default args")[2]
