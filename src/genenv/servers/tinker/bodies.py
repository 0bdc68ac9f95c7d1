"""Requests of Tinker clients: their bodies, parsed and checked against limits; training data are protobuf."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError, field_validator

from genenv.backends.served import AdamParams, Example, Loss
from genenv.errors import UsageError
from genenv.http.parsing import read
from genenv.sampling import SamplingFields
from genenv.servers.tinker import messages

Name = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=0, lt=2**63)]
"""The number that a client counts up for its requests, models or samplers."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Seconds = Annotated[int, Field(ge=1, le=3_000_000_000)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Metadata = Annotated[dict[Name, object], Field(max_length=1000)]


_MOST_CHUNKS = 4096
_MOST_STOPS, _STOP_CHARS = 256, 200


class Body(BaseModel, extra="ignore", protected_namespaces=()):
    """The base of all JSON bodies; fields that are not read are ignored."""


class Addressed(Body):
    """The base of requests to one model, which are processed in the order of `seq_id`."""

    model_id: Name
    seq_id: Number | None = None


class StepBody(Addressed):
    """The body of optim_step."""

    adam_params: AdamParams


class LoraBody(Body):
    """The LoRA adapter that create_model requests."""

    rank: int = Field(ge=1, le=1024)
    seed: Seed | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class HeartbeatBody(Body):
    """The body of session_heartbeat."""

    session_id: Name


class ModelBody(Body):
    """The body of create_model."""

    session_id: Name
    model_seq_id: Number
    base_model: Name
    lora_config: LoraBody | None = None
    user_metadata: Metadata | None = None


class OfModelBody(Body):
    """The body of get_info and unload_model."""

    model_id: Name


class SaveBody(Addressed):
    """The body of save_weights and save_weights_for_sampler."""

    path: Name | None = None
    ttl_seconds: Seconds | None = None
    overwrite: bool = False
    sampling_session_seq_id: Number | None = None


class LoadBody(Body):
    """The body of load_weights, which loads into an existing model or creates a model for the weights."""

    model_id: Name | None = None
    seq_id: Number | None = None
    session_id: Name | None = None
    model_seq_id: Number | None = None
    base_model: Name | None = None
    user_metadata: Metadata | None = None
    path: Name
    optimizer: bool = False


class SamplerBody(Body):
    """The body of create_sampling_session."""

    session_id: Name
    sampling_session_seq_id: Number
    base_model: Name | None = None
    model_path: Name | None = None


class ChunkBody(Body):
    """A chunk of a model's input: tokens, or something that this server refuses."""

    type: Name = "encoded_text"
    tokens: Ids = []


class InputBody(Body):
    """A model's input as chunks."""

    chunks: Annotated[list[ChunkBody], Field(fail_fast=True, max_length=_MOST_CHUNKS)]

    def ids(self) -> tuple[int, ...]:
        """Return the input's token ids. Raises a UsageError if a chunk is not text."""
        for chunk in self.chunks:
            if chunk.type != "encoded_text":
                raise not_text(chunk.type)
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class SamplingParamsBody(SamplingFields, Body):
    """The sampling parameters of asample."""

    max_tokens: int | None = Field(default=None, ge=0)
    seed: Seed | None = None
    stop: str | list[int] | list[str] | None = None
    top_k: int = Field(default=-1, ge=-1)

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stops(cls, stop: object) -> object:
        """Limit the number and length of stops, since each sampled token is compared with all of them."""
        several = cast("list[object]", stop if isinstance(stop, list) else [stop])
        if len(several) > _MOST_STOPS:
            raise ValueError(f"there are more than {_MOST_STOPS} stops")
        texts = [one for one in several if isinstance(one, str)]
        if any(len(text) > _STOP_CHARS for text in texts):
            raise ValueError(f"a stop has more than {_STOP_CHARS} characters")
        return cast(object, stop)


class SampleBody(Body):
    """The body of asample."""

    num_samples: int = Field(default=1, ge=1, le=4096)
    prompt: InputBody
    sampling_params: SamplingParamsBody
    base_model: Name | None = None
    model_path: Name | None = None
    sampling_session_id: Name | None = None
    seq_id: Number | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=1000)


class FetchBody(Body):
    """The body of retrieve_future."""

    request_id: Name


class PathBody(Body):
    """The body of weights_info."""

    tinker_path: Name


class TtlBody(Body):
    """The body that sets how many seconds a checkpoint is kept; null keeps it forever."""

    ttl_seconds: Seconds | None = None


def not_text(kind: str) -> UsageError:
    """Return the error for an input chunk that is not text."""
    return UsageError(f"an input holds a chunk of type {kind!r}; this server takes text alone (encoded_text)")


_DTYPES: Mapping[int, npt.DTypeLike] = {
    messages.FLOAT32: np.float32,
    messages.INT64: np.int64,
    messages.INT32: np.int32,
}
"""The number formats of tensors, by their number in the protocol."""
_MOST_NUMBERS = 2**24
"""The most numbers of one tensor, so that a shape without data cannot exhaust memory."""
_MOST_DATA, _MOST_TENSORS = 16_384, 16
"""The most sequences of a request, and the most tensors of a sequence."""
_MOST_TOKENS, _MOST_IN_ALL = 2**22, 2**26
"""The most tokens and the most tensor elements of a request, over all its sequences."""
_MOST_AXES = 8
_EXACT = 2**53
"""Whole numbers below this bound are exact as floating-point numbers of 64 bits."""

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A parsed request of forward_backward."""

    model_id: str
    seq_id: int | None
    examples: list[Example]
    loss: Loss
    forward_only: bool
    size_bytes: int
    """The size of the request's body."""


def _limited(examples: Iterable[Example]) -> list[Example]:
    """The examples of a request. Raises a UsageError where they have more tokens or numbers than they may."""
    found: list[Example] = []
    tokens = numbers = 0
    for example in examples:
        tokens += len(example.ids)
        numbers += example.targets.size + sum(values.size for values in example.inputs.values())
        if tokens > _MOST_TOKENS or numbers > _MOST_IN_ALL:
            raise UsageError(
                f"the request has more than {_MOST_TOKENS} tokens or {_MOST_IN_ALL} numbers; send fewer "
                "data at a time"
            )
        found.append(example)
    return found


def parse_training(data: bytes) -> TrainRequest:
    """Parse a request of forward_backward. Raises a UsageError if the body is not a valid request."""
    body = messages.ForwardBackwardRequest()
    messages.parse(body, data)
    if len(body.data) > _MOST_DATA:
        raise UsageError(f"the request has more than {_MOST_DATA} data; send fewer at a time")
    return TrainRequest(
        model_id=body.model_id,
        seq_id=body.seq_id or None,
        examples=_limited(_datum(one, place) for place, one in enumerate(body.data)),
        loss=Loss(name=body.loss_fn, config=dict(body.loss_fn_config)),
        forward_only=body.forward_only,
        size_bytes=len(data),
    )


def _datum(sent: Any, place: int) -> Example:  # noqa: ANN401 - a message
    chunks = [_tokens(chunk) for chunk in sent.model_input]
    if len(sent.loss_fn_inputs) > _MOST_TENSORS or sum(map(len, chunks)) > _MOST_TOKENS:
        raise UsageError(f"datum {place} has more than {_MOST_TENSORS} tensors or {_MOST_TOKENS} tokens")
    ids = tuple(token for chunk in chunks for token in chunk.tolist())
    return _example({name: _tensor(one) for name, one in sent.loss_fn_inputs.items()}, ids, place)


def _tokens(chunk: Any) -> Array:  # noqa: ANN401 - a message
    if not chunk.HasField("encoded_text"):
        raise not_text(next((kind for kind in ("image", "dmel") if chunk.HasField(kind)), "unknown"))
    return _numbers(chunk.encoded_text.tokens, np.int32)


def _tensor(sent: Any) -> Array:  # noqa: ANN401 - a message
    if len(sent.shape) > _MOST_AXES:
        raise UsageError(f"a tensor with more than {_MOST_AXES} axes")
    if sent.dtype not in _DTYPES:
        raise UsageError(f"a tensor of the number format {sent.dtype}; this server reads {sorted(_DTYPES)}")
    dtype, shape, sparse = _DTYPES[sent.dtype], list(sent.shape), sent.sparse_csr
    if not sent.HasField("sparse_csr"):
        return _shaped(_numbers(sent.dense, dtype), shape or None)
    crow, col = (_numbers(one, np.int64) for one in (sparse.crow_indices, sparse.col_indices))
    return _dense(_numbers(sparse.values, dtype), crow, col, shape)


def _numbers(data: bytes, dtype: npt.DTypeLike) -> Array:
    size = np.dtype(dtype).itemsize
    if len(data) % size:
        raise UsageError(f"a tensor of {len(data)} bytes, which are no numbers of {size} bytes each")
    return np.frombuffer(data, dtype)


def _shaped(values: Array, shape: list[int] | None) -> Array:
    if shape is None:
        return values
    if any(size < 0 for size in shape) or int(np.prod(shape, dtype=object)) != values.size:
        raise UsageError(f"a tensor of {values.size} numbers, which are not of shape {shape}")
    try:
        return values.reshape(shape)
    except (ValueError, OverflowError) as error:  # no numbers, in a shape that is too large
        raise UsageError(f"a tensor of {values.size} numbers, which are not of shape {shape}") from error


def _dense(values: Array, crow: Array, col: Array, shape: list[int]) -> Array:
    """Return the dense form of a tensor sent in compressed sparse row (CSR) format."""
    rows, columns = shape if len(shape) == 2 else (-1, -1)
    fits = min(rows, columns) >= 0 and rows * columns <= _MOST_NUMBERS and crow.size == rows + 1
    steps = np.diff(crow.astype(np.int64)) if fits else np.empty(0, np.int64)
    if not (fits and crow[0] == 0 and (steps >= 0).all() and int(crow[-1]) == values.size == col.size):
        raise UsageError("a sparse tensor whose row and column indices do not fit its numbers and shape")
    if col.size and not 0 <= int(col.min()) <= int(col.max()) < columns:
        raise UsageError("a sparse tensor with a column beyond its shape")
    dense = np.zeros((rows, columns), values.dtype)
    dense[np.repeat(np.arange(rows), steps), col.astype(np.int64)] = values
    return dense


def _example(inputs: Mapping[str, Array], ids: tuple[int, ...], place: int) -> Example:
    if "target_tokens" not in inputs:
        raise UsageError(f"datum {place} has no target_tokens in loss_fn_inputs")
    if not ids:
        raise UsageError(f"datum {place} has no tokens")
    targets = inputs["target_tokens"]
    if targets.dtype.kind == "f" and not ((np.abs(targets) < _EXACT) & (targets == np.floor(targets))).all():
        raise UsageError(f"datum {place} holds a target token that is no whole number")
    return Example(
        ids=ids,
        targets=targets.astype(np.int64),
        inputs={
            name: values.astype(np.float32) for name, values in inputs.items() if name != "target_tokens"
        },
    )


def addressed(data: bytes, *, proto: bool) -> Addressed | None:
    """Return the model and sequence number that a body addresses, or None if they cannot be read."""
    with contextlib.suppress(UsageError, ValidationError):
        if not proto:
            return read(Addressed, data)
        body = messages.ForwardBackwardRequest()
        with contextlib.suppress(UsageError):  # what comes later may be damaged
            messages.parse(body, data)
        return Addressed(model_id=body.model_id, seq_id=body.seq_id or None)
    return None
