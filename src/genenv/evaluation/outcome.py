"""What an evaluation came to: its figures, what it took, and what a reader must know beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genenv.evaluation.records import FAILED, OVERFLOW, Record, Results, as_json
from genenv.statistics import Figure
from genenv.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one benchmark gave."""

    name: str
    results: Results
    figures: Sequence[Figure]
    records: Sequence[Record]
    seconds: float
    """Time spent asking, over all runs of the command that came to their end."""
    spending: JsonObject
    """What the endpoint has cost since the start of the process."""
    of: int
    """How many items there are; with `--limit` fewer were asked."""
    notes: Sequence[str] = ()
    """What else a reader must know, a sentence each."""
    leaderboard: JsonObject = field(default_factory=dict[str, Any])
    """What the authors' table would have beside the figures; empty where there is none."""
    prerequisites: Sequence[Record] = ()
    """Conversations that were held before the items were asked. They are in no figure."""
    exported: Sequence[Path] = ()
    """Files in the form of the authors' own scorer."""

    @property
    def failed(self) -> list[Record]:
        """Items that were not answered."""
        return [record for record in self.records if record.status == FAILED]

    @property
    def overflow(self) -> int:
        """How many items did not fit into the model's window."""
        return sum(record.status == OVERFLOW for record in self.records)

    @property
    def unread(self) -> list[Record]:
        """Items of whose answers a part could not be read."""
        return [record for record in self.records if record.unread]

    def tokens(self, kind: str) -> int:
        """How many, over all items: `prompt` or `sampled` tokens, `replies`, or those that were `cut`."""
        return sum(record.tokens.get(kind, 0) for record in self.records)

    def summary(self) -> JsonObject:
        """The part of the summary that tells how it went."""
        more: JsonObject = {"leaderboard": self.leaderboard} if self.leaderboard else {}
        if self.prerequisites:
            more = {**more, "prerequisites": self._prerequisites()}
        return {
            "items": len(self.records),
            "of": self.of,
            "failed": len(self.failed),
            "overflow": self.overflow,
            "unread": {
                "items": len(self.unread),
                "parts": sum(len(record.unread) for record in self.unread),
            },
            "seconds": round(self.seconds, 1),
            "tokens": {kind: self.tokens(kind) for kind in ("prompt", "sampled", "replies", "cut")},
            "spending": self.spending,
            "figures": as_json(self.figures),
            **more,
        }

    def _prerequisites(self) -> JsonObject:
        held = self.prerequisites
        return {
            "conversations": len(held),
            "failed": sum(record.status == FAILED for record in held),
            "overflow": sum(record.status == OVERFLOW for record in held),
            "tokens": {
                kind: sum(record.tokens.get(kind, 0) for record in held)
                for kind in ("prompt", "sampled", "replies", "cut")
            },
        }
