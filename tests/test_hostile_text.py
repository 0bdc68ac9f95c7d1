"""Whatever an environment says, a run goes through, stores it and shows it harmlessly."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genenv.agent.policy import Agent
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.config.run import dump_toml, parse_config
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.simulator.policy import Simulator
from genenv.training.loop import CoEvolution
from genenv.training.rounds import Policies
from genenv.types import Message, Seed, Verdict
from genenv.viewer.frozen import write_report

BAD = "half \ud800 of a pair, \u202eturned around, \x1b[2J\x07\x00 and <script>alert(1)</script>"
HUGE = "word " * 1_000_000


def hostile(toy: Any, filler: str) -> Any:
    """The toy environment, which says `filler` wherever it can."""

    class Hostile(toy.Environment):
        def seeds(self) -> list[Seed]:
            spec = {"turns": 1, "left": 1, "right": 2}
            return [
                Seed(id=f"seed-{i}", environment="sums", spec={**spec, "left": 20 + i}, skills=("sums",))
                for i in range(4)
            ]

        def held_out(self) -> list[Any]:
            return []

        def simulator_messages(self, seed: Any, profile: Any, target: float) -> tuple[Message, ...]:
            return (Message(role="user", content=f"write {seed.id} {filler[:1000]}"),)

        def variation(self, seed: Any, rng: random.Random) -> Any:
            return {"turns": 2, "left": rng.randrange(1000, 9999), "right": 3}

        def build(self, spec: Any, **rest: Any) -> Any:
            task = super().build(spec, **rest)
            text = f"{task.messages[0].content} {filler}"
            return replace(
                task,
                messages=(Message(role="user", content=text),),
                payload={**task.payload, "note": filler},
            )

        def check(self, task: Any, replies: Any) -> Verdict:
            verdict = super().check(task, [reply.replace(filler[:500], "").strip() for reply in replies])
            return Verdict(
                reward=verdict.reward, success=verdict.success, explanation=f"{verdict.explanation} {filler}"
            )

        def surface(self, task: Any) -> str:
            return str(task.payload["left"])

    return Hostile()


@pytest.mark.long
@pytest.mark.parametrize("filler", [BAD, HUGE], ids=["characters", "five megabytes"])
def test_hostile_text_passes_through_a_run_and_its_report(toy: Any, filler: str, tmp_path: Path) -> None:
    config = parse_config(
        {
            "run": {"rounds": 2},
            "simulator": {"contexts": 2, "variations": 1, "max_new_tokens": 500},
            "agent": {"rollouts": 2},
        }
    )
    env = hostile(toy, filler)
    numbers = iter(range(1000, 9999))
    simulator = ScriptedSampler(
        lambda prompt, rng: json.dumps({"turns": 1, "left": next(numbers), "right": 3})
    )
    agent = ScriptedSampler(
        lambda prompt, rng: f"{rng.choice([7, 9])} {filler[:500]}", context_tokens=20_000_000
    )
    players = Policies(
        agent=Agent(agent, ScriptedTrainer(), config.agent, seed=0),
        simulator=Simulator(simulator, ScriptedTrainer(), config.simulator, seed=0),
    )
    loop = CoEvolution(config, env, players, RunFolder.create(tmp_path / "run", dump_toml(config)))
    assert loop.run() == 2
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        tasks = store.tasks()
    assert any(task.payload.get("note") == filler for task in tasks), "what is stored is what was said"
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert len(page) < 2_000_000
    assert not {"\u202e", "\x1b", "\x07", "\x00"} & set(page)
    assert "<script>alert" not in page
