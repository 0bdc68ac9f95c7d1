"""The ALFWorld benchmark: 134 unseen and 140 seen household games, each played as its authors score it.

A game is won or not, within 50 commands (Shridhar et al. 2021, arXiv:2010.03768); what is not possible is
answered "Nothing happens." and uses a command. The games run in genenv's own engine, whose answers are
TextWorld's: `bench/parity_alfworld.py` plays both side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from genenv.benchmarks.alfworld.forms import Episodes, Steps
from genenv.benchmarks.alfworld.games import load_trials
from genenv.benchmarks.alfworld.settings import AlfWorldConfig
from genenv.chat.assistant import Talk
from genenv.evaluation.base import Grade, Graded, Item, PlainBenchmark
from genenv.evaluation.data import DataFolder
from genenv.statistics import Figure
from genenv.types import Json, JsonObject

_FORMS: dict[str, type[Episodes] | type[Steps]] = {"episode": Episodes, "step": Steps}


class AlfWorld(PlainBenchmark):
    """ALFWorld, with its settings."""

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
        """The games of a split, or their steps, sorted by id; each game's walkthrough has won.

        Raises:
            DataError: a file is missing, changed, damaged or of another release; names it.
        """
        folders = ["valid_seen", "valid_unseen"] if split == "all" else [split]
        trials = (trial for folder in folders for trial in load_trials(data, folder))
        return [item for trial in trials for item in self._form.items(trial)]

    def many_turns(self, item: Item) -> bool:
        """Whether whole games are played."""
        return self.settings.form == "episode"

    def most_replies(self, item: Item) -> int:
        """The commands of a game, or one."""
        return self.settings.max_steps if self.many_turns(item) else 1

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Play a game and return the commands, or give the next command of one."""
        return await self._form.attempt(item, talk)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Play the commands again, or compare the command with the expert's."""
        return self._form.grade(item, answer)

    def further(self, graded: Sequence[Graded]) -> list[Figure]:
        """What else the form has to tell."""
        return self._form.figures(graded)

    def describe(self) -> JsonObject:
        """The release of the games, and what plays them."""
        return {"release": "json_2.1.1, move X to Y", "engine": "genenv household"}
