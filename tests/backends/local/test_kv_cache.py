"""What is remembered while sampling: prompts of several lengths, rows that come and go, conversations."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local.attention import KeptCache, OwnTokens, PromptCache

LAYERS, HEADS, SIZE = 2, 3, 4


def prompts(count: int, length: int, start: float) -> PromptCache:
    """Keys that tell where they come from: start + prompt + position / 100; values are their negatives."""
    cache = PromptCache()
    keys = start + torch.arange(count)[:, None] + torch.arange(length) / 100
    for layer in range(LAYERS):
        cache.keys[layer] = (keys + 1000 * layer)[:, None, :, None].expand(count, HEADS, length, SIZE).clone()
        cache.values[layer] = -cache.keys[layer]
    return cache


def append(cache: PromptCache, lengths: list[int], value: float) -> None:
    own = OwnTokens(lengths, torch.float32, torch.device("cpu"))
    for layer in range(LAYERS):
        new = torch.full((len(lengths), HEADS, SIZE), value + 1000 * layer)
        cache.append(layer, own, new, -new)


def test_prompts_that_come_in_are_padded_and_leave_the_cache_they_came_in():
    cache, pieces = PromptCache(), [prompts(2, 3, 10), prompts(1, 5, 20)]
    cache.extend(pieces, rows=3)
    cache.extend([prompts(1, 2, 30)], rows=1)
    assert cache.keys[0].shape == (4, HEADS, 5, SIZE)
    assert cache.keys[1][2, 0, :, 0].tolist() == pytest.approx([1020 + t / 100 for t in range(5)])
    assert cache.keys[0][3, 0, :, 0].tolist() == pytest.approx([30, 30.01, 0, 0, 0])
    assert torch.equal(cache.values[1], -cache.keys[1])
    assert not any(piece.keys or piece.values for piece in pieces)  # nothing is in memory twice


@pytest.mark.parametrize("own_tokens", [0, 2, 40])
def test_a_conversation_is_its_prompt_and_what_its_row_added(own_tokens):
    cache = PromptCache()
    cache.extend([prompts(2, 4, 10)], rows=2)
    for t in range(own_tokens):
        append(cache, [t, t], 500 + t)
    kept = cache.conversation(1, 3, 0, own_tokens)
    assert kept.shape == (LAYERS, 2, HEADS, 3 + own_tokens, SIZE)
    expected = [11, 11.01, 11.02, *(500 + t for t in range(own_tokens))]
    assert kept[0, 0, 2, :, 1].tolist() == pytest.approx(expected)
    assert kept[1, 1, 2, :, 1].tolist() == pytest.approx([-1000 - x for x in expected])
    assert kept.nbytes == (3 + own_tokens) * cache.bytes_per_token


def test_a_copy_of_a_conversation_stays_when_the_cache_goes_on():
    cache = PromptCache()
    cache.extend([prompts(1, 2, 10)], rows=1)
    append(cache, [0], 500)
    kept = cache.conversation(0, 2, 0, 1)
    before = kept.clone()
    append(cache, [0], 700)
    cache.keys[0].zero_()
    assert torch.equal(kept, before)


@pytest.mark.parametrize(
    ("prompt", "weights", "shared"),
    [
        ((1, 2, 3, 4), "now", 3),
        ((1, 2, 3), "now", 2),  # all is known: one token is read again, to predict the next
        ((1, 2, 9, 4), "now", 2),  # the conversation is told anew from its third token on
        ((1, 2), "now", 1),
        ((1, 9, 9, 9), "now", None),  # most of it is new
        ((9, 2, 3, 4), "now", None),
        ((1, 2, 3, 4), "later", None),
    ],
)
def test_a_prompt_goes_on_from_what_it_shares_with_what_is_remembered(prompt, weights, shared):
    kept = torch.arange(2 * 2 * 1 * 3 * 4).view(2, 2, 1, 3, 4)
    known = KeptCache(weights="now", token_ids=(1, 2, 3), kept=kept)
    found = known.shared(prompt, weights)
    assert (found and len(found.token_ids)) == shared
    if found:
        assert found.token_ids == prompt[: len(found.token_ids)]
        assert torch.equal(found.kept, kept[..., : len(found.token_ids), :])
