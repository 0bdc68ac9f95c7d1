"""The folder of a run: one writer, and a kill at any instant costs at most the round in progress."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from genenv.errors import DataError, UsageError
from genenv.files import is_held, locked
from genenv.runs.checkpoint import (
    checkpoint_path,
    checkpoints,
    is_committed,
    mark_committed,
)
from genenv.runs.folder import RunFolder, metrics_line
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from saving import commit as commit_round
from saving import write_checkpoint

CONFIG = 'seed = 7\nmodel = "Zoë"\n'


class Killed(BaseException):
    """Stands for a signal: no `except Exception` sees it."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "demo", CONFIG)


def save(path: Path) -> None:
    (path / "weights.bin").write_bytes(b"w")


def record(round_: int) -> RoundRecord:
    metrics = {"time/rollout_s": 1.5, "agent/success_rate": round_ / 10}
    return RoundRecord(number=round_, metrics=metrics, state={"round": round_})


def run_id(folder: RunFolder) -> str:
    with PoolStore.open(folder.pool, create=False) as store:
        return store.run_id()


def set_aside(folder: RunFolder) -> list[str]:
    """What was set aside: checkpoints by their folders, and metrics."""
    found = [*folder.path.glob("set-aside-*/checkpoints/*"), *folder.path.glob("set-aside-*/*.jsonl")]
    return sorted(path.relative_to(folder.path).as_posix() for path in found)


def commit(folder: RunFolder, *rounds: int) -> None:
    with PoolStore.open(folder.pool, create=False) as store:
        for round_ in rounds:
            commit_round(folder, store, record(round_), save)


def test_a_new_run_has_its_settings_and_an_empty_store(folder: RunFolder) -> None:
    assert folder.config.read_text(encoding="utf-8") == CONFIG
    assert RunFolder.open(folder.path) == folder
    with PoolStore.open(folder.pool, create=False) as store:
        assert folder.restore(store) is None


@pytest.mark.parametrize(
    ("rounds", "held"),
    [
        ((0,), "0 rounds"),
        ((0, 1), "1 round"),
        ((1,), "1 round"),
        ((0, 1, 2, 3), "3 rounds"),
    ],
)
def test_a_run_is_never_started_over_another(folder: RunFolder, rounds: Sequence[int], held: str) -> None:
    """Round 0 is the start of a run: it is not counted."""
    commit(folder, *rounds)
    with pytest.raises(UsageError) as caught:
        RunFolder.create(folder.path, "")
    assert str(caught.value) == (
        f"{folder.path} already holds a run of {held}; continue it with --resume or choose another --out"
    )
    assert folder.config.read_text(encoding="utf-8") == CONFIG


def test_a_start_that_failed_before_its_first_round_is_started_anew(folder: RunFolder) -> None:
    seed = Seed(id="s", environment="d", spec={}, skills=())
    with PoolStore.open(folder.pool, create=False) as store:
        store.put_base([seed])
    left = write_checkpoint(folder.checkpoints, 0, save, run=run_id(folder))  # killed before the commit
    assert left.exists()
    assert RunFolder.create(folder.path, "seed = 8\n") == folder
    assert folder.config.read_text(encoding="utf-8") == "seed = 8\n"
    with PoolStore.open(folder.pool, create=False) as store:
        store.put_base([replace(seed, skills=("add",))])
        assert folder.restore(store) is None
    assert checkpoints(folder.checkpoints) == {}
    assert set_aside(folder) == []


def test_a_checkpoint_that_a_start_which_failed_may_not_have_left_is_kept(folder: RunFolder) -> None:
    """It is of another run: nobody knows whether its round was ever committed."""
    write_checkpoint(folder.checkpoints, 0, save)
    RunFolder.create(folder.path, CONFIG)
    assert checkpoints(folder.checkpoints) == {}
    assert set_aside(folder) == ["set-aside-1/checkpoints/round-0000"]


@pytest.mark.usefixtures("impatient")
def test_a_start_that_is_under_way_is_left_alone(folder: RunFolder) -> None:
    with folder.lock(), pytest.raises(UsageError, match="demo is being written by another process"):
        RunFolder.create(folder.path, "")
    assert folder.config.read_text(encoding="utf-8") == CONFIG


@pytest.mark.parametrize("lost", [b"", None])
def test_a_run_that_lost_its_store_is_not_taken_for_a_start_that_failed(
    folder: RunFolder, lost: bytes | None
) -> None:
    commit(folder, 1)
    folder.pool.unlink()
    if lost is not None:
        folder.pool.write_bytes(lost)
        folder.metrics.write_text("{}")
    else:
        folder.metrics.unlink()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(folder.path, "")
    assert list(checkpoints(folder.checkpoints)) == [1]


def test_a_creation_that_was_killed_can_be_repeated(folder: RunFolder) -> None:
    folder.config.unlink()  # it is written last
    assert RunFolder.create(folder.path, CONFIG) == folder


def test_the_newest_checkpoint_is_that_of_the_last_committed_round(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        folder.checkpoint(None)
    commit(folder, 1, 2)
    write_checkpoint(folder.checkpoints, 3, save, run=run_id(folder))  # a round that is being committed
    assert folder.checkpoint(None) == (folder.checkpoint_path(2), 2)
    with pytest.raises(UsageError, match="keeps no checkpoint of round 3; it keeps 1, 2"):
        folder.checkpoint(3)


def test_who_comes_second_leaves_what_the_first_was_started_with(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "seed = 1\n", started="seed = 1\n")
    commit(folder, 0)
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", "seed = 2\n", started="seed = 2\n")
    assert folder.started.read_text(encoding="utf-8") == "seed = 1\n"


def test_a_configuration_of_ones_own_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(UsageError, match=r"has a config\.toml that is of no run; choose another --out"):
        RunFolder.create(tmp_path, "")


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(UsageError, match="is a file; choose another --out"):
        RunFolder.create(tmp_path / "demo", "")


def test_a_folder_without_a_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run; name the folder of a run"):
        RunFolder.open(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        RunFolder.open(tmp_path / "nothing")


@pytest.mark.parametrize("part", ["config.toml", "pool.db"])
def test_a_run_that_lost_a_part_is_damaged(folder: RunFolder, part: str) -> None:
    (folder.path / part).unlink()
    with pytest.raises(DataError, match=f"{part} is missing; restore a copy"):
        RunFolder.open(folder.path)


def test_a_commit_leaves_a_checkpoint_a_round_and_a_line(folder: RunFolder) -> None:
    commit(folder, 1, 2, 3)
    assert list(checkpoints(folder.checkpoints)) == [2, 3]
    lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    assert lines[2] == '{"round": 3, "agent/success_rate": 0.3, "time/rollout_s": 1.5}'
    with PoolStore.open(folder.pool, create=False) as store:
        assert store.rounds() == (1, 2, 3)


def test_a_round_is_one_line_whatever_the_order_of_its_metrics() -> None:
    line = metrics_line(3, {"agent/reward": 0.5, "agent/kl": 0.0})
    assert line == '{"round": 3, "agent/kl": 0.0, "agent/reward": 0.5}\n'
    assert line == metrics_line(3, {"agent/kl": 0.0, "agent/reward": 0.5})


def die(*_: object, **__: object) -> None:
    raise Killed


KILLS = {
    "while saving": ("genenv.runs.folder.new_checkpoint", 1),
    "between checkpoint and store": ("genenv.runs.store.store.PoolStore.commit_round", 1),
    "inside the transaction": ("genenv.runs.store.store._write_groups", 1),
    "before the mark in the checkpoint": ("genenv.runs.folder.mark_committed", 2),
    "before the metrics are on the disk": ("genenv.runs.folder.metrics_line", 2),
    "while pruning": ("genenv.runs.folder.prune", 2),
}


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_costs_at_most_the_round_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    """Whatever the instant, the resumed run ends like one that was never interrupted."""
    whole = RunFolder.create(tmp_path / "whole", CONFIG)
    commit(whole, 1, 2, 3)
    broken = RunFolder.create(tmp_path / "broken", CONFIG)
    commit(broken, 1)
    target, survives = KILLS[kill]
    with monkeypatch.context() as patch:
        patch.setattr(target, die)
        with pytest.raises(Killed):
            commit(broken, 2)
    with PoolStore.open(broken.pool, create=False) as store:
        last = broken.restore(store)
        assert last == survives
        assert max(checkpoints(broken.checkpoints)) == last
    commit(broken, *range(last + 1, 4))
    with PoolStore.open(whole.pool, create=False) as one, PoolStore.open(broken.pool, create=False) as two:
        assert one.digest() == two.digest()
    assert broken.metrics.read_bytes() == whole.metrics.read_bytes()
    assert list(checkpoints(broken.checkpoints)) == [2, 3]


def lose_lines(lines: list[str]) -> str:
    return lines[0]


def cut_last_line(lines: list[str]) -> str:
    return "".join(lines)[:-9]


def add_a_line(lines: list[str]) -> str:
    return "".join(lines) + metrics_line(3, {"agent/success_rate": 0.5})


@pytest.mark.parametrize("spoil", [lose_lines, cut_last_line, add_a_line])
def test_metrics_are_rebuilt_from_the_store(folder: RunFolder, spoil: Callable[[list[str]], str]) -> None:
    commit(folder, 1, 2)
    whole = folder.metrics.read_text(encoding="utf-8")
    folder.metrics.write_text(spoil(whole.splitlines(keepends=True)), encoding="utf-8")
    with PoolStore.open(folder.pool, create=False) as store:
        assert folder.restore(store) == 2
    assert folder.metrics.read_text(encoding="utf-8") == whole


def test_a_checkpoint_of_an_uncommitted_round_is_discarded(folder: RunFolder) -> None:
    commit(folder, 1)
    write_checkpoint(folder.checkpoints, 2, save, run=run_id(folder))
    told: list[str] = []
    with PoolStore.open(folder.pool, create=False) as store:
        folder.restore(store, told.append)
    assert list(checkpoints(folder.checkpoints)) == [1]
    assert (set_aside(folder), told) == ([], [])


@pytest.mark.parametrize("why", ["marked", "two rounds ahead", "two of them", "of another run", "metrics"])
def test_a_checkpoint_that_may_have_been_committed_is_set_aside(folder: RunFolder, why: str) -> None:
    """Unless everything speaks for a kill between checkpoint and store, the store may be the older one."""
    commit(folder, 1)
    rounds = {"two rounds ahead": (3,), "two of them": (2, 3)}.get(why, (2,))
    for round_ in rounds:
        run = "other" if why == "of another run" else run_id(folder)
        path = write_checkpoint(folder.checkpoints, round_, save, run=run)
        if why == "marked":
            mark_committed(path)
    if why == "metrics":
        with folder.metrics.open("a") as file:
            file.write(metrics_line(2, {}))
    told: list[str] = []
    with PoolStore.open(folder.pool, create=False) as store:
        folder.restore(store, told.append)
        assert folder.restore(store, told.append) == 1, "what was set aside is not met again"
    assert list(checkpoints(folder.checkpoints)) == [1]
    expected = [f"set-aside-1/checkpoints/round-{round_:04d}" for round_ in rounds]
    assert set_aside(folder) == expected + (["set-aside-1/metrics.jsonl"] if why == "metrics" else [])
    assert len(told) == 1
    assert f"set aside in {folder.path / 'set-aside-1'}, nothing was deleted" in told[0]


def test_what_was_set_aside_before_stays(folder: RunFolder) -> None:
    commit(folder, 1)
    for _ in range(2):
        with folder.metrics.open("a") as file:
            file.write("more\n")
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store)
    assert set_aside(folder) == ["set-aside-1/metrics.jsonl", "set-aside-2/metrics.jsonl"]


@pytest.mark.parametrize("damage", ["checkpoint", "store"])
def test_nothing_is_touched_before_all_that_is_needed_is_proven(folder: RunFolder, damage: str) -> None:
    commit(folder, 1)
    write_checkpoint(folder.checkpoints, 2, save, run=run_id(folder))
    (folder.checkpoints / ".writing-round-0003").mkdir()
    folder.metrics.write_text("spoilt")
    with PoolStore.open(folder.pool, create=False) as store:
        if damage == "store":
            store._db.run("UPDATE rounds SET timings = '{}'")
        else:
            (checkpoint_path(folder.checkpoints, 1) / "weights.bin").write_bytes(b"W")
        before = sorted(folder.path.rglob("*"))
        with pytest.raises(DataError, match="is damaged"):
            folder.restore(store)
    gone = set(before) - set(folder.path.rglob("*"))
    assert not {path for path in gone if not path.name.startswith("pool.db-")}
    assert folder.metrics.read_text() == "spoilt"


def test_a_committed_round_marks_its_checkpoint_and_a_resumed_run_makes_up_for_it(folder: RunFolder) -> None:
    commit(folder, 1)
    path = checkpoint_path(folder.checkpoints, 1)
    assert is_committed(path)
    (path / "COMMITTED").unlink()  # a kill between the store and the mark
    with PoolStore.open(folder.pool, create=False) as store:
        folder.restore(store)
    assert is_committed(path)


@pytest.mark.usefixtures("impatient")
def test_a_second_writer_is_turned_away(folder: RunFolder) -> None:
    turned_away = pytest.raises(UsageError, match=r"demo is being written by another process \(process \d+\)")
    with folder.lock(), turned_away, folder.lock():
        pass
    with folder.lock():
        pass


@pytest.mark.usefixtures("impatient")
def test_a_lock_dies_with_its_process(folder: RunFolder) -> None:
    script = (
        "import os, sys; from pathlib import Path; from genenv.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True); sys.stdin.readline(); os._exit(9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match=f"process {process.pid}"), folder.lock():
            pass
        process.communicate("\n")
    with folder.lock():
        pass


def test_looking_whether_a_run_is_written_never_keeps_it_from_being_written(tmp_path: Path) -> None:
    lock, looks = tmp_path / ".lock", list[bool]()
    assert not is_held(lock), "there is none yet"
    with locked(tmp_path, lock):
        assert is_held(lock)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            looks.append(is_held(lock))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(300):
        with locked(tmp_path, lock):
            pass
    done.set()
    reader.join()
    assert looks
    assert not is_held(lock)
    lock.unlink()
    lock.symlink_to(tmp_path / "other")
    assert not is_held(lock)
