# pyright: standard
"""The agent's recent success: decayed success counts per skill, interpreted as Beta posteriors.

The success rate on a skill changes as the agent learns, so old rollouts count less each round.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import DataError, first_problem
from genenv.types import Group, JsonObject, Profile

_NODES = 64
_StateT = TypeVar("_StateT", bound=BaseModel)


def restored(kind: type[_StateT], state: JsonObject, what: str) -> _StateT:
    """Return a part of the curriculum's state that is read from the store.

    Args:
        kind: class of the part.
        state: the part, as JSON.
        what: the part as subject of a sentence, such as "the replay state in this run's store is".

    Raises:
        DataError: the state is damaged.
    """
    try:
        return kind.model_validate(state)
    except ValidationError as error:
        raise DataError(f"{what} damaged: {first_problem(error)}") from error


@dataclass(frozen=True, slots=True)
class BetaPosterior:
    """Beta(a, b) over a success rate p in [0, 1], with a, b > 0. Beta(1, 1) means "nothing known"."""

    a: float
    b: float

    def __post_init__(self) -> None:
        """Refuse parameters that do not define a distribution."""
        if not (0 < self.a < math.inf and 0 < self.b < math.inf):
            raise ValueError(f"a Beta distribution needs a > 0 and b > 0, got {self.a} and {self.b}")

    @classmethod
    def of(cls, successes: float, attempts: float, prior: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return the posterior after `successes` in `attempts` rollouts; both may be decayed counts.

        Raises:
            ValueError: not 0 <= successes <= attempts, or a prior that is not positive.
        """
        if not 0 <= successes <= attempts:
            raise ValueError(f"successes must be in [0, attempts], got {successes} of {attempts}")
        return cls(prior[0] + successes, prior[1] + attempts - successes)

    @property
    def mean(self) -> float:
        """E[p]."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        """Var[p]."""
        return self.mean * (1 - self.mean) / (self.a + self.b + 1)

    def expectation(self, function: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        """Return E[f(p)] for a smooth f, by Gauss-Jacobi quadrature (exact for polynomials up to degree 127).

        Args:
            function: takes the nodes in (0, 1) as an array and returns f at each node.
        """
        nodes, weights = _gauss_jacobi(self.a, self.b)
        return float(weights @ function(nodes))


@functools.lru_cache(maxsize=512)
def _gauss_jacobi(a: float, b: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights (summing to 1) of the quadrature for Beta(a, b): Golub and Welsch (1969).

    The nodes are the eigenvalues of the symmetric tridiagonal matrix of the Jacobi recurrence.
    """
    from scipy import linalg  # takes a while to load

    left, right = b - 1, a - 1  # exponents of (1 - t) and (1 + t) after p = (1 + t) / 2
    n = np.arange(1, _NODES, dtype=np.float64)
    total = 2 * n + left + right
    diagonal = np.empty(_NODES)
    diagonal[0] = (right - left) / (left + right + 2)
    diagonal[1:] = (right - left) * (right + left) / (total * (total + 2))
    squared = np.empty(_NODES - 1)
    squared[0] = 4 * (1 + left) * (1 + right) / ((2 + left + right) ** 2 * (3 + left + right))
    m, t = n[1:], total[1:]
    squared[1:] = 4 * m * (m + left) * (m + right) * (m + left + right) / (t**2 * (t + 1) * (t - 1))
    off = np.sqrt(squared)
    values, vectors = linalg.eigh_tridiagonal(diagonal, off)
    nodes, weights = np.clip((1 + values) / 2, 0, 1), vectors[0] ** 2
    weights /= weights.sum()
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights


@dataclass(frozen=True, slots=True)
class _Count:
    """Decayed counts of successes and rollouts."""

    successes: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    attempts: Annotated[float, Field(allow_inf_nan=False)] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.attempts:
            raise ValueError(f"{self.successes} successes of {self.attempts} attempts")


_SEPARATOR = " + "


class _State(BaseModel, extra="forbid"):
    """The state of `SkillStats` in the store."""

    skills: dict[str, _Count]
    overall: _Count
    combined: dict[str, _Count] = {}


class SkillStats:
    """Decayed success counts per skill, from which the agent's profile is computed.

    Args:
        config: `profile_decay`, `prior` and `seed_choice` are read; a bandit also counts combinations of
            skills.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._decay = config.profile_decay
        self._prior = config.prior
        self._skills: dict[str, _Count] = {}
        self._overall = _Count()
        self._combined: dict[str, _Count] | None = {} if config.seed_choice == "bandit" else None

    def observe(self, groups: Sequence[Group]) -> None:
        """Add the rollouts of one round; call it once per round, even if there were none.

        All older counts are first multiplied by the decay. A rollout counts for each skill of its task.
        Rollouts that ended in an error or a timeout do not count.
        """
        tried = [(group, len(valid := group.valid), sum([t.success for t in valid])) for group in groups]
        overall = [("", successes, attempts) for _, attempts, successes in tried]
        self._overall = self._counted({"": self._overall}, overall)[""]
        skills = [
            (skill, successes, attempts)
            for group, attempts, successes in tried
            for skill in dict.fromkeys(group.task.skills)
        ]
        self._skills = self._counted(self._skills, skills)
        if self._combined is not None:
            together = [
                (_SEPARATOR.join(sorted(group.task.skills)), successes, attempts)
                for group, attempts, successes in tried
            ]
            self._combined = self._counted(self._combined, together)

    def _counted(
        self, before: Mapping[str, _Count], seen: Sequence[tuple[str, int, int]]
    ) -> dict[str, _Count]:
        """Return the earlier counts, decayed, plus the (name, successes, rollouts) of a round."""
        decay = self._decay
        totals = {name: (old.successes * decay, old.attempts * decay) for name, old in before.items()}
        for name, successes, attempts in seen:
            total = totals.get(name, (0.0, 0.0))
            totals[name] = (total[0] + successes, total[1] + attempts)
        return {name: _Count(*total) for name, total in totals.items()}

    def posterior(self, skill: str) -> BetaPosterior:
        """Return the posterior of the success rate on a skill; the prior if the skill was never seen."""
        count = self._skills.get(skill, _Count())
        return BetaPosterior.of(count.successes, count.attempts, self._prior)

    def combined(self, skills: Sequence[str]) -> BetaPosterior:
        """Return the posterior for tasks with exactly these skills; counted only for a bandit over seeds."""
        count = (self._combined or {}).get(_SEPARATOR.join(sorted(skills)), _Count())
        return BetaPosterior.of(count.successes, count.attempts, self._prior)

    def hardest(self, skills: Sequence[str]) -> BetaPosterior:
        """Return the posterior of the skill with the lowest mean, as an estimate for a task with all skills.

        A task is solved only if the agent masters every skill in it, so the hardest skill bounds the success
        rate. Without any skill, return the posterior over all tasks.
        """
        if not skills:
            return BetaPosterior.of(self._overall.successes, self._overall.attempts, self._prior)
        posteriors = (self.posterior(skill) for skill in skills)
        return min(posteriors, key=lambda posterior: (posterior.mean, posterior.variance))

    def profile(self) -> Profile:
        """Return the agent's profile for the simulator's context, with skills in alphabetical order."""
        seen = {name: count for name, count in sorted(self._skills.items()) if count.attempts > 0}
        overall = self._overall
        return Profile(
            success={name: self.posterior(name).mean for name in seen},
            attempts={name: count.attempts for name, count in seen.items()},
            overall=overall.successes / overall.attempts if overall.attempts > 0 else None,
        )

    def state_dict(self) -> JsonObject:
        """Return the state for `load_state_dict`, as JSON."""
        state = _State(skills=self._skills, overall=self._overall, combined=self._combined or {})
        return state.model_dump(mode="json", exclude=None if self._combined is not None else {"combined"})

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        loaded = restored(_State, state, "the skill statistics in this run's store are")
        self._skills, self._overall = loaded.skills, loaded.overall
        if self._combined is not None:
            self._combined = dict[str, _Count]()
            for name, one in loaded.combined.items():  # runs of older versions have them in any order
                key = _SEPARATOR.join(sorted(name.split(_SEPARATOR)))
                other = self._combined.get(key, _Count())
                self._combined[key] = _Count(
                    successes=one.successes + other.successes, attempts=one.attempts + other.attempts
                )
