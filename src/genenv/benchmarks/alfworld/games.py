"""Reads ALFWorld's recorded games (`game.tw-pddl` files) into the household engine.

A file is a JSON object. `pddl_domain` and `grammar` are the same in all games of a release, except for the
wording of the task. `pddl_problem` has the room and the goal, `walkthrough` the commands of an expert.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from genenv.environments.household.engine import Game, Item, Place, TaskType, World
from genenv.evaluation.data import DataFolder

_FOLDER = "alfworld/json_2.1.1"
_MOST_CHARS = 1_000_000
"""The most characters of a problem; the largest has 90,000."""
_NO_GAMES = ("movable", "Sliced")
"""Words in the folder names of tasks without games."""
_TASK = re.compile(r'"Your task is to: ([^"\\]{1,500})\."')
_HELP = re.compile(r'action help \{\s*template :: "help";\s*feedback :: "\s*([^"]*)"')
_MOVE = 'template :: "move {o} to {r}"'
"""The template of the move command in release 2.1.3; the first releases had `put {o} in/on {r}`."""
_ATOM = re.compile(r"\(([^()?][^()]*)\)")
_PLACED = ("inReceptacle", "objectType", "receptacleType")
_GOALS: Mapping[tuple[str, ...], TaskType] = {
    _PLACED: "pick_and_place_simple",
    tuple(sorted((*_PLACED, "cleanable", "isClean"))): "pick_clean_then_place_in_recep",
    tuple(sorted((*_PLACED, "heatable", "isHot"))): "pick_heat_then_place_in_recep",
    tuple(sorted((*_PLACED, "coolable", "isCool"))): "pick_cool_then_place_in_recep",
    tuple(sorted((*_PLACED, *_PLACED, "="))): "pick_two_obj_and_place",
    (
        *("atLocation", "holds", "inReceptacle", "isToggled"),
        *("objectType", "objectType", "receptacleAtLocation", "toggleable"),
    ): "look_at_obj_in_light",
}
"""The type of task, by the sorted predicates of its goal."""
TYPES: Mapping[TaskType, str] = {
    "pick_and_place_simple": "pick",
    "look_at_obj_in_light": "light",
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
    "pick_two_obj_and_place": "two",
}
"""The name in results, by ALFWorld's type of task."""

_Atoms = Mapping[str, Sequence[Sequence[str]]]
"""The argument lists of all atoms of each predicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A recorded game with the expert's walkthrough."""

    id: str
    """The trial's folder within the data, e.g. `valid_seen/pick_.../trial_...`."""
    split: str
    game: Game
    walkthrough: tuple[str, ...]
    """The expert's commands; the last of them, and no earlier one, wins the game."""


def load_trials(data: DataFolder, split: str) -> list[Trial]:
    """Return the games of a split, sorted by id, without those that ALFWorld's own loader skips.

    The training split has folders for two kinds of task without games (an object in a movable receptacle, a
    sliced object), and games that cannot be won (`collect_game_files` of ALFWorld's `alfred_tw_env.py`).

    Raises:
        DataError: a file is missing, changed, damaged or of another release.
    """
    names = data.files(f"{_FOLDER}/{split}", "*/trial_*/game.tw-pddl")
    named = [name for name in names if not any(word in name for word in _NO_GAMES)]
    records = ((name, data.json(name)) for name in named)
    return [_trial(data, name, record, split) for name, record in records if _is_solvable(data, name, record)]


def _is_solvable(data: DataFolder, name: str, record: Any) -> bool:  # noqa: ANN401
    return bool(data.reading(name, "solvable", lambda: record["solvable"]))


def _trial(data: DataFolder, name: str, record: Any, split: str) -> Trial:  # noqa: ANN401
    world = data.reading(name, "pddl_problem and grammar", lambda: read_world(record))
    game = Game(world)
    return Trial(
        id=name.removeprefix(f"{_FOLDER}/").removesuffix("/game.tw-pddl"),
        split=split,
        game=game,
        walkthrough=data.reading(name, "walkthrough", lambda: _walkthrough(game, record["walkthrough"])),
    )


def _walkthrough(game: Game, commands: object) -> tuple[str, ...]:
    """Return the expert's commands after executing them. Raises ValueError unless the last one wins."""
    listed = cast(list[object], commands if isinstance(commands, list) else [])
    if not listed or not all(isinstance(command, str) for command in listed):
        raise TypeError("it is no list of commands")
    walkthrough, play = tuple(map(str, listed)), game.start()
    for command in walkthrough:
        if play.won:
            raise ValueError(f"the game is won before {command!r}")
        play.step(command)
    if not play.won:
        raise ValueError("it does not win the game")
    return walkthrough


def read_world(record: Mapping[str, Any]) -> World:
    """Return the room and goal of a `game.tw-pddl`. Raises KeyError or ValueError if they are missing."""
    grammar, problem = str(record["grammar"]), str(record["pddl_problem"])
    if _MOVE not in grammar:
        raise ValueError("the command is not `move X to Y`: release 2.1.3 of the games is wanted")
    said, helped = _TASK.search(grammar), _HELP.search(grammar)
    if said is None or helped is None:
        raise ValueError("the grammar states no task, or no help")
    before, init, rest = problem[:_MOST_CHARS].partition("(:init")
    facts, goal, wanted = rest.partition("(:goal")
    if not (before and init and goal) or problem.count("(") != problem.count(")"):
        raise ValueError("the problem lacks its facts or its goal")
    task, target, aim = _goal(_atoms(wanted))
    return _world(_atoms(facts), task, target, aim, said[1], helped[1])


def _atoms(text: str) -> dict[str, list[list[str]]]:
    """Return the innermost lists of a text by predicate, without declarations. Takes linear time."""
    found: dict[str, list[list[str]]] = {}
    for atom in _ATOM.findall(text):
        name, *arguments = atom.split()
        found.setdefault(name, []).append(arguments)
    return found


def _goal(atoms: _Atoms) -> tuple[TaskType, str, str]:
    """Return the type of task, the type of its object, and the type of the place or lamp."""
    shape = tuple(sorted(name for name, listed in atoms.items() for _ in listed))
    if shape not in _GOALS:
        raise ValueError(f"a goal of an unknown form, {' '.join(shape)[:200]}")
    task = _GOALS[shape]
    types = {variable: _kind(name) for variable, name in atoms["objectType"]}
    if task == "look_at_obj_in_light":
        lamp = atoms["toggleable"][0][0]
        (target,) = (kind for variable, kind in types.items() if variable != lamp)
        return task, target, types[lamp]
    (target,) = set(types.values())
    (goal,) = {_kind(name) for _, name in atoms["receptacleType"]}
    return task, target, goal


def _kind(name: str) -> str:
    """Return `Mug` for `MugType`."""
    return name.removesuffix("Type")


def _world(facts: _Atoms, task: TaskType, target: str, goal: str, wording: str, help_: str) -> World:
    """Return the engine's `World` for a game's facts, with ids in lower case and sorted as in TextWorld."""
    pairs = {name: [(a.lower(), b.lower()) for a, b in facts.get(name, ())] for name in _PAIRS}
    flags = {flag: {name.lower() for (name,) in facts.get(fact, ())} for fact, flag in _FLAGS.items()}
    located, inside = pairs["objectAtLocation"], pairs["inReceptacle"]
    types = {name.lower(): _kind(kind) for name, kind in facts["objectType"]}
    kinds = {name.lower(): _kind(kind) for name, kind in facts["receptacleType"]}
    objects = {*types, *(name for name, _ in located), *(name for name, _ in inside)}
    objects = objects.union(*pairs["inReceptacleObject"], *flags.values()) - kinds.keys()
    names = numbered(objects | kinds.keys())
    at, within = _grouped(inside), _grouped((outer, inner) for inner, outer in pairs["inReceptacleObject"])
    where = dict(pairs["receptacleAtLocation"])
    can_contain: dict[str, set[str]] = {}
    for place, thing in facts["canContain"]:
        can_contain.setdefault(_kind(place), set()).add(_kind(thing))
    places = [
        Place(
            id=name,
            name=names[name],
            type=kinds[name],
            location=where[name],
            openable=name in flags["openable"],
            opened=name in flags["opened"],
        )
        for name in sorted(kinds)
    ]
    things = [
        Item(
            id=name,
            name=names[name],
            type=types.get(name, ""),
            at=tuple(at.get(name, ())),
            inside=tuple(names[inner] for inner in sorted(within.get(name, ()))),
            **{flag: name in flags[flag] for flag in _ITEM_FLAGS},
        )
        for name in sorted(objects)
    ]
    if lost := {place for _, place in inside} - kinds.keys():
        raise ValueError(f"there is no receptacle {min(lost)}")
    ((_, start),) = facts["atLocation"]
    return World(
        task=task,
        target=target,
        goal=goal,
        wording=wording,
        start=start.lower(),
        places=tuple(places),
        items=tuple(things),
        can_contain={place: frozenset(held) for place, held in can_contain.items()},
        located=tuple(located),
        help=help_,
    )


_PAIRS = ("inReceptacle", "objectAtLocation", "receptacleAtLocation", "inReceptacleObject")
_FLAGS = {
    **{flag: flag for flag in ("openable", "opened", "pickupable", "cleanable", "heatable", "coolable")},
    **{"sliceable": "sliceable", "toggleable": "toggleable"},
    **{"isReceptacleObject": "container", "isCool": "cool"},
}
"""The engine's flag, by the unary predicate of a fact."""
_ITEM_FLAGS = [flag for flag in _FLAGS.values() if flag not in ("openable", "opened")]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one, other in pairs:
        found.setdefault(one, []).append(other)
    return found


def numbered(ids: Iterable[str]) -> dict[str, str]:
    """Name objects as ALFWorld's `AlfredDemangler`: the kind, and a number that counts down in order of ids.

    The kind of `mug_bar__plus_00_dot_5` is `mug`. An id that contains `basin` gets that suffix: `sinkbasin`,
    not `sink`.
    """
    ordered = sorted(ids)
    kinds = {name: name.split("_bar_", 1)[0] + ("basin" if "basin" in name else "") for name in ordered}
    left = Counter(kinds.values())
    names: dict[str, str] = {}
    for name in ordered:
        names[name] = f"{kinds[name]} {left[kinds[name]]}"
        left[kinds[name]] -= 1
    return names
