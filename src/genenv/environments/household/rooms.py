"""The kinds of room: what stands in them, what lies about, and which pairs are kept for measuring."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Mapping, Sequence

from genenv.environments.household.tables import (
    CAN_CONTAIN,
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    OPENABLE,
)
from genenv.environments.household.world import APPLIANCE, TaskType

TASKS: Mapping[str, TaskType] = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
"""Short name, as specs and skills have it -> ALFWorld's name."""
ABLE: Mapping[str, frozenset[str]] = {"clean": CLEANABLE, "heat": HEATABLE, "cool": COOLABLE}
"""Task -> objects that can be treated so."""

_PLACES = {
    "kitchen": "Cabinet CoffeeMachine CounterTop DiningTable Drawer Fridge GarbageCan Microwave Shelf "
    "SideTable SinkBasin StoveBurner",
    "bathroom": "BathtubBasin Cabinet Cart CounterTop Drawer GarbageCan HandTowelHolder Shelf SideTable "
    "SinkBasin Toilet ToiletPaperHanger",
    "bedroom": "ArmChair Bed Cabinet Desk Drawer Dresser GarbageCan LaundryHamper Safe Shelf SideTable",
    "livingroom": "ArmChair Cabinet CoffeeTable DiningTable Drawer Dresser GarbageCan Ottoman Safe Shelf "
    "SideTable Sofa",
}
_OBJECTS = {
    "kitchen": "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Glassbottle Kettle Knife Ladle Lettuce "
    "Mug Pan PepperShaker Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato WineBottle",
    "bathroom": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
    "bedroom": "AlarmClock BaseballBat BasketBall Book Bowl Box CD CellPhone Cloth CreditCard KeyChain "
    "Laptop Mug Pen Pencil Pillow Statue TennisRacket TissueBox Vase Watch",
    "livingroom": "Book Bowl Box CellPhone CreditCard KeyChain Laptop Newspaper Pen Pencil Pillow Plate "
    "RemoteControl Statue TissueBox Vase Watch WateringCan",
}
ROOMS: tuple[str, ...] = tuple(_PLACES)
LAMP_PLACES = ("Desk", "Dresser", "SideTable", "CoffeeTable")
"""Where a lamp can stand."""
_HELD_OUT_SHARE = 4
"""One pair in so many is kept for measuring."""


def places_of(room: str) -> tuple[str, ...]:
    """Types of receptacles of a room."""
    return tuple(_PLACES[room].split())


@functools.cache
def all_places() -> frozenset[str]:
    """Types of receptacles of all rooms."""
    return frozenset(place for room in ROOMS for place in places_of(room))


def objects_of(room: str) -> tuple[str, ...]:
    """Types of objects that some receptacle of a room can hold."""
    return tuple(_OBJECTS[room].split())


def lamp_of(room: str) -> str | None:
    """The type of lamp of a room; None where there is none."""
    return {"bedroom": "DeskLamp", "livingroom": "FloorLamp"}.get(room)


def holders(target: str, room: str) -> tuple[str, ...]:
    """Types of receptacles of a room that can hold an object."""
    return tuple(place for place in places_of(room) if target in CAN_CONTAIN[place])


def is_held_out(target: str, goal: str) -> bool:
    """Whether a pair of an object and the place (or lamp) it must come to is kept for measuring.

    Base data and grammars have the other pairs only. A checksum decides, so the split never changes.
    """
    return zlib.crc32(f"{target}/{goal}".encode()) % _HELD_OUT_SHARE == 0


@functools.cache
def goals_of(task: str, target: str, room: str, *, held_out: bool) -> tuple[str, ...]:
    """Types of places to which a task of this half of the data can bring an object; lamps for `look`.

    The appliance that treats the object is never the goal.
    """
    lamp = lamp_of(room)
    if task == "look":
        found = () if lamp is None else (lamp,)
    elif task in ABLE and not (target in ABLE[task] and APPLIANCE[TASKS[task]] in places_of(room)):
        found = ()
    else:
        found = tuple(place for place in holders(target, room) if place != APPLIANCE.get(TASKS[task]))
    return tuple(goal for goal in found if is_held_out(target, goal) is held_out)


def goal_groups(task: str, goals: Sequence[str]) -> list[Sequence[str]]:
    """Goals that are offered together. Where an object is only moved they come in halves.

    A place of a goal's type is then no start, so with all goals at once no start would be left.
    """
    halves = [goals[::2], goals[1::2]] if task in ("pick", "two") else [goals]
    return [half for half in halves if half]


def starts_of(task: str, target: str, room: str, *, goals: Collection[str], hidden: bool) -> tuple[str, ...]:
    """Types of places in which the object of a task may start, in one that can be closed if it is hidden.

    Not in the appliance that treats it; and where it is only moved, not in one of the goals' types, where it
    would be at its goal already.
    """
    there = {*(goals if task in ("pick", "two") else ()), APPLIANCE.get(TASKS[task])}
    able = (place for place in holders(target, room) if place in OPENABLE or not hidden)
    return tuple(place for place in able if place not in there)
