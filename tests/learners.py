"""Both players' learning without a run around it: attempts or tasks in, metrics out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers

from genenv.agent.policy import AgentConfig
from genenv.algorithms.advantages import grpo_credit, zero_advantage_rate
from genenv.algorithms.datum import UpdateBatch
from genenv.algorithms.reward_weighting import rwr_credit
from genenv.algorithms.update import learn
from genenv.backends.local.trainer import LocalTrainer
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Group, JsonObject, SimulatorSample, Trace


def gradients_of(optimizer: Any) -> dict[str, Any]:
    """Copies of what is accumulated, by the names of parameters."""
    named = zip(optimizer.names, optimizer.parameters, strict=True)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


class Learner:
    """A trainer of a tiny model's weights."""

    player = ""

    def __init__(self, sampler: Any, config: Any) -> None:
        self.sampler, self.config = sampler, config
        self.trainer = LocalTrainer(sampler.weights, config)

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer

    def take(self, lesson: UpdateBatch, seed: int) -> dict[str, float]:
        done = learn(self.trainer, lesson, player=self.player, learning_rate=self.config.lr, seed=seed)
        metrics = asyncio.run(done).metrics()
        asyncio.run(self.trainer.publish())
        return metrics

    def gradients(self, lesson: UpdateBatch) -> tuple[dict[str, Any], dict[str, float]]:
        """What a lesson of one step accumulates, before it is clipped or applied; and the metrics."""
        found: dict[str, Any] = {}

        def catch(lr: float, *, keep_before: bool = False) -> float:
            found.update(gradients_of(self.optimizer))
            self.optimizer.clear()
            return 0.0

        plain, self.optimizer.step = self.optimizer.step, catch
        metrics = self.take(lesson, 0)
        self.optimizer.step = plain
        return found, metrics

    def save(self, folder: Path) -> None:
        asyncio.run(self.trainer.save(folder))

    def load(self, folder: Path) -> None:
        asyncio.run(self.trainer.load(folder))

    def state(self) -> dict[str, Any]:
        """Copies of parameters and moments."""
        moments = self.trainer.optimizer._moments()
        values = dict(self.sampler.weights.parameters())
        return {name: value.detach().clone() for name, value in {**values, **moments}.items()}


class AgentLearner(Learner):
    """GRPO on a tiny model."""

    player = "agent"

    def __init__(self, sampler: Any, config: AgentConfig) -> None:
        super().__init__(sampler, config)

    def update(
        self, groups: Sequence[Group], *, seed: int = 0, solutions: Mapping[str, Trace] | None = None
    ) -> dict[str, float]:
        rate = zero_advantage_rate(groups, self.config)
        return {**self.take(self.lesson(groups, solutions), seed), "agent/zero_advantage_rate": rate}

    def lesson(self, groups: Sequence[Group], solutions: Mapping[str, Trace] | None = None) -> UpdateBatch:
        return grpo_credit(groups, solutions or {}, self.config, temperature=self.config.temperature)


class SimulatorLearner(Learner):
    """Reward-weighted regression on a tiny model."""

    player = "simulator"

    def __init__(self, sampler: Any, config: SimulatorConfig) -> None:
        super().__init__(sampler, config)

    def update(
        self,
        samples: Sequence[SimulatorSample],
        *,
        seed: int = 0,
        schemas: Mapping[str, JsonObject] | None = None,
    ) -> dict[str, float]:
        """Schemas by the id of their context."""
        lesson = rwr_credit(samples, schemas or {}, self.config, temperature=self.config.temperature)
        return self.take(lesson, seed)


def qwen_7b() -> transformers.Qwen2Config:
    """Qwen2.5-7B-Instruct, from its config.json."""
    return transformers.Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
