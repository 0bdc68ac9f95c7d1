"""Checkpoints of the Tinker server on disk: a folder each, below its training run, written atomically.

    FOLDER/runs/RUN/run.json                  metadata of a training run
    FOLDER/runs/RUN/weights/NAME/             tinker://RUN/weights/NAME: adapter, moments, checkpoint.json
    FOLDER/runs/RUN/sampler_weights/NAME/     tinker://RUN/sampler_weights/NAME: adapter, checkpoint.json
    FOLDER/passing/NUMBER/                    adapters of samplers without a name; deleted at the next start

A checkpoint is written into a hidden sibling folder, flushed and renamed. A checkpoint that it replaces is
renamed first, and restored at the next start if the process was killed between the two renames.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, cast

from genenv.backends.served import AdapterShape
from genenv.errors import DataError, UsageError, disk_is_full
from genenv.files import sync, write_whole
from genenv.servers.tinker.replies import NotHere
from genenv.types import Json

Kind = Literal["weights", "sampler_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights")

_SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:=+-]{0,199}")
_WRITING, _ASIDE = ".writing-", ".aside-"
_ABOUT, _RUN = "checkpoint.json", "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPath:
    """The address of a checkpoint: the three parts of a `tinker://` path, by which clients refer to it."""

    run: str
    kind: Kind
    name: str

    @staticmethod
    def of(path: str) -> CheckpointPath:
        """Parse a `tinker://` path.

        Raises:
            UsageError: the path is not the path of a checkpoint.
        """
        parts = path.removeprefix(_SCHEME).split("/")
        if not path.startswith(_SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            raise UsageError(
                f"{path!r} is no path of a checkpoint; they look like tinker://RUN/weights/NAME or "
                "tinker://RUN/sampler_weights/NAME"
            )
        return CheckpointPath(run=checked_name(parts[0]), kind=parts[1], name=checked_name(parts[2]))

    @property
    def path(self) -> str:
        """Return the `tinker://` path."""
        return f"{_SCHEME}{self.run}/{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo(AdapterShape):
    """The metadata of a checkpoint with the shape of its adapter, stored in its `checkpoint.json`."""

    base_model: str
    time: str
    """When the checkpoint was written: ISO 8601, UTC."""
    steps: int = 0
    """The optimizer steps taken before the checkpoint."""
    expires_at: str | None = None
    public: bool = False

    @property
    def shape(self) -> AdapterShape:
        """Return the shape of the checkpoint's adapter."""
        return AdapterShape(**{one.name: getattr(self, one.name) for one in fields(AdapterShape)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The metadata of a training run, stored in its `run.json`."""

    id: str
    base_model: str
    rank: int
    time: str
    user_metadata: Mapping[str, str]


def now() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat()


def later(seconds: int | None) -> str | None:
    """Return the time that is `seconds` from now as ISO 8601, or None for None."""
    return None if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


class CheckpointStore:
    """All checkpoints and training runs of a server, read and written in one folder; `Service` uses it.

    The worker thread writes while the event loop looks up. A lock makes each replacement one step for both.
    """

    def __init__(self, folder: Path) -> None:
        """Open a folder, and repair checkpoints that a killed process left half written.

        Raises:
            OSError: the folder cannot be written.
        """
        self._runs, self._passing = folder / "runs", folder / "passing"
        self._lock = threading.RLock()
        shutil.rmtree(self._passing, ignore_errors=True)
        self._runs.mkdir(parents=True, exist_ok=True)
        self._passing.mkdir()
        for run in self._runs.iterdir():
            for kind in KINDS:
                _mend(run / kind)

    def folder(self, place: CheckpointPath) -> Path:
        """Return the folder of a checkpoint, which need not exist."""
        return self._runs / place.run.replace(":", "-") / place.kind / place.name

    def passing(self, number: int) -> Path:
        """Return the folder of a sampler without a name."""
        return self._passing / str(number)

    def find(self, path: str) -> tuple[CheckpointPath, CheckpointInfo]:
        """Return a checkpoint's address and metadata from its `tinker://` path.

        Raises:
            UsageError: the path is malformed.
            NotHere: there is no such checkpoint, or it has expired.
            DataError: the checkpoint is damaged.
        """
        place = CheckpointPath.of(path)
        about = self._about(place)
        if about is None:
            raise NotHere(f"there is no checkpoint {path}")
        return place, about

    def write(
        self, place: CheckpointPath, about: CheckpointInfo, save: Callable[[Path], None], *, overwrite: bool
    ) -> None:
        """Write a checkpoint atomically.

        Args:
            place: the address of the checkpoint.
            about: its metadata.
            save: writes the weights into an empty folder.
            overwrite: whether to replace a checkpoint of that name.

        Raises:
            UsageError: a checkpoint of that name exists and `overwrite` is False.
            DataError: the disk is full.
        """
        folder = self.folder(place)
        if not overwrite and self._about(place) is not None:
            raise UsageError(
                f"there is a checkpoint {place.path} already; choose another name, or overwrite it"
            )
        writing, aside = (folder.with_name(f"{mark}{folder.name}") for mark in (_WRITING, _ASIDE))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
            save(writing)
            (writing / _ABOUT).write_text(json.dumps(asdict(about), indent=2) + "\n", encoding="utf-8")
            _flush(writing)
        except Exception as error:
            shutil.rmtree(writing, ignore_errors=True)
            if disk_is_full(error):
                raise DataError(f"the disk is full, {place.path} was not written; free some space") from error
            raise
        with self._lock:
            if folder.exists():
                folder.rename(aside)
            writing.rename(folder)
        sync(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)

    def remove(self, place: CheckpointPath) -> None:
        """Delete a checkpoint, if it exists."""
        folder = self.folder(place)
        aside = folder.with_name(f"{_WRITING}{secrets.token_hex(4)}-{folder.name}")  # another may be written
        with self._lock:
            if folder.exists():
                folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def expire(self) -> list[Path]:
        """Delete all expired checkpoints, and return their folders."""
        gone = list[Path]()
        for run in self._runs.iterdir():
            for kind in KINDS:
                for folder in (run / kind).iterdir() if (run / kind).is_dir() else ():
                    if not _NAME.fullmatch(folder.name):
                        continue
                    place = CheckpointPath(run=run.name, kind=kind, name=folder.name)
                    with contextlib.suppress(DataError):  # told to those who ask for it
                        if self._about(place) is None:
                            gone.append(folder)
        return gone

    def change(self, place: CheckpointPath, about: CheckpointInfo) -> None:
        """Replace the metadata of a checkpoint.

        Raises:
            NotHere: there is no such checkpoint any more.
        """
        with self._lock:
            if not self.folder(place).is_dir():
                raise NotHere(f"there is no checkpoint {place.path}")
            write_whole(self.folder(place) / _ABOUT, json.dumps(asdict(about), indent=2) + "\n")

    def note_run(self, run: Run) -> None:
        """Write the metadata of a training run."""
        folder = self._runs / run.id.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _RUN, json.dumps(asdict(run), indent=2) + "\n")

    def runs(self) -> list[Run]:
        """Return all training runs, newest first."""
        found = [run for folder in self._runs.iterdir() if (run := _read_run(folder / _RUN)) is not None]
        return sorted(found, key=lambda run: run.time, reverse=True)

    def of_run(self, run: str) -> list[tuple[CheckpointPath, CheckpointInfo]]:
        """Return the checkpoints of a training run, newest first."""
        found = list[tuple[CheckpointPath, CheckpointInfo]]()
        for kind in KINDS:
            folder = self.folder(CheckpointPath(run=checked_name(run), kind=kind, name="_")).parent
            for path in folder.iterdir() if folder.is_dir() else ():
                if _NAME.fullmatch(path.name):
                    place = CheckpointPath(run=run, kind=kind, name=path.name)
                    if (about := self._about(place)) is not None:
                        found.append((place, about))
        return sorted(found, key=lambda one: one[1].time, reverse=True)

    def size_bytes(self, place: CheckpointPath) -> int:
        """Return the size of a checkpoint on disk in bytes; 0 if it was deleted meanwhile."""
        with self._lock:
            folder = self.folder(place)
            return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0

    def _about(self, place: CheckpointPath) -> CheckpointInfo | None:
        """Return a checkpoint's metadata, or None if it does not exist or has expired; delete if expired."""
        file = self.folder(place) / _ABOUT
        with self._lock:
            if not file.is_file():
                return None
            try:
                about = CheckpointInfo(**cast("dict[str, Json]", json.loads(file.read_bytes())))  # type: ignore[arg-type]
                ends = None if about.expires_at is None else datetime.fromisoformat(about.expires_at)
                over = ends is not None and ends < datetime.now(UTC)
            except (ValueError, TypeError) as error:
                raise DataError(f"{file} is damaged ({error}); delete the checkpoint") from error
            if over:
                self.remove(place)
            return None if over else about


def _read_run(file: Path) -> Run | None:
    if not file.is_file():
        return None
    try:
        return Run(**cast("dict[str, Json]", json.loads(file.read_bytes())))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise DataError(f"{file} is damaged ({error}); delete it") from error


def checked_name(name: str) -> str:
    """Return a name of a run or checkpoint unchanged. Raises a UsageError if the name is malformed."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name here: at most 200 letters, digits and `._:=+-`, a letter or digit first"
        )
    return name


def _flush(folder: Path) -> None:
    for top, _, names in os.walk(folder):
        for name in names:
            sync(Path(top, name))
        sync(Path(top))


def _mend(folder: Path) -> None:
    """Delete half-written checkpoints, and restore those whose replacement was never finished."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(_WRITING):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(_ASIDE):
            own = path.with_name(path.name.removeprefix(_ASIDE))
            if own.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(own)
