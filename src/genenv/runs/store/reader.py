"""Reads a store: the contents of a round, tasks, and summaries of all rounds."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from genenv.errors import DataError
from genenv.runs.store import codec
from genenv.runs.store.codec import SqlValue, from_text, messages_from_json, object_from_json
from genenv.runs.store.database import MEND, Database
from genenv.runs.store.records import Evaluation, RoundOverview
from genenv.types import (
    Context,
    Group,
    JsonObject,
    Message,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    SimulatorSample,
    Task,
    TaskBatch,
    seat_of,
)

FoundT = TypeVar("FoundT")

_COMPARED = {
    "rounds": "number",
    **dict.fromkeys(("seeds", "contexts", "generations"), "id"),
    "rejections": "generation_id",
    "tasks": "id",
    "batches": "context_id",
    "groups": "round, position",
    "traces": "id",
    **dict.fromkeys(("simulator_samples", "evaluations", "reminders"), "round, position"),
}
"""Tables whose rows are equal for equal runs, with the order in which rows are compared."""
_NOT_COMPARED = ("n", "timings", "committed_at")
"""Columns that are not compared: wall-clock values, and the order of insertion."""


LEADING_AGENT = "SELECT agent FROM evaluations ORDER BY round, position LIMIT 1"
"""The agent at the leading seat, in a run with seats."""
_ONLY_SCORED = "generation_id IN (SELECT id FROM generations WHERE scored_only)"
"""Condition of a task whose rollouts only score it (`Generation.scored_only`)."""


def read_run_id(path: Path) -> str:
    """Return the id of the run that a store belongs to, without checking the file.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    with Database.peek(path) as db:
        return StoreReader(db).run_id()


def read_last_round(path: Path) -> int | None:
    """Return the last committed round of a store; None before the first, and for a file without tables.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    with Database.peek(path) as db:
        return None if db.is_empty else StoreReader(db).last_round()


def first_messages(path: Path, most: int) -> list[tuple[Message, ...]]:
    """Return the first messages of some tasks, as the agent sees them; held-out tasks come first.

    Args:
        path: the store.
        most: maximum number of tasks.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    sql = "SELECT messages FROM tasks ORDER BY round IS NOT NULL, n LIMIT ?"
    with Database.peek(path) as db:
        return db.read(lambda row: messages_from_json(row[0]), sql, (most,))


def last_measured(path: Path, metric: str, round_: int) -> tuple[int, float] | None:
    """Return (round, value) of a metric in the last round up to `round_` that has it; None if none has.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    sql = "SELECT number, metrics FROM rounds WHERE number <= ? ORDER BY number DESC"
    with Database.peek(path) as db:
        rounds = db.read(lambda row: (int(row[0]), object_from_json(row[1])), sql, (round_,))
    found = ((number, metrics.get(metric)) for number, metrics in rounds)
    return next(((number, float(value)) for number, value in found if isinstance(value, int | float)), None)


VERDICT = "stop_reason NOT IN ('error', 'timeout')"
"""The condition that a rollout has a verdict."""


def leading_seat(db: Database) -> str:
    """Return the seat whose success counts as that of a task; empty without seats, or before any rollout.

    The rollouts of the leading seat come first, and so do its results on held-out tasks.
    """
    found = db.rows("SELECT id FROM traces ORDER BY n LIMIT 1")
    return seat_of(str(found[0]["id"])) if found else ""


def rollouts_that_count(db: Database) -> str:
    """Return the condition that a rollout counts: with seats, if it is one of the leading seat."""
    seat = leading_seat(db)
    if not seat:
        return VERDICT
    end = f"/{seat}@"  # before 16 digits, as `seat_of` reads it
    return f"{VERDICT} AND substr(traces.id, {-16 - len(end)}, {len(end)}) = '{end}'"


class StoreReader:
    """Queries of a store. `PoolStore` adds writing."""

    def __init__(self, database: Database) -> None:
        """Read from an open database."""
        self._db = database

    def run_id(self) -> str:
        """Return the random id of the run that the store belongs to. Its checkpoints contain the same id.

        Raises:
            DataError: the table does not have exactly one row.
        """
        found = self._db.rows("SELECT id FROM run")
        if len(found) != 1:
            raise DataError(f"{self._db.path} is damaged (it does not say which run it is of); {MEND}")
        return str(found[0]["id"])

    # rounds

    def last_round(self) -> int | None:
        """Return the last committed round; None before the first."""
        return self._db.rows("SELECT max(number) AS last FROM rounds")[0]["last"]

    def rounds(self) -> tuple[int, ...]:
        """Return all committed rounds in order."""
        return tuple(row["number"] for row in self._db.rows("SELECT number FROM rounds ORDER BY number"))

    def metrics(self, round_: int) -> Mapping[str, float]:
        """Return the metrics of a round, including timings.

        Raises:
            KeyError: the round is not committed.
        """
        found = self._db.read(_metrics_of, "SELECT metrics, timings FROM rounds WHERE number = ?", (round_,))
        return self._only(found, f"round {round_}")

    def state(self, round_: int) -> JsonObject:
        """Return the curriculum's state after a round.

        Raises:
            KeyError: the round is not committed.
        """
        sql = "SELECT state FROM rounds WHERE number = ?"
        found = self._db.read(lambda row: object_from_json(row["state"]), sql, (round_,))
        return self._only(found, f"round {round_}")

    def metrics_by_round(self) -> Mapping[int, Mapping[str, float]]:
        """Return the metrics of every round in order, including timings."""
        sql = "SELECT number, metrics, timings FROM rounds ORDER BY number"
        return dict(self._db.read(lambda row: (row["number"], _metrics_of(row)), sql))

    # the contents of a round; empty if it is not committed

    def batches(self, round_: int) -> tuple[TaskBatch, ...]:
        """Return the batches of a round in order, with proposals (including rejections) and groups."""
        groups, members = self.groups(round_), defaultdict[str, list[Group]](list)
        sql = """SELECT position, batch_context_id FROM groups
                 WHERE round = ? AND batch_context_id IS NOT NULL ORDER BY batch_position"""
        for row in self._db.rows(sql, (round_,)):
            members[row["batch_context_id"]].append(groups[int(row["position"])])
        found = self._db.rows("SELECT * FROM batches WHERE round = ? ORDER BY position", (round_,))
        return tuple(
            TaskBatch(
                context=self._context(row["context_id"]),
                proposals=self._proposals(row["context_id"]),
                groups=tuple(members[row["context_id"]]),
                p_hat=row["p_hat"],
                env_reward=row["env_reward"],
            )
            for row in found
        )

    def groups(self, round_: int) -> tuple[Group, ...]:
        """Return all groups of a round in order: those of batches, of base tasks and of replayed tasks."""
        traces = self._grouped(
            lambda row: (row["group_position"], codec.TRACE.of(row)),
            "SELECT * FROM traces WHERE round = ? ORDER BY n",
            (round_,),
        )
        found = self._db.read(
            lambda row: Group(
                task=codec.task_of(row), traces=tuple(traces[row["position"]]), agent=row["agent"]
            ),
            """SELECT tasks.*, groups.position, groups.agent
               FROM groups JOIN tasks ON tasks.id = groups.task_id
               WHERE groups.round = ? ORDER BY groups.position""",
            (round_,),
        )
        return tuple(found)

    def samples(self, round_: int) -> tuple[SimulatorSample, ...]:
        """Return the weighted generations that the simulator trained on in a round."""
        found = self._db.read(
            lambda row: codec.SAMPLE.of(row, generation=codec.GENERATION.of(row)),
            """SELECT generations.*, weight FROM simulator_samples
               JOIN generations ON generations.id = simulator_samples.generation_id
               WHERE round = ? ORDER BY position""",
            (round_,),
        )
        return tuple(found)

    def evaluations(self, round_: int) -> tuple[Evaluation, ...]:
        """Return the held-out results of a round."""
        sql = "SELECT * FROM evaluations WHERE round = ? ORDER BY position"
        return tuple(self._db.read(codec.EVALUATION.of, sql, (round_,)))

    # tasks

    def tasks(self, *, origin: Origin | None = None, rounds: range | None = None) -> tuple[Task, ...]:
        """Return tasks in the order in which they were stored.

        Args:
            origin: only tasks of this origin.
            rounds: only tasks stored in one of these consecutive rounds. Held-out tasks belong to no round.
        """
        wanted: dict[str, SqlValue] = {}  # only the requested conditions, so that an index is used
        if origin is not None:
            wanted["origin = ?"] = origin.value
        if rounds is not None:
            wanted |= {"round >= ?": rounds.start, "round < ?": rounds.stop}
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        sql = f"SELECT * FROM tasks {where} ORDER BY n"  # noqa: S608 - constants
        return tuple(self._db.read(codec.task_of, sql, tuple(wanted.values())))

    def task(self, task_id: str) -> Task:
        """Return one task.

        Raises:
            KeyError: the store does not have it.
        """
        found = self._db.read(codec.task_of, "SELECT * FROM tasks WHERE id = ?", (task_id,))
        return self._only(found, f"task {task_id!r}")

    def surfaces(self) -> Iterator[tuple[str, str]]:
        """Yield id and surface (the text for novelty) of each generated task that has one, oldest first."""
        sql = "SELECT id, surface FROM tasks WHERE origin = ? AND surface IS NOT NULL ORDER BY n"
        with self._db.decoding():
            for row in self._db.each(sql, (Origin.GENERATED.value,)):
                yield row["id"], from_text(row["surface"])

    def task_count(self, origin: Origin) -> int:
        """Return the number of tasks of an origin, without reading them."""
        return self._db.rows("SELECT count(*) FROM tasks WHERE origin = ?", (origin.value,))[0][0]

    def last_seen(self, *, since: int = 0) -> Mapping[str, int]:
        """Return, by task id, the last round in which it was rolled out or its demonstration trained on.

        Tasks that are only scored are left out, as no agent trains on them.

        Args:
            since: the first round that counts.
        """
        sql = f"""SELECT task_id, max(round) FROM (
                      SELECT task_id, round FROM groups UNION ALL SELECT task_id, round FROM reminders
                  ) WHERE round >= ? AND task_id NOT IN (
                      SELECT id FROM tasks WHERE {_ONLY_SCORED}
                  ) GROUP BY task_id"""  # noqa: S608 - a constant
        return {row[0]: row[1] for row in self._db.rows(sql, (since,))}

    def valid_tasks(self, *, since: int = 0) -> tuple[str, ...]:
        """Return ids of the generated tasks with a readable trace (parsed, executed and graded): D_train.

        Tasks that are only scored are left out.

        Args:
            since: the first round whose tasks count.
        """
        sql = f"""SELECT id FROM tasks WHERE origin = ? AND round >= ?
                  AND id IN (SELECT task_id FROM traces WHERE readable)
                  AND (generation_id IS NULL OR NOT {_ONLY_SCORED}) ORDER BY n"""  # noqa: S608 - a constant
        return tuple(row["id"] for row in self._db.rows(sql, (Origin.GENERATED.value, since)))

    # all rounds together

    def overview(self) -> tuple[RoundOverview, ...]:
        """Return a summary of every round, in order, without reading texts and tokens."""
        # if a task was evaluated before and after a round, only the latter counts
        whose = f"WHERE agent = ({LEADING_AGENT})" if leading_seat(self._db) else ""
        sql = f"""SELECT round, avg(success) AS rate, count(DISTINCT task_id) AS tasks FROM evaluations
                  WHERE (round, position) IN
                     (SELECT round, max(position) FROM evaluations {whose} GROUP BY round, agent, task_id)
                  GROUP BY round"""  # noqa: S608 - a constant
        held_out = {row["round"]: (row["rate"] * row["tasks"], row["tasks"]) for row in self._db.rows(sql)}
        batches = self._grouped(
            lambda row: (row["round"], codec.BATCH_RATE.of(row)),
            "SELECT * FROM batches ORDER BY round, position",
        )
        skills = self._grouped(
            lambda row: (row["round"], frozenset(codec.strings_from_json(row["skills"]))),
            "SELECT round, skills FROM tasks WHERE origin = ? AND round IS NOT NULL ORDER BY n",
            (Origin.GENERATED.value,),
        )
        generated = self._grouped(
            lambda row: (row[0], int(row[1])),
            """SELECT round, count(*) FROM generations
               JOIN contexts ON contexts.id = generations.context_id GROUP BY round""",
        )
        rejected = self._grouped(
            lambda row: (row["round"], (RejectReason(row["reason"]), int(row["number"]))),
            """SELECT round, reason, count(*) AS number FROM rejections
               JOIN generations ON generations.id = rejections.generation_id
               JOIN contexts ON contexts.id = generations.context_id GROUP BY round, reason""",
        )
        return tuple(
            RoundOverview(
                number=number,
                metrics=metrics,
                batches=tuple(batches[number]),
                generated=sum(generated[number]),
                rejected=Counter(dict(rejected[number])),
                held_out=held_out.get(number),
                task_skills=tuple(skills[number]),
            )
            for number, metrics in self.metrics_by_round().items()
        )

    def digest(self) -> str:
        """Return the SHA-256 of all but wall-clock values and insertion order; equal for equal runs."""
        sha = hashlib.sha256()
        for table, order in _COMPARED.items():
            for row in self._db.each(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: S608 - constants
                kept = tuple(row[name] for name in row.keys() if name not in _NOT_COMPARED)  # noqa: SIM118
                sha.update(repr(kept).encode())
        return sha.hexdigest()

    def _grouped(
        self, of: Callable[[sqlite3.Row], tuple[int, FoundT]], sql: str, values: Sequence[SqlValue] = ()
    ) -> Mapping[int, list[FoundT]]:
        """Decode rows and group the values by the number of each; other numbers have empty lists."""
        found = defaultdict[int, list[FoundT]](list)
        for number, value in self._db.read(of, sql, values):
            found[number].append(value)
        return found

    def _only(self, found: list[FoundT], name: str) -> FoundT:
        if not found:
            raise KeyError(f"{name} is not in {self._db.path}")
        return found[0]

    def _context(self, context_id: str) -> Context:
        def of(row: sqlite3.Row) -> Context:
            seeds = self._db.read(codec.SEED.of, "SELECT * FROM seeds WHERE id = ?", (row["seed_id"],))
            return codec.CONTEXT.of(row, seed=seeds[0])

        return self._db.read(of, "SELECT * FROM contexts WHERE id = ?", (context_id,))[0]

    def _proposals(self, context_id: str) -> tuple[Proposal, ...]:
        outcomes: dict[str, Task | Rejection] = {}
        for of, sql in (
            (codec.task_of, "SELECT * FROM tasks WHERE context_id = ? ORDER BY n"),
            (
                codec.REJECTION.of,
                """SELECT rejections.* FROM rejections
                   JOIN generations ON generations.id = rejections.generation_id WHERE context_id = ?""",
            ),
        ):
            rows = self._db.rows(sql, (context_id,))
            with self._db.decoding():
                outcomes |= {row["generation_id"]: of(row) for row in rows}

        def proposal_of(row: sqlite3.Row) -> Proposal:
            outcome = outcomes[row["id"]]
            return Proposal(generation=codec.GENERATION.of(row), outcome=outcome, novelty=row["novelty"])

        sql = "SELECT * FROM generations WHERE context_id = ? ORDER BY n"
        return tuple(self._db.read(proposal_of, sql, (context_id,)))


def _metrics_of(row: sqlite3.Row) -> Mapping[str, float]:
    """Return the metrics of a row of `rounds`, including timings."""
    merged = {**object_from_json(row["metrics"]), **object_from_json(row["timings"])}
    return cast("Mapping[str, float]", merged)
