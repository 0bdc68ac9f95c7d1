"""Checkpoints on disk: `round-NNNN` is always whole, because it gets its name when all of it is on the disk.

A checkpoint is written into a hidden folder next to it, flushed to the disk and renamed; it is deleted the
other way round. So a folder named `round-NNNN` was never half-written by a kill; what may have been is
hidden, and swept at the next start. `MANIFEST.json` in each checkpoint has size and SHA-256 of every file,
to notice later damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from genenv.errors import DataError, disk_is_full

MANIFEST = "MANIFEST.json"

_NAME = re.compile(r"round-(\d{4,})")
_HIDDEN = (".writing-", ".deleting-")
_MEND = "restore a copy of it, or start a new run"


def checkpoint_path(root: Path, round_: int) -> Path:
    """Where the checkpoint of a round is, or would be."""
    return root / f"round-{round_:04d}"


def checkpoint_round(path: Path) -> int:
    """The round of a checkpoint.

    Raises:
        ValueError: the folder is not named like a checkpoint.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not named like a checkpoint")
    return int(match[1])


def write_checkpoint(root: Path, round_: int, save: Callable[[Path], None]) -> Path:
    """Write the checkpoint of a round; a kill at any instant leaves all of it or nothing with its name.

    Args:
        root: the run's folder of checkpoints; made when it is missing.
        round_: the round.
        save: writes everything into the empty folder it is given.

    Returns:
        The checkpoint.

    Raises:
        DataError: the disk is full.
        FileExistsError: the round has a checkpoint; `discard_after` removes those that were not committed.
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
            save(hidden)
            _write_manifest(hidden, round_)
            for folder, _, names in os.walk(hidden):
                for name in names:
                    sync(Path(folder, name))
                sync(Path(folder))
            hidden.rename(path)
        except BaseException:
            _remove(hidden)
            raise
        sync(root)
    return path


def verify_checkpoint(path: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        DataError: a file is missing or damaged; names it.
    """
    for name, (size, sha256) in _read_manifest(path).items():
        file = path / name
        if not file.is_file():
            raise DataError(f"{file} is missing; {_MEND}")
        found = file.stat().st_size
        if found != size:
            raise DataError(f"{file} is damaged ({found} bytes instead of {size}); {_MEND}")
        if _sha256(file) != sha256:
            raise DataError(f"{file} is damaged (its SHA-256 is not the one in {MANIFEST}); {_MEND}")


def checkpoints(root: Path) -> dict[int, Path]:
    """All checkpoints by round, oldest first."""
    if not root.is_dir():
        return {}
    found = {checkpoint_round(path): path for path in root.iterdir() if _NAME.fullmatch(path.name)}
    return dict(sorted(found.items()))


def prune(root: Path, keep: int, last_committed: int) -> None:
    """Delete old checkpoints, after a round was committed.

    Args:
        root: the run's folder of checkpoints.
        keep: how many to keep, >= 1.
        last_committed: the store's last round. The newest `keep` checkpoints up to it stay, so the one that a
            resumed run needs is among them; newer ones are not touched.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    committed = [path for number, path in checkpoints(root).items() if number <= last_committed]
    for path in committed[:-keep]:
        _delete(path)


def discard_after(root: Path, last_committed: int | None) -> None:
    """Delete what a killed run left: half-written folders, and checkpoints of rounds that were not committed.

    Args:
        root: the run's folder of checkpoints; may be missing.
        last_committed: the store's last round; None when it has none.
    """
    for number, path in checkpoints(root).items():
        if last_committed is None or number > last_committed:
            _delete(path)
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(_HIDDEN):
                _remove(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    hidden = path.with_name(f".deleting-{path.name}")
    _remove(hidden)
    path.rename(hidden)
    _remove(hidden)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _write_manifest(folder: Path, round_: int) -> None:
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    text = json.dumps({"round": round_, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _read_manifest(path: Path) -> Mapping[str, tuple[int, str]]:
    """Size and SHA-256 by file name."""
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise DataError(f"{manifest} is missing; {_MEND}")
    try:
        files = cast("dict[str, dict[str, str]]", json.loads(manifest.read_bytes())["files"])
        return {name: (int(entry["bytes"]), entry["sha256"]) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise DataError(f"{manifest} is damaged ({type(err).__name__}: {err}); {_MEND}") from err


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
