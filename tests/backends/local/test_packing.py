"""Packing changes where tokens stand, never what the model says about them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.backends.local.packing import Bundle, Packed, Slots

KINDS = ("llama", "qwen2", "qwen3")
CPU = torch.device("cpu")

ragged = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 6), max_size=3)), min_size=1, max_size=4
)
"""Prompt length, and the length of each completion, of each bundle."""


def bundles_of(shapes: list[tuple[int, list[int]]], vocabulary: int) -> list[Bundle]:
    generator = torch.Generator().manual_seed(sum(length for length, _ in shapes))

    def ids(length: int) -> list[int]:
        return torch.randint(vocabulary, (length,), generator=generator).tolist()

    return [
        Bundle(prompt_ids=ids(prompt), completions=[ids(length) for length in lengths])
        for prompt, lengths in shapes
    ]


def plain_logprobs(model: torch.nn.Module, bundles: list[Bundle]) -> torch.Tensor:
    """One sequence at a time through transformers' own forward pass."""
    parts = [torch.zeros(0)]
    for bundle in bundles:
        for ids in bundle.completions:
            logits = model(torch.tensor([[*bundle.prompt_ids, *ids]])).logits[0]
            scores = logits[len(bundle.prompt_ids) - 1 : -1].float().log_softmax(-1)
            parts.append(scores.gather(1, torch.tensor(list(ids), dtype=torch.long)[:, None])[:, 0])
    return torch.cat(parts)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tiny):
    """A player that trains all weights, and the same weights in transformers' own hands."""
    return tiny.player(request.param, adapter=None), tiny.plain(request.param)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=ragged)
def test_packed_log_probabilities_equal_one_plain_forward_pass_per_sequence(pair, shapes):
    policy, plain = pair
    bundles = bundles_of(shapes, policy.model.vocabulary)
    with torch.no_grad():
        packed = policy.weights.logprobs(Packed(bundles, CPU))
        expected = plain_logprobs(plain, bundles)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shapes", [[(5, [3, 0, 6]), (2, []), (9, [1])], [(3, [4, 4]), (3, [4, 4])]])
def test_gradients_through_a_packed_row_equal_those_of_plain_sequences(pair, shapes):
    policy, plain = pair
    bundles = bundles_of(shapes, policy.model.vocabulary)
    tokens = sum(len(ids) for bundle in bundles for ids in bundle.completions)
    weights = torch.randn(tokens, generator=torch.Generator().manual_seed(5)) / tokens
    for model, logprobs in (
        (policy.model.causal, policy.weights.logprobs(Packed(bundles, CPU))),
        (plain, plain_logprobs(plain, bundles)),
    ):
        model.zero_grad()
        (logprobs * weights).sum().backward()
    found = dict(policy.model.causal.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_the_temperature_divides_the_scores(pair):
    policy, plain = pair
    bundles = bundles_of([(4, [5])], policy.model.vocabulary)
    ids = [*bundles[0].prompt_ids, *bundles[0].completions[0]]
    with torch.no_grad():
        scores = (plain(torch.tensor([ids])).logits[0, 3:-1] / 0.7).log_softmax(-1)
        found = policy.weights.logprobs(Packed(bundles, CPU), temperature=0.7)
    expected = scores.gather(1, torch.tensor(ids[4:])[:, None])[:, 0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_scoring_the_vocabulary_in_pieces_changes_neither_values_nor_gradients(pair, monkeypatch):
    policy, _ = pair
    packed = Packed(bundles_of([(4, [7, 5, 6])], policy.model.vocabulary), CPU)
    results = []
    for rows in (512, 4):
        monkeypatch.setattr("genenv.backends.local.token_logprobs.in_pieces.__kwdefaults__", {"rows": rows})
        policy.model.causal.zero_grad()
        logprobs = policy.weights.logprobs(packed)
        logprobs.sum().backward()
        results.append((logprobs.detach(), policy.model.causal.get_output_embeddings().weight.grad.clone()))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


def test_a_bundle_without_completions_has_no_targets():
    at, tokens = Packed([Bundle(prompt_ids=[1, 2]), Bundle(prompt_ids=[3], completions=[[]])], CPU).targets()
    assert at.tolist() == tokens.tolist() == []


def test_targets_point_from_each_completion_token_to_the_one_before_it():
    # flat row: prompts 10 11 12 | 20 21, then completions 13 14 | 15 | 22
    packed = Packed(
        [
            Bundle(prompt_ids=[10, 11, 12], completions=[[13, 14], [], [15]]),
            Bundle(prompt_ids=[20, 21], completions=[[22]]),
        ],
        CPU,
    )
    assert packed.ids_1N.tolist() == [[10, 11, 12, 20, 21, 13, 14, 15, 22]]
    assert packed.positions_1N.tolist() == [[0, 1, 2, 0, 1, 3, 4, 3, 2]]
    at, tokens = packed.targets()
    assert tokens.tolist() == [13, 14, 15, 22]
    assert at.tolist() == [2, 5, 2, 4]


def test_what_prompts_begin_with_stands_there_once():
    bundles = [
        Bundle(prompt_ids=[7, 8, 2], completions=[[3]]),
        Bundle(prompt_ids=[7, 8], completions=[[2, 5]]),
        Bundle(prompt_ids=[7, 8, 2, 1]),
        Bundle(prompt_ids=[9]),
        Bundle(prompt_ids=[7, 8], completions=[[6]]),
    ]
    packed = Packed(bundles, CPU)
    assert packed.ids_1N.tolist() == [[7, 8, 2, 1, 9, 3, 2, 5, 6]]
    assert packed.positions_1N.tolist() == [[0, 1, 2, 3, 0, 3, 2, 3, 2]]
    assert packed.last_of_prompt_B.tolist() == [2, 1, 3, 4, 1]
    at, tokens = packed.targets()
    assert (at.tolist(), tokens.tolist()) == ([2, 1, 6, 1], [3, 2, 5, 6])


few = st.lists(st.integers(1, 2), min_size=1, max_size=4)
"""So few different ids that many prompts begin alike."""


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.lists(st.tuples(few, st.lists(few, max_size=2)), min_size=1, max_size=6))
def test_shared_beginnings_change_neither_log_probabilities_nor_gradients(pair, shapes):
    policy, plain = pair
    bundles = [Bundle(prompt_ids=prompt, completions=completions) for prompt, completions in shapes]
    packed = Packed(bundles, CPU)
    distinct = {tuple(prompt[: t + 1]) for prompt, _ in shapes for t in range(len(prompt))}
    assert packed.prompt_tokens == len(distinct)
    found, expected = policy.weights.logprobs(packed), plain_logprobs(plain, bundles)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    if not len(found):
        return
    for model, logprobs in ((policy.model.causal, found), (plain, expected)):
        model.zero_grad()
        logprobs.mean().backward()
    grads = dict(policy.model.causal.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(grads[name].grad, parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_the_gradient_is_the_same_bit_for_bit_each_time_on_several_threads(tiny, monkeypatch):
    # 500 rows share the last token of their prompt; the states are wide enough for several threads to add up.
    policy = tiny.player(adapter=None)
    packed = Packed([Bundle(prompt_ids=[5], completions=[[6, 7]] * 500)], CPU)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(packed.ids_1N.shape[1], 576, generator=generator, requires_grad=True)
    weights = torch.randn(1000, 576, generator=generator)
    monkeypatch.setattr(policy.model, "hidden", lambda *_: hidden)
    threads, gradients = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for _ in range(12):
            hidden.grad = None
            (policy.weights.completion_hidden(packed)[0] * weights).sum().backward()
            gradients.append(hidden.grad.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


def test_a_bundle_without_a_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one prompt token"):
        Packed([Bundle(prompt_ids=[], completions=[[1]])], CPU)


@given(owners=st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_spreading_rows_over_bundles_and_gathering_them_again_is_the_identity(owners):
    slots = Slots(owners, 5, CPU)
    rows = torch.arange(len(owners) * 6, dtype=torch.float32).reshape(len(owners), 2, 3) + 1
    grid = slots.spread(rows)
    assert grid.shape == (5, max(owners.count(b) for b in owners), 2, 3)
    assert grid.sum() == rows.sum()
    assert torch.equal(slots.gather(grid), rows)


@pytest.mark.parametrize(
    ("owners", "full"), [([0, 0, 1, 1], True), ([0, 1, 0, 1], False), ([0, 0, 1], False)]
)
def test_only_rows_that_fill_the_grid_in_order_need_no_copy(owners, full):
    assert Slots(owners, 2, CPU).full is full
