"""What clients want learned, in protobuf or in JSON: tokens, targets, and what goes with each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from genenv.backends.served import Example, Loss
from genenv.errors import UsageError
from genenv.http.parsing import read
from genenv.servers.tinker import wire
from genenv.servers.tinker.bodies import Addressed, Body, Ids, InputBody, Name, not_text

_DTYPES: Mapping[int, npt.DTypeLike] = {1: np.float32, 2: np.int64, 3: np.int32}
"""Number formats of tensors by their number in the protocol."""
_NAMES: Mapping[str, npt.DTypeLike] = {"float32": np.float32, "int64": np.int64}
_MOST_NUMBERS = 2**24
"""Of one tensor, so that a shape alone cannot fill the memory."""
_MOST_DATA, _MOST_TENSORS = 16_384, 16
"""Sequences of a request, and tensors of a sequence."""
_MOST_TOKENS, _MOST_IN_ALL = 2**22, 2**26
"""Tokens of all sequences of a request, and numbers of all tensors."""
_MOST_AXES = 8
_EXACT = 2**53
"""Whole numbers below are exact as JSON's numbers."""

Array = npt.NDArray[np.generic]


class TensorBody(Body):
    """A tensor."""

    data: Annotated[list[float], Field(fail_fast=True)]
    dtype: Name
    shape: Annotated[list[int], Field(max_length=_MOST_AXES)] | None = None
    sparse_crow_indices: Ids | None = None
    sparse_col_indices: Ids | None = None

    def array(self) -> Array:
        """Its numbers. Raises a UsageError where they do not fit its shape."""
        if self.dtype not in _NAMES:
            raise UsageError(f"a tensor of {self.dtype!r}; this server reads {' and '.join(_NAMES)}")
        values = np.asarray(self.data, dtype=np.float64)
        if self.dtype == "int64" and not ((np.abs(values) < _EXACT) & (values == np.floor(values))).all():
            raise UsageError("a tensor of 'int64' holds numbers that are no whole numbers, or too large")
        with np.errstate(over="ignore"):  # what is infinite then is refused where it counts
            values = values.astype(_NAMES[self.dtype])
        if self.sparse_crow_indices is None:
            return _shaped(values, self.shape)
        try:
            crow, col = (
                np.asarray(x or (), np.int64) for x in (self.sparse_crow_indices, self.sparse_col_indices)
            )
        except OverflowError as error:
            raise UsageError("a sparse tensor has an index that is too large") from error
        return _dense(values, crow, col, self.shape or [])


class DatumBody(Body):
    """One sequence to learn from."""

    model_input: InputBody
    loss_fn_inputs: Annotated[dict[Name, TensorBody], Field(max_length=_MOST_TENSORS)]


class LearnInputBody(Body):
    """What forward_backward learns from."""

    data: Annotated[list[DatumBody], Field(fail_fast=True, max_length=_MOST_DATA)]
    loss_fn: Name
    loss_fn_config: Annotated[dict[Name, float], Field(max_length=_MOST_TENSORS)] | None = None


class LearnBody(Addressed):
    """forward_backward and forward, as older clients send them."""

    forward_backward_input: LearnInputBody | None = None
    forward_input: LearnInputBody | None = None


@dataclass(frozen=True, kw_only=True)
class Learn:
    """Data to learn from, however they were sent."""

    model_id: str
    seq_id: int | None
    examples: list[Example]
    loss: Loss
    forward_only: bool
    size_bytes: int
    """Of the body."""


class _Sizes:
    """What a request may have of sequences, tokens and numbers."""

    def __init__(self) -> None:
        self._tokens = self._numbers = 0

    def check(self, example: Example) -> Example:
        """Count an example in.

        Raises:
            UsageError: it is too much.
        """
        self._tokens += len(example.ids)
        self._numbers += example.targets.size + sum(values.size for values in example.inputs.values())
        if self._tokens > _MOST_TOKENS or self._numbers > _MOST_IN_ALL:
            raise UsageError(
                f"the request has more than {_MOST_TOKENS} tokens or {_MOST_IN_ALL} numbers; send fewer "
                "data at a time"
            )
        return example


def learn_of_json(data: bytes, *, forward_only: bool) -> Learn:
    """Data to learn from, in JSON. Raises a UsageError where they are none."""
    body = read(LearnBody, data)
    given = body.forward_input or body.forward_backward_input
    if given is None:
        raise UsageError("the body has neither forward_backward_input nor forward_input")
    sizes = _Sizes()
    examples = [
        sizes.check(
            _example(
                {name: one.array() for name, one in datum.loss_fn_inputs.items()}, datum.model_input.ids(), i
            )
        )
        for i, datum in enumerate(given.data)
    ]
    return Learn(
        model_id=body.model_id,
        seq_id=body.seq_id,
        examples=examples,
        loss=Loss(name=given.loss_fn, config=given.loss_fn_config or {}),
        forward_only=forward_only,
        size_bytes=len(data),
    )


def learn_of_proto(data: bytes) -> Learn:
    """Data to learn from, in protobuf. Raises a UsageError where they are none."""
    found, sizes = _Proto(), _Sizes()
    for number, _, value in wire.fields(data):
        if number == 1:
            found.model_id = wire.text_of(value)
        elif number == 2:
            found.seq_id = wire.int_of(value)
        elif number == 3:
            if len(found.examples) >= _MOST_DATA:
                raise UsageError(f"the request has more than {_MOST_DATA} data; send fewer at a time")
            found.examples.append(sizes.check(_datum(wire.bytes_of(value), len(found.examples))))
        elif number == 4:
            found.loss_fn = wire.text_of(value)
        elif number == 5:
            parts = {number: inner for number, _, inner in wire.fields(wire.bytes_of(value))}
            found.config[wire.text_of(parts.get(1, b""))] = wire.double_of(parts.get(2, bytes(8)))
        elif number == 6:
            found.forward_only = bool(wire.int_of(value))
    return Learn(
        model_id=found.model_id,
        seq_id=found.seq_id or None,
        examples=found.examples,
        loss=Loss(name=found.loss_fn, config=found.config),
        forward_only=found.forward_only,
        size_bytes=len(data),
    )


@dataclass
class _Proto:
    """A message that is being read."""

    model_id: str = ""
    seq_id: int = 0
    examples: list[Example] = field(default_factory=list[Example])
    loss_fn: str = ""
    config: dict[str, float] = field(default_factory=dict[str, float])
    forward_only: bool = False


def _datum(data: bytes, place: int) -> Example:
    ids: list[int] = []
    inputs: dict[str, Array] = {}
    for number, _, value in wire.fields(data):
        inner = wire.bytes_of(value)
        if number == 1:
            ids += _chunk(inner)
        elif number == 2:
            parts = {number: one for number, _, one in wire.fields(inner)}
            inputs[wire.text_of(parts.get(1, b""))] = _tensor(wire.bytes_of(parts.get(2, b"")))
        if len(inputs) > _MOST_TENSORS or len(ids) > _MOST_TOKENS:
            raise UsageError(f"datum {place} has more than {_MOST_TENSORS} tensors or {_MOST_TOKENS} tokens")
    return _example(inputs, tuple(ids), place)


def _chunk(data: bytes) -> list[int]:
    for number, _, value in wire.fields(data):
        if number != 1:
            raise not_text({2: "image", 3: "dmel"}.get(number, "unknown"))
        for inner, _, tokens in wire.fields(wire.bytes_of(value)):
            if inner == 1:
                return [int(one) for one in _numbers(wire.bytes_of(tokens), np.int32)]
    return []


def _tensor(data: bytes) -> Array:
    dense, sparse, dtype, shape = b"", None, 0, list[int]()
    for number, kind, value in wire.fields(data):
        if number == 1:
            dense = wire.bytes_of(value)
        elif number == 2:
            sparse = {number: wire.bytes_of(one) for number, _, one in wire.fields(wire.bytes_of(value))}
        elif number == 3:
            dtype = wire.int_of(value)
        elif number == 4:
            shape += wire.ints_of(kind, value)
            if len(shape) > _MOST_AXES:
                raise UsageError(f"a tensor with more than {_MOST_AXES} axes")
    if dtype not in _DTYPES:
        raise UsageError(f"a tensor of the number format {dtype}; this server reads {sorted(_DTYPES)}")
    if sparse is None:
        return _shaped(_numbers(dense, _DTYPES[dtype]), shape or None)
    crow, col = (_numbers(sparse.get(n, b""), np.int64) for n in (2, 3))
    return _dense(_numbers(sparse.get(1, b""), _DTYPES[dtype]), crow, col, shape)


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
    """A tensor that was sent as compressed sparse rows."""
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
    if targets.dtype.kind == "f" and not (np.abs(targets) < _EXACT).all():
        raise UsageError(f"datum {place} holds a target token that is no whole number")
    return Example(
        ids=ids,
        targets=targets.astype(np.int64),
        inputs={
            name: values.astype(np.float32) for name, values in inputs.items() if name != "target_tokens"
        },
    )


def addressed(data: bytes, *, proto: bool) -> Addressed | None:
    """To which model a body goes, and in which turn; None where it does not say."""
    with contextlib.suppress(UsageError):
        if not proto:
            return read(Addressed, data)
        found: dict[int, int | bytes] = {}
        with contextlib.suppress(UsageError):  # what comes later may be damaged
            for number, _, value in wire.fields(data):
                found.setdefault(number, value)
        return Addressed(
            model_id=wire.text_of(found.get(1, b"")), seq_id=wire.int_of(found.get(2, 0)) or None
        )
    return None
