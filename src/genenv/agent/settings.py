"""Settings of the agent: how it attempts tasks and how it learns from them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from genenv.config.base import Moments, Schedule, Settings

Momentum = Annotated[float, Field(ge=0, le=0.99999)]


class AgentWarmupConfig(Settings, frozen=True):
    """Supervised steps on the seeds' own solutions before the first round; they stop early."""

    steps: int = Field(default=0, ge=0, le=1_000_000)
    """At most this many optimizer steps; 0 leaves the warm-up out."""
    batch: int = Field(default=8, ge=1, le=100_000)
    """Demonstrations per step."""
    lr: float = Field(default=1e-3, ge=1e-12, le=1)
    """Peak learning rate of the warm-up."""
    lr_decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, the last ones, over which the learning rate falls evenly to a tenth."""
    kept_moments: Moments = "none"
    """Moments of AdamW that the rounds go on with; after `none` the first steps grow, by 1 - beta1^t."""
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


class AgentConfig(Settings, frozen=True):
    """Attempts, and the GRPO update on them."""

    rollouts: int = Field(default=8, ge=2, le=1024)
    """Attempts per task: G of GRPO, which also give p_hat."""
    max_new_tokens: int = Field(default=64, ge=1, le=1_000_000)
    """Longest reply, per turn."""
    temperature: float = Field(default=1.0, ge=0.05, le=10)
    """Sampling temperature of the attempts."""
    episode_timeout_s: float = Field(default=120.0, ge=0.01, le=604_800)
    """Seconds after which an attempt ends as a failure that does not count."""
    advantage: Literal["normalised", "centred"] = "normalised"
    """Rewards minus their group mean, divided by the group's standard deviation or not."""
    loss_average: Literal["token", "sequence"] = "token"
    """Whether every token of an update counts alike, or every attempt."""
    guidance: Literal["none", "unsolved", "all"] = "none"
    """Of which tasks the known solution is imitated beside the GRPO loss (DAPG, arXiv:1709.10087).

    An agent that never solves a task learns nothing from its own attempts at it. The solution is no attempt:
    p_hat, advantages, metrics and pools leave it out.
    """
    guidance_coefficient: float = Field(default=1.0, ge=1e-6, le=1000)
    """Weight of that supervised term, a mean over the tokens of the solutions."""
    replayed: int = Field(default=0, ge=0, le=100_000)
    """How many known solutions of other tasks, from base data and earlier rounds, are imitated with them."""
    skip_zero_advantage: bool = True
    """Leave groups whose rewards all agree out of the update; otherwise they still feel the KL term."""
    clip_low: float = Field(default=0.2, ge=0, le=0.999)
    """Probability ratios below 1 minus this are clipped."""
    clip_high: float = Field(default=0.2, ge=0, le=10)
    """Probability ratios above 1 plus this are clipped."""
    kl_coefficient: float = Field(default=0.001, ge=0, le=1000)
    """Weight of the KL term to the initial agent (k3 estimator); 0 leaves it out."""
    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the attempts of a round."""
    updates_per_epoch: int = Field(default=1, ge=1, le=100_000)
    """Optimizer steps per pass; the groups are shared out evenly among them."""
    lr: float = Field(default=3e-4, ge=1e-12, le=1)
    """Learning rate of AdamW."""
    lr_schedule: Schedule = "constant"
    """Whether the learning rate stays, or falls evenly over the rounds of the run to a tenth."""
    betas: tuple[Momentum, Momentum] = Field(default=(0.9, 0.999), strict=False)
    """Momenta of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Gradients longer than this are scaled down to it."""
    warmup: AgentWarmupConfig = Field(default_factory=AgentWarmupConfig)
    """Supervised steps before the first round."""
