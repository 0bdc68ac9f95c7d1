"""Settings of the travel environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import PLACE, Settings


class TravelConfig(Settings, frozen=True):
    """Settings of the travel environment."""

    mode: Literal["sole", "tools"] = "sole"
    """sole: the information stands in the prompt (the benchmark's sole planning), one reply. tools: the agent
    looks it up, one call a turn, and ends with its plan."""
    form: Literal["plan", "day"] = "plan"
    """plan: the agent writes the whole plan. day: it fills in one day of a plan that is otherwise the
    oracle's, in one short object; the completed plan is held to the same constraints."""
    reward: Literal["soft", "exact"] = "soft"
    """soft: the share of the constraints that are met, times the share of meals, rooms and attractions that
    are rows of the database, 0 where days lack information; with form day 0 unless all five fields name
    something of the sandbox, else 0.2 + 0.8 * max(0, hard constraints met - commonsense ones broken) / hard
    constraints asked. exact: 1 when all are met, else 0."""
    strict: bool = True
    """Also demand what the benchmark's evaluator forgets: every entry exact and in a city of its day,
    flights on their day, no day in another city without travel, an attraction on each day without travel,
    no car that the query rules out. Counts as one constraint more."""
    reference_tokens: int = Field(default=2000, ge=250, le=8000)
    """Length of the information in the prompt, at 4 characters a token. It has what the oracle uses; the rest
    is other rows, also of other cities."""
    result_tokens: int = Field(default=300, ge=50, le=2000)
    """Longest result of a tool call, at 4 characters a token."""
    max_turns: int = Field(default=20, ge=14, le=64)
    """Replies the agent gets with tools; the longest trip needs 14."""
    longest: Literal[3, 5, 7] = 7
    """Days of the longest trips, also among held-out tasks. 3 days go to a city, 5 and 7 through a state."""
    database: str = Field(default="", json_schema_extra=PLACE)
    """Folder of TravelPlanner's tables (its `database`). Left out: the sandbox that genenv makes."""
