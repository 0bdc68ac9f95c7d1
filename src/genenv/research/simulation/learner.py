"""The simulated agent: an ability curve over difficulty for each skill.

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

Shapes: S = skills, D = levels, N = tasks of a round, G = attempts at each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genenv.research.simulation.settings import LabConfig

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SimulatedAgent:
    """Attempts tasks, and learns from those it solves sometimes.

    Args:
        config: of the laboratory.
        rng: all of its chance. As much is drawn in each round whatever happens, so that two agents with the
        same state of it have the same luck.
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
        luck = self._rng.random((self._config.tasks, self._config.rollouts))
        chance_N = self.success()[skills_N, levels_N]
        return (luck[: len(chance_N)] < chance_N[:, None]).sum(axis=1)

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
