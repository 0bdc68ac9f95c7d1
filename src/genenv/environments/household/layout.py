"""A room as a spec describes it, the world made of it, and the PDDL problem that states it to TextWorld."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from genenv.environments.household.tables import (
    CAN_CONTAIN,
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    INNER_RECEPTACLES,
    LAMPS,
    OPENABLE,
    SLICEABLE,
)
from genenv.environments.household.world import APPLIANCE, KNIVES, Item, Place, TaskType, World

_BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
_DECLARED = tuple(APPLIANCE.values()), KNIVES
"""Types that the environment's actions name, so every problem must declare them."""


@dataclass(frozen=True)
class Receptacle:
    """A place of a spec."""

    type: str
    closed: bool = False


@dataclass(frozen=True)
class Thing:
    """An object of a spec."""

    type: str
    at: int
    """Index of the receptacle it starts in."""


@dataclass(frozen=True)
class Layout:
    """What a game is made from."""

    task: TaskType
    target: str
    goal: str
    """The goal's receptacle type; for `look_at_obj_in_light` the lamp's type."""
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    wording: str


def _entity_id(kind: str, number: int) -> str:
    """ALFWorld gives the highest number to the first id in order: ids count down as numbers count up."""
    suffix = f"_bar_{99 - number:02d}"
    return f"{_BASINS[kind]}{suffix}_bar_{kind}" if kind in _BASINS else kind + suffix


def compile_layout(spec: Layout) -> World:
    """Name and place everything. Raises ValueError where the spec is not a possible room."""
    counts: Counter[str] = Counter()
    places: list[Place] = []
    for index, receptacle in enumerate(spec.receptacles):
        if receptacle.type not in CAN_CONTAIN:
            raise ValueError(f"unknown receptacle {receptacle.type}")
        counts[receptacle.type] += 1
        number = counts[receptacle.type]
        openable = receptacle.type in OPENABLE
        if receptacle.closed and not openable:
            raise ValueError(f"a {receptacle.type} cannot be closed")
        places.append(
            Place(
                id=_entity_id(receptacle.type, number).lower(),
                name=f"{receptacle.type.lower()} {number}",
                type=receptacle.type,
                location=f"loc_bar_{index:02d}",
                openable=openable,
                opened=openable and not receptacle.closed,
            )
        )
    items: list[Item] = []
    for thing in spec.things:
        if not 0 <= thing.at < len(places):
            raise ValueError(f"{thing.type} starts nowhere")
        where, kind = places[thing.at], thing.type
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
        task=spec.task,
        target=spec.target,
        goal=spec.goal,
        wording=spec.wording,
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
    """The world as a PDDL problem on the wheel's `alfred.pddl`."""
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
