"""The grammar that the simulator writes household specs under: what is offered for one seed.

Every combination of task, object, size and whether the object is hidden is an alternative, and each place
holds only what fits into it, so what is left for the gate is little: a room in which something is missing
cannot be written. Pairs of object and goal that are kept for held-out tasks cannot be written either.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.environments.household.rooms import (
    LAMP_PLACES,
    TASKS,
    goal_groups,
    goals_of,
    lamp_of,
    objects_of,
    places_of,
    starts_of,
)
from genenv.environments.household.spec import SIZES, HouseholdSpec, Size
from genenv.environments.household.tables import CAN_CONTAIN, OPENABLE
from genenv.environments.household.wording import wording_pattern
from genenv.environments.household.world import APPLIANCE
from genenv.types import Json, JsonObject

_TARGETS, _DISTRACTORS = 4, 4
MOST_BESIDE = 2
"""Most other objects in one place."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a simulator may write about: the objects and places named in its prompt."""

    room: str
    targets: tuple[str, ...]
    distractors: tuple[str, ...]

    @property
    def objects(self) -> tuple[str, ...]:
        """All objects, targets first."""
        return self.targets + self.distractors

    @property
    def places(self) -> tuple[str, ...]:
        """Types of receptacles."""
        return places_of(self.room)

    @property
    def lamp_places(self) -> tuple[str, ...]:
        """Where a lamp can stand."""
        return tuple(place for place in LAMP_PLACES if place in self.places)

    def beside(self, task: str, goals: Sequence[str]) -> tuple[str, ...]:
        """What may stand there besides; for `two` no second place of the goal's type: both go into one."""
        return tuple(place for place in self.places if task != "two" or place not in goals)

    def tasks(self, target: str) -> tuple[str, ...]:
        """What may be asked for an object."""
        return tuple(task for task in TASKS if goals_of(task, target, self.room, held_out=False))


def choices(seed_id: str, room: str, target: str) -> Choices:
    """What is offered for a seed: its object, three others to vary it to, and four more to lie about."""
    rng = random.Random(f"{seed_id}/offer")
    rest = [kind for kind in objects_of(room) if kind != target]
    rng.shuffle(rest)
    usable = [kind for kind in rest if Choices(room=room, targets=(), distractors=()).tasks(kind)]
    targets = (target, *usable[: _TARGETS - 1])
    left = [kind for kind in rest if kind not in targets]
    return Choices(room=room, targets=targets, distractors=tuple(left[:_DISTRACTORS]))


def appliance_of(task: str) -> str | None:
    """The type of place in which a task's object is treated."""
    return APPLIANCE.get(TASKS[task])


def spec_schema(offered: Choices) -> JsonObject:
    """One alternative for each task, object, size, and whether the object is hidden."""
    definitions: dict[str, Json] = {f"wording_{task}": _pattern(wording_pattern(task)) for task in TASKS}
    by_task: dict[str, list[Json]] = {}
    for target in offered.targets:
        definitions[f"other_{target}"] = _lines(offered, target, offered.places, kinds=(False, True))
        for task in offered.tasks(target):
            by_task.setdefault(task, []).extend(_alternatives(offered, task, target, definitions))
    return {"anyOf": [{"anyOf": alternatives} for alternatives in by_task.values()], "$defs": definitions}


def _alternatives(offered: Choices, task: str, target: str, definitions: dict[str, Json]) -> list[Json]:
    goals = goals_of(task, target, offered.room, held_out=False)
    found: list[Json] = []
    for half in goal_groups(task, goals):
        name = f"{task}_{target}_{half[0]}"
        definitions[f"goal_{name}"] = _goal_lines(offered, task, target, half)
        other = f"other_{target}"
        if task == "two":
            other += f"_{half[0]}"
            definitions[other] = _lines(offered, target, offered.beside(task, half), kinds=(False, True))
        for hidden in (False, True):
            if places := starts_of(task, target, offered.room, goals=half, hidden=hidden):
                start = f"start_{name}_{hidden}".lower()
                definitions[start] = _lines(offered, target, places, first=target, kinds=(hidden,))
                parts = _ref(start), _ref(f"goal_{name}"), _ref(other)
                found += [_alternative(task, target, hidden, size, parts) for size in SIZES]
    return found


def _goal_lines(offered: Choices, task: str, target: str, goals: Sequence[str]) -> Json:
    if task != "look":
        return _lines(offered, target, goals, kinds=(False, True))
    return _lines(offered, target, offered.lamp_places, first=str(lamp_of(offered.room)), kinds=(False,))


def _alternative(task: str, target: str, hidden: bool, size: Size, places: tuple[Json, Json, Json]) -> Json:
    start, goal, other = places
    least, most = SIZES[size]
    first: list[Json] = []
    if task == "two":
        first = [start]
    elif (appliance := appliance_of(task)) is not None:
        first = [{"enum": [f"{appliance} closed", appliance] if appliance in OPENABLE else [appliance]}]
    others: dict[str, Json] = {
        "type": "array",
        "items": other,
        "minItems": least,
        "maxItems": most,
    }
    if first:
        others["prefixItems"] = first
    held: Mapping[str, Json] = {
        "task": {"const": task},
        "size": {"const": size},
        "hidden": {"const": hidden},
        "target": {"const": target},
        "start": start,
        "goal": goal,
        "others": others,
        "wording": _ref(f"wording_{task}"),
    }
    return {
        "type": "object",
        "properties": {name: held[name] for name in HouseholdSpec.model_fields},
        "required": list(HouseholdSpec.model_fields),
        "additionalProperties": False,
    }


def _lines(
    offered: Choices, target: str, places: Sequence[str], *, kinds: Sequence[bool], first: str = ""
) -> dict[str, Json]:
    """Lines of places: each type, closed or not as `kinds` has it, with `first` in it and what else fits."""
    written: list[str] = []
    for place in places:
        fitting = [k for k in offered.objects if k != target and k in CAN_CONTAIN[place]]
        for closed in kinds:
            if closed and place not in OPENABLE:
                continue
            head = f"{place}{' closed' if closed else ''}"
            more = f"({'|'.join(fitting)})" if fitting else ""
            if first:
                written.append(f"{head}: {first}" + (f"(, {more}){{0,{MOST_BESIDE}}}" if more else ""))
            else:
                written.append(head + (f"(: {more}(, {more})?)?" if more else ""))
    return _pattern(f"^({'|'.join(written)})$")


def _ref(name: str) -> dict[str, Json]:
    return {"$ref": f"#/$defs/{name}"}


def _pattern(pattern: str) -> dict[str, Json]:
    return {"type": "string", "pattern": pattern}
