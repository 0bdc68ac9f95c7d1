"""The folder of a run: where things are, who may write, and the order in which a round reaches the disk.

A round is committed in this order: the checkpoint folder, one transaction of the store, the line of
metrics. The store decides: a round is done when the store has it. What came before the transaction is
discarded on resume, what comes after it is rebuilt from the store; so a kill at any instant leaves a run
that continues from its last round.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from genenv.checkpoint import discard_after, prune, sync, write_checkpoint
from genenv.errors import DataError, UsageError
from genenv.pools.records import RoundRecord
from genenv.pools.store import PoolStore


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
    def create(cls, path: Path, config_toml: str) -> RunFolder:
        """Start a new run: an empty store and the settings. A start that failed is started anew.

        Args:
            path: the folder; made when it is missing.
            config_toml: the resolved settings.

        Raises:
            UsageError: the folder already holds a run, or another process starts one; or a file has its name.
        """
        folder = cls.vacant(path)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            folder.config.unlink(missing_ok=True)
            for file in ("pool.db", "pool.db-wal", "pool.db-shm"):
                (path / file).unlink(missing_ok=True)
            PoolStore.open(folder.pool, create=True).close()
            write_whole(folder.config, config_toml)
        return folder

    @classmethod
    def vacant(cls, path: Path) -> RunFolder:
        """Where a new run may start: no round is committed there. Nothing is written yet.

        Raises:
            UsageError: the folder already holds a run, or another process starts one; or a file has its name.
        """
        folder = cls(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; choose another --out")
        count = folder._rounds()
        # A run that lost its store is none that never began.
        lost = folder._has_metrics() or (folder.config.exists() and not folder.pool.exists())
        if count is not None or lost:
            raise UsageError(
                f"{path} already holds a run of {count or 0} {'round' if count == 1 else 'rounds'}; "
                "continue it with --resume or choose another --out"
            )
        if folder.config.exists():
            with folder.lock():  # its start failed, or is under way
                pass
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

    @contextmanager
    def lock(self) -> Generator[None]:
        """Nobody else may write the run inside this block; a process that dies gives the lock back.

        Raises:
            UsageError: another process has it.
        """
        with (self.path / ".lock").open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                file.seek(0)
                raise UsageError(
                    f"{self.path} is being written by another process ({file.read().strip() or 'unknown'}); "
                    "wait for it to end, or choose another --out"
                ) from err
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            yield

    def commit(
        self, store: PoolStore, record: RoundRecord, save: Callable[[Path], None], *, keep: int = 2
    ) -> None:
        """Bring a round to the disk: checkpoint, store, metrics; then drop checkpoints nobody needs.

        Args:
            store: the store of this run.
            record: the round.
            save: writes the checkpoint into the empty folder it is given.
            keep: how many checkpoints to keep, >= 1.

        Raises:
            DataError: the disk is full or a file is damaged; the round is not committed.
        """
        write_checkpoint(self.checkpoints, record.number, save)
        store.commit_round(record)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(metrics_line(record.number, record.metrics))
            file.flush()
            os.fsync(file.fileno())
        prune(self.checkpoints, keep, record.number)

    def restore(self, store: PoolStore) -> int | None:
        """Discard what a killed run left of its next round, and complete the metrics.

        Returns:
            The last committed round, to continue after; None when there is none.

        Raises:
            DataError: the store is empty and the metrics are not; nothing is discarded.
        """
        last = store.last_round()
        if last is None and self._has_metrics():
            raise DataError(
                f"{self.pool} is damaged (it holds no round, but {self.metrics} does); "
                "restore a copy of it, or start a new run"
            )
        discard_after(self.checkpoints, last)
        lines = "".join(metrics_line(*item) for item in store.metrics_by_round().items())
        if not self.metrics.exists() or self.metrics.read_bytes() != lines.encode():
            write_whole(self.metrics, lines)
        return last

    def _has_metrics(self) -> bool:
        return self.metrics.exists() and self.metrics.stat().st_size > 0

    def _rounds(self) -> int | None:
        """How far the run is; round 0 is its start. None without a store, or with an empty one."""
        if not self.pool.exists():
            return None
        with PoolStore.open(self.pool, create=False) as store:
            return store.last_round()


def metrics_line(round_: int, metrics: Mapping[str, float]) -> str:
    """The line of `metrics.jsonl` for a round; equal metrics give equal lines."""
    return json.dumps({"round": round_, **dict(sorted(metrics.items()))}, allow_nan=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader finds the old or the new one, never a part."""
    hidden = path.with_name(f".writing-{path.name}")
    hidden.write_text(text, encoding="utf-8")
    sync(hidden)
    hidden.replace(path)
    sync(path.parent)
