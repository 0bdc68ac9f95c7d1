"""Checkpoints on disk: atomic creation and deletion, and verification.

A checkpoint is written into a hidden folder, flushed to the disk and renamed to `round-NNNN`. Deletion is the
reverse. So a folder named `round-NNNN` is always complete. A killed process leaves only hidden folders, which
the next start deletes. `MANIFEST.json` in each checkpoint contains the run, the round, and the size and
SHA-256 of every file, to detect later damage. `COMMITTED` is added once the store has the round. A checkpoint
without it, of a round that the store does not have, was left by a process killed in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from genenv.errors import DataError, disk_is_full
from genenv.files import sync
from genenv.runs.store.database import MEND

MANIFEST = "MANIFEST.json"
COMMITTED = "COMMITTED"

_NAME = re.compile(r"round-(\d{4,})")
_HIDDEN = (".writing-", ".deleting-")


def checkpoint_path(root: Path, round_: int) -> Path:
    """Return the path of a round's checkpoint, whether it exists or not."""
    return root / f"round-{round_:04d}"


def checkpoint_round(path: Path) -> int:
    """Return the round of a checkpoint.

    Raises:
        ValueError: the folder is not named like a checkpoint.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not named like a checkpoint")
    return int(match[1])


@contextmanager
def new_checkpoint(root: Path, round_: int, *, run: str) -> Generator[Path]:
    """Write the checkpoint of a round atomically: a kill leaves all of it or nothing with its name.

    Args:
        root: the run's folder of checkpoints; created if missing.
        round_: the round.
        run: id of the run.

    Yields:
        An empty folder to fill. After the block it has the checkpoint's name.

    Raises:
        DataError: the disk is full.
        FileExistsError: the round has a checkpoint; `RunFolder.restore` removes those not committed.
    """
    path = checkpoint_path(root, round_)
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    hidden = root / f".writing-{path.name}"
    with _disk_full_is_data(root):
        root.mkdir(parents=True, exist_ok=True)
        _remove(hidden)
        hidden.mkdir()
        try:
            yield hidden
            _write_manifest(hidden, round_, run)
            for folder, _, names in os.walk(hidden):
                for name in names:
                    sync(Path(folder, name))
                sync(Path(folder))
            hidden.rename(path)
        except BaseException:
            _remove(hidden)
            raise
        sync(root)


def mark_committed(path: Path) -> None:
    """Mark a checkpoint as one whose round is in the store."""
    mark = path / COMMITTED
    if not mark.exists():
        mark.write_text("the store has this round\n", encoding="utf-8")
        sync(mark)
        sync(path)


def is_committed(path: Path) -> bool:
    """Return whether a checkpoint has the mark of a committed round."""
    return (path / COMMITTED).exists()


def never_committed(path: Path, run: str) -> bool:
    """Return whether a checkpoint was certainly left by a process killed before the commit.

    That takes proof: a readable manifest of this run and of the folder's round, and no mark. Any other
    checkpoint may be the remains of a committed round whose store is lost.
    """
    try:
        manifest = _read_manifest(path)
    except DataError:
        return False
    return (manifest.run, manifest.round) == (run, checkpoint_round(path)) and not is_committed(path)


def verify_checkpoint(path: Path, run: str | None, *, sha256: bytes | None = None) -> None:
    """Check that a checkpoint belongs to this run and the round in its name, and is intact.

    Args:
        path: the checkpoint.
        run: id of the run; None if the store cannot be read.
        sha256: SHA-256 of the manifest according to the store; None if the store has none.

    Raises:
        DataError: it belongs to another run or round, or a file is missing or damaged. The message names it.
    """
    manifest = _read_manifest(path)
    number = checkpoint_round(path)
    if manifest.round != number:
        raise DataError(f"{path} is the checkpoint of round {manifest.round}, not of {number}; {MEND}")
    if run not in (None, manifest.run):
        raise DataError(f"{path} is of another run; {MEND}")
    if sha256 is not None and sha256 != manifest.sha256:
        raise DataError(
            f"{path} is not the checkpoint that round {number} was committed with "
            f"(its {MANIFEST} is another); {MEND}"
        )
    for name, (size, file_sha256) in manifest.files.items():
        _verify_file(path / name, size, file_sha256)


def _verify_file(file: Path, size: int, sha256: str) -> None:
    if not file.is_file():
        raise DataError(f"{file} is missing; {MEND}")
    found = file.stat().st_size
    if found != size:
        raise DataError(f"{file} is damaged ({found} bytes instead of {size}); {MEND}")
    if _sha256(file) != sha256:
        raise DataError(f"{file} is damaged (its SHA-256 is not the one in {MANIFEST}); {MEND}")


def checkpoints(root: Path) -> dict[int, Path]:
    """Return all checkpoints by round, oldest first."""
    if not root.is_dir():
        return {}
    found = {checkpoint_round(path): path for path in root.iterdir() if _NAME.fullmatch(path.name)}
    return dict(sorted(found.items()))


def prune(root: Path, keep: int, last_committed: int) -> None:
    """Delete old checkpoints after a round was committed.

    Args:
        root: the run's folder of checkpoints.
        keep: number of checkpoints to keep, >= 1.
        last_committed: the store's last round. The newest `keep` checkpoints up to this round stay, so the
            one for resuming is among them. Later checkpoints are not touched.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    committed = [path for number, path in checkpoints(root).items() if number <= last_committed]
    for path in committed[:-keep]:
        discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint, so that a kill in between leaves no folder with its name."""
    hidden = path.with_name(f".deleting-{path.name}")
    _remove(hidden)
    path.rename(hidden)
    _remove(hidden)


def sweep(root: Path) -> None:
    """Delete the half-written and half-deleted checkpoints that a killed process left.

    Args:
        root: the run's folder of checkpoints; may be missing.
    """
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(_HIDDEN):
                _remove(path)


def manifest_sha256(path: Path) -> bytes:
    """Return the SHA-256 of a checkpoint's manifest, which covers all files of the checkpoint.

    Raises:
        DataError: the manifest is missing or damaged.
    """
    return _read_manifest(path).sha256


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """The contents of a checkpoint's `MANIFEST.json`."""

    run: str
    round: int
    files: Mapping[str, tuple[int, str]]
    """Size and SHA-256 of each file, by name."""
    sha256: bytes
    """SHA-256 of the manifest file."""


def _write_manifest(folder: Path, round_: int, run: str) -> None:
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    text = json.dumps({"run": run, "round": round_, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _read_manifest(path: Path) -> _Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        DataError: the manifest is missing or damaged.
    """
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise DataError(f"{manifest} is missing; {MEND}")
    data = manifest.read_bytes()
    try:
        found = cast("dict[str, object]", json.loads(data))
        files = cast("dict[str, dict[str, str]]", found["files"])
        return _Manifest(
            run=str(found["run"]),
            round=int(cast("int", found["round"])),
            files={name: (int(entry["bytes"]), entry["sha256"]) for name, entry in files.items()},
            sha256=hashlib.sha256(data).digest(),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise DataError(f"{manifest} is damaged ({type(err).__name__}: {err}); {MEND}") from err


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _disk_full_is_data(root: Path) -> Generator[None]:
    try:
        yield
    except Exception as err:
        if not disk_is_full(err):
            raise
        raise DataError(
            f"the disk is full, no checkpoint was written to {root}; free some space and continue the run"
        ) from err
