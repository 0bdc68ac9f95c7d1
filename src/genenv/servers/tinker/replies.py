"""What clients are sent back: results of training and sampling as protobuf, all else as JSON."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genenv.backends.served import ForwardResult, Numbers, PromptResult
from genenv.errors import GenenvError, UsageError, out_of_memory
from genenv.servers.tinker import messages
from genenv.types import Json

log = logging.getLogger(__name__)

_RECORD = "ArrayRecord"


class NotHere(UsageError):
    """Raised if a request names something that does not exist: status 404."""


class TooMuch(UsageError):
    """Raised if a limit of the server is reached: status 429."""


class NotServed(UsageError):
    """Raised if a part of the protocol is not implemented by this server: status 501."""


_SMALL_BYTES = 1024
_TOKEN_BYTES = 96
"""Memory of a sampled token and its log-probability as Python numbers in tuples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReply:
    """A response in JSON."""

    json: Mapping[str, Json]

    @property
    def size_bytes(self) -> int:
        """About the memory of the response; all small ones count alike."""
        return _SMALL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReply:
    """The response to forward_backward."""

    scored: ForwardResult
    metrics: Mapping[str, float]

    @property
    def size_bytes(self) -> int:
        """About the memory of the response."""
        return sum(one.nbytes for one in (*self.scored.logprobs, *self.scored.losses)) + _SMALL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReply:
    """The response to asample."""

    answered: PromptResult

    @property
    def size_bytes(self) -> int:
        """About the memory of the response."""
        own = self.answered
        arrays = [one for one in (own.prompt_logprobs, *(own.top_prompt_logprobs or ())) if one is not None]
        tokens = sum(len(one.token_ids) for one in own.sequences)
        return sum(one.nbytes for one in arrays) + tokens * _TOKEN_BYTES + _SMALL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReply:
    """The response to a request that failed."""

    error: str
    category: str = "user"
    """Who caused the failure: `user`, `server` or `unknown`."""

    @property
    def size_bytes(self) -> int:
        """About the memory of the response; all small ones count alike."""
        return _SMALL_BYTES

    @property
    def json(self) -> Mapping[str, Json]:
        """The response as a JSON object."""
        return {"error": self.error, "category": self.category}

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


_FIELDS = ("logprobs", "elementwise_loss")


def as_proto(reply: TrainReply | SampledReply) -> bytes:
    """An answer in protobuf."""
    if isinstance(reply, SampledReply):
        return _drew_proto(reply.answered)
    output = messages.ForwardBackwardOutput(loss_fn_output_type=_RECORD, metrics=dict(reply.metrics))
    for pairs in _alike(reply.scored):
        record = output.loss_fn_outputs.add(type_tag=_RECORD, num_datums=len(pairs))
        for name, tensors in zip(_FIELDS, zip(*pairs, strict=True), strict=True):
            _put_batch(record.fields[name], tensors)
    return output.SerializeToString()


def _alike(scored: ForwardResult) -> list[list[tuple[Numbers, Numbers]]]:
    """Group consecutive sequences whose tensors differ only in length."""
    pairs = zip(scored.logprobs, scored.losses, strict=True)
    return [list(part) for _, part in itertools.groupby(pairs, key=lambda pair: pair[0].shape[1:])]


def _put_batch(batch: Any, tensors: Sequence[Numbers]) -> None:  # noqa: ANN401 - a message
    """Write tensors one after another, with the byte at which each begins."""
    parts = [tensor.astype("<f4").tobytes() for tensor in tensors]
    batch.data, batch.dtype = b"".join(parts), messages.FLOAT32
    batch.offsets = np.cumsum([0, *map(len, parts)]).astype("<i8").tobytes()
    batch.trailing_shape.extend(tensors[0].shape[1:])


def _drew_proto(answered: PromptResult) -> bytes:
    response = messages.SampleResponse()
    for one in answered.sequences:
        response.sequences.add(
            stop_reason=messages.STOPPED if one.finished else messages.CUT_OFF,
            tokens=np.array(one.token_ids, "<i4").tobytes(),
            logprobs=np.array(one.logprobs, "<f4").tobytes(),
        )
    if answered.prompt_logprobs is not None:
        response.prompt_logprobs = answered.prompt_logprobs.astype("<f4").tobytes()
    if answered.top_prompt_logprobs is not None:
        ids, logprobs = answered.top_prompt_logprobs
        top = response.topk_prompt_logprobs
        top.token_ids, top.logprobs = ids.astype("<i4").tobytes(), logprobs.astype("<f4").tobytes()
        top.prompt_length, top.k = ids.shape
    return response.SerializeToString()
