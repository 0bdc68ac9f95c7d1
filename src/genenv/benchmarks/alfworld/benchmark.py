"""The ALFWorld benchmark: 134 unseen and 140 seen household games, scored as by their authors.

A game is won if its goal is reached within 50 commands (Shridhar et al. 2021, arXiv:2010.03768). An
impossible command is answered "Nothing happens." and counts. The games run in genenv's engine, whose answers
equal TextWorld's: `bench/parity_alfworld.py` compares the two. `form` chooses whole games or single steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from pydantic import BaseModel, Field

from genenv.benchmarks.alfworld.games import TYPES, Trial, load_trials
from genenv.chat.assistant import ChatMessage, Talk
from genenv.chat.reasoning import without_thoughts
from genenv.environments.household.engine import NOTHING, Play, read_command
from genenv.environments.household.planning import plan_from
from genenv.errors import ContextOverflow
from genenv.evaluation.base import Grade, Graded, Item, PlainBenchmark, shares
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings
from genenv.statistics import Figure, Part, weighted
from genenv.types import Json, JsonObject


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


class AlfWorld(PlainBenchmark):
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
