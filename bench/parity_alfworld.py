"""ALFWorld's recorded games in genenv's engine, beside TextWorld: do both answer, and decide, the same?

    GENENV_DATA=... python bench/parity_alfworld.py [--games 60] [--random 20]

All 274 walkthroughs are played in the engine: each must win, and none of its proper prefixes may. Then
TextWorld (`pip install "textworld[pddl]"`, ALFWorld's `AlfredDemangler(shuffle=False)`) plays the games side
by side: the walkthrough, and random commands, possible and impossible ones. After every command the answer,
the commands that are possible, and whether the game is won must be equal. All 274 games take some ten
minutes, nearly all of it TextWorld's. The official code is that of the two installed packages, run as it is;
their versions and SHA-256 are printed with the counts, as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from official import package

from genenv.benchmarks.alfworld import AlfWorld, AlfWorldConfig, Trial, load_trials
from genenv.environments.household.engine import NOTHING, Play, World
from genenv.environments.household.planning import plan_from
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder
from genenv.types import Json

_SPLITS = ("valid_seen", "valid_unseen")
_SHOWN = 20
"""Differences that are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=274, help="so many games beside TextWorld")
    parser.add_argument("--random", type=int, default=20, help="random commands in each of them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = DataFolder.from_environment()
    started = time.perf_counter()
    trials = [trial for split in _SPLITS for trial in load_trials(data, split)]
    found: dict[str, Any] = {
        "official": _official(),
        "games": len(trials),
        "load_s": round(time.perf_counter() - started, 3),
    }
    found |= _walkthroughs(trials) | _speed(trials) | _graded(data)
    rng = random.Random(options.seed)
    chosen = rng.sample(trials, min(options.games, len(trials)))
    found |= _beside_textworld(data, chosen, options.random, rng)
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _official() -> list[dict[str, Any]]:
    """What is run beside the engine."""
    reader = package("alfworld", "alfworld", "agents/environment/alfred_tw_env.py")
    return [reader, package("textworld", "textworld"), package("textworld", "textworld", "envs/pddl")]


def _walkthroughs(trials: Sequence[Trial]) -> dict[str, int]:
    """How many walkthroughs win, how many of their proper prefixes do, and how many are the shortest way."""
    won = prefixes = prefixes_won = shortest = 0
    for trial in trials:
        shortest += len(plan_from(trial.game.start()) or ()) == len(trial.walkthrough)
        for length in range(len(trial.walkthrough) + 1):
            play = trial.game.start()
            play.play(trial.walkthrough[:length])
            if length == len(trial.walkthrough):
                won += play.won
            else:
                prefixes, prefixes_won = prefixes + 1, prefixes_won + play.won
    counts = {"walkthroughs_won": won, "prefixes": prefixes, "prefixes_won": prefixes_won}
    return {**counts, "walkthroughs_as_short_as_our_plans": shortest}


def _speed(trials: list[Trial]) -> dict[str, int]:
    """Commands a second, with the test whether the game is won after each, over fresh walkthroughs."""
    played, started = 0, time.perf_counter()
    for trial in trials * 10:
        play = trial.game.start()
        for command in trial.walkthrough:
            play.step(command)
            played += play.won or 1
    return {"steps_per_s": round(played / (time.perf_counter() - started))}


def _graded(data: DataFolder) -> dict[str, Any]:
    """Grades a second in both forms: lost games of 50 commands, and the experts' own steps."""
    found: dict[str, Any] = {}
    for form in ("episode", "step"):
        benchmark = AlfWorld(AlfWorldConfig(form=form))
        items = benchmark.load(data, "all")
        answers = [_wandered(item) if form == "episode" else _expert(item) for item in items]
        started = time.perf_counter()
        graded = [(i, benchmark.grade(i, answer)) for i, answer in zip(items, answers, strict=True)]
        found[f"grade_items_per_s_{form}"] = round(len(items) / (time.perf_counter() - started))
        started = time.perf_counter()
        figures = benchmark.figures(graded)
        found[f"figures_s_{form}"] = round(time.perf_counter() - started, 3)
        found[f"headline_{form}"] = [figures[0].name, figures[0].value, figures[0].items]
    return found


def _expert(item: Item) -> str:
    return item.data.trial.walkthrough[item.data.index]


def _wandered(item: Item) -> list[Json]:
    """50 commands without the walkthrough's last one: the game is not won."""
    most = item.data.walkthrough[:-1]
    return [*most, *(["look", "jump"] * 25)][:50]


def _command(play: Play, rng: random.Random) -> str:
    """A command that is possible now, each verb as likely as another, or one of the right form."""
    if rng.random() < 0.6:
        known = play.admissible
        verb = rng.choice(sorted({command.split()[0] for command in known}))
        return rng.choice([command for command in known if command.split()[0] == verb])
    things = [item.name for item in play.game.world.items]
    places = [place.name for place in play.game.world.places]
    form = rng.choice(_FORMS)
    return form.format(
        place=rng.choice(places), thing=rng.choice(things), other=rng.choice([*things, *places])
    )


_FORMS = (
    *("go to {place}", "open {place}", "close {place}", "examine {other}", "take {thing} from {place}"),
    *("move {thing} to {place}", "clean {thing} with {place}", "heat {thing} with {place}"),
    *("cool {thing} with {place}", "use {thing}", "slice {thing} with {thing}", "put {thing} in/on {place}"),
    *("Look", "inventory ", "go {place}", "take {thing}", "", "examine", "jump"),
)


def _textworld(game: Any) -> Any:  # noqa: ANN401
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv

    env = AlfredDemangler(PddlEnv(), shuffle=False)
    env.load(game)
    return env


def _beside_textworld(
    data: DataFolder, trials: Sequence[Trial], count: int, rng: random.Random
) -> dict[str, Any]:
    """Play the walkthrough, then from a fresh start random commands, in both."""
    started, found = time.perf_counter(), _Found()
    for number, trial in enumerate(trials):
        if number % 25 == 0:
            sys.stderr.write(f"{number} of {len(trials)} games beside TextWorld\n")
        env = _textworld(data.json(f"alfworld/json_2.1.1/{trial.id}/game.tw-pddl"))
        for script in (list(trial.walkthrough), [None] * count):
            play, state = trial.game.start(), env.reset()
            found.compare(f"{trial.id}: start", state, trial.game.intro, play)
            for scripted in script:
                command = _command(play, rng) if scripted is None else scripted
                state, _, _ = env.step(command)
                answer = play.step(command)
                found.counts["steps"] += 1
                found.counts["steps_that_did_nothing"] += answer == NOTHING
                found.compare(f"{trial.id}: {command!r}", state, answer, play)
            found.counts["won_in_textworld"] += bool(script[:1] != [None] and state["won"])
    spent = round(time.perf_counter() - started)
    return {
        "textworld_games": len(trials),
        **found.counts,
        "textworld_s": spent,
        "differences": found.differences,
    }


def conditions_of_facts(facts: Sequence[Any], world: World) -> tuple[int, int]:
    """The goal's conditions that hold, and how many there are, out of TextWorld's facts alone."""
    atoms: dict[str, list[tuple[str, ...]]] = {}
    for fact in facts:
        names = tuple(argument.name.lower() for argument in fact.arguments)
        atoms.setdefault(fact.name.lower(), []).append(names)
    of_kind = lambda name, kind: {one for one, its in atoms.get(name, ()) if its == f"{kind}type".lower()}  # noqa: E731
    targets = of_kind("objecttype", world.target)
    is_now = lambda flag: {one for (one, *_) in atoms.get(flag, ())}  # noqa: E731
    if world.task == "look_at_obj_in_light":
        here = {location for _, location in atoms["atlocation"]}
        places = {place for place, location in atoms["receptacleatlocation"] if location in here}
        near = {thing for thing, place in atoms.get("inreceptacle", ()) if place in places}
        lamps = of_kind("objecttype", world.goal) & is_now("toggleable") & is_now("istoggled") & near
        held = {thing for _, thing in atoms.get("holds", ())}
        return bool(held & targets) + bool(lamps), 2
    goals = of_kind("receptacletype", world.goal)
    placed = [
        (thing, place)
        for thing, place in atoms.get("inreceptacle", ())
        if thing in targets and place in goals
    ]
    if world.task == "pick_two_obj_and_place":
        return min(max(Counter(place for _, place in placed).values(), default=0), 2), 2
    if world.task == "pick_and_place_simple":
        return int(bool(placed)), 1
    verb = world.task.split("_")[1]
    treated = targets & is_now({"clean": "isclean", "heat": "ishot", "cool": "iscool"}[verb])
    return bool(placed) + bool(treated) + bool(treated & {thing for thing, _ in placed}), 3


class _Found:
    """What was counted, and the first few differences."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(
            (
                *("steps", "steps_that_did_nothing", "won_in_textworld"),
                *("answers_differ", "won_differs", "goal_conditions_differ", "possible_commands_differ"),
            ),
            0,
        )
        self.differences: list[str] = []

    def compare(self, where: str, state: Any, answer: str, play: Play) -> None:  # noqa: ANN401
        """Count what differs between TextWorld's state and ours."""
        known = play.admissible
        self._note("answers_differ", where, state.feedback, answer)
        self._note("won_differs", where, state["won"], play.won)
        theirs = conditions_of_facts(state["_facts"], play.game.world)
        self._note("goal_conditions_differ", where, theirs, play.goal_conditions)
        self._note("possible_commands_differ", where, state["admissible_commands"], known)

    def _note(self, what: str, where: str, theirs: object, ours: object) -> None:
        if theirs == ours:
            return
        self.counts[what] += 1
        if len(self.differences) < _SHOWN:
            self.differences.append(f"{what}: {where}: {theirs!r:.200} != {ours!r:.200}")


if __name__ == "__main__":
    main()
