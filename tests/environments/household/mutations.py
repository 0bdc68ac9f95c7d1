"""Valid household specs made wrong, each of which must be rejected."""

from __future__ import annotations

import random
from collections.abc import Iterator

from genenv.environments.household.layout import ABLE, CAN_CONTAIN, OPENABLE, TASKS
from genenv.environments.household.spec import HouseholdSpec, appliance_of, phrase, read_place, write_place


def mutants(spec: HouseholdSpec, rng: random.Random) -> Iterator[tuple[str, HouseholdSpec]]:
    """Every way to break this spec, by its kind, in random order."""
    found = [(kind, changed) for kind, changed in _all(spec, rng) if changed != spec]
    yield from rng.sample(found, len(found))


def _all(spec: HouseholdSpec, rng: random.Random) -> Iterator[tuple[str, HouseholdSpec]]:
    yield from _room(spec, rng)
    yield from _difficulty(spec)
    yield from _words(spec, rng)


def _with(spec: HouseholdSpec, **changes: object) -> HouseholdSpec:
    return spec.model_copy(update=changes)


def _room(spec: HouseholdSpec, rng: random.Random) -> Iterator[tuple[str, HouseholdSpec]]:
    kind, closed, held = read_place(spec.start)
    left = tuple(thing for thing in held if thing != spec.target)
    yield "the object is absent", _with(spec, start=write_place(kind, closed=closed, holds=left))
    cannot = sorted(place for place in CAN_CONTAIN if spec.target not in CAN_CONTAIN[place])
    wrong = rng.choice(cannot)
    yield "it starts where it does not fit", _with(spec, start=write_place(wrong, holds=(spec.target,)))
    goal, *_ = read_place(spec.goal)
    if spec.task == "look":
        yield "the lamp is absent", _with(spec, goal=write_place(goal))
    else:
        yield "its goal cannot hold it", _with(spec, goal=write_place(rng.choice(cannot)))
    if spec.task == "pick":
        closing = spec.hidden and goal in OPENABLE
        yield (
            "it is at its goal already",
            _with(spec, start=write_place(goal, closed=closing, holds=(spec.target,))),
        )
    if spec.task == "two":
        others = tuple(line for line in spec.others if spec.target not in read_place(line)[2])
        yield (
            "there is one instead of two",
            _with(spec, others=(*others, "Shelf", "Shelf")[: len(spec.others)]),
        )
    if (appliance := appliance_of(spec.task)) is not None:
        others = tuple("Shelf" if read_place(line)[0] == appliance else line for line in spec.others)
        if appliance not in (kind, goal):
            yield "the appliance is absent", _with(spec, others=others)
        other = rng.choice(sorted(set(CAN_CONTAIN["CounterTop"]) - ABLE[spec.task]))
        yield "it cannot be treated so", _swapped(spec, other)
    still = [line for line in spec.others if read_place(line)[0] not in OPENABLE]
    if still:
        place = rng.choice(still)
        name, _, things = read_place(place)
        broken = tuple(write_place(name, closed=True, holds=things) if x is place else x for x in spec.others)
        yield "something is closed that cannot be", _with(spec, others=broken)
    yield "an unknown place", _with(spec, others=("Spaceship", *spec.others[1:]))
    if spec.task not in ABLE and spec.task != "two":
        first = rng.randrange(len(spec.others))
        name = read_place(spec.others[first])[0]
        unfit = sorted({"Pillow", "Laptop", "Egg", "Towel"} - CAN_CONTAIN[name])
        changed = [*spec.others]
        changed[first] = write_place(name, holds=(rng.choice(unfit),))
        yield "a thing lies where it does not fit", _with(spec, others=tuple(changed))


def _swapped(spec: HouseholdSpec, other: str) -> HouseholdSpec:
    start = spec.start.replace(spec.target, other)
    return _with(spec, target=other, start=start)


def _difficulty(spec: HouseholdSpec) -> Iterator[tuple[str, HouseholdSpec]]:
    sizes = ("small", "medium", "large")
    yield "the size is wrong", _with(spec, size=sizes[sizes.index(spec.size) - 1])
    yield "hidden is wrong", _with(spec, hidden=not spec.hidden)


def _words(spec: HouseholdSpec, rng: random.Random) -> Iterator[tuple[str, HouseholdSpec]]:
    """The wording with blanks, as a simulator writes it, or with names, as a task has it."""
    lamp = next((kind for kind in read_place(spec.goal)[2] if kind.endswith("Lamp")), "")
    goal = lamp if spec.task == "look" else read_place(spec.goal)[0]
    blank = "<lamp>" if spec.task == "look" else "<place>"
    thing = "<object>" if "<object>" in spec.wording else spec.target.lower()
    there = blank if blank in spec.wording else goal.lower()
    said = spec.wording
    yield "the object is not named", _with(spec, wording=said.replace(thing, "thing"))
    yield "the goal is not named", _with(spec, wording=said.replace(there, "right place"))
    if spec.task != "look":
        others = [task for task in TASKS if task not in (spec.task, "look")]
        yield "another task is worded", _with(spec, wording=phrase(rng.choice(others), rng))
    place = read_place(spec.start)[0]
    if place not in (read_place(spec.goal)[0], spec.target):
        yield "the start is given away", _with(spec, wording=f"{said} from the {place.lower()}")
    yield "a thing of the game is named", _with(spec, wording=said.replace(thing, f"{thing} 1"))
    yield "a blank without a name", _with(spec, wording=f"{said} <{'place' if lamp else 'lamp'}>")
    other = "kettle" if spec.target != "Kettle" else "pillow"
    yield "another object is named", _with(spec, wording=said.replace(thing, f"{thing} and a {other}"))
