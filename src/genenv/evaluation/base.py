"""The benchmark interface: items read from files, a rollout per item, a grade by code, aggregate figures.

A benchmark's author handles messages and answers, never tokens. A rollout returns its answer as JSON. The
grade depends only on item and answer, so stored answers can be graded again without a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    """One question of a benchmark, which is rolled out and graded."""

    id: str
    """An id that is unique in the benchmark and equal in all versions of genenv: results are joined by it."""
    groups: Mapping[str, str]
    """Groups with sub-scores, e.g. `{"category": "simple_python"}`. `--limit` draws evenly from them."""
    data: Any = field(repr=False)
    """The data that the benchmark needs for the prompt and for grading."""
    cluster: str = ""
    """Items of one cluster are correlated, such as the steps of one game; confidence intervals resample whole
    clusters. Empty: the item forms a cluster by itself.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The score of an answer by the benchmark's rules."""

    score: float
    """In [0, 1]: the item's contribution to the headline figure."""
    explanation: str
    """One sentence a person can read."""
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further numbers of this item, e.g. `{"f1": 0.5}`."""
    unread: Sequence[str] = ()
    """Parts of the answer that could not be parsed and score nothing, with position and reason."""


Graded = tuple[Item, Grade]


class Benchmark(ABC):
    """A benchmark's items, rollouts and grades; subclasses are in `genenv.benchmarks`, one per benchmark.

    Args:
        settings: an instance of `config`; None: the defaults.
    """

    name: ClassVar[str]
    config: ClassVar[type[BaseModel]] = NoSettings
    """Class of its settings (`genenv.settings.Settings`); an instance is the constructor's argument."""
    prompt_version: ClassVar[str]
    """The version of the prompts; it must change whenever the prompts do."""
    splits: ClassVar[Mapping[str, str]]
    """A one-line description of each split by name. The first split is the default."""
    max_tokens = 512
    """The token limit of a reply, unless the user sets another."""
    headline: str = "accuracy"
    """The name of the mean score."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings or self.config()

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """Return the settings, completed by those that follow from the policy's name. Default: unchanged.

        Raises:
            UsageError: a required setting neither is given nor follows from the name.
        """
        return settings

    @abstractmethod
    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the items of a split, in a fixed order.

        Raises:
            DataError: a file is missing, changed or damaged; the message names file and line.
        """

    def many_turns(self, item: Item) -> bool:
        """Return whether a rollout may have more than one turn. Default: it has one."""
        return False

    def most_replies(self, item: Item) -> int | None:
        """Return an upper bound on the replies in a rollout of the item, for progress; None: unknown."""
        return None

    @abstractmethod
    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out one item and return the answer that `grade` needs, as small JSON.

        Raises:
            ContextOverflow: the conversation exceeds the model's context window; `unanswered` grades the
                item.
            RolloutError: the model gave no answer.
        """

    @abstractmethod
    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade an answer. This is a pure function that never raises, whatever the model wrote."""

    def unanswered(self, item: Item, reason: str) -> Grade:
        """Return the grade of an item that does not fit into the model's context window. Default: 0."""
        return Grade(score=0.0, explanation=reason)

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the mean score over all items and per group, then the mean of every other measure.

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
        """Return the name of the mean score; overridden if it depends on the items."""
        return self.headline

    def further(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return the means of all measures, each as a rate."""
        return shares(graded, dict.fromkeys(name for _, grade in graded for name in grade.measures))

    def describe(self) -> JsonObject:
        """Return all else that the figures depend on, e.g. the scorer's version, for the summary.

        Default: nothing.
        """
        return {}


@runtime_checkable
class Judged(Protocol):
    """Implemented by benchmarks that can use a second model as a judge, such as Bamboogle."""

    judge: Assistant | None
    """The judge, set before the first rollout; None: no judge."""


@runtime_checkable
class HasPrerequisites(Protocol):
    """Implemented by benchmarks whose items need earlier conversations, such as those that fill a memory."""

    def prerequisites(self, items: Sequence[Item]) -> Sequence[Sequence[Item]]:
        """Return the conversations that these items need, as chains: each builds on the one before it."""
        ...

    def held(self, item: Item, answer: Json) -> None:
        """Receive a prerequisite conversation's answer; None if it did not fit into the context window."""
        ...


def clusters_of(items: Iterable[Item]) -> list[str]:
    """Return the cluster of each item, [N]: its id if it has no cluster."""
    return [item.cluster or item.id for item in items]


def shares(graded: Sequence[Graded], names: Iterable[str]) -> list[Figure]:
    """Return the means of measures that are rates; an item that lacks a measure counts as 0."""
    clusters = clusters_of(item for item, _ in graded)
    return [
        rate(name, [grade.measures.get(name, 0.0) for _, grade in graded], clusters=clusters)
        for name in names
    ]


Answered = tuple[Item, Record]
"""An item and its stored record: answer, conversation, token counts."""


@runtime_checkable
class Exports(Protocol):
    """Implemented by benchmarks that can write answers as files for their authors' scorer."""

    def export(self, answered: Sequence[Answered], policy: str) -> Mapping[str, str]:
        """Return the contents of files by relative POSIX path. This is a pure function that never raises.

        Args:
            answered: items in order, without failed ones; the answer is None if the item did not fit into the
                window.
            policy: the policy's name, safe for a file name.

        Returns:
            Text by path; empty if the authors have no format for these settings.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of a million prompt tokens and a million sampled tokens, in any currency."""

    prompt: float
    sampled: float


@runtime_checkable
class HasLeaderboard(Protocol):
    """Implemented by benchmarks whose authors publish a leaderboard with more columns than the figures."""

    def leaderboard(
        self, answered: Sequence[Answered], prices: Prices | None
    ) -> tuple[JsonObject, Sequence[str]]:
        """Return the policy's row in the authors' table, and notes on missing columns. Pure; never raises.

        Args:
            answered: items in order, without failed ones.
            prices: the prices of the policy's tokens; None: unknown.

        Returns:
            The row, for the summary; and notes to print with the figures. Both may be empty.
        """
        ...
