"""Household games: every plan wins, and TextWorld answers what the engine answers."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import resources
from itertools import cycle, islice
from typing import Any, get_args

import pytest

alfworld = pytest.importorskip("alfworld", reason="alfworld is not installed: pip install --no-deps alfworld")

from genenv.environments.household.engine import APPLIANCE, NOTHING, Game, Play, TaskType, World  # noqa: E402  # noqa: E402
from genenv.environments.household.environment import Household, game_of  # noqa: E402
from genenv.environments.household.layout import (  # noqa: E402
    CAN_CONTAIN,
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    LAMPS,
    OPENABLE,
    Furnished,
    compile_room,
    pddl_problem,
)
from genenv.environments.household.planning import good_commands, plan, plan_from  # noqa: E402
from genenv.gate.gate import base_tasks  # noqa: E402

TASKS: tuple[TaskType, ...] = get_args(TaskType)
ROOM = ["Cabinet", "Drawer", "Shelf", "CounterTop", "SideTable", "GarbageCan", "Desk", "Dresser", "Safe"]
ROOM += APPLIANCE.values()
OBJECTS = sorted(set().union(*(CAN_CONTAIN[kind] for kind in ROOM)) - LAMPS)
ABLE = {
    "pick_clean_then_place_in_recep": CLEANABLE,
    "pick_heat_then_place_in_recep": HEATABLE,
    "pick_cool_then_place_in_recep": COOLABLE,
}


Room = tuple[TaskType, str, str, list[Furnished], str]


def random_spec(task: TaskType, rng: random.Random, receptacles: int = 12, objects: int = 15) -> Room:
    """A room in which the task can be done."""
    lit = task == "look_at_obj_in_light"
    goals = sorted(LAMPS) if lit else ROOM
    pairs = [
        (target, goal)
        for target in OBJECTS
        for goal in goals
        if target in ABLE.get(task, OBJECTS) and (lit or target in CAN_CONTAIN[goal])
    ]
    target, goal = rng.choice(pairs)
    holders = [kind for kind in ROOM if target in CAN_CONTAIN[kind] and kind != goal] or [goal]
    kinds = [rng.choice(ROOM) for _ in range(receptacles)]
    kinds += ["SideTable", APPLIANCE.get(task, "Shelf"), rng.choice(holders), "Desk" if lit else goal]
    room = [(kind, kind in OPENABLE and rng.random() < 0.8, list[str]()) for kind in kinds]
    room[-2][2].extend([target] * (2 if task == "pick_two_obj_and_place" else 1))
    for kind in rng.choices([kind for kind in OBJECTS if kind != target], k=objects):
        if places := [held for place, _, held in room if kind in CAN_CONTAIN[place]]:
            rng.choice(places).append(kind)
    if lit:
        room[-1][2].append(goal)
    return task, target, goal, list[Furnished](room), f"do something with a {target.lower()}"


def random_worlds(count: int, seed: int = 0) -> list[World]:
    rng = random.Random(seed)
    return [compile_room(*random_spec(task, rng)) for task in islice(cycle(TASKS), count)]


def test_every_plan_wins_by_admissible_commands_and_at_its_end_only():
    for world in random_worlds(120):
        game = Game(world)
        commands, play = plan(game), game.start()
        if commands == []:  # the goal holds at the start: a place of the goal's type was the only one
            continue
        assert commands
        for command in commands:
            assert not play.won
            assert command in play.admissible
            assert play.step(command) != NOTHING
        assert play.won


def test_what_is_not_admissible_changes_nothing():
    rng = random.Random(1)
    for world in random_worlds(12, seed=1):
        game = Game(world)
        play = game.start()
        for _ in range(30):
            known, before = play.admissible, repr(play.state)
            for command in (
                "",
                "jump",
                "go to nowhere 1",
                "take",
                "move to",
                "open",
                "heat  with ",
                "x" * 10_000,
            ):
                assert play.step(command) == NOTHING
            assert repr(play.state) == before
            play.step(rng.choice(known))


def test_attempts_of_a_game_do_not_influence_each_other():
    game = Game(random_worlds(1)[0])
    other = game.start()
    before = repr(other.state)
    for command in plan(game) or ():
        game.start().step(command)
    assert repr(other.state) == before == repr(game.start().state)


@pytest.mark.parametrize("task", APPLIANCE)
def test_without_its_appliance_a_task_has_no_plan(task):
    _, target, goal, room, wording = random_spec(task, random.Random(2))
    gone = APPLIANCE[task]
    room = [("Shelf", False, ()) if place[0] == gone else place for place in room]
    if goal == gone:
        pytest.skip("the appliance is the goal, too")
    world = compile_room(task, target, goal, room, wording)
    assert plan(Game(world)) is None


@pytest.mark.parametrize("place", [("Moon", False, ()), ("Shelf", True, ()), ("Toilet", False, ("Bread",))])
def test_an_impossible_room_is_refused(place):
    with pytest.raises(ValueError, match=r"Moon|closed|cannot hold"):
        compile_room("pick_and_place_simple", "Book", "Shelf", [place], "")


# --- beside TextWorld -------------------------------------------------------------------------------------


def reference(world: World) -> Any:
    """The same game in TextWorld, on ALFWorld's files."""
    pddl = pytest.importorskip(
        "textworld.envs.pddl", reason="TextWorld is not installed: make setup installs it for the tests"
    )
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    files = resources.files(alfworld) / "data"
    env = AlfredDemangler(pddl.PddlEnv(), shuffle=False)
    grammar = (files / "alfred.twl2").read_text().replace("UNKNOWN GOAL", world.wording)
    problem = {"pddl_domain": (files / "alfred.pddl").read_text(), "pddl_problem": pddl_problem(world)}
    env.load(problem | {"grammar": grammar})
    return env


def written_world(task: TaskType) -> World:
    """The world of the first seed of a kind of task."""
    env = Household()
    tasks = base_tasks(env, env.seeds(), seed=0).values()
    return next(world for found in tasks if (world := game_of(found).world).task == task)


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(TASKS)))
def test_textworld_answers_the_same(index):
    # Rooms of the environment's own, and rooms with more in them than a simulator writes.
    world = written_world(TASKS[index]) if index % 2 else random_worlds(len(TASKS), seed=3)[index]
    rng, game = random.Random(index), Game(world)
    env, commands = reference(world), plan(game)
    for script in (None, commands or []):
        state, play = env.reset(), game.start()
        assert state.feedback == game.intro
        for step in range(15) if script is None else range(len(script)):
            assert state["admissible_commands"] == play.admissible
            assert state["won"] == play.won
            known = [command for command in play.admissible if command != "help"]  # in words of its own
            command = rng.choice([*known, "go to nowhere 1", "Look"]) if script is None else script[step]
            state, _, _ = env.step(command)
            assert state.feedback == play.step(command), command
        if script:
            assert state["won"]
            assert play.won


def key(play: Play) -> tuple[object, ...]:
    """All of a state that later commands depend on."""
    state = play.state
    sets = (state.opened, state.clean, state.hot, state.cool, state.toggled)
    return state.location, state.held, frozenset(state.inside.items()), *map(frozenset, sets)


def shortest(play: Play, limit: int) -> int | None:
    """How many commands the goal takes, by breadth-first search over everything that is possible."""
    if play.won:
        return 0
    seen, front = {key(play)}, [play]
    for length in range(1, limit + 1):
        following = []
        for here in front:
            for command in here.admissible:
                if command.split()[0] in ("look", "inventory", "help", "examine", "slice"):
                    continue
                after = here.copy()
                after.step(command)
                if after.won:
                    return length
                if (found := key(after)) not in seen:
                    seen.add(found)
                    following.append(after)
        front = following
    return None


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.long
def test_plans_are_shortest_and_no_good_command_is_missing_from_any_state(task):
    rng = random.Random(task)
    for number in range(8):
        spec = random_spec(task, rng, receptacles=number % 2, objects=1)
        play = Game(compile_room(*spec)).start()
        for _ in range(rng.randrange(6)):
            play.step(rng.choice(play.admissible))
        best = plan_from(play)
        assert best is not None
        assert shortest(play, len(best)) == len(best)
        nearer = []
        for command in play.admissible if best else ():
            after = play.copy()
            after.step(command)
            if shortest(after, len(best) - 1) == len(best) - 1:
                nearer.append(command)
        assert list(good_commands(play)) == nearer


@pytest.mark.parametrize("task", TASKS)
def test_plans_are_shortest_where_objects_are_in_several_places_too(task):
    rng = random.Random(task)
    for _ in range(8):
        world = compile_room(*random_spec(task, rng, receptacles=0, objects=0))
        items = [
            replace(
                item,
                at=(*item.at, *(p.id for p in world.places if p.id not in item.at and rng.random() < 0.3)),
            )
            for item in world.items
        ]
        play = Game(replace(world, items=tuple(items))).start()
        for _ in range(rng.randrange(6)):
            play.step(rng.choice(play.admissible))
        best = plan_from(play)
        assert best is not None
        assert shortest(play, len(best)) == len(best)
        play.play(best)
        assert play.won
