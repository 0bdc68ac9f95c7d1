"""`genenv doctor`: checks the store, checkpoints and metrics of a run, and says how to repair them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.config.run import load_config
from genenv.errors import DataError, GenenvError, UsageError
from genenv.runs.checkpoint import checkpoint_path, checkpoints, never_committed, verify_checkpoint
from genenv.runs.folder import RunFolder, changed, parts_reread
from genenv.runs.store.database import MEND
from genenv.runs.store.records import Identity
from genenv.runs.store.store import PoolStore

_FINE = "fine"
_NAMED = 10
"""Maximum number of damaged parts that one line lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The result of checking one part of a run."""

    name: str
    here: str = _FINE
    fine: bool = True
    note: str = ""
    """What the result means and what to do about it."""


def examine_run(path: Path) -> list[Part]:
    """Check everything in the folder of a run, without repairing it.

    Raises:
        UsageError: the folder has no run.
        DataError: the store or the settings are missing.
    """
    folder = RunFolder.open(path)
    with contextlib.ExitStack() as stack:
        parts: list[Part] = []
        try:
            stack.enter_context(folder.lock())
        except UsageError:
            parts.append(
                Part(
                    name="folder", here="in use", note="a process writes it; a round may be between two files"
                )
            )
        parts.append(_settings(folder))
        try:
            store = stack.enter_context(PoolStore.open(folder.pool, create=False))
            parts += [_store(store, folder), *_checkpoints(store, folder), _metrics(store, folder)]
        except DataError as error:
            parts += [
                Part(name=folder.pool.name, here="damaged", fine=False, note=str(error)),
                *(_checkpoint(path, None) for path in checkpoints(folder.checkpoints).values()),
                Part(
                    name=folder.metrics.name, here="not checked", note="a whole store says what it should be"
                ),
            ]
        return parts + list(_set_aside(folder))


def show(path: Path, parts: Sequence[Part], console: Console) -> None:
    """Print the parts of a run as a table.

    Raises:
        DataError: some parts are damaged. The message names them.
    """
    table = Table(title=f"genenv doctor {path}", show_lines=False)
    for title in ("what", "here", "note"):
        table.add_column(title, overflow="fold")
    for part in parts:
        table.add_row(Text(part.name), Text(part.here), Text(part.note))
    console.print(table)
    if bad := [part.name for part in parts if not part.fine]:
        raise DataError(f"{path} is damaged: {', '.join(bad)}; the table says what to do")


def _checked(name: str, check: Callable[[], object], note: str) -> Part:
    """Run a check and return its result as a part."""
    try:
        check()
    except GenenvError as error:
        return Part(name=name, here="damaged", fine=False, note=str(error))
    return Part(name=name, note=note)


def _settings(folder: RunFolder) -> Part:
    return _checked(folder.config.name, lambda: load_config(folder.config), "")


def _store(store: PoolStore, folder: RunFolder) -> Part:
    """Check the rows of the store against their checksums, and the file with SQLite's integrity check."""
    name, rounds = folder.pool.name, store.rounds()
    have = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round yet"
    if not (found := store.damage(whole=True)):
        old = rounds and not store.has_checksums()
        return Part(name=name, note=have + ("; no checksums yet, --resume makes them" if old else ""))
    advice = "the run can be continued, which reads none of this; to have it whole, restore a copy"
    needed = store.damage(whole=False, also=_parts_reread(folder))
    note = f"{have}; {changed(found, most=_NAMED)}; {MEND if needed else advice}"
    return Part(name=name, here="damaged", fine=False, note=note)


def _parts_reread(folder: RunFolder) -> set[str]:
    """Return the parts of old rounds that a resumed run reads; empty if its settings cannot be read."""
    try:
        config = load_config(folder.config)
    except GenenvError:
        return set()
    return parts_reread(config)


def _checkpoints(store: PoolStore, folder: RunFolder) -> Iterator[Part]:
    """Check every checkpoint, and that the one for resuming exists."""
    found = checkpoints(folder.checkpoints)
    last, identity = store.last_round(), store.identity()
    if last is not None and last not in found:
        yield Part(
            name=checkpoint_path(folder.checkpoints, last).name,
            here="missing",
            fine=False,
            note=f"the store ends at round {last}: restore this checkpoint, or a store that ends at one",
        )
    for number, path in found.items():
        note = "the next round starts from it" if number == last else ""
        part = _checkpoint(path, identity, sha256=store.checkpoint_sha256(number), note=note)
        behind = last is None or number > last
        yield _ahead(part, left=never_committed(path, identity)) if part.fine and behind else part


def _checkpoint(
    path: Path, identity: Identity | None, *, sha256: bytes | None = None, note: str = ""
) -> Part:
    return _checked(path.name, lambda: verify_checkpoint(path, identity, sha256=sha256), note)


def _ahead(part: Part, *, left: bool) -> Part:
    """Return the result for an intact checkpoint of a round that is not in the store."""
    if left:
        return Part(name=part.name, note="of a round that was not committed; --resume removes it")
    return Part(
        name=part.name,
        here="ahead",
        fine=False,
        note="the store is older than this: restore the newer store; --resume would set this aside",
    )


def _metrics(store: PoolStore, folder: RunFolder) -> Part:
    """Compare the metrics file with the store, from which it can be written again."""
    name = folder.metrics.name
    found, due = folder.metrics_and_due(store)
    if found == due:
        return Part(name=name)
    if due.startswith(found):
        return Part(name=name, here="incomplete", note="--resume completes it from the store")
    return Part(
        name=name,
        here="differs",
        fine=False,
        note="it is not what the store says; --resume sets it aside and makes it anew from the store",
    )


def _set_aside(folder: RunFolder) -> Iterator[Part]:
    for path in sorted(folder.path.glob("set-aside-*")):
        yield Part(name=path.name, here="kept", note="did not fit the store once; yours to keep or delete")
