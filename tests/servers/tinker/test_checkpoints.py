"""Checkpoints on disk: those that have expired, and those that are replaced while somebody looks them up."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from genenv.errors import DataError, UsageError
from genenv.servers.tinker.checkpoints import CheckpointInfo, CheckpointPath, CheckpointStore, later, now
from genenv.servers.tinker.replies import NotHere

PLACE = CheckpointPath(run="r:train:0", kind="weights", name="a")


def about(expires_at: str | None = None) -> CheckpointInfo:
    return CheckpointInfo(rank=4, base_model="tiny", time=now(), expires_at=expires_at)


def save(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"weights")


def expired(store: CheckpointStore, place: CheckpointPath = PLACE) -> Path:
    store.write(place, about(later(-1)), save, overwrite=True)
    return store.folder(place)


def test_an_expired_checkpoint_does_not_block_its_name(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    expired(store)
    store.write(PLACE, about(), save, overwrite=False)
    assert store.find(PLACE.path)[1].expires_at is None
    with pytest.raises(UsageError, match="choose another name, or overwrite it"):
        store.write(PLACE, about(), save, overwrite=False)


def test_expired_checkpoints_are_deleted_and_others_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    gone = expired(store)
    kept = CheckpointPath(run="r", kind="sampler_weights", name="b")
    store.write(kept, about(later(1000)), save, overwrite=False)
    damaged = store.folder(CheckpointPath(run="r", kind="weights", name="c"))
    damaged.mkdir(parents=True)
    (damaged / "checkpoint.json").write_text("{")
    assert store.expire() == [gone]
    assert not gone.exists()
    assert store.find(kept.path)[0] == kept
    with pytest.raises(DataError, match="is damaged"):
        store.find("tinker://r/weights/c")


def test_a_damaged_checkpoint_can_be_overwritten(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(PLACE, about(), save, overwrite=False)
    (store.folder(PLACE) / "checkpoint.json").write_text("{")
    store.write(PLACE, about(), save, overwrite=True)
    assert store.find(PLACE.path)[0] == PLACE


def test_a_checkpoint_that_is_overwritten_is_there_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.write(PLACE, about(), save, overwrite=False)
    between, rename = threading.Event(), Path.rename
    found = list[object]()

    def slow(path: Path, target: Path) -> Path:
        """Rename, and let the other thread look the checkpoint up before the next rename."""
        moved = rename(path, target)
        between.set()
        looking.join(0.2)
        return moved

    def look() -> None:
        between.wait(10)
        found.extend((store.find(PLACE.path)[0], store.size_bytes(PLACE) > 0, len(store.of_run(PLACE.run))))

    looking = threading.Thread(target=look)
    looking.start()
    monkeypatch.setattr(Path, "rename", slow)
    store.write(PLACE, about(), save, overwrite=True)
    looking.join(10)
    assert found == [PLACE, True, 1]


def test_a_checkpoint_that_is_deleted_while_it_is_written_anew_is_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(PLACE, about(), save, overwrite=False)

    def saves(folder: Path) -> None:
        store.remove(PLACE)
        save(folder)

    store.write(PLACE, about(), saves, overwrite=True)
    assert store.find(PLACE.path)[0] == PLACE
    assert [one.name for one in store.folder(PLACE).parent.iterdir()] == ["a"]


def test_what_was_deleted_meanwhile_has_no_size_and_cannot_be_changed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(PLACE, about(), save, overwrite=False)
    info = json.loads((store.folder(PLACE) / "checkpoint.json").read_text())
    assert store.size_bytes(PLACE) > 0
    store.remove(PLACE)
    store.remove(PLACE)
    assert store.size_bytes(PLACE) == 0
    with pytest.raises(NotHere):
        store.change(PLACE, CheckpointInfo(**info))
