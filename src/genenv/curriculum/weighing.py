"""Which batches teach the simulator, and how much each generation counts.

Shapes: N = generations of one update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

BAND_TOLERANCE = 1e-9
"""Rates are fractions, and 0.5 - 0.4 is not 0.1 in binary: the edge of the band belongs to it."""


def in_band(p_hat: float, alpha: float, k_min: float) -> bool:
    """Whether a rate is close enough to the target to teach the simulator: |p_hat - alpha| <= k_min.

    GenEnv section 2.3. It concerns the simulator's updates only, never the agent's. The edge counts as
    inside.
    """
    return abs(p_hat - alpha) <= k_min + BAND_TOLERANCE


def band_divides(attempts: int, alpha: float, k_min: float) -> bool:
    """Whether p_hat of so many attempts can fall inside the band, and can fall outside it.

    p_hat is one of 0, 1/n, ... 1. Where all of these lie inside the band, or none does, a share of batches
    in the band says nothing of the batches: with alpha 0.5 and k_min 0.1, three attempts never fall inside.
    """
    inside = [in_band(k / attempts, alpha, k_min) for k in range(attempts + 1)] if attempts else []
    return any(inside) and not all(inside)


def rwr_weights(env_rewards: Sequence[float], *, rwr_lambda: float, standardise: bool = False) -> list[float]:
    r"""Weigh the simulator's own tasks by how well they matched the agent's level.

    w_i = exp(lambda * R_i) / sum_j exp(lambda * R_j): the reward-weighted regression weights of
    GenEnv (arXiv:2512.19682, section 2.3). At 0 every task counts alike and the step is plain fine-tuning.

    Behind the filter all R_i lie within 2% of each other, and so do the weights. With `standardise`, R_i is
    replaced by (R_i - mean) / std, so lambda counts in standard deviations; when all agree, all
    weights are equal.

    Args:
        env_rewards: [N] rewards R_i in [0, 1], one per generation. Dimensionless.
        rwr_lambda: the paper's lambda, >= 0. Dimensionless.
        standardise: whether to subtract the mean and divide by the (population) standard deviation first.

    Returns:
        [N] weights in [0, 1], in input order, summing to 1.

    Raises:
        ValueError: no rewards, one that is not finite, or a negative lambda.
    """
    if not env_rewards:
        raise ValueError("there are no rewards to weigh")
    if not all(map(math.isfinite, env_rewards)):
        raise ValueError(f"every reward must be finite, got {list(env_rewards)}")
    if not 0 <= rwr_lambda < math.inf:
        raise ValueError(f"rwr_lambda must be finite and >= 0, got {rwr_lambda}")
    rewards_N = np.asarray(env_rewards, dtype=np.float64)
    centred_N = rewards_N - rewards_N.max()  # the largest exponent is 0: nothing overflows
    if standardise:
        spread = float(rewards_N.std())
        equal = spread <= 1e-12 * max(1.0, float(np.abs(rewards_N).max()))
        centred_N = np.zeros_like(rewards_N) if equal else centred_N / spread
    weights_N = np.exp(rwr_lambda * centred_N)
    return (weights_N / weights_N.sum()).tolist()


def weight_contrast(weights: Sequence[float]) -> float:
    """The largest weight over the smallest: 1 when rewards did not matter, about 1e307 when one vanished.

    Raises:
        ValueError: no weights.
    """
    if not weights:
        raise ValueError("there are no weights to compare")
    return max(weights) / max(min(weights), sys.float_info.min)  # finite: it is logged as JSON


def effective_samples(weights: Sequence[float]) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2.

    N when all weights agree, 1 when one has it all, 0 without weights.
    """
    squares = math.fsum(weight**2 for weight in weights)
    return math.fsum(weights) ** 2 / squares if squares > 0 else 0.0
