"""A few tasks and measurements of a store, read without writing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import DataError
from genenv.runs.store.reader import first_messages, last_measured
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import Seed


@pytest.fixture
def pool(toy: Any, tmp_path: Path) -> Path:
    tasks = [toy.task(name=f"t-{left}", left=left) for left in (3, 4)]
    with PoolStore.open(tmp_path / "pool.db", create=True) as store:
        store.put_base([Seed(id=t.id, environment="sums", spec={}, skills=("sums",)) for t in tasks], tasks)
        for number, metrics in enumerate(({"success": 0.25}, {}, {"success": 0.75})):
            store.commit_round(RoundRecord(number=number, metrics=metrics, state={}))
    return tmp_path / "pool.db"


def test_held_out_tasks_come_in_their_order(pool: Path) -> None:
    before = sorted(pool.parent.iterdir())
    found = first_messages(pool, 5)
    assert [messages[0].content for messages in found] == ["add 3 and 2", "add 4 and 2"]
    assert first_messages(pool, 1) == found[:1]
    assert sorted(pool.parent.iterdir()) == before


def test_a_metric_is_the_last_one_up_to_a_round(pool: Path) -> None:
    assert last_measured(pool, "success", 2) == (2, 0.75)
    assert last_measured(pool, "success", 1) == (0, 0.25)
    assert last_measured(pool, "other", 2) is None


def test_what_cannot_be_read_is_one_sentence(pool: Path) -> None:
    connection = sqlite3.connect(pool)
    connection.execute("UPDATE tasks SET messages = '[1]'")
    connection.commit()
    connection.close()
    with pytest.raises(DataError, match=r"pool\.db is damaged \(expected a JSON list of messages\)"):
        first_messages(pool, 1)
