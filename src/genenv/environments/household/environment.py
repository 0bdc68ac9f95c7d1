"""The household environment: text games in the style of ALFWorld, from specs that a simulator writes.

Its modules: `spec` (the spec, its grammar, and the base data), `layout` (spec to room), `planning` (shortest
plans) and `engine` (the game, which also plays ALFWorld's recorded games). This module builds tasks, holds
episodes, grades them, and has an independent second checker for the audit.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Ask, Episode, Options, OutOfTurns
from genenv.environments.common import OneQuestion, asked_for, held_out_tasks, request, seeds_of
from genenv.environments.household.engine import NOTHING, Game, Play, World, read_command
from genenv.environments.household.layout import ABLE, all_places, is_held_out, pddl_problem
from genenv.environments.household.planning import askable_steps, good_commands, plan, plan_from
from genenv.environments.household.spec import (
    BLANK,
    MAX_WORDING,
    MIN_WORDING,
    N_MAIN,
    SIZES,
    HouseholdConfig,
    HouseholdSpec,
    Plan,
    Size,
    TaskName,
    draft,
    filled,
    goal_of,
    held_out_specs,
    lines,
    offered_for,
    problem_with,
    read_place,
    spec_schema,
    training_specs,
    variation,
    ways,
    world_of,
)
from genenv.types import (
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

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


def _played(task: Task) -> tuple[Play, list[str]]:
    """Return the game of a single-step task before the step, and the game's answers so far."""
    play = game_of(task).start()
    return play, play.play(cast(Sequence[str], task.payload["played"]))


def _check_step(task: Task, replies: Sequence[str]) -> Verdict:
    right = cast(Sequence[str], task.payload["right"])
    command = read_command(replies[0]) if replies else ""
    if command in right:
        return Verdict(reward=1.0, success=True, explanation=f"{command!r} brings the goal a step nearer.")
    sentence = f"{command[:60]!r} does not bring the goal nearer; {' or '.join(map(repr, right))} would."
    readable = _played(task)[0].step(command) != NOTHING
    return Verdict(reward=0.0, success=False, explanation=sentence, readable=readable)


def check_by_facts(task: Task, replies: Sequence[str], settings: HouseholdConfig) -> bool:
    """Grade a rollout in a second way: evaluate the PDDL goal on facts derived from the game's answers."""
    if task.payload["mode"] == "single":
        return bool(replies) and nearer(task, read_command(replies[0]))
    play = game_of(task).start()
    return wins(play.game.world, (play.step(read_command(reply)) for reply in replies[: settings.max_turns]))


def nearer(task: Task, command: str) -> bool:
    """Return whether a command is the first of a shortest plan from the state of a single-step task.

    The rest of the plan is computed from the next state, and the PDDL goal must hold after it.
    """
    play, answers = _played(task)
    left = plan_from(play)
    answers += play.play([command])
    rest = plan_from(play)
    if left is None or rest is None or answers[-1] == NOTHING or len(rest) >= len(left):
        return False
    return wins(play.game.world, answers + play.play(rest))


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
"""The valid forms of commands."""
_RANDOM_ATTEMPTS = 2


class HouseholdParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a household task; a subset of the fields of `HouseholdSpec`."""

    task: TaskName
    size: Size
    hidden: bool
    target: str


class Household:
    """The household environment; implements `Environment` and `HasParameters`."""

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = HouseholdSpec
    config: ClassVar[type[BaseModel]] = HouseholdConfig
    parameters: ClassVar[type[BaseModel]] = HouseholdParameters

    def __init__(self, settings: HouseholdConfig | None = None) -> None:
        self.settings = settings or HouseholdConfig()

    def seeds(self) -> Sequence[Seed]:
        """Return the base data: 320 seeds in a fixed order."""
        return seeds_of(self, training_specs(), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Return 500 tasks for evaluation; no seed has their phrasings or their pairs of object and goal."""
        return list(_held_out(self.settings))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the JSON schema for variations of a seed, limited to the objects named in its prompt."""
        return spec_schema(offered_for(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt that asks the simulator for a variation of a seed."""
        offered = offered_for(seed)
        system = (
            "Write a household game as JSON: difficulty, the object, where it starts, where it must go, the "
            f"other places with what is in them, and the wording. The player should solve {target:.0%}.\n"
            f"Room: {offered.room}. Places: {', '.join(offered.places)}.\n"
            f"Objects to ask for: {', '.join(offered.targets)}. Others: {', '.join(offered.distractors)}."
        )
        return request(system, seed.spec, profile, seed.skills, thing="game")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a new spec in the seed's kind of room."""
        return variation(seed, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Furnish the room and find the shortest plan, which is the ground truth."""
        spec, settings = cast(HouseholdSpec, spec), self.settings
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
        payload: dict[str, Json] = {"mode": settings.mode, "order": order}
        payload |= {"steps": len(commands), "step": step}
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

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the wording states the task and that two independent checkers agree."""
        spec = HouseholdSpec.model_validate(task.spec)
        if (problem := problem_with(spec.wording, spec.task, spec.target, goal_of(spec))) is not None:
            return Rejection(RejectReason(problem[0]), problem[1])
        for replies in self._attempts(task, rng):
            one, other = self.check(task, replies).success, check_by_facts(task, replies, self.settings)
            if one != other:
                sentence = f"Of {list(replies)[:8]}, the game says {one} and the facts say {other}."
                return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
        return None

    def _attempts(self, task: Task, rng: random.Random) -> Iterator[Sequence[str]]:
        """Yield the demonstration, copies of it with one command left out, and random rollouts."""
        yield task.oracle
        for left_out in range(len(task.oracle)):
            yield (*task.oracle[:left_out], *task.oracle[left_out + 1 :])
        for _ in range(_RANDOM_ATTEMPTS):
            yield self.random_replies(task, rng)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Replay the commands and return whether they reach the goal."""
        if task.payload["mode"] == "single":
            return _check_step(task, replies)
        play = game_of(task).start()
        nothing = used = 0
        for used, reply in enumerate(replies[: self.settings.max_turns], start=1):
            nothing += play.step(read_command(reply)) == NOTHING
            if play.won:
                return Verdict(
                    reward=1.0, success=True, explanation=f"The goal is reached after {used} commands."
                )
        left, whole = plan_from(play), int(str(task.payload["steps"]))
        missing = f"{len(left)} steps are missing" if left is not None else "it cannot be reached any more"
        why = f"The goal is not reached: {missing} after {used} commands, of which {nothing} did nothing."
        near = 0.0
        if self.settings.reward == "progress" and left is not None:
            near = max(0.0, 1 - len(left) / whole)
        return Verdict(
            reward=near,
            success=False,
            explanation=why,
            readable=nothing < used,
        )

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return well-formed commands: any verb and any place of the room, with the wanted object.

        In single steps none of them is right, so that a pass shows a flaw of the check and not a lucky guess.
        """
        game = game_of(task)
        spec = HouseholdSpec.model_validate(task.spec)
        places = [place.name for place in game.world.places]
        thing, single = f"{spec.target.lower()} 1", task.payload["mode"] == "single"
        draws = (
            rng.choice(_FORMS).format(place=rng.choice(places), thing=thing)
            for _ in range(20 if single else self.settings.max_turns)
        )
        if not single:
            return tuple(draws)
        right = cast(Sequence[str], task.payload["right"])
        return (next((command for command in draws if command not in right), "look"),)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters that suit a seed: for each of four objects, every task that is possible.

        The seed gives the kind of room and the objects. A combination without a possible start is left out.
        """
        offered, sizes = offered_for(seed), list(SIZES)
        found: list[dict[str, list[str] | list[bool] | list[Size]]] = []
        for target in offered.targets:
            for task in offered.tasks(target):
                plans = [
                    Plan(offered=offered, task=task, target=target, size="small", hidden=h)
                    for h in (False, True)
                ]
                hidden = [plan.hidden for plan in plans if ways(plan)]
                if hidden:
                    found.append({"task": [task], "size": sizes, "hidden": hidden, "target": [target]})
        return found

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the instruction, the room and its objects, and the agent's success rates."""
        offered = offered_for(seed)
        objects = ", ".join(offered.targets)
        system = (
            "Set up a household game, as JSON: task (pick, look, clean, heat, cool, two), size (small, "
            "medium, large), hidden (does the object start in a closed place), target (the object). "
            f"The player should solve {target:.0%}. Room: {offered.room}. Objects: {objects}."
        )
        return asked_for(system, profile, seed.skills, thing="game")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with these parameters, furnished and worded at random like the base data."""
        wanted = cast(HouseholdParameters, parameters)
        plan = Plan(offered=offered_for(seed), **wanted.model_dump())
        if wanted.target not in plan.offered.targets or not ways(plan):
            sentence = f"There is no such task with a {wanted.target} in the {plan.offered.room}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        return draft(plan, rng)

    def episode(self, task: Task) -> Episode:
        """Return an episode of a game, or of one question for its next command; see `held_to_commands`."""
        if task.payload["mode"] != "single":
            return HouseholdEpisode(task, self.settings)
        if not self.settings.held_to_commands:
            return OneQuestion(task)
        return OneQuestion(task, choices=_played(task)[0].admissible)

    @property
    def main_held_out(self) -> int:
        """The number of held-out tasks, from the first, that an evaluation uses by default."""
        return N_MAIN

    def steps(self, task: Task) -> int:
        """Return the number of commands in the shortest plan, even if the task requires only one of them."""
        return int(str(task.payload["steps"]))

    def surface(self, task: Task) -> str:
        """Return the wording and the room, for comparisons of novelty."""
        spec = HouseholdSpec.model_validate(task.spec)
        return "\n".join([spec.wording, f"{spec.task} {spec.target}", *lines(spec)])


@functools.lru_cache(maxsize=4)
def _held_out(settings: HouseholdConfig) -> tuple[Task, ...]:
    """Build the held-out tasks once per process and settings."""
    return tuple(held_out_tasks(Household(settings), held_out_specs()))
