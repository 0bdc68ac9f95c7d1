"""The household game: places, objects, the rules of its commands, and a parser of commands in replies.

It also plays the recorded games of ALFWorld.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
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
"""Task -> the verb of the treatment that the object needs before it is put down."""
APPLIANCE: dict[TaskType, str] = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
"""Task -> the type of receptacle in which the object is treated."""

KNIVES = ("Knife", "ButterKnife")


@dataclass(frozen=True)
class Place:
    """A receptacle of a compiled game."""

    id: str
    name: str
    type: str
    location: str
    openable: bool
    opened: bool


@dataclass(frozen=True)
class Item:
    """An object of a compiled game. `inside`: names of its contents in descriptions (constant)."""

    id: str
    name: str
    type: str
    at: tuple[str, ...]
    """Ids of the receptacles in which it starts: one; in recorded games also none or several."""
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
    """The constant part of a game. Sequences are sorted by id, as TextWorld lists entities in that order."""

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
    """(item id, location) of items at the start; None: each item is at the location of its receptacle."""
    help: str = ""
    """The answer to the command `help`; empty for the default text."""


NOTHING = "Nothing happens."
_INTRO = "-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {wording}."
_HELP = (
    "You can: look; inventory; go to, open, close or examine a place; take an object from a place; move it to"
    " a place; clean, heat or cool it with a place; use a lamp; slice an object with a knife."
)
"""A text written for genenv; all other answers are TextWorld's."""


def _listing(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) < 2:
        return listed[0] if listed else "nothing"
    return ", ".join(listed[:-1]) + ", and " + listed[-1]


@dataclass
class State:
    """The variable part of a game. Sets hold ids."""

    location: str
    inside: dict[str, frozenset[str]]
    """Item -> ids of the receptacles that it is in. Usually this is one. In recorded games an item may start
    in several; taking it from one of them leaves it in the others."""
    at: dict[str, set[str]]
    """Item -> the locations that the grammar has for it."""
    opened: set[str]
    held: str | None = None
    clean: set[str] = field(default_factory=set)
    hot: set[str] = field(default_factory=set)
    cool: set[str] = field(default_factory=set)
    toggled: set[str] = field(default_factory=set)
    sliced: set[str] = field(default_factory=set)
    taken_from: set[tuple[str, str]] = field(default_factory=set)
    """Pairs (item, receptacle) of past takes; TextWorld lists such an item as visible on the floor."""


_SETS = ("opened", "clean", "hot", "cool", "toggled", "sliced", "taken_from")


class Game:
    """One compiled game. It never changes, so all rollouts share it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.places: dict[str, Place] = {p.name: p for p in world.places}
        self.items: dict[str, Item] = {i.name: i for i in world.items}
        self.place_of_id: dict[str, Place] = {p.id: p for p in world.places}
        self.item_of_id: dict[str, Item] = {i.id: i for i in world.items}
        self.facing: dict[str, list[Place]] = {}
        for place in world.places:
            self.facing.setdefault(place.location, []).append(place)

    @cached_property
    def intro(self) -> str:
        """The first text that the agent sees."""
        seen = _listing(f"a {p.name}" for p in self.world.places)
        room = f"You are in the middle of a room. Looking quickly around you, you see {seen}."
        return _INTRO.format(room=room, wording=self.world.wording)

    def start(self) -> Play:
        """Return a new rollout at the initial state."""
        inside = {i.id: frozenset(i.at) for i in self.world.items if i.at}
        located = self.world.located
        if located is None:
            located = (
                (item, self.place_of_id[p].location) for item, places in inside.items() for p in places
            )
        at: dict[str, set[str]] = {}
        for item, location in located:
            at.setdefault(item, set()).add(location)
        return Play(
            self,
            State(
                location=self.world.start,
                inside=inside,
                at=at,
                opened={p.id for p in self.world.places if p.opened},
                cool={i.id for i in self.world.items if i.cool},
            ),
        )


class Play:
    """The state of one rollout and the commands that change it."""

    def __init__(self, game: Game, state: State) -> None:
        self.game = game
        self.state = state

    # -- what the agent calls

    def step(self, command: str) -> str:
        """Execute a command and return the answer; `NOTHING` if it is impossible and changed nothing."""
        words = command.strip()
        verb, _, rest = words.partition(" ")
        plain = _PLAIN.get(words)
        if plain is not None:
            return plain(self)
        unary = _UNARY.get(verb)
        if unary is not None:
            return unary(self, rest) or NOTHING
        binary = _BINARY.get(verb)
        if binary is not None:
            act, preposition = binary
            first, found, second = rest.partition(preposition)
            return (act(self, first, second) or NOTHING) if found else NOTHING
        return NOTHING

    def play(self, commands: Iterable[str]) -> list[str]:
        """Execute commands in order and return their answers."""
        return [self.step(command) for command in commands]

    @property
    def won(self) -> bool:
        """Whether the goal holds now: all of its conditions."""
        met, conditions = self.goal_conditions
        return met == conditions

    @property
    def goal_conditions(self) -> tuple[int, int]:
        """The number of goal conditions that hold now, and their total; both are equal once the game is won.

        As ALFRED's tasks count them (`goal_conditions_met` in `alfworld/env/tasks.py`): pick 1, an object in
        the receptacle; two 2, the objects in one receptacle, at most two; light 2, the object held, the lamp
        on and in front; clean, heat and cool 3, an object in the receptacle, an object treated, and one that
        is both.
        """
        world, state = self.game.world, self.state
        targets = [item for item in world.items if item.type == world.target]
        if world.task == "look_at_obj_in_light":
            lit = any(
                i.toggleable and i.id in state.toggled and i.type == world.goal and self._in_front(i)
                for i in world.items
            )
            return (state.held in {item.id for item in targets}) + lit, 2
        counts: dict[str, int] = {}
        placed: set[str] = set()
        for item in targets:
            for place in state.inside.get(item.id, ()):
                if self.game.place_of_id[place].type == world.goal:
                    counts[place] = counts.get(place, 0) + 1
                    placed.add(item.id)
        if world.task == "pick_two_obj_and_place":
            return min(max(counts.values(), default=0), 2), 2
        if world.task == "pick_and_place_simple":
            return int(bool(placed)), 1
        treated = {item.id for item in targets if self._treated(item)}
        return bool(placed) + bool(treated) + bool(placed & treated), 3

    @property
    def admissible(self) -> list[str]:
        """All commands that are possible now, sorted."""
        state, game = self.state, self.game
        here = game.facing.get(state.location, [])
        commands = {"look", "inventory", "help"}
        commands |= {f"go to {p.name}" for p in game.world.places if p.location != state.location}
        commands |= {f"examine {p.name}" for p in here}
        commands |= {f"{'close' if p.id in state.opened else 'open'} {p.name}" for p in here if p.openable}
        for item in game.world.items:
            for place in self._in_front(item):
                if self._accessible(place) and item.pickupable and state.held is None:
                    commands.add(f"take {item.name} from {place.name}")
                if item.toggleable:
                    commands.add(f"use {item.name}")
        if state.held is not None:
            held = game.item_of_id[state.held]
            commands.add(f"examine {held.name}")
            for place in here:
                if self._accessible(place) and held.type in game.world.can_contain.get(place.type, ()):
                    commands.add(f"move {held.name} to {place.name}")
                for verb, (kind, able) in TREATMENTS.items():
                    if place.type == kind and able(held):
                        commands.add(f"{verb} {held.name} with {place.name}")
            if held.type in KNIVES:
                commands |= {
                    f"slice {i.name} with {held.name}"
                    for i in game.world.items
                    if i.sliceable and state.location in state.at.get(i.id, ())
                }
        return sorted(commands)

    def copy(self) -> Play:
        """Return an independent copy that continues from the current state."""
        state = self.state
        copied = replace(
            state, **{name: set(getattr(state, name)) for name in _SETS}, inside=dict(state.inside)
        )
        copied.at = {item: set(places) for item, places in state.at.items()}
        return Play(self.game, copied)

    def done(self, verb: str) -> set[str]:
        """Return the ids of the items that are clean, hot or cool, for the verb `clean`, `heat` or `cool`."""
        return {"clean": self.state.clean, "heat": self.state.hot, "cool": self.state.cool}[verb]

    def sees(self, item: Item) -> bool:
        """Return whether an item is in an open place in front of the agent."""
        return any(map(self._accessible, self._in_front(item)))

    # -- conditions

    def _accessible(self, place: Place) -> bool:
        return not place.openable or place.id in self.state.opened

    def _here(self, name: str) -> Place | None:
        place = self.game.places.get(name)
        return place if place is not None and place.location == self.state.location else None

    def _in_front(self, item: Item) -> list[Place]:
        """Return the places that contain an item and are in front of the agent."""
        inside = self.state.inside.get(item.id, ())
        places = map(self.game.place_of_id.__getitem__, inside)
        return [place for place in places if place.location == self.state.location]

    def _held(self, name: str) -> Item | None:
        item = self.game.items.get(name)
        return item if item is not None and item.id == self.state.held else None

    def _treated(self, item: Item) -> bool:
        verb = VERB.get(self.game.world.task)
        return verb is None or (TREATMENTS[verb][1](item) and item.id in self.done(verb))

    # -- actions: each returns the answer, or None if it is impossible now

    def look(self) -> str:
        """Return a description of the agent's surroundings."""
        here = self.game.facing.get(self.state.location, [])
        if not here:  # a quirk of the grammar: away from receptacles `look` lists none
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        floor = _listing(
            f"a {i.name}"
            for i in self.game.world.items
            if self.state.location in self.state.at.get(i.id, ())
            for p in here
            if (i.id, p.id) in self.state.taken_from
        )
        return f"You are facing the {_listing(p.name for p in here)}. Next to it, you see {floor}."

    def inventory(self) -> str:
        """Return a description of the object that the agent carries."""
        if self.state.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.item_of_id[self.state.held].name}."

    def help(self) -> str:
        """Return the list of commands."""
        return self.game.world.help or _HELP

    def go(self, target: str) -> str | None:
        """Walk to another receptacle."""
        place = self.game.places.get(target.removeprefix("to "))
        if not target.startswith("to ") or place is None or place.location == self.state.location:
            return None
        self.state.location = place.location
        return f"You arrive at {place.name}. {self._view(place)}"

    def open(self, name: str) -> str | None:
        """Open a receptacle in front of the agent."""
        place = self._here(name)
        if place is None or not place.openable or place.id in self.state.opened:
            return None
        self.state.opened.add(place.id)
        return f"You open the {place.name}. {self._view(place)}"

    def close(self, name: str) -> str | None:
        """Close a receptacle in front of the agent."""
        place = self._here(name)
        if place is None or not place.openable or place.id not in self.state.opened:
            return None
        self.state.opened.discard(place.id)
        return f"You close the {place.name}."

    def examine(self, name: str) -> str | None:
        """Describe a receptacle in front of the agent, or the object that the agent carries."""
        place = self._here(name)
        if place is not None:
            return self._view(place)
        item = self._held(name)  # TextWorld's translation drops the case of an object in a receptacle
        return self._description(item) if item is not None else None

    def use(self, name: str) -> str | None:
        """Turn on a lamp in front of the agent."""
        item = self.game.items.get(name)
        if item is None or not item.toggleable or not self._in_front(item):
            return None
        self.state.toggled.add(item.id)
        # The answer is the same if it was on: the grammar only tests whether it was ever used.
        return f"You turn on the {item.name}."

    def take(self, name: str, source: str) -> str | None:
        """Pick up an object."""
        item, place = self.game.items.get(name), self._here(source)
        if item is None or place is None or self.state.held is not None or not item.pickupable:
            return None
        inside = self.state.inside.get(item.id, frozenset())
        if place.id not in inside or not self._accessible(place):
            return None
        self.state.held = item.id
        self.state.inside[item.id] = inside - {place.id}
        self.state.at.get(item.id, set()).discard(place.location)
        self.state.taken_from.add((item.id, place.id))
        return f"You pick up the {item.name} from the {place.name}."

    def move(self, name: str, target: str) -> str | None:
        """Put down the object that the agent carries."""
        item, place = self._held(name), self._here(target)
        if item is None or place is None or not self._accessible(place):
            return None
        if item.type not in self.game.world.can_contain.get(place.type, ()):
            return None
        self.state.held = None
        self.state.inside[item.id] = self.state.inside.get(item.id, frozenset()) | {place.id}
        self.state.at.setdefault(item.id, set()).add(place.location)
        self.state.taken_from.discard((item.id, place.id))
        return f"You move the {item.name} to the {place.name}."

    def treat(self, verb: str, name: str, appliance: str) -> str | None:
        """Clean, heat or cool the object that the agent carries."""
        item, place = self._held(name), self._here(appliance)
        kind, able = TREATMENTS[verb]
        if item is None or place is None or place.type != kind or not able(item):
            return None
        self.done(verb).add(item.id)
        opposite = {"heat": "cool", "cool": "heat"}.get(verb)
        if opposite is not None:
            self.done(opposite).discard(item.id)
        return f"You {verb} the {item.name} using the {place.name}."

    def slice(self, name: str, tool: str) -> str | None:
        """Cut an object at the agent's location."""
        item, knife = self.game.items.get(name), self._held(tool)
        if item is None or knife is None or knife.type not in KNIVES or not item.sliceable:
            return None
        if self.state.location not in self.state.at.get(item.id, ()):
            return None
        self.state.sliced.add(item.id)
        return f"You sliced the {item.name} with the {knife.name}."

    # -- wording

    def _view(self, place: Place) -> str:
        if place.openable and place.id not in self.state.opened:
            return f"The {place.name} is closed."
        seen = _listing(
            f"a {i.name}" for i in self.game.world.items if place.id in self.state.inside.get(i.id, ())
        )
        if place.openable:
            return f"The {place.name} is open. In it, you see {seen}."
        return f"On the {place.name}, you see {seen}."

    def _description(self, item: Item) -> str:
        state = self.state
        if item.container:
            return f"This is a normal {item.name}. In it, you see {_listing(f'a {n}' for n in item.inside)}."
        clean, hot, cool, sliced = (item.id in s for s in (state.clean, state.hot, state.cool, state.sliced))
        if sliced and (clean or hot or cool):
            heat = "hot" if hot else "cool" if cool else ""
            both = " and " if heat and clean else ""
            return f"This is a {heat}{both}{'clean' if clean else ''} sliced {item.name}."
        if clean and (hot or cool):
            return f"This is a {'hot' if hot else 'cool'} and clean {item.name}."
        if hot or clean or cool:
            return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {item.name}."
        if item.toggleable and item.id in state.toggled:
            return f"This {item.name} is on."
        if item.sliceable and sliced:
            return f"This is a sliced {item.name}."
        return f"There's nothing special about {item.name}."


TREATMENTS: dict[str, tuple[str, Callable[[Item], bool]]] = {
    verb: (APPLIANCE[task], attrgetter(f"{verb}able")) for task, verb in VERB.items()
}
"""Verb -> the type of receptacle for the treatment, and a test of whether an item can be treated."""
_PLAIN: dict[str, Callable[[Play], str]] = {"look": Play.look, "inventory": Play.inventory, "help": Play.help}
_UNARY: dict[str, Callable[[Play, str], str | None]] = {
    "go": Play.go,
    "open": Play.open,
    "close": Play.close,
    "examine": Play.examine,
    "use": Play.use,
}
_BINARY: dict[str, tuple[Callable[[Play, str, str], str | None], str]] = {
    "take": (Play.take, " from "),
    "move": (Play.move, " to "),
    "slice": (Play.slice, " with "),
    **{
        verb: ((lambda play, a, b, verb=verb: play.treat(verb, a, b)), " with ")  # type: ignore[misc]
        for verb in TREATMENTS
    },
}


_MOST_CHARS = 4_000
"""The maximum length of the part of a reply that is read; commands have fewer than 80 characters."""
_LABELS = re.compile(r"^(?:[\s>*`\"']|\d+[.)]|(?:next )?(?:action|command)\s*:)+", re.IGNORECASE)
_MARKS = " \t\"'`*.!"


def read_command(reply: str) -> str:
    """Return the command in a reply: its first line with a word, without decoration; empty if there is none.

    Decoration is labels (`>`, `Action:`, `1.`), quotation and emphasis marks, and a final period.
    """
    for line in reply[:_MOST_CHARS].splitlines():
        command = _LABELS.sub("", line).strip(_MARKS).lower()
        if re.search("[a-z]", command) and not line.lstrip().startswith("```"):
            return command
    return ""
