"""Settings of the travel environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import PLACE, Settings


class TravelConfig(Settings, frozen=True):
    """Settings of the travel environment."""

    mode: Literal["sole", "tools"] = "sole"
    """sole: the prompt contains the information (the benchmark's sole planning), one reply. tools: the agent
    looks it up, one call per turn, and ends with its plan."""
    form: Literal["plan", "day"] = "plan"
    """plan: the agent writes the whole plan. day: the agent fills in one day of a plan that is otherwise the
    oracle's, in one short object; the completed plan must meet the same constraints."""
    reward: Literal["soft", "exact"] = "soft"
    """soft: the share of the constraints that are met, times the share of meals, rooms and attractions that
    are rows of the database, 0 if days lack information; with form day 0 unless all five fields name
    something of the database, else 0.2 + 0.8 * max(0, hard constraints met - commonsense ones broken) / hard
    constraints asked. exact: 1 if all are met, else 0."""
    strict: bool = True
    """Also require what the benchmark's evaluator does not check: every entry exact and in a city of its day,
    flights on their day, no day in another city without travel, an attraction on each day without travel, no
    car that the query rules out. Counts as one more constraint."""
    reference_tokens: int = Field(default=2000, ge=250, le=8000)
    """Length of the information in the prompt, at 4 characters a token. It contains the oracle's entries; the
    rest is other rows, some of other cities."""
    result_tokens: int = Field(default=300, ge=50, le=2000)
    """Maximum length of a tool result, at 4 characters a token."""
    max_turns: int = Field(default=20, ge=14, le=64)
    """Maximum number of replies in mode tools; the longest trip needs 14."""
    longest: Literal[3, 5, 7] = 7
    """Days of the longest trips, including held-out tasks. 3 days go to a city, 5 and 7 through a state."""
    database: str = Field(default="", json_schema_extra=PLACE)
    """Folder of TravelPlanner's tables (its `database`). Empty: the database that genenv generates."""
