"""The side file by which tasks are sorted and searched: built, kept up to date, and made anew."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import DataError
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from genenv.viewer import lists
from genenv.viewer.folders import Runs, reading
from genenv.viewer.lists import Indices, Wanted
from genenv.viewer.pages import address
from running import comes_true
from viewer_runs import commit, ids_of, text_of, write_run

SEED = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))


@pytest.fixture
def indices(tmp_path: Path) -> Iterator[Indices]:
    with closing(Indices(tmp_path / "cache")) as made:
        yield made


def find(indices: Indices, folder: Path, **wanted: Any) -> list[str]:
    run = Runs(folder).find(folder.name)
    comes_true(lambda: not indices.of(run).note)
    index = indices.of(run)
    rows, _ = reading(run, lambda db: lists.tasks(db, Wanted(**wanted)), side=index.path)
    return [row["id"] for row in rows]


def test_new_rounds_are_added_to_what_is_there(tmp_path: Path, indices: Indices) -> None:
    folder = write_run(tmp_path / "demo", rounds=3)
    assert find(indices, folder.path, sort="easy") == ["task-2 plain", "task-1 plain"]
    with PoolStore.open(folder.pool, create=False) as store:
        commit(folder, store, 3, seed=SEED)
    assert find(indices, folder.path, sort="easy") == ["task-3 plain", "task-2 plain", "task-1 plain"]
    assert find(indices, folder.path, text="task 3") == ["task-3 plain"]
    with closing(Indices(tmp_path / "cache")) as later:
        assert find(later, folder.path, text="task-3 plai") == ["task-3 plain"], "as another process finds it"
    assert len(list((tmp_path / "cache").glob("*.db"))) == 1


def copied(db: sqlite3.Connection, table: str, where: str, **values: object) -> None:
    """Insert a row again with other values in some columns."""
    names = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "n"]
    chosen = ", ".join(f":{name}" if name in values else name for name in names)
    db.execute(f"INSERT INTO {table} ({', '.join(names)}) SELECT {chosen} FROM {table} WHERE {where}", values)  # noqa: S608 - constants of a test


@pytest.mark.parametrize("sort", ["hard", "easy"])
@pytest.mark.parametrize(
    "wanted", [{"origin": "held_out"}, {"change": "unlearned"}, {"round": 5}, {}], ids=str
)
def test_pages_by_rate_follow_each_other_without_gap_or_repetition(
    wanted: dict[str, Any], sort: str, tmp_path: Path, indices: Indices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rate that the list is of: of a round, or of the evaluations of held-out tasks."""
    folder = write_run(tmp_path / "demo", rounds=6)
    with closing(sqlite3.connect(folder.pool)) as db:
        for n in range(1, 6):
            copied(db, "tasks", "id = 'held-0'", id=f"held-{n}")
            task = f"task-{n} plain"
            for round_ in range(6):
                solved = int(n + round_ < 6)
                copied(
                    db, "evaluations", f"task_id = 'held-0' AND round = {round_}", task_id=f"held-{n}",
                    position=n, success=solved,
                )  # fmt: skip
            if n < 5:  # rolled out again in the last round, the easier the harder it was
                copied(
                    db, "groups", "round = 5 AND position = 0", position=n, task_id=task, batch_position=None,
                    batch_context_id=None,
                )  # fmt: skip
                for place in range(4):
                    copied(
                        db, "traces", f"id = 'task-5 plain/{place}'", id=f"{task}/again{place}", task_id=task,
                        group_position=n, success=int(place >= n),
                    )  # fmt: skip
        db.commit()
    whole = find(indices, folder.path, sort=sort, **wanted)
    assert len(whole) > 3
    monkeypatch.setattr("genenv.viewer.lists.PAGE", 2)
    run, seen, after = Runs(folder.path).find("demo"), list[str](), ""
    for _ in range(9):
        asked = Wanted(sort=sort, after=after, **wanted)
        rows, after = reading(run, lambda db, asked=asked: lists.tasks(db, asked), side=indices.of(run).path)
        seen += [row["id"] for row in rows]
        if not after:
            break
    assert seen == whole


@pytest.mark.parametrize("change", ["another run", "fewer rounds"])
def test_a_store_that_is_replaced_is_indexed_anew(change: str, tmp_path: Path, indices: Indices) -> None:
    folder = write_run(tmp_path / "demo", rounds=4)
    assert len(find(indices, folder.path, sort="hard")) == 3
    if change == "another run":
        shutil.rmtree(folder.path)
        write_run(folder.path, rounds=4, text="other")
        assert len(find(indices, folder.path, text="other")) == 5
    else:
        with closing(sqlite3.connect(folder.pool)) as db:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("DELETE FROM rounds WHERE number > 2")
            db.commit()
        assert find(indices, folder.path, sort="hard") == ["task-1 plain", "task-2 plain"]


def test_a_side_file_that_is_damaged_is_named_and_made_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo", rounds=3)
    with closing(Indices(tmp_path / "cache")) as indices:
        find(indices, folder.path, sort="hard")
    (file,) = (tmp_path / "cache").glob("*.db")
    file.write_bytes(b"no database" * 1000)
    with closing(Indices(tmp_path / "cache")) as indices:
        with pytest.raises(DataError, match=r"the index in .* cannot be used"):
            find(indices, folder.path, sort="hard")
        assert len(find(indices, folder.path, sort="hard")) == 2


def test_a_side_file_that_nobody_used_for_a_month_is_deleted(tmp_path: Path, indices: Indices) -> None:
    (tmp_path / "cache").mkdir()
    for name, days in (("old", 31), ("new", 29)):
        file = tmp_path / "cache" / f"{name}.1.db"
        file.touch()
        os.utime(file, (time.time() - days * 86_400,) * 2)
    find(indices, write_run(tmp_path / "demo", rounds=1).path, sort="hard")
    names = {path.name for path in (tmp_path / "cache").glob("*.db")}
    assert "old.1.db" not in names
    assert len(names) == 2


@pytest.mark.long
def test_pages_say_what_is_missing_while_the_side_file_is_built(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "demo", rounds=8)
    monkeypatch.setattr(lists, "_ROWS", 2)
    monkeypatch.setattr(lists, "_FIRST_S", 0.3)
    slow: Callable[..., Any] = lists._chunk

    def chunk(*given: Any) -> Any:
        time.sleep(0.2)
        return slow(*given)

    monkeypatch.setattr(lists, "_chunk", chunk)
    reader = serve(tmp_path)
    path = address("demo", "tasks", sort="hard")
    text = text_of(reader.page(path))
    assert "The index of this run is being built" in text
    assert "being built" in text_of(reader.page(address("demo", "task", id="task-7 plain")))
    assert "being built" not in text_of(reader.page(address("demo", "tasks", round=7)))
    comes_true(lambda: "being built" not in text_of(reader.page(path)))
    assert len(ids_of(reader.page(path))) == 7


def test_a_cache_that_cannot_be_written_costs_what_needs_it_alone(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "runs" / "demo", rounds=3)
    (tmp_path / "-").write_text("a file where the cache should be", encoding="utf-8")
    reader = serve(tmp_path / "runs")
    said = text_of(reader.page(address("demo", "tasks", sort="hard"), status=503))
    assert "cannot be used" in said
    assert "GENENV_CACHE" in said
    assert len(ids_of(reader.page(address("demo", "tasks")))) == 4
    assert "cannot be used" in text_of(reader.page(address("demo", "task", id="task-1 plain")))


def test_words_are_found_in_their_order_and_the_last_may_be_cut_off(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=2, text='Find the get_weather of "Zoë", NOW')
    reader = serve(tmp_path)
    for text, count in (
        ("get_wea", 3), ("the get_weather of zoë", 3), ("weather the", 0), ("now", 3), ('"', 0), ("zoe", 3),
        ('" OR a:*', 0), ("NEAR(find the)", 0), ("find\x00the", 3), ("*", 0),
    ):  # fmt: skip
        assert len(ids_of(reader.page(address("demo", "tasks", text=text)))) == count, text
        assert reader.ask(address("demo", "refused", text=text)).status == 200


def test_filters_are_combined(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=12)
    reader = serve(tmp_path)
    for given, found in (
        ({"text": "2 + 2", "skill": "adding", "round": 7}, ["task-7 plain"]),
        ({"text": "2 + 2", "round": 7, "sort": "hard"}, ["task-7 plain"]),
        ({"skill": "adding", "round": 7, "sort": "easy", "low": 0.5}, ["task-7 plain"]),
        ({"skill": "adding", "round": 7, "low": 0.6}, []),
        ({"origin": "generated", "sort": "easy", "low": 1}, ["task-9 plain", "task-4 plain"]),
        ({"origin": "held_out", "skill": "plain"}, ["held-0"]),
        ({"origin": "seed", "text": "base"}, ["base plain"]),
        ({"low": 0.5, "high": 0.5, "sort": "old"}, ["task-2 plain", "task-7 plain"]),
    ):
        assert ids_of(reader.page(address("demo", "tasks", **given))) == found, given
