"""Grades an attempt from the agent's replies alone: the plan is read, and held to the 13 constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from genenv.environments.travel.constraints import Score, score
from genenv.environments.travel.database import Database
from genenv.environments.travel.query import MEALS, Plan, Query
from genenv.environments.travel.reading import UnreadableError, name_and_city
from genenv.environments.travel.replies import NotAPlanError, is_final, read_plan
from genenv.environments.travel.settings import TravelConfig
from genenv.environments.travel.trips import read_trip
from genenv.types import JsonObject, Task, Verdict

_FOR_NAMES = 0.2
"""Reward of a missing day for five fields that name what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a plan is worth."""

    score: Score
    loophole: str | None
    """What the benchmark's evaluator forgets, when that is asked for."""
    strict: bool
    real: float
    """The share of the plan's meals, rooms and attractions that are rows of the database."""
    one_day: bool = False
    """Only one day of the plan is the agent's."""

    @property
    def success(self) -> bool:
        """Whether everything is met."""
        return self.score.passed and self.loophole is None

    @property
    def share(self) -> float:
        """The soft reward, in [0, 1].

        Of a whole plan: 0 unless it has the information that each day needs (complete_information), else

            (commonsense met + hard met + strict met) / (commonsense asked + hard asked + strict asked)

        times the share of its meals, rooms and attractions that are rows of the database.

        Of a missing day, where the rest of the plan would meet most of that without the agent: 0 unless each
        of its five fields names something of the sandbox (within_sandbox and complete_information are met,
        and the strict reading where it is demanded), else

            0.2 + 0.8 * max(0, hard met - commonsense broken) / hard asked
        """
        return self._share_of_a_day if self.one_day else self._share_of_a_plan

    @property
    def _share_of_a_plan(self) -> float:
        if self.success:
            return 1
        (met, asked), (hard_met, hard_asked) = self.score.commonsense, self.score.hard
        if not self.score.delivered or "complete_information" in self.score.problems:
            return 0
        own = self.strict * (self.loophole is None)
        return self.real * (met + hard_met + own) / (asked + hard_asked + self.strict)

    @property
    def _share_of_a_day(self) -> float:
        if self.success:
            return 1
        if not self.score.judged_hard or self.loophole is not None:
            return 0
        (met, asked), (hard_met, hard_asked) = self.score.commonsense, self.score.hard
        return _FOR_NAMES + (1 - _FOR_NAMES) * max(hard_met - (asked - met), 0) / hard_asked

    @property
    def sentence(self) -> str:
        """What is wrong, or that nothing is."""
        if self.score.passed and self.loophole is not None:
            return f"The benchmark would let it pass, but {self.loophole}."
        return self.score.sentence


def judge(query: Query, plan: Plan, database: Database, *, strict: bool, one_day: bool = False) -> Judgement:
    """Hold a plan to everything that is asked for."""
    loophole = _loophole(query, plan, database) if strict and plan else None
    found, real = score(query, plan, database), _real(plan[: query.days], database)
    return Judgement(score=found, loophole=loophole, strict=strict, real=real, one_day=one_day)


def _real(plan: Plan, database: Database) -> float:
    """The share of all entries of a plan that are exactly rows of the database; 0 where there is none."""
    tables = dict.fromkeys(MEALS, database.restaurants)
    found: list[bool] = []
    for field, rows in {
        **tables,
        "accommodation": database.accommodations,
        "attraction": database.attractions,
    }.items():
        for text in (day.get(field) for day in plan):
            for piece in text.split(";") if isinstance(text, str) else ():
                name, city = name_and_city(piece)
                if piece.strip() not in ("", "-"):
                    found.append(any(row.name.strip() == name for row in rows(city)))
    return sum(found) / len(found) if found else 0


def _loophole(query: Query, plan: Plan, database: Database) -> str | None:
    try:
        trip = read_trip(query, plan, database)
    except UnreadableError as error:
        return str(error)
    driven = any(way.car == "self-driving" for _, way in trip.ways)
    if driven and query.transport == "no self-driving":  # in small letters the evaluator does not see it
        return "the query wants no self-driving"
    return None


def check(task: Task, replies: Sequence[str], database: Database, settings: TravelConfig) -> Verdict:
    """Grade an attempt. Equal replies get equal verdicts."""
    reply = _final(replies, settings)
    if reply is None:
        return _unread("There is no plan among the replies.")
    try:
        plan = read_plan(reply, task.payload)
    except NotAPlanError as error:
        return _unread(str(error))
    one_day = isinstance(task.payload["missing"], int)
    found = judge(query_of(task), plan, database, strict=settings.strict, one_day=one_day)
    reward = found.share if settings.reward == "soft" else float(found.success)
    return Verdict(reward=reward, success=found.success, explanation=found.sentence)


def _unread(explanation: str) -> Verdict:
    return Verdict(reward=0, success=False, explanation=explanation, readable=False)


def query_of(task: Task) -> Query:
    """The structured query of a task."""
    return Query.from_json(cast(JsonObject, task.payload["query"]))


def _final(replies: Sequence[str], settings: TravelConfig) -> str | None:
    """The reply that holds the plan: the only one, or with tools the first that is meant as one."""
    if settings.mode == "sole":
        return replies[0] if replies else None
    return next((reply for reply in replies[: settings.max_turns] if is_final(reply)), None)
