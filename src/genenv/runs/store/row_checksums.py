"""Checksums of committed rounds, because SQLite notices damage only if the file's structure breaks.

A flipped bit inside a text or a number leaves a well-formed file. So each round has a SHA-256 of the rows
that it wrote, one per table ("part"). It is computed from the stored rows, in the transaction of the round.
No commit changes the rows of an earlier round, so the checksum stays valid. Base data (the run's row, seeds,
held-out tasks) belong to no round. Their checksums have NULL as the round, and are recomputed when seeds or
held-out tasks are added.

`checkpoint` is a part outside the store: the SHA-256 of the manifest of the round's checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from genenv.errors import DataError
from genenv.runs.store.codec import sha256_of
from genenv.runs.store.database import MEND, Database
from genenv.runs.store.records import Identity

CHECKPOINT = "checkpoint"

BASE_PARTS: Mapping[str, str] = {
    "run": "SELECT * FROM run",
    "seeds": "SELECT * FROM seeds ORDER BY n",
    "held-out tasks": "SELECT * FROM tasks WHERE round IS NULL ORDER BY n",
}
ROUND_PARTS: Mapping[str, str] = {
    "rounds": "SELECT * FROM rounds WHERE number = ?",
    "contexts": "SELECT * FROM contexts WHERE round = ? ORDER BY n",
    "generations": """SELECT generations.* FROM contexts
        JOIN generations ON generations.context_id = contexts.id WHERE round = ? ORDER BY generations.n""",
    "rejections": """SELECT rejections.* FROM contexts
        JOIN generations ON generations.context_id = contexts.id
        JOIN rejections ON rejections.generation_id = generations.id
        WHERE round = ? ORDER BY generations.n""",
    "tasks": "SELECT * FROM tasks WHERE round = ? ORDER BY n",
    "batches": "SELECT * FROM batches WHERE round = ? ORDER BY position",
    "groups": "SELECT * FROM groups WHERE round = ? ORDER BY position",
    "traces": "SELECT * FROM traces WHERE round = ? ORDER BY n",
    "simulator_samples": "SELECT * FROM simulator_samples WHERE round = ? ORDER BY position",
    "evaluations": "SELECT * FROM evaluations WHERE round = ? ORDER BY position",
    "reminders": "SELECT * FROM reminders WHERE round = ? ORDER BY position",
}
"""Every table except `checksums` is in `BASE_PARTS` or `ROUND_PARTS`; a test enforces this."""

RESUMED_PARTS = ("rounds", "tasks", "groups", "reminders")
"""The parts of all earlier rounds that every resumed run reads. Some runs read more and name those parts."""

_LOOKED_UP = ("rounds", "tasks", "seeds")

NEWEST = 2
"""Number of newest rounds of which a resumed run checks all parts."""


def identity(db: Database) -> Identity:
    """Return the identity of the run that the store belongs to.

    Raises:
        DataError: the table does not have exactly one row.
    """
    found = db.rows("SELECT id, legacy_until FROM run")
    if len(found) != 1:
        raise DataError(f"{db.path} is damaged (it does not say which run it is of); {MEND}")
    return Identity(id=str(found[0]["id"]), legacy_until=int(str(found[0]["legacy_until"])))


def is_sealed(db: Database) -> bool:
    """Return whether the store has checksums. A store of an older genenv has none until `seal_legacy`."""
    return bool(db.rows("SELECT 1 FROM checksums WHERE round IS NULL LIMIT 1"))


def seal_round(db: Database, round_: int, checkpoint: bytes | None) -> None:
    """Save the checksums of a round that was just written, in the same transaction."""
    found = {part: sha256_of(db.rows(sql, (round_,))) for part, sql in ROUND_PARTS.items()}
    if checkpoint is not None:
        found[CHECKPOINT] = checkpoint
    _keep(db, round_, found)


def name_checkpoint(db: Database, round_: int, sha256: bytes) -> None:
    """Replace the SHA-256 of a round's checkpoint, inside a transaction. Other checksums are unchanged."""
    db.run("DELETE FROM checksums WHERE round = ? AND part = ?", (round_, CHECKPOINT))
    _keep(db, round_, {CHECKPOINT: sha256})


def seal_base(db: Database) -> None:
    """Save the checksums of the present base data, in the transaction that changed them."""
    db.run("DELETE FROM checksums WHERE round IS NULL")
    _keep(db, None, {part: sha256_of(db.rows(sql)) for part, sql in BASE_PARTS.items()})


def seal_legacy(db: Database) -> None:
    """Save checksums of the rounds that an older genenv committed, from their present rows.

    Call it inside a transaction.
    """
    for row in db.rows(
        "SELECT number FROM rounds WHERE number NOT IN (SELECT round FROM checksums WHERE round > -1)"
    ):
        seal_round(db, row["number"], None)
    seal_base(db)


def checkpoint_sha256(db: Database, round_: int) -> bytes | None:
    """Return the SHA-256 of the manifest of a round's checkpoint; None if the store has none."""
    found = db.rows("SELECT sha256 FROM checksums WHERE round = ? AND part = ?", (round_, CHECKPOINT))
    return found[0]["sha256"] if found else None


def damage(db: Database, *, whole: bool, also: Collection[str] = ()) -> Iterator[str]:
    """Yield the parts that do not match their checksums, in a few words such as "traces of round 3".

    Args:
        db: the store.
        whole: check everything; otherwise only the parts that a resumed run reads, and the newest rounds.
        also: parts of every round that are read in addition to `RESUMED_PARTS`.
    """
    numbers: list[int] = [row["number"] for row in db.rows("SELECT number FROM rounds ORDER BY number")]
    legacy_until = identity(db).legacy_until
    if not is_sealed(db):
        if numbers and numbers[-1] > legacy_until:
            yield "all checksums"
        return
    kept: dict[tuple[int | None, str], bytes] = {
        (row["round"], row["part"]): row["sha256"]
        for row in db.rows("SELECT round, part, sha256 FROM checksums")
    }
    for part, sql in BASE_PARTS.items():
        if not _fits(db, sql, (), kept.get((None, part))):
            yield {"run": "the run's own row"}.get(part, part)
    gone = {round_ for round_, _ in kept if round_ is not None} - set(numbers)
    yield from (f"round {number}, which is missing" for number in sorted(gone))
    for number in numbers:
        parts = ROUND_PARTS if whole or number in numbers[-NEWEST:] else {*RESUMED_PARTS, *also}
        for part in (one for one in ROUND_PARTS if one in parts):
            if not _fits(db, ROUND_PARTS[part], (number,), kept.get((number, part))):
                yield f"round {number} itself" if part == "rounds" else f"{part} of round {number}"


def integrity(db: Database, *, whole: bool) -> list[str]:
    """Return the errors that SQLite's integrity check finds, including those in indices.

    Args:
        db: the store.
        whole: check all tables; otherwise only those whose rows a resumed run looks up.
    """
    checks = ["PRAGMA integrity_check"] if whole else [f"PRAGMA integrity_check({n})" for n in _LOOKED_UP]
    try:
        found = {str(row[0]).splitlines()[-1]: None for check in checks for row in db.rows(check)}
    except DataError as error:
        return [str(error)]
    return [text for text in found if text != "ok"]


def _fits(db: Database, sql: str, values: tuple[int, ...], kept: bytes | None) -> bool:
    try:
        return sha256_of(db.rows(sql, values)) == kept
    except DataError:  # a page or a text that SQLite cannot read
        return False


def _keep(db: Database, round_: int | None, found: Mapping[str, bytes]) -> None:
    for part, sha256 in found.items():
        db.run("INSERT INTO checksums (round, part, sha256) VALUES (?, ?, ?)", (round_, part, sha256))
