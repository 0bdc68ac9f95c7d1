"""The folder of a run: its files, its lock, and the order in which a round reaches the disk.

A round is committed in this order: the checkpoint folder, one transaction of the store, the mark in the
checkpoint, the line of metrics. A round is done when the store has it. On resume, files from before the
transaction are discarded, and files from after it are rebuilt from the store. So a run that was killed at any
instant continues from its last round.

A store may also be older than the files around it, if a copy was restored or its `-wal` file was lost. Then
nothing is deleted. A run continues only if its store and the checkpoint of its last round are intact. Files
that are ahead of them are moved to `set-aside-N/`.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from genenv.config.run import RunConfig, load_config
from genenv.errors import DataError, UsageError
from genenv.files import check_writable, locked, sync, write_whole
from genenv.runs.checkpoint import (
    checkpoint_path,
    checkpoint_round,
    checkpoints,
    discard,
    is_committed,
    manifest_sha256,
    mark_committed,
    never_committed,
    new_checkpoint,
    prune,
    sweep,
    verify_checkpoint,
)
from genenv.runs.store.database import MEND
from genenv.runs.store.reader import read_last_round, read_run_id
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.texts import listed

log = logging.getLogger(__name__)


UNFINISHED = ".branching.db"
"""The file of a branch's store until it is whole."""
_NAMED = 3
"""Maximum number of damaged parts that one sentence lists."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run, `runs/NAME/`. Use `create` or `open`."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings, TOML. A folder with this file and a store is a run."""
        return self.path / "config.toml"

    @property
    def trained(self) -> Path:
        """A copy of the settings, by which a resumed run sees what was edited in them; older runs lack it."""
        return self.path / "trained.toml"

    @property
    def unedited(self) -> Path:
        """The file with the settings that the run was trained with."""
        return self.trained if self.trained.is_file() else self.config

    def settings(self, overrides: Sequence[str] = ()) -> RunConfig:
        """Return the settings that the run was trained with, whatever was edited in its `config.toml`.

        Args:
            overrides: other values, as `key=value`.

        Raises:
            UsageError: their file cannot be read, or an override is not allowed.
        """
        return load_config(self.unedited, overrides)

    @property
    def started(self) -> Path:
        """The contents of CONFIG at the start of the run, TOML; absent if the run has none."""
        return self.path / "started.toml"

    @property
    def metrics(self) -> Path:
        """The metrics, one JSON object per round."""
        return self.path / "metrics.jsonl"

    @property
    def pool(self) -> Path:
        """The store, SQLite."""
        return self.path / "pool.db"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints `round-NNNN`."""
        return self.path / "checkpoints"

    @property
    def live(self) -> Path:
        """Where the run is inside a round, JSON; only while a process writes the run."""
        return self.path / "live.json"

    @property
    def report(self) -> Path:
        """The report, an HTML page."""
        return self.path / "report.html"

    @classmethod
    def create(
        cls,
        path: Path,
        config_toml: str,
        *,
        started: str | None = None,
        fill: Callable[[RunFolder, str], None] | None = None,
    ) -> RunFolder:
        """Create a new run: an empty store and the settings. Remains of a failed start are replaced.

        Args:
            path: the folder; created if missing.
            config_toml: the resolved settings.
            started: the contents of its CONFIG, TOML; None if it has none.
            fill: for a branch: copies the files of the other run, creates the store as `UNFINISHED`, writes
                the settings, and renames the store.

        Raises:
            UsageError: the folder already has a run, another process starts one, or a file has its name.
        """
        folder = cls.vacant(path)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            folder._refuse_a_run()  # it may have begun and ended while this one waited
            folder._clear_failed_start()
            for settings in (folder.config, folder.trained, folder.started):
                settings.unlink(missing_ok=True)
            if started is not None:
                write_whole(folder.started, started)
            for file in ("pool.db", "pool.db-wal", "pool.db-shm", UNFINISHED):
                (path / file).unlink(missing_ok=True)
            if fill is None:
                PoolStore.open(folder.pool, create=True).close()
                folder.write_settings(config_toml)
            else:
                fill(folder, config_toml)
        return folder

    @classmethod
    def vacant(cls, path: Path) -> RunFolder:
        """Check that a new run may start in a folder: it has no committed round. Nothing is written.

        Raises:
            UsageError: the folder already has a run, another process starts one, a file has its name, or it
                cannot be written.
        """
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; choose another --out")
        folder._refuse_a_run()
        if folder.config.exists():
            with folder.lock():  # its start failed, or is under way
                pass
        check_writable(path)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run.

        Raises:
            UsageError: the folder is missing or has no run.
            DataError: a part of the run is missing.
        """
        folder = cls(path)
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder; name the folder of a run, such as runs/demo")
        parts = (folder.config, folder.pool)
        missing = [part for part in parts if not part.is_file()]
        if len(missing) == len(parts):
            raise UsageError(f"{path} holds no run; name the folder of a run, such as runs/demo")
        if missing:
            raise DataError(f"{missing[0]} is missing; restore a copy of it, or start a new run")
        return folder

    def write_settings(self, text: str) -> None:
        """Write the resolved settings and their copy."""
        write_whole(self.config, text)
        write_whole(self.trained, text)

    def checkpoint_path(self, number: int) -> Path:
        """Return the path of a round's checkpoint, whether it exists or not."""
        return checkpoint_path(self.checkpoints, number)

    def checkpoint(self, number: int | None) -> tuple[Path, int]:
        """Return the verified checkpoint of a round, and its round; the newest committed one if it is None.

        Raises:
            UsageError: there is no such checkpoint.
            DataError: it is damaged, or of another run or round.
        """
        last, found = read_last_round(self.pool), list(checkpoints(self.checkpoints))
        if last is not None:
            found = [one for one in found if one <= last]  # a running round may have written its own already
        if not found:
            raise UsageError(f"{self.path} has no checkpoint yet; train it first")
        number = max(found) if number is None else number
        if number not in found:
            kept = ", ".join(map(str, found))
            raise UsageError(f"{self.path} keeps no checkpoint of round {number}; it keeps {kept}")
        path = self.checkpoint_path(number)
        verify_checkpoint(path, read_run_id(self.pool))
        return path, number

    def lock(self) -> AbstractContextManager[None]:
        """Return a context in which no other process can write the run; it is freed if the process dies.

        Raises:
            UsageError: another process holds the lock.
        """
        return locked(self.path, self.path / ".lock")

    @contextmanager
    def committing(self, store: PoolStore, record: RoundRecord, *, keep: int = 2) -> Generator[Path]:
        """Commit a round: checkpoint, store, metrics. Then delete old checkpoints.

        Args:
            store: the store of this run.
            record: the round.
            keep: number of checkpoints to keep, >= 1.

        Yields:
            An empty folder for the contents of the checkpoint.

        Raises:
            DataError: the disk is full or a file is damaged; the round is not committed.
        """
        with new_checkpoint(self.checkpoints, record.number, run=store.run_id()) as empty:
            yield empty
        checkpoint = checkpoint_path(self.checkpoints, record.number)
        store.commit_round(record, checkpoint=manifest_sha256(checkpoint))
        mark_committed(checkpoint)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(metrics_line(record.number, record.metrics))
            file.flush()
            os.fsync(file.fileno())
        prune(self.checkpoints, keep, record.number)

    def restore(self, store: PoolStore, note: Callable[[str], None] = log.warning) -> int | None:
        """Verify the files that are needed to continue, and make the folder agree with the store.

        The remains of an uncommitted round are deleted, and missing metrics are added. Everything else that
        is ahead of the store, or differs from it, is moved to `set-aside-N/`.

        Args:
            store: the store of this run.
            note: called with a message about files that were set aside.

        Returns:
            The last committed round, to continue after; None if there is none.

        Raises:
            DataError: see `prove`; then nothing was changed.
        """
        last = self.prove(store, note)
        self.tidy(store, last, note)
        return last

    def prove(
        self, store: PoolStore, note: Callable[[str], None] = log.warning, *, also: Collection[str] = ()
    ) -> int | None:
        """Verify that a run can continue: its store and the checkpoint of its last round are intact.

        All rows of the store are compared with their checksums, which takes about 5 s per GB. Damage to rows
        that the run no longer reads is reported, but does not stop the run.

        Args:
            store: the store of this run.
            note: called with a message about such damage.
            also: parts of every round that this run reads in addition to those of every run, such as
                "traces".

        Returns:
            The last committed round; None if there is none.

        Raises:
            DataError: something is missing, damaged, or of another run or round. The message says what to do.
        """
        last = store.last_round()
        if last is None and (self._has_metrics() or any(map(is_committed, self._ahead(None)))):
            witness = self.metrics if self._has_metrics() else self.checkpoints
            raise DataError(f"{self.pool} is damaged (it holds no round, but {witness} does); {MEND}")
        if anything := store.damage(whole=True):
            doctor = f"`genenv doctor {shlex.quote(str(self.path))}` says more"
            if found := store.damage(whole=False, also=also):
                raise DataError(f"{self.pool} is damaged ({changed(found, most=_NAMED)}); {MEND}; {doctor}")
            note(
                f"{self.pool} is damaged ({changed(anything, most=_NAMED)}): the run reads none of this and "
                f"goes on; to have it whole, restore a copy; {doctor}"
            )
        if last is not None:
            self._prove_checkpoint(store, last)
        return last

    def _prove_checkpoint(self, store: PoolStore, last: int) -> None:
        path = checkpoint_path(self.checkpoints, last)
        if not path.is_dir():
            kept = ", ".join(map(str, checkpoints(self.checkpoints)))
            raise DataError(
                f"{self.pool} ends at round {last}, whose checkpoint {path} is missing "
                f"({f'there are those of {kept}' if kept else 'there is none'}); put back that one, or "
                f"the {self.pool.name} (and its -wal file, if there is one) of a round whose checkpoint is "
                "there, or start a new run; nothing was changed"
            )
        verify_checkpoint(path, store.run_id(), sha256=store.checkpoint_sha256(last))

    def tidy(self, store: PoolStore, last: int | None, note: Callable[[str], None]) -> None:
        """Change the disk as `restore` says, after `prove`."""
        if last is not None:
            mark_committed(checkpoint_path(self.checkpoints, last))
        sweep(self.checkpoints)
        found, due = self.metrics_and_due(store)
        torn = due.startswith(found)  # the file holds nothing that the store has not
        self._put_away(store, last, note, metrics=not torn)
        if found != due or not self.metrics.exists():
            write_whole(self.metrics, due.decode())

    def metrics_and_due(self, store: PoolStore) -> tuple[bytes, bytes]:
        """Return the contents of the metrics file, and then its contents according to the store."""
        found = self.metrics.read_bytes() if self.metrics.exists() else b""
        lines = (metrics_line(*item) for item in store.metrics_by_round().items())
        return found, "".join(lines).encode()

    def _put_away(
        self, store: PoolStore, last: int | None, note: Callable[[str], None], *, metrics: bool
    ) -> None:
        """Discard the remains of the next round; set aside other checkpoints ahead, and perhaps metrics."""
        ahead = self._ahead(last)
        if not metrics and len(ahead) == 1 and self._is_left_of_next(store, ahead[0], last):
            discard(ahead.pop())
        if not ahead and not metrics:
            return
        found = [path.name for path in ahead] + ([self.metrics.name] if metrics else [])
        place = self._set_aside(ahead, metrics=metrics)
        note(
            f"{self.pool} {'holds no round' if last is None else f'ends at round {last}'}, and "
            f"{', '.join(found)} {'does' if len(found) == 1 else 'do'} not fit it: set aside in {place}, "
            "nothing was deleted"
        )

    def _is_left_of_next(self, store: PoolStore, path: Path, last: int | None) -> bool:
        """Return whether a checkpoint is of the next round and was left by a kill before the commit."""
        due = (0, 1) if last is None else (last + 1,)
        return checkpoint_round(path) in due and never_committed(path, store.run_id())

    def _set_aside(self, paths: Sequence[Path], *, metrics: bool) -> Path:
        """Move checkpoints, and copy the metrics, to a new folder."""
        number = next(n for n in itertools.count(1) if not (self.path / f"set-aside-{n}").exists())
        place = self.path / f"set-aside-{number}"
        place.mkdir()
        if metrics:
            shutil.copy2(self.metrics, place)
            sync(place / self.metrics.name)
        for path in paths:
            (place / "checkpoints").mkdir(exist_ok=True)
            shutil.move(path, place / "checkpoints")
            sync(self.checkpoints)
        sync(place)
        sync(self.path)
        return place

    def _ahead(self, last: int | None) -> list[Path]:
        """Return the checkpoints of rounds that the store does not have."""
        found = checkpoints(self.checkpoints)
        return [path for number, path in found.items() if last is None or number > last]

    def _refuse_a_run(self) -> None:
        count = self._rounds()
        # A run that lost its store is none that never began.
        is_stored = self.pool.exists() or (self.path / UNFINISHED).exists()
        if self.config.exists() and not is_stored and not self.checkpoints.exists():
            raise UsageError(f"{self.path} has a {self.config.name} that is of no run; choose another --out")
        lost = self._has_metrics() or (self.config.exists() and not is_stored) or self._has_played()
        if count is not None or lost:
            raise UsageError(
                f"{self.path} already holds a run of {count or 0} {'round' if count == 1 else 'rounds'}; "
                "continue it with --resume or choose another --out"
            )

    def _has_played(self) -> bool:
        """Return whether there are checkpoints that a failed start cannot have left."""
        return any(map(is_committed, checkpoints(self.checkpoints).values()))

    def _clear_failed_start(self) -> None:
        """Move away the checkpoints of a failed start. Its store is created again."""
        if self.pool.exists() and checkpoints(self.checkpoints):
            with PoolStore.open(self.pool, create=False) as store:
                self._put_away(store, None, log.warning, metrics=False)

    def _has_metrics(self) -> bool:
        return self.metrics.exists() and self.metrics.stat().st_size > 0

    def _rounds(self) -> int | None:
        """Return the last committed round, from 0. None if the store is missing or empty."""
        if not self.pool.exists():
            return None
        with PoolStore.open(self.pool, create=False) as store:
            return store.last_round()


def named_run(name: str) -> tuple[Path, int | None]:
    """Return the folder and the round that `RUN@ROUND` names; the round is None without one.

    A folder that is called like that is meant itself.

    Raises:
        UsageError: no run is named.
    """
    run, at, number = name.rpartition("@")
    if not (at and number.isdecimal()) or Path(name).is_dir():
        run, number = name, ""
    if not run:
        raise UsageError(f"{name!r} names no run; name the folder of one, as in runs/demo or runs/demo@3")
    return Path(run), int(number) if number else None


def changed(parts: Sequence[str], *, most: int) -> str:
    """Describe the damaged parts of a store, with at most `most` of them by name."""
    return f"changed since committed: {listed(parts, most)}"


def metrics_line(round_: int, metrics: Mapping[str, float]) -> str:
    """Return the line of `metrics.jsonl` for a round. Equal metrics give equal lines."""
    return json.dumps({"round": round_, **dict(sorted(metrics.items()))}, allow_nan=False) + "\n"


def parts_reread(config: RunConfig) -> set[str]:
    """Parts of every earlier round that this run reads as it goes on, beside those that every run reads.

    They are named as for `PoolStore.damage`. Traces say which tasks are valid, specs that are written once
    are drawn from again, and generations may accumulate as training data of the simulator.
    """
    parts = {"traces"} if config.curriculum.replay_share else set[str]()
    if config.simulator.per_seed or config.simulator.accumulate:
        parts |= {"contexts", "generations", "rejections", "batches"}
    return parts | {"simulator_samples"} if config.simulator.accumulate else parts
