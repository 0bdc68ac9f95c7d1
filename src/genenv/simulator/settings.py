"""Settings of the simulator: how many tasks it writes and how it learns from what they were worth."""

from __future__ import annotations

from pydantic import Field

from genenv.config.base import Settings
from genenv.learning.settings import (
    Batch,
    LearningRate,
    OptimizerConfig,
    SimulatorLearningConfig,
    WarmupConfig,
)


class SimulatorWarmupConfig(WarmupConfig, frozen=True):
    """Supervised steps on the domain's own variations before the first round."""

    batch: Batch = 8
    """Variations per step."""


class WritingConfig(Settings, frozen=True):
    """How tasks are written."""

    contexts: int = Field(default=8, ge=1, le=100_000)
    """Seeds varied per round: the number of task batches."""
    variations: int = Field(default=4, ge=1, le=1024)
    """Tasks written per context."""
    max_new_tokens: int = Field(default=192, ge=1, le=1_000_000)
    """Longest spec."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the specs."""


class SimulatorConfig(OptimizerConfig, SimulatorLearningConfig, WritingConfig, frozen=True):
    """Task writing, and the reward-weighted update on it. In a file the last class's settings come first."""

    lr: LearningRate = 1.5e-4
    """Learning rate of AdamW; the paper takes half the agent's."""
    warmup: SimulatorWarmupConfig = Field(default_factory=SimulatorWarmupConfig)
    """Supervised steps before the first round."""
