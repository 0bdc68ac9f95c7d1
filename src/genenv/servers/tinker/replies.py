"""Responses to Tinker clients as JSON and protobuf, and the subset of Protocol Buffers that Tinker uses.

A protobuf message is a sequence of fields. Each begins with its number and its kind: 0 is a varint (seven
bits per byte), 1 is eight bytes, 2 is a length followed by that many bytes, 5 is four bytes.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genenv.backends.served import ForwardResult, Numbers, PromptResult
from genenv.errors import GenenvError, UsageError, out_of_memory
from genenv.types import Json

log = logging.getLogger(__name__)

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_SEVEN = 0x7F
_LONGEST = 10
"""The most bytes of a varint, which holds 64 bits."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, kind, value) of each field of a message; the value is an int for varints, else bytes.

    Raises:
        UsageError: the data are not a protobuf message.
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
    """Return the bytes of a field.

    Raises:
        UsageError: the field holds a number.
    """
    if isinstance(value, int):
        raise _damaged("a number stands where bytes belong")
    return value


def text_of(value: int | bytes) -> str:
    """Return the text of a field. Raises a UsageError if the field does not hold UTF-8."""
    try:
        return bytes_of(value).decode()
    except UnicodeDecodeError as error:
        raise _damaged("a text is not UTF-8") from error


def int_of(value: int | bytes) -> int:
    """Return the signed integer of a varint field. Raises a UsageError if the field holds bytes."""
    if not isinstance(value, int):
        raise _damaged("bytes stand where a number belongs")
    return value - 2**64 if value >= 2**63 else value


def double_of(value: int | bytes) -> float:
    """Return the double of an eight-byte field. Raises a UsageError if the field holds anything else."""
    data = bytes_of(value)
    if len(data) != struct.calcsize("<d"):
        raise _damaged("a number has not eight bytes")
    return float(struct.unpack("<d", data)[0])


def ints_of(kind: int, value: int | bytes) -> list[int]:
    """Return the integers of a field that holds a single varint, or several packed into bytes."""
    if kind == VARINT:
        return [int_of(value)]
    data, at, found = bytes_of(value), 0, list[int]()
    while at < len(data):
        number, at = _varint(data, at)
        found.append(int_of(number))
    return found


def varint(value: int) -> bytes:
    """Encode an integer as a varint, seven bits per byte."""
    value &= 2**64 - 1
    out = bytearray()
    while value > _SEVEN:
        out.append(value & _SEVEN | _SEVEN + 1)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(number: int, value: int) -> bytes:
    """Encode a field with an integer; 0, the default of a missing field, is encoded as nothing."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def put_bytes(number: int, value: bytes) -> bytes:
    """Encode a field with bytes or a message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def put_text(number: int, value: str) -> bytes:
    """Encode a field with text; an empty text is encoded as nothing."""
    return put_bytes(number, value.encode()) if value else b""


def put_ints(number: int, values: list[int]) -> bytes:
    """Encode a field with packed integers; an empty list is encoded as nothing."""
    return put_bytes(number, b"".join(map(varint, values))) if values else b""


def put_numbers(number: int, values: Mapping[str, float]) -> bytes:
    """Encode a map from names to doubles."""
    return b"".join(
        put_bytes(number, put_text(1, name) + varint(2 << 3 | EIGHT) + struct.pack("<d", value))
        for name, value in values.items()
    )


FLOAT32, INT64 = 1, 2
"""The protocol's numbers of tensor formats."""
_RECORD = "ArrayRecord"


class NotHere(UsageError):
    """Raised if a request names something that does not exist: status 404."""


class TooMuch(UsageError):
    """Raised if a limit of the server is reached: status 429."""


class NotServed(UsageError):
    """Raised if a part of the protocol is not implemented by this server: status 501."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReply:
    """A response that has only a JSON form."""

    json: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReply:
    """The response to forward and forward_backward."""

    scored: ForwardResult
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReply:
    """The response to asample."""

    answered: PromptResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReply:
    """The response to a request that failed."""

    error: str
    category: str = "user"
    """Who caused the failure: `user`, `server` or `unknown`."""

    @staticmethod
    def of(error: BaseException) -> FailedReply:
        """Return the response for an error; an unexpected error is also logged."""
        if isinstance(error, GenenvError):
            return FailedReply(error=str(error))
        if isinstance(error, RuntimeError | MemoryError) and out_of_memory(error):
            return FailedReply(
                error="memory ran out, also with smaller batches; send fewer or shorter sequences",
                category="server",
            )
        log.error("a request failed", exc_info=error)
        return FailedReply(error=f"a fault of the server: {type(error).__name__}: {error}", category="server")


Reply = JsonReply | TrainReply | SampledReply | FailedReply


def as_json(reply: Reply) -> Mapping[str, Json]:
    """Return a response as a JSON object."""
    match reply:
        case JsonReply():
            return reply.json
        case FailedReply():
            return {"error": reply.error, "category": reply.category}
        case TrainReply():
            scored = reply.scored
            outputs: list[Json] = [
                {name: _tensor(values) for name, values in zip(_FIELDS, pair, strict=True)}
                for pair in zip(scored.logprobs, scored.losses, strict=True)
            ]
            metrics: dict[str, Json] = dict(reply.metrics)
            return {"loss_fn_output_type": _RECORD, "loss_fn_outputs": outputs, "metrics": metrics}
        case SampledReply():
            return _drew(reply.answered)


_FIELDS = ("logprobs", "elementwise_loss")


def _tensor(values: Numbers) -> Json:
    numbers: list[Json] = [float(one) for one in values.reshape(-1)]
    return {"data": numbers, "dtype": "float32", "shape": list(values.shape)}


def _drew(answered: PromptResult) -> Mapping[str, Json]:
    sequences: list[Json] = [
        {
            "stop_reason": "stop" if one.finished else "length",
            "tokens": list(one.token_ids),
            "logprobs": list(one.logprobs),
        }
        for one in answered.sequences
    ]
    said: dict[str, Json] = {"type": "sample", "sequences": sequences}
    if answered.prompt_logprobs is not None:
        said["prompt_logprobs"] = [
            None if np.isnan(logprob) else float(logprob) for logprob in answered.prompt_logprobs
        ]
    if answered.top_prompt_logprobs is not None:
        ids, logprobs = answered.top_prompt_logprobs
        rows: list[Json] = [
            [[int(token), float(logprob)] for token, logprob in zip(*row, strict=True)]
            for row in zip(ids[1:], logprobs[1:], strict=True)
        ]
        said["topk_prompt_logprobs"] = [None, *rows]
    return said


def as_proto(reply: Reply) -> bytes | None:
    """Return a response as protobuf, or None if it has only a JSON form."""
    match reply:
        case TrainReply():
            return (
                put_text(1, _RECORD)
                + b"".join(put_bytes(2, _records(part)) for part in _alike(reply.scored))
                + put_numbers(3, reply.metrics)
            )
        case SampledReply():
            return _drew_proto(reply.answered)
        case _:
            return None


def _alike(scored: ForwardResult) -> list[list[tuple[Numbers, Numbers]]]:
    """Group consecutive sequences whose tensors differ only in length."""
    pairs = zip(scored.logprobs, scored.losses, strict=True)
    return [list(part) for _, part in itertools.groupby(pairs, key=lambda pair: pair[0].shape[1:])]


def _records(pairs: Sequence[tuple[Numbers, Numbers]]) -> bytes:
    fields = b"".join(
        put_bytes(2, put_text(1, name) + put_bytes(2, _batched([pair[i] for pair in pairs])))
        for i, name in enumerate(_FIELDS)
    )
    return put_text(1, _RECORD) + fields + put_int(3, len(pairs))


def _batched(tensors: Sequence[Numbers]) -> bytes:
    parts = [tensor.astype("<f4").tobytes() for tensor in tensors]
    offsets = np.cumsum([0, *map(len, parts)]).astype("<i8")
    return (
        put_bytes(1, b"".join(parts))
        + put_bytes(2, offsets.tobytes())
        + put_int(3, FLOAT32)
        + put_ints(4, list(tensors[0].shape[1:]))
    )


def _drew_proto(answered: PromptResult) -> bytes:
    out = b"".join(
        put_bytes(
            1,
            put_int(1, 0 if one.finished else 1)
            + put_bytes(2, np.array(one.token_ids, "<i4").tobytes())
            + put_bytes(3, np.array(one.logprobs, "<f4").tobytes()),
        )
        for one in answered.sequences
    )
    if answered.prompt_logprobs is not None:
        out += put_bytes(2, answered.prompt_logprobs.astype("<f4").tobytes())
    if answered.top_prompt_logprobs is not None:
        ids, logprobs = answered.top_prompt_logprobs
        out += put_bytes(
            3,
            put_bytes(1, ids.astype("<i4").tobytes())
            + put_bytes(2, logprobs.astype("<f4").tobytes())
            + put_int(3, ids.shape[1])
            + put_int(4, ids.shape[0]),
        )
    return out
