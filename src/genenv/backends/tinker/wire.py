# pyright: standard
"""Sequences as the protocol has them: each token's place predicts the next one, inputs beside the targets.

    input   x_1 ... x_{n-1}        target   x_2 ... x_n

What stands beside a target (weights, advantages, log-probabilities) is 0 for the prompt's.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tinker

from genenv.algorithms.datum import Datum


def encoded(datum: Datum, **beside: Sequence[float]) -> tinker.Datum:
    """A sequence and what stands beside the tokens of its completion, [T] each."""
    whole = [*datum.prompt_ids, *datum.completion_ids]
    before = [0.0] * (len(datum.prompt_ids) - 1)
    inputs = {"target_tokens": tinker.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1])}
    for name, values in beside.items():
        row = [*before, *map(float, values)]
        inputs[name] = tinker.TensorData(data=row, dtype="float32", shape=[len(row)])
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(whole[:-1]), loss_fn_inputs=inputs)


def targets(datum: Datum) -> int:
    """How many tokens of a sequence are predicted: all but the first."""
    return len(datum.prompt_ids) + len(datum.completion_ids) - 1


def logprobs_of(
    outputs: Sequence[Mapping[str, tinker.TensorData]], data: Sequence[Datum]
) -> list[tuple[float, ...]]:
    """[T] of each: log-probabilities of its completion, out of what a forward pass answers. Nats.

    Raises:
        ValueError: they are not there, or are others' than were asked for.
    """
    if len(outputs) != len(data):
        raise ValueError(f"{len(outputs)} answers for {len(data)} sequences")
    found: list[tuple[float, ...]] = []
    for output, datum in zip(outputs, data, strict=True):
        if "logprobs" not in output:
            raise ValueError(f"no logprobs among {', '.join(output) or 'nothing'}")
        values = output["logprobs"].data
        if len(values) != targets(datum):
            raise ValueError(f"{len(values)} log-probabilities for {targets(datum)} tokens")
        found.append(tuple(map(float, values[len(datum.prompt_ids) - 1 :])))
    return found


def losses_of(outputs: Sequence[Mapping[str, tinker.TensorData]]) -> list[list[float]]:
    """What each token adds to the loss, where a pass answers that."""
    return [
        list(map(float, values.data))
        for output in outputs
        for name, values in output.items()
        if "loss" in name
    ]


def tail(values: Sequence[float | None] | None, datum: Datum) -> tuple[float, ...]:
    """[T] of a completion, out of what a sampler says of the whole sequence, or of all but its first token.

    Raises:
        ValueError: there are fewer, or more, or some are not known.
    """
    length = len(datum.prompt_ids) + len(datum.completion_ids)
    if values is None or len(values) not in (length, length - 1):
        raise ValueError(f"{0 if values is None else len(values)} log-probabilities for {length} tokens")
    own = values[len(values) - len(datum.completion_ids) :]
    known = tuple(value for value in own if value is not None)
    if len(known) != len(own):
        raise ValueError("some log-probabilities are missing")
    return known


def all_finite(rows: Sequence[Sequence[float]]) -> bool:
    """Whether there is no NaN and no infinity."""
    return all(math.isfinite(value) for row in rows for value in row)
