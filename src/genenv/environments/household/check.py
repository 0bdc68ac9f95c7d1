"""Episodes and verdicts of household tasks, an independent second checker, and the audit."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.common import OneQuestion
from genenv.environments.household.build import game_of, possible
from genenv.environments.household.engine import NOTHING, Game, World, read_command
from genenv.environments.household.layout import pddl_problem
from genenv.environments.household.planning import plan_from
from genenv.environments.household.spec import HouseholdConfig, HouseholdSpec, goal_of, problem_with
from genenv.types import Message, Rejection, RejectReason, Task, Verdict

Expression = str | list["Expression"]
Fact = tuple[str, ...]

_ANSWERS = {
    "go": re.compile(r"You arrive at (?P<place>.+?)\. "),
    "take": re.compile(r"You pick up the (?P<item>.+) from the (?P<place>.+)\.$"),
    "move": re.compile(r"You move the (?P<item>.+) to the (?P<place>.+)\.$"),
    "treat": re.compile(r"You (?P<verb>clean|heat|cool) the (?P<item>.+) using the .+\.$"),
    "use": re.compile(r"You turn on the (?P<item>.+)\.$"),
}
_STATES = {"clean": ("isClean", ""), "heat": ("isHot", "isCool"), "cool": ("isCool", "isHot")}


def wins(world: World, answers: Iterable[str]) -> bool:
    """Return whether the goal of the PDDL problem holds at the start or after one of the answers."""
    problem = _parse(pddl_problem(world))
    parts = {str(part[0]): part[1:] for part in problem if isinstance(part, list)}
    facts = {tuple(map(str, fact)) for fact in parts[":init"]}
    typed = _typed(parts[":objects"])
    ids = {p.name: p.id for p in world.places} | {i.name: i.id for i in world.items}
    goal = parts[":goal"][0]
    if _holds(goal, facts, typed, {}):
        return True
    return any(_follow(answer, facts, ids) and _holds(goal, facts, typed, {}) for answer in answers)


def _follow(answer: str, facts: set[Fact], ids: Mapping[str, str]) -> bool:
    """Update the facts from an answer of the game and return whether the answer changes any."""
    for kind, pattern in _ANSWERS.items():
        if (found := pattern.match(answer)) is None:
            continue
        names = found.groupdict()
        item, place = ids.get(names.get("item", "")), ids.get(names.get("place", ""))
        match kind:
            case "go":
                here = next(fact[2] for fact in facts if fact[:2] == ("receptacleAtLocation", place))
                facts -= {fact for fact in facts if fact[0] == "atLocation"}
                facts.add(("atLocation", "agent1", here))
            case "take":
                facts.discard(("inReceptacle", str(item), str(place)))
                facts.add(("holds", "agent1", str(item)))
            case "move":
                facts.discard(("holds", "agent1", str(item)))
                facts.add(("inReceptacle", str(item), str(place)))
            case "treat":
                gained, lost = _STATES[names["verb"]]
                facts.discard((lost, str(item)))
                facts.add((gained, str(item)))
            case _:
                facts.add(("isToggled", str(item)))
        return True
    return False


def _holds(
    formula: Expression, facts: set[Fact], typed: Mapping[str, list[str]], bound: Mapping[str, str]
) -> bool:
    """Evaluate a formula of `and`, `not`, `=`, `exists` and atoms."""
    head, rest = formula[0], formula[1:]
    match head:
        case "and":
            return all(_holds(part, facts, typed, bound) for part in rest)
        case "not":
            return not _holds(rest[0], facts, typed, bound)
        case "=":
            return len({bound.get(str(name), str(name)) for name in rest}) == 1
        case "exists":
            variables = list(_declared(rest[0]))
            return _some(variables, rest[1], facts, typed, bound)
        case _:
            return tuple(bound.get(str(name), str(name)) for name in formula) in facts


def _some(
    variables: list[tuple[str, str]],
    formula: Expression,
    facts: set[Fact],
    typed: Mapping[str, list[str]],
    bound: Mapping[str, str],
) -> bool:
    if not variables:
        return _holds(formula, facts, typed, bound)
    (name, kind), *rest = variables
    return any(_some(rest, formula, facts, typed, {**bound, name: value}) for value in typed.get(kind, ()))


def _declared(words: Expression) -> Iterator[tuple[str, str]]:
    """Yield `a b - kind` as (name, kind) pairs."""
    waiting: list[str] = []
    listed = iter(map(str, words))
    for word in listed:
        if word == "-":
            kind = next(listed)
            yield from ((name, kind) for name in waiting)
            waiting = []
        else:
            waiting.append(word)


def _typed(words: Expression) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, kind in _declared(words):
        found.setdefault(kind, []).append(name)
    return found


def _parse(text: str) -> list[Expression]:
    """Parse an s-expression into nested lists."""
    stack: list[list[Expression]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":  # noqa: S105 - a bracket
            stack.append([])
        elif token == ")":  # noqa: S105
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    found = stack[0][0]
    assert isinstance(found, list)  # noqa: S101 - a problem is one list
    return found


class HouseholdEpisode:
    """One rollout of a whole game: one command per turn until the game is won or the turns are used."""

    def __init__(self, task: Task, settings: HouseholdConfig) -> None:
        self._task, self._settings = task, settings
        self._play = game_of(task).start()
        self.max_turns = settings.max_turns

    @property
    def choices(self) -> Sequence[str]:
        """The commands that are possible now if the settings restrict replies to them, else empty."""
        return self._play.admissible if self._settings.held_to_commands else ()

    async def run(self, ask: Ask) -> None:
        """Converse until the game is won or the turns are used."""
        play = self._play
        messages: Sequence[Message] = self._task.messages
        for _ in range(self.max_turns):
            answer = play.step(read_command(await ask(messages)))
            if play.won:
                return
            messages = (Message(role="user", content=answer + possible(play, self._settings)),)
        raise OutOfTurns


def one_step(task: Task, settings: HouseholdConfig) -> OneQuestion:
    """Return the episode of a single step: one question, restricted to possible commands if so set."""
    if not settings.held_to_commands:
        return OneQuestion(task)
    play = game_of(task).start()
    play.play(cast(Sequence[str], task.payload["played"]))
    return OneQuestion(task, choices=play.admissible)


def check(task: Task, replies: Sequence[str], settings: HouseholdConfig) -> Verdict:
    """Grade a rollout: replay its commands, or compare the single step."""
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
    """Grade a rollout in a second way: evaluate the PDDL goal on facts derived from the game's answers."""
    game = game_of(task)
    if task.payload["mode"] == "single":
        return bool(replies) and nearer(task, game, read_command(replies[0]))
    play = game.start()
    return wins(game.world, (play.step(read_command(reply)) for reply in replies[: settings.max_turns]))


def nearer(task: Task, game: Game, command: str) -> bool:
    """Return whether a command is the first of a shortest plan from the state of a single-step task.

    The rest of the plan is computed from the next state, and the PDDL goal must hold after it.
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
    """Return well-formed commands: any verb and any place of the room, with the wanted object.

    In single steps none of them is right, so that a pass shows a flaw of the check and not a lucky guess.
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
    """Return a random command of a valid form."""
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


_RANDOM_ATTEMPTS = 2


def audit(task: Task, rng: random.Random, settings: HouseholdConfig) -> Rejection | None:
    """Return the first fault of a task, or None."""
    spec = HouseholdSpec.model_validate(task.spec)
    if (problem := problem_with(spec.wording, spec.task, spec.target, goal_of(spec))) is not None:
        return Rejection(RejectReason(problem[0]), problem[1])
    for replies in _attempts(task, rng, settings):
        one, other = check(task, replies, settings).success, check_by_facts(task, replies, settings)
        if one != other:
            sentence = f"Of {list(replies)[:8]}, the game says {one} and the facts say {other}."
            return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    return None


def _attempts(task: Task, rng: random.Random, settings: HouseholdConfig) -> Iterator[Sequence[str]]:
    """Yield rollouts to check: the demonstration, copies with one command left out, and random rollouts."""
    yield task.oracle
    for left_out in range(len(task.oracle)):
        yield (*task.oracle[:left_out], *task.oracle[left_out + 1 :])
    for _ in range(_RANDOM_ATTEMPTS):
        yield random_replies(task, rng, settings)
