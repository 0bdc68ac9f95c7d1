"""The furniture and objects of each kind of room, and the compilation of rooms to games and PDDL problems."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from genenv.environments.household.engine import APPLIANCE, KNIVES, Item, Place, TaskType, World
from genenv.errors import UsageError


def _alfworld() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("alfworld.gen.constants")
    except ImportError as error:
        raise UsageError(
            "the household environment needs ALFWorld's tables: pip install --no-deps alfworld"
        ) from error


_constants = _alfworld()

CAN_CONTAIN: dict[str, frozenset[str]] = {
    place: frozenset(kinds) for place, kinds in _constants.VAL_RECEPTACLE_OBJECTS.items()
}
"""Type of receptacle -> types of objects that it can hold."""
CLEANABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Cleanable"])
HEATABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Heatable"])
COOLABLE: frozenset[str] = frozenset(_constants.VAL_ACTION_OBJECTS["Coolable"])
SLICEABLE = frozenset({"Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato"})
OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
LAMPS = frozenset({"DeskLamp", "FloorLamp"})
INNER_RECEPTACLES = frozenset({"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"})
"""Objects that the grammar describes by their contents."""


TASKS: Mapping[str, TaskType] = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
"""Short name of a task in specs and skills -> ALFWorld's name."""
ABLE: Mapping[str, frozenset[str]] = {"clean": CLEANABLE, "heat": HEATABLE, "cool": COOLABLE}
"""Task -> types of objects that can get its treatment."""

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
"""Types of places that can hold a lamp."""
_HELD_OUT_SHARE = 4
"""One pair of object and goal in this many is held out."""


def places_of(room: str) -> tuple[str, ...]:
    """Return the types of receptacles in a room."""
    return tuple(_PLACES[room].split())


@functools.cache
def all_places() -> frozenset[str]:
    """Return the types of receptacles in all rooms."""
    return frozenset(place for room in ROOMS for place in places_of(room))


def objects_of(room: str) -> tuple[str, ...]:
    """Return the types of objects in a room; each fits into some receptacle there."""
    return tuple(_OBJECTS[room].split())


def lamp_of(room: str) -> str | None:
    """Return the type of lamp in a room, or None if it has no lamp."""
    return {"bedroom": "DeskLamp", "livingroom": "FloorLamp"}.get(room)


def holders(target: str, room: str) -> tuple[str, ...]:
    """Return the types of receptacles in a room that can hold an object."""
    return tuple(place for place in places_of(room) if target in CAN_CONTAIN[place])


def is_held_out(target: str, goal: str) -> bool:
    """Return whether a pair of an object and its goal (a place or a lamp) occurs in held-out tasks only.

    Base data and grammars have only the other pairs. A checksum decides, so the split never changes.
    """
    return zlib.crc32(f"{target}/{goal}".encode()) % _HELD_OUT_SHARE == 0


@functools.cache
def goals_of(task: str, target: str, room: str, *, held_out: bool) -> tuple[str, ...]:
    """Return the types of places to which a task can bring an object, or the type of lamp for `look`.

    Only goals of this half of the data count. The appliance that treats the object is never the goal.
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
    """Return groups of goals that one grammar alternative offers. Tasks `pick` and `two` have two groups.

    In those tasks an object may not start in a place of a goal's type, so a single group could leave no
    start.
    """
    halves = [goals[::2], goals[1::2]] if task in ("pick", "two") else [goals]
    return [half for half in halves if half]


def starts_of(task: str, target: str, room: str, *, goals: Collection[str], hidden: bool) -> tuple[str, ...]:
    """Return the types of places in which the object of a task may start; closable places if it is hidden.

    The appliance that treats the object is excluded. For `pick` and `two`, so are the goals' types, because
    the object would already be at its goal.
    """
    there = {*(goals if task in ("pick", "two") else ()), APPLIANCE.get(TASKS[task])}
    able = (place for place in holders(target, room) if place in OPENABLE or not hidden)
    return tuple(place for place in able if place not in there)


_BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
_DECLARED = tuple(APPLIANCE.values()), KNIVES
"""Types that occur in the actions of the PDDL domain, so every problem must declare them."""


Furnished = tuple[str, bool, Sequence[str]]
"""A place of a room: its type, whether it is closed, and the types of the objects that start in it."""


def _entity_id(kind: str, number: int) -> str:
    """Return the id of the numbered entity. As in ALFWorld, ids count down as numbers count up."""
    suffix = f"_bar_{99 - number:02d}"
    return f"{_BASINS[kind]}{suffix}_bar_{kind}" if kind in _BASINS else kind + suffix


def compile_room(task: TaskType, target: str, goal: str, room: Sequence[Furnished], wording: str) -> World:
    """Name and place all entities of a room.

    Args:
        task: what to do.
        target: type of the object.
        goal: the goal's receptacle type; for `look_at_obj_in_light` the lamp's type.
        room: the places.
        wording: the task's text for the agent.

    Raises:
        ValueError: the room is impossible.
    """
    counts: Counter[str] = Counter()
    places: list[Place] = []
    for index, (kind, closed, _) in enumerate(room):
        if kind not in CAN_CONTAIN:
            raise ValueError(f"unknown receptacle {kind}")
        counts[kind] += 1
        openable = kind in OPENABLE
        if closed and not openable:
            raise ValueError(f"a {kind} cannot be closed")
        places.append(
            Place(
                id=_entity_id(kind, counts[kind]).lower(),
                name=f"{kind.lower()} {counts[kind]}",
                type=kind,
                location=f"loc_bar_{index:02d}",
                openable=openable,
                opened=openable and not closed,
            )
        )
    items: list[Item] = []
    for where, kind in (
        (place, kind) for place, (*_, held) in zip(places, room, strict=True) for kind in held
    ):
        lamp = kind in LAMPS
        if not lamp and kind not in CAN_CONTAIN[where.type]:
            raise ValueError(f"a {where.type} cannot hold {kind}")
        counts[kind] += 1
        items.append(
            Item(
                id=_entity_id(kind, counts[kind]).lower(),
                name=f"{kind.lower()} {counts[kind]}",
                type=kind,
                at=(where.id,),
                pickupable=not lamp,
                cleanable=kind in CLEANABLE,
                heatable=kind in HEATABLE,
                coolable=kind in COOLABLE,
                sliceable=kind in SLICEABLE,
                toggleable=lamp,
                container=kind in INNER_RECEPTACLES,
            )
        )
    return World(
        task=task,
        target=target,
        goal=goal,
        wording=wording,
        start="loc_bar_99",
        places=tuple(sorted(places, key=lambda p: p.id)),
        items=tuple(sorted(items, key=lambda i: i.id)),
        can_contain=CAN_CONTAIN,
    )


def _goal(world: World) -> str:
    target, goal = f"(objectType ?o {world.target}Type)", f"(receptacleType ?r {world.goal}Type)"
    treated = {
        "pick_and_place_simple": "",
        "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o)",
        "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o)",
        "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o)",
    }
    if world.task == "look_at_obj_in_light":
        return (
            "(and (exists (?l - object ?r - receptacle ?a - agent ?p - location)"
            f" (and (objectType ?l {world.goal}Type) (toggleable ?l) (isToggled ?l) (inReceptacle ?l ?r)"
            " (receptacleAtLocation ?r ?p) (atLocation ?a ?p)))"
            f" (exists (?o - object ?a - agent) (and {target} (holds ?a ?o))))"
        )
    if world.task == "pick_two_obj_and_place":
        other = f"(not (= ?o ?q)) (objectType ?q {world.target}Type) (inReceptacle ?q ?r)"
        return (
            f"(exists (?r - receptacle) (exists (?o - object) (and {target} {goal} (inReceptacle ?o ?r)"
            f" (exists (?q - object) (and {other})))))"
        )
    return (
        f"(exists (?r - receptacle) (exists (?o - object)"
        f" (and {target} {goal} {treated[world.task]} (inReceptacle ?o ?r))))"
    )


def pddl_problem(world: World) -> str:
    """Return a game as a PDDL problem for `alfred.pddl` of the package alfworld."""
    locations = [world.start, *dict.fromkeys(p.location for p in world.places)]
    rtypes = sorted({p.type for p in world.places} | set(_DECLARED[0]) | ({world.goal} & set(CAN_CONTAIN)))
    otypes = sorted(
        {i.type for i in world.items} | set(_DECLARED[1]) | {world.target} | ({world.goal} & LAMPS)
    )
    objects = ["agent1 - agent", *(f"{x} - location" for x in locations)]
    objects += [f"{t}Type - rtype" for t in rtypes] + [f"{t}Type - otype" for t in otypes]
    objects += [f"{p.id} - receptacle" for p in world.places] + [f"{i.id} - object" for i in world.items]
    facts = [f"(atLocation agent1 {world.start})"]
    facts += [f"(canContain {r}Type {o}Type)" for r in rtypes for o in otypes if o in CAN_CONTAIN[r]]
    location = {p.id: p.location for p in world.places}
    for p in world.places:
        facts += [f"(receptacleType {p.id} {p.type}Type)", f"(receptacleAtLocation {p.id} {p.location})"]
        facts += [f"(openable {p.id})"] * p.openable + [f"(opened {p.id})"] * p.opened
    for i in world.items:
        facts.append(f"(objectType {i.id} {i.type}Type)")
        for place in i.at:
            facts += [f"(inReceptacle {i.id} {place})", f"(objectAtLocation {i.id} {location[place]})"]
        flags = {
            "pickupable": i.pickupable,
            "cleanable": i.cleanable,
            "heatable": i.heatable,
            "coolable": i.coolable,
            "sliceable": i.sliceable,
            "toggleable": i.toggleable,
            "isReceptacleObject": i.container,
        }
        facts += [f"({name} {i.id})" for name, holds in flags.items() if holds]
    head = ["(define (problem household)", "(:domain alfred)"]
    return "\n".join(
        [*head, "(:objects", *objects, ")", "(:init", *facts, ")", f"(:goal {_goal(world)})", ")"]
    )
