"""Writing a round into the store. Everything here runs inside one transaction of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.runs.store import rows
from genenv.runs.store.database import Database
from genenv.runs.store.encode import SqlValue, finite, to_json, to_text
from genenv.runs.store.records import BatchRate, RoundRecord
from genenv.types import Group, Rejection, Seed, Task, TaskBatch


def write_round(db: Database, record: RoundRecord, committed_at: str) -> bool:
    """Write everything of a round; returns whether a seed among it is new.

    Raises:
        ValueError: the record contradicts itself or what is stored.
    """
    timings = {name: value for name, value in record.metrics.items() if _is_timing(name)}
    metrics = {name: value for name, value in record.metrics.items() if name not in timings}
    row = {
        "number": record.number,
        "metrics": to_json(metrics),
        "state": to_json(record.state),
        "timings": to_json(timings),
        "committed_at": committed_at,
    }
    _insert(db, "rounds", row)
    trained_on = {sample.generation.id for sample in record.samples}
    new_seeds = [write_seed(db, batch.context.seed) for batch in record.batches]
    for position, batch in enumerate(record.batches):
        _write_batch(db, record, batch, position=position, trained_on=trained_on)
    _write_groups(db, record)
    for position, sample in enumerate(record.samples):
        _require(db, "generation", sample.generation.id, needed_by="a simulator sample")
        where = {"round": record.number, "position": position, "generation_id": sample.generation.id}
        _insert(db, "simulator_samples", rows.SAMPLE.row(sample, **where))
    for position, task_id in enumerate(record.reminded):
        _insert(db, "reminders", {"round": record.number, "position": position, "task_id": task_id})
    for position, evaluation in enumerate(record.evaluations):
        _require(db, "task", evaluation.task_id, needed_by="an evaluation")
        _insert(db, "evaluations", rows.EVALUATION.row(evaluation, round=record.number, position=position))
    return any(new_seeds)


def write_seed(db: Database, seed: Seed) -> bool:
    """Store a seed unless it is there; returns whether it was new.

    Raises:
        ValueError: its id stands for something else.
    """
    return _insert_once(db, "seeds", rows.SEED.row(seed), extra={})


def write_task(db: Database, task: Task, *, round_: int | None, surface: str | None) -> bool:
    """Store a task unless it is there; `round_` is None for held-out tasks, which no round brought in.

    Returns:
        Whether it was new.

    Raises:
        ValueError: its id stands for something else, or its lineage is not stored.
    """
    lineage = task.lineage
    owner = f"task {task.id!r}"
    _require(db, "seed", lineage.seed_id, needed_by=owner)
    _require(db, "context", lineage.context_id, needed_by=owner)
    _require(db, "generation", lineage.generation_id, needed_by=owner)
    extra = {"round": round_, "surface": None if surface is None else to_text(surface)}
    return _insert_once(db, "tasks", rows.task_row(task), extra=extra)


def _is_timing(name: str) -> bool:
    """Whether a metric is a wall-clock value, which differs between two equal runs."""
    return name.startswith("time/") or name.endswith("_per_s")


def _write_batch(
    db: Database, record: RoundRecord, batch: TaskBatch, *, position: int, trained_on: set[str]
) -> None:
    context = batch.context
    if context.round != record.number:
        raise ValueError(f"context {context.id!r} is of round {context.round}, not {record.number}")
    _insert(db, "contexts", rows.CONTEXT.row(context, seed_id=context.seed.id))
    for proposal in batch.proposals:
        generation, outcome = proposal.generation, proposal.outcome
        if generation.context_id != context.id:
            raise ValueError(
                f"generation {generation.id!r} is of context {generation.context_id!r}, not {context.id!r}"
            )
        novelty = finite(proposal.novelty, "novelty")
        _insert(db, "generations", rows.GENERATION.row(generation, novelty=novelty))
        if isinstance(outcome, Rejection):
            _insert(db, "rejections", rows.REJECTION.row(outcome, generation_id=generation.id))
        else:
            if outcome.lineage.generation_id != generation.id:
                raise ValueError(f"task {outcome.id!r} does not name its generation {generation.id!r}")
            surface = record.surfaces.get(outcome.id)
            write_task(db, outcome, round_=record.number, surface=surface)
    rate = BatchRate(
        context_id=context.id,
        p_hat=batch.p_hat,
        env_reward=batch.env_reward,
        selected=any(proposal.generation.id in trained_on for proposal in batch.proposals),
    )
    _insert(db, "batches", rows.BATCH_RATE.row(rate, round=record.number, position=position))


def _write_groups(db: Database, record: RoundRecord) -> None:
    """The round's groups in order; then those that only a batch knows."""
    groups = list(record.groups)
    places: dict[int, tuple[str, int]] = {}  # position of a group -> its batch, and its position in there
    for batch in record.batches:
        for batch_position, group in enumerate(batch.groups):
            position = _position(groups, group, taken=places)
            places[position] = (batch.context.id, batch_position)
    for position, group in enumerate(groups):
        write_task(db, group.task, round_=record.number, surface=record.surfaces.get(group.task.id))
        context_id, batch_position = places.get(position, (None, None))
        row = {
            "round": record.number,
            "position": position,
            "task_id": group.task.id,
            "batch_context_id": context_id,
            "batch_position": batch_position,
        }
        _insert(db, "groups", row)
        for trace in group.traces:
            if trace.task_id != group.task.id:
                raise ValueError(f"trace {trace.id!r} is of task {trace.task_id!r}, not {group.task.id!r}")
            _insert(db, "traces", rows.TRACE.row(trace, round=record.number, group_position=position))


def _position(groups: list[Group], wanted: Group, *, taken: Mapping[int, object]) -> int:
    """Where a batch's group stands among all groups; appended when it is not there."""
    for position, group in enumerate(groups):
        same = group is wanted or (group.task.id == wanted.task.id and group == wanted)
        if same and position not in taken:
            return position
    groups.append(wanted)
    return len(groups) - 1


def _insert(db: Database, table: str, row: rows.Row) -> None:
    db.run(_insert_sql(table, tuple(row)), tuple(row.values()))


def _insert_once(db: Database, table: str, row: rows.Row, *, extra: rows.Row) -> bool:
    """Insert a row and its extra columns unless the id is there; then the row must be the same."""
    columns = (*row, *extra)
    values = (*row.values(), *extra.values())
    if db.run(_insert_sql(table, columns) + " ON CONFLICT (id) DO NOTHING", values):
        return True
    sql = f"SELECT {', '.join(row)} FROM {table} WHERE id = ?"  # noqa: S608 - names from this package only
    stored = db.rows(sql, (row["id"],))[0]
    differing = [column for column, value in row.items() if stored[column] != value]
    if differing:
        raise ValueError(f"{table[:-1]} {row['id']!r} is stored with another {' and '.join(differing)}")
    return False


def _insert_sql(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - as above


_EXISTS: Mapping[str, str] = {
    "seed": "SELECT 1 FROM seeds WHERE id = ?",
    "context": "SELECT 1 FROM contexts WHERE id = ?",
    "generation": "SELECT 1 FROM generations WHERE id = ?",
    "task": "SELECT 1 FROM tasks WHERE id = ?",
}


def _require(db: Database, kind: str, id_: SqlValue, *, needed_by: str) -> None:
    """A foreign key's own error does not say which one it was."""
    if id_ is not None and not db.rows(_EXISTS[kind], (id_,)):
        raise ValueError(f"{needed_by} needs {kind} {id_!r}, which the store does not hold")
