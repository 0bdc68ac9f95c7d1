"""Reading nouns back from the store: what a round holds, what a task is and where it came from."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TypeVar, cast

from genenv.runs.store import rows
from genenv.runs.store.database import Database
from genenv.runs.store.encode import SqlValue, object_from_json
from genenv.runs.store.records import Evaluation, Provenance
from genenv.types import (
    Context,
    Group,
    JsonObject,
    Origin,
    Proposal,
    Rejection,
    Seed,
    SimulatorSample,
    Task,
    TaskBatch,
    Trace,
)

FoundT = TypeVar("FoundT")


def metrics_of(row: sqlite3.Row) -> Mapping[str, float]:
    """The metrics of a row of `rounds`, timings included."""
    merged = {**object_from_json(row["metrics"]), **object_from_json(row["timings"])}
    return cast("Mapping[str, float]", merged)


class NounReader:
    """Each method is one question."""

    def __init__(self, database: Database) -> None:
        """Read from a database that is open."""
        self._db = database

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
        found = self._db.read(metrics_of, "SELECT metrics, timings FROM rounds WHERE number = ?", (round_,))
        return self._only(found, f"round {round_}")

    def state(self, round_: int) -> JsonObject:
        """The curriculum's state after a round.

        Raises:
            KeyError: the round is not committed.
        """
        sql = "SELECT state FROM rounds WHERE number = ?"
        found = self._db.read(lambda row: object_from_json(row["state"]), sql, (round_,))
        return self._only(found, f"round {round_}")

    # what a round holds; empty for a round that is not committed

    def batches(self, round_: int) -> tuple[TaskBatch, ...]:
        """The batches of a round in order, with proposals (rejections included) and groups."""
        groups = self.groups(round_)
        members: dict[str, list[Group]] = {}
        for row in self._db.rows(
            """SELECT position, batch_context_id FROM groups
               WHERE round = ? AND batch_context_id IS NOT NULL ORDER BY batch_position""",
            (round_,),
        ):
            members.setdefault(row["batch_context_id"], []).append(groups[int(row["position"])])
        found = self._db.rows("SELECT * FROM batches WHERE round = ? ORDER BY position", (round_,))
        return tuple(
            TaskBatch(
                context=self._context(row["context_id"]),
                proposals=self._proposals(row["context_id"]),
                groups=tuple(members.get(row["context_id"], ())),
                p_hat=row["p_hat"],
                env_reward=row["env_reward"],
            )
            for row in found
        )

    def groups(self, round_: int) -> tuple[Group, ...]:
        """All groups of a round in order: the batches', base tasks and replayed tasks."""
        traces: dict[int, list[Trace]] = {}
        sql = "SELECT * FROM traces WHERE round = ? ORDER BY n"
        for position, trace in self._db.read(_placed_trace, sql, (round_,)):
            traces.setdefault(position, []).append(trace)

        def group_of(row: sqlite3.Row) -> Group:
            return Group(task=rows.task_of(row), traces=tuple(traces.get(row["position"], ())))

        return tuple(
            self._db.read(
                group_of,
                """SELECT tasks.*, groups.position FROM groups JOIN tasks ON tasks.id = groups.task_id
                   WHERE groups.round = ? ORDER BY groups.position""",
                (round_,),
            )
        )

    def samples(self, round_: int) -> tuple[SimulatorSample, ...]:
        """The weighted generations that the simulator learned from in a round."""
        return tuple(
            self._db.read(
                lambda row: rows.SAMPLE.of(row, generation=rows.GENERATION.of(row)),
                """SELECT generations.*, weight FROM simulator_samples
                   JOIN generations ON generations.id = simulator_samples.generation_id
                   WHERE round = ? ORDER BY position""",
                (round_,),
            )
        )

    def evaluations(self, round_: int) -> tuple[Evaluation, ...]:
        """The held-out results of a round."""
        sql = "SELECT * FROM evaluations WHERE round = ? ORDER BY position"
        return tuple(self._db.read(rows.EVALUATION.of, sql, (round_,)))

    # the whole pool

    def tasks(self, *, origin: Origin | None = None, rounds: range | None = None) -> tuple[Task, ...]:
        """Tasks in the order in which they came.

        Args:
            origin: only tasks from there.
            rounds: only tasks that first came in one of these consecutive rounds; held-out ones came in none.
        """
        wanted: dict[str, SqlValue] = {}  # only conditions that are asked for, so that an index serves them
        if origin is not None:
            wanted["origin = ?"] = origin.value
        if rounds is not None:
            wanted |= {"round >= ?": rounds.start, "round < ?": rounds.stop}
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        sql = f"SELECT * FROM tasks {where} ORDER BY n"  # noqa: S608 - constants
        return tuple(self._db.read(rows.task_of, sql, tuple(wanted.values())))

    def task(self, task_id: str) -> Task:
        """One task.

        Raises:
            KeyError: the store does not hold it.
        """
        found = self._db.read(rows.task_of, "SELECT * FROM tasks WHERE id = ?", (task_id,))
        return self._only(found, f"task {task_id!r}")

    def lineage(self, task_id: str) -> Provenance:
        """From a task back to its seed, and on to its attempts.

        Raises:
            KeyError: the store does not hold the task.
        """
        task = self.task(task_id)
        lineage, generation = task.lineage, None
        if lineage.generation_id is not None:
            sql = "SELECT * FROM generations WHERE id = ?"
            generation = self._db.read(rows.GENERATION.of, sql, (lineage.generation_id,))[0]
        context = None if lineage.context_id is None else self._context(lineage.context_id)
        seed = self._seed(lineage.seed_id) if lineage.seed_id is not None else context and context.seed
        sql = "SELECT * FROM traces WHERE task_id = ? ORDER BY n"
        traces = self._db.read(rows.TRACE.of, sql, (task_id,))
        return Provenance(seed=seed, context=context, generation=generation, task=task, traces=tuple(traces))

    def _only(self, found: list[FoundT], name: str) -> FoundT:
        if not found:
            raise KeyError(f"{name} is not in {self._db.path}")
        return found[0]

    def _seed(self, seed_id: str) -> Seed:
        return self._db.read(rows.SEED.of, "SELECT * FROM seeds WHERE id = ?", (seed_id,))[0]

    def _context(self, context_id: str) -> Context:
        def of(row: sqlite3.Row) -> Context:
            return rows.CONTEXT.of(row, seed=self._seed(row["seed_id"]))

        return self._db.read(of, "SELECT * FROM contexts WHERE id = ?", (context_id,))[0]

    def _proposals(self, context_id: str) -> tuple[Proposal, ...]:
        accepted = self._db.read(
            lambda row: (row["generation_id"], rows.task_of(row)),
            "SELECT * FROM tasks WHERE context_id = ? ORDER BY n",
            (context_id,),
        )
        rejected = self._db.read(
            lambda row: (row["generation_id"], rows.REJECTION.of(row)),
            """SELECT rejections.* FROM rejections
               JOIN generations ON generations.id = rejections.generation_id WHERE context_id = ?""",
            (context_id,),
        )
        outcomes: dict[str, Task | Rejection] = {**dict(accepted), **dict(rejected)}

        def proposal_of(row: sqlite3.Row) -> Proposal:
            generation = rows.GENERATION.of(row)
            return Proposal(generation=generation, outcome=outcomes[generation.id], novelty=row["novelty"])

        sql = "SELECT * FROM generations WHERE context_id = ? ORDER BY n"
        return tuple(self._db.read(proposal_of, sql, (context_id,)))


def _placed_trace(row: sqlite3.Row) -> tuple[int, Trace]:
    """A trace, and the place of its group in the round."""
    return row["group_position"], rows.TRACE.of(row)
