"""Settings of training: credit for rollouts and tasks, losses, optimizer steps, the warm-up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from genenv.settings import Names, Settings, only_with

Schedule = Literal["constant", "linear"]
"""The course of a learning rate over the rounds of a run."""

Moments = Literal["none", "second", "both"]
"""The moments of AdamW that are kept after a warm-up."""

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
_GRPO = only_with(algorithm=("grpo",))
_ON_POLICY = only_with(algorithm=("grpo", "ppo"))
_CLIPPING = only_with(algorithm=("grpo", "ppo"), loss=("ppo", "gspo", "cispo"))
_ACCUMULATES = only_with(algorithm=("rwr",), source=("model", "table"), train=(True,))
_BY_MODEL = only_with(source=("model",))


class GrpoConfig(Settings, frozen=True):
    """How the agent trains on its rollouts and on demonstrations."""

    algorithm: Annotated[str, AfterValidator(Names(("grpo", "ppo", "sft", "rft")))] = "grpo"
    """`grpo` trains on all rollouts, `ppo` too, with advantages by the value function of the backend `ppo`;
    `rft` trains only on successful rollouts, `sft` only on demonstrations (`guidance`, `replayed`)."""
    loss: Annotated[str, AfterValidator(Names(("ppo", "gspo", "cispo", "importance_sampling")))] = Field(
        default="ppo", json_schema_extra=_ON_POLICY
    )
    """Under `grpo`, the loss of a sampled token: PPO's clipped ratio, GSPO's clipped ratio of the sequence,
    CISPO's clipped weight, or importance sampling without clipping."""
    advantage: AdvantageName = Field(default="normalised", json_schema_extra=_GRPO)
    """Rewards minus their group mean (`centred`), divided by the group's standard deviation (`normalised`) or
    by its mean (`max_rl`)."""
    advantage_of: Literal["reward", "success"] = Field(default="reward", json_schema_extra=_GRPO)
    """The number from which advantages are computed: the reward, or success as 0 or 1. With `success`,
    partial credit does not distinguish rollouts that all failed."""
    team_weight: float = Field(default=0.0, ge=0, le=1, json_schema_extra=_GRPO)
    """Under `grpo`, with `environment.seats`: weight of the team in the advantages of a seat. 0: a seat's own
    reward alone; 1: only the mean reward over the seats of all agents in the episode. Between them the two
    advantages are averaged, each computed within the seat's group."""
    loss_average: Literal["token", "sequence", "constant"] = Field(
        default="token", json_schema_extra=_ON_POLICY
    )
    """`token`: every token of a step has the same weight. `sequence`: every rollout of a step has.
    `constant`: the sum over a rollout's tokens is divided by `loss_tokens`, whatever its length (Dr.
    GRPO)."""
    loss_tokens: int = Field(
        default=1024, ge=1, le=1_000_000, json_schema_extra=only_with(loss_average=("constant",))
    )
    """With `loss_average = "constant"`: the token count assumed for every rollout, often that of the longest
    reply."""
    guidance: Literal["none", "unsolved", "all"] = "none"
    """Tasks whose demonstrations are added as a supervised term to the GRPO loss (DAPG, arXiv:1709.10087):
    none, those that no rollout solved, or all.

    An agent that never solves a task gets no gradient from rollouts of it. Demonstrations are not rollouts:
    p_hat, advantages, metrics and pools leave them out."""
    guidance_coefficient: float = Field(
        default=1.0,
        ge=1e-6,
        le=1000,
        json_schema_extra=only_with(
            {"algorithm": ("grpo", "ppo"), "replayed": "> 0"},
            algorithm=("grpo", "ppo"),
            guidance=("unsolved", "all"),
        ),
    )
    """Weight of that supervised term, which is a mean over the tokens of the demonstrations."""
    replayed: int = Field(default=0, ge=0, le=100_000)
    """Number of demonstrations of other tasks, from base data and earlier rounds, that each round also trains
    on."""
    skip_zero_advantage: bool = Field(default=True, json_schema_extra=_GRPO)
    """Leave groups whose rewards all agree out of the update. Otherwise they still contribute to the KL term,
    and to the number of tokens or rollouts that the loss is divided by: where a quarter of the groups is
    mixed, the policy gradient is a quarter as large."""
    clip_low: float = Field(default=0.2, ge=0, le=0.999, json_schema_extra=_CLIPPING)
    """Probability ratios below 1 minus this are clipped."""
    clip_high: float = Field(default=0.2, ge=0, le=10, json_schema_extra=_CLIPPING)
    """Probability ratios above 1 plus this are clipped."""
    importance_cap: float = Field(default=0.0, ge=0, le=1000, json_schema_extra=_ON_POLICY)
    """Under `grpo` and `ppo`, weight the tokens of rollouts by importance, at most by this number (TIS, often
    2). This corrects for rollouts sampled by older weights (`run.staleness`) or at another precision. 0: no
    weights."""
    kl_coefficient: KlCoefficient = Field(default=0.001, json_schema_extra=_ON_POLICY)
    """Under `grpo`, weight of the KL term to the initial agent (k3 estimator); 0 turns it off."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=10, json_schema_extra=_ON_POLICY)
    """Weight of an entropy bonus on the agent's sampled tokens, under `grpo`; 0 turns it off.

    In the authors' code the bonus also applies to tokens without advantage. It does so here if
    `skip_zero_advantage` is off. If it is on, groups without advantage are left out, including their
    bonus."""
    epochs: Epochs = 1
    """Passes over the rollouts of a round."""
    updates_per_epoch: int = Field(default=1, ge=1, le=100_000)
    """Optimizer steps per pass; the groups are divided evenly among them. Under `ppo`, with more steps than
    groups, the tokens of all groups are."""
    groups_per_step: int = Field(default=0, ge=0, le=100_000)
    """Maximum number of groups per step; a pass then takes as many steps as needed. A demonstration of a task
    without rollouts counts as a group. 0: `updates_per_epoch`."""

    @field_validator("importance_cap")
    @classmethod
    def _weighs_up_too(cls, cap: float) -> float:
        if 0 < cap < 1:
            raise ValueError("a cap below 1 would shrink what is on policy: set 0, or 1 and more")
        return cap


class SimulatorLearningConfig(Settings, frozen=True):
    """How the simulator trains on the tasks that it wrote."""

    train: bool = True
    """Update the simulator; false is the variant GenEnv-Random."""
    algorithm: Annotated[str, AfterValidator(Names(SIMULATOR_ALGORITHMS))] = Field(
        default="rwr", json_schema_extra=only_with(source=("model",), train=(True,))
    )
    """`rwr`: reward-weighted regression on the tasks that the curriculum selects. `grpo`: compares all specs
    written for one context, each by its individual reward. `hindsight`: trains on every task as the answer to
    a request for the success rate that it had."""
    advantage: AdvantageName = Field(default="normalised", json_schema_extra=_GRPO)
    """With `grpo`: how advantages are computed from the rewards of a context; names as in
    `agent.advantage`."""
    clip_low: float = Field(default=0.2, ge=0, le=0.999, json_schema_extra=_GRPO)
    """With `grpo`: probability ratios below 1 minus this are clipped."""
    clip_high: float = Field(default=0.2, ge=0, le=10, json_schema_extra=_GRPO)
    """With `grpo`: probability ratios above 1 plus this are clipped."""
    kl_coefficient: KlCoefficient = 0.01
    """Weight of the KL term to the initial simulator; 0 turns it off."""
    kl_cap: float = Field(default=0.1, ge=1e-6, le=1000, json_schema_extra=_BY_MODEL)
    """Maximum KL of an update, in nats per token. A step that exceeds it is taken back."""
    kl_retries: int = Field(default=3, ge=0, le=30, json_schema_extra=_BY_MODEL)
    """How often a step that was taken back is retried at half its length before it is skipped."""
    accumulate: bool = Field(default=False, json_schema_extra=_ACCUMULATES)
    """With `rwr`: train in every round on the selected generations of all rounds so far, the paper's D_env.
    Each keeps the weight that it had in its round."""
    epochs: Epochs = 1
    """Passes over the selected generations of a round."""
    batch: Batch = 64
    """Generations per optimizer step."""


class OptimizerConfig(Settings, frozen=True):
    """The optimizer of a policy during the rounds of a run."""

    lr: LearningRate = 3e-4
    """Learning rate of AdamW."""
    lr_schedule: Schedule = "constant"
    """`constant`: the learning rate stays. `linear`: it falls linearly over the rounds of the run to a
    tenth."""
    betas: tuple[Momentum, Momentum] = Field(default=(0.9, 0.999), strict=False)
    """Momenta of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Maximum norm of the gradient. A longer gradient is scaled down to it."""


class WarmupConfig(Settings, frozen=True):
    """Supervised steps before the first round."""

    steps: Steps = 0
    """Optimizer steps; 0 turns the warm-up off."""
    batch: Batch = 8
    """Demonstrations per step."""
    lr: LearningRate = 1e-3
    """Peak learning rate of the warm-up."""
    lr_decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, over which the learning rate falls linearly to a tenth."""
    kept_moments: Moments = "none"
    """Moments of AdamW that are kept for the rounds. With `none` the first steps grow, by 1 - beta1^t."""
