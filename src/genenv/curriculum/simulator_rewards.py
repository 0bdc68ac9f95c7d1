"""What the simulator is paid for the rollouts of its tasks: a table of rewards, by name.

A reward says how much a task (or a batch of them, see `curriculum.p_hat_scope`) was worth to the agent's
learning. GRPO learns from rollouts that differ, so most of them are highest where about half succeed.

Shapes: n = rollouts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import cast

import numpy as np
from numpy.typing import NDArray

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.stats import BetaPosterior
from genenv.errors import UsageError
from genenv.plugins import own_part

EnvReward = Callable[[float, int, Sequence[float], CurriculumConfig], float]
"""(successes, rollouts >= 1, rewards [n] that the agent is trained on, settings) -> reward in [0, 1].
Successes may be the expectation of their number."""


def env_reward(p_hat: float, *, alpha: float, beta: float) -> float:
    """Reward the simulator for tasks that the agent solves about as often as wanted.

    R_env = exp(-beta (p_hat - alpha)^2): GenEnv eq. (3). 1 on target; with alpha = 0.5 and beta = 2 it is
    0.61 for tasks that are always or never solved.

    Args:
        p_hat: share of rollouts that succeeded, in [0, 1].
        alpha: the share to aim at, in (0, 1).
        beta: how fast the reward falls with the distance, > 0.

    Returns:
        The reward in (0, 1].

    Raises:
        ValueError: an argument outside its range.
    """
    _check_target(alpha, beta)
    if not 0 <= p_hat <= 1:
        raise ValueError(f"p_hat must be in [0, 1], got {p_hat}")
    return math.exp(-beta * (p_hat - alpha) ** 2)


def expected_env_reward(
    successes: float, attempts: float, *, alpha: float, beta: float, prior: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Reward the simulator for what the rollouts say about the rate, not for where they happen to fall.

    E[R_env(p)] for p ~ Beta(prior + counts). With few rollouts p_hat sits on a coarse lattice and 4 of 8 is
    no proof of 0.5; this is smooth in the evidence and approaches `env_reward` as rollouts grow.

    Args:
        successes: rollouts that succeeded; may be a decayed count.
        attempts: all rollouts, >= successes. With 0 the result is the mean under the prior.
        alpha: the share to aim at, in (0, 1).
        beta: how fast the reward falls with the distance, > 0.
        prior: pseudo-counts (successes, failures), both > 0.

    Returns:
        The expected reward in (0, 1].

    Raises:
        ValueError: an argument outside its range.
    """
    _check_target(alpha, beta)
    posterior = BetaPosterior.of(successes, attempts, prior)
    return posterior.expectation(lambda p: np.exp(-beta * (p - alpha) ** 2))


def _alpha(successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig) -> float:
    """R_env = exp(-beta (p - alpha)^2): GenEnv (arXiv:2512.19682), eq. (3)."""
    alpha, beta = config.alpha, config.beta
    if config.posterior:
        return expected_env_reward(successes, attempts, alpha=alpha, beta=beta, prior=config.prior)
    return env_reward(successes / attempts, alpha=alpha, beta=beta)


def _learnability(
    successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig
) -> float:
    """4 p (1 - p): the variance of a success, over its largest.

    Learnability of Rutherford et al. (arXiv:2408.15099) and of Tzannetos et al. (arXiv:2304.12877).
    """
    return _of_rate(successes, attempts, config, lambda p: 4 * p * (1 - p))


def _signal(successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig) -> float:
    """1 - p^G - (1 - p)^G: the chance that G rollouts differ, without which GRPO learns nothing.

    What DAPO's dynamic sampling (arXiv:2503.14476) asks for, as an expectation. G is `signal_attempts`.
    """
    n = config.signal_attempts
    return _of_rate(successes, attempts, config, lambda p: 1 - p**n - (1 - p) ** n)


def _variance(successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig) -> float:
    """4 mean((r - mean(r))^2): the variance of what the agent is trained on, partial credit included.

    Its root is by how much a group's centred advantages reach. It needs no rate, hence no posterior.
    """
    mean = fmean(rewards_n)
    return min(1.0, 4 * fmean((reward - mean) ** 2 for reward in rewards_n))


def _difficulty(
    successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig
) -> float:
    """1 - p: an adversary, which need not stop at what can be learned."""
    return _of_rate(successes, attempts, config, lambda p: 1 - p)


def _constant(successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig) -> float:
    """1: every valid task alike. The control in which updates happen and rewards say nothing."""
    return 1.0


ENV_REWARDS: Mapping[str, EnvReward] = {
    "alpha": _alpha,
    "learnability": _learnability,
    "signal": _signal,
    "variance": _variance,
    "difficulty": _difficulty,
    "constant": _constant,
    "shuffled": _alpha,
}
"""What `curriculum.env_reward` may say; `shuffled` is `alpha`, given to the wrong tasks (`handed_out`)."""

REWARD_ARGUMENTS = ("successes", "rollouts", "rewards", "config")
"""What a reward of the user's own is called with."""


def find_env_reward(name: str) -> EnvReward:
    """The reward of a name: of `ENV_REWARDS`, or a function of the user's own, `module:function`.

    Raises:
        UsageError: there is no such function. The function it returns raises it for a reward outside [0, 1].
    """
    if name in ENV_REWARDS:
        return ENV_REWARDS[name]
    own = cast(EnvReward, own_part("curriculum.env_reward", name, takes=REWARD_ARGUMENTS))

    def checked(
        successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig
    ) -> float:
        reward = own(successes, attempts, rewards_n, config)
        if not 0 <= reward <= 1:
            raise UsageError(
                f"{name} gave {reward!r} for {successes:g} successes in {attempts} rollouts; a reward of the "
                "simulator lies in [0, 1]"
            )
        return reward

    return checked


def reward_at(rate: float, name: str, config: CurriculumConfig) -> float:
    """What a success rate that is known, or predicted, is worth.

    Args:
        rate: p, in [0, 1].
        name: of a reward; `variance` is that of a success. One of the user's own gets no `rewards` here.
        config: alpha and beta, or `signal_attempts`, are read.
    """
    function = find_env_reward("learnability" if name == "variance" else name)
    return function(rate, 1, (), config.model_copy(update={"posterior": False}))


def in_round(config: CurriculumConfig, number: int, rounds: int) -> CurriculumConfig:
    """The settings of one round: alpha on its way from `alpha`, in round 1, to `alpha_last`, in the last."""
    if not config.alpha_last or rounds == 1:
        return config
    way = (number - 1) / (rounds - 1)
    return config.model_copy(update={"alpha": config.alpha + way * (config.alpha_last - config.alpha)})


def handed_out(rewards: Sequence[float], config: CurriculumConfig, rng: random.Random) -> list[float]:
    """The rewards as the simulator gets them: at random where that is the control that is asked for.

    The same rewards, so that weights, steps and drift are those of a learning simulator, but no word of
    which task earned them.

    Args:
        rewards: of the units of an update, in order.
        config: `env_reward` is read.
        rng: of the permutation.
    """
    return rng.sample(list(rewards), len(rewards)) if config.env_reward == "shuffled" else list(rewards)


def _of_rate(
    successes: float,
    attempts: int,
    config: CurriculumConfig,
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> float:
    """A function of the success rate: at the share that succeeded, or expected under its posterior."""
    if config.posterior:
        return BetaPosterior.of(successes, attempts, config.prior).expectation(function)
    return float(function(np.array([successes / attempts]))[0])


def _check_target(alpha: float, beta: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be > 0 and finite, got {beta}")
