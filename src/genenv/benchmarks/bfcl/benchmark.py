"""The Berkeley Function Calling Leaderboard, v4: single-turn, multi-turn and memory categories.

Data, checker, prompts and simulated APIs come from the package bfcl-eval (Apache-2.0). Of the agentic
categories, two kinds of memory are included; `data.MISSING` lists the others with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, cast

from pydantic import BaseModel, Field

from genenv.benchmarks.bfcl.data import (
    COLLECTIONS,
    INSTALL,
    LONG_CONTEXT,
    SPLITS,
    VERSION,
    Conversation,
    MemoryTask,
    Question,
    data_folder,
    items_of,
    version,
)
from genenv.benchmarks.bfcl.multi_turn import Memories, ask_about_memory, ask_turns, grade_memory, grade_turns
from genenv.benchmarks.bfcl.scoring import figures, result_files, table
from genenv.benchmarks.bfcl.single_turn import ask_question, grade_question
from genenv.benchmarks.bfcl.worker import Stopped, worker
from genenv.chat.assistant import Talk
from genenv.errors import UsageError, unknown_name
from genenv.evaluation.base import Answered, Benchmark, Grade, Graded, Item, Prices
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings
from genenv.statistics import Figure
from genenv.types import Json, JsonObject

_PER_TURN = ("all", "multi_turn", LONG_CONTEXT)
"""Splits under `protocol: genenv`; all have the same items."""


class BfclSettings(Settings, frozen=True):
    """Settings of the BFCL benchmark."""

    prompting: Literal["auto", "text", "native"] = "auto"
    """`text`: calls as text after the official prompt; `native`: calls in the model's own format; `auto`:
    native if the model supports it.
    """
    protocol: Literal["official", "genenv"] = "official"
    """`official`: whole conversations; `genenv`: single turns of long-context conversations, each after the
    right calls of the turns before it.
    """
    max_steps: int = Field(default=20, ge=1, le=100)
    """The most replies with calls in a turn; one more ends the conversation."""


class Bfcl(Benchmark):
    """The BFCL v4 benchmark, without web search and vector memory."""

    name: ClassVar[str] = "bfcl"
    config: ClassVar[type[BaseModel]] = BfclSettings
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar = SPLITS
    max_tokens = 1024
    headline = "turns_right"
    settings: BfclSettings

    def __init__(self, settings: BaseModel | None = None) -> None:
        """Create the benchmark with empty memories.

        Args:
            settings: None: the defaults.
        """
        super().__init__(settings)
        self._memories = Memories()

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the items of a split, category by category, from the installed package.

        Raises:
            DataError: a file is missing, changed or damaged.
            UsageError: the package is missing, or there is no such split under this protocol.
        """
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        files = data.elsewhere(data_folder())
        if version() != VERSION and not data.allow_changed:
            raise UsageError(
                f"bfcl-eval {version()} is installed, and {VERSION} is known; install that, or allow the "
                "other with --changed-data"
            )
        if self.settings.protocol == "genenv":
            items = list(_turn_by_turn(files, split))
        else:
            categories = COLLECTIONS.get(split, (split,))
            items = [item for category in categories for item in items_of(files, category)]
        worker().check()
        if any(isinstance(item.data, MemoryTask) for item in items) and (problem := _memory_problem()):
            raise UsageError(f"the memory categories of BFCL cannot be asked ({problem}): {INSTALL}")
        return items

    def prerequisites(self, items: Sequence[Item]) -> Sequence[Sequence[Item]]:
        """Return the conversations that fill the memories of these items."""
        tasks = [item.data for item in items if isinstance(item.data, MemoryTask)]
        return list({task.memory: task.before for task in tasks}.values())

    def held(self, item: Item, answer: Json) -> None:
        """Store the memory that a conversation leaves."""
        self._memories.keep(cast("MemoryTask", item.data), answer)

    def many_turns(self, item: Item) -> bool:
        """Return whether the item is a conversation, or one turn of it."""
        return isinstance(item.data, Conversation | MemoryTask)

    def most_replies(self, item: Item) -> int:
        """Return the maximum number of replies over all turns of the item."""
        content = _content(item)
        if isinstance(content, Question):
            return 1
        if isinstance(content, MemoryTask):
            return (self.settings.max_steps + 1) * len(content.turns)
        return (self.settings.max_steps + 1) * (len(content.truth) if content.only is None else 1)

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out a question or a conversation, and return the calls."""
        native, max_steps = self._is_native(talk), self.settings.max_steps
        content = _content(item)
        if isinstance(content, Question):
            if native and content.prompt_format:
                raise UsageError(
                    "format_sensitivity is about prompts in text, as it is officially: set "
                    "bfcl.prompting=text, or leave it out for this model"
                )
            return await ask_question(content, talk, native=native)
        if isinstance(content, MemoryTask):
            start = self._memories.of(content)
            return await ask_about_memory(content, talk, start, native=native, max_steps=max_steps)
        return await ask_turns(content, talk, native=native, max_steps=max_steps)

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade by comparing the calls, or by executing them again and comparing the resulting states."""
        content = _content(item)
        if isinstance(content, Question):
            return grade_question(content, answer)
        if isinstance(content, MemoryTask):
            return grade_memory(content, answer)
        return grade_turns(content, answer)

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the official averages, or under `protocol: genenv` the share of right turns."""
        if self.settings.protocol == "genenv":
            return super().figures(graded)
        return figures(graded)

    def leaderboard(
        self, answered: Sequence[Answered], prices: Prices | None
    ) -> tuple[JsonObject, Sequence[str]]:
        """Return the columns of the official table; empty under `protocol: genenv`."""
        return ({}, ()) if self.settings.protocol == "genenv" else table(answered, prices)

    def export(self, answered: Sequence[Answered], policy: str) -> Mapping[str, str]:
        """Return the official result files; none under `protocol: genenv`, whose items are not official."""
        return {} if self.settings.protocol == "genenv" else result_files(answered)

    def describe(self) -> JsonObject:
        """Return the scorer's version, which expressions in replies are evaluated, and the settings."""
        return {"bfcl_eval": version(), "evaluated": "constants only", **self.settings.model_dump()}

    def _is_native(self, talk: Talk) -> bool:
        if self.settings.prompting == "native" and not talk.native_tools:
            raise UsageError("this model has no format of its own for tools; set prompting to text or auto")
        return talk.native_tools and self.settings.prompting != "text"


def _content(item: Item) -> Question | Conversation | MemoryTask:
    return cast("Question | Conversation | MemoryTask", item.data)


def _memory_problem() -> str:
    """Return why memories cannot be executed; "" if they can."""
    try:
        return worker().ask("memory_problem")
    except Stopped as error:
        return str(error)


def _turn_by_turn(files: DataFolder, split: str) -> Iterator[Item]:
    """Yield the items of `protocol: genenv`: turns of long-context conversations that have right calls."""
    if split not in _PER_TURN:
        raise UsageError(f"the paper's protocol has long-context turns only; splits: {', '.join(_PER_TURN)}")
    for item in items_of(files, LONG_CONTEXT):
        conversation = cast("Conversation", item.data)
        for turn, calls in enumerate(conversation.truth):
            if calls:
                yield Item(
                    id=f"{item.id}:{turn}",
                    groups={"turn": str(turn + 1)},
                    data=replace(conversation, only=turn),
                    cluster=item.id,
                )
