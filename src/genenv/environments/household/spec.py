"""What the simulator writes for the household: a room, an object in it, and what must happen to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from genenv.environments.household.layout import Layout, Receptacle, Thing
from genenv.environments.household.rooms import TASKS

_NAME = "[A-Z][A-Za-z]{1,24}"
_LINE = rf"^{_NAME}( closed)?(: {_NAME}(, {_NAME}){{0,7}})?$"
TaskName = Literal["pick", "look", "clean", "heat", "cool", "two"]
MIN_WORDING, MAX_WORDING = 8, 240
"""Characters, with blanks as with names."""
Size = Literal["small", "medium", "large"]
SIZES: dict[Size, tuple[int, int]] = {"small": (2, 3), "medium": (4, 5), "large": (6, 8)}
"""Least and most places beside those where the object starts and where it must go."""


class HouseholdSpec(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """A household task. A place is written as `Fridge closed: Apple, Mug`, an empty one as `Shelf`."""

    task: TaskName
    """What must happen to the object: be put somewhere, be looked at under a lamp, be cleaned, heated or
    cooled first; `two` of a kind must be put into one place."""
    size: Size
    """How many other places there are."""
    hidden: bool
    """True: each object of the target's type starts in a closed place. False: it starts in the open; of two,
    at least one does."""
    target: str = Field(pattern=f"^{_NAME}$")
    """Type of the object."""
    start: str = Field(pattern=_LINE)
    """The place where it starts; for `two`, the first of them."""
    goal: str = Field(pattern=_LINE)
    """The place where it must go; for `look`, the one with the lamp."""
    others: tuple[Annotated[str, Field(pattern=_LINE)], ...] = Field(max_length=12)
    """All other places; the appliance that the task needs, or the second object, is in the first."""
    wording: str = Field(min_length=MIN_WORDING, max_length=MAX_WORDING)
    """What the agent is told, with `<object>` and `<place>`, or `<lamp>`, for the names."""


def read_place(line: str) -> tuple[str, bool, tuple[str, ...]]:
    """A place as written: its type, whether it is closed, and the objects in it."""
    head, _, content = line.partition(": ")
    kind, closed, _ = head.partition(" closed")
    return kind, bool(closed), tuple(content.split(", ")) if content else ()


def write_place(kind: str, *, closed: bool = False, holds: tuple[str, ...] = ()) -> str:
    """The line for a place."""
    return f"{kind}{' closed' if closed else ''}{': ' + ', '.join(holds) if holds else ''}"


def lines(spec: HouseholdSpec) -> Iterator[str]:
    """All places: start, goal, others."""
    yield from (spec.start, spec.goal, *spec.others)


def goal_of(spec: HouseholdSpec) -> str:
    """The type of the place where the object must go; for `look`, of the lamp."""
    kind, _, held = read_place(spec.goal)
    if spec.task != "look":
        return kind
    return next((thing for thing in held if thing.endswith("Lamp")), "DeskLamp")


def layout_of(spec: HouseholdSpec, order: list[int]) -> Layout:
    """The room of a spec, with its places in the given order (indices into `lines`)."""
    written = [read_place(line) for line in lines(spec)]
    receptacles = tuple(Receptacle(type=written[i][0], closed=written[i][1]) for i in order)
    things = tuple(Thing(type=kind, at=at) for at, i in enumerate(order) for kind in written[i][2])
    return Layout(
        task=TASKS[spec.task],
        target=spec.target,
        goal=goal_of(spec),
        receptacles=receptacles,
        things=things,
        wording=spec.wording,
    )


BLANK = re.compile(r"<(object|place|lamp)>")


def filled(spec: HouseholdSpec) -> HouseholdSpec:
    """The spec with names in the blanks of its wording."""
    goal = goal_of(spec)
    names = {"object": spec.target, "place": goal, "lamp": goal}
    wording = BLANK.sub(lambda blank: names[blank[1]].lower(), spec.wording)
    return spec.model_copy(update={"wording": wording})
