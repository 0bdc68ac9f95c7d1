"""The simulated simulator: a log-linear policy over the level of the tasks that it writes.

    logits[s, d] = shared[d] + own[s, d] + relative[d - level(s) + D]   all 0 before the first round
    policy[s]    = softmax(logits[s])
    pi(d | c)    = copy [d = d_c] + (1 - copy) policy[s_c][d]           a seed c of skill s_c and level d_c
    share[i]     = (1 - copy) policy[s_i][d_i] / pi(d_i | c_i)          the policy's part in sample i
    gradient     = sum_i weight[i] share[i] (onehot(d_i) - policy[s_i])
                   - anchor grad mean_s KL(policy[s] || initial)
    parameters  <- parameters + step gradient                           shared, own, relative alike

The gradient is the exact one of sum_i weight[i] log pi(d_i | c_i). Under reward-weighted regression (RWR)
the weights are those of `genenv.curriculum.selection.select` and sum to 1; under REINFORCE (Williams, 1992)
they are the standardised rewards minus their mean within the context, over N. Only a simulator that is told
the agent's state has `relative`: level(s) is read from the profile, see
`genenv.research.simulation.nouns.solved_levels`.

Shapes: S = skills, D = levels, N = samples.
"""

from __future__ import annotations

import numpy as np

from genenv.research.simulation.learner import Floats, Integers
from genenv.research.simulation.settings import LabConfig


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

    def told(self, levels_S: Floats) -> None:
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
        luck = rng.random((2, self._config.tasks))[:, : len(skills_N)]
        reached_ND = np.cumsum(self._policy_SD[skills_N], axis=1)
        own_N = np.minimum((luck[0][:, None] > reached_ND).sum(axis=1), self._config.levels - 1)
        return np.where(luck[1] < self._config.copy_share, seeds_N, own_N)

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
