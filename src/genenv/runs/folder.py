"""The folder of a run: where things are, who may write, and the order in which a round reaches the disk.

A round is committed in this order: the checkpoint folder, one transaction of the store, the mark in the
checkpoint, the line of metrics. The store decides: a round is done when the store has it. What came before
the transaction is discarded on resume, what comes after it is rebuilt from the store; so a kill at any
instant leaves a run that continues from its last round.

A store may also be older than what lies beside it: a copy was put back, or its `-wal` file was lost. Then
nothing is deleted. A run continues only where its store and the checkpoint of its last round are proven
whole; what is ahead of them is moved to `set-aside-N/`.
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
from genenv.runs.store.reader import read_identity
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore

log = logging.getLogger(__name__)

_NAMED = 3
"""How much damage one sentence lists."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`runs/NAME/`. Make one with `create` or `open`."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings, TOML. Written last when a run is created: a folder with it is a run."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a round."""
        return self.path / "metrics.jsonl"

    @property
    def pool(self) -> Path:
        """The store, SQLite."""
        return self.path / "pool.db"

    @property
    def checkpoints(self) -> Path:
        """The folder of `round-NNNN`."""
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    @classmethod
    def create(
        cls, path: Path, config_toml: str, *, fill: Callable[[RunFolder], None] | None = None
    ) -> RunFolder:
        """Start a new run: an empty store and the settings. A start that failed is started anew.

        Args:
            path: the folder; made when it is missing.
            config_toml: the resolved settings.
            fill: makes the store, and what belongs to it, of a run that goes on from another one.

        Raises:
            UsageError: the folder already holds a run, or another process starts one; or a file has its name.
        """
        folder = cls.vacant(path)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            folder._clear_failed_start()
            folder.config.unlink(missing_ok=True)
            for file in ("pool.db", "pool.db-wal", "pool.db-shm"):
                (path / file).unlink(missing_ok=True)
            if fill is None:
                PoolStore.open(folder.pool, create=True).close()
            else:
                fill(folder)
            write_whole(folder.config, config_toml)
        return folder

    @classmethod
    def vacant(cls, path: Path) -> RunFolder:
        """Where a new run may start: no round is committed there. Nothing is written yet.

        Raises:
            UsageError: the folder already holds a run, or another process starts one; or a file has its name,
                or it cannot be written.
        """
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; choose another --out")
        count = folder._rounds()
        # A run that lost its store is none that never began.
        lost = (
            folder._has_metrics()
            or (folder.config.exists() and not folder.pool.exists())
            or folder._has_played()
        )
        if count is not None or lost:
            raise UsageError(
                f"{path} already holds a run of {count or 0} {'round' if count == 1 else 'rounds'}; "
                "continue it with --resume or choose another --out"
            )
        if folder.config.exists():
            with folder.lock():  # its start failed, or is under way
                pass
        check_writable(path)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that exists.

        Raises:
            UsageError: the folder is missing or holds no run.
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

    def checkpoint_path(self, number: int) -> Path:
        """Where the checkpoint of a round is, or would be."""
        return checkpoint_path(self.checkpoints, number)

    def checkpoint(self, number: int | None) -> tuple[Path, int]:
        """The checkpoint of a round, the newest when none is named, whole; and its round.

        Raises:
            UsageError: there is none.
            DataError: it is damaged, or of another run or round.
        """
        found = checkpoints(self.checkpoints)
        if not found:
            raise UsageError(f"{self.path} has no checkpoint yet; train it first")
        number = max(found) if number is None else number
        if number not in found:
            kept = ", ".join(map(str, found))
            raise UsageError(f"{self.path} keeps no checkpoint of round {number}; it keeps {kept}")
        path = self.checkpoint_path(number)
        verify_checkpoint(path, read_identity(self.pool))
        return path, number

    def lock(self) -> AbstractContextManager[None]:
        """Nobody else may write the run inside this block; a process that dies gives the lock back.

        Raises:
            UsageError: another process has it.
        """
        return locked(self.path, self.path / ".lock")

    @contextmanager
    def committing(self, store: PoolStore, record: RoundRecord, *, keep: int = 2) -> Generator[Path]:
        """Bring a round to the disk: checkpoint, store, metrics; then drop checkpoints nobody needs.

        Args:
            store: the store of this run.
            record: the round.
            keep: how many checkpoints to keep, >= 1.

        Yields:
            An empty folder, for what is to be in the checkpoint.

        Raises:
            DataError: the disk is full or a file is damaged; the round is not committed.
        """
        with new_checkpoint(self.checkpoints, record.number, run=store.identity().id) as empty:
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
        """Bring the folder to where the store is, after what is needed to continue was proven whole.

        What a kill left of the next round is deleted, and missing metrics are completed. What else is ahead
        of the store, or differs from it, is moved to `set-aside-N/`.

        Args:
            store: the store of this run.
            note: is told what was set aside.

        Returns:
            The last committed round, to continue after; None when there is none.

        Raises:
            DataError: see `prove`; then nothing was changed.
        """
        last = self.prove(store, note)
        self.tidy(store, last, note)
        return last

    def prove(
        self, store: PoolStore, note: Callable[[str], None] = log.warning, *, also: Collection[str] = ()
    ) -> int | None:
        """See whether a run can be continued: its store is whole, and so is the checkpoint of its last round.

        All rows of the store are held to their checksums, which takes about 5 s for each GB. Those that
        changed and that nothing reads any more stop no run, and are named.

        Args:
            store: the store of this run.
            note: is told of them.
            also: parts of every round that this run reads beside those that all runs do, such as "traces".

        Returns:
            The last committed round; None when there is none.

        Raises:
            DataError: something is missing, damaged, or of another run or round; says what to do.
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
        verify_checkpoint(path, store.identity(), sha256=store.checkpoint_sha256(last))

    def tidy(self, store: PoolStore, last: int | None, note: Callable[[str], None]) -> None:
        """The part of `restore` that changes the disk, after `prove`."""
        if store.seal_legacy():
            note(
                f"{self.path} was begun by an older genenv: its rounds up to {last} have checksums from now "
                "on, and its checkpoints up to there, which name no run, are taken for its own"
            )
        if last is not None:
            mark_committed(checkpoint_path(self.checkpoints, last))
        sweep(self.checkpoints)
        found, due = self.metrics_and_due(store)
        torn = due.startswith(found)  # the file holds nothing that the store has not
        self._put_away(store, last, note, metrics=not torn)
        if found != due or not self.metrics.exists():
            write_whole(self.metrics, due.decode())

    def metrics_and_due(self, store: PoolStore) -> tuple[bytes, bytes]:
        """What the file of metrics holds, and what is due; a round committed meanwhile is in the latter."""
        found = self.metrics.read_bytes() if self.metrics.exists() else b""
        lines = (metrics_line(*item) for item in store.metrics_by_round().items())
        return found, "".join(lines).encode()

    def _put_away(
        self, store: PoolStore, last: int | None, note: Callable[[str], None], *, metrics: bool
    ) -> None:
        """Discard what a kill left of the next round; set aside what else is ahead, and metrics if asked."""
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
        """Whether a checkpoint is what a kill between checkpoint and store left of the next round."""
        due = (0, 1) if last is None else (last + 1,)
        return checkpoint_round(path) in due and never_committed(path, store.identity())

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
        """Checkpoints of rounds that the store has not."""
        found = checkpoints(self.checkpoints)
        return [path for number, path in found.items() if last is None or number > last]

    def _has_played(self) -> bool:
        """Whether there are checkpoints that cannot be what is left of a start that failed."""
        found = checkpoints(self.checkpoints)
        return any(number > 1 or is_committed(path) for number, path in found.items())

    def _clear_failed_start(self) -> None:
        """Put away what a start that failed left beside its store, which is made anew."""
        if self.pool.exists() and checkpoints(self.checkpoints):
            with PoolStore.open(self.pool, create=False) as store:
                self._put_away(store, None, log.warning, metrics=False)

    def _has_metrics(self) -> bool:
        return self.metrics.exists() and self.metrics.stat().st_size > 0

    def _rounds(self) -> int | None:
        """How far the run is; round 0 is its start. None without a store, or with an empty one."""
        if not self.pool.exists():
            return None
        with PoolStore.open(self.pool, create=False) as store:
            return store.last_round()


def changed(parts: Sequence[str], *, most: int) -> str:
    """The damaged parts of a store in words, at most so many by name."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return f"changed since committed: {', '.join(parts[:most])}{more}"


def metrics_line(round_: int, metrics: Mapping[str, float]) -> str:
    """The line of `metrics.jsonl` for a round; equal metrics give equal lines."""
    return json.dumps({"round": round_, **dict(sorted(metrics.items()))}, allow_nan=False) + "\n"


def parts_reread(*, replay_share: float, per_seed: int) -> set[str]:
    """Parts of every earlier round that this run reads as it goes on, beside those that every run reads.

    They are named as for `PoolStore.damage`. Traces say which tasks are valid, and specs that are written
    once are drawn from again.

    Args:
        replay_share: `curriculum.replay_share` of the run.
        per_seed: `simulator.per_seed` of the run.
    """
    parts = {"traces"} if replay_share else set[str]()
    if per_seed:
        parts |= {"contexts", "generations", "rejections", "batches"}
    return parts
