"""Imitation: what a known solution teaches."""

from __future__ import annotations

from genenv.learning.datum import Datum
from genenv.types import Trace


def imitate(solution: Trace) -> Datum:
    """A known solution, played as a trace: the replies count, what the environment says does not.

    At temperature 1, whatever the sampling: imitated below it, the scores would flatten until what is sampled
    is as random as the model was at 1.
    """
    start = solution.prompt_tokens
    return Datum(
        prompt_ids=solution.token_ids[:start],
        completion_ids=solution.token_ids[start:],
        weights=tuple(map(float, solution.sampled[start:])),
        loss="nll",
    )
