"""The store of a run, `pool.db`: tasks, rollouts, metrics and state of every committed round.

A round is one transaction, so after a crash the file has complete rounds only. Values that are read equal
those written, log-probabilities to the last bit; JSON sequences become lists. The report and the viewer may
read the file of a run in progress.

Ids are unique in a run. A task or seed that is already stored is not stored again, and must not have changed.

Rounds have checksums, because SQLite notices damage only if the file's structure breaks.
A flipped bit inside a text or a number leaves a well-formed file. So each round has a SHA-256 of the rows
that it wrote, one per table ("part"). It is computed from the stored rows, in the transaction of the round.
No commit changes the rows of an earlier round, so the checksum stays valid. Base data (the run's row, seeds,
held-out tasks) belong to no round. Their checksums have NULL as the round, and are recomputed when seeds or
held-out tasks are added.

`checkpoint` is a part outside the store: the SHA-256 of the manifest of the round's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from genenv.errors import DataError
from genenv.runs.store import codec
from genenv.runs.store.codec import Row, SqlValue, finite, sha256_of, to_json, to_text
from genenv.runs.store.database import Database
from genenv.runs.store.reader import StoreReader
from genenv.runs.store.records import BatchRate, RoundRecord
from genenv.runs.store.tables import ROUND_PARTS
from genenv.types import Group, Rejection, Seed, Task, TaskBatch

CHECKPOINT = "checkpoint"
BASE_PARTS: Mapping[str, str] = {
    "run": "SELECT * FROM run",
    "seeds": "SELECT * FROM seeds ORDER BY n",
    "held-out tasks": "SELECT * FROM tasks WHERE round IS NULL ORDER BY n",
}
"""The rows of base data; the others are in `ROUND_PARTS`. A test enforces that no table is left out."""
RESUMED_PARTS = ("rounds", "tasks", "groups", "reminders")
"""The parts of all earlier rounds that every resumed run reads. Some runs read more and name those parts."""

_LOOKED_UP = ("rounds", "tasks", "seeds")
"""Tables whose rows a resumed run looks up."""

NEWEST = 2
"""Number of newest rounds of which a resumed run checks all parts."""


def utc_now() -> str:
    """Return the time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class PoolStore(StoreReader):
    """The store of one run, for reading and writing. Methods raise `DataError` for a damaged file."""

    def __init__(self, database: Database, clock: Callable[[], str]) -> None:
        """Wrap an open database. Call `PoolStore.open` instead."""
        super().__init__(database)
        self._clock = clock

    @classmethod
    def open(
        cls, path: Path, *, create: bool, check: bool = True, clock: Callable[[], str] = utc_now
    ) -> PoolStore:
        """Open a store and check the file.

        Args:
            path: the file.
            create: create the file if it is missing.
            check: read all of the file to check it; False if it was just checked.
            clock: returns the time that is stored with each round.

        Raises:
            DataError: the file is missing, damaged, in use, of another format, or not a store.
        """
        return cls(Database.open(path, create=create, check=check), clock)

    def __enter__(self) -> PoolStore:
        """Return the store. It is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._db.path

    def close(self) -> None:
        """Close the file; does nothing if it is closed."""
        self._db.close()

    # writing

    def put_base(
        self, seeds: Sequence[Seed], tasks: Sequence[Task] = (), *, base: Iterable[Task] = ()
    ) -> None:
        """Store seeds and held-out tasks before the first round. Base tasks are stored with the rounds.

        Calling it again with the same data, as a resumed run does, changes nothing.

        Args:
            seeds: the seeds.
            tasks: the held-out tasks.
            base: the base tasks, of which those that are stored are compared with what is stored.

        Raises:
            ValueError: an id is stored with other content.
        """
        with self._db.transaction():
            new = [_write_seed(self._db, seed) for seed in seeds]
            new += [_write_task(self._db, task, round_=None, surface=None) for task in tasks]
            if any(new):
                self._seal_base()
            for task in base:
                _ = _is_stored(self._db, "tasks", codec.task_row(task))

    def commit_round(self, record: RoundRecord, *, checkpoint: bytes | None = None) -> None:
        """Store a round with its checksums, completely or not at all.

        Args:
            record: the round.
            checkpoint: SHA-256 of the manifest of the round's checkpoint; None if it has none.

        Raises:
            ValueError: the round is not the next one, a number is not finite, an id is used twice with other
                content, or an id refers to nothing in the record or the store.
            DataError: the disk is full, or the file is in use or damaged. Earlier rounds are unchanged.
        """
        with self._db.transaction():
            last = self.last_round()
            due = (0, 1) if last is None else (last + 1,)
            if record.number not in due:
                raise ValueError(
                    f"round {record.number} cannot be committed to {self._db.path}: "
                    f"the next round is {' or '.join(map(str, due))}"
                )
            new_seeds = _write_round(self._db, record, self._clock())
            found = {
                part: sha256_of(self._db.rows(sql, (record.number,))) for part, sql in ROUND_PARTS.items()
            }
            self._keep(record.number, found if checkpoint is None else {**found, CHECKPOINT: checkpoint})
            if new_seeds or last is None:
                self._seal_base()

    def copy_to(self, path: Path) -> None:
        """Copy everything into a new file."""
        self._db.copy_to(path)

    def branch(self, run: str, last: int, *, checkpoint: bytes) -> None:
        """Turn a copy of a run's store into the store of a new run that starts after a round.

        Args:
            run: id of the new run.
            last: the round. Later rounds are dropped with all their data.
            checkpoint: SHA-256 of the manifest of the copied checkpoint, which contains the new id.
        """
        with self._db.transaction():
            self._db.run("DELETE FROM rounds WHERE number > ?", (last,))
            self._db.run("UPDATE run SET id = ?", (run,))
            self._seal_base()  # the row of the run is part of it
            self._db.run("DELETE FROM checksums WHERE round = ? AND part = ?", (last, CHECKPOINT))
            self._keep(last, {CHECKPOINT: checkpoint})

    # checksums; those that write run inside a transaction

    def checkpoint_sha256(self, round_: int) -> bytes | None:
        """Return the SHA-256 of the manifest of a round's checkpoint; None if the store has none."""
        sql = "SELECT sha256 FROM checksums WHERE round = ? AND part = ?"
        found = self._db.rows(sql, (round_, CHECKPOINT))
        return found[0]["sha256"] if found else None

    def damage(self, *, whole: bool, also: Collection[str] = ()) -> list[str]:
        """Return the parts that changed since their commit, in a few words such as "traces of round 3".

        Args:
            whole: check everything; otherwise only what a resumed run reads, and the newest rounds.
            also: parts of every round that this run reads in addition to those of every run, such as
                "traces".
        """
        with self._db.snapshot():
            return [*self._broken(whole=whole), *self._changed(whole=whole, also=also)]

    def _seal_base(self) -> None:
        """Save the checksums of the present base data."""
        self._db.run("DELETE FROM checksums WHERE round IS NULL")
        self._keep(None, {part: sha256_of(self._db.rows(sql)) for part, sql in BASE_PARTS.items()})

    def _keep(self, round_: int | None, found: Mapping[str, bytes]) -> None:
        sql = "INSERT INTO checksums (round, part, sha256) VALUES (?, ?, ?)"
        for part, sha256 in found.items():
            self._db.run(sql, (round_, part, sha256))

    def _changed(self, *, whole: bool, also: Collection[str]) -> Iterator[str]:
        """Yield the parts that do not match their checksums; see `damage`."""
        numbers = self.rounds()
        kept: dict[tuple[int | None, str], bytes] = {
            (row["round"], row["part"]): row["sha256"]
            for row in self._db.rows("SELECT round, part, sha256 FROM checksums")
        }
        if not kept:  # as before the first round
            yield from ["all checksums"] if numbers else []
            return
        for part, sql in BASE_PARTS.items():
            if not self._fits(sql, (), kept.get((None, part))):
                yield {"run": "the run's own row"}.get(part, part)
        gone = {round_ for round_, _ in kept if round_ is not None} - set(numbers)
        yield from (f"round {number}, which is missing" for number in sorted(gone))
        for number in numbers:
            parts = ROUND_PARTS if whole or number in numbers[-NEWEST:] else {*RESUMED_PARTS, *also}
            for part in (one for one in ROUND_PARTS if one in parts):
                if not self._fits(ROUND_PARTS[part], (number,), kept.get((number, part))):
                    yield f"round {number} itself" if part == "rounds" else f"{part} of round {number}"

    def _broken(self, *, whole: bool) -> list[str]:
        """Return the errors that SQLite's integrity check finds, including those in indices; see `damage`."""
        checks = [f"PRAGMA integrity_check({table})" for table in _LOOKED_UP]
        try:
            found = {
                str(row[0]).splitlines()[-1]: None
                for check in (["PRAGMA integrity_check"] if whole else checks)
                for row in self._db.rows(check)
            }
        except DataError as error:
            return [str(error)]
        return [text for text in found if text != "ok"]

    def _fits(self, sql: str, values: tuple[int, ...], kept: bytes | None) -> bool:
        try:
            return sha256_of(self._db.rows(sql, values)) == kept
        except DataError:  # a page or a text that SQLite cannot read
            return False


# Everything below runs inside one transaction of `PoolStore`.


def _write_round(db: Database, record: RoundRecord, committed_at: str) -> bool:
    """Write all data of a round; return whether it had a new seed.

    Raises:
        ValueError: the record contradicts itself or the stored data.
    """
    number = record.number
    timings = {name: value for name, value in record.metrics.items() if _is_timing(name)}
    metrics = {name: value for name, value in record.metrics.items() if name not in timings}
    row = {"number": number, "metrics": to_json(metrics), "state": to_json(record.state)}
    _insert(db, "rounds", {**row, "timings": to_json(timings), "committed_at": committed_at})
    trained_on = {sample.generation.id for sample in record.samples}
    new_seeds = [_write_seed(db, batch.context.seed) for batch in record.batches]
    for position, batch in enumerate(record.batches):
        _write_batch(db, record, batch, position=position, trained_on=trained_on)
    _write_groups(db, record)
    for position, sample in enumerate(record.samples):
        _require(db, "generation", sample.generation.id, needed_by="a simulator sample")
        where = {"round": number, "position": position, "generation_id": sample.generation.id}
        _insert(db, "simulator_samples", codec.SAMPLE.row(sample, **where))
    for position, task_id in enumerate(record.reminded):
        _insert(db, "reminders", {"round": number, "position": position, "task_id": task_id})
    for position, evaluation in enumerate(record.evaluations):
        _require(db, "task", evaluation.task_id, needed_by="an evaluation")
        _insert(db, "evaluations", codec.EVALUATION.row(evaluation, round=number, position=position))
    return any(new_seeds)


def _write_seed(db: Database, seed: Seed) -> bool:
    """Store a seed unless it is stored; return whether it was new."""
    return _insert_once(db, "seeds", codec.SEED.row(seed), extra={})


def _write_task(db: Database, task: Task, *, round_: int | None, surface: str | None) -> bool:
    """Store a task unless it is stored; return whether it was new. Held-out tasks have no round."""
    lineage, owner = task.lineage, f"task {task.id!r}"
    _require(db, "seed", lineage.seed_id, needed_by=owner)
    _require(db, "context", lineage.context_id, needed_by=owner)
    _require(db, "generation", lineage.generation_id, needed_by=owner)
    extra = {"round": round_, "surface": None if surface is None else to_text(surface)}
    return _insert_once(db, "tasks", codec.task_row(task), extra=extra)


def _is_timing(name: str) -> bool:
    """Return whether a metric is a wall-clock value, which differs between equal runs."""
    return name.startswith("time/") or name.endswith("_per_s")


def _write_batch(
    db: Database, record: RoundRecord, batch: TaskBatch, *, position: int, trained_on: set[str]
) -> None:
    context = batch.context
    if context.round != record.number:
        raise ValueError(f"context {context.id!r} is of round {context.round}, not {record.number}")
    _insert(db, "contexts", codec.CONTEXT.row(context, seed_id=context.seed.id))
    for proposal in batch.proposals:
        generation, outcome = proposal.generation, proposal.outcome
        if generation.context_id != context.id:
            raise ValueError(
                f"generation {generation.id!r} is of context {generation.context_id!r}, not {context.id!r}"
            )
        novelty = finite("novelty", proposal.novelty)
        _insert(db, "generations", codec.GENERATION.row(generation, novelty=novelty))
        if isinstance(outcome, Rejection):
            _insert(db, "rejections", codec.REJECTION.row(outcome, generation_id=generation.id))
            continue
        if outcome.lineage.generation_id != generation.id:
            raise ValueError(f"task {outcome.id!r} does not name its generation {generation.id!r}")
        _write_task(db, outcome, round_=record.number, surface=record.surfaces.get(outcome.id))
    rate = BatchRate(
        context_id=context.id,
        p_hat=batch.p_hat,
        env_reward=batch.env_reward,
        selected=any(proposal.generation.id in trained_on for proposal in batch.proposals),
    )
    _insert(db, "batches", codec.BATCH_RATE.row(rate, round=record.number, position=position))


def _write_groups(db: Database, record: RoundRecord) -> None:
    """Write the round's groups in order, then groups that only a batch contains."""
    groups = list(record.groups)
    places: dict[int, tuple[str, int]] = {}  # position of a group -> its batch, and its position in there
    for batch in record.batches:
        for batch_position, group in enumerate(batch.groups):
            position = _position(groups, group, taken=places)
            places[position] = (batch.context.id, batch_position)
    for position, group in enumerate(groups):
        task_id, place = group.task.id, {"round": record.number, "group_position": position}
        _write_task(db, group.task, round_=record.number, surface=record.surfaces.get(task_id))
        context_id, batch_position = places.get(position, (None, None))
        row = {"round": record.number, "position": position, "task_id": task_id, "agent": group.agent}
        _insert(db, "groups", {**row, "batch_context_id": context_id, "batch_position": batch_position})
        for trace in group.traces:
            if trace.task_id != task_id:
                raise ValueError(f"trace {trace.id!r} is of task {trace.task_id!r}, not {task_id!r}")
            _insert(db, "traces", codec.TRACE.row(trace, **place))


def _position(groups: list[Group], wanted: Group, *, taken: Mapping[int, object]) -> int:
    """Return the position of a batch's group among all groups; append the group if it is missing."""
    for position, group in enumerate(groups):
        same = group is wanted or (group.task.id == wanted.task.id and group == wanted)
        if same and position not in taken:
            return position
    groups.append(wanted)
    return len(groups) - 1


def _insert(db: Database, table: str, row: Row) -> None:
    db.run(_insert_sql(table, tuple(row)), tuple(row.values()))


def _insert_once(db: Database, table: str, row: Row, *, extra: Row) -> bool:
    """Insert a row with extra columns; return whether it was new. A stored row with this id must be equal."""
    columns = (*row, *extra)
    values = (*row.values(), *extra.values())
    if db.run(_insert_sql(table, columns) + " ON CONFLICT (id) DO NOTHING", values):
        return True
    return not _is_stored(db, table, row)


def _is_stored(db: Database, table: str, row: Row) -> bool:
    """Return whether there is a row with this id.

    Raises:
        ValueError: it has other content.
    """
    sql = f"SELECT {', '.join(row)} FROM {table} WHERE id = ?"  # noqa: S608 - names from this package only
    found = db.rows(sql, (row["id"],))
    differing = [column for column, value in row.items() if found and found[0][column] != value]
    if differing:
        raise ValueError(f"{table[:-1]} {row['id']!r} is stored with another {' and '.join(differing)}")
    return bool(found)


def _insert_sql(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - as above


def _require(db: Database, kind: str, id_: SqlValue, *, needed_by: str) -> None:
    """Check a foreign key, because SQLite's error does not say which one failed."""
    sql = f"SELECT 1 FROM {kind}s WHERE id = ?"  # noqa: S608 - as above
    if id_ is not None and not db.rows(sql, (id_,)):
        raise ValueError(f"{needed_by} needs {kind} {id_!r}, which the store does not hold")
