"""What a run costs does not grow with its length: counted, not timed."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import scripted_genenv
from genenv.config.run import parse_config
from genenv.runs.store import codec
from genenv.runs.store.database import Database
from genenv.runs.store.records import BatchRate, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.runs.summary import summarise
from genenv.types import Origin, Rejection, Task
from genenv.viewer.frozen import write_report
from training import test_loop as loops

BENCH = Path(__file__).parents[2] / "bench"


ROUNDS = 12
SETTINGS = {
    **loops.SETTINGS,
    "run": {"rounds": ROUNDS, "eval_every": 6, "eval_tasks": 4, "seed": 5},
    "agent": {"rollouts": 2, "max_new_tokens": 2000, "replayed": 5},
    "curriculum": {"staleness_rounds": 3},
}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("growth") / "run"
    loops.build(parse_config(SETTINGS), path).run()
    return path


@contextmanager
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Task]]:
    """The tasks that are read from rows inside the block."""
    found: list[Task] = []
    original = codec.task_of

    def watched(row: sqlite3.Row) -> Task:
        found.append(original(row))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(codec, "task_of", watched)
        yield found


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The SQL that is executed inside the block."""
    found: list[str] = []
    original = Database.rows

    def watched(self: Database, sql: str, *values: object) -> list[sqlite3.Row]:
        found.append(sql)
        return original(self, sql, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "rows", watched)
        yield found


@pytest.mark.long
def test_the_state_of_a_round_names_seeds_and_the_latest_tasks_only(long_run: Path) -> None:
    with PoolStore.open(long_run / "pool.db", create=False) as store:
        named = [len(re.findall(r'"(?:seed|base|task)-', json.dumps(store.state(n)))) for n in store.rounds()]
        latest = max(
            sum(
                len(store.tasks(origin=Origin.GENERATED, rounds=range(k, k + 1))) for k in range(n - 2, n + 1)
            )
            for n in store.rounds()
        )
        assert max(named) <= 40 + latest
        assert len(store.last_seen()) > 40 + latest  # the seeds, and what all rounds have added


@pytest.mark.long
def test_a_round_reads_only_the_tasks_that_it_uses(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loops.build(parse_config(SETTINGS), long_run, resume=True)
    with PoolStore.open(long_run / "pool.db", create=False) as store:
        with decoded(monkeypatch) as found:
            asyncio.run(loop._resume(store))
        assert found == []  # the archive has texts, the replay ids
        in_turn: list[Task] = []
        for number in range(ROUNDS + 1, ROUNDS + 26):
            with decoded(monkeypatch) as found:
                replayed = loop.pool.replayed(number, [], store)
            assert len(replayed) == 5
            assert found == [task for task in replayed if task.lineage.origin is Origin.GENERATED]
            in_turn += replayed
        known = {task.id for task in [*loop.pool.base.values(), *store.tasks(origin=Origin.GENERATED)]}
        first = [task.id for task in in_turn[: len(known)]]
        assert set(first) == known, "each comes once before any comes twice"


@pytest.mark.long
def test_a_report_and_a_summary_ask_as_much_of_a_long_run_as_of_a_short_one(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tmp_path / "short"
    loops.build(parse_config({**SETTINGS, "run": {"rounds": 4, "eval_every": 2}}), short).run()
    counts: dict[str, list[int]] = {"report": [], "summary": []}
    for path in (short, long_run):
        with decoded(monkeypatch) as tasks, asked(monkeypatch) as sql:
            write_report(path)
            counts["report"].append(len(sql))
            sql.clear()
            summarise(path)
            counts["summary"].append(len(sql))
        assert tasks == []
    assert counts["summary"][0] == counts["summary"][1]
    short, long = counts["report"]
    assert long - short <= 10, "ten examples of each; they may be of more rounds"


@pytest.mark.long
def test_the_tables_are_searched_by_their_indices(long_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No question about one round, or about numbers of tasks, looks at every row."""
    with PoolStore.open(long_run / "pool.db", create=False) as store, asked(monkeypatch) as sql:
        number = ROUNDS // 2
        store.tasks(origin=Origin.GENERATED, rounds=range(number, number + 1))
        store.tasks(rounds=range(number, number + 1))
        store.task_count(Origin.GENERATED)
        store.groups(number)
        store.batches(number)
        store.samples(number)
        store.evaluations(number)
        store.task(store.tasks(origin=Origin.GENERATED, rounds=range(number, number + 2))[0].id)
        store.metrics(number)
    connection = sqlite3.connect(long_run / "pool.db")
    for question in sql:
        places = len(re.findall(r"\?", question))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {question}", (1,) * places)]
        assert not [step for step in plan if step.startswith("SCAN")], (question, plan)
    connection.close()


@pytest.mark.long
def test_a_round_that_is_asked_for_alone_says_what_the_overview_says(long_run: Path) -> None:
    with PoolStore.open(long_run / "pool.db", create=False) as store:
        overview = store.overview()
        assert tuple(found.number for found in overview) == store.rounds()
        for found in overview:
            number = found.number
            tasks = store.tasks(origin=Origin.GENERATED, rounds=range(number, number + 1))
            held_out = [evaluation.success for evaluation in store.evaluations(number)]
            assert found.metrics == store.metrics(number)
            batches = store.batches(number)
            trained_on = {sample.generation.context_id for sample in store.samples(number)}
            assert found.batches == tuple(
                BatchRate(
                    context_id=batch.context.id,
                    p_hat=batch.p_hat,
                    env_reward=batch.env_reward,
                    selected=batch.context.id in trained_on,
                )
                for batch in batches
            )
            outcomes = [proposal.outcome for batch in batches for proposal in batch.proposals]
            assert found.generated == len(outcomes)
            assert found.rejected == Counter(o.reason for o in outcomes if isinstance(o, Rejection))
            assert found.task_skills == tuple(frozenset(task.skills) for task in tasks)
            assert found.held_out == ((sum(held_out), len(held_out)) if held_out else None)
        assert store.task_count(Origin.GENERATED) == len(store.tasks(origin=Origin.GENERATED)) > ROUNDS


def test_reminders_belong_to_their_round_and_to_the_digest(tmp_path: Path) -> None:
    with (
        PoolStore.open(tmp_path / "a.db", create=True) as one,
        PoolStore.open(tmp_path / "b.db", create=True) as two,
    ):
        for store in (one, two):
            store.commit_round(RoundRecord(number=0, metrics={}, state={}, reminded=["base-1", "base-2"]))
        one.commit_round(RoundRecord(number=1, metrics={}, state={}, reminded=["base-2"]))
        two.commit_round(RoundRecord(number=1, metrics={}, state={}, reminded=["base-1"]))
        assert one.last_seen() == {"base-1": 0, "base-2": 1}
        assert one.digest() != two.digest()
        for store in (one, two):
            store._db.run("DELETE FROM rounds WHERE number = 1")
        assert one.last_seen() == two.last_seen() == {"base-1": 0, "base-2": 0}
        assert one.digest() == two.digest()


@pytest.mark.long
def test_the_bench_of_growth_measures_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    scripted_genenv.few_base_data(monkeypatch)
    bench = importlib.import_module("growth")
    words = ["--rounds", "2", "--contexts", "2", "--distinct", "5", "--asked", "3", "--run", tmp_path / "run"]
    options = bench.parser().parse_args(map(str, words))
    bench.make(options)
    for measure in bench.MEASURES.values():
        measure(options)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["of"] for line in lines] == [
        "making", "report", "summary", "resume", "choosing 16 tasks to replay", "gate, a task",
        "nearest", "nearest", "nearest",
    ]  # fmt: skip
    assert all(line["peak_mib"] > 0 for line in lines[1:4])
    assert all(line["median_ms"] > 0 for line in lines[4:])
