"""The benchmark interface: items from files, a rollout for each, a grade by code, figures over all grades.

A benchmark's author handles messages and answers, never tokens. A rollout returns its answer as JSON. The
grade depends on item and answer alone, so stored answers can be graded again without a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from genenv.chat.assistant import Assistant, Talk
from genenv.evaluation.data import DataFolder
from genenv.evaluation.results import Record
from genenv.settings import NoSettings
from genenv.statistics import Figure, by_group, rate
from genenv.types import Json, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a benchmark."""

    id: str
    """Unique in the benchmark and the same in every version of genenv: results are joined by it."""
    groups: Mapping[str, str]
    """Groups with sub-scores, e.g. `{"category": "simple_python"}`. `--limit` draws evenly from all."""
    data: Any = field(repr=False)
    """What the benchmark needs for the prompt and for grading."""
    cluster: str = ""
    """Items of one cluster are correlated, such as the steps of one game: intervals resample whole clusters.
    Empty: the item is a cluster of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """An answer's score by the benchmark's own rules."""

    score: float
    """In [0, 1]: the item's contribution to the headline figure."""
    explanation: str
    """One sentence a person can read."""
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further numbers of this item, e.g. `{"f1": 0.5}`."""
    unread: Sequence[str] = ()
    """Parts of the answer that could not be parsed and count for nothing, with position and reason."""


Graded = tuple[Item, Grade]


class Benchmark(Protocol):
    """A benchmark; each evaluation creates its own instance."""

    name: ClassVar[str]
    config: ClassVar[type[BaseModel]]
    """Class of its settings (`genenv.settings.Settings`); an instance is the constructor's argument."""
    prompt_version: ClassVar[str]
    """Must change whenever the prompts do."""
    splits: ClassVar[Mapping[str, str]]
    """Name of each split and one line about it. The first is the default."""
    max_tokens: int
    """Token limit of a reply, unless the user sets another."""

    def __init__(self, settings: BaseModel | None = None) -> None: ...

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """The settings, completed with what follows from the policy's name.

        Raises:
            UsageError: the name does not determine what they lack.
        """
        ...

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """The items of a split, in a fixed order.

        Raises:
            DataError: a file is missing, changed or damaged; names file and line.
        """
        ...

    def many_turns(self, item: Item) -> bool:
        """Whether a rollout may have more than one turn."""
        ...

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out one item; return what grading needs, as small JSON.

        Raises:
            ContextOverflow: the conversation exceeds the model's window; graded as wrong.
            RolloutError: the model gave no answer.
        """
        ...

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade an answer. A pure function that never raises, whatever the model wrote."""
        ...

    def unanswered(self, item: Item, reason: str) -> Grade:
        """The grade of an item that does not fit into the model's window."""
        ...

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """The benchmark's figures: the headline first, then those of its groups."""
        ...

    def describe(self) -> JsonObject:
        """What else the figures depend on, for the summary, e.g. the scorer's version."""
        ...


@runtime_checkable
class Judged(Protocol):
    """A benchmark that can use a second model as a judge."""

    judge: Assistant | None
    """Set before the first rollout; None: no judge."""


@runtime_checkable
class Bounded(Protocol):
    """A multi-turn benchmark with a known maximum of replies per item, for the progress display."""

    def most_replies(self, item: Item) -> int:
        """Upper bound on the replies in one rollout of the item."""
        ...


@runtime_checkable
class HasPrerequisites(Protocol):
    """A benchmark with items that need earlier conversations, such as those that fill a memory."""

    def prerequisites(self, items: Sequence[Item]) -> Sequence[Sequence[Item]]:
        """The conversations that these items need, as chains: each builds on the one before it."""
        ...

    def held(self, item: Item, answer: Json) -> None:
        """Accept a conversation's answer; None where it did not fit into the window."""
        ...


def clusters_of(items: Iterable[Item]) -> list[str]:
    """[N] cluster of each item: its own id where it has none."""
    return [item.cluster or item.id for item in items]


def shares(graded: Sequence[Graded], names: Iterable[str]) -> list[Figure]:
    """Means of measures that are rates; an item that lacks one counts as 0."""
    clusters = clusters_of(item for item, _ in graded)
    return [
        rate(name, [grade.measures.get(name, 0.0) for _, grade in graded], clusters=clusters)
        for name in names
    ]


Answered = tuple[Item, Record]
"""An item and its stored record: answer, conversation, token counts."""


@runtime_checkable
class Exports(Protocol):
    """A benchmark that can write answers as the files that its authors' scorer reads."""

    def export(self, answered: Sequence[Answered], policy: str) -> Mapping[str, str]:
        """Contents of files by relative POSIX path. A pure function that never raises.

        Args:
            answered: items in order, without those that failed; the answer is None where the item did not fit
                into the window.
            policy: the policy's name, safe for a file name.

        Returns:
            Text by path; empty where the authors have no format for these settings.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Price of a million tokens, in any currency."""

    prompt: float
    sampled: float


@runtime_checkable
class HasLeaderboard(Protocol):
    """A benchmark whose authors publish a leaderboard with more columns than the figures."""

    def leaderboard(
        self, answered: Sequence[Answered], prices: Prices | None
    ) -> tuple[JsonObject, Sequence[str]]:
        """The policy's row in the authors' table, and what of it is missing. Pure; never raises.

        Args:
            answered: items in order, without those that failed.
            prices: of the policy's tokens; None: unknown.

        Returns:
            The row, for the summary; and notes to print beside the figures. Both may be empty.
        """
        ...


class PlainBenchmark:
    """Defaults for a benchmark; a subclass overrides what differs."""

    config: ClassVar[type[BaseModel]] = NoSettings
    max_tokens = 512
    headline: str = "accuracy"
    """Name of the mean score."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings or self.config()

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """The settings as they are."""
        return settings

    def many_turns(self, item: Item) -> bool:
        """One turn."""
        return False

    def unanswered(self, item: Item, reason: str) -> Grade:
        """Wrong."""
        return Grade(score=0.0, explanation=reason)

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """The mean score over all items and over each group; then the mean of every other measure.

        An item that did not fit into the window has no measures and counts as 0.
        """
        name, scores = self.headline_of(graded), [grade.score for _, grade in graded]
        clusters = clusters_of(item for item, _ in graded)
        figures = [rate(name, scores, clusters=clusters)]
        groups = [item.groups for item, _ in graded]
        for key in dict.fromkeys(key for group in groups for key in group):
            figures += by_group(
                groups,
                key,
                lambda at, label: rate(
                    name, [scores[i] for i in at], group=label, clusters=[clusters[i] for i in at]
                ),
            )
        return [*figures, *self.further(graded)]

    def headline_of(self, graded: Sequence[Graded]) -> str:
        """Name of the mean score, where it depends on the items."""
        return self.headline

    def further(self, graded: Sequence[Graded]) -> list[Figure]:
        """Means of all measures, each a rate."""
        return shares(graded, dict.fromkeys(name for _, grade in graded for name in grade.measures))

    def describe(self) -> JsonObject:
        """Nothing else decides the numbers."""
        return {}
