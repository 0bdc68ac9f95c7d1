"""The simulator's rewards for the rollouts of its tasks, by name.

A reward says how much a task (or a batch of tasks, see `curriculum.p_hat_scope`) contributed to the agent's
training. GRPO needs rollouts with different rewards, so most functions peak where about half succeed.

Shapes: n = rollouts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.stats import BetaPosterior
from genenv.errors import UsageError
from genenv.plugins import own_part

_Unit = TypeVar("_Unit")
Rates = NDArray[np.float64]

EnvReward = Callable[[float, int, Sequence[float], CurriculumConfig], float]
"""(successes, rollouts >= 1, rewards [n] that the agent trains on, settings) -> reward in [0, 1]. `successes`
may be an expected number."""


def env_reward(p_hat: float, *, alpha: float, beta: float) -> float:
    """Return the simulator's reward for a measured success rate: 1 at the target.

    R_env = exp(-beta (p_hat - alpha)^2): GenEnv eq. (3). With alpha = 0.5 and beta = 2 it is 0.61 for tasks
    that are always or never solved.

    Args:
        p_hat: share of rollouts that succeeded, in [0, 1].
        alpha: the target success rate, in (0, 1).
        beta: how fast the reward falls with the distance, > 0.

    Returns:
        The reward in (0, 1].

    Raises:
        ValueError: an argument is outside its range.
    """
    _check_target(alpha, beta)
    if not 0 <= p_hat <= 1:
        raise ValueError(f"p_hat must be in [0, 1], got {p_hat}")
    return math.exp(-beta * (p_hat - alpha) ** 2)


def expected_env_reward(
    successes: float, attempts: float, *, alpha: float, beta: float, prior: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the expected reward under the posterior of the success rate, given the rollouts.

    E[R_env(p)] for p ~ Beta(prior + counts). With few rollouts p_hat is coarse, and 4 of 8 is weak evidence
    for 0.5. The expectation is smooth in the counts and approaches `env_reward` as rollouts grow.

    Args:
        successes: rollouts that succeeded; may be a decayed count.
        attempts: all rollouts, >= successes. With 0 the result is the mean under the prior.
        alpha: the target success rate, in (0, 1).
        beta: how fast the reward falls with the distance, > 0.
        prior: pseudo-counts (successes, failures), both > 0.

    Returns:
        The expected reward in (0, 1].

    Raises:
        ValueError: an argument is outside its range.
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


def _of_rate(function: Callable[[Rates, CurriculumConfig], Rates]) -> EnvReward:
    """Return the reward f(p): at the measured success rate, or in expectation under its posterior."""

    def reward(
        successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig
    ) -> float:
        if config.posterior:
            posterior = BetaPosterior.of(successes, attempts, config.prior)
            return posterior.expectation(lambda p: function(p, config))
        return float(function(np.array([successes / attempts]), config)[0])

    return reward


def _signal(p: Rates, config: CurriculumConfig) -> Rates:
    n = config.signal_attempts
    return 1 - p**n - (1 - p) ** n


def variance(rewards_n: Sequence[float]) -> float:
    """4 mean((r - mean(r))^2): the variance of the agent's rewards of one group, including partial credit.

    Its square root is proportional to the size of centred advantages. A batch of several groups earns the
    mean. No rate is needed, hence no posterior.
    """
    mean = fmean(rewards_n)
    return min(1.0, 4 * fmean((reward - mean) ** 2 for reward in rewards_n))


ENV_REWARDS: Mapping[str, EnvReward] = {
    "alpha": _alpha,
    "learnability": _of_rate(lambda p, _: 4 * p * (1 - p)),
    "signal": _of_rate(_signal),
    "variance": lambda successes, attempts, rewards_n, config: variance(rewards_n),
    "difficulty": _of_rate(lambda p, _: 1 - p),
    "constant": lambda successes, attempts, rewards_n, config: 1.0,
    "shuffled": _alpha,
}
"""The built-in rewards of `curriculum.env_reward` that are functions of one success rate.

`learnability`: the variance of a success, divided by its maximum (Rutherford et al., arXiv:2408.15099;
Tzannetos et al., arXiv:2304.12877). `signal`: the chance that G = `signal_attempts` rollouts differ, because
GRPO learns nothing from equal rollouts; the expectation of the criterion in DAPO's dynamic sampling
(arXiv:2503.14476). `difficulty`: an adversarial simulator, which also writes unsolvable tasks. `constant`:
the control with updates but without information in the rewards. `shuffled` is `alpha` with
`curriculum.shuffle_rewards`. The reward of two rates is `progress_reward`."""

REWARD_ARGUMENTS = ("successes", "rollouts", "rewards", "config")
"""The arguments of a user-defined reward."""


def progress_reward(progress: float) -> float:
    """Return the reward `progress`: the rise of a task's predicted success rate, mapped to [0, 1].

    R = (1 + p_now - p_then) / 2. It is signed: 0.5 if nothing has changed, less if the agent solves the task
    less often than before. So a task that the agent forgets is worth less than one that it never learned.
    Learning progress as a reward is due to Oudeyer et al. (2007); Matiisen et al. (arXiv:1707.00183) and
    Portelas et al. (arXiv:1910.07224) take its absolute value, so that forgotten tasks return.

    Args:
        progress: p_now - p_then, in [-1, 1].
    """
    return (1 + progress) / 2


def regret_reward(regret: float) -> float:
    """Return the reward `regret`: success of a strong agent minus that of a weak one, mapped to [0, 1].

    R = (1 + p_strong - p_weak) / 2. PAIRED (Dennis et al., arXiv:2012.02096) rewards the writer of tasks for
    this difference, so that it writes tasks that can be solved and that the weak agent does not solve yet.
    It is signed: 0.5 if both solve a task equally often. If the weak agent is the strong one of an earlier
    checkpoint, the regret is its progress p_now - p_then, measured by rollouts.

    Args:
        regret: p_strong - p_weak, in [-1, 1].
    """
    return (1 + regret) / 2


def find_env_reward(name: str) -> EnvReward:
    """Return a reward by name: one of `ENV_REWARDS`, or a user-defined function, `module:function`.

    Raises:
        UsageError: there is no such function. The returned function raises it for a reward outside [0, 1].
    """
    if name in ENV_REWARDS:
        return ENV_REWARDS[name]
    own = cast(EnvReward, own_part("curriculum.env_reward", name, takes=REWARD_ARGUMENTS))

    def checked(
        successes: float, attempts: int, rewards_n: Sequence[float], config: CurriculumConfig
    ) -> float:
        gave = own(successes, attempts, rewards_n, config)
        try:
            reward = float(gave)
        except (TypeError, ValueError):
            reward = math.nan
        if not 0 <= reward <= 1:
            raise UsageError(
                f"{name} gave {gave!r} for {successes:g} successes in {attempts} rollouts; a reward of the "
                "simulator lies in [0, 1]"
            )
        return reward

    return checked


def reward_at(rate: float, name: str, config: CurriculumConfig) -> float:
    """Return the reward of a known or predicted success rate.

    Args:
        rate: p, in [0, 1].
        name: name of a reward. `variance` is replaced by `learnability`. A user-defined reward is given one
            rollout, whose success and reward are the rate.
        config: alpha and beta, or `signal_attempts`, are read.
    """
    function = find_env_reward("learnability" if name == "variance" else name)
    return function(rate, 1, (rate,), config.model_copy(update={"posterior": False}))


def in_round(config: CurriculumConfig, number: int, rounds: int) -> CurriculumConfig:
    """Return the settings of one round: alpha moves linearly from `alpha`, in round 1, to `alpha_last`.

    It stays there in rounds after the last, in which `genenv generate` writes.
    """
    if not config.alpha_last or rounds < 2:
        return config
    way = min(1.0, (number - 1) / (rounds - 1))
    return config.model_copy(update={"alpha": config.alpha + way * (config.alpha_last - config.alpha)})


def shuffles(config: CurriculumConfig) -> bool:
    """Return whether the simulator is the shuffled-reward control."""
    return config.shuffle_rewards or config.env_reward == "shuffled"


def handed_out(units: Sequence[_Unit], config: CurriculumConfig, rng: random.Random) -> list[_Unit]:
    """Return for each unit the one whose reward it receives: itself, or another one in the control.

    The permutation keeps the distribution of weights, steps and drift of a learning simulator, but removes
    the information on which task earned each reward.

    Args:
        units: the units of an update, in order.
        config: `shuffle_rewards` and `env_reward` are read.
        rng: source of the permutation.
    """
    return rng.sample(list(units), len(units)) if shuffles(config) else list(units)


def _check_target(alpha: float, beta: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be > 0 and finite, got {beta}")
