"""The store of a run, `pool.db`: what was written, what became of it, and how it was solved.

A round is one transaction: after a crash at any instant the file holds whole rounds only. What is read
back equals what was written, log-probabilities to the last bit; JSON sequences come back as lists. Readers
of a run in progress (the report, the viewer) may open the file while it is written.

Ids are unique in a run. A task or seed that is stored already is not stored again, and must not have
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from genenv.runs.store import checksums, write
from genenv.runs.store.database import Database
from genenv.runs.store.history import HistoryReader
from genenv.runs.store.records import Identity, RoundRecord
from genenv.types import Seed, Task


def utc_now() -> str:
    """The time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class PoolStore(HistoryReader):
    """The store of one run. Every method may raise `DataError` when the file turns out to be damaged."""

    def __init__(self, database: Database, clock: Callable[[], str]) -> None:
        """Use `PoolStore.open`."""
        super().__init__(database)
        self._clock = clock

    @classmethod
    def open(
        cls, path: Path, *, create: bool, check: bool = True, clock: Callable[[], str] = utc_now
    ) -> PoolStore:
        """Open a store, check the file and bring its tables up to date.

        Args:
            path: the file.
            create: make it when it is not there.
            check: read all of the file; False where it was read a moment ago.
            clock: gives the time that is noted with each round.

        Raises:
            DataError: the file is missing, damaged, in use, newer than this code, or not a store.
        """
        return cls(Database.open(path, create=create, check=check), clock)

    def __enter__(self) -> PoolStore:
        """The store itself; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    @property
    def path(self) -> Path:
        """Its file."""
        return self._db.path

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        self._db.close()

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
                    f"round {record.number} cannot be committed to {self._db.path}: "
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

    def copy_to(self, path: Path) -> None:
        """Copy everything into a file that is not there yet."""
        self._db.copy_to(path)

    def branch(self, run: str, last: int, *, checkpoint: bytes) -> None:
        """Make a copy of a run's store that of a run of its own, which begins after a round.

        Args:
            run: id of the new run.
            last: the round; later ones are dropped, with all that came with them.
            checkpoint: SHA-256 of the manifest of its copied checkpoint, which names the new run.
        """
        with self._db.transaction():
            if not checksums.is_sealed(self._db):
                checksums.seal_legacy(self._db)
            self._db.run("DELETE FROM rounds WHERE number > ?", (last,))
            self._db.run("UPDATE run SET id = ?, legacy_until = -1", (run,))
            checksums.seal_base(self._db)  # the row of the run is part of it
            checksums.name_checkpoint(self._db, last, checkpoint)

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

    def damage(self, *, whole: bool, also: Collection[str] = ()) -> list[str]:
        """What has changed since it was committed, each in a few words such as "traces of round 3".

        Args:
            whole: check everything; else what a resumed run reads, and the newest rounds.
            also: parts of every round that a run reads beside those that all read, such as "traces".
        """
        with self._db.snapshot():
            return [
                *checksums.integrity(self._db, whole=whole),
                *checksums.damage(self._db, whole=whole, also=also),
            ]
