"""The store of a run: rounds come back as they went in, whole or not at all."""

from __future__ import annotations

import hashlib
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from genenv.errors import DataError
from genenv.runs.store.reader import read_last_round, read_run_id
from genenv.runs.store.records import Evaluation, RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.runs.store.tables import FORMAT
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Message,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    TaskBatch,
    Trace,
)
from talk import said

TABLES = "826697c8d9262010423496fae451494785637c8474f1c1f99451fd982fce7696"
SEED = Seed(id="seed-1", environment="calls", spec={"n_calls": 1, "to": "Zoë"}, skills=("mail", "calls:1"))


def make_generation(name: str, context: Context) -> Generation:
    return Generation(
        id=name,
        context_id=context.id,
        prompt_ids=(1, 2, 3),
        token_ids=(7, 4_294_967_295),
        logprobs=(-0.1, -1e-300),
        text='{"n_calls": 2}',
        finished=True,
    )


def make_task(name: str, lineage: Lineage) -> Task:
    return Task(
        id=name,
        environment="calls",
        skills=("mail",),
        messages=(Message(role="system", content="Tools: …"), Message(role="user", content="Write to Zoë.")),
        spec={"n_calls": 2, "calls": [{"tool": "send", "args": {"x": 1.5}}]},
        payload={"expected": [None, True, {"a": []}]},
        oracle=("send(Zoë)", "done"),
        lineage=lineage,
    )


def make_trace(name: str, task: Task, *, success: bool = True) -> Trace:
    return Trace(
        id=name,
        task_id=task.id,
        token_ids=(1, 2, 3, 9),
        sampled=(False, False, False, True),
        logprobs=(0.0, 0.0, 0.0, -0.7),
        prompt_tokens=3,
        messages=said("send(Zoë)"),
        reward=float(success),
        success=success,
        explanation="all calls are right" if success else "the call's name is wrong",
        stop_reason=StopReason.DONE,
    )


def make_group(round_: int, task: Task, *successes: bool) -> Group:
    traces = [
        make_trace(f"r{round_}-{task.id}-{n}", task, success=success) for n, success in enumerate(successes)
    ]
    return Group(task=task, traces=tuple(traces))


def make_batch(round_: int) -> TaskBatch:
    """Two accepted variations, of which one was attempted, and a rejected one."""
    context = Context(
        id=f"r{round_}-c0", round=round_, seed=SEED, messages=(Message(role="user", content="Vary."),)
    )
    proposals: list[Proposal] = []
    for n in range(2):
        generation = make_generation(f"{context.id}-g{n}", context)
        lineage = Lineage(
            origin=Origin.GENERATED, seed_id=SEED.id, context_id=context.id, generation_id=generation.id
        )
        task = make_task(f"task-{generation.id}", lineage)
        proposals.append(Proposal(generation=generation, outcome=task, novelty=0.25 + n))
    rejection = Rejection(reason=RejectReason.LEAK, explanation="the answer stands in the task")
    proposals.append(Proposal(generation=make_generation(f"{context.id}-g2", context), outcome=rejection))
    first = proposals[0].outcome
    assert isinstance(first, Task)
    group = make_group(round_, first, True, False)
    return TaskBatch(context=context, proposals=tuple(proposals), groups=(group,), p_hat=0.5, env_reward=1.0)


BASE_TASK = make_task("base-1", Lineage(origin=Origin.SEED, seed_id=SEED.id))
HELD_OUT = make_task("held-1", Lineage(origin=Origin.HELD_OUT))


def make_record(round_: int, *, replayed: Task | None = None) -> RoundRecord:
    batch = make_batch(round_)
    groups = [make_group(round_, BASE_TASK, True, True), *batch.groups]
    if replayed is not None:
        groups.append(make_group(round_, replayed, False))
    return RoundRecord(
        number=round_,
        metrics={"agent/success_rate": 0.1 + 0.2, "time/rollout_s": 3.25, "tokens/sampled_per_s": 9.5},
        state={"profile": {"mail": [1, 0.5]}, "round": round_},
        batches=(batch,),
        groups=tuple(groups),
        samples=(SimulatorSample(generation=batch.proposals[0].generation, weight=1.0),),
        surfaces={f"task-r{round_}-c0-g{n}": f"write mail {n}" for n in range(2)},
        reminded=[BASE_TASK.id],
        evaluations=(
            Evaluation(task_id="held-1", success=False, reward=0.0, replies=("?",), explanation="empty"),
        ),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.db"


def filled(path: Path, *, rounds: int, started: str = "2026-01-01T00:00:00+00:00") -> PoolStore:
    store = PoolStore.open(path, create=True, clock=lambda: started)
    store.put_base([SEED], [BASE_TASK, HELD_OUT])
    for round_ in range(1, rounds + 1):
        store.commit_round(make_record(round_))
    return store


def test_a_round_reads_back_as_it_was_committed(path: Path) -> None:
    record = make_record(1)
    filled(path, rounds=1).close()
    with PoolStore.open(path, create=False) as store:
        assert store.rounds() == (1,)
        assert store.metrics(1) == record.metrics
        assert store.state(1) == record.state
        assert store.batches(1) == record.batches
        assert store.groups(1) == record.groups
        assert store.samples(1) == record.samples
        assert store.evaluations(1) == record.evaluations
        (overview,) = store.overview()
        assert overview.rejected == {RejectReason.LEAK: 1}
        assert overview.generated == 3
        assert dict(store.surfaces()) == record.surfaces
        (rate,) = overview.batches
        assert (rate.context_id, rate.p_hat, rate.env_reward, rate.selected) == ("r1-c0", 0.5, 1.0, True)


def test_a_new_store_is_empty(path: Path) -> None:
    with PoolStore.open(path, create=True) as store:
        assert store.last_round() is None
        assert (store.rounds(), store.tasks(), [*store.surfaces()], store.batches(1)) == ((), (), [], ())
        with pytest.raises(KeyError, match="round 1 is not in"):
            store.metrics(1)


def test_tasks_are_found_by_origin_and_by_the_round_that_brought_them(path: Path) -> None:
    with filled(path, rounds=2) as store:
        assert store.tasks(origin=Origin.HELD_OUT) == (HELD_OUT,)
        assert store.tasks(origin=Origin.SEED) == (BASE_TASK,)
        names = [task.id for task in store.tasks(rounds=range(2, 3))]
        assert names == ["task-r2-c0-g0", "task-r2-c0-g1"]
        assert len(store.tasks()) == 6
        assert store.task("held-1") == HELD_OUT


def test_a_task_that_is_not_there_is_a_key_error(path: Path) -> None:
    with filled(path, rounds=1) as store, pytest.raises(KeyError, match="no-such-task"):
        store.task("no-such-task")


def test_a_replayed_task_is_stored_once_and_keeps_its_surface(path: Path) -> None:
    with filled(path, rounds=1) as store:
        task = store.tasks(origin=Origin.GENERATED)[0]
        surfaces = dict(store.surfaces())
        store.commit_round(make_record(2, replayed=task))
        assert [found.id for found in store.tasks()].count(task.id) == 1
        assert dict(store.surfaces())[task.id] == surfaces[task.id]


def test_groups_that_only_a_batch_knows_are_kept_too(path: Path) -> None:
    record = replace(make_record(1), groups=())
    with filled(path, rounds=0) as store:
        store.commit_round(record)
        assert store.batches(1) == record.batches
        assert store.groups(1) == record.batches[0].groups


def test_a_task_may_be_attempted_in_two_groups_of_a_round(path: Path) -> None:
    twice = (make_group(1, BASE_TASK, True), make_group(2, BASE_TASK, False))
    with filled(path, rounds=0) as store:
        store.commit_round(RoundRecord(number=1, metrics={}, state={}, groups=twice))
        assert store.groups(1) == twice


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_round_out_of_order_is_refused(path: Path, number: int) -> None:
    with filled(path, rounds=2) as store, pytest.raises(ValueError, match="the next round is 3"):
        store.commit_round(RoundRecord(number=number, metrics={}, state={}))


def test_a_run_may_start_at_round_zero_or_one_and_nowhere_else(path: Path) -> None:
    with PoolStore.open(path, create=True) as store:
        with pytest.raises(ValueError, match="the next round is 0 or 1"):
            store.commit_round(RoundRecord(number=2, metrics={}, state={}))
        store.commit_round(RoundRecord(number=0, metrics={}, state={}))
        assert store.last_round() == 0


def with_nan_logprob(record: RoundRecord) -> RoundRecord:
    trace = replace(record.groups[0].traces[0], logprobs=(math.nan,))
    return replace(record, groups=(replace(record.groups[0], traces=(trace,)),))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_nan_logprob, "log-probabilities must be finite"),
        (lambda record: replace(record, metrics={"agent/kl": -math.inf}), "not JSON compliant"),
        (lambda record: replace(record, state={"x": math.nan}), "not JSON compliant"),
        (
            lambda record: replace(record, batches=(replace(record.batches[0], p_hat=math.nan),)),
            "p_hat must be finite",
        ),
        (
            lambda record: replace(record, batches=(make_batch(7),)),
            "is of round 7, not 2",
        ),
        (
            lambda record: replace(
                record,
                evaluations=(
                    Evaluation(task_id="gone", success=True, reward=1.0, replies=(), explanation=""),
                ),
            ),
            "an evaluation needs task 'gone'",
        ),
        (
            lambda record: replace(
                record, groups=(make_group(2, replace(BASE_TASK, oracle=("other",)), True),)
            ),
            "task 'base-1' is stored with another oracle",
        ),
        (
            lambda record: replace(
                record,
                groups=(make_group(2, make_task("t", Lineage(origin=Origin.SEED, seed_id="no-seed")), True),),
            ),
            "task 't' needs seed 'no-seed'",
        ),
        (
            lambda record: replace(record, groups=(make_group(1, BASE_TASK, True),)),
            "UNIQUE constraint failed: traces.id",
        ),
    ],
)
def test_a_round_that_cannot_be_stored_leaves_nothing_behind(path: Path, spoil, message: str) -> None:
    with filled(path, rounds=1) as store:
        before = store.digest()
        with pytest.raises(ValueError, match=message):
            store.commit_round(spoil(make_record(2)))
        assert store.digest() == before
        store.commit_round(make_record(2))
        assert store.last_round() == 2


def test_a_full_disk_is_one_sentence_and_costs_only_the_round(path: Path) -> None:
    with filled(path, rounds=1) as store:
        before = store.digest()
        database = store._db
        pages = database.rows("PRAGMA page_count")[0][0]
        database.run(f"PRAGMA max_page_count = {pages}")
        big = replace(make_record(2), state={"filler": "x" * 100_000})
        with pytest.raises(DataError, match=r"the disk is full, .*pool\.db stays at its last whole round"):
            store.commit_round(big)
        assert store.digest() == before
        database.run("PRAGMA max_page_count = 1000000")
        store.commit_round(big)
        assert store.last_round() == 2


def test_a_kill_in_the_middle_of_a_commit_leaves_whole_rounds(path: Path, tmp_path: Path) -> None:
    """What is on the disk at that instant is what a killed process leaves: copy it and open the copy."""
    with filled(path, rounds=1) as store:
        before = store.digest()
        copy = tmp_path / "killed" / "pool.db"
        copy.parent.mkdir()
        with store._db.transaction():
            more_than_the_cache_holds = '{"x": "' + "y" * 5_000_000 + '"}'
            store._db.run("INSERT INTO rounds VALUES (2, '{}', ?, '{}', '')", (more_than_the_cache_holds,))
            for file in path.parent.glob("pool.db*"):
                shutil.copy(file, copy.parent)
            assert (copy.parent / "pool.db-wal").stat().st_size > 1_000_000, (
                "part of the round is on the disk"
            )
        assert store.last_round() == 2
    with PoolStore.open(copy, create=False) as survivor:
        assert survivor.digest() == before
        survivor.commit_round(make_record(2))


def test_what_is_committed_survives_without_a_clean_close(path: Path, tmp_path: Path) -> None:
    with filled(path, rounds=2) as store:
        for file in path.parent.glob("pool.db*"):
            (tmp_path / "copy").mkdir(exist_ok=True)
            shutil.copy(file, tmp_path / "copy")
        with PoolStore.open(tmp_path / "copy" / "pool.db", create=False) as survivor:
            assert survivor.digest() == store.digest()


def test_a_reader_may_look_while_a_round_is_written(path: Path) -> None:
    with filled(path, rounds=1) as store, store._db.transaction():
        store._db.run("DELETE FROM rounds")
        with PoolStore.open(path, create=False) as reader:
            assert reader.last_round() == 1
            assert reader.groups(1) == make_record(1).groups


def test_equal_runs_have_equal_digests_whatever_the_clock_said(tmp_path: Path) -> None:
    with filled(tmp_path / "a.db", rounds=2) as one, filled(tmp_path / "b.db", rounds=1, started="x") as two:
        assert one.digest() != two.digest()
        slower = {**make_record(2).metrics, "time/rollout_s": 99.0, "tokens/sampled_per_s": 1.0}
        two.commit_round(replace(make_record(2), metrics=slower))
        assert one.digest() == two.digest()
        assert two.metrics(2)["time/rollout_s"] == 99.0


def test_base_data_can_be_put_again_but_not_changed(path: Path) -> None:
    with filled(path, rounds=1) as store:
        before = store.digest()
        store.put_base([SEED], [BASE_TASK, HELD_OUT])
        assert store.digest() == before
        with pytest.raises(ValueError, match="seed 'seed-1' is stored with another skills"):
            store.put_base([replace(SEED, skills=())])


@pytest.mark.parametrize("place", ["header", "page", "whole"])
def test_a_damaged_file_is_one_sentence_that_names_it(path: Path, place: str) -> None:
    filled(path, rounds=3).close()
    data = bytearray(path.read_bytes())
    if place == "header":
        data[:16] = b"not a database!!"
    elif place == "page":
        data[4096 * 3 : 4096 * 8] = b"\x5a" * 4096 * 5
    else:
        data = bytearray(b"\x00garbage" * 600)
    path.write_bytes(data)
    with pytest.raises(
        DataError, match=r"pool\.db is damaged \(.*\); restore a copy of it, or start a new run"
    ):
        PoolStore.open(path, create=False)


def test_a_value_that_cannot_be_decoded_is_damage(path: Path) -> None:
    with filled(path, rounds=1) as store:
        store._db.run("UPDATE traces SET logprobs = x'0102'")
        with pytest.raises(DataError, match=r"pool\.db is damaged \(a BLOB of 2 bytes"):
            store.groups(1)


def test_a_missing_file_is_not_created_by_a_reader(path: Path) -> None:
    with pytest.raises(DataError, match=r"pool\.db is missing"):
        PoolStore.open(path, create=False)
    assert not path.exists()


@pytest.mark.parametrize(("version", "which"), [(6, "an earlier"), (8, "a newer")])
def test_a_store_of_another_format_is_left_alone(path: Path, version: int, which: str) -> None:
    filled(path, rounds=1).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    said = rf"written by {which} version of genenv \(store format {version}, this one reads 7\); open it with"
    for read in (lambda path: PoolStore.open(path, create=True), read_last_round, read_run_id):
        with pytest.raises(DataError, match=said):
            read(path)
    assert path.read_bytes() == before


def test_the_tables_of_a_format_stay_as_they_are(path: Path) -> None:
    """Byte for byte: stores that exist are compared with them."""
    filled(path, rounds=0).close()
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
        assert (FORMAT, hashlib.sha256(repr(found.fetchall()).encode()).hexdigest()) == (7, TABLES)


def test_another_programs_database_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="not a store of genenv"):
        PoolStore.open(path, create=True)
    assert path.read_bytes() == before


def test_a_file_that_was_killed_before_its_tables_becomes_a_store(path: Path) -> None:
    path.touch()
    with PoolStore.open(path, create=False) as store:
        assert store.last_round() is None
