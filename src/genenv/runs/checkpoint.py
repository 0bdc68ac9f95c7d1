"""Checkpoints on disk: `round-NNNN` is always whole, because it gets its name when all of it is on the disk.

A checkpoint is written into a hidden folder next to it, flushed to the disk and renamed; it is deleted the
other way round. So a folder named `round-NNNN` was never half-written by a kill; what may have been is
hidden, and swept at the next start. `MANIFEST.json` in each checkpoint says of which run and round it is, and
has size and SHA-256 of every file, to notice later damage. `COMMITTED` is added when the store has the round:
a checkpoint without it, of a round that the store has not, is what a kill left between the two.
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
from genenv.runs.store.records import Identity

MANIFEST = "MANIFEST.json"
COMMITTED = "COMMITTED"

_NAME = re.compile(r"round-(\d{4,})")
_HIDDEN = (".writing-", ".deleting-")


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


@contextmanager
def new_checkpoint(root: Path, round_: int, *, run: str | None = None) -> Generator[Path]:
    """Write the checkpoint of a round; a kill at any instant leaves all of it or nothing with its name.

    Args:
        root: the run's folder of checkpoints; made when it is missing.
        round_: the round.
        run: id of the run; None writes what genenv wrote before runs had ids.

    Yields:
        An empty folder for all that is to be in it; afterwards that has the checkpoint's name.

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
    """Note in a checkpoint that the store has its round."""
    mark = path / COMMITTED
    if not mark.exists():
        mark.write_text("the store has this round\n", encoding="utf-8")
        sync(mark)
        sync(path)


def is_committed(path: Path) -> bool:
    """Whether a checkpoint has the mark of a round that the store had."""
    return (path / COMMITTED).exists()


def never_committed(path: Path, identity: Identity) -> bool:
    """Whether a checkpoint, of a round that the store has not, is one that a kill kept from being committed.

    That takes proof: a readable manifest of this run and of the folder's round, and no mark. Anything else
    may be all that is left of a round that was committed, to a store that is lost.
    """
    try:
        manifest = _read_manifest(path)
    except DataError:
        return False
    whose = (manifest.run, manifest.round) == (identity.id, checkpoint_round(path))
    return whose and not is_committed(path)


def verify_checkpoint(path: Path, identity: Identity | None, *, sha256: bytes | None = None) -> None:
    """See whether a checkpoint is this run's, of the round in its name, and whole.

    Args:
        path: the checkpoint.
        identity: of the run; None where its store cannot be read.
        sha256: of the manifest that the store knows; None where it knows none.

    Raises:
        DataError: it is of another run or round, or a file is missing or damaged; names it.
    """
    manifest = _read_manifest(path)
    number = checkpoint_round(path)
    if manifest.round != number:
        raise DataError(f"{path} is the checkpoint of round {manifest.round}, not of {number}; {MEND}")
    if identity is not None and not _is_of(manifest, identity):
        whose = "names no run, as this run's do" if manifest.run is None else "is of another run"
        raise DataError(f"{path} {whose}; {MEND}")
    if sha256 is not None and sha256 != manifest.sha256:
        raise DataError(
            f"{path} is not the checkpoint that round {number} was committed with "
            f"(its {MANIFEST} is another); {MEND}"
        )
    for name, (size, file_sha256) in manifest.files.items():
        _verify_file(path / name, size, file_sha256)


def _is_of(manifest: _Manifest, identity: Identity) -> bool:
    """Whether a checkpoint names the run, or is so old that it names none."""
    return manifest.run == identity.id or (manifest.run is None and manifest.round <= identity.legacy_until)


def _verify_file(file: Path, size: int, sha256: str) -> None:
    if not file.is_file():
        raise DataError(f"{file} is missing; {MEND}")
    found = file.stat().st_size
    if found != size:
        raise DataError(f"{file} is damaged ({found} bytes instead of {size}); {MEND}")
    if _sha256(file) != sha256:
        raise DataError(f"{file} is damaged (its SHA-256 is not the one in {MANIFEST}); {MEND}")


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
        discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint, so that a kill meanwhile leaves none with its name."""
    hidden = path.with_name(f".deleting-{path.name}")
    _remove(hidden)
    path.rename(hidden)
    _remove(hidden)


def sweep(root: Path) -> None:
    """Delete what a kill left half-written or half-deleted.

    Args:
        root: the run's folder of checkpoints; may be missing.
    """
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(_HIDDEN):
                _remove(path)


def manifest_sha256(path: Path) -> bytes:
    """SHA-256 of a checkpoint's manifest: all that the checkpoint holds depends on it.

    Raises:
        DataError: the manifest is missing or damaged.
    """
    return _read_manifest(path).sha256


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """What a checkpoint says of itself."""

    run: str | None
    """None where it was written before runs had ids."""
    round: int
    files: Mapping[str, tuple[int, str]]
    """Size and SHA-256 by name."""
    sha256: bytes
    """Of the manifest itself."""


def _write_manifest(folder: Path, round_: int, run: str | None) -> None:
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    text = json.dumps({**({} if run is None else {"run": run}), "round": round_, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _read_manifest(path: Path) -> _Manifest:
    """What a checkpoint says of itself.

    Raises:
        DataError: its manifest is missing or damaged.
    """
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise DataError(f"{manifest} is missing; {MEND}")
    data = manifest.read_bytes()
    try:
        found = cast("dict[str, object]", json.loads(data))
        files = cast("dict[str, dict[str, str]]", found["files"])
        return _Manifest(
            run=None if found.get("run") is None else str(found["run"]),
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
