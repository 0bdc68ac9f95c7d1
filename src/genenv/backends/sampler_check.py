"""Checks of what remote samplers answer: its form, and whether it is of the weights that it should be of.

    gap = mean |log pi(sampler) - log pi(trainer)| over sampled tokens, nats

Rounding makes it about 1e-6 in float32 and 1e-2 in bfloat16. Another model, other tokens than those that were
sampled, or numbers that are no log-probabilities make it larger than `MAX_GAP`. Weights of the update before
may be nearer than that. They are then several times nearer than the present ones (`is_older`).

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

MAX_GAP = 0.5
"""Nats: beyond, what was sampled is of other weights."""
ROUNDING_GAP = 1e-4
"""Nats: a gap of rounding alone."""
PROBE_TOKENS = 24
"""Over fewer tokens a mean says little."""
PROBE_PROMPT = "Count from one to ten in words."
"""Is asked where no reply is at hand that can be scored."""
OLDER_RATIO = 4.0
"""Older weights that are so many times nearer are those that were sampled from: what rounding adds does not
follow the difference between two versions."""
_FEWEST = 8
"""Tokens; over fewer, rounding alone can make older weights look so much nearer."""
_ROUNDING = 1e-3
"""A log-probability may be so much above 0, nats: sums of low precision."""


def completion_problem(
    ids: Sequence[int], logprobs: Sequence[float], *, max_tokens: int, vocabulary: int
) -> str | None:
    """What is wrong with a completion, as it goes on after "answers"; None where nothing is.

    Args:
        ids: [T] tokens.
        logprobs: of each. Nats.
        max_tokens: that were asked for.
        vocabulary: how many tokens the model knows.
    """
    if len(ids) != len(logprobs):
        return f"{len(ids)} tokens with {len(logprobs)} log-probabilities"
    if not ids:
        return "without a token"
    if len(ids) > max_tokens:
        return f"with {len(ids)} tokens, where at most {max_tokens} were asked for"
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        outside = min(ids) if min(ids) < 0 else max(ids)
        return f"with token {outside}, and the model has {vocabulary}"
    for value in logprobs:
        if not (math.isfinite(value) and value <= _ROUNDING):
            return f"with {value:g} for a log-probability"
    return None


def mean_gap(found: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> float:
    """The gap of completions. Nats.

    Args:
        found: [T] of each: log-probabilities as they were answered.
        own: as they are by the weights that should have sampled.
    """
    pairs = (zip(row, other, strict=True) for row, other in zip(found, own, strict=True))
    return fmean(abs(a - b) for row in pairs for a, b in row)


def is_older(gap: float, gap_to_older: float, *, tokens: int) -> bool:
    """Whether completions are of older weights, and not of the present ones.

    Args:
        gap: to the present ones. Nats.
        gap_to_older: to the older ones, by what scored for the other gap. Nats.
        tokens: over which both are means; of few nothing can be said.
    """
    return tokens >= _FEWEST and gap > ROUNDING_GAP and OLDER_RATIO * gap_to_older < gap
