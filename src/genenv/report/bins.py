"""A picture is as wide for three thousand rounds as for ten: what its columns and dots then stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from genenv.runs.store.records import RoundOverview
from genenv.types import RejectReason

_MOST_COLUMNS = 150
_MOST_DOTS = 2000
_MOST_MARKERS = 100


@dataclass(frozen=True, slots=True)
class Bin:
    """Neighbouring rounds that share a column of a picture; a round alone in a short run."""

    rounds: tuple[RoundOverview, ...]

    @property
    def center(self) -> float:
        """Where the column stands, in rounds."""
        return (self.rounds[0].number + self.rounds[-1].number) / 2

    @property
    def width(self) -> int:
        """Over how many rounds the column reaches."""
        return self.rounds[-1].number - self.rounds[0].number + 1

    def rejected(self, reasons: Sequence[RejectReason]) -> float:
        """Generations rejected for these reasons, a round on average."""
        totals: Counter[RejectReason] = Counter()
        for facts in self.rounds:
            totals.update(facts.rejected)
        return sum(totals[reason] for reason in reasons) / len(self.rounds)

    def skill_share(self, skills: Set[str]) -> float:
        """Share of the generated tasks of these rounds that exercise any of these skills."""
        tasks = sum(len(facts.task_skills) for facts in self.rounds)
        hits = sum(not own.isdisjoint(skills) for facts in self.rounds for own in facts.task_skills)
        return hits / tasks if hits else 0.0


def in_bins(rounds: Sequence[RoundOverview]) -> list[Bin]:
    """Rounds as columns, all of equally many rounds but the last; not more than can be told apart."""
    size = -(-len(rounds) // _MOST_COLUMNS)
    return [Bin(tuple(rounds[start : start + size])) for start in range(0, len(rounds), size or 1)]


def every_nth(rounds: Sequence[RoundOverview]) -> int:
    """Of how many rounds one shows its batches, so that dots can be told apart."""
    return max(1, -(-sum(len(facts.batches) for facts in rounds) // _MOST_DOTS))


def marker(shape: str, points: int) -> str:
    """The marker of a line's points; none where they would hide the line."""
    return shape if points <= _MOST_MARKERS else ""
