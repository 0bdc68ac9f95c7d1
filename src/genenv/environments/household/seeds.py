"""The base data of the household: 320 training specs, 500 held-out specs, and variations of the former.

The split is by pairs of an object and the place (or lamp) that it must come to (`layout.is_held_out`). A
held-out pair occurs in no seed and no variation, and no grammar lets a simulator write it. Held-out tasks
also have separate phrasings.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from genenv.environments.household.layout import (
    CAN_CONTAIN,
    OPENABLE,
    ROOMS,
    TASKS,
    goal_groups,
    goals_of,
    lamp_of,
    objects_of,
    places_of,
    starts_of,
)
from genenv.environments.household.spec import (
    HELD_OUT_PHRASINGS,
    MOST_BESIDE,
    SIZES,
    Choices,
    HouseholdSpec,
    Size,
    TaskName,
    appliance_of,
    choices,
    phrase,
    read_place,
    write_place,
)
from genenv.types import JsonObject, Seed

N_TRAINING: Final = 320
N_HELD_OUT: Final = 500
N_MAIN: Final = 120
"""The number of held-out tasks, from the first, that an evaluation uses by default."""
_LEFT_OPEN = 0.2
"""The share of closable places that are open."""
_FILLED = 0.6
"""The share of places that hold distractor objects."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions about a spec that are made before its room is furnished."""

    offered: Choices
    task: str
    target: str
    size: Size
    hidden: bool
    held_out: bool = False


@functools.cache
def training_specs() -> tuple[tuple[str, HouseholdSpec], ...]:
    """Return the ids and specs of the seeds; always the same."""
    return tuple(_specs("household", N_TRAINING, held_out=False))


@functools.cache
def held_out_specs() -> tuple[tuple[str, HouseholdSpec], ...]:
    """Return the ids and specs of the held-out tasks; always the same."""
    return tuple(_specs("household-held", N_HELD_OUT, held_out=True))


def room_of(spec: HouseholdSpec) -> str:
    """Return the kind of room of a spec: the first kind that can have all its places and its object."""
    kinds = {read_place(line)[0] for line in (spec.start, spec.goal, *spec.others)}
    fitting = (r for r in ROOMS if spec.target in objects_of(r) and kinds <= set(places_of(r)))
    return next(fitting, ROOMS[0])


def offered_for(seed: Seed) -> Choices:
    """Return the objects and places that a simulator may use when it varies this seed."""
    spec = HouseholdSpec.model_validate(seed.spec)
    return choices(seed.id, room_of(spec), spec.target)


def variation(seed: Seed, rng: random.Random) -> JsonObject:
    """Return a new spec in the seed's kind of room; task, object and size each may stay the same."""
    spec, offered = HouseholdSpec.model_validate(seed.spec), offered_for(seed)
    target = spec.target if rng.random() < 0.5 else rng.choice(offered.targets)
    tasks = offered.tasks(target)
    if not tasks:
        target = rng.choice([kind for kind in offered.targets if offered.tasks(kind)])
        tasks = offered.tasks(target)
    task = spec.task if spec.task in tasks and rng.random() < 0.5 else rng.choice(tasks)
    size = spec.size if rng.random() < 0.5 else rng.choice(list(SIZES))
    return draft(_plan(offered, task, target, size, rng), rng).model_dump(mode="json")


def _specs(prefix: str, n: int, *, held_out: bool) -> Iterator[tuple[str, HouseholdSpec]]:
    """Yield specs with balanced tasks and sizes, in random rooms that allow the task, with random objects."""
    rng = random.Random(f"genenv/{prefix}")
    kinds = itertools.cycle(rng.sample(list(itertools.product(TASKS, SIZES)), len(TASKS) * len(SIZES)))
    for number, (task, size) in enumerate(itertools.islice(kinds, n)):
        rooms = [room for room in ROOMS if _targets(task, room, held_out=held_out)]
        room = rng.choice(rooms)
        target = rng.choice(_targets(task, room, held_out=held_out))
        name = f"{prefix}-{number:03d}"
        plan = _plan(choices(name, room, target), task, target, size, rng, held_out=held_out)
        while room_of(spec := draft(plan, rng)) != room:  # with few places it may look like another room
            pass
        yield name, spec


def _targets(task: str, room: str, *, held_out: bool) -> list[str]:
    return [kind for kind in objects_of(room) if goals_of(task, kind, room, held_out=held_out)]


def _plan(
    offered: Choices, task: str, target: str, size: Size, rng: random.Random, *, held_out: bool = False
) -> Plan:
    plan = Plan(offered=offered, task=task, target=target, size=size, hidden=True, held_out=held_out)
    return replace(plan, hidden=bool(ways(plan)) and rng.random() < 0.5)


def draft(plan: Plan, rng: random.Random) -> HouseholdSpec:
    """Draw a spec for a plan that has possible starts, with random furniture and wording."""
    offered, task = plan.offered, plan.task
    goals, starts = rng.choice(ways(plan))
    start = _furnished(plan, rng.choice(starts), rng, first=plan.target)
    if task == "look":
        goal = _furnished(plan, rng.choice(offered.lamp_places), rng, first=str(lamp_of(offered.room)))
    else:
        goal = _furnished(plan, rng.choice(goals), rng)
    others: list[str] = []
    if task == "two":
        others.append(_furnished(plan, rng.choice(starts), rng, first=plan.target))
    elif (appliance := appliance_of(task)) is not None:
        others.append(write_place(appliance, closed=appliance in OPENABLE))
    rest = offered.beside(task, goals)
    for _ in range(rng.randint(*SIZES[plan.size]) - len(others)):
        others.append(_furnished(plan, rng.choice(rest), rng))
    words = rng.choice(HELD_OUT_PHRASINGS[task]) if plan.held_out else phrase(task, rng)
    return HouseholdSpec(
        task=cast(TaskName, task),
        size=plan.size,
        hidden=plan.hidden,
        target=plan.target,
        start=start,
        goal=goal,
        others=tuple(others),
        wording=words,
    )


def ways(plan: Plan) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return the possible pairs of goal places and start places for a plan; empty if there are none."""
    room = plan.offered.room
    goals = goals_of(plan.task, plan.target, room, held_out=plan.held_out)
    found: list[tuple[Sequence[str], Sequence[str]]] = []
    for group in goal_groups(plan.task, goals):
        if starts := starts_of(plan.task, plan.target, room, goals=group, hidden=plan.hidden):
            found.append((group, starts))
    return found


def _furnished(plan: Plan, place: str, rng: random.Random, *, first: str = "") -> str:
    """Return the line of a place with random distractors; it must hold `first`, the object or the lamp."""
    fitting = [kind for kind in plan.offered.objects if kind != plan.target and kind in CAN_CONTAIN[place]]
    matters = first == plan.target
    closed = place in OPENABLE and (plan.hidden if matters else rng.random() >= _LEFT_OPEN)
    beside: Sequence[str] = ()
    if fitting and rng.random() < _FILLED:
        beside = rng.choices(fitting, k=rng.randint(1, MOST_BESIDE))
    return write_place(place, closed=closed, holds=(*((first,) if first else ()), *beside))
