"""The store of a run, `pool.db`: what was written, what became of it, and how it was solved.

A round is one transaction: after a crash at any instant the file holds whole rounds only. What is read
back equals what was written, log-probabilities to the last bit; JSON sequences come back as lists. Readers
of a run in progress (the report, the viewer) may open the file while it is written.

Ids are unique in a run. A task or seed that is stored already is not stored again, and must not have
changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import cast

from genenv.runs.store import checksums, history, read, write
from genenv.runs.store.database import Database
from genenv.runs.store.encode import object_from_json
from genenv.runs.store.records import (
    BatchRate,
    Evaluation,
    Identity,
    Provenance,
    RoundOverview,
    RoundRecord,
)
from genenv.types import (
    Group,
    JsonObject,
    Origin,
    RejectReason,
    Seed,
    SimulatorSample,
    Task,
    TaskBatch,
)


def utc_now() -> str:
    """The time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class PoolStore:
    """The store of one run. Every method may raise `DataError` when the file turns out to be damaged."""

    def __init__(self, database: Database, clock: Callable[[], str]) -> None:
        """Use `PoolStore.open`."""
        self._db = database
        self._clock = clock

    @classmethod
    def open(cls, path: Path, *, create: bool, clock: Callable[[], str] = utc_now) -> PoolStore:
        """Open a store, check the file and bring its tables up to date.

        Args:
            path: the file.
            create: make it when it is not there.
            clock: gives the time that is noted with each round.

        Raises:
            DataError: the file is missing, damaged, in use, newer than this code, or not a store.
        """
        return cls(Database.open(path, create=create), clock)

    def __enter__(self) -> PoolStore:
        """The store itself; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        self._db.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._db.path

    # writing

    def put_base(self, seeds: Sequence[Seed], tasks: Sequence[Task] = ()) -> None:
        """Store seeds and held-out tasks, before the first round; base tasks come with the rounds.

        Calling it again with the same data changes nothing, so a resumed run may.

        Raises:
            ValueError: an id is stored with other content.
        """
        with self._db.transaction():
            new = [write.write_seed(self._db, seed) for seed in seeds]
            new += [write.write_task(self._db, task, round_=None, surface=None) for task in tasks]
            if any(new) and (checksums.is_sealed(self._db) or self.last_round() is None):
                checksums.seal_base(self._db)

    def commit_round(self, record: RoundRecord, *, checkpoint: bytes | None = None) -> None:
        """Store a round with its checksums, whole or not at all.

        Args:
            record: the round.
            checkpoint: SHA-256 of the manifest of its checkpoint, to know it again; None when it has none.

        Raises:
            ValueError: the round is not the next one, a number is not finite, an id is used twice with other
                content, or something is named that neither the record nor the store holds.
            DataError: the disk is full, or the file is in use or damaged. Earlier rounds are as they were.
        """
        with self._db.transaction():
            last = self.last_round()
            due = (0, 1) if last is None else (last + 1,)
            if record.number not in due:
                raise ValueError(
                    f"round {record.number} cannot be committed to {self.path}: "
                    f"the next round is {' or '.join(map(str, due))}"
                )
            sealed = checksums.is_sealed(self._db)
            new_seeds = write.write_round(self._db, record, self._clock())
            checksums.seal_round(self._db, record.number, checkpoint)
            if not sealed:
                checksums.seal_legacy(self._db)
            elif new_seeds:
                checksums.seal_base(self._db)

    def seal_legacy(self) -> bool:
        """Give the rounds that an older genenv committed their checksums, as they are now.

        Returns:
            Whether there were any without.
        """
        with self._db.transaction():
            if self.last_round() is None or checksums.is_sealed(self._db):
                return False
            checksums.seal_legacy(self._db)
            return True

    # what it is, and whether it is whole

    def identity(self) -> Identity:
        """Which run this is."""
        return checksums.identity(self._db)

    def checkpoint_sha256(self, round_: int) -> bytes | None:
        """SHA-256 of the manifest of a round's checkpoint; None where it was committed without."""
        return checksums.checkpoint_sha256(self._db, round_)

    def has_checksums(self) -> bool:
        """Whether its rounds can be checked; those of an older genenv have none until they are resumed."""
        return checksums.is_sealed(self._db)

    def damage(self, *, whole: bool) -> list[str]:
        """What has changed since it was committed, each in a few words such as "traces of round 3".

        Args:
            whole: check everything; else what a resumed run reads, and the newest rounds.
        """
        with self._db.snapshot():
            return [
                *checksums.integrity(self._db, whole=whole),
                *checksums.damage(self._db, whole=whole),
            ]

    # rounds

    def last_round(self) -> int | None:
        """The last committed round; None before the first."""
        return self._db.rows("SELECT max(number) AS last FROM rounds")[0]["last"]

    def rounds(self) -> tuple[int, ...]:
        """All committed rounds in order."""
        return tuple(row["number"] for row in self._db.rows("SELECT number FROM rounds ORDER BY number"))

    def metrics(self, round_: int) -> Mapping[str, float]:
        """The metrics of a round, timings included.

        Raises:
            KeyError: the round is not committed.
        """
        row = read.round_row(self._db, round_)
        with self._db.decoding():
            merged = {**object_from_json(row["metrics"]), **object_from_json(row["timings"])}
        return cast("Mapping[str, float]", merged)

    def state(self, round_: int) -> JsonObject:
        """The curriculum's state after a round.

        Raises:
            KeyError: the round is not committed.
        """
        row = read.round_row(self._db, round_)
        with self._db.decoding():
            return object_from_json(row["state"])

    def metrics_by_round(self) -> Mapping[int, Mapping[str, float]]:
        """The metrics of every round in order, timings included."""
        with self._db.decoding():
            return history.metrics_by_round(self._db)

    def overview(self) -> tuple[RoundOverview, ...]:
        """What every round came to, in order. Texts and tokens are not read."""
        with self._db.decoding():
            return history.overview(self._db)

    # what a round holds; empty for a round that is not committed

    def batches(self, round_: int) -> tuple[TaskBatch, ...]:
        """The batches of a round in order, with proposals (rejections included) and groups."""
        with self._db.decoding():
            return read.batches(self._db, round_)

    def batch_rates(self, round_: int) -> tuple[BatchRate, ...]:
        """p_hat, R_env and selection of each batch of a round: `batches` without texts and tokens."""
        return read.batch_rates(self._db, round_)

    def groups(self, round_: int) -> tuple[Group, ...]:
        """All groups of a round in order: the batches', base tasks and replayed tasks."""
        with self._db.decoding():
            return read.groups(self._db, round_)

    def samples(self, round_: int) -> tuple[SimulatorSample, ...]:
        """The weighted generations that the simulator learned from in a round."""
        with self._db.decoding():
            return read.samples(self._db, round_)

    def rejections(self, round_: int) -> Counter[RejectReason]:
        """How many generations of a round were rejected for each reason."""
        with self._db.decoding():
            return read.rejections(self._db, round_)

    def generation_count(self, round_: int) -> int:
        """How many generations the simulator wrote in a round, rejected ones included."""
        return read.generation_count(self._db, round_)

    def evaluations(self, round_: int) -> tuple[Evaluation, ...]:
        """The held-out results of a round."""
        with self._db.decoding():
            return read.evaluations(self._db, round_)

    # the whole pool

    def tasks(self, *, origin: Origin | None = None, rounds: range | None = None) -> tuple[Task, ...]:
        """Tasks in the order in which they came.

        Args:
            origin: only tasks from there.
            rounds: only tasks that first came in one of these consecutive rounds; held-out ones came in none.
        """
        with self._db.decoding():
            return read.tasks(self._db, origin=origin, rounds=rounds)

    def task(self, task_id: str) -> Task:
        """One task.

        Raises:
            KeyError: the store does not hold it.
        """
        with self._db.decoding():
            return read.task(self._db, task_id)

    def surfaces(self) -> Iterator[tuple[str, str]]:
        """The archive for novelty: id and surface of each generated task, oldest first."""
        with self._db.decoding():
            yield from history.surfaces(self._db)

    def without_surface(self) -> tuple[Task, ...]:
        """The generated tasks that were stored without a surface."""
        with self._db.decoding():
            return history.without_surface(self._db)

    def task_count(self, origin: Origin) -> int:
        """How many tasks came from there; none is read."""
        return history.task_count(self._db, origin)

    def last_seen(self) -> Mapping[str, int]:
        """By task id the last round in which the agent attempted it or was reminded of it."""
        return history.last_seen(self._db)

    def lineage(self, task_id: str) -> Provenance:
        """From a task back to its seed, and on to its attempts.

        Raises:
            KeyError: the store does not hold the task.
        """
        with self._db.decoding():
            return read.provenance(self._db, task_id)

    def digest(self) -> str:
        """A fingerprint of everything but wall-clock values: equal runs have equal digests."""
        return read.digest(self._db)
