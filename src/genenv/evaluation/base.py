"""What a benchmark is: items from files, an attempt at each, a grade by code, and figures over all grades.

A benchmark's author sees messages and answers only. An attempt converses and returns its answer as JSON; a
grade is made from item and answer alone, so that answers can be graded again, and without any model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from genenv.chat.assistant import Assistant, Talk
from genenv.evaluation.data import DataFolder
from genenv.evaluation.records import Record
from genenv.settings import NoSettings
from genenv.statistics import Figure, by_group, rate
from genenv.types import Json, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question of a benchmark."""

    id: str
    """Unique in the benchmark and the same in every version of genenv: results are compared by it."""
    groups: Mapping[str, str]
    """What sub-scores are of, e.g. `{"category": "simple_python"}`. `--limit` draws evenly from all."""
    data: Any = field(repr=False)
    """What the benchmark needs to ask and to grade it."""
    cluster: str = ""
    """What it hangs together with, such as the game that its step is of; intervals count that once. Empty: it
    stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What the benchmark's own rules say of an answer."""

    score: float
    """In [0, 1]: the item's part in the headline figure."""
    explanation: str
    """One sentence a person can read."""
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further numbers of this item, e.g. `{"f1": 0.5}`."""
    unread: Sequence[str] = ()
    """Parts of the answer that could not be read and were not graded, each with its place and the reason."""


Graded = tuple[Item, Grade]


class Benchmark(Protocol):
    """A benchmark. Made anew for every evaluation, with its settings."""

    name: ClassVar[str]
    config: ClassVar[type[BaseModel]]
    """Its own settings (`genenv.settings.Settings`). The class is called with an instance of it."""
    prompt_version: ClassVar[str]
    """Changes whenever what the model reads does."""
    splits: ClassVar[Mapping[str, str]]
    """Parts that can be asked for, and what each is, in a line. The first is the default."""
    max_tokens: int
    """A reply may have so many tokens, unless the user says otherwise."""

    def __init__(self, settings: BaseModel | None = None) -> None: ...

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """The settings, with what they leave to the name of the policy.

        Raises:
            UsageError: it does not say what they need.
        """
        ...

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """The items of a split, in a fixed order.

        Raises:
            DataError: a file is missing, changed or damaged; names file and line.
        """
        ...

    def many_turns(self, item: Item) -> bool:
        """Whether an attempt may ask more than once."""
        ...

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Converse, and return what is to be graded: JSON, as small as grading allows.

        Raises:
            ContextOverflow: the item's conversation does not fit; graded as wrong.
            RolloutError: no answer could be had.
        """
        ...

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade an answer. Pure, and never raises, whatever a model wrote."""
        ...

    def unanswered(self, item: Item, reason: str) -> Grade:
        """The grade of an item that the model could not be asked, as its window is too small."""
        ...

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """The benchmark's numbers, the headline first, then those of its groups."""
        ...

    def describe(self) -> JsonObject:
        """What else decides the numbers, for the summary, e.g. versions of what grades."""
        ...


@runtime_checkable
class Judged(Protocol):
    """A benchmark that may ask a second model what it thinks of an answer."""

    judge: Assistant | None
    """Asked when set, before the first attempt."""


@runtime_checkable
class Bounded(Protocol):
    """A benchmark of several turns that knows how many replies an item takes at most, for the progress."""

    def most_replies(self, item: Item) -> int:
        """The most replies that one attempt at the item asks for."""
        ...


def clusters_of(items: Iterable[Item]) -> list[str]:
    """[N] what each item hangs together with: itself where it stands alone."""
    return [item.cluster or item.id for item in items]


def shares(graded: Sequence[Graded], names: Iterable[str]) -> list[Figure]:
    """The means of measures that are shares; an item that has none counts as 0."""
    clusters = clusters_of(item for item, _ in graded)
    return [
        rate(name, [grade.measures.get(name, 0.0) for _, grade in graded], clusters=clusters)
        for name in names
    ]


Answered = tuple[Item, Record]
"""An item, and what became of it: the answer that was stored, the conversation, the tokens."""


@runtime_checkable
class Exports(Protocol):
    """A benchmark whose answers can be written as the files that the authors' own scorer reads."""

    def export(self, answered: Sequence[Answered], policy: str) -> Mapping[str, str]:
        """Files by their path below the folder of the export, `/` between its parts. Pure, and never raises.

        Args:
            answered: items in their order, those that failed left out; an item that did not fit into the
                window has the answer None.
            policy: a name of the policy that is fit for a file or folder.

        Returns:
            Text by path; nothing where these settings have no form of the authors' own.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of a million tokens, in any currency."""

    prompt: float
    sampled: float


@runtime_checkable
class HasLeaderboard(Protocol):
    """A benchmark whose authors publish a table with more in it than figures over grades."""

    def leaderboard(
        self, answered: Sequence[Answered], prices: Prices | None
    ) -> tuple[JsonObject, Sequence[str]]:
        """What the authors' table would have, and what of it is missing. Pure, and never raises.

        Args:
            answered: items in their order, those that failed left out.
            prices: of the policy's tokens; None: unknown.

        Returns:
            For the summary; and sentences that a reader of the figures must see. Both may be empty.
        """
        ...


class PlainBenchmark:
    """What most benchmarks have in common; a subclass may replace any of it."""

    config: ClassVar[type[BaseModel]] = NoSettings
    max_tokens = 512
    headline: str = "accuracy"
    """What the mean of the scores is called."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings or self.config()

    @classmethod
    def settled(cls, settings: BaseModel, policy: str) -> BaseModel:
        """The settings as they are."""
        return settings

    def many_turns(self, item: Item) -> bool:
        """One question, one answer."""
        return False

    def unanswered(self, item: Item, reason: str) -> Grade:
        """Wrong."""
        return Grade(score=0.0, explanation=reason)

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """The mean score over all items and over each group; then the mean of every other measure.

        An item that was not answered for want of room has none of them, and counts as 0.
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
        """What the mean of these scores is called, where that depends on the items."""
        return self.headline

    def further(self, graded: Sequence[Graded]) -> list[Figure]:
        """The means of all measures, each a share."""
        return shares(graded, dict.fromkeys(name for _, grade in graded for name in grade.measures))

    def describe(self) -> JsonObject:
        """Nothing else decides the numbers."""
        return {}
