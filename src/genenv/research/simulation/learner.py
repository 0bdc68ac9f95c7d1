"""The simulated agent and simulator of `genenv lab`, and their settings.

The simulated agent: an ability curve over difficulty for each skill.

    p[s, d]      = sigmoid(slope (theta[s, d] - d))                      chance of success
    theta[s, d]  = theta_0[s] + gained[s, d],  theta_0[s] ~ N(mean, sd)  initially gained = 0
    v[i]         = 4 k/G (1 - k/G)                                       signal of group i, k of G succeed
    practice     = rate sum_i v[i] K_s[s_i, s] K_d[d_i, d]               gain of ability in a round
    K_s[s, s']   = 1 if s = s', else spread_skills
    K_d[d, d']   = exp(-|d - d'| / spread_levels)
    gained      <- (1 - forgetting) gained + practice + N(0, noise)

v is the variance of the group's rewards, divided by its maximum. A group with equal rewards has no advantages
under GRPO, and does not train this agent either (GenEnv, arXiv:2512.19682, eq. 4 and 5: the squared gradient
is between two multiples of p(1 - p)).

The simulated simulator: a log-linear policy over the level of the tasks that it writes.

    logits[s, d] = shared[d] + own[s, d] + relative[d - level(s) + D]   all 0 before the first round
    policy[s]    = softmax(logits[s])
    pi(d | c)    = copy [d = d_c] + (1 - copy) policy[s_c][d]           a seed c of skill s_c and level d_c
    share[i]     = (1 - copy) policy[s_i][d_i] / pi(d_i | c_i)          the policy's part in sample i
    gradient     = sum_i weight[i] share[i] (onehot(d_i) - policy[s_i])
                   - anchor grad mean_s KL(policy[s] || initial)
    parameters  <- parameters + step gradient                           for shared, own and relative

This is the exact gradient of sum_i weight[i] log pi(d_i | c_i). Under reward-weighted regression (RWR) the
weights are those of `genenv.curriculum.update_selection.select` and sum to 1. Under REINFORCE (Williams,
1992) they are the standardised rewards minus their mean within the context, over N. Only a simulator
conditioned on the agent's profile has `relative`: `solved_levels` of
`genenv.research.simulation.simulated_run` reads level(s) from the profile.

Shapes: S = skills, D = levels, N = tasks of a round or samples, G = rollouts per task.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from genenv.settings import Settings


class LabConfig(Settings, frozen=True):
    """Settings of the simulated learners; the module's equations say what each does."""

    rounds: int = Field(default=10, ge=1, le=1000)
    """The number of rounds of a run."""
    contexts: int = Field(default=8, ge=1, le=48)
    """The most seeds that the simulator varies in a round; fewer if base or review tasks take their share."""
    variations: int = Field(default=4, ge=1, le=64)
    """The tasks written per seed. Each arm rolls out contexts x variations tasks in a round."""
    rollouts: int = Field(default=8, ge=2, le=64)
    """G, the rollouts per task."""
    skills: int = Field(default=4, ge=1, le=32)
    """S, the number of skills of the agent."""
    levels: int = Field(default=12, ge=2, le=64)
    """D, the number of difficulty levels."""
    slope: float = Field(default=1.75, gt=0, le=20)
    """The decrease of the success logit per level of difficulty."""
    ability_mean: float = Field(default=3.0, ge=-10, le=64)
    """The level at which the average skill succeeds half of the time, before the first round."""
    ability_sd: float = Field(default=1.0, ge=0, le=10)
    """The standard deviation of that level over skills."""
    rate: float = Field(default=0.14, ge=0, le=10)
    """The ability in levels that one group with full signal adds."""
    spread_levels: float = Field(default=3.5, gt=0, le=1000)
    """The distance in levels over which practice falls by a factor of e."""
    spread_skills: float = Field(default=0.2, ge=0, le=1)
    """The share of practice that transfers to every other skill."""
    forgetting: float = Field(default=0.05, ge=0, le=1)
    """The share of gained ability that is lost in each round."""
    noise: float = Field(default=0.05, ge=0, le=10)
    """The standard deviation of the random drift of each ability per round, in levels."""
    copy_share: float = Field(default=0.0, ge=0, le=1)
    """The probability that a written task copies its seed's level, independent of the simulator's policy."""
    step: float = Field(default=8.0, ge=0, le=1000)
    """The step size of the simulator's updates, under RWR and REINFORCE."""
    anchor: float = Field(default=0.02, ge=0, le=100)
    """The weight of the KL divergence from the initial simulator."""
    goal: float = Field(default=0.4, gt=0, lt=1)
    """The held-out success at which the rollouts used so far are counted."""

    @property
    def tasks(self) -> int:
        """Return the number of tasks of a round."""
        return self.contexts * self.variations


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SimulatedAgent:
    """A simulated agent: rolls out tasks, and gains ability from groups with mixed outcomes.

    Args:
        config: the settings of the simulation.
        rng: the agent's random numbers. Every round draws the same count, so two agents that start with equal
            generators have the same noise.
    """

    def __init__(self, config: LabConfig, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        skills, levels = config.skills, config.levels
        start_S = rng.normal(config.ability_mean, config.ability_sd, skills)
        self._levels_D = np.arange(levels, dtype=np.float64)
        self._above_SD = start_S[:, None] - self._levels_D  # ability minus difficulty
        self._gained_SD = np.zeros((skills, levels))
        self._across_SS = np.where(np.eye(skills, dtype=bool), 1.0, config.spread_skills)
        distance_DD = np.abs(self._levels_D[:, None] - self._levels_D)
        self._along_DD = np.exp(-distance_DD / config.spread_levels)

    def success(self) -> Floats:
        """Return the true success probability for each skill and level, [S, D]."""
        return sigmoid(self._config.slope * (self._above_SD + self._gained_SD))

    def held_out(self) -> float:
        """Return the mean success over all skills and levels, as of an infinite held-out set."""
        chances_SD = self.success()
        return float(chances_SD.sum()) / chances_SD.size

    def attempt(self, skills_N: Integers, levels_N: Integers) -> Integers:
        """Return the number of successes among each task's G rollouts, [N], with N <= `LabConfig.tasks`."""
        noise = self._rng.random((self._config.tasks, self._config.rollouts))
        chance_N = self.success()[skills_N, levels_N]
        return (noise[: len(chance_N)] < chance_N[:, None]).sum(axis=1)

    def learn(self, skills_N: Integers, levels_N: Integers, successes_N: Integers) -> None:
        """Update the abilities after a round; forgetting and drift also apply if there are no groups."""
        config = self._config
        rates_N = successes_N / config.rollouts
        signal_SD = np.zeros_like(self._gained_SD)
        np.add.at(signal_SD, (skills_N, levels_N), 4 * rates_N * (1 - rates_N))
        practice_SD = config.rate * (self._across_SS @ signal_SD @ self._along_DD)
        drift_SD = self._rng.normal(0.0, config.noise, self._gained_SD.shape)
        self._gained_SD = (1 - config.forgetting) * self._gained_SD + practice_SD + drift_SD


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)), computed without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


class SimulatedSimulator:
    """A simulated simulator: draws levels of tasks from its policy, and learns which get a high reward.

    Args:
        config: the settings of the simulation.
        conditioned: whether the policy depends on the agent's profile.
    """

    def __init__(self, config: LabConfig, *, conditioned: bool = False) -> None:
        self._config, self._conditioned = config, conditioned
        skills, levels = config.skills, config.levels
        self._shared_D = np.zeros(levels)
        self._own_SD = np.zeros((skills, levels))
        self._relative = np.zeros(2 * levels)
        self._offsets_SD = np.zeros((skills, levels), dtype=np.int64)
        self._policy_SD = np.full((skills, levels), 1 / levels)

    @property
    def policy(self) -> Floats:
        """Return the probability of each level if the seed's level is not copied, [S, D]."""
        return self._policy_SD

    def observe_profile(self, levels_S: Floats) -> None:
        """Set the agent's solved levels of each skill, [S]; has no effect unless conditioned."""
        if self._conditioned:
            levels = self._config.levels
            offsets_SD = np.arange(levels) - np.rint(levels_S).astype(np.int64)[:, None] + levels
            self._offsets_SD = np.clip(offsets_SD, 0, 2 * levels - 1)
        self._settle()

    def write(self, skills_N: Integers, seeds_N: Integers, rng: np.random.Generator) -> Integers:
        """Draw the levels of new tasks, [N].

        Args:
            skills_N: the skills of the seeds, which their tasks keep.
            seeds_N: the levels of the seeds.
            rng: the random numbers; every round draws the same count, whatever the policy is.
        """
        noise = rng.random((2, self._config.tasks))[:, : len(skills_N)]
        reached_ND = np.cumsum(self._policy_SD[skills_N], axis=1)
        own_N = np.minimum((noise[0][:, None] > reached_ND).sum(axis=1), self._config.levels - 1)
        return np.where(noise[1] < self._config.copy_share, seeds_N, own_N)

    def learn(self, skills_N: Integers, seeds_N: Integers, levels_N: Integers, weights_N: Floats) -> None:
        """Take one gradient step on weighted samples."""
        config, policy_SD = self._config, self._policy_SD
        own_N = (1 - config.copy_share) * policy_SD[skills_N, levels_N]
        chance_N = own_N + config.copy_share * (levels_N == seeds_N)
        weights_N = weights_N * own_N / chance_N
        gradient_SD = np.zeros_like(policy_SD)
        np.add.at(gradient_SD, (skills_N, levels_N), weights_N)
        total_S = np.bincount(skills_N, weights_N, minlength=config.skills)
        gradient_SD -= total_S[:, None] * policy_SD
        moved_SD = np.log(policy_SD * config.levels)  # log-ratio to the uniform initial policy
        kl_S1 = (policy_SD * moved_SD).sum(axis=1, keepdims=True)
        gradient_SD -= config.anchor / config.skills * policy_SD * (moved_SD - kl_S1)
        self._shared_D += config.step * gradient_SD.sum(axis=0)
        self._own_SD += config.step * gradient_SD
        if self._conditioned:
            np.add.at(self._relative, self._offsets_SD, config.step * gradient_SD)
        self._settle()

    def _settle(self) -> None:
        logits_SD = self._shared_D + self._own_SD
        if self._conditioned:
            logits_SD = logits_SD + self._relative[self._offsets_SD]
        powers_SD = np.exp(np.maximum(logits_SD - logits_SD.max(axis=1, keepdims=True), -30.0))
        self._policy_SD = powers_SD / powers_SD.sum(axis=1, keepdims=True)
