"""The staging area of a Git repository, `.git/index`, as the text that `git ls-files --stage` prints.

The file itself differs whenever the same is staged again: it holds times and places on the disk.
"""

from __future__ import annotations

import struct

MARK = b"DIRC"
_HEADER = struct.Struct(">4sLL")
_FIXED = 62
"""Bytes of an entry before its path: 40 of times and places, a digest of 20, flags of 2."""
_EXTENDED, _LENGTH = 0x4000, 0x0FFF


def staged(raw: bytes) -> str | None:
    """Mode, digest, stage and path of what is staged, a line each; None: it is of another version."""
    try:
        mark, version, count = _HEADER.unpack_from(raw)
        if mark != MARK or version not in (2, 3):
            return None
        lines: list[str] = []
        place = _HEADER.size
        for _ in range(count):
            (mode,) = struct.unpack_from(">L", raw, place + 24)
            (flags,) = struct.unpack_from(">H", raw, place + 60)
            start = place + _FIXED + 2 * bool(flags & _EXTENDED)
            end = raw.index(b"\0", start + (flags & _LENGTH) % _LENGTH)
            digest, path = raw[place + 40 : place + 60].hex(), raw[start:end].decode("utf-8", "replace")
            lines.append(f"{mode:06o} {digest} {flags >> 12 & 3}\t{path}")
            place += (end - place + 8) // 8 * 8  # at least one zero byte, up to a multiple of eight
    except (struct.error, ValueError):
        return None
    return "\n".join(lines)
