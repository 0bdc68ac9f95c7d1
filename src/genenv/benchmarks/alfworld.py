"""ALFWorld: 134 unseen and 140 seen household games in text, scored as by their authors.

A game is won if its goal is reached within 50 commands (Shridhar et al. 2021, arXiv:2010.03768). An
impossible command is answered "Nothing happens." and counts. The games run in genenv's engine, whose answers
equal TextWorld's: `bench/parity_alfworld.py` compares the two. `form` chooses whole games or single steps.

A recorded game is a `game.tw-pddl` file, a JSON object. `pddl_domain` and `grammar` are the same in all games
of a release, except for the wording of the task. `pddl_problem` has the room and the goal, `walkthrough` the
commands of an expert.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, Field

from genenv.chat.assistant import ChatMessage, Talk
from genenv.chat.reasoning import without_thoughts
from genenv.environments.household.engine import (
    NOTHING,
    Game,
    Place,
    Play,
    TaskType,
    World,
    read_command,
)
from genenv.environments.household.engine import (
    Item as Thing,
)
from genenv.environments.household.planning import plan_from
from genenv.errors import ContextOverflow
from genenv.evaluation.base import Benchmark, Grade, Graded, Item, shares
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings
from genenv.statistics import Figure, Part, weighted
from genenv.types import Json, JsonObject

_FOLDER = "alfworld/json_2.1.1"
_MOST_PROBLEM = 1_000_000
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
    before, init, rest = problem[:_MOST_PROBLEM].partition("(:init")
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
        Thing(
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


class AlfWorldConfig(Settings, frozen=True):
    """Settings of the ALFWorld benchmark."""

    form: Literal["episode", "step"] = "episode"
    """episode: the model rolls out whole games, as ALFWorld is scored. step: the prompt has a recorded game
    up to some command, and the model must give the expert's next command (GenEnv's decomposition into
    single steps).
    """
    max_steps: int = Field(default=50, ge=1, le=200)
    """The most commands in a game, including those that do nothing; ALFWorld's number is 50. Only for form
    episode.
    """
    show_commands: bool = True
    """List the possible commands in each turn, as for agents trained with reinforcement learning (GiGPO,
    verl-agent). If off, the model must infer them, as with ReAct and BUTLER.
    """
    history: int = Field(default=10, ge=0, le=50)
    """The number of previous commands shown with their answers; recorded games have up to 9. Only for form
    step.
    """


_MOST_CHARS = 20_000
"""The most characters parsed, counted from the end of a reply."""
_MOST_COMMAND = 200
"""The most characters of a command; those of the games have up to 80."""
_LABELLED = re.compile(r"[\s*_`]*(?:>|(?:next )?(?:action|command)[\s*_`]*:)[\s*_`]*[^\s*_`]", re.IGNORECASE)


def command_of(reply: str) -> str:
    """Return the command in a reply, in lower case; "" if there is none.

    The command is the text of the last `<action>...</action>`, as verl-agent parses replies. Without such a
    tag, it is the last line that begins with `>`, `Action:` or `Command:`, or else the first line with a
    letter; thoughts (`<think>`, closed or not) are removed first. Labels, quotation marks, emphasis and a
    final punctuation mark are removed.
    """
    text = reply[-_MOST_CHARS:].lower()
    _, tag, tagged = text.rpartition("<action>")
    if tag:
        return plain(read_command(tagged.partition("<")[0].strip("[] \n")))
    said = without_thoughts(text).partition("<think>")[0]
    labelled = [line for line in said.splitlines() if _LABELLED.match(line)]
    return plain(read_command(labelled[-1] if labelled else said))


def plain(command: object) -> str:
    """Return a command in lower case, with single spaces, of bounded length; "" if it is not a text."""
    if not isinstance(command, str):
        return ""
    return " ".join(command[: 2 * _MOST_COMMAND].lower().split())[:_MOST_COMMAND]


_RULES = (
    "You act in a house that is described to you in text, and you are given a task there.\n"
    "{turn} Reason about the situation first, within <think> </think>. Then give exactly one command within "
    "<action> </action>.\n"
    "The commands, with X a place and O an object, each with its number: go to X, open X, close X, examine X,"
    " take O from X, move O to X, clean O with X, heat O with X, cool O with X, use O, slice O with O, "
    "examine O, look, inventory.\n"
    "You can hold one object at a time. {end}"
)
_EPISODE = "Each turn you are told what happened. A command that is not possible is answered: {nothing}"
_EPISODE_END = "You have {max_steps} commands, those that are not possible included."
_STEP = "You see a game so far, and give the next command of an expert, who knows where everything is."
_CONDITIONS = "goal_conditions"
_STEP_END = "The expert takes the shortest way."


@dataclass(frozen=True, slots=True)
class Episodes:
    """Form `episode`: an item is a whole game, with one command per turn. The answer is all commands."""

    settings: AlfWorldConfig
    headline: str = "success"

    def items(self, trial: Trial) -> Iterator[Item]:
        """Yield one item, the game."""
        yield Item(id=trial.id, groups=_groups(trial), data=trial)

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out until the game is won, or the commands or the context window are used up.

        Only the last turn lists the possible commands, as lists in all turns would fill small context
        windows.
        """
        play = cast(Trial, item.data).game.start()
        messages, commands = self._opening(play), list[Json]()
        while not play.won and len(commands) < self.settings.max_steps:
            newest = messages[-1]["content"] + _possible(play, self.settings)
            try:
                reply = await talk([*messages[:-1], {"role": "user", "content": newest}])
            except ContextOverflow:
                if not commands:
                    raise
                break
            command = command_of(reply.text)
            commands.append(command)
            messages += [reply.message(), {"role": "user", "content": play.step(command)}]
        return commands

    def _opening(self, play: Play) -> list[ChatMessage]:
        end = _EPISODE_END.format(max_steps=self.settings.max_steps)
        rules = _RULES.format(turn=_EPISODE.format(nothing=NOTHING), end=end)
        return _messages(rules, play.game.intro)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Return score 1 if the game is won within the limit of commands, else 0.

        The measure `goal_conditions` is the largest share of the goal's conditions that held at the same
        time.
        """
        play, nothing, used = cast(Trial, item.data).game.start(), 0, 0
        met, conditions = play.goal_conditions
        written: Sequence[Json] = answer if isinstance(answer, list) else ()
        for command in written[: self.settings.max_steps]:
            used += 1
            nothing += play.step(plain(command)) == NOTHING
            met = max(met, play.goal_conditions[0])
            if play.won:
                break
        sentence = f"The goal is {'' if play.won else 'not '}reached after {used} commands, of which "
        return Grade(
            score=float(play.won),
            explanation=f"{sentence}{nothing or 'none'} did nothing.",
            measures={
                _CONDITIONS: met / conditions,
                "commands": float(used),
                "commands_that_did_nothing": float(nothing),
            },
        )

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return goal-condition success, the length of won games, and the share of ineffective commands."""
        played = [grade for _, grade in graded if "commands" in grade.measures]
        won = [grade.measures["commands"] for grade in played if grade.score]
        used = [grade.measures["commands"] for grade in played]
        nothing = [grade.measures["commands_that_did_nothing"] for grade in played]
        length = [weighted("commands_of_won_games", [Part(won, bounds=None)], percent=False)] if won else []
        return [
            *shares(graded, [_CONDITIONS]),
            *length,
            weighted("commands_that_did_nothing", [Part(nothing, used)]),
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a recorded game, which the model predicts from the commands before it."""

    trial: Trial
    index: int

    def play(self) -> tuple[Play, list[str]]:
        """Return the game after the expert's earlier commands, and the game's answers to them."""
        play = self.trial.game.start()
        return play, play.play(self.trial.walkthrough[: self.index])


@dataclass(frozen=True, slots=True)
class Steps:
    """Form `step`: an item is the expert's next command, to be predicted exactly. The answer is a command."""

    settings: AlfWorldConfig
    headline: str = "accuracy"

    def items(self, trial: Trial) -> Iterator[Item]:
        """Yield one item for each command of the game."""
        for index in range(len(trial.walkthrough)):
            yield Item(
                id=f"{trial.id}#{index + 1}", groups=_groups(trial), data=Step(trial, index), cluster=trial.id
            )

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Ask for the next command in one turn, and return the command in the reply."""
        step = cast(Step, item.data)
        play, answers = step.play()
        told = [f"\n> {c}\n{a}" for c, a in zip(step.trial.walkthrough, answers, strict=False)]
        shown = told[max(0, len(told) - self.settings.history) :]
        left_out = f"\n({len(told) - len(shown)} earlier commands are left out.)" * (len(shown) < len(told))
        asked = play.game.intro + "\n" + left_out + "".join(shown) + _possible(play, self.settings)
        reply = await talk(_messages(_RULES.format(turn=_STEP, end=_STEP_END), asked))
        return command_of(reply.text)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Return score 1 for the expert's command, else 0.

        Measures: `admissible`, whether the command is possible; `shortest`, whether it starts a plan as short
        as the expert's.
        """
        step, command = cast(Step, item.data), plain(answer)
        expected, play = step.trial.walkthrough[step.index], step.play()[0]
        possible = play.step(command) != NOTHING
        right = command == expected
        rest = plan_from(play) if possible and not right else None
        shortest = right or (rest is not None and len(rest) < len(step.trial.walkthrough) - step.index)
        if right:
            sentence = f"{command!r} is the expert's command."
        else:
            what = (
                "begins as short a way" if shortest else "leads no nearer" if possible else "is not possible"
            )
            sentence = f"{command[:60]!r} is not the expert's command, {expected!r}; it {what}."
        return Grade(
            score=float(right),
            explanation=sentence,
            measures={"admissible": float(possible), "shortest": float(shortest)},
        )

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the share of commands that start a shortest plan, and the share that are possible."""
        return shares(graded, ("shortest", "admissible"))


def _groups(trial: Trial) -> dict[str, str]:
    return {"split": trial.split, "type": TYPES[trial.game.world.task]}


def _messages(rules: str, asked: str) -> list[ChatMessage]:
    return [{"role": "system", "content": rules}, {"role": "user", "content": asked}]


def _possible(play: Play, settings: AlfWorldConfig) -> str:
    """Return the list of possible commands for the prompt, without `help`, which only repeats the rules."""
    if not settings.show_commands or play.won:
        return ""
    listed = ", ".join(command for command in play.admissible if command != "help")
    return f"\n\nPossible commands: {listed}."


_FORMS: dict[str, type[Episodes] | type[Steps]] = {"episode": Episodes, "step": Steps}


class AlfWorld(Benchmark):
    """The ALFWorld benchmark; `form` selects whole games or single steps."""

    name: ClassVar[str] = "alfworld"
    config: ClassVar[type[BaseModel]] = AlfWorldConfig
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar[Mapping[str, str]] = {
        "valid_unseen": "134 games in rooms that the training games do not have; what is reported",
        "valid_seen": "140 games in the training games' rooms, furnished anew",
        "all": "both, 274 games",
        "valid_train": "200 games of the training split, set apart",
        "train": "3,553 games, for training alone",
    }
    settings: AlfWorldConfig

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self._form = _FORMS[self.settings.form](self.settings)
        self.headline = self._form.headline

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the games of a split, or their steps, sorted by id; each walkthrough is checked to win.

        Raises:
            DataError: a file is missing, changed, damaged or of another release; the message names it.
        """
        folders = ["valid_seen", "valid_unseen"] if split == "all" else [split]
        trials = (trial for folder in folders for trial in load_trials(data, folder))
        return [item for trial in trials for item in self._form.items(trial)]

    def many_turns(self, item: Item) -> bool:
        """Return whether items are whole games."""
        return self.settings.form == "episode"

    def most_replies(self, item: Item) -> int:
        """Return the limit of commands for whole games, else 1."""
        return self.settings.max_steps if self.many_turns(item) else 1

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out a game and return its commands, or return one predicted command."""
        return await self._form.attempt(item, talk)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade by executing the commands again, or by comparing the command with the expert's."""
        return self._form.grade(item, answer)

    def further(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the further figures of the chosen form."""
        return self._form.figures(graded)

    def describe(self) -> JsonObject:
        """Return the release of the games, and the engine."""
        return {"release": "json_2.1.1, move X to Y", "engine": "genenv household"}
