"""Stores of older formats: every row is there, what was whole is whole, and what was damaged is not."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from genenv.errors import DataError
from genenv.runs.store import migrations
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import Group, Message
from older_stores import (
    BEFORE_AGENTS,
    BEFORE_MESSAGES,
    BEFORE_READABLE,
    BEFORE_SCORED_ONLY,
    make_older,
)
from runs.store.test_store import BASE_TASK, filled, make_record, make_trace
from talk import said


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five rounds, of the format before traces kept conversations."""
    path = tmp_path_factory.mktemp("older") / "pool.db"
    filled(path, rounds=5).close()
    make_older(path, BEFORE_MESSAGES)
    return path


@pytest.fixture
def path(older: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copy(older, tmp_path / "pool.db")


def spoil(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(sql, values).rowcount > 0


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA user_version").fetchone()[0]


def test_replies_of_a_store_of_the_third_format_become_conversations_and_nothing_else_changes(
    path: Path, tmp_path: Path
) -> None:
    with filled(tmp_path / "new.db", rounds=5) as new, PoolStore.open(path, create=False) as store:
        assert store.rounds() == new.rounds()
        for number in new.rounds():
            assert store.groups(number) == new.groups(number)
            assert store.batches(number) == new.batches(number)
            assert store.evaluations(number) == new.evaluations(number)
        assert store.groups(1)[0].traces[0].messages == said("send(Zoë)")
        assert store.groups(1)[0].traces[0].version is None
        assert store.digest() == new.digest()


def test_a_store_of_the_third_format_keeps_its_identity_and_its_checksums(path: Path) -> None:
    unchanged = """SELECT round || part, sha256 FROM checksums
                   WHERE part NOT IN ('traces', 'contexts', 'groups', 'evaluations', 'generations')"""
    with closing(sqlite3.connect(path)) as database:
        before = database.execute("SELECT id, legacy_until FROM run").fetchone()
        kept = dict(database.execute(unchanged))
    with PoolStore.open(path, create=False) as store:
        assert (store.identity().id, store.identity().legacy_until) == before
        assert store.has_checksums()
        assert store.damage(whole=True) == []
        assert not store.seal_legacy(), "nothing is left to be sealed"
    with closing(sqlite3.connect(path)) as database:
        assert kept == dict(database.execute(unchanged))
    spoil(path, "UPDATE traces SET messages = '[]' WHERE round = 1")
    with PoolStore.open(path, create=False) as store:
        assert store.damage(whole=True) == ["traces of round 1"]


def test_rounds_that_follow_keep_the_whole_conversation_and_the_version(path: Path) -> None:
    messages = (*said("send(Zoe)"), Message(role="tool", content="nobody of that name"), *said("send(Zoë)"))
    known = replace(make_trace("known", BASE_TASK), messages=messages, version=12)
    groups = (Group(task=BASE_TASK, traces=(known,)),)
    with PoolStore.open(path, create=False) as store:
        store.commit_round(RoundRecord(number=6, metrics={}, state={}, groups=groups))
        assert store.groups(6) == groups
        assert known.replies == ("send(Zoe)", "send(Zoë)")
        assert store.damage(whole=True) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("reward", 0.125),
        ("replies", '["send(Zoe)"]'),
        ("replies", '["send(Zo'),
        ("replies", '{"send": 1}'),
        ("replies", b"\xff\xfe"),
        ("task_id", "base-9"),
        ("logprobs", b""),
    ],
)
def test_what_was_damaged_before_is_damaged_afterwards(path: Path, column: str, value: object) -> None:
    """Also a value that no longer means anything, and one that no rule of the tables allows."""
    spoil(path, f"UPDATE traces SET {column} = ? WHERE round = 2 AND group_position = 0", value)  # noqa: S608
    for _ in range(2):
        with PoolStore.open(path, create=False) as store:
            assert store.damage(whole=True) == ["traces of round 2"]
            assert store.rounds() == (1, 2, 3, 4, 5)
            assert store.groups(3)


def test_text_that_is_no_text_is_moved_byte_by_byte(path: Path) -> None:
    spoil(path, "UPDATE traces SET explanation = CAST(x'ff41' AS TEXT) WHERE round = 2")
    with PoolStore.open(path, create=False) as store:
        assert store.damage(whole=True) == ["traces of round 2"]
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT CAST(explanation AS BLOB) FROM traces WHERE round = 2").fetchone()
    assert found == (b"\xffA",)


def test_a_reply_with_half_a_surrogate_pair_is_read_as_its_replacement(path: Path) -> None:
    spoil(path, "UPDATE traces SET replies = ? WHERE round = 2", json.dumps(["\ud800é"]))
    with PoolStore.open(path, create=False) as store:
        assert {trace.replies for group in store.groups(2) for trace in group.traces} == {("\ufffdé",)}


def test_a_step_that_fails_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (step,) = migrations.MIGRATIONS[3]
    with monkeypatch.context() as patch:
        patch.setattr(
            migrations, "MIGRATIONS", (*migrations.MIGRATIONS[:3], (step, "INSERT INTO traces VALUES (1)"))
        )
        with pytest.raises(DataError, match="damaged"):
            PoolStore.open(path, create=False)
    assert version_of(path) == 3
    with PoolStore.open(path, create=False) as store:
        assert store.damage(whole=True) == []


def test_of_traces_of_the_fourth_format_it_is_not_known_whether_they_could_be_read(tmp_path: Path) -> None:
    filled(tmp_path / "pool.db", rounds=2).close()
    make_older(tmp_path / "pool.db", BEFORE_READABLE)
    read = replace(make_trace("read", BASE_TASK), readable=True)
    with PoolStore.open(tmp_path / "pool.db", create=False) as store:
        assert {trace.readable for group in store.groups(1) for trace in group.traces} == {None}
        assert store.valid_tasks() == ()
        store.commit_round(
            RoundRecord(number=3, metrics={}, state={}, groups=(Group(task=BASE_TASK, traces=(read,)),))
        )
        assert store.groups(3)[0].traces == (read,)
        assert store.damage(whole=True) == []


def test_a_store_of_the_fifth_format_has_one_agent_and_then_several(tmp_path: Path) -> None:
    with filled(tmp_path / "new.db", rounds=2) as new:
        digest = new.digest()
    filled(tmp_path / "pool.db", rounds=2).close()
    make_older(tmp_path / "pool.db", BEFORE_AGENTS)
    spoil(tmp_path / "pool.db", "UPDATE groups SET batch_position = 7 WHERE round = 2")
    spoil(tmp_path / "pool.db", "UPDATE contexts SET messages = '[]' WHERE round = 1")
    with PoolStore.open(tmp_path / "pool.db", create=False) as store:
        assert {group.agent for number in store.rounds() for group in store.groups(number)} == {"agent"}
        assert store.damage(whole=True) == ["contexts of round 1", "groups of round 2"]
    filled(tmp_path / "again.db", rounds=2).close()
    make_older(tmp_path / "again.db", BEFORE_AGENTS)
    groups = tuple(
        Group(task=BASE_TASK, traces=(make_trace(name, BASE_TASK),), agent=name)
        for name in ("strong", "weak")
    )
    with PoolStore.open(tmp_path / "again.db", create=False) as store:
        assert store.digest() == digest
        store.commit_round(RoundRecord(number=3, metrics={}, state={}, groups=groups))
        assert store.groups(3) == groups
        assert store.damage(whole=True) == []


def test_in_a_store_of_the_sixth_format_the_agent_trained_on_every_task(tmp_path: Path) -> None:
    with filled(tmp_path / "new.db", rounds=2) as new:
        digest = new.digest()
    filled(tmp_path / "pool.db", rounds=2).close()
    make_older(tmp_path / "pool.db", BEFORE_SCORED_ONLY)
    record = make_record(3)
    (batch,) = record.batches
    first, *others = batch.proposals
    marked = replace(first, generation=replace(first.generation, scored_only=True))
    record = replace(record, batches=(replace(batch, proposals=(marked, *others)),))
    with PoolStore.open(tmp_path / "pool.db", create=False) as store:
        assert store.digest() == digest
        assert not any(p.generation.scored_only for batch in store.batches(2) for p in batch.proposals)
        store.commit_round(record)
        assert [p.generation.scored_only for p in store.batches(3)[0].proposals] == [
            True,
            *(False for _ in others),
        ]
        assert store.damage(whole=True) == []


@pytest.mark.parametrize("version", range(1, len(migrations.MIGRATIONS)))
def test_every_format_becomes_the_newest(tmp_path: Path, version: int) -> None:
    filled(tmp_path / "pool.db", rounds=2).close()
    make_older(tmp_path / "pool.db", version)
    shutil.copy(tmp_path / "pool.db", tmp_path / "copy.db")
    with PoolStore.open(tmp_path / "pool.db", create=False) as store:
        assert store.rounds() == (1, 2)
        assert store.damage(whole=True) == []
        store.commit_round(make_record(3))
        assert store.damage(whole=True) == []
    assert version_of(tmp_path / "pool.db") == len(migrations.MIGRATIONS)
    assert version_of(tmp_path / "copy.db") == version
