"""Settings of the household, the simulator's specs with their wordings and grammar, and the base data.

The grammar has one alternative for each combination of task, object, size and hidden, and each place holds
only objects that fit, so the gate rejects little.

The base data are 320 training specs, 500 held-out specs, and variations of the former. The split is by pairs
of an object and the place (or lamp) that it must come to (`layout.is_held_out`). A held-out pair occurs in no
seed and no variation, and no grammar lets a simulator write it. Held-out tasks also have separate phrasings.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, cast

from pydantic import BaseModel, Field

from genenv.environments.common import closed_object
from genenv.environments.household.engine import APPLIANCE, World
from genenv.environments.household.layout import (
    CAN_CONTAIN,
    LAMP_PLACES,
    LAMPS,
    OPENABLE,
    ROOMS,
    TASKS,
    compile_room,
    goal_groups,
    goals_of,
    lamp_of,
    objects_of,
    places_of,
    starts_of,
)
from genenv.settings import Settings, only_with
from genenv.types import Json, JsonObject, Seed

_GAMES = only_with(mode=("episode",))


class HouseholdConfig(Settings, frozen=True):
    """Settings of the household environment."""

    mode: Literal["episode", "single"] = "episode"
    """episode: the agent plays the whole game, one command per turn. single: the agent sees a game in which
    an expert has played some steps, and must give the next command (the paper's decomposition into single
    steps); a step is asked only if it follows from the answers so far."""
    max_turns: int = Field(default=50, ge=11, le=200, json_schema_extra=_GAMES)
    """Maximum commands in a whole game, including those that do nothing; ALFWorld allows 50, plans have up to
    11."""
    show_commands: bool = False
    """List all commands that are possible now. If off, the agent must find out, as in ALFWorld."""
    held_to_commands: bool = False
    """Sample replies only from the commands that are possible now, and train on probabilities within this
    set, so no turn is lost on an invalid command. Demonstrations are learned in the same way. Not with
    endpoints."""
    reward: Literal["exact", "progress"] = Field(default="exact", json_schema_extra=_GAMES)
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
