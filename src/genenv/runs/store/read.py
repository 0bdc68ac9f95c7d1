"""Reading nouns back from the store; each function is one question."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter

from genenv.runs.store import rows
from genenv.runs.store.database import Database
from genenv.runs.store.encode import SqlValue
from genenv.runs.store.records import BatchRate, Evaluation, Provenance
from genenv.types import (
    Context,
    Group,
    Origin,
    Proposal,
    RejectReason,
    Seed,
    SimulatorSample,
    Task,
    TaskBatch,
    Trace,
)

_COMPARED = (
    "SELECT number, metrics, state FROM rounds ORDER BY number",
    "SELECT id, domain, spec, skills FROM seeds ORDER BY id",
    "SELECT id, round, seed_id, messages FROM contexts ORDER BY id",
    """SELECT id, context_id, prompt_ids, token_ids, logprobs, text, finished, novelty
       FROM generations ORDER BY id""",
    "SELECT generation_id, reason, explanation FROM rejections ORDER BY generation_id",
    """SELECT id, round, domain, skills, messages, spec, payload, oracle, origin, seed_id, context_id,
       generation_id, surface FROM tasks ORDER BY id""",
    "SELECT context_id, round, position, p_hat, env_reward, selected FROM batches ORDER BY context_id",
    "SELECT round, position, task_id, batch_context_id, batch_position FROM groups ORDER BY round, position",
    """SELECT id, round, group_position, task_id, token_ids, sampled, logprobs, prompt_tokens, messages,
       reward, success, explanation, stop_reason, version FROM traces ORDER BY id""",
    "SELECT round, position, generation_id, weight FROM simulator_samples ORDER BY round, position",
    """SELECT round, position, task_id, success, reward, replies, explanation
       FROM evaluations ORDER BY round, position""",
    "SELECT round, position, task_id FROM reminders ORDER BY round, position",
)


def round_row(db: Database, round_: int) -> sqlite3.Row:
    """The row of a round.

    Raises:
        KeyError: it is not committed.
    """
    found = db.rows("SELECT metrics, timings, state FROM rounds WHERE number = ?", (round_,))
    if not found:
        raise KeyError(f"round {round_} is not in {db.path}")
    return found[0]


def tasks(db: Database, *, origin: Origin | None, rounds: range | None) -> tuple[Task, ...]:
    """Tasks in the order in which they came, of an origin, first stored in some rounds."""
    wanted: dict[str, SqlValue] = {}  # only conditions that are asked for, so that an index serves them
    if origin is not None:
        wanted["origin = ?"] = origin.value
    if rounds is not None:
        wanted |= {"round >= ?": rounds.start, "round < ?": rounds.stop}
    where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
    found = db.rows(f"SELECT * FROM tasks {where} ORDER BY n", tuple(wanted.values()))  # noqa: S608 - constants
    return tuple(rows.task_of(row) for row in found)


def task(db: Database, task_id: str) -> Task:
    """One task.

    Raises:
        KeyError: the store does not hold it.
    """
    found = db.rows("SELECT * FROM tasks WHERE id = ?", (task_id,))
    if not found:
        raise KeyError(f"task {task_id!r} is not in {db.path}")
    return rows.task_of(found[0])


def groups(db: Database, round_: int) -> tuple[Group, ...]:
    """All groups of a round in order."""
    traces: dict[int, list[Trace]] = {}
    for row in db.rows("SELECT * FROM traces WHERE round = ? ORDER BY n", (round_,)):
        traces.setdefault(row["group_position"], []).append(rows.TRACE.of(row))
    found = db.rows(
        """SELECT tasks.*, groups.position FROM groups JOIN tasks ON tasks.id = groups.task_id
           WHERE groups.round = ? ORDER BY groups.position""",
        (round_,),
    )
    return tuple(
        Group(task=rows.task_of(row), traces=tuple(traces.get(row["position"], ()))) for row in found
    )


def batches(db: Database, round_: int) -> tuple[TaskBatch, ...]:
    """All batches of a round in order, with their proposals and groups."""
    all_groups = groups(db, round_)
    members: dict[str, list[Group]] = {}
    for row in db.rows(
        """SELECT position, batch_context_id FROM groups
           WHERE round = ? AND batch_context_id IS NOT NULL ORDER BY batch_position""",
        (round_,),
    ):
        members.setdefault(row["batch_context_id"], []).append(all_groups[int(row["position"])])
    found = db.rows("SELECT * FROM batches WHERE round = ? ORDER BY position", (round_,))
    return tuple(
        TaskBatch(
            context=_context(db, row["context_id"]),
            proposals=_proposals(db, row["context_id"]),
            groups=tuple(members.get(row["context_id"], ())),
            p_hat=row["p_hat"],
            env_reward=row["env_reward"],
        )
        for row in found
    )


def batch_rates(db: Database, round_: int) -> tuple[BatchRate, ...]:
    """How each batch of a round did."""
    found = db.rows("SELECT * FROM batches WHERE round = ? ORDER BY position", (round_,))
    return tuple(rows.BATCH_RATE.of(row) for row in found)


def samples(db: Database, round_: int) -> tuple[SimulatorSample, ...]:
    """What the simulator learned from in a round."""
    found = db.rows(
        """SELECT generations.*, weight FROM simulator_samples
           JOIN generations ON generations.id = simulator_samples.generation_id
           WHERE round = ? ORDER BY position""",
        (round_,),
    )
    return tuple(rows.SAMPLE.of(row, generation=rows.GENERATION.of(row)) for row in found)


def rejections(db: Database, round_: int) -> Counter[RejectReason]:
    """How many generations of a round were rejected for each reason."""
    found = db.rows(
        """SELECT reason, count(*) AS number FROM rejections
           JOIN generations ON generations.id = rejections.generation_id
           JOIN contexts ON contexts.id = generations.context_id WHERE round = ? GROUP BY reason""",
        (round_,),
    )
    return Counter({RejectReason(row["reason"]): row["number"] for row in found})


def generation_count(db: Database, round_: int) -> int:
    """How many generations the simulator wrote in a round."""
    sql = """SELECT count(*) AS number FROM generations
             JOIN contexts ON contexts.id = generations.context_id WHERE round = ?"""
    return db.rows(sql, (round_,))[0]["number"]


def evaluations(db: Database, round_: int) -> tuple[Evaluation, ...]:
    """The held-out results of a round."""
    found = db.rows("SELECT * FROM evaluations WHERE round = ? ORDER BY position", (round_,))
    return tuple(rows.EVALUATION.of(row) for row in found)


def provenance(db: Database, task_id: str) -> Provenance:
    """From a task back to its seed, and on to its attempts.

    Raises:
        KeyError: the store does not hold the task.
    """
    found = task(db, task_id)
    lineage = found.lineage
    generation = None
    if lineage.generation_id is not None:
        sql = "SELECT * FROM generations WHERE id = ?"
        generation = rows.GENERATION.of(db.rows(sql, (lineage.generation_id,))[0])
    context = None if lineage.context_id is None else _context(db, lineage.context_id)
    seed = _seed(db, lineage.seed_id) if lineage.seed_id is not None else context and context.seed
    traces = db.rows("SELECT * FROM traces WHERE task_id = ? ORDER BY n", (task_id,))
    return Provenance(
        seed=seed,
        context=context,
        generation=generation,
        task=found,
        traces=tuple(rows.TRACE.of(row) for row in traces),
    )


def digest(db: Database) -> str:
    """SHA-256 of everything in the store but wall-clock values and the order of insertion."""
    sha = hashlib.sha256()
    for sql in _COMPARED:
        for row in db.each(sql):
            sha.update(repr(tuple(row)).encode())
    return sha.hexdigest()


def _seed(db: Database, seed_id: str) -> Seed:
    return rows.SEED.of(db.rows("SELECT * FROM seeds WHERE id = ?", (seed_id,))[0])


def _context(db: Database, context_id: str) -> Context:
    row = db.rows("SELECT * FROM contexts WHERE id = ?", (context_id,))[0]
    return rows.CONTEXT.of(row, seed=_seed(db, row["seed_id"]))


def _proposals(db: Database, context_id: str) -> tuple[Proposal, ...]:
    accepted = {
        row["generation_id"]: rows.task_of(row)
        for row in db.rows("SELECT * FROM tasks WHERE context_id = ? ORDER BY n", (context_id,))
    }
    rejected = {
        row["generation_id"]: rows.REJECTION.of(row)
        for row in db.rows(
            """SELECT rejections.* FROM rejections
               JOIN generations ON generations.id = rejections.generation_id WHERE context_id = ?""",
            (context_id,),
        )
    }
    outcomes = accepted | rejected
    return tuple(
        Proposal(generation=rows.GENERATION.of(row), outcome=outcomes[row["id"]], novelty=row["novelty"])
        for row in db.rows("SELECT * FROM generations WHERE context_id = ? ORDER BY n", (context_id,))
    )
