"""How the agent learns from base tasks alone: supervised steps, then rounds of GRPO, no simulator.

    python bench/agent_only.py configs/quickstart.toml --rounds 10 --tasks 24 --set agent.lr=1e-3

The warm-up is the configuration's. Each round draws base tasks at random; every --every rounds held-out tasks
are solved greedily. Prints one JSON line per measurement. It shows what a setting of the agent is worth, and
is the variant that the paper calls base: the same training on the base data alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from genenv.algorithms.advantages import grpo_credit
from genenv.config.run import RunConfig, load_config
from genenv.curriculum.replay import Replay
from genenv.environments import load_environment
from genenv.environments.base import Environment
from genenv.gate.gate import base_tasks
from genenv.progress import Silent
from genenv.runs.metrics import evaluation_metrics, rollout_metrics
from genenv.training.opening import build_players
from genenv.types import Group, Task


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", type=Path, help="the settings, TOML")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=24, help="base tasks per round")
    parser.add_argument("--every", type=int, default=5, help="rounds between measurements")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    config = load_config(options.config, ["simulator.warmup.steps=0", *options.overrides])
    Probe(config, load_environment(config.environment.name, config.environment.settings)).run(options)


class Probe:
    """An agent, the environment's base tasks, and its held-out tasks."""

    def __init__(self, config: RunConfig, env: Environment) -> None:
        self.config, self.env = config, env
        self.players = build_players(config, env)
        self.agent = self.players.agent
        self.tasks = list(base_tasks(env, env.seeds(), seed=config.run.seed).values())
        self.held_out = list(env.held_out())[: config.run.eval_tasks]
        self.rng, self.replay = random.Random(config.run.seed), Replay(config.curriculum)

    def run(self, options: argparse.Namespace) -> None:
        """Warm up, then play rounds; prints as it goes."""
        if self.players.warmup is not None:
            say(**asyncio.run(self.players.warmup(self.env.seeds(), self.tasks, Silent())))
        self.measure(0)
        for round_ in range(1, options.rounds + 1):
            start = time.perf_counter()
            groups, metrics = asyncio.run(
                self.round(self.rng.sample(self.tasks, options.tasks), round_, options.rounds)
            )
            played = rollout_metrics(groups, [], self.agent.sampler, self.env)
            say(
                round=round_,
                **{name: played[name] for name in ("agent/success_rate", "agent/reward") if name in played},
                seconds=time.perf_counter() - start,
                **{name: metrics[name] for name in ("agent/kl", "agent/grad_norm") if name in metrics},
            )
            if round_ % options.every == 0 or round_ == options.rounds:
                self.measure(round_)

    async def round(
        self, tasks: Sequence[Task], round_: int, rounds: int
    ) -> tuple[list[Group], Mapping[str, float]]:
        """One round on given tasks: the attempts, and the update's metrics."""
        groups = await self.agent.roll_out(self.env, tasks, round_=round_)
        tasks_by_id = {task.id: task for task in self.tasks}
        reminded = self.replay.longest_unseen(
            round_, base=list(tasks_by_id), groups=groups, n=self.config.agent.replayed, rng=self.rng
        )
        config = self.config.agent
        known = await self.agent.solutions(self.env, groups, [tasks_by_id[name] for name in reminded])
        lesson = grpo_credit(groups, known, config, temperature=config.temperature)
        metrics = await self.agent.learn(lesson, round_=round_, rounds=rounds)
        await self.agent.trainer.publish()
        return groups, metrics

    def measure(self, round_: int) -> None:
        """Solve the held-out tasks greedily."""
        start = time.perf_counter()
        groups = asyncio.run(self.agent.solve(self.env, self.held_out))
        say(
            held_out_after_round=round_,
            **evaluation_metrics([trace for group in groups for trace in group.traces]),
            seconds=time.perf_counter() - start,
        )


def say(**figures: float) -> None:
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
