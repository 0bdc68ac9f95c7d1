"""Damage inside a store: whatever changes what is read back is noticed, by SQLite or by the checksums."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import DataError
from genenv.runs.store.store import BASE_PARTS, PoolStore
from genenv.runs.store.tables import ROUND_PARTS
from runs.store.test_store import BASE_TASK, HELD_OUT, SEED, filled, make_record

FLIPS = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of five rounds, cleanly closed."""
    filled(tmp_path / "pool.db", rounds=5).close()
    with closing(sqlite3.connect(tmp_path / "pool.db")) as database:
        database.execute("VACUUM")  # new tables leave free pages
    return tmp_path / "pool.db"


def everything(path: Path) -> object:
    """All that can be read from a store, by every way of reading; or that it cannot be read."""
    try:
        with closing(sqlite3.connect(path)) as database:
            names = [
                name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            ]
            tables = [(name, list(database.execute(f"SELECT * FROM {name}"))) for name in sorted(names)]  # noqa: S608
        with PoolStore.open(path, create=False) as store:
            return tables, store.digest(), store.tasks(), list(store.surfaces()), list(rounds(store))
    except (sqlite3.Error, DataError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return f"cannot be read: {type(error).__name__}"


def rounds(store: PoolStore) -> Iterator[object]:
    for number in store.rounds():
        yield store.metrics(number), store.state(number), store.batches(number), store.groups(number)
        yield store.samples(number), store.evaluations(number)
        yield store.tasks(rounds=range(number, number + 1))
    yield store.overview()


def noticed(path: Path) -> bool:
    """Whether `genenv doctor` would say so."""
    try:
        with PoolStore.open(path, create=False) as store:
            return bool(store.damage(whole=True))
    except DataError:
        return True


def used_bytes(path: Path) -> list[int]:
    """Offsets of all bytes in pages that hold something."""
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        assert database.execute("PRAGMA freelist_count").fetchone()[0] == 0, "every page is used"
    data = path.read_bytes()
    pages = [data[start : start + size] for start in range(0, len(data), size)]
    return [n * size + i for n, page in enumerate(pages) for i in range(size) if page[i]]


@pytest.mark.long
def test_every_flipped_bit_that_changes_what_is_read_is_noticed(path: Path, tmp_path: Path) -> None:
    """One hundred bits, each in a copy of its own. Few change nothing: those in SQLite's counters."""
    assert not noticed(path)
    rng, data, truth = random.Random(19), path.read_bytes(), everything(path)
    offsets = used_bytes(path)
    changed, missed = 0, []
    for _ in range(FLIPS):
        offset, bit = rng.choice(offsets), rng.randrange(8)
        copy = tmp_path / "flipped.db"
        copy.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :])
        seen = noticed(copy)
        for file in tmp_path.glob("flipped.db-*"):
            file.unlink()
        if everything(copy) != truth:
            changed += 1
            missed += [] if seen else [(offset, bit)]
    assert changed > FLIPS // 2, "most flips matter"
    assert missed == []


def test_every_table_has_checksums(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    text = " ".join([*BASE_PARTS.values(), *ROUND_PARTS.values()])
    for (name,) in found:
        assert name == "checksums" or f" {name}.* " in text or f"* FROM {name}" in text, name


@pytest.mark.parametrize("part", ROUND_PARTS)
def test_a_row_that_changes_or_goes_is_named_with_its_round(path: Path, part: str) -> None:
    """The checksum of a round sees its own rows, and only those."""
    label = "round 2 itself" if part == "rounds" else f"{part} of round 2"
    with PoolStore.open(path, create=False) as store:
        columns = [row["name"] for row in store._db.rows(f"PRAGMA table_info({part})")]
        key = {"generations": "context_id", "rejections": "generation_id", "rounds": "number"}.get(
            part, "round"
        )
        where = f"{key} LIKE 'r2-%'" if key.endswith("_id") else f"{key} = 2"
        free = next(
            c
            for c in columns
            if c in ("timings", "messages", "text", "explanation", "p_hat", "weight")
            or (part == "groups" and c == "batch_position")
            or (part == "reminders" and c == "task_id")
        )
        with store._db.transaction():
            assert store._db.run(f"UPDATE {part} SET {free} = '?' WHERE {where}") > 0  # noqa: S608
        assert store.damage(whole=True) == [label]


def test_rows_that_are_gone_or_new_are_noticed(path: Path) -> None:
    with PoolStore.open(path, create=False) as store:
        store._db.run("DELETE FROM evaluations WHERE round = 1")
        assert store.damage(whole=True) == ["evaluations of round 1"]
        store._db.run("UPDATE tasks SET round = NULL WHERE round = 2")
        found = store.damage(whole=False)
        assert {"held-out tasks", "tasks of round 2"} <= set(found)
        store._db.run("PRAGMA foreign_keys = OFF")
        store._db.run("DELETE FROM rounds WHERE number = 5")
        assert "round 5, which is missing" in store.damage(whole=False)


def test_a_resumed_run_checks_all_of_its_newest_rounds_and_what_it_reads_of_the_others(path: Path) -> None:
    with PoolStore.open(path, create=False) as store:
        store._db.run("UPDATE traces SET reward = 0.5")
        assert store.damage(whole=False) == ["traces of round 4", "traces of round 5"]
        assert store.damage(whole=True) == [f"traces of round {n}" for n in range(1, 6)]


def test_an_index_that_lost_a_row_is_noticed(path: Path) -> None:
    """The tables are whole; a look-up by id would miss the task."""
    with PoolStore.open(path, create=False) as store:
        root = store._db.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_tasks_1'")[
            0
        ][0]
        size = store._db.rows("PRAGMA page_size")[0][0]
    data = bytearray(path.read_bytes())
    place = data.index(b"base-1", (root - 1) * size)
    data[place : place + 6] = b"base-9"
    path.write_bytes(data)
    with PoolStore.open(path, create=False) as store:
        assert [text for text in store.damage(whole=False) if "index sqlite_autoindex_tasks_1" in text]


def test_a_round_that_is_committed_during_the_check_is_no_damage(path: Path) -> None:
    with PoolStore.open(path, create=False) as store, PoolStore.open(path, create=False) as writer:
        rows, reads = store._db.rows, []

        def reading(sql: str, *values: Any) -> Any:
            reads.append(sql)
            if len(reads) == 4:
                writer.commit_round(make_record(6))
            return rows(sql, *values)

        store._db.rows = reading
        assert store.damage(whole=True) == []
        assert len(store.rounds()) == 6
        assert store.damage(whole=True) == []


def test_more_base_data_renews_its_checksums_and_nothing_else_does(path: Path) -> None:
    with PoolStore.open(path, create=False) as store:
        store.put_base([SEED, replace(SEED, id="seed-2")], [HELD_OUT])
        assert store.damage(whole=True) == []
        store._db.run("UPDATE seeds SET skills = '[]' WHERE id = 'seed-2'")
        store.put_base([SEED], [HELD_OUT])
        assert store.damage(whole=True) == ["seeds"]


def test_a_seed_that_comes_with_a_round_is_covered_too(tmp_path: Path) -> None:
    with PoolStore.open(tmp_path / "pool.db", create=True) as store:
        store.put_base([replace(SEED, id="other")], [HELD_OUT])
        store.commit_round(replace(make_record(1), groups=()))
        assert store.damage(whole=True) == []


def test_two_runs_have_two_ids_and_equal_digests(tmp_path: Path) -> None:
    with filled(tmp_path / "a.db", rounds=1) as a, filled(tmp_path / "b.db", rounds=1) as b:
        assert a.run_id() != b.run_id()
        assert a.digest() == b.digest()


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE traces RENAME COLUMN reward TO rewarf",
        "DROP INDEX traces_by_task",
        "ALTER TABLE evaluations RENAME TO evaluatioms",
    ],
)
def test_tables_that_are_not_a_stores_are_damage(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(sql)
    with pytest.raises(DataError, match=r"pool\.db is damaged \(its tables are not those of a store\)"):
        PoolStore.open(path, create=False)


def test_a_lost_log_costs_no_committed_round(tmp_path: Path) -> None:
    """What a kill leaves, without the -wal file: each commit has moved on into the file itself."""
    with filled(tmp_path / "pool.db", rounds=0) as store:
        for number in (1, 2):
            store.commit_round(make_record(number))
            copy = tmp_path / f"killed-{number}.db"
            shutil.copy(tmp_path / "pool.db", copy)
            with PoolStore.open(copy, create=False) as survivor:
                assert survivor.rounds() == tuple(range(1, number + 1))
                assert survivor.digest() == store.digest()
                assert survivor.task("base-1") == BASE_TASK
