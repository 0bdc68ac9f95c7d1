"""Values as SQLite keeps them: ids and log-probabilities as BLOBs, structures as JSON, text as text.

What is read back equals what was written, for every string and every finite number; numbers that are not
finite are refused, because neither JSON nor SQLite can hold them. BLOBs are little-endian: ids 4 bytes,
log-probabilities 8 bytes (a Python float exactly), flags 1 byte each.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import cast

from genenv.types import Json, JsonObject

SqlValue = str | bytes | int | float | None
"""What a column can hold."""


def finite(value: float | None, name: str) -> float | None:
    """The value itself; None where there is none.

    Raises:
        ValueError: it is infinite or NaN (which SQLite would silently store as NULL).
    """
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    return value


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids, 4 bytes each.

    Raises:
        ValueError: an id is negative or does not fit.
    """
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as err:
        raise ValueError(f"token ids must be integers in [0, 2^32): {err}") from err


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """What `pack_ids` packed."""
    return struct.unpack(f"<{_length(blob, 4)}I", blob)


def pack_floats(values: Sequence[float]) -> bytes:
    """Log-probabilities, 8 bytes each.

    Raises:
        ValueError: one of them is infinite or NaN.
    """
    if not all(map(math.isfinite, values)):
        bad = next(value for value in values if not math.isfinite(value))
        raise ValueError(f"log-probabilities must be finite, not {bad}")
    return struct.pack(f"<{len(values)}d", *values)


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    """What `pack_floats` packed."""
    return struct.unpack(f"<{_length(blob, 8)}d", blob)


def pack_flags(flags: Sequence[bool]) -> bytes:
    """Flags, one byte each."""
    return bytes(flags)


def unpack_flags(blob: bytes) -> tuple[bool, ...]:
    """What `pack_flags` packed."""
    return tuple(byte != 0 for byte in blob)


def to_json(value: Json) -> str:
    """JSON text, keys in their given order.

    A lone surrogate (a model can write one as an escape) has no UTF-8 form: text that holds one is escaped.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if _has_utf8(text) else json.dumps(value, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Json:
    """What `to_json` wrote; sequences come back as lists."""
    return cast("Json", json.loads(text))


def object_from_json(text: str) -> JsonObject:
    """What `to_json` wrote for an object.

    Raises:
        ValueError: the text holds something else.
    """
    value = cast("object", json.loads(text))
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return cast("JsonObject", value)


def strings_from_json(text: str) -> tuple[str, ...]:
    """What `to_json` wrote for a sequence of strings.

    Raises:
        ValueError: the text holds something else.
    """
    value = cast("object", json.loads(text))
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
        raise ValueError("expected a JSON list of strings")
    return tuple(cast("list[str]", value))


def to_text(text: str) -> str | bytes:
    """Text for a column: readable as it is; the rare text with a lone surrogate becomes a BLOB."""
    return text if _has_utf8(text) else text.encode("utf-8", "surrogatepass")


def from_text(value: str | bytes) -> str:
    """What `to_text` made."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def sha256_of(rows: Iterable[Iterable[SqlValue]]) -> bytes:
    """SHA-256 of rows: each as a line of JSON in which a BLOB is its length, then its BLOBs."""
    sha = hashlib.sha256()
    for row in rows:
        values = tuple(row)
        blobs = [value for value in values if isinstance(value, bytes)]
        shown = [[len(value)] if isinstance(value, bytes) else value for value in values] if blobs else values
        sha.update(json.dumps(shown).encode() + b"\n")
        for blob in blobs:
            sha.update(blob)
    return sha.digest()


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _length(blob: bytes, item_bytes: int) -> int:
    """How many items a BLOB holds.

    Raises:
        ValueError: it was cut.
    """
    items, rest = divmod(len(blob), item_bytes)
    if rest:
        raise ValueError(f"a BLOB of {len(blob)} bytes does not hold items of {item_bytes} bytes")
    return items
