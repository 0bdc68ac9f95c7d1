"""What the store says of all rounds together: one query a question, however many rounds there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import cast

from genenv.runs.store import rows
from genenv.runs.store.database import Database
from genenv.runs.store.encode import from_text, object_from_json, strings_from_json
from genenv.runs.store.records import BatchRate, RoundOverview
from genenv.types import Origin, RejectReason, Task


def overview(db: Database) -> tuple[RoundOverview, ...]:
    """Every round in order."""
    metrics, held_out = metrics_by_round(db), _held_out(db)
    batches, skills = _batches(db), _skills(db)
    generated, rejected = _generated(db), _rejected(db)
    return tuple(
        RoundOverview(
            number=number,
            metrics=metrics[number],
            batches=tuple(batches[number]),
            generated=generated[number],
            rejected=rejected[number],
            held_out=held_out.get(number),
            task_skills=tuple(skills[number]),
        )
        for number in metrics
    )


def metrics_by_round(db: Database) -> dict[int, dict[str, float]]:
    """The metrics of every round, timings included."""
    found: dict[int, dict[str, float]] = {}
    for row in db.rows("SELECT number, metrics, timings FROM rounds ORDER BY number"):
        merged = {**object_from_json(row["metrics"]), **object_from_json(row["timings"])}
        found[row["number"]] = cast("dict[str, float]", merged)
    return found


def task_count(db: Database, origin: Origin) -> int:
    """How many tasks came from there."""
    return db.rows("SELECT count(*) AS number FROM tasks WHERE origin = ?", (origin.value,))[0]["number"]


def last_seen(db: Database) -> dict[str, int]:
    """By task id the last round in which the agent attempted it or was reminded of it."""
    found = db.rows(
        """SELECT task_id, max(round) AS round FROM (
               SELECT task_id, round FROM groups UNION ALL SELECT task_id, round FROM reminders
           ) GROUP BY task_id"""
    )
    return {row["task_id"]: row["round"] for row in found}


def surfaces(db: Database) -> Iterator[tuple[str, str]]:
    """Task id and surface of every generated task that has one, oldest first."""
    sql = "SELECT id, surface FROM tasks WHERE origin = ? AND surface IS NOT NULL ORDER BY n"
    for row in db.each(sql, (Origin.GENERATED.value,)):
        yield row["id"], from_text(row["surface"])


def without_surface(db: Database) -> tuple[Task, ...]:
    """The generated tasks that were stored without one."""
    sql = "SELECT * FROM tasks WHERE origin = ? AND surface IS NULL ORDER BY n"
    return tuple(rows.task_of(row) for row in db.rows(sql, (Origin.GENERATED.value,)))


def _batches(db: Database) -> defaultdict[int, list[BatchRate]]:
    found: defaultdict[int, list[BatchRate]] = defaultdict(list)
    for row in db.rows("SELECT * FROM batches ORDER BY round, position"):
        found[row["round"]].append(rows.BATCH_RATE.of(row))
    return found


def _generated(db: Database) -> Counter[int]:
    sql = """SELECT round, count(*) AS number FROM generations
             JOIN contexts ON contexts.id = generations.context_id GROUP BY round"""
    return Counter({row["round"]: row["number"] for row in db.rows(sql)})


def _rejected(db: Database) -> defaultdict[int, Counter[RejectReason]]:
    found: defaultdict[int, Counter[RejectReason]] = defaultdict(Counter)
    for row in db.rows(
        """SELECT round, reason, count(*) AS number FROM rejections
           JOIN generations ON generations.id = rejections.generation_id
           JOIN contexts ON contexts.id = generations.context_id GROUP BY round, reason"""
    ):
        found[row["round"]][RejectReason(row["reason"])] = row["number"]
    return found


def _skills(db: Database) -> defaultdict[int, list[frozenset[str]]]:
    found: defaultdict[int, list[frozenset[str]]] = defaultdict(list)
    sql = "SELECT round, skills FROM tasks WHERE origin = ? AND round IS NOT NULL ORDER BY n"
    for row in db.rows(sql, (Origin.GENERATED.value,)):
        found[row["round"]].append(frozenset(strings_from_json(row["skills"])))
    return found


def _held_out(db: Database) -> dict[int, tuple[int, int]]:
    sql = "SELECT round, sum(success) AS solved, count(*) AS tried FROM evaluations GROUP BY round"
    return {row["round"]: (row["solved"], row["tried"]) for row in db.rows(sql)}
