"""What the simulator writes for a travel task: difficulty first, then the trip, then the words.

It names no price. How tight the budget is, is one of the difficulty fields; the runtime finds the cheapest
plan and sets the budget that far above it, or above the part of it that the agent is to choose. A budget may
be given all the same, and must then be what `slack` says.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from genenv.environments.travel.query import HouseRule, RoomType, Transport

Slack = Literal["tight", "fair", "loose"]
Rule = Literal["smoking", "parties", "children", "visitors", "pets"]
Room = Literal["entire", "private", "shared", "not shared"]

HOUSE_RULES: dict[Rule, HouseRule] = {
    "smoking": "smoking",
    "parties": "parties",
    "children": "children under 10",
    "visitors": "visitors",
    "pets": "pets",
}
ROOM_TYPES: dict[Room, RoomType] = {
    "entire": "entire room",
    "private": "private room",
    "shared": "shared room",
    "not shared": "not shared room",
}
LIMITS = ("room_rule", "room_type", "cuisines", "transport")
"""The fields that may be left out."""


class TravelSpec(BaseModel, frozen=True, extra="forbid"):
    """A travel task, before it is solved."""

    days: Literal[3, 5, 7]
    """3 days in one city, 5 in two cities of a state, 7 in three."""
    limits: Literal[0, 1, 2, 3, 4]
    """How many of room_rule, room_type, cuisines and transport are given."""
    slack: Slack
    """How far the budget is above the cheapest plan."""
    people: int = Field(ge=1, le=8)
    origin: str
    """A city."""
    destination: str
    """A city for 3 days, else a state."""
    start: int = Field(ge=1, le=29)
    """The first day, in March 2022."""
    room_rule: Rule | None = None
    """What must be allowed where they stay."""
    room_type: Room | None = None
    cuisines: tuple[str, ...] = Field(default=(), max_length=4)
    """Each must be had once."""
    transport: Transport | None = None
    """How they do not travel."""
    budget: int | None = Field(default=None, ge=1, le=1_000_000)
    """USD, for everybody and everything. Left out: by `slack`."""
    query: str = Field(min_length=8, max_length=1000)
    """What the traveler says, with `<origin>` and so on for values, or the values themselves."""

    @property
    def given(self) -> tuple[str, ...]:
        """Which of the limits are given."""
        return tuple(name for name in LIMITS if getattr(self, name))

    @property
    def cities(self) -> int:
        """How many cities are visited."""
        return (self.days - 1) // 2
