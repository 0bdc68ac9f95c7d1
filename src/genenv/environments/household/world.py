"""What a household game is about: its places, its objects and its goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

VERB: dict[TaskType, str] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
"""What must be done to the object before it is put down."""
APPLIANCE: dict[TaskType, str] = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
"""Where each treatment is done."""

KNIVES = ("Knife", "ButterKnife")


@dataclass(frozen=True)
class Place:
    """A receptacle of the compiled world."""

    id: str
    name: str
    type: str
    location: str
    openable: bool
    opened: bool


@dataclass(frozen=True)
class Item:
    """An object of the compiled world. `inside`: names of what the grammar says is in it (never changes)."""

    id: str
    name: str
    type: str
    at: tuple[str, ...]
    """Ids of the receptacles it starts in: one; in recorded games none, or several."""
    pickupable: bool = True
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    sliceable: bool = False
    toggleable: bool = False
    container: bool = False
    cool: bool = False
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class World:
    """Everything fixed about a game. Sequences are in order of id: TextWorld lists entities in that order."""

    task: TaskType
    target: str
    goal: str
    wording: str
    start: str
    places: tuple[Place, ...]
    items: tuple[Item, ...]
    can_contain: Mapping[str, frozenset[str]]
    """Type of receptacle -> types of objects that it can hold."""
    located: tuple[tuple[str, str], ...] | None = None
    """(item id, location) where items are said to be at the start; None: where their receptacles are."""
    help: str = ""
    """What the command `help` answers; empty: words of our own."""
