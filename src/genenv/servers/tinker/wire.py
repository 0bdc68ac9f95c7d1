"""Protocol Buffers, as far as the Tinker protocol uses them: fields in, fields out.

A message is a row of fields. Each begins with its number and kind: 0 a whole number of seven bits a byte, 1
eight bytes, 2 a length and so many bytes, 5 four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from genenv.errors import UsageError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_SEVEN = 0x7F
_LONGEST = 10
"""Bytes of a whole number of 64 bits."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(number, kind, value) of each field of a message; of those with four or eight bytes the bytes.

    Raises:
        UsageError: this is no message.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (EIGHT, FOUR):
            size = 8 if kind == EIGHT else 4
        else:
            raise _damaged(f"a field of kind {kind}")
        if size > end - at:
            raise _damaged("it ends within a field")
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST):
        if at + place >= len(data):
            raise _damaged("it ends within a number")
        byte = data[at + place]
        value |= (byte & _SEVEN) << (7 * place)
        if byte <= _SEVEN:
            return value & (2**64 - 1), at + place + 1
    raise _damaged("a number is too long")


def _damaged(why: str) -> UsageError:
    return UsageError(f"the body is no protobuf message of the Tinker protocol: {why}")


def bytes_of(value: int | bytes) -> bytes:
    """A field that holds bytes.

    Raises:
        UsageError: it is a number.
    """
    if isinstance(value, int):
        raise _damaged("a number stands where bytes belong")
    return value


def text_of(value: int | bytes) -> str:
    """A field that holds text. Raises a UsageError where it is none."""
    try:
        return bytes_of(value).decode()
    except UnicodeDecodeError as error:
        raise _damaged("a text is not UTF-8") from error


def int_of(value: int | bytes) -> int:
    """A field that holds a whole number, which may be negative. Raises a UsageError where it is none."""
    if not isinstance(value, int):
        raise _damaged("bytes stand where a number belongs")
    return value - 2**64 if value >= 2**63 else value


def double_of(value: int | bytes) -> float:
    """A field that holds a number of eight bytes. Raises a UsageError where it is none."""
    data = bytes_of(value)
    if len(data) != struct.calcsize("<d"):
        raise _damaged("a number has not eight bytes")
    return float(struct.unpack("<d", data)[0])


def ints_of(kind: int, value: int | bytes) -> list[int]:
    """One or several whole numbers: they may stand in one field together."""
    if kind == VARINT:
        return [int_of(value)]
    data, at, found = bytes_of(value), 0, list[int]()
    while at < len(data):
        number, at = _varint(data, at)
        found.append(int_of(number))
    return found


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte."""
    value &= 2**64 - 1
    out = bytearray()
    while value > _SEVEN:
        out.append(value & _SEVEN | _SEVEN + 1)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(number: int, value: int) -> bytes:
    """A field with a whole number; none for 0, which is what a missing one means."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def put_bytes(number: int, value: bytes) -> bytes:
    """A field with bytes or a message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def put_text(number: int, value: str) -> bytes:
    """A field with text; none for an empty one."""
    return put_bytes(number, value.encode()) if value else b""


def put_ints(number: int, values: list[int]) -> bytes:
    """A field with several whole numbers; none for none."""
    return put_bytes(number, b"".join(map(varint, values))) if values else b""


def put_numbers(number: int, values: Mapping[str, float]) -> bytes:
    """A map from names to numbers of eight bytes."""
    return b"".join(
        put_bytes(number, put_text(1, name) + varint(2 << 3 | EIGHT) + struct.pack("<d", value))
        for name, value in values.items()
    )
