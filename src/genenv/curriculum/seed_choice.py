"""Chooses the seeds that the simulator varies: uniformly, by expected reward, by a bandit or a controller.

`Controller` is a baseline without learning. It steers one difficulty level towards the target rate:

    level <- level + gain * (success rate of new tasks - alpha),  in [0, 1]

Seeds are ranked by the length of their demonstrations. Those nearest to the level are varied.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, cast

from pydantic import BaseModel, Field

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import expected_env_reward, find_env_reward
from genenv.curriculum.stats import BetaPosterior, SkillStats, restored
from genenv.curriculum.update_selection import rwr_weights
from genenv.errors import UsageError, first_line
from genenv.plugins import own_part
from genenv.types import Group, Json, JsonObject, Seed, Task


class SeedChooser(Protocol):
    """A curriculum over seeds: `Controller`, or a user-defined class that `curriculum.seed_choice` names.

    A user-defined class is constructed as `Class(config)`, with the settings of the curriculum.
    """

    def choose(self, seeds: Sequence[Seed], n: int, rng: random.Random) -> Sequence[Seed]:
        """Choose n different seeds for a round. The same state of `rng` gives the same choice."""
        ...

    def observe(self, groups: Sequence[Group]) -> None:
        """Update the state from a round's rollouts of new tasks; called once per round."""
        ...

    def state_dict(self) -> JsonObject:
        """Return the state as JSON. It is stored with each round, so that a run can be resumed."""
        ...

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned."""
        ...


def pass_sizes(wanted: int, available: int) -> list[int]:
    """Return how many different seeds to choose in each pass, where more are wanted than there are."""
    n = -(-wanted // available)
    return [wanted // n + (number < wanted % n) for number in range(n)]


_LATTICE = 100


def choose_seeds(
    seeds: Sequence[Seed],
    stats: SkillStats,
    n: int,
    rng: random.Random,
    config: CurriculumConfig,
    *,
    base: Mapping[str, Task] = MappingProxyType({}),
) -> list[Seed]:
    """Choose the seeds that the simulator varies in a round, without replacement.

    First, a share of `seed_trim` of the easiest seeds and as many of the hardest are left out, except by
    `bandit`, which looks for the level itself. The choice among the others depends on `seed_choice`:

    `uniform`: all seeds have the same chance. `expected_reward`: a seed's reward is E[R_env] under the
    posterior of its hardest skill, and its weight is exp(seed_temperature * E[R_env]). An untried skill has a
    wide posterior, so its reward is medium: the seed is neither preferred nor avoided. Rewards are not
    standardised, so no seed's chance vanishes: the difficulty of a task follows its seed, and difficulties
    never drawn would never be practised. The draw is systematic in the order of difficulty, because
    independent draws would make some rounds much harder than others. `bandit`: Thompson sampling over the
    seeds' combinations of skills (see `_by_bandit`).

    Args:
        seeds: the base data.
        stats: the agent's success rates per skill.
        n: number of seeds, >= 0.
        rng: source of randomness; the same state gives the same choice.
        config: `seed_trim`, `seed_choice`, `seed_temperature` and the reward's settings are read.
        base: base tasks by the id of their seed. Their skills are what is counted; a seed may have fewer.

    Returns:
        n different seeds, in random order.

    Raises:
        UsageError: there are no seeds, or fewer than n.
    """
    check_seeds(seeds, n)
    if config.seed_choice == "uniform" and not config.seed_trim:
        return rng.sample(list(seeds), n)
    if config.seed_choice == "bandit":
        return _by_bandit(seeds, stats, n, rng, config, base)
    posteriors = {seed.id: stats.hardest(_skills(seed, base)) for seed in seeds}
    by_difficulty = sorted(rng.sample(list(seeds), len(seeds)), key=lambda seed: posteriors[seed.id].mean)
    trimmed = min(int(config.seed_trim * len(seeds)), (len(seeds) - n) // 2)
    by_difficulty = by_difficulty[trimmed : len(seeds) - trimmed]
    if config.seed_choice == "uniform":
        return rng.sample(by_difficulty, n)
    rewards = [_expected_reward(posteriors[seed.id], config) for seed in by_difficulty]
    weights = rwr_weights(rewards, rwr_lambda=config.seed_temperature)
    chosen = [by_difficulty[i] for i in systematic(weights, n, rng)]
    return rng.sample(chosen, n)


def check_seeds(seeds: Sequence[Seed], n: int) -> None:
    """Refuse an environment in which n seeds cannot be chosen.

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


def _skills(seed: Seed, base: Mapping[str, Task]) -> tuple[str, ...]:
    """Return the skills of a seed's base task; those of the seed if there is none."""
    return base[seed.id].skills if seed.id in base else seed.skills


def _by_bandit(
    seeds: Sequence[Seed],
    stats: SkillStats,
    n: int,
    rng: random.Random,
    config: CurriculumConfig,
    base: Mapping[str, Task],
) -> list[Seed]:
    """Draw one seed after another by Thompson sampling (Thompson 1933).

    Each draw samples a success rate for every combination of skills from its posterior. It takes a seed of
    the combination whose sampled rate has the highest reward.
    """
    arms: dict[tuple[str, ...], list[Seed]] = {}
    for seed in rng.sample(list(seeds), len(seeds)):
        arms.setdefault(tuple(sorted(_skills(seed, base))), []).append(seed)
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
    """Return the simulator's reward for a success rate in hundredths."""
    rewards = [1.0] * hundredths + [0.0] * (_LATTICE - hundredths)
    return find_env_reward(config.env_reward)(hundredths, _LATTICE, rewards, config)


def _expected_reward(posterior: BetaPosterior, config: CurriculumConfig) -> float:
    return expected_env_reward(0, 0, alpha=config.alpha, beta=config.beta, prior=(posterior.a, posterior.b))


def systematic(weights: Sequence[float], n: int, rng: random.Random) -> list[int]:
    """Draw n different items with chances proportional to weights, spread evenly over their order.

    Systematic sampling (Madow, 1949): the chances are laid end to end on a line of length n. Points at
    distance 1, with a random offset, select the items that they fall on. So every stretch of the line gets
    its share, rounded up or down. An item whose chance would exceed 1 is drawn for certain, and the others
    share the remaining draws.

    Args:
        weights: [N] >= 0, not all 0, in the order to spread over.
        n: number of items, at most N.
        rng: source of randomness.

    Returns:
        [n] indices, ascending.
    """
    chances = [0.0] * len(weights)
    certain: set[int] = set()
    while len(certain) < n:
        rest = math.fsum(w for i, w in enumerate(weights) if i not in certain)
        if rest <= 0:  # the weights left are too small for a float: equal chances
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
"""With alpha 0.5, a round in which all rollouts succeed raises the level by 0.1, less than `SHARE`."""
SHARE = 0.2
"""Share of the seeds, those nearest to the level, from which a round's seeds are drawn."""


class _State(BaseModel, extra="forbid", allow_inf_nan=False):
    level: float = Field(ge=0, le=1)


def own_chooser(config: CurriculumConfig) -> SeedChooser:
    """Construct the user-defined chooser that `curriculum.seed_choice` names.

    Raises:
        UsageError: there is no such class, or it lacks a method of `SeedChooser`.
    """
    return cast(Callable[[CurriculumConfig], SeedChooser], chooser_class(config.seed_choice))(config)


def chooser_class(name: str) -> object:
    """Return the user-defined class that a value of `curriculum.seed_choice` names, with its methods checked.

    Raises:
        UsageError: there is no such class, or it lacks a method of `SeedChooser`.
    """
    methods = ("choose", "observe", "state_dict", "load_state_dict")
    return own_part("curriculum.seed_choice", name, takes=("config",), methods=methods)


def checked_choice(chosen: object, n: int, name: str) -> list[Seed]:
    """Return the choice of a chooser as a list, after checking it.

    Raises:
        UsageError: the choice is not n different seeds.
    """
    found = list(cast("Iterable[object]", chosen)) if isinstance(chosen, Iterable) else [chosen]
    seeds = {one.id: one for one in found if isinstance(one, Seed)}
    if not len(found) == len(seeds) == n:
        others = [type(one).__name__ for one in found if not isinstance(one, Seed)]
        gave = f"a {others[0]}" if others else f"{len(found)} seeds, {len(seeds)} of them different,"
        raise UsageError(
            f"curriculum.seed_choice is {name!r}, which chose {gave} where {n} different ones of `seeds` "
            "were asked for"
        )
    return list(seeds.values())


def checked_state(state: object, name: str) -> JsonObject:
    """Return a copy of the state that a chooser gave, as it will be stored.

    Raises:
        UsageError: it is no JSON object.
    """
    kept, why = cast(Json, None), f"it is a {type(state).__name__}"
    try:
        kept = cast(Json, json.loads(json.dumps(state, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        why = first_line(error)
    if not isinstance(kept, dict):
        raise UsageError(
            f"curriculum.seed_choice is {name!r}, whose state_dict() is no dict that JSON can hold: {why}"
        )
    return kept


class Controller:
    """A `SeedChooser` that steers the difficulty of seeds towards the target success rate."""

    def __init__(self, difficulties: Mapping[str, tuple[float, ...]], *, alpha: float) -> None:
        """Start at the middle level.

        Args:
            difficulties: by seed id, values that can be ordered; equal values share a rank.
            alpha: the target success rate.
        """
        order = sorted(set(difficulties.values()))
        places = {value: place / max(1, len(order) - 1) for place, value in enumerate(order)}
        self._ranks = {name: places[value] for name, value in difficulties.items()}
        self.alpha, self.level = alpha, 0.5

    def choose(self, seeds: Sequence[Seed], n: int, rng: random.Random) -> list[Seed]:
        """Draw n different seeds from those nearest to the level."""
        shuffled = rng.sample(list(seeds), len(seeds))
        nearest = sorted(shuffled, key=lambda seed: abs(self._ranks.get(seed.id, 0.5) - self.level))
        return rng.sample(nearest[: max(n, int(SHARE * len(seeds)))], n)

    def observe(self, groups: Sequence[Group]) -> None:
        """Adjust the level by the success rate of a round's new tasks."""
        attempts = sum(len(group.valid) for group in groups)
        if attempts:
            rate = sum(trace.success for group in groups for trace in group.valid) / attempts
            self.level = min(1.0, max(0.0, self.level + GAIN * (rate - self.alpha)))

    def state_dict(self) -> JsonObject:
        """Return the level, for `load_state_dict`."""
        return {"level": self.level}

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the level that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        self.level = restored(_State, state, "the controller's state in this run's store is").level
