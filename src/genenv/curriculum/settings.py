"""Settings of the curriculum, and the two presets of a run: the paper's method, and a corrected one.

The user's settings override a preset, whether from a file or `--set`. The published method has two parts: the
method, which is also the variant `genenv`, and the lengths of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from genenv.errors import registered
from genenv.settings import Names, Needed, Settings, only_with
from genenv.types import JsonObject

_ENV_REWARDS = (
    "alpha",
    "learnability",
    "signal",
    "variance",
    "difficulty",
    "progress",
    "constant",
    "shuffled",
)
EnvRewardName = Annotated[str, AfterValidator(Names(_ENV_REWARDS))]
"""The names of `genenv.curriculum.simulator_rewards.ENV_REWARDS`, and `progress`."""

_CHOOSES = only_with(candidates="> 1", candidate_choice=("foretold",))
_REVIEWS = only_with(review_share="> 0")
_WEIGHS = only_with(
    **{"simulator.algorithm": ("rwr",), "simulator.source": ("model", "table"), "simulator.train": (True,)}
)


def _read_by(rewards: Sequence[str], *instead: Needed) -> dict[str, JsonValue]:
    """Return the JSON-schema extra of a setting that these rewards read, of tasks or of candidates."""
    chosen = {"candidate_reward": rewards, "candidates": "> 1", "candidate_choice": ("foretold",)}
    return only_with(chosen, *instead, env_reward=rewards)


PositiveCount = Annotated[float, Field(ge=0.01, le=10_000)]


class CurriculumConfig(Settings, frozen=True):
    """How tasks are rewarded, chosen and repeated; `PRESETS` has the published and the corrected values."""

    env_reward: EnvRewardName = "alpha"
    """The simulator's reward as a function of a success rate: the paper's R_env, or another one; see
    Concepts. `progress`: the rise of the predicted success rate since `progress_rounds` rounds ago."""
    shuffle_rewards: bool = False
    """The shuffled-reward control of whatever the simulator is paid: each task (or batch) gets the reward of
    another, with that one's filter and novelty. `env_reward = "shuffled"` is this with `alpha`."""
    agents_reward: Literal["mean", "minimum", "regret"] = "mean"
    """With several agents, the simulator's reward for a task that all attempt: the mean of `env_reward` over
    the agents, its minimum, or the regret: success of the strong agent minus success of the weak one."""
    regret_agents: tuple[str, ...] = Field(default=(), strict=False)
    """The strong and the weak agent of the regret, by name: `["strong", "weak"]`. It is then a metric, too,
    whatever the reward."""
    share_tasks: bool = True
    """With several agents: whether each is rolled out on every task. false: a task is rolled out by the agent
    for whom it was written; base tasks and repeated ones are dealt to the trained agents in turn."""
    profile_of: Literal["agent", "all"] = "agent"
    """With several agents, whose success rates the simulator is given: those of the agent for whom it writes,
    or the rates over all agents, which do not tell for whom it writes."""
    alpha: float = Field(default=0.5, ge=0.001, le=0.999)
    """Target success rate: the share of rollouts that the agent should solve."""
    alpha_last: float = Field(default=0.0, ge=0, le=0.999)
    """alpha in the last round; alpha moves there linearly. 0: alpha is constant."""
    beta: float = Field(
        default=2.0,
        ge=0.001,
        le=1000,
        json_schema_extra=_read_by(("alpha", "shuffled"), {"seed_choice": ("expected_reward",)}),
    )
    """How fast the simulator's reward falls with the distance from alpha."""
    band_filter: bool = True
    """Under `simulator.algorithm = "rwr"`, train the simulator only on batches inside the band. The agent's
    training does not depend on this."""
    signal_attempts: int = Field(default=8, ge=2, le=1024, json_schema_extra=_read_by(("signal",)))
    """G of `env_reward = "signal"`: the reward is the chance that this many rollouts differ."""
    k_min: float = Field(default=0.1, ge=0, le=1)
    """Half the width of the band: a batch is inside if its success rate is at most this far from alpha."""
    p_hat_scope: Literal["batch", "task"] = "batch"
    """The unit of a success rate: all variations written for one context, or each task."""
    posterior: bool = True
    """Compute reward and filter from a Beta posterior of the success rate; otherwise from the raw share of
    successes."""
    prior: tuple[PositiveCount, PositiveCount] = Field(default=(1.0, 1.0), strict=False)
    """Pseudo-counts (successes, failures) of every Beta posterior. With a predicted success rate the
    prediction is the prior instead (`foretold_attempts`)."""
    rwr_lambda: float = Field(default=1.0, ge=0, le=1000, json_schema_extra=_WEIGHS)
    """The paper's lambda: how strongly rewards separate the weights of generations. 0: plain fine-tuning."""
    rwr_within: Literal["round", "context"] = Field(default="round", json_schema_extra=_WEIGHS)
    """Set of generations whose weights are compared and normalized: all selected generations of the round, or
    those of one context, so that the difficulty of the seed earns nothing."""
    standardise_rewards: bool = True
    """Divide rewards by their standard deviation before weighting; otherwise the weights hardly differ."""
    seed_choice: Annotated[
        str, AfterValidator(Names(("uniform", "expected_reward", "bandit", "controller")))
    ] = "uniform"
    """Which seeds are varied. `uniform`: all with the same chance; `expected_reward`: preferably those whose
    hardest skill is near alpha; `bandit`: those drawn by a bandit over combinations of skills; `controller`:
    those of a difficulty that is steered towards alpha; or the choice of a user-defined class
    (`SeedChooser`)."""
    agent_band: bool = False
    """Train the agent only on those new tasks whose success rate is in the band. Base and repeated tasks
    always count."""
    seed_trim: float = Field(
        default=0.0, ge=0, le=0.45, json_schema_extra=only_with(seed_choice=("uniform", "expected_reward"))
    )
    """Share of the easiest seeds, and share of the hardest, that are not varied (`filtering_k`)."""
    seed_temperature: float = Field(
        default=12.0, ge=0, le=1000, json_schema_extra=only_with(seed_choice=("expected_reward",))
    )
    """How strongly expected rewards separate the weights of seeds: exp(seed_temperature * E[R_env])."""
    candidates: int = Field(default=1, ge=1, le=1000)
    """Number of candidates, new and base tasks, per planned task of a round. 1: all are rolled out."""
    candidate_choice: Literal["foretold", "attempted"] = Field(
        default="foretold", json_schema_extra=only_with(candidates="> 1")
    )
    """How candidates are chosen. `foretold`: those whose predicted success rates have the highest
    `candidate_reward`. `attempted`: by rollouts, with another candidate for each whose rollouts all earned
    the same reward (DAPO's dynamic sampling)."""
    foretold_by: Literal["likelihoods", "attempts", "text"] = "likelihoods"
    """What predicts success rates. `likelihoods`: the likelihood of each task's demonstration under the
    agent, which costs a forward pass. `attempts`: earlier rollouts of tasks with similar skills, which cost
    nothing more and distinguish only kinds of tasks. `text`: earlier rollouts of tasks with similar words."""
    candidate_reward: EnvRewardName = Field(default="learnability", json_schema_extra=_CHOOSES)
    """The reward of a predicted success rate; `constant` and `shuffled` (`alpha`, of other tasks) are the
    controls. `progress`: the rise of that rate since `progress_rounds` rounds ago."""
    progress_rounds: int = Field(default=2, ge=1, le=1_000_000, json_schema_extra=_read_by(("progress",)))
    """Rounds between the two versions of the agent that the reward `progress` compares. In earlier rounds the
    older one is the agent after the warm-up. The run keeps so many more checkpoints."""
    candidate_temperature: float = Field(default=12.0, ge=0, le=1000, json_schema_extra=_CHOOSES)
    """How strongly rewards separate the chances of candidates: exp(candidate_temperature * reward)."""
    candidate_explore: float = Field(default=0.0, ge=0, le=1, json_schema_extra=_CHOOSES)
    """Share of the planned tasks for which a candidate is drawn at random. A kind of task that was never
    solved never has the highest reward, but may be learned quickly once it is rolled out."""
    foretold_attempts: float = Field(default=0.0, ge=0, le=10_000)
    """Number of rollouts that a predicted rate counts as in the simulator's reward; tasks without rollouts
    then earn a reward too. 0: only rollouts count. Under `simulator.algorithm = "rwr"` that needs
    `p_hat_scope = "task"`."""
    gate: Annotated[str, AfterValidator(Names(("full", "executes")))] = "full"
    """Which generations become tasks. `full`: those that pass every check; `executes`: all that parse and
    execute; or those that pass every check and then a user-defined function."""
    novelty_threshold: float = Field(default=0.1, ge=0, le=0.99)
    """Reject a task whose distance to the nearest task in the archive is smaller; 0 rejects none."""
    full_novelty: float = Field(default=0.5, ge=0, le=1)
    """Under `simulator.algorithm = "rwr"`, a task nearer than this to the archive earns proportionally less
    reward; 0: novelty does not matter."""
    base_share: float = Field(default=0.25, ge=0, le=0.9)
    """Minimum share of base tasks among the tasks of a round."""
    review_share: float = Field(default=0.05, ge=0, le=0.9)
    """Share of a round's tasks that are reviews: generated tasks that were once mastered."""
    replay_share: float = Field(default=0.0, ge=0, le=0.9)
    """Share of a round's tasks that are drawn from all generated tasks with a valid trace (D_train)."""
    mastered_success: float = Field(default=0.9, ge=0.01, le=1, json_schema_extra=_REVIEWS)
    """Success rate from which a generated task counts as mastered."""
    staleness_rounds: int = Field(default=20, ge=1, le=1_000_000, json_schema_extra=_REVIEWS)
    """Number of rounds, after it was first mastered, for which a generated task may be reviewed."""
    profile_decay: float = Field(default=0.7, ge=0.01, le=1)
    """Factor on the weight of old rollouts, per round, in the agent's profile; 1: no decay."""

    @property
    def predicts(self) -> bool:
        """Whether success rates of candidates are predicted."""
        chosen = self.candidates > 1 and self.candidate_choice == "foretold"
        return chosen or self.foretold_attempts > 0

    @property
    def compares_versions(self) -> bool:
        """Whether success rates are predicted under an older version of the agent too (`progress`)."""
        chooses = self.candidates > 1 and self.candidate_choice == "foretold"
        return self.env_reward == "progress" or (chooses and self.candidate_reward == "progress")

    @model_validator(mode="after")
    def _can_compare_versions(self) -> Self:
        if self.compares_versions and self.foretold_by != "likelihoods":
            raise ValueError(
                '"progress" compares the likelihood of demonstrations under two versions of the agent: set '
                'foretold_by to "likelihoods"'
            )
        if self.env_reward == "progress" and not self.foretold_attempts:
            raise ValueError(
                'env_reward is "progress", which compares predicted success rates: set foretold_attempts '
                "above 0, for example to 16"
            )
        if self.env_reward == "progress" and self.seed_choice == "bandit":
            raise ValueError(
                'seed_choice is "bandit", which needs the reward of a single success rate: set env_reward to '
                'another one than "progress"'
            )
        return self

    @model_validator(mode="after")
    def _regret_is_of_two(self) -> Self:
        names = self.regret_agents
        if (self.agents_reward == "regret" or names) and (len(names) != 2 or names[0] == names[1]):
            raise ValueError(
                "regret_agents must name two different agents, the strong and the weak one: "
                '["strong", "weak"]'
            )
        return self

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
"""GenEnv (arXiv:2512.19682) as published. Each line omits a correction, or keeps a term that `robust` drops.

The other numbers are defaults of their settings: alpha, k_min and lambda from the paper; beta, the agent's KL
term (0.001, k3 clamped to 10 nats), clip and temperature from the authors' configuration. `seed_trim` is the
`filtering_k` of the authors' code, the only alignment in it. The entropy bonus is in their configuration.
D_train is a mixture of base data, earlier valid traces and new ones. A round has one base task per four
variations, and a fifth of its tasks have a valid trace; the paper does not print that number. These tasks are
rolled out again, because GRPO needs samples of the present policy. The simulator is not trained on its
earlier generations. Every preset keeps held-out tasks out of training. The paper has no warm-up; after one,
AdamW keeps its moments."""

STEPS: Mapping[str, JsonObject] = {
    "simulator": {"variations": 4, "lr": 5e-7, "batch": 64},
    "agent": {"lr": 1e-6, "rollouts": 8, "groups_per_step": 16},
}
"""The lengths of the paper's steps. They suit full fine-tuning of 7B models, so no variant has them.

The learning rates and the simulator's batch of 64 are from the paper. The 8 rollouts and the mini-batches of
16 prompts are from the authors' configuration. Three numbers have no setting here. p_hat is counted in those
8 rollouts, not in 4 separate ones. The agent's batch of 64 prompts is a round: `simulator.contexts` times
`variations`, plus repeated tasks. The 9,000 tokens are `policy.context_tokens`, which depends on the model
and its memory."""

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
"""1. Weights that differ. 2. A posterior instead of raw shares. 3. The batch as the unit of p_hat (as in the
paper). 4. The full gate. 5. Near-copies of the archive rejected, similar tasks rewarded less. 6. Base tasks
and reviews in each round. 7. No compute for groups whose rewards agree. 8. After the warm-up, no leftover
momentum of supervised learning."""

PRESETS: Mapping[str, Mapping[str, JsonObject]] = {
    "paper": {section: {**settings, **STEPS.get(section, {})} for section, settings in METHOD.items()},
    "robust": ROBUST,
}
"""Settings by preset. `paper` sets learning rates, batches and rollouts; `robust` leaves their defaults."""


def preset(name: str) -> Mapping[str, JsonObject]:
    """Return the settings of a preset, by section.

    Raises:
        UsageError: there is no such preset.
    """
    return PRESETS[registered("preset", name, PRESETS)]
