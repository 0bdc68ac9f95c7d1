"""What the store says of all rounds together: one query a question, however many rounds there are."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from genenv.runs.store import rows
from genenv.runs.store.encode import from_text, strings_from_json
from genenv.runs.store.read import NounReader, metrics_of
from genenv.runs.store.records import BatchRate, RoundOverview
from genenv.types import Origin, RejectReason, Task

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


class HistoryReader(NounReader):
    """Each method is one question."""

    def metrics_by_round(self) -> Mapping[int, Mapping[str, float]]:
        """The metrics of every round in order, timings included."""
        sql = "SELECT number, metrics, timings FROM rounds ORDER BY number"
        return dict(self._db.read(lambda row: (row["number"], metrics_of(row)), sql))

    def overview(self) -> tuple[RoundOverview, ...]:
        """What every round came to, in order. Texts and tokens are not read."""
        held_out, batches, skills = self._held_out(), self._batches(), self._skills()
        generated, rejected = self._generated(), self._rejected()
        return tuple(
            RoundOverview(
                number=number,
                metrics=metrics,
                batches=tuple(batches[number]),
                generated=generated[number],
                rejected=rejected[number],
                held_out=held_out.get(number),
                task_skills=tuple(skills[number]),
            )
            for number, metrics in self.metrics_by_round().items()
        )

    def surfaces(self) -> Iterator[tuple[str, str]]:
        """The archive for novelty: id and surface of each generated task that has one, oldest first."""
        sql = "SELECT id, surface FROM tasks WHERE origin = ? AND surface IS NOT NULL ORDER BY n"
        with self._db.decoding():
            for row in self._db.each(sql, (Origin.GENERATED.value,)):
                yield row["id"], from_text(row["surface"])

    def without_surface(self) -> tuple[Task, ...]:
        """The generated tasks that were attempted and stored without a surface."""
        sql = """SELECT * FROM tasks WHERE origin = ? AND surface IS NULL
                 AND id IN (SELECT task_id FROM groups) ORDER BY n"""
        return tuple(self._db.read(rows.task_of, sql, (Origin.GENERATED.value,)))

    def task_count(self, origin: Origin) -> int:
        """How many tasks came from there; none is read."""
        sql = "SELECT count(*) AS number FROM tasks WHERE origin = ?"
        return self._db.rows(sql, (origin.value,))[0]["number"]

    def last_seen(self, *, since: int = 0) -> Mapping[str, int]:
        """By task id the last round, from one on, in which the agent attempted it or was reminded of it."""
        found = self._db.rows(
            """SELECT task_id, max(round) AS round FROM (
                   SELECT task_id, round FROM groups UNION ALL SELECT task_id, round FROM reminders
               ) WHERE round >= ? GROUP BY task_id""",
            (since,),
        )
        return {row["task_id"]: row["round"] for row in found}

    def valid_tasks(self, *, since: int = 0) -> tuple[str, ...]:
        """Ids of the generated tasks with an attempt that parsed, was carried out and graded: D_train.

        Args:
            since: the first round whose tasks count.
        """
        found = self._db.rows(
            """SELECT id FROM tasks WHERE origin = ? AND round >= ?
               AND id IN (SELECT task_id FROM traces WHERE readable) ORDER BY n""",
            (Origin.GENERATED.value, since),
        )
        return tuple(row["id"] for row in found)

    def digest(self) -> str:
        """SHA-256 of everything but wall-clock values and the order of insertion: equal for equal runs."""
        sha = hashlib.sha256()
        for sql in _COMPARED:
            for row in self._db.each(sql):
                sha.update(repr(tuple(row)).encode())
        return sha.hexdigest()

    def _batches(self) -> defaultdict[int, list[BatchRate]]:
        found: defaultdict[int, list[BatchRate]] = defaultdict(list)
        for row in self._db.rows("SELECT * FROM batches ORDER BY round, position"):
            found[row["round"]].append(rows.BATCH_RATE.of(row))
        return found

    def _generated(self) -> Counter[int]:
        sql = """SELECT round, count(*) AS number FROM generations
                 JOIN contexts ON contexts.id = generations.context_id GROUP BY round"""
        return Counter({row["round"]: row["number"] for row in self._db.rows(sql)})

    def _rejected(self) -> defaultdict[int, Counter[RejectReason]]:
        found: defaultdict[int, Counter[RejectReason]] = defaultdict(Counter)
        sql = """SELECT round, reason, count(*) AS number FROM rejections
                 JOIN generations ON generations.id = rejections.generation_id
                 JOIN contexts ON contexts.id = generations.context_id GROUP BY round, reason"""
        for row in self._db.rows(sql):
            with self._db.decoding():
                found[row["round"]][RejectReason(row["reason"])] = row["number"]
        return found

    def _skills(self) -> defaultdict[int, list[frozenset[str]]]:
        found: defaultdict[int, list[frozenset[str]]] = defaultdict(list)
        sql = "SELECT round, skills FROM tasks WHERE origin = ? AND round IS NOT NULL ORDER BY n"
        for row in self._db.rows(sql, (Origin.GENERATED.value,)):
            with self._db.decoding():
                found[row["round"]].append(frozenset(strings_from_json(row["skills"])))
        return found

    def _held_out(self) -> dict[int, tuple[int, int]]:
        # a task that was measured twice in a round, before and after it, counts as it was after it
        sql = """SELECT round, sum(success) AS solved, count(*) AS tried FROM evaluations
                 WHERE (round, position) IN
                     (SELECT round, max(position) FROM evaluations GROUP BY round, task_id)
                 GROUP BY round"""
        return {row["round"]: (row["solved"], row["tried"]) for row in self._db.rows(sql)}
