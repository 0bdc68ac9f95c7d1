"""Playing and grading: an attempt at a household task, and what its replies are worth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.common import OneQuestion
from genenv.environments.household.build import game_of, possible
from genenv.environments.household.commands import read_command
from genenv.environments.household.engine import NOTHING, Game
from genenv.environments.household.facts import wins
from genenv.environments.household.planning import plan_from
from genenv.environments.household.settings import HouseholdConfig
from genenv.environments.household.spec import HouseholdSpec
from genenv.types import Message, Task, Verdict


class HouseholdEpisode:
    """One attempt at a whole game: a command a turn, until it is won or the turns are used."""

    def __init__(self, task: Task, settings: HouseholdConfig) -> None:
        self._task, self._settings = task, settings
        self._play = game_of(task).start()
        self.max_turns = settings.max_turns

    @property
    def choices(self) -> Sequence[str]:
        """The commands that are possible now, where replies are held to them."""
        return self._play.admissible if self._settings.held_to_commands else ()

    async def run(self, ask: Ask) -> None:
        """Play."""
        play = self._play
        messages: Sequence[Message] = self._task.messages
        for _ in range(self.max_turns):
            answer = play.step(read_command(await ask(messages)))
            if play.won:
                return
            messages = (Message(role="user", content=answer + possible(play, self._settings)),)
        raise OutOfTurns


def one_step(task: Task, settings: HouseholdConfig) -> OneQuestion:
    """One attempt at a single step: the next command, of those that are possible if it is held to them."""
    if not settings.held_to_commands:
        return OneQuestion(task)
    play = game_of(task).start()
    play.play(cast(Sequence[str], task.payload["played"]))
    return OneQuestion(task, choices=play.admissible)


def check(task: Task, replies: Sequence[str], settings: HouseholdConfig) -> Verdict:
    """Grade an attempt: play its replies once more, or compare the one step that was asked for."""
    if task.payload["mode"] == "single":
        return _check_step(task, replies)
    play = game_of(task).start()
    nothing = used = 0
    for used, reply in enumerate(replies[: settings.max_turns], start=1):
        nothing += play.step(read_command(reply)) == NOTHING
        if play.won:
            return Verdict(
                reward=1.0, success=True, explanation=f"The goal is reached after {used} commands."
            )
    left, whole = plan_from(play), int(str(task.payload["steps"]))
    missing = f"{len(left)} steps are missing" if left is not None else "it cannot be reached any more"
    sentence = f"The goal is not reached: {missing} after {used} commands, of which {nothing} did nothing."
    near = 0.0
    if settings.reward == "progress" and left is not None:
        near = max(0.0, 1 - len(left) / whole)
    return Verdict(reward=near, success=False, explanation=sentence, readable=nothing < used)


def _check_step(task: Task, replies: Sequence[str]) -> Verdict:
    right = cast(Sequence[str], task.payload["right"])
    command = read_command(replies[0]) if replies else ""
    if command in right:
        return Verdict(reward=1.0, success=True, explanation=f"{command!r} brings the goal a step nearer.")
    sentence = f"{command[:60]!r} does not bring the goal nearer; {' or '.join(map(repr, right))} would."
    play = game_of(task).start()
    play.play(cast(Sequence[str], task.payload["played"]))
    return Verdict(reward=0.0, success=False, explanation=sentence, readable=play.step(command) != NOTHING)


def check_by_facts(task: Task, replies: Sequence[str], settings: HouseholdConfig) -> bool:
    """The second way to check: the PDDL goal over what the game answered, or a plan from the next state."""
    game = game_of(task)
    if task.payload["mode"] == "single":
        return bool(replies) and nearer(task, game, read_command(replies[0]))
    play = game.start()
    return wins(game.world, (play.step(read_command(reply)) for reply in replies[: settings.max_turns]))


def nearer(task: Task, game: Game, command: str) -> bool:
    """Whether a command, in the state that a single step is asked in, begins a way that is as short as any.

    The way goes on by a plan from there, and by the facts it must win.
    """
    play = game.start()
    answers = play.play(cast(Sequence[str], task.payload["played"]))
    left = plan_from(play)
    answers += play.play([command])
    rest = plan_from(play)
    if left is None or rest is None or answers[-1] == NOTHING or len(rest) >= len(left):
        return False
    return wins(game.world, answers + play.play(rest))


def random_replies(task: Task, rng: random.Random, settings: HouseholdConfig) -> tuple[str, ...]:
    """Commands of the right form with names from the first message: any verb, any place, the wanted object.

    In single steps, never one of the right ones: a pass then shows a flaw of the check, and not luck.
    """
    game = game_of(task)
    spec = HouseholdSpec.model_validate(task.spec)
    places = [place.name for place in game.world.places]
    thing = f"{spec.target.lower()} 1"
    if task.payload["mode"] == "single":
        right = cast(Sequence[str], task.payload["right"])
        draws = (random_command(places, thing, rng) for _ in range(20))
        return (next((command for command in draws if command not in right), "look"),)
    return tuple(random_command(places, thing, rng) for _ in range(settings.max_turns))


def random_command(places: Sequence[str], thing: str, rng: random.Random) -> str:
    """A command of the right form."""
    form = rng.choice(_FORMS)
    return form.format(place=rng.choice(places), thing=thing)


_FORMS = (
    "go to {place}",
    "open {place}",
    "close {place}",
    "examine {place}",
    "take {thing} from {place}",
    "move {thing} to {place}",
    "clean {thing} with {place}",
    "heat {thing} with {place}",
    "cool {thing} with {place}",
    "use desklamp 1",
    "look",
    "inventory",
)
