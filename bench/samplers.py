"""How sampling multiplies with servers, and what rounds in flight gain, where all of it takes a known time.

    python bench/samplers.py throughput    # 1, 2, 4 servers: attempts a second; is that linear?
    python bench/samplers.py ahead         # staleness 0, 1, 2, where learning takes as long as sampling
    python bench/samplers.py many          # 64 servers of 10,000 attempts an hour: what the loop itself needs

Servers with the routes of vLLM stand in a process of their own. Each answers `--slots` requests at a time,
with made-up tokens after `--latency` seconds, give or take half. What learns is made up as well: it blocks
its thread for `--learning` seconds a round. All else is a run's own: tasks, episodes, requests, rewards, the
loop, the store. A JSON line for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turns import machine, resident_kib, say

from genenv.agent.policy import Agent
from genenv.algorithms.datum import Datum, Objective
from genenv.backends.base import Backend
from genenv.backends.local.model import LocalModel
from genenv.backends.scripted import ScriptedTrainer
from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.backends.vllm.fleet import Fleet
from genenv.backends.vllm.policy import VllmSampler
from genenv.config.run import RunConfig, dump_toml, parse_config
from genenv.environments import load_environment
from genenv.errors import GenenvError
from genenv.runs.folder import RunFolder
from genenv.simulator.settings import SimulatorConfig
from genenv.simulator.source import VariationSource
from genenv.threads import WorkerThread
from genenv.training.loop import CoEvolution
from genenv.training.rounds import Policies

QUESTIONS = {
    "throughput": {"servers": [1, 2, 4], "staleness": [0], "learning": 0.0},
    "ahead": {"servers": [4], "staleness": [0, 1, 2], "learning": None},
    "many": {"servers": [64], "staleness": [1], "learning": 0.0},
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question", choices=sorted(QUESTIONS))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=64, help="a round; eight attempts at each")
    parser.add_argument("--servers", type=int, nargs="+", help="how many; left out: as the question has it")
    parser.add_argument("--slots", type=int, default=16, help="requests that a server answers at a time")
    parser.add_argument("--latency", type=float, default=0.5, help="seconds an answer takes, on average")
    parser.add_argument("--learning", type=float, help="seconds a round; left out with `ahead`: as sampling")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--stand-in", type=float, nargs=2, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.stand_in:
        stand_in(slots=int(options.stand_in[0]), latency=options.stand_in[1], tokens=options.tokens)
        return
    question: dict[str, Any] = QUESTIONS[options.question]
    if options.rounds <= max(question["staleness"]):
        parser().error(f"--rounds must be above {max(question['staleness'])}, the most rounds sampled ahead")
    if options.question == "many":  # 10,000 an hour: 2.78 a second
        options.latency = options.slots * 3600 / 10_000
    say(**machine())
    with servers(options) as base:
        for count in options.servers or question["servers"]:
            for staleness in question["staleness"]:
                learning = options.learning if options.learning is not None else question["learning"]
                if learning is None:
                    learning = options.tasks * 8 * options.latency / options.slots / count
                found = measured(options, base, count, staleness, learning)
                say(servers=count, staleness=staleness, learning_s=learning, **found)


def measured(
    options: argparse.Namespace, base: str, count: int, staleness: int, learning: float
) -> Mapping[str, Any]:
    """A run with so many servers: its seconds, and what this process has needed for it."""
    config = parse_config(
        {
            "run": {"rounds": options.rounds, "eval_every": 0, "staleness": staleness},
            "environment": {"name": "programs"},
            "simulator": {"source": "variation", "contexts": options.tasks, "variations": 1},
            "curriculum": {"base_share": 0.0, "review_share": 0.0},
            "agent": {"rollouts": 8, "max_new_tokens": options.tokens, "skip_zero_advantage": False},
        }
    )
    with tempfile.TemporaryDirectory(prefix="genenv-bench-") as folder, contextlib.ExitStack() as closing:
        loop = made_up(config, [f"{base}/{i}" for i in range(count)], Path(folder) / "run", learning, closing)
        before, start = cpu_s(), time.perf_counter()
        source = loop.policies.simulator
        assert isinstance(source, Source)
        loop.run()
        seconds, spent = time.perf_counter() - start, cpu_s() - before
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines][1:]
    attempts = sum(row["agent/attempts"] for row in rounds)
    failed = sum(row["agent/failed_traces"] for row in rounds)
    if failed:
        raise GenenvError(f"{failed:g} attempts failed")
    sampled = statistics.median(row["agent/attempts"] / row["time/rollout_s"] for row in rounds)
    grown = source.resident[-1] - source.resident[options.rounds // 2]
    return {
        "attempts": attempts,
        "seconds": round(seconds, 2),
        "round_s": round(statistics.median(row["time/round_s"] for row in rounds[: -staleness or None]), 3),
        "attempts_per_s": round(sampled, 1),
        "of_what_servers_give": round(sampled / (count * options.slots / options.latency), 3),
        "cpu_share": round(spent / seconds, 3),
        "cpu_ms_per_attempt": round(1e3 * spent / attempts, 3),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
        "grown_mib_second_half": round(grown / 1024, 1),
    }


def made_up(
    config: RunConfig, addresses: Sequence[str], path: Path, learning: float, closing: contextlib.ExitStack
) -> CoEvolution:
    """A run whose agent is asked of servers, and learns nothing in so many seconds."""
    model = LocalModel("tiny", PolicyConfig(model="tiny", device="cpu", threads=1, compiled=False))
    fleet = Fleet(VllmConfig(addresses=tuple(addresses)))
    sampler = VllmSampler(fleet, model.chat, context_tokens=model.context_tokens, max_thinking_tokens=None)
    beside = WorkerThread("genenv-trainer")
    closing.callback(beside.close)
    players = Policies(
        agent=Agent(sampler, Idle(beside, learning), config.agent, seed=0),
        simulator=Source(config.simulator, seed=0),
        backend=Backend(async_rollouts=True, close=fleet.close),
    )
    env = load_environment(config.environment.name, config.environment.settings)
    return CoEvolution(config, env, players, RunFolder.create(path, dump_toml(config)))


class Source(VariationSource):
    """Notes what this process holds at the end of each round, KiB."""

    def __init__(self, config: SimulatorConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.resident: list[int] = []

    def end_round(self) -> None:
        """As any; and note it."""
        super().end_round()
        self.resident.append(resident_kib(os.getpid(), "VmRSS"))


class Idle(ScriptedTrainer):
    """Blocks its thread as long as an update would."""

    def __init__(self, beside: WorkerThread, seconds: float) -> None:
        super().__init__()
        self._beside, self._seconds = beside, seconds

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """So many seconds. See `Trainer`."""

        async def block() -> None:
            time.sleep(self._seconds)

        await self._beside.run(block)
        return await super().forward_backward(data, objective)


def cpu_s() -> float:
    """Seconds that this process has had a core for."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def servers(options: argparse.Namespace) -> Iterator[str]:
    """Where they stand: a number behind the address names one of them."""
    words = [sys.executable, __file__, options.question, "--tokens", str(options.tokens)]
    words += ["--stand-in", str(options.slots), str(options.latency)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this program
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.wait()


def stand_in(*, slots: int, latency: float, tokens: int) -> None:
    """Be all servers, until somebody ends this process."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from genenv.http.server import HttpServer, Service

    gates: dict[str, asyncio.Semaphore] = {}
    rng = random.Random(0)
    ids = [40] * tokens
    choice = {"token_ids": ids, "logprobs": {"content": [{"logprob": -1.0}] * tokens}}

    async def generate(request: Request) -> Response:
        await request.body()
        async with gates.setdefault(request.path_params["server"], asyncio.Semaphore(slots)):
            await asyncio.sleep(latency * rng.uniform(0.5, 1.5))
        return JSONResponse({"choices": [choice]})

    class Stub(HttpServer):
        @contextlib.asynccontextmanager
        async def _service(self):  # noqa: ANN202
            routes = [Route("/{server}/inference/v1/generate", generate, methods=["POST"])]
            yield Service(Starlette(routes=routes))

    server = Stub("127.0.0.1", 0)
    server.run(lambda: print(server.url, flush=True))


if __name__ == "__main__":
    main()
