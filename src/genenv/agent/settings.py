"""Settings of the agent: how it attempts tasks and how it learns from them."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from genenv.algorithms.settings import GrpoConfig, OptimizerConfig, Steps, WarmupConfig
from genenv.settings import Settings


class AgentWarmupConfig(WarmupConfig, frozen=True):
    """Supervised steps on the seeds' own solutions before the first round; they stop early."""

    steps: Steps = 0
    """At most this many optimizer steps; 0 leaves the warm-up out."""
    target_low: float = Field(default=0.2, ge=0, le=1)
    """Success rate at which the warm-up stops: enough to learn from, with much left to learn."""
    target_high: float = Field(default=0.5, ge=0, le=1)
    """Success rate above which a warm-up has gone too far, which is reported."""
    check_every: int = Field(default=2, ge=1, le=1_000_000)
    """Steps between two measurements of the success rate."""
    check_tasks: int = Field(default=24, ge=1, le=100_000)
    """Tasks per measurement."""

    @model_validator(mode="after")
    def _range_is_ordered(self) -> Self:
        if self.target_low > self.target_high:
            raise ValueError(
                f"target_low is {self.target_low:g}, but must be at most target_high, {self.target_high:g}"
            )
        return self


class AttemptConfig(Settings, frozen=True):
    """How tasks are attempted."""

    rollouts: int = Field(default=8, ge=2, le=1024)
    """Attempts per task: G of GRPO, which also give p_hat."""
    max_new_tokens: int = Field(default=64, ge=1, le=1_000_000)
    """Longest reply, per turn."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the attempts."""
    episode_timeout_s: float = Field(default=120.0, ge=0.01, le=604_800)
    """Seconds after which an attempt ends as a failure that does not count."""


class AgentConfig(OptimizerConfig, GrpoConfig, AttemptConfig, frozen=True):
    """Attempts, and the GRPO update on them. In a file the settings of the last class named come first."""

    train: bool = True
    """Update the agent; false: it stands still after its warm-up, and the simulator is studied alone."""
    warmup: AgentWarmupConfig = Field(default_factory=AgentWarmupConfig)
    """Supervised steps before the first round."""
