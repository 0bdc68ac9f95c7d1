"""Settings of the household, the spec that the simulator writes, its wordings, and its grammar.

The grammar has one alternative for each combination of task, object, size and hidden, and each place holds
only objects that fit, so the gate rejects little. It excludes held-out pairs of object and goal.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from genenv.environments.common import closed_object
from genenv.environments.household.engine import APPLIANCE, World
from genenv.environments.household.layout import (
    CAN_CONTAIN,
    LAMP_PLACES,
    LAMPS,
    OPENABLE,
    TASKS,
    compile_room,
    goal_groups,
    goals_of,
    lamp_of,
    objects_of,
    places_of,
    starts_of,
)
from genenv.settings import Settings
from genenv.types import Json, JsonObject


class HouseholdConfig(Settings, frozen=True):
    """Settings of the household environment."""

    mode: Literal["episode", "single"] = "episode"
    """episode: the agent plays the whole game, one command per turn. single: the agent sees a game in which
    an expert has played some steps, and must give the next command (the paper's decomposition into single
    steps); a step is asked only if it follows from the answers so far."""
    max_turns: int = Field(default=50, ge=11, le=200)
    """Maximum commands in a whole game, including those that do nothing; ALFWorld allows 50, plans have up to
    11."""
    show_commands: bool = False
    """List all commands that are possible now. If off, the agent must find out, as in ALFWorld."""
    held_to_commands: bool = False
    """Sample replies only from the commands that are possible now, and train on probabilities within this
    set, so no turn is lost on an invalid command. Demonstrations are learned in the same way. Not with
    endpoints."""
    reward: Literal["exact", "progress"] = "exact"
    """exact: 1 for a won game (or a right step), else 0. progress: a game that is not won earns 1 - (steps
    still needed) / (steps of its shortest plan), but at least 0."""


HELD_OUT_PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "pick": (
        "the <place> is where a <object> should end up",
        "would you store one <object> inside that <place>?",
        "my <object> belongs on the <place>; bring it there",
    ),
    "look": (
        "turn on the <lamp> and inspect the <object>",
        "hold up one <object> to be seen with the <lamp> lit",
    ),
    "clean": (
        "a <object> must be washed before it goes to the <place>",
        "get one <object> rinsed; its home is the <place>",
    ),
    "heat": (
        "a <object> must be heated before it goes to the <place>",
        "get one <object> warmed; its home is the <place>",
    ),
    "cool": (
        "a <object> must be chilled before it goes to the <place>",
        "get one <object> cooled; its home is the <place>",
    ),
    "two": (
        "a pair of <object> should end up together on the <place>",
        "collect two <object>; their home is the <place>",
    ),
}

_Part = str | list[str]
_OPENINGS = [
    *["please", "now", "then", "first", "kindly", "just", "quickly", "could you", "could you please"],
    *["now please", "i need you to", "i want you to", "we have to", "you should", "let us", "go and"],
]
_ENDINGS = [
    *["now", "please", "thank you", "when you can", "for me", "for us", "today", "soon", "that is all"],
    *["before dinner", "before the guests come"],
]
_PUT = ["put", "place", "leave", "set", "move", "store", "bring"]
_IN = ["in", "on", "into", "onto"]
_A = ["a", "the", "some", "any", "one", "my"]
_TREAT = {"clean": ["clean", "wash", "rinse"], "heat": ["heat", "warm"], "cool": ["cool", "chill"]}
_TREATED = {
    "clean": ["clean", "washed", "rinsed"],
    "heat": ["hot", "warm", "heated"],
    "cool": ["cool", "cold", "chilled"],
}


def _sentences(task: str) -> list[list[_Part]]:
    """Return the sentence patterns of a task: each is a list of words and of choices between words."""
    there: list[_Part] = [_IN, [f"{a} <place>" for a in _A] + ["<place>"]]
    thing = [f"{a} <object>" for a in _A]
    if task == "look":
        lamp: list[_Part] = [["under", "with", "by"], ["the <lamp>", "a <lamp>", "any <lamp>"]]
        return [[["look at", "examine", "inspect", "check", "have a look at"], thing, *lamp]]
    if task == "two":
        both = ["two <object>", "both <object>", "two of the <object>"]
        return [[_PUT, both, *there], [["find", "get", "collect"], both, "and", _PUT, "them", *there]]
    if task in _TREAT:
        # not "the clean egg": that may be one that is clean already
        done = [f"{a} {word} <object>" for a in ("a", "one", "some") for word in _TREATED[task]]
        return [[_TREAT[task], thing, ["and", "then"], _PUT, "it", *there], [_PUT, done, *there]]
    return [[_PUT, thing, *there], [_PUT, thing, ["back", "away", "down"], *there]]


def phrase(task: str, rng: random.Random) -> str:
    """Return a random wording of a task, with blanks."""
    parts = [["", *_OPENINGS], *rng.choice(_sentences(task)), ["", *_ENDINGS]]
    return " ".join(word for part in parts if (word := part if isinstance(part, str) else rng.choice(part)))


def wording_pattern(task: str) -> str:
    """Return a regular expression that matches every text that `phrase` can return."""
    opening, ending = "|".join(_OPENINGS), "|".join(_ENDINGS)
    said = "|".join(" ".join(map(_choice, sentence)) for sentence in _sentences(task))
    return f"^(({opening}) )?({said})( ({ending}))?$"


def _choice(part: _Part) -> str:
    return part if isinstance(part, str) else f"({'|'.join(part)})"


_NAMES = {
    name.lower(): name for name in {*CAN_CONTAIN, *LAMPS, *(k for held in CAN_CONTAIN.values() for k in held)}
}
_WORD = re.compile(r"[a-z]+")


def problem_with(wording: str, task: str, target: str, goal: str) -> tuple[str, str] | None:
    """Find a fault in a wording whose blanks are filled.

    Args:
        wording: the task's text for the agent.
        task: short name.
        target: type of the object.
        goal: type of the place or the lamp.

    Returns:
        The reason ("unstated", "leak" or "inconsistent") and a sentence; None if the wording is valid.
    """
    words = _WORD.findall(wording.lower())
    for name in (target, goal):
        if name.lower() not in words:
            return "unstated", f"The wording does not name the {name.lower()}."
    if digit := re.search(r"\w+ \d+", wording):
        return "leak", f"The wording names a thing of the game, {digit[0]!r}."
    for name in words:
        if name in _NAMES and _NAMES[name] not in (target, goal):
            return "leak", f"The wording names the {name}, which has no part in the goal."
    if not _sayings(task, target.lower(), goal.lower()).fullmatch(wording):
        return "inconsistent", f"The wording is none of those for a task of the kind {task!r}."
    return None


@functools.lru_cache(maxsize=512)
def _sayings(task: str, thing: str, goal: str) -> re.Pattern[str]:
    """Return a pattern of all wordings of a task with these names, of the grammar and of held-out tasks."""
    ways = [wording_pattern(task)[1:-1], *map(re.escape, HELD_OUT_PHRASINGS[task])]
    text = "|".join(f"(?:{way})" for way in ways)
    return re.compile(re.sub("<place>|<lamp>", goal, text.replace("<object>", thing)))


_NAME = "[A-Z][A-Za-z]{1,24}"
_LINE = rf"^{_NAME}( closed)?(: {_NAME}(, {_NAME}){{0,7}})?$"
TaskName = Literal["pick", "look", "clean", "heat", "cool", "two"]
MIN_WORDING, MAX_WORDING = 8, 240
"""Limits in characters, both with blanks and with names."""
Size = Literal["small", "medium", "large"]
SIZES: dict[Size, tuple[int, int]] = {"small": (2, 3), "medium": (4, 5), "large": (6, 8)}
"""Size -> minimum and maximum number of places in addition to the start and the goal."""


class HouseholdSpec(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """A household task. A place is written as `Fridge closed: Apple, Mug`, an empty place as `Shelf`."""

    task: TaskName
    """The action on the object: put it somewhere (`pick`), look at it under a lamp, or clean, heat or cool it
    before putting it down; for `two`, two objects of one type go into one place."""
    size: Size
    """The number of other places."""
    hidden: bool
    """True: each object of the target's type starts in a closed place. False: the object starts in an open
    place; for `two`, at least one of the objects does."""
    target: str = Field(pattern=f"^{_NAME}$")
    """Type of the object."""
    start: str = Field(pattern=_LINE)
    """The place where the object starts; for `two`, the place of the first object."""
    goal: str = Field(pattern=_LINE)
    """The place where the object must go; for `look`, the place with the lamp."""
    others: tuple[Annotated[str, Field(pattern=_LINE)], ...] = Field(max_length=12)
    """All other places; the first holds the second object or is the appliance, if the task needs one."""
    wording: str = Field(min_length=MIN_WORDING, max_length=MAX_WORDING)
    """The task's text for the agent, with `<object>` and `<place>` (or `<lamp>`) in place of names."""


def read_place(line: str) -> tuple[str, bool, tuple[str, ...]]:
    """Parse the line of a place: its type, whether it is closed, and the objects in it."""
    head, _, content = line.partition(": ")
    kind, closed, _ = head.partition(" closed")
    return kind, bool(closed), tuple(content.split(", ")) if content else ()


def write_place(kind: str, *, closed: bool = False, holds: tuple[str, ...] = ()) -> str:
    """Return the line of a place."""
    return f"{kind}{' closed' if closed else ''}{': ' + ', '.join(holds) if holds else ''}"


def lines(spec: HouseholdSpec) -> Iterator[str]:
    """Yield the lines of all places: start, goal, others."""
    yield from (spec.start, spec.goal, *spec.others)


def goal_of(spec: HouseholdSpec) -> str:
    """Return the type of the place to which the object must go; for `look`, the type of the lamp."""
    kind, _, held = read_place(spec.goal)
    if spec.task != "look":
        return kind
    return next((thing for thing in held if thing.endswith("Lamp")), "DeskLamp")


def world_of(spec: HouseholdSpec, order: Sequence[int]) -> World:
    """Return the game of a spec with its places in the given order (indices into `lines`).

    Raises:
        ValueError: the room is impossible.
    """
    written = [read_place(line) for line in lines(spec)]
    room = [written[i] for i in order]
    return compile_room(TASKS[spec.task], spec.target, goal_of(spec), room, spec.wording)


BLANK = re.compile(r"<(object|place|lamp)>")


def filled(spec: HouseholdSpec) -> HouseholdSpec:
    """Return the spec with names in the blanks of its wording."""
    goal = goal_of(spec)
    names = {"object": spec.target, "place": goal, "lamp": goal}
    wording = BLANK.sub(lambda blank: names[blank[1]].lower(), spec.wording)
    return spec.model_copy(update={"wording": wording})


_TARGETS, _DISTRACTORS = 4, 4
MOST_BESIDE = 2
"""The maximum number of distractor objects in one place."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The objects and places that a simulator may use for a seed; its prompt lists them."""

    room: str
    targets: tuple[str, ...]
    distractors: tuple[str, ...]

    @property
    def objects(self) -> tuple[str, ...]:
        """All objects, targets first."""
        return self.targets + self.distractors

    @property
    def places(self) -> tuple[str, ...]:
        """Types of receptacles in the room."""
        return places_of(self.room)

    @property
    def lamp_places(self) -> tuple[str, ...]:
        """Types of places in the room that can hold a lamp."""
        return tuple(place for place in LAMP_PLACES if place in self.places)

    def beside(self, task: str, goals: Sequence[str]) -> tuple[str, ...]:
        """Return the types of other places. For `two`, the goal's type is excluded, so that it is unique."""
        return tuple(place for place in self.places if task != "two" or place not in goals)

    def tasks(self, target: str) -> tuple[str, ...]:
        """Return the tasks that are possible with an object."""
        return tuple(task for task in TASKS if goals_of(task, target, self.room, held_out=False))


def choices(seed_id: str, room: str, target: str) -> Choices:
    """Return the choices for a seed: its object, three alternatives to it, and four distractors."""
    rng = random.Random(f"{seed_id}/offer")
    rest = [kind for kind in objects_of(room) if kind != target]
    rng.shuffle(rest)
    usable = [kind for kind in rest if Choices(room=room, targets=(), distractors=()).tasks(kind)]
    targets = (target, *usable[: _TARGETS - 1])
    left = [kind for kind in rest if kind not in targets]
    return Choices(room=room, targets=targets, distractors=tuple(left[:_DISTRACTORS]))


def appliance_of(task: str) -> str | None:
    """Return the type of place in which a task's object is treated, or None."""
    return APPLIANCE.get(TASKS[task])


def spec_schema(offered: Choices) -> JsonObject:
    """Return a schema with an alternative for each task, object and size, and for hidden or not."""
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
    return closed_object({name: held[name] for name in HouseholdSpec.model_fields})


def _lines(
    offered: Choices, target: str, places: Sequence[str], *, kinds: Sequence[bool], first: str = ""
) -> dict[str, Json]:
    """Return a pattern for the lines of places: types, open or closed as in `kinds`, `first`, distractors."""
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
