"""Build a task from a household spec: furnish the room, plan, and write the messages."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from typing import cast

from genenv.environments.household.engine import Game, Play
from genenv.environments.household.layout import ABLE, all_places, is_held_out
from genenv.environments.household.planning import askable_steps, good_commands, plan
from genenv.environments.household.spec import (
    BLANK,
    MAX_WORDING,
    MIN_WORDING,
    SIZES,
    HouseholdConfig,
    HouseholdSpec,
    filled,
    goal_of,
    lines,
    read_place,
    world_of,
)
from genenv.types import Json, Lineage, Message, Origin, Rejection, RejectReason, Task

_HOW = (
    "You are in a house. Give one command a turn, and nothing else:\n"
    "go to X, open X, close X, take O from X, move O to X, clean O with X, heat O with X, cool O with X, "
    "use O, examine X, look, inventory.\n"
    "You can hold one thing. A microwave heats what you hold, a fridge cools it, a sinkbasin cleans it, open "
    "or closed. To look at something under a lamp, hold it and use the lamp."
)
_NEXT = "What is the next command of the shortest way?"
NAME = "household"
"""The environment's name."""
MOST_TARGETS = 4
"""The maximum number of objects of the target's type in a room; the planner tries each pair of them."""
_STEPS = ((4, "short"), (7, "middle"))
"""Maximum number of steps and the name of that plan length in skills; longer plans are "long"."""


def build(
    spec: HouseholdSpec, settings: HouseholdConfig, *, task_id: str, lineage: Lineage, rng: random.Random
) -> Task | Rejection:
    """Build the game of a spec and its shortest plan, which is the ground truth.

    Args:
        spec: its wording may have blanks.
        settings: the settings of the environment.
        task_id: the id of the new task.
        lineage: the origin of the task.
        rng: draws the numbering of the places and, in mode single, the step that the task asks for.
    """
    if (problem := _reserved(spec, lineage) or _misdescribed(spec)) is not None:
        return problem
    spec = filled(spec)
    if not MIN_WORDING <= len(spec.wording) <= MAX_WORDING:
        sentence = f"With its names the wording has {len(spec.wording)} characters."
        return Rejection(RejectReason.INCONSISTENT, sentence)
    order = list(range(2 + len(spec.others)))
    rng.shuffle(order)
    try:
        world = world_of(spec, order)
    except ValueError as error:
        return Rejection(RejectReason.EXECUTION, f"There is no such room: {error}.")
    game = Game(world)
    commands = plan(game)
    if commands == []:
        return Rejection(RejectReason.TRIVIAL, "The goal holds before the first command.")
    if commands is None:
        return Rejection(RejectReason.EXECUTION, "No sequence of commands reaches the goal.")
    if len(commands) > settings.max_turns:
        return Rejection(RejectReason.EXECUTION, f"The shortest plan has {len(commands)} steps.")
    step = rng.choice(askable_steps(game, commands)) if settings.mode == "single" else None
    payload: dict[str, Json] = {"mode": settings.mode, "order": order, "steps": len(commands), "step": step}
    if step is None:
        messages, oracle = _whole(game, settings), tuple(commands)
    else:
        play = game.start()
        answers = play.play(commands[:step])
        payload |= {"played": commands[:step], "right": list(good_commands(play))}
        messages, oracle = _next_step(play, commands[:step], answers, settings), (commands[step],)
    return Task(
        id=task_id,
        environment=NAME,
        skills=(*skills_of(spec), _length(len(commands))),
        messages=messages,
        spec=spec.model_dump(mode="json"),
        payload=payload,
        oracle=oracle,
        lineage=lineage,
    )


def skills_of(spec: HouseholdSpec) -> tuple[str, ...]:
    """Return the skills of a spec: task, room size, and "hidden" if so. `build` adds the plan's length."""
    return (spec.task, f"size:{spec.size}", *(("hidden",) if spec.hidden else ()))


def _length(steps: int) -> str:
    """Return the skill for the length of a shortest plan."""
    return f"plan:{next((name for most, name in _STEPS if steps <= most), 'long')}"


def game_of(task: Task) -> Game:
    """Return the game of a task, rebuilt from its spec; recent games are cached."""
    order = cast(Sequence[int], task.payload["order"])
    return _game(json.dumps(task.spec, sort_keys=True), tuple(order))


@functools.lru_cache(maxsize=256)
def _game(spec: str, order: tuple[int, ...]) -> Game:
    return Game(world_of(HouseholdSpec.model_validate_json(spec), order))


def _misdescribed(spec: HouseholdSpec) -> Rejection | None:
    """Return a rejection if the difficulty fields of a spec contradict its parts, else None."""
    least, most = SIZES[spec.size]
    if not least <= len(spec.others) <= most:
        sentence = f"A {spec.size} room has {least} to {most} other places, not {len(spec.others)}."
        return Rejection(RejectReason.INCONSISTENT, sentence)
    written = [read_place(line) for line in lines(spec)]
    kinds = [kind for kind, _, _ in written]
    if strange := sorted(set(kinds) - all_places()):
        return Rejection(RejectReason.EXECUTION, f"There is no place {strange[0]} in a house.")
    if spec.task == "look" and not ({"DeskLamp", "FloorLamp"} & set(written[1][2]) and not written[1][1]):
        return Rejection(RejectReason.EXECUTION, "The place of the goal is not an open one with a lamp.")
    if spec.task == "two" and kinds.count(kinds[1]) > 1:
        return Rejection(
            RejectReason.INCONSISTENT, f"There are several places of the goal's type, {kinds[1]}."
        )
    inside = [closed for _, closed, held in written for kind in held if kind == spec.target]
    wanted = 2 if spec.task == "two" else 1
    if len(inside) < wanted:
        return Rejection(RejectReason.EXECUTION, f"The room has {len(inside)} {spec.target}, not {wanted}.")
    if len(inside) > MOST_TARGETS:
        return Rejection(RejectReason.INCONSISTENT, f"The room has {len(inside)} {spec.target}: too many.")
    if spec.target not in written[0][2]:
        return Rejection(RejectReason.INCONSISTENT, f"The first place does not hold the {spec.target}.")
    if all(inside) is not spec.hidden or (not spec.hidden and any(inside) and wanted == 1):
        sentence = (
            f"hidden is {str(spec.hidden).lower()}, but {sum(inside)} of {len(inside)} are in closed places."
        )
        return Rejection(RejectReason.INCONSISTENT, sentence)
    if spec.target not in ABLE.get(spec.task, {spec.target}):
        return Rejection(RejectReason.EXECUTION, f"A {spec.target} cannot be treated so: {spec.task}.")
    allowed = {"object", "lamp" if spec.task == "look" else "place"}
    if odd := next((blank for blank in BLANK.findall(spec.wording) if blank not in allowed), None):
        return Rejection(
            RejectReason.INCONSISTENT, f"The wording has the blank <{odd}>, which has no name here."
        )
    return None


def _reserved(spec: HouseholdSpec, lineage: Lineage) -> Rejection | None:
    """Return a rejection if a spec that is not held-out has a held-out pair of object and goal, else None."""
    goal = goal_of(spec)
    if lineage.origin is Origin.HELD_OUT or not is_held_out(spec.target, goal):
        return None
    return Rejection(RejectReason.HELD_OUT, f"{spec.target} and {goal} are kept for held-out tasks.")


def _whole(game: Game, settings: HouseholdConfig) -> tuple[Message, ...]:
    return (
        Message(role="system", content=f"{_HOW}\nYou have {settings.max_turns} commands."),
        Message(role="user", content=game.intro + possible(game.start(), settings)),
    )


def possible(play: Play, settings: HouseholdConfig) -> str:
    """Return the line of commands that are possible now; empty if the settings hide them."""
    return f"\nPossible: {', '.join(play.admissible)}." if settings.show_commands else ""


def _next_step(
    play: Play, commands: Sequence[str], answers: Sequence[str], settings: HouseholdConfig
) -> tuple[Message, ...]:
    """Return the messages of a single step: the commands and responses so far, and the question."""
    pairs = zip(commands, answers, strict=True)
    history = "".join(f"\n> {command}\n{answer}" for command, answer in pairs)
    asked = f"{play.game.intro}{history}{possible(play, settings)}\n{_NEXT}"
    return Message(role="system", content=_HOW), Message(role="user", content=asked)
