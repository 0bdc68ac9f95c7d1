"""Which seeds the simulator varies in a round: at random, by expected reward, a bandit, or a controller.

`Controller` is the baseline without learning: one difficulty level, steered towards the target rate.

    level <- level + gain * (success rate of new tasks - alpha),  in [0, 1]

Seeds are ranked by the length of their solutions; those nearest to the level are varied.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import expected_env_reward, find_env_reward
from genenv.curriculum.stats import BetaPosterior, SkillStats
from genenv.curriculum.update_selection import rwr_weights
from genenv.errors import DataError, UsageError
from genenv.plugins import own_part
from genenv.types import Group, JsonObject, Seed


class SeedChooser(Protocol):
    """A curriculum over seeds: `Controller`, or a class of your own named by `curriculum.seed_choice`.

    One of the user's own is made as `Class(config)`, with the settings of the curriculum.
    """

    def choose(self, seeds: Sequence[Seed], n: int, rng: random.Random) -> Sequence[Seed]:
        """Choose n different seeds for a round; the same state of `rng` gives the same choice."""
        ...

    def observe(self, groups: Sequence[Group]) -> None:
        """Take in a round's rollouts of new tasks; called once a round."""
        ...

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` needs, as JSON: stored with each round, so that a run can go on."""
        ...

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave."""
        ...


_LATTICE = 100


def choose_seeds(
    seeds: Sequence[Seed], stats: SkillStats, n: int, rng: random.Random, config: CurriculumConfig
) -> list[Seed]:
    """Choose the seeds that the simulator varies in a round, without replacement.

    First `seed_trim` of them, the easiest and as many of the hardest, are left out. Of the others,
    `uniform`: all alike. `expected_reward`: a seed's reward is E[R_env] under the posterior of its hardest
    skill, and its weight is exp(seed_temperature * E[R_env]). What nobody has tried has a wide posterior,
    hence a middling reward: it is neither preferred nor left out. The rewards are not standardised, because
    a simulator stays with the difficulty of its seed: what is never drawn here is never practised. For the
    same reason the draw is systematic in the order of difficulty: independent draws would make one round much
    harder than the next. `bandit`: Thompson sampling over the combinations of skills that seeds have (see
    `_by_bandit`).

    Args:
        seeds: the base data.
        stats: how the agent has been doing.
        n: how many to choose, >= 0.
        rng: the same state gives the same choice.
        config: `seed_trim`, `seed_choice`, `seed_temperature` and the reward's settings are read.

    Returns:
        n different seeds, in random order.

    Raises:
        UsageError: there are no seeds, or fewer than n.
    """
    if not seeds:
        raise UsageError("the environment has no seeds to vary; give it at least one item of base data")
    if n > len(seeds):
        raise UsageError(
            f"simulator.contexts is {n}, but the environment has {len(seeds)} seeds; "
            f"set simulator.contexts to {len(seeds)} or less, or add seeds"
        )
    if config.seed_choice == "uniform" and not config.seed_trim:
        return rng.sample(list(seeds), n)
    if config.seed_choice == "bandit":
        return _by_bandit(seeds, stats, n, rng, config)
    posteriors = {seed.id: stats.hardest(seed.skills) for seed in seeds}
    by_difficulty = sorted(rng.sample(list(seeds), len(seeds)), key=lambda seed: posteriors[seed.id].mean)
    trimmed = min(int(config.seed_trim * len(seeds)), (len(seeds) - n) // 2)
    by_difficulty = by_difficulty[trimmed : len(seeds) - trimmed]
    if config.seed_choice == "uniform":
        return rng.sample(by_difficulty, n)
    rewards = [_expected_reward(posteriors[seed.id], config) for seed in by_difficulty]
    weights = rwr_weights(rewards, rwr_lambda=config.seed_temperature)
    chosen = [by_difficulty[i] for i in systematic(weights, n, rng)]
    return rng.sample(chosen, n)


def _by_bandit(
    seeds: Sequence[Seed], stats: SkillStats, n: int, rng: random.Random, config: CurriculumConfig
) -> list[Seed]:
    """Draws one seed after the other, by Thompson sampling (Thompson 1933).

    Of each combination of skills a success rate is drawn from its posterior,
    and a seed of the combination is taken whose rate earns most.
    """
    arms: dict[tuple[str, ...], list[Seed]] = {}
    for seed in rng.sample(list(seeds), len(seeds)):
        arms.setdefault(seed.skills, []).append(seed)
    known = {skills: stats.combined(skills) for skills in arms}
    earned = functools.cache(functools.partial(_earned, config.model_copy(update={"posterior": False})))
    chosen: list[Seed] = []
    while len(chosen) < n:
        rates = {
            skills: rng.betavariate(known[skills].a, known[skills].b) for skills, left in arms.items() if left
        }
        chosen.append(arms[max(rates, key=lambda skills: earned(round(_LATTICE * rates[skills])))].pop())
    return chosen


def _earned(config: CurriculumConfig, hundredths: int) -> float:
    """What a success rate earns, to a hundredth."""
    rewards = [1.0] * hundredths + [0.0] * (_LATTICE - hundredths)
    return find_env_reward(config.env_reward)(hundredths, _LATTICE, rewards, config)


def _expected_reward(posterior: BetaPosterior, config: CurriculumConfig) -> float:
    return expected_env_reward(0, 0, alpha=config.alpha, beta=config.beta, prior=(posterior.a, posterior.b))


def systematic(weights: Sequence[float], n: int, rng: random.Random) -> list[int]:
    """Draw n different items with chances in proportion to their weights, spread evenly over their order.

    Systematic sampling (Madow, 1949): the chances stand in a row of length n, and every item is drawn in
    which a comb of distance 1 with a random offset has a tooth. Any stretch of the row gets its share,
    rounded up or down. An item whose chance would pass 1 is drawn for certain, and the others share what is
    left.

    Args:
        weights: [N] >= 0, not all 0, in the order to spread over.
        n: how many, at most N.
        rng: the only source of chance.

    Returns:
        [n] indices, ascending.
    """
    chances = [0.0] * len(weights)
    certain: set[int] = set()
    while len(certain) < n:
        rest = math.fsum(w for i, w in enumerate(weights) if i not in certain)
        if rest <= 0:  # the weights left are too small for a float: all alike
            chances = [(n - len(certain)) / (len(weights) - len(certain))] * len(weights)
            break
        chances = [w * (n - len(certain)) / rest for w in weights]
        over = {i for i, chance in enumerate(chances) if chance >= 1 and i not in certain}
        if not over:
            break
        certain |= over
    others = [i for i in range(len(weights)) if i not in certain]
    reached = list(itertools.accumulate(chances[i] for i in others))
    offset = rng.random()
    teeth = (bisect.bisect_right(reached, offset + k) for k in range(n - len(certain)))
    return sorted([*certain, *(others[min(at, len(others) - 1)] for at in teeth)])


GAIN = 0.2
"""With alpha 0.5, a round that solves everything adds a tenth of the ranks: no more than it looks at."""
SHARE = 0.2
"""Of the seeds, those nearest to the level, from which a round's are drawn."""


class _State(BaseModel, extra="forbid", allow_inf_nan=False):
    level: float = Field(ge=0, le=1)


def own_chooser(config: CurriculumConfig) -> SeedChooser:
    """An object of the user's own class that `curriculum.seed_choice` names.

    Raises:
        UsageError: there is no such class, or it is none.
    """
    return cast(Callable[[CurriculumConfig], SeedChooser], chooser_class(config.seed_choice))(config)


def chooser_class(name: str) -> object:
    """The class of the user's own that a value of `curriculum.seed_choice` names, checked.

    Raises:
        UsageError: there is no such class, or it is none.
    """
    methods = ("choose", "observe", "state_dict", "load_state_dict")
    return own_part("curriculum.seed_choice", name, takes=("config",), methods=methods)


def checked_choice(chosen: Sequence[Seed], n: int, name: str) -> list[Seed]:
    """What a chooser of the user's own chose, as promised.

    Raises:
        UsageError: it did not choose n different seeds.
    """
    if len(chosen) != n or len({seed.id for seed in chosen}) != n:
        raise UsageError(f"{name} chose {len(chosen)} seeds where {n} different ones were asked for")
    return list(chosen)


class Controller:
    """Chooses seeds by their rank in difficulty."""

    def __init__(self, difficulties: Mapping[str, tuple[float, ...]], *, alpha: float) -> None:
        """Start in the middle.

        Args:
            difficulties: by seed id, anything that can be ordered; equal ones share a rank.
            alpha: the success rate to steer to.
        """
        order = sorted(set(difficulties.values()))
        places = {value: place / max(1, len(order) - 1) for place, value in enumerate(order)}
        self._ranks = {name: places[value] for name, value in difficulties.items()}
        self._alpha, self.level = alpha, 0.5

    def choose(self, seeds: Sequence[Seed], n: int, rng: random.Random) -> list[Seed]:
        """Draw n different seeds of those nearest to the level."""
        shuffled = rng.sample(list(seeds), len(seeds))
        nearest = sorted(shuffled, key=lambda seed: abs(self._ranks.get(seed.id, 0.5) - self.level))
        return rng.sample(nearest[: max(n, int(SHARE * len(seeds)))], n)

    def observe(self, groups: Sequence[Group]) -> None:
        """Steer by the rollouts of a round's new tasks."""
        attempts = sum(len(group.valid) for group in groups)
        if attempts:
            rate = sum(trace.success for group in groups for trace in group.valid) / attempts
            self.level = min(1.0, max(0.0, self.level + GAIN * (rate - self._alpha)))

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` needs."""
        return {"level": self.level}

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self.level = _State.model_validate(state).level
        except ValidationError as error:
            raise DataError(
                f"the controller's state in this run's store is damaged: {error.errors()[0]['msg']}"
            ) from error
