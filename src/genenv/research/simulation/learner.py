"""The simulated learners and their settings.

The simulated agent: an ability curve over difficulty for each skill.

    p[s, d]      = sigmoid(slope (theta[s, d] - d))                      chance of success
    theta[s, d]  = theta_0[s] + gained[s, d],  theta_0[s] ~ N(mean, sd)  at first, gained = 0
    v[i]         = 4 k/G (1 - k/G)                                       signal of group i, k of G right
    practice     = rate sum_i v[i] K_s[s_i, s] K_d[d_i, d]               what a round teaches
    K_s[s, s']   = 1 where s = s', else spread_skills
    K_d[d, d']   = exp(-|d - d'| / spread_levels)
    gained      <- (1 - forgetting) gained + practice + N(0, noise)

v is the variance of the group's rewards over its largest: a group whose attempts agree has no advantages
under GRPO, and teaches nothing here either (GenEnv, arXiv:2512.19682, eq. 4 and 5: the gradient's square is
between two multiples of p(1 - p)).

The simulated simulator: a log-linear policy over the level of the tasks that it writes.

    logits[s, d] = shared[d] + own[s, d] + relative[d - level(s) + D]   all 0 before the first round
    policy[s]    = softmax(logits[s])
    pi(d | c)    = copy [d = d_c] + (1 - copy) policy[s_c][d]           a seed c of skill s_c and level d_c
    share[i]     = (1 - copy) policy[s_i][d_i] / pi(d_i | c_i)          the policy's part in sample i
    gradient     = sum_i weight[i] share[i] (onehot(d_i) - policy[s_i])
                   - anchor grad mean_s KL(policy[s] || initial)
    parameters  <- parameters + step gradient                           shared, own, relative alike

The gradient is the exact one of sum_i weight[i] log pi(d_i | c_i). Under reward-weighted regression (RWR)
the weights are those of `genenv.curriculum.update_selection.select` and sum to 1; under REINFORCE (Williams,
1992) they are the standardised rewards minus their mean within the context, over N. Only a simulator that
is told the agent's state has `relative`: level(s) is read from the profile, see
`genenv.research.simulation.simulated_run.solved_levels`.

Shapes: S = skills, D = levels, N = tasks of a round or samples, G = attempts at each task.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from genenv.settings import Settings


class LabConfig(Settings, frozen=True):
    """Settings of the simulated learners; the equations above say what each does."""

    rounds: int = Field(default=10, ge=1, le=1000)
    """Rounds of a run."""
    contexts: int = Field(default=8, ge=1, le=48)
    """Seeds that the simulator varies in a round; fewer where base tasks or reviews take their share."""
    variations: int = Field(default=4, ge=1, le=64)
    """Tasks that it writes for each; contexts x variations tasks are attempted in each round of each arm."""
    rollouts: int = Field(default=8, ge=2, le=64)
    """G, attempts at each task."""
    skills: int = Field(default=4, ge=1, le=32)
    """S, skills of the agent."""
    levels: int = Field(default=12, ge=2, le=64)
    """D, levels of difficulty."""
    slope: float = Field(default=1.75, gt=0, le=20)
    """How fast success falls with difficulty, per level, in logits."""
    ability_mean: float = Field(default=3.0, ge=-10, le=64)
    """Level that the average skill solves half the time, before the first round."""
    ability_sd: float = Field(default=1.0, ge=0, le=10)
    """Standard deviation of that between skills."""
    rate: float = Field(default=0.14, ge=0, le=10)
    """eta: what one group with full signal adds to the ability it practises, in levels."""
    spread_levels: float = Field(default=3.5, gt=0, le=1000)
    """Distance in levels over which practice loses a factor e."""
    spread_skills: float = Field(default=0.2, ge=0, le=1)
    """Share of practice that reaches every other skill."""
    forgetting: float = Field(default=0.05, ge=0, le=1)
    """Share of what was learned that is lost each round."""
    noise: float = Field(default=0.05, ge=0, le=10)
    """Standard deviation of the drift of each ability per round, in levels."""
    copy_share: float = Field(default=0.0, ge=0, le=1)
    """Chance that a written task has its seed's level, whatever the simulator has learned."""
    step: float = Field(default=8.0, ge=0, le=1000)
    """Length of the simulator's steps, the same for each of its algorithms."""
    anchor: float = Field(default=0.02, ge=0, le=100)
    """Weight of the KL divergence to the initial simulator."""
    goal: float = Field(default=0.4, gt=0, lt=1)
    """Held-out success at which the attempts until then are counted."""

    @property
    def tasks(self) -> int:
        """Tasks of a round."""
        return self.contexts * self.variations


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SimulatedAgent:
    """Attempts tasks, and learns from those it solves sometimes.

    Args:
        config: of the laboratory.
        rng: its random numbers. Each round draws equally many, so that two agents with the same state of it
        have the same noise.
    """

    def __init__(self, config: LabConfig, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        skills, levels = config.skills, config.levels
        start_S = rng.normal(config.ability_mean, config.ability_sd, skills)
        self._levels_D = np.arange(levels, dtype=np.float64)
        self._above_SD = start_S[:, None] - self._levels_D  # how far ability is above difficulty
        self._gained_SD = np.zeros((skills, levels))
        self._across_SS = np.where(np.eye(skills, dtype=bool), 1.0, config.spread_skills)
        distance_DD = np.abs(self._levels_D[:, None] - self._levels_D)
        self._along_DD = np.exp(-distance_DD / config.spread_levels)

    def success(self) -> Floats:
        """[S, D] the true chance to solve a task of each skill and level."""
        return sigmoid(self._config.slope * (self._above_SD + self._gained_SD))

    def held_out(self) -> float:
        """Success over all skills and levels alike: what an endless held-out set would give."""
        chances_SD = self.success()
        return float(chances_SD.sum()) / chances_SD.size

    def attempt(self, skills_N: Integers, levels_N: Integers) -> Integers:
        """[N] how many of the G attempts at each task succeed; at most `LabConfig.tasks` tasks."""
        noise = self._rng.random((self._config.tasks, self._config.rollouts))
        chance_N = self.success()[skills_N, levels_N]
        return (noise[: len(chance_N)] < chance_N[:, None]).sum(axis=1)

    def learn(self, skills_N: Integers, levels_N: Integers, successes_N: Integers) -> None:
        """One round's update. Without any group it forgets all the same."""
        config = self._config
        rates_N = successes_N / config.rollouts
        signal_SD = np.zeros_like(self._gained_SD)
        np.add.at(signal_SD, (skills_N, levels_N), 4 * rates_N * (1 - rates_N))
        practice_SD = config.rate * (self._across_SS @ signal_SD @ self._along_DD)
        drift_SD = self._rng.normal(0.0, config.noise, self._gained_SD.shape)
        self._gained_SD = (1 - config.forgetting) * self._gained_SD + practice_SD + drift_SD


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), which never overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


class SimulatedSimulator:
    """Writes levels, and learns which of them pay.

    Args:
        config: of the laboratory.
        conditioned: whether the agent's state goes into the policy.
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
        """[S, D] the chance of each level, where none is copied."""
        return self._policy_SD

    def observe_profile(self, levels_S: Floats) -> None:
        """Take in the agent's state: how many levels of each skill it solves. Ignored unless conditioned."""
        if self._conditioned:
            levels = self._config.levels
            offsets_SD = np.arange(levels) - np.rint(levels_S).astype(np.int64)[:, None] + levels
            self._offsets_SD = np.clip(offsets_SD, 0, 2 * levels - 1)
        self._settle()

    def write(self, skills_N: Integers, seeds_N: Integers, rng: np.random.Generator) -> Integers:
        """[N] levels of new tasks.

        Args:
            skills_N: of the seeds, which tasks keep.
            seeds_N: the levels of the seeds.
            rng: as much is drawn in each round whatever the policy is.
        """
        noise = rng.random((2, self._config.tasks))[:, : len(skills_N)]
        reached_ND = np.cumsum(self._policy_SD[skills_N], axis=1)
        own_N = np.minimum((noise[0][:, None] > reached_ND).sum(axis=1), self._config.levels - 1)
        return np.where(noise[1] < self._config.copy_share, seeds_N, own_N)

    def learn(self, skills_N: Integers, seeds_N: Integers, levels_N: Integers, weights_N: Floats) -> None:
        """One step along the gradient."""
        config, policy_SD = self._config, self._policy_SD
        own_N = (1 - config.copy_share) * policy_SD[skills_N, levels_N]
        chance_N = own_N + config.copy_share * (levels_N == seeds_N)
        weights_N = weights_N * own_N / chance_N
        gradient_SD = np.zeros_like(policy_SD)
        np.add.at(gradient_SD, (skills_N, levels_N), weights_N)
        total_S = np.bincount(skills_N, weights_N, minlength=config.skills)
        gradient_SD -= total_S[:, None] * policy_SD
        moved_SD = np.log(policy_SD * config.levels)  # log-ratio to the initial policy, which is uniform
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
