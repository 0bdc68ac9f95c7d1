"""Checkpoints and rounds written by a function, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from genenv.runs.checkpoint import checkpoint_path, new_checkpoint
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore

Save = Callable[[Path], None]


def write_checkpoint(root: Path, round_: int, save: Save, *, run: str = "another") -> Path:
    with new_checkpoint(root, round_, run=run) as empty:
        save(empty)
    return checkpoint_path(root, round_)


def commit(folder: RunFolder, store: PoolStore, record: RoundRecord, save: Save, *, keep: int = 2) -> None:
    with folder.committing(store, record, keep=keep) as empty:
        save(empty)
