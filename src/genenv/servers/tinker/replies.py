"""What clients are sent back: JSON, and protobuf for what was scored and sampled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genenv.backends.served import ForwardResult, Numbers, PromptResult
from genenv.servers.tinker import wire
from genenv.types import Json

FLOAT32, INT64 = 1, 2
"""Number formats of tensors."""
_RECORD = "ArrayRecord"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """An answer that is JSON for everybody."""

    json: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Of forward and forward_backward."""

    scored: ForwardResult
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drew:
    """Of asample."""

    answered: PromptResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request that could not be done."""

    error: str
    category: str = "user"
    """`user`, `server` or `unknown`."""


Reply = Plain | Learned | Drew | Failed


def as_json(reply: Reply) -> Mapping[str, Json]:
    """An answer in JSON."""
    match reply:
        case Plain():
            return reply.json
        case Failed():
            return {"error": reply.error, "category": reply.category}
        case Learned():
            scored = reply.scored
            outputs: list[Json] = [
                {name: _tensor(values) for name, values in zip(_FIELDS, pair, strict=True)}
                for pair in zip(scored.logprobs, scored.losses, strict=True)
            ]
            metrics: dict[str, Json] = dict(reply.metrics)
            return {"loss_fn_output_type": _RECORD, "loss_fn_outputs": outputs, "metrics": metrics}
        case Drew():
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
    """An answer in protobuf; None where it has no such form."""
    match reply:
        case Learned():
            return (
                wire.put_text(1, _RECORD)
                + b"".join(wire.put_bytes(2, _records(part)) for part in _alike(reply.scored))
                + wire.put_numbers(3, reply.metrics)
            )
        case Drew():
            return _drew_proto(reply.answered)
        case _:
            return None


def _alike(scored: ForwardResult) -> list[list[tuple[Numbers, Numbers]]]:
    """Neighbours whose tensors differ in length alone."""
    pairs = zip(scored.logprobs, scored.losses, strict=True)
    return [list(part) for _, part in itertools.groupby(pairs, key=lambda pair: pair[0].shape[1:])]


def _records(pairs: Sequence[tuple[Numbers, Numbers]]) -> bytes:
    fields = b"".join(
        wire.put_bytes(2, wire.put_text(1, name) + wire.put_bytes(2, _batched([pair[i] for pair in pairs])))
        for i, name in enumerate(_FIELDS)
    )
    return wire.put_text(1, _RECORD) + fields + wire.put_int(3, len(pairs))


def _batched(tensors: Sequence[Numbers]) -> bytes:
    parts = [tensor.astype("<f4").tobytes() for tensor in tensors]
    offsets = np.cumsum([0, *map(len, parts)]).astype("<i8")
    return (
        wire.put_bytes(1, b"".join(parts))
        + wire.put_bytes(2, offsets.tobytes())
        + wire.put_int(3, FLOAT32)
        + wire.put_ints(4, list(tensors[0].shape[1:]))
    )


def _drew_proto(answered: PromptResult) -> bytes:
    out = b"".join(
        wire.put_bytes(
            1,
            wire.put_int(1, 0 if one.finished else 1)
            + wire.put_bytes(2, np.array(one.token_ids, "<i4").tobytes())
            + wire.put_bytes(3, np.array(one.logprobs, "<f4").tobytes()),
        )
        for one in answered.sequences
    )
    if answered.prompt_logprobs is not None:
        out += wire.put_bytes(2, answered.prompt_logprobs.astype("<f4").tobytes())
    if answered.top_prompt_logprobs is not None:
        ids, logprobs = answered.top_prompt_logprobs
        out += wire.put_bytes(
            3,
            wire.put_bytes(1, ids.astype("<i4").tobytes())
            + wire.put_bytes(2, logprobs.astype("<f4").tobytes())
            + wire.put_int(3, ids.shape[1])
            + wire.put_int(4, ids.shape[0]),
        )
    return out
