"""Settings of learning: credit for rollouts and tasks, losses, steps of the optimizer, the warm-up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from genenv.settings import Names, Settings, is_own

Schedule = Literal["constant", "linear"]
"""What a learning rate does over the rounds of a run."""

Moments = Literal["none", "second", "both"]
"""Which of AdamW's moments the rounds go on with after a warm-up."""

LearningRate = Annotated[float, Field(ge=1e-12, le=1)]
Momentum = Annotated[float, Field(ge=0, le=0.99999)]
Steps = Annotated[int, Field(ge=0, le=1_000_000)]
Batch = Annotated[int, Field(ge=1, le=100_000)]
KlCoefficient = Annotated[float, Field(ge=0, le=1000)]
Epochs = Annotated[int, Field(ge=1, le=100)]


AdvantageName = Annotated[str, AfterValidator(Names(("normalised", "centred", "max_rl")))]
"""The names of `genenv.algorithms.advantages.ADVANTAGES`."""
SIMULATOR_ALGORITHMS = ("rwr", "grpo", "hindsight")
"""The names of `genenv.algorithms.reward_weighting.ALGORITHMS`."""


class GrpoConfig(Settings, frozen=True):
    """What the agent learns from its rollouts: GRPO, and demonstrations beside it."""

    algorithm: Annotated[str, AfterValidator(Names(("grpo", "sft", "rft")))] = "grpo"
    """`grpo` from all rollouts, `rft` from its own successes alone; `sft` from demonstrations alone."""
    loss: Annotated[str, AfterValidator(Names(("ppo", "gspo", "cispo", "importance_sampling")))] = "ppo"
    """Under `grpo`, the loss of a sampled token: PPO's clipped ratio, GSPO's clipped ratio of the sequence,
    CISPO's clipped weight, or no clipping."""
    advantage: AdvantageName = "normalised"
    """Rewards minus their group mean (`centred`), divided by the group's standard deviation (`normalised`) or
    by its mean (`max_rl`)."""
    advantage_of: Literal["reward", "success"] = "reward"
    """What rollouts are compared by: the reward, or success alone, where partial credit would set rollouts
    apart that all failed."""
    loss_average: Literal["token", "sequence", "constant"] = "token"
    """Whether every token of an update counts alike, or every rollout; `constant` divides the sum over a
    rollout's tokens by `loss_tokens`, whatever its length (Dr. GRPO)."""
    loss_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    """Of `loss_average = "constant"`: tokens that a rollout counts as, often the longest reply."""
    guidance: Literal["none", "unsolved", "all"] = "none"
    """Of which tasks the demonstration is imitated beside the GRPO loss (DAPG, arXiv:1709.10087).

    An agent that never solves a task learns nothing from its own rollouts of it. The solution is no rollout:
    p_hat, advantages, metrics and pools leave it out.
    """
    guidance_coefficient: float = Field(default=1.0, ge=1e-6, le=1000)
    """Weight of that supervised term, a mean over the tokens of the solutions."""
    replayed: int = Field(default=0, ge=0, le=100_000)
    """How many demonstrations of other tasks, from base data and earlier rounds, are imitated with them."""
    skip_zero_advantage: bool = True
    """Leave groups whose rewards all agree out of the update; otherwise they still feel the KL term."""
    clip_low: float = Field(default=0.2, ge=0, le=0.999)
    """Probability ratios below 1 minus this are clipped."""
    clip_high: float = Field(default=0.2, ge=0, le=10)
    """Probability ratios above 1 plus this are clipped."""
    importance_cap: float = Field(default=0.0, ge=0, le=1000)
    """Under `grpo` tokens of rollouts are weighted by importance, at most by so much (TIS, often 2): for
    rollouts by older weights (`run.staleness`), or by an engine of other arithmetic. 0: they are not."""
    kl_coefficient: KlCoefficient = 0.001
    """Weight of the KL term to the initial agent (k3 estimator); 0 leaves it out."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of an entropy bonus on what the agent sampled, under `grpo`; 0 leaves it out.

    In the authors' code it counts for tokens without advantage too: here as well while `skip_zero_advantage`
    is off. While it is on, groups without advantage are left out, bonus and all.
    """
    epochs: Epochs = 1
    """Passes over the rollouts of a round."""
    updates_per_epoch: int = Field(default=1, ge=1, le=100_000)
    """Optimizer steps per pass; the groups are shared out evenly among them."""
    groups_per_step: int = Field(default=0, ge=0, le=100_000)
    """At most so many groups a step, and as many steps per pass as that takes; 0: `updates_per_epoch`."""

    @field_validator("importance_cap")
    @classmethod
    def _weighs_up_too(cls, cap: float) -> float:
        if 0 < cap < 1:
            raise ValueError("a cap below 1 would shrink what is on policy: set 0, or 1 and more")
        return cap


class SimulatorLearningConfig(Settings, frozen=True):
    """What the simulator learns from its tasks."""

    train: bool = True
    """Update the simulator; false is the variant GenEnv-Random."""
    algorithm: str = "rwr"
    """How it learns: `rwr` is reward-weighted regression on the tasks that the curriculum selects; `grpo`
    compares all that was written for one context, each by its own reward; `hindsight` imitates every task, as
    the answer to a request for the success rate that it came to."""
    advantage: AdvantageName = "normalised"
    """Of `grpo`: rewards minus their mean in the context, divided by the standard deviation there or not."""
    clip_low: float = Field(default=0.2, ge=0, le=0.999)
    """Of `grpo`: probability ratios below 1 minus this are clipped."""
    clip_high: float = Field(default=0.2, ge=0, le=10)
    """Of `grpo`: probability ratios above 1 plus this are clipped."""
    kl_coefficient: KlCoefficient = 0.01
    """Weight of the KL term to the initial simulator; 0 leaves it out."""
    kl_cap: float = Field(default=0.1, ge=1e-6, le=1000)
    """An update that moves the simulator further than this, in nats per token, is taken back."""
    kl_retries: int = Field(default=3, ge=0, le=30)
    """How often an update that was taken back is tried again with half the step before it is skipped."""
    epochs: Epochs = 1
    """Passes over the selected generations of a round."""
    batch: Batch = 64
    """Generations per optimizer step."""

    @field_validator("algorithm")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in SIMULATOR_ALGORITHMS and not is_own(name):
            raise ValueError(f"unknown algorithm {name!r}; known: {', '.join(SIMULATOR_ALGORITHMS)}")
        return name


class OptimizerConfig(Settings, frozen=True):
    """How a policy's optimizer steps in the rounds of a run."""

    lr: LearningRate = 3e-4
    """Learning rate of AdamW."""
    lr_schedule: Schedule = "constant"
    """Whether the learning rate stays, or falls evenly over the rounds of the run to a tenth."""
    betas: tuple[Momentum, Momentum] = Field(default=(0.9, 0.999), strict=False)
    """Momenta of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Gradients longer than this are scaled down to it."""


class WarmupConfig(Settings, frozen=True):
    """Supervised steps before the first round."""

    steps: Steps = 0
    """Optimizer steps; 0 leaves the warm-up out."""
    batch: Batch = 8
    """Demonstrations per step."""
    lr: LearningRate = 1e-3
    """Peak learning rate of the warm-up."""
    lr_decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, the last ones, over which the learning rate falls evenly to a tenth."""
    kept_moments: Moments = "none"
    """Moments of AdamW that the rounds go on with; after `none` the first steps grow, by 1 - beta1^t."""
