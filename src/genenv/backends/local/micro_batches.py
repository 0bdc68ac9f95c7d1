# pyright: standard
"""Data cut into pieces of bounded size for one forward and backward pass each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from genenv.algorithms.datum import Datum
from genenv.backends.local.packing import Bundle, within_budget

Piece = tuple[Bundle, Sequence[Datum]]
"""A prompt with completions, and the datum behind each of these."""

_Row = TypeVar("_Row")
"""What stands behind a completion."""


def bundled(data: Sequence[Datum]) -> list[Piece]:
    """Data of one prompt share it; those of which no token counts are left out."""
    by_prompt: dict[tuple[int, ...], list[Datum]] = {}
    for datum in data:
        if datum.tokens:
            by_prompt.setdefault(datum.prompt_ids, []).append(datum)
    return [
        (Bundle(prompt_ids=prompt, completions=[datum.completion_ids for datum in rows]), rows)
        for prompt, rows in by_prompt.items()
    ]


def sample_of(rows: Sequence[Datum], most: int) -> list[Datum]:
    """Data at one prompt to measure something on: about `most` tokens of them, never above twice as many.

    Where already the first is longer, it is cut to `most` tokens of its completion; none is taken where the
    prompt alone is longer than `most`.

    Args:
        rows: those of one piece; `ppo` data among them.
        most: tokens.
    """
    begin = next(i for i, datum in enumerate(rows) if datum.is_policy_gradient)
    first, found = rows[begin], list[Datum]()
    prompt = len(first.prompt_ids)
    if prompt + len(first.completion_ids) > 2 * most:
        return [_beginning(first, most)] if prompt <= most else []
    room = most - prompt
    for datum in rows[begin:]:
        room -= len(datum.completion_ids)
        if not datum.is_policy_gradient or (found and room < 0):
            break
        found.append(datum)
    return found


def _beginning(datum: Datum, tokens: int) -> Datum:
    """A datum of `ppo` whose completion ends after so many tokens."""
    return replace(
        datum,
        completion_ids=datum.completion_ids[:tokens],
        weights=datum.weights[:tokens],
        advantages=datum.advantages and datum.advantages[:tokens],
        old_logprobs=datum.old_logprobs and datum.old_logprobs[:tokens],
    )


def micro_batches(
    items: Sequence[tuple[Bundle, Sequence[_Row]]], tokens: int
) -> list[list[tuple[Bundle, Sequence[_Row]]]]:
    """Cut bundles, and what belongs to each of their completions, into batches of at most `tokens` tokens.

    A bundle that is larger is cut into several with the same prompt; one completion is never cut, and pieces
    with a long prompt may have twice the budget. Sorted by length, so that padding in attention is small.
    What a prompt and the one before it begin with counts once.
    """
    pieces = [piece for bundle, rows in items for piece in _cut(bundle, rows, tokens)]
    pieces.sort(key=lambda piece: piece[0].tokens)
    return within_budget(pieces, tokens, lambda piece: (piece[0].prompt_ids, piece[0].tokens))


def _cut(bundle: Bundle, rows: Sequence[_Row], tokens: int) -> list[tuple[Bundle, Sequence[_Row]]]:
    """A bundle as it is, or as several within the token budget, its completions sorted by length.

    A prompt is not read again for less than its own length in completions, if twice the budget allows that.
    """
    tokens = max(tokens, min(2 * len(bundle.prompt_ids), 2 * tokens))
    if bundle.tokens <= tokens:
        return [(bundle, rows)]
    pieces: list[tuple[list[Sequence[int]], list[_Row]]] = []
    size = 0
    for ids, row in sorted(zip(bundle.completions, rows, strict=True), key=lambda pair: len(pair[0])):
        if not pieces or size + len(ids) > tokens:
            pieces.append(([], []))
            size = len(bundle.prompt_ids)
        pieces[-1][0].append(ids)
        pieces[-1][1].append(row)
        size += len(ids)
    return [(Bundle(prompt_ids=bundle.prompt_ids, completions=ids), part) for ids, part in pieces]
