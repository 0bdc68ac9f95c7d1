"""Settings of the curriculum, and the two presets of a run: the paper's method, or its corrections.

A preset lies beneath the user's own settings: whatever a file or `--set` says wins. What was published has
two parts: the method, which the variant `genenv` is too, and the lengths of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from genenv.errors import registered
from genenv.settings import Names, Settings
from genenv.types import JsonObject

_ENV_REWARDS = ("alpha", "learnability", "signal", "variance", "difficulty", "constant", "shuffled")
EnvRewardName = Annotated[str, AfterValidator(Names(_ENV_REWARDS))]
"""The names of `genenv.curriculum.simulator_rewards.ENV_REWARDS`."""

PositiveCount = Annotated[float, Field(ge=0.01, le=10_000)]


class CurriculumConfig(Settings, frozen=True):
    """Which tasks are wanted. The corrections of the published method are settings here; see `presets`."""

    env_reward: EnvRewardName = "alpha"
    """What a success rate is worth to the simulator: the paper's R_env, or another one; see Concepts."""
    alpha: float = Field(default=0.5, ge=0.001, le=0.999)
    """Share of rollouts the agent should solve."""
    alpha_last: float = Field(default=0.0, ge=0, le=0.999)
    """alpha of the last round, to which it moves evenly; 0: it stays."""
    beta: float = Field(default=2.0, ge=0.001, le=1000)
    """How fast the simulator's reward falls with the distance from alpha."""
    band_filter: bool = True
    """Train the simulator on batches inside the band only; the agent trains on all either way."""
    signal_attempts: int = Field(default=8, ge=2, le=1024)
    """G of `env_reward = "signal"`: the chance that so many rollouts differ."""
    k_min: float = Field(default=0.1, ge=0, le=1)
    """Half the width of the band: a batch is inside when its rate is at most this far from alpha."""
    p_hat_scope: Literal["batch", "task"] = "batch"
    """What a success rate belongs to: all variations written for one context, or each task."""
    posterior: bool = True
    """Reward and filter by a Beta posterior of the success rate; otherwise by the raw share of successes."""
    prior: tuple[PositiveCount, PositiveCount] = Field(default=(1.0, 1.0), strict=False)
    """Pseudo-counts (successes, failures) of every Beta posterior."""
    rwr_lambda: float = Field(default=1.0, ge=0, le=1000)
    """The paper's lambda: how strongly rewards separate the weights of generations; 0 is plain tuning."""
    rwr_within: Literal["round", "context"] = "round"
    """What weights are compared within, and sum to the same in: all that was selected, or what was written
    for one seed, so that nothing is paid for the seed it was given."""
    standardise_rewards: bool = True
    """Divide rewards by their standard deviation before weighing; else the weights hardly differ."""
    seed_choice: Annotated[
        str, AfterValidator(Names(("uniform", "expected_reward", "bandit", "controller")))
    ] = "uniform"
    """Which seeds are varied: all alike, rather those whose hardest skill is near alpha, those that a bandit
    over combinations of skills draws, those of a difficulty that is steered towards alpha; or those that a
    class of your own chooses (`SeedChooser`)."""
    agent_band: bool = False
    """Teach the agent new tasks alone whose own success rate lies in the band; base tasks always."""
    seed_trim: float = Field(default=0.0, ge=0, le=0.45)
    """Share of the seeds, the easiest, and as many of the hardest, that are not varied (`filtering_k`)."""
    seed_temperature: float = Field(default=12.0, ge=0, le=1000)
    """How strongly expected rewards separate the weights of seeds: exp(seed_temperature * E[R_env])."""
    candidates: int = Field(default=1, ge=1, le=1000)
    """New and base tasks to choose from, for each that is planned for a round; 1: all are rolled out."""
    candidate_choice: Literal["foretold", "attempted"] = "foretold"
    """How they are chosen: those whose predicted success rates are worth most (`candidate_reward`); or by
    rollouts, another one for each whose rollouts all earned the same (DAPO's
    dynamic sampling)."""
    foretold_by: Literal["likelihoods", "attempts"] = "likelihoods"
    """What predicts success rates: how likely the agent finds each task's demonstration, which is read; or
    rollouts of earlier rounds at tasks of like skills, which costs nothing and tells only kinds apart."""
    candidate_reward: EnvRewardName = "learnability"
    """What a predicted rate is worth; `constant` and `shuffled` are the controls."""
    candidate_temperature: float = Field(default=12.0, ge=0, le=1000)
    """How strongly that separates the chances of candidates: exp(candidate_temperature * reward)."""
    candidate_explore: float = Field(default=0.0, ge=0, le=1)
    """Share of the places for which a candidate is drawn at random: a kind of task that is never solved yet
    is never worth most, and may be learned at once when it is rolled out."""
    foretold_attempts: float = Field(default=0.0, ge=0, le=10_000)
    """When the simulator is paid, a predicted rate counts like so many rollouts, and a task that nobody
    rolled out is paid too; 0: it is paid for rollouts alone."""
    gate: Annotated[str, AfterValidator(Names(("full", "executes")))] = "full"
    """Which generations become tasks: those that pass every check, all that parse and execute, or those that
    pass every check and then a function of your own."""
    novelty_threshold: float = Field(default=0.1, ge=0, le=0.99)
    """Reject a task whose distance to the nearest of the whole archive is smaller; 0 rejects none."""
    full_novelty: float = Field(default=0.5, ge=0, le=1)
    """A task nearer than this to another of the archive earns proportionally less; 0 asks for no novelty."""
    base_share: float = Field(default=0.25, ge=0, le=0.9)
    """Floor on the share of base tasks among the tasks of a round."""
    review_share: float = Field(default=0.05, ge=0, le=0.9)
    """Share of a round's tasks that are generated tasks once mastered."""
    replay_share: float = Field(default=0.0, ge=0, le=0.9)
    """Share of a round's tasks that are drawn from all generated tasks with a valid trace (D_train)."""
    mastered_success: float = Field(default=0.9, ge=0.01, le=1)
    """Success rate from which a generated task counts as mastered."""
    staleness_rounds: int = Field(default=20, ge=1, le=1_000_000)
    """For how many rounds after it was written a generated task may come back."""
    profile_decay: float = Field(default=0.7, ge=0.01, le=1)
    """Factor on old rollouts per round in the agent's profile; 1 never forgets."""

    @property
    def predicts(self) -> bool:
        """Whether success rates are predicted."""
        chosen = self.candidates > 1 and self.candidate_choice == "foretold"
        return chosen or self.foretold_attempts > 0

    @model_validator(mode="after")
    def _leaves_room_for_new_tasks(self) -> Self:
        shares = self.base_share + self.review_share + self.replay_share
        if shares > 0.9:
            raise ValueError(
                f"base_share + review_share + replay_share is {shares:g}, "
                "but must be at most 0.9 to leave room for new tasks"
            )
        return self


METHOD: Mapping[str, JsonObject] = {
    "curriculum": {
        "standardise_rewards": False,
        "posterior": False,
        "p_hat_scope": "batch",
        "gate": "executes",
        "novelty_threshold": 0.0,
        "full_novelty": 0.0,
        "base_share": 0.16,
        "review_share": 0.0,
        "replay_share": 0.2,
        "seed_trim": 0.1,
    },
    "simulator": {"warmup": {"kept_moments": "both"}},
    "agent": {
        "skip_zero_advantage": False,
        "entropy_coefficient": 0.001,
        "warmup": {"kept_moments": "both"},
    },
}
"""GenEnv (arXiv:2512.19682) as published; each line is a correction not made, or a term that `robust` drops.

alpha, k_min and lambda, and from the authors' configuration beta, the agent's KL term (0.001, k3 held to 10
nats), clip and temperature are the defaults of their settings. `seed_trim` is the `filtering_k` of the
authors' code, the only alignment in it; the entropy bonus is in their configuration. D_train is a mixture of
base data, earlier valid traces and new ones: one base task beside four variations, and a fifth of a round for
tasks with a valid trace, a number that the paper does not print. They are rolled out anew: GRPO learns from
what the present policy samples. The simulator is not trained on its earlier generations. Held-out tasks are
kept out of training under every preset. The paper has no warm-up; after one, AdamW goes on as it is.
"""

STEPS: Mapping[str, JsonObject] = {
    "simulator": {"variations": 4, "lr": 5e-7, "batch": 64},
    "agent": {"lr": 1e-6, "rollouts": 8, "groups_per_step": 16},
}
"""How long its steps are: for all weights of 7B models, so a part of the preset `paper` and of no variant.

The paper's learning rates and the simulator's batch of 64; from the authors' configuration the 8 rollouts and
the mini-batches of 16 prompts. Three numbers have no place here. p_hat is counted in those 8 rollouts, not
in 4 of its own. The agent's batch of 64 prompts is a round: `simulator.contexts` times `variations`, and what
comes back. And 9,000 tokens are `policy.context_tokens`, which a model and its memory decide.
"""

ROBUST: Mapping[str, JsonObject] = {
    "curriculum": {
        "standardise_rewards": True,
        "posterior": True,
        "p_hat_scope": "batch",
        "gate": "full",
        "novelty_threshold": 0.1,
        "full_novelty": 0.5,
        "base_share": 0.25,
        "review_share": 0.05,
        "replay_share": 0.0,
        "seed_trim": 0.0,
    },
    "simulator": {"warmup": {"kept_moments": "none"}},
    "agent": {
        "skip_zero_advantage": True,
        "entropy_coefficient": 0.0,
        "warmup": {"kept_moments": "none"},
    },
}
"""1. Weights that differ. 2. A posterior instead of a lattice. 3. The batch as the unit of p_hat (as in the
paper). 4. A gate of code. 5. Near-copies of the archive refused, near ones rewarded less. 6. Base tasks and
reviews in each round. 7. No compute for groups that agree. And after the warm-up rewards move the policies,
not the momentum of imitation."""

PRESETS: Mapping[str, Mapping[str, JsonObject]] = {
    "paper": {section: {**settings, **STEPS.get(section, {})} for section, settings in METHOD.items()},
    "robust": ROBUST,
}
"""`paper` names its learning rates, batches and rollouts; `robust` leaves them to their defaults."""


def preset(name: str) -> Mapping[str, JsonObject]:
    """The settings of a preset, by section.

    Raises:
        UsageError: no such preset.
    """
    return PRESETS[registered("preset", name, PRESETS)]
