"""How the agent has been doing, per skill: decayed counts, read as Beta posteriors.

The rate of a skill moves while the agent learns, so old attempts count less each round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.posterior import BetaPosterior
from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import DataError
from genenv.types import Group, JsonObject, Profile


@dataclass(frozen=True, slots=True)
class _Count:
    """Decayed counts."""

    successes: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    attempts: Annotated[float, Field(allow_inf_nan=False)] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.attempts:
            raise ValueError(f"{self.successes} successes of {self.attempts} attempts")


_SEPARATOR = " + "


class _State(BaseModel, extra="forbid"):
    """What the store holds of it."""

    skills: dict[str, _Count]
    overall: _Count
    combined: dict[str, _Count] = {}


class SkillStats:
    """Decayed success counts per skill.

    Args:
        config: `profile_decay` and `prior` are read, and whether a bandit wants combinations of skills.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._decay = config.profile_decay
        self._prior = config.prior
        self._skills: dict[str, _Count] = {}
        self._overall = _Count()
        self._combined: dict[str, _Count] | None = {} if config.seed_choice == "bandit" else None

    def observe(self, groups: Sequence[Group]) -> None:
        """Take in the attempts of one round; call it once a round, also when there were none.

        Everything older is multiplied by the decay first. An attempt counts for each skill of its task.
        Attempts that ended in an error or a timeout do not count.
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
                (_SEPARATOR.join(group.task.skills), successes, attempts)
                for group, attempts, successes in tried
            ]
            self._combined = self._counted(self._combined, together)

    def _counted(
        self, before: Mapping[str, _Count], seen: Sequence[tuple[str, int, int]]
    ) -> dict[str, _Count]:
        """What was counted before, decayed, and (name, successes, attempts) of a round."""
        decay = self._decay
        totals = {name: (old.successes * decay, old.attempts * decay) for name, old in before.items()}
        for name, successes, attempts in seen:
            total = totals.get(name, (0.0, 0.0))
            totals[name] = (total[0] + successes, total[1] + attempts)
        return {name: _Count(*total) for name, total in totals.items()}

    def posterior(self, skill: str) -> BetaPosterior:
        """What is known of the success rate at a skill; the prior for one never seen."""
        count = self._skills.get(skill, _Count())
        return BetaPosterior.of(count.successes, count.attempts, self._prior)

    def combined(self, skills: Sequence[str]) -> BetaPosterior:
        """What is known of tasks with just these skills; counted where seeds are chosen by a bandit."""
        count = (self._combined or {}).get(_SEPARATOR.join(skills), _Count())
        return BetaPosterior.of(count.successes, count.attempts, self._prior)

    def hardest(self, skills: Sequence[str]) -> BetaPosterior:
        """The posterior of the skill with the lowest mean, as an estimate for a task that needs all of them.

        A task is solved only when every skill it needs is there, so its rate is bounded by the hardest.
        Without any skill, what is known over all tasks.
        """
        if not skills:
            return BetaPosterior.of(self._overall.successes, self._overall.attempts, self._prior)
        posteriors = (self.posterior(skill) for skill in skills)
        return min(posteriors, key=lambda posterior: (posterior.mean, posterior.variance))

    def profile(self) -> Profile:
        """The agent as the simulator is told about it; skills in alphabetical order."""
        seen = {name: count for name, count in sorted(self._skills.items()) if count.attempts > 0}
        overall = self._overall
        return Profile(
            success={name: self.posterior(name).mean for name in seen},
            attempts={name: count.attempts for name, count in seen.items()},
            overall=overall.successes / overall.attempts if overall.attempts > 0 else None,
        )

    def state_dict(self) -> JsonObject:
        """Everything that `load_state_dict` needs, as JSON."""
        state = _State(skills=self._skills, overall=self._overall, combined=self._combined or {})
        return state.model_dump(mode="json", exclude=None if self._combined is not None else {"combined"})

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            loaded = _State.model_validate(state)
        except ValidationError as err:
            raise DataError(
                f"the skill statistics in this run's store are damaged: {err.errors()[0]['msg']}"
            ) from err
        self._skills, self._overall = loaded.skills, loaded.overall
        if self._combined is not None:
            self._combined = loaded.combined
