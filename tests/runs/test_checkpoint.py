"""Checkpoints: whole or absent, verified, and never more of them than wanted."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from genenv.errors import DataError
from genenv.runs.checkpoint import (
    MANIFEST,
    checkpoints,
    discard,
    mark_committed,
    never_committed,
    prune,
    sweep,
    verify_checkpoint,
)
from saving import write_checkpoint

MINE = "mine"


class Killed(BaseException):
    """Stands for a signal: no `except Exception` sees it."""


def save(folder: Path) -> None:
    (folder / "agent").mkdir()
    (folder / "agent" / "weights.bin").write_bytes(b"weights" * 100)
    (folder / "random.json").write_text('{"state": [1, 2]}')


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_checkpoint_holds_what_was_saved_and_a_manifest(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 3, save, run="mine")
    assert path == tmp_path / "checkpoints" / "round-0003"
    assert (path / "agent" / "weights.bin").read_bytes() == b"weights" * 100
    manifest = json.loads((path / MANIFEST).read_text())
    assert (manifest["run"], manifest["round"]) == ("mine", 3)
    assert manifest["files"]["agent/weights.bin"]["bytes"] == 700
    assert set(manifest["files"]) == {"agent/weights.bin", "random.json"}
    verify_checkpoint(path, MINE)


@pytest.mark.parametrize("stage", ["save", "sync", "rename"])
def test_a_kill_while_writing_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A killed process cleans nothing up, so cleaning up is switched off too."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("genenv.runs.checkpoint._remove", lambda path: None)
        if stage == "sync":
            patch.setattr("genenv.runs.checkpoint.sync", die)
        if stage == "rename":
            patch.setattr(Path, "rename", die)
        with pytest.raises(Killed):
            write_checkpoint(tmp_path, 1, die if stage == "save" else save)
    assert checkpoints(tmp_path) == {}
    assert names(tmp_path) == [".writing-round-0001"]
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_left_over_folder_does_not_leak_into_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".writing-round-0001").mkdir()
    (tmp_path / ".writing-round-0001" / "stale.bin").write_bytes(b"old")
    path = write_checkpoint(tmp_path, 1, save)
    assert names(path) == [MANIFEST, "agent", "random.json"]


def test_an_error_while_saving_passes_and_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        save(folder)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        write_checkpoint(tmp_path, 1, broken)
    assert names(tmp_path) == []


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        save(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match="the disk is full, no checkpoint was written to"):
        write_checkpoint(tmp_path, 1, full)
    assert names(tmp_path) == []


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, save)
    with pytest.raises(FileExistsError, match="round-0001 exists already"):
        write_checkpoint(tmp_path, 1, save)


def cut(path: Path) -> str:
    (path / "agent" / "weights.bin").write_bytes(b"weights" * 99)
    return r"weights\.bin is damaged \(693 bytes instead of 700\)"


def flip(path: Path) -> str:
    (path / "agent" / "weights.bin").write_bytes(b"Weights" + b"weights" * 99)
    return r"weights\.bin is damaged \(its SHA-256"


def lose(path: Path) -> str:
    (path / "random.json").unlink()
    return r"random\.json is missing"


def lose_manifest(path: Path) -> str:
    (path / MANIFEST).unlink()
    return r"MANIFEST\.json is missing"


def cut_manifest(path: Path) -> str:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:40])
    return r"MANIFEST\.json is damaged"


def strange_manifest(path: Path) -> str:
    (path / MANIFEST).write_text("[1]")
    return r"MANIFEST\.json is damaged"


@pytest.mark.parametrize("damage", [cut, flip, lose, lose_manifest, cut_manifest, strange_manifest])
def test_damage_is_noticed_and_the_file_named(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    path = write_checkpoint(tmp_path, 1, save, run="mine")
    message = damage(path)
    with pytest.raises(DataError, match=message + ".*; restore a copy of it, or start a new run"):
        verify_checkpoint(path, MINE)


@pytest.mark.parametrize(
    ("run", "named", "whose", "message"),
    [
        ("mine", 1, MINE, None),
        ("mine", 2, MINE, "round-0002 is the checkpoint of round 1, not of 2"),
        ("yours", 1, MINE, "round-0001 is of another run"),
        ("yours", 1, None, None),
        ("yours", 2, None, "is the checkpoint of round 1"),
    ],
)
def test_a_checkpoint_is_of_one_run_and_one_round(
    tmp_path: Path, run: str, named: int, whose: str | None, message: str | None
) -> None:
    path = write_checkpoint(tmp_path, 1, save, run=run).rename(tmp_path / f"round-{named:04d}")
    if message is None:
        verify_checkpoint(path, whose)
    else:
        with pytest.raises(DataError, match=message):
            verify_checkpoint(path, whose)


def test_that_a_checkpoint_was_never_committed_takes_proof(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, save, run="mine")
    assert never_committed(path, MINE)
    assert not never_committed(path, "yours")
    assert not never_committed(write_checkpoint(tmp_path, 2, save), MINE)
    assert not never_committed(path.rename(tmp_path / "round-0003"), MINE)
    mark_committed((tmp_path / "round-0003").rename(path))
    assert not never_committed(path, MINE)
    (path / MANIFEST).unlink()
    assert not never_committed(path, MINE)


def test_checkpoints_are_listed_by_the_number_of_their_round(tmp_path: Path) -> None:
    for round_ in (10, 10000, 2):
        write_checkpoint(tmp_path, round_, save)
    assert list(checkpoints(tmp_path)) == [2, 10, 10000]


@pytest.mark.parametrize(
    ("keep", "last_committed", "left"),
    [(2, 4, [3, 4, 5]), (1, 4, [4, 5]), (9, 5, [1, 2, 3, 4, 5]), (1, 5, [5]), (2, 0, [1, 2, 3, 4, 5])],
)
def test_pruning_keeps_what_a_resumed_run_needs(
    tmp_path: Path, keep: int, last_committed: int, left: list[int]
) -> None:
    for round_ in range(1, 6):
        write_checkpoint(tmp_path, round_, save)
    prune(tmp_path, keep, last_committed)
    assert names(tmp_path) == [f"round-{round_:04d}" for round_ in left]


def test_keeping_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1"):
        prune(tmp_path, 0, 1)


def test_a_kill_while_deleting_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for round_ in (1, 2):
        write_checkpoint(tmp_path, round_, save)

    def die(path: Path) -> None:
        (path / "random.json").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("genenv.runs.checkpoint.shutil.rmtree", die)
        with pytest.raises(Killed):
            prune(tmp_path, 1, 2)
    assert list(checkpoints(tmp_path)) == [2]
    sweep(tmp_path)
    assert names(tmp_path) == ["round-0002"]


def test_discarding_deletes_one_checkpoint_and_sweeping_none(tmp_path: Path) -> None:
    for round_ in (1, 2, 3):
        write_checkpoint(tmp_path, round_, save)
    discard(tmp_path / "round-0003")
    sweep(tmp_path)
    assert names(tmp_path) == ["round-0001", "round-0002"]
    sweep(tmp_path / "missing")
