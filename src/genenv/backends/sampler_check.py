"""Checks that a remote sampler returns well-formed completions and samples from the expected weights.

    gap = mean |log pi(sampler) - log pi(trainer)| over sampled tokens, nats

Rounding alone gives a gap of about 1e-6 in float32 and 1e-2 in bfloat16. Another model, other tokens than the
sampled ones, or numbers that are not log-probabilities give a gap above `MAX_GAP`. The weights of the
previous update may stay below it, but their gap is then several times smaller than that of the present
weights (`is_older`).

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

MAX_GAP = 0.5
"""Nats; above this gap, the completion was sampled from other weights."""
ROUNDING_GAP = 1e-4
"""Nats; a gap up to this size is rounding."""
PROBE_TOKENS = 24
"""Length of a probe completion; over fewer tokens a mean gap is too noisy."""
PROBE_PROMPT = "Count from one to ten in words."
"""Prompt of the probe, for when no sampled reply is available to score."""
OLDER_RATIO = 4.0
"""If the gap to older weights is this many times smaller than to the present weights, the sampler used the
older weights: rounding errors do not correlate with the difference between two versions."""
_FEWEST = 8
"""Minimum tokens for `is_older`; over fewer, rounding alone can produce such a ratio."""
_ROUNDING = 1e-3
"""Nats by which a log-probability may exceed 0, because of low-precision sums."""


def completion_problem(
    ids: Sequence[int], logprobs: Sequence[float], *, max_tokens: int, vocabulary: int
) -> str | None:
    """Return the problem of a completion, to follow the word "answers" in a sentence; None if it is valid.

    Args:
        ids: [T] sampled tokens.
        logprobs: [T] log-probability of each token. Nats.
        max_tokens: the limit of the request.
        vocabulary: size of the model's vocabulary.
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
    """Return the mean absolute difference of two sets of log-probabilities over all tokens. Nats.

    Args:
        found: [T] per completion: log-probabilities from the sampler.
        own: [T] per completion: log-probabilities under the weights that should have sampled it.
    """
    pairs = (zip(row, other, strict=True) for row, other in zip(found, own, strict=True))
    return fmean(abs(a - b) for row in pairs for a, b in row)


def is_older(gap: float, gap_to_older: float, *, tokens: int) -> bool:
    """Return whether completions were sampled from older weights instead of the present ones.

    Args:
        gap: to the present weights. Nats.
        gap_to_older: to the older weights, computed by the same scorer. Nats.
        tokens: number of tokens in both means; with too few, the answer is False.
    """
    return tokens >= _FEWEST and gap > ROUNDING_GAP and OLDER_RATIO * gap_to_older < gap
