"""The 13 constraints together: TravelPlanner's checker, for training and for the benchmark alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genenv.environments.travel import commonsense, hard
from genenv.environments.travel.commonsense import Constraint
from genenv.environments.travel.database import Database
from genenv.environments.travel.query import Plan, Query
from genenv.environments.travel.reading import UnreadableError

COMMONSENSE: Mapping[str, Constraint] = {
    "within_sandbox": commonsense.within_sandbox,
    "complete_information": commonsense.complete_information,
    "within_current_city": commonsense.within_current_city,
    "reasonable_route": commonsense.reasonable_route,
    "diverse_restaurants": commonsense.diverse_restaurants,
    "diverse_attractions": commonsense.diverse_attractions,
    "non_conflicting_transportation": commonsense.non_conflicting_transportation,
    "minimum_nights": commonsense.minimum_nights,
}
HARD: Mapping[str, Constraint] = {
    "budget": hard.budget,
    "room_rule": hard.room_rule,
    "cuisine": hard.cuisine,
    "room_type": hard.room_type,
    "transportation": hard.transportation,
}
_FIRST = ("within_sandbox", "complete_information")
"""Without these the hard constraints are not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the 13 constraints say of a plan."""

    problems: Mapping[str, str]
    """Constraint -> what is wrong, for those that are not met."""
    asked: tuple[str, ...]
    """The constraints that apply to the query: all commonsense ones, the budget, what else it asks for."""
    delivered: bool
    """False when there is no plan; then nothing is met."""
    judged_hard: bool
    """False when the hard constraints were not looked at; then none of them is met."""

    @property
    def commonsense(self) -> tuple[int, int]:
        """(met, asked) of the commonsense constraints."""
        return self._met(self.delivered, COMMONSENSE)

    @property
    def hard(self) -> tuple[int, int]:
        """(met, asked) of the hard constraints."""
        return self._met(self.judged_hard, HARD)

    def _met(self, looked_at: bool, constraints: Mapping[str, Constraint]) -> tuple[int, int]:
        asked = [name for name in self.asked if name in constraints]
        return (sum(name not in self.problems for name in asked) if looked_at else 0), len(asked)

    @property
    def micro(self) -> float:
        """The share of the constraints that are met, in [0, 1]: the soft reward."""
        (met, asked), (hard_met, hard_asked) = self.commonsense, self.hard
        return (met + hard_met) / (asked + hard_asked)

    @property
    def passed(self) -> bool:
        """Whether everything is met: the benchmark's final pass."""
        return self.delivered and self.judged_hard and not self.problems

    @property
    def sentence(self) -> str:
        """What is wrong first, and how much of the rest."""
        if not self.delivered:
            return "There is no plan."
        if not self.problems:
            return "The plan meets every constraint."
        name, problem = next(iter(self.problems.items()))
        met = self.commonsense[0] + self.hard[0]
        return f"{name}: {problem} It meets {met} of {len(self.asked)} constraints."


def score(query: Query, plan: Plan, database: Database) -> Score:
    """Check a plan against everything that a query asks for.

    Args:
        query: what is asked for.
        plan: days in the benchmark's form; empty when there is none.
        database: where its entries must be.
    """
    asked = (*COMMONSENSE, *(name for name in HARD if _applies(name, query)))
    if not plan:
        return Score(problems={}, asked=asked, delivered=False, judged_hard=False)
    problems = _problems({name: COMMONSENSE[name] for name in COMMONSENSE}, query, plan, database)
    judged = not any(name in problems for name in _FIRST)
    if judged:
        problems |= _problems({name: HARD[name] for name in asked if name in HARD}, query, plan, database)
    return Score(problems=problems, asked=asked, delivered=True, judged_hard=judged)


def _problems(
    constraints: Mapping[str, Constraint], query: Query, plan: Plan, database: Database
) -> dict[str, str]:
    found = {name: _problem(check, query, plan, database) for name, check in constraints.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _problem(check: Constraint, query: Query, plan: Plan, database: Database) -> str | None:
    try:
        return check(query, plan, database)
    except UnreadableError as error:
        return f"It cannot be read: {error}."


def _applies(name: str, query: Query) -> bool:
    """Whether a query asks for a hard constraint."""
    return {
        "budget": True,
        "room_rule": query.house_rule is not None,
        "cuisine": bool(query.cuisines),
        "room_type": query.room_type is not None,
        "transportation": query.transport is not None,
    }[name]
