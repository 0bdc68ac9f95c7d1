"""A conversation as the policy saw it: chat templates drop the thoughts of earlier turns.

What is sampled after such a drop has another context than what was sampled before it, so one conversation is
several sequences to learn from. Each sampled token counts in the one that it was sampled in.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import replace

from genenv.types import Trace


def readings(trace: Trace) -> Iterator[Trace]:
    """The sequences of a trace; the trace itself where nothing was left out of its later turns."""
    if not trace.left_out:
        yield trace
        return
    bounds = [0, *sorted({span.since for span in trace.left_out}), len(trace.token_ids)]
    for start, end in itertools.pairwise(bounds):
        gone = {
            place for span in trace.left_out if span.since <= start for place in range(span.start, span.end)
        }
        places = [place for place in range(end) if place not in gone]
        sampled = tuple(place >= start and trace.sampled[place] for place in places)
        if any(sampled):
            yield replace(
                trace,
                token_ids=tuple(trace.token_ids[place] for place in places),
                sampled=sampled,
                logprobs=tuple(trace.logprobs[place] for place in places),
                prompt_tokens=bisect.bisect_left(places, trace.prompt_tokens),
                choices=tuple(
                    replace(one, start=bisect.bisect_left(places, one.start))
                    for one in trace.choices
                    if start <= one.start < end
                ),
                left_out=(),
            )
