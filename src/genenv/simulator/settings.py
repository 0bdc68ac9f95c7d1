"""Settings of the simulator: how many tasks it writes and how it learns from what they were worth."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from genenv.config.base import Moments, Schedule, Settings

Momentum = Annotated[float, Field(ge=0, le=0.99999)]


class SimulatorWarmupConfig(Settings, frozen=True):
    """Supervised steps on the domain's own variations before the first round."""

    steps: int = Field(default=0, ge=0, le=1_000_000)
    """Optimizer steps; 0 leaves the warm-up out."""
    batch: int = Field(default=8, ge=1, le=100_000)
    """Variations per step."""
    lr: float = Field(default=1e-3, ge=1e-12, le=1)
    """Peak learning rate of the warm-up."""
    lr_decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, the last ones, over which the learning rate falls evenly to a tenth."""
    kept_moments: Moments = "none"
    """Moments of AdamW that the rounds go on with; after `none` the first steps grow, by 1 - beta1^t."""


class SimulatorConfig(Settings, frozen=True):
    """Task writing, and the reward-weighted update on it."""

    contexts: int = Field(default=8, ge=1, le=100_000)
    """Seeds varied per round: the number of task batches."""
    variations: int = Field(default=4, ge=1, le=1024)
    """Tasks written per context."""
    max_new_tokens: int = Field(default=192, ge=1, le=1_000_000)
    """Longest spec."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the specs."""
    train: bool = True
    """Update the simulator; false is the variant GenEnv-Random."""
    kl_coefficient: float = Field(default=0.01, ge=0, le=1000)
    """Weight of the KL term to the initial simulator; 0 leaves it out."""
    kl_cap: float = Field(default=0.1, ge=1e-6, le=1000)
    """An update that moves the simulator further than this, in nats per token, is taken back."""
    kl_retries: int = Field(default=3, ge=0, le=30)
    """How often an update that was taken back is tried again with half the step before it is skipped."""
    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the selected generations of a round."""
    batch: int = Field(default=64, ge=1, le=100_000)
    """Generations per optimizer step."""
    lr: float = Field(default=1.5e-4, ge=1e-12, le=1)
    """Learning rate of AdamW; the paper takes half the agent's."""
    lr_schedule: Schedule = "constant"
    """Whether the learning rate stays, or falls evenly over the rounds of the run to a tenth."""
    betas: tuple[Momentum, Momentum] = Field(default=(0.9, 0.999), strict=False)
    """Momenta of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Gradients longer than this are scaled down to it."""
    warmup: SimulatorWarmupConfig = Field(default_factory=SimulatorWarmupConfig)
    """Supervised steps before the first round."""
