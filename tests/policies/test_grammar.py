"""Drawing tokens: by softmax, and under a grammar only what the schema allows."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from genenv.errors import UsageError
from genenv.policies.base import SampleRequest
from genenv.policies.grammar import sample_inverse_cdf
from genenv.policies.packing import Bundle, Packed

ALMOST_ONE = 1 - 2**-53


class Order(BaseModel):
    """What a constrained completion must be."""

    model_config = ConfigDict(extra="forbid")
    urgent: bool
    size: Literal["small", "large"]
    colours: list[Literal["red", "blue"]]


@pytest.fixture(scope="module")
def policy(tiny):
    return tiny.player(noise=0.05)


@pytest.mark.parametrize("vocabulary", [1, 7, 255, 256, 257, 1000])
def test_draws_are_distributed_as_softmax(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(vocabulary, generator=generator) * 2
    draws = 20_000
    uniform = torch.rand(draws, dtype=torch.float64, generator=generator)
    tokens = torch.cat([sample_inverse_cdf(scores.expand(len(u), -1), u) for u in uniform.split(2000)])
    expected = scores.softmax(-1).double() * draws
    counts = tokens.bincount(minlength=vocabulary).double()
    common = expected >= 5  # the chi-square approximation needs a few draws per cell
    pool = [torch.stack([x[~common].sum()]) for x in (counts, expected)]
    counts, expected = (
        torch.cat([x[common], rest]) for x, rest in zip((counts, expected), pool, strict=True)
    )
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    cells = len(expected) - 1
    assert statistic <= cells + 4 * (2 * cells) ** 0.5  # four standard deviations of chi-square


@given(
    scores=st.lists(
        st.one_of(st.just(float("-inf")), st.floats(-60, 60, width=32)), min_size=1, max_size=40
    ).filter(lambda scores: max(scores) > float("-inf")),
    uniform=st.one_of(st.sampled_from([0.0, ALMOST_ONE, 1.0]), st.floats(0, ALMOST_ONE)),
    chunk=st.integers(1, 9),
)
def test_a_forbidden_token_is_never_drawn(scores, uniform, chunk):
    token = sample_inverse_cdf(torch.tensor([scores]), torch.tensor([uniform], dtype=torch.float64), chunk)
    weight = (torch.tensor(scores) - max(scores)).exp()[token]
    assert weight > 0


def test_numbers_near_the_ends_draw_the_first_and_the_last_allowed_token():
    scores = torch.full((3, 600), float("-inf"))
    scores[:, [3, 4, 301]] = 0.0  # the last chunk holds nothing
    uniform = torch.tensor([0.0, 0.5, ALMOST_ONE], dtype=torch.float64)
    assert sample_inverse_cdf(scores, uniform).tolist() == [3, 4, 301]


@pytest.mark.parametrize("token", [0, 255, 256, 510])
@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE, 1.0])
def test_a_distribution_on_one_token_draws_it(token, uniform):
    scores = torch.full((1, 511), float("-inf"))
    scores[0, token] = -3.0
    assert sample_inverse_cdf(scores, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


def constrained(count: int, **changes) -> list[SampleRequest]:
    schema = Order.model_json_schema()
    return [
        SampleRequest(prompt_ids=(5, 6, 7), max_tokens=120, stream=i, schema=schema, **changes)
        for i in range(count)
    ]


def test_every_finished_completion_under_a_grammar_is_a_value_of_the_schema(policy):
    completions = policy.sample_all(constrained(24))
    finished = [completion for completion in completions if completion.finished]
    assert len(finished) > 12
    for completion in finished:
        Order.model_validate_json(completion.text)
        assert completion.text == json.dumps(json.loads(completion.text), separators=(",", ":"))
    assert len({completion.text for completion in finished}) > 1


def test_free_rows_are_not_touched_by_constrained_rows_of_the_same_batch(policy):
    free = [SampleRequest(prompt_ids=(5, 6, 7), max_tokens=20, stream=50 + i) for i in range(4)]
    bound = constrained(4)
    mixed = policy.sample_all([request for pair in zip(free, bound, strict=True) for request in pair])
    assert [c.token_ids for c in mixed[::2]] == [c.token_ids for c in policy.sample_all(free)]
    assert [c.token_ids for c in mixed[1::2]] == [c.token_ids for c in policy.sample_all(bound)]


def test_greedy_rows_take_the_best_allowed_token_beside_rows_that_draw(policy):
    greedy, drawn = constrained(1, temperature=0.0), constrained(3)
    together = policy.sample_all(greedy + drawn)
    assert together[0].token_ids == policy.sample_all(greedy)[0].token_ids
    assert [c.token_ids for c in together[1:]] == [c.token_ids for c in policy.sample_all(drawn)]


def test_recorded_log_probabilities_are_those_without_the_grammar(policy):
    completion = policy.sample_all(constrained(1))[0]
    packed = Packed([Bundle(prompt_ids=(5, 6, 7), completions=[completion.token_ids])], torch.device("cpu"))
    with torch.no_grad(), policy.active():
        expected = policy.logprobs(packed)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert completion.logprobs[0] < -0.5  # the grammar alone would make the opening brace certain


def test_a_schema_that_is_no_schema_is_one_sentence(policy):
    request = SampleRequest(prompt_ids=(5,), max_tokens=4, schema={"type": "no such type"})
    with pytest.raises(UsageError, match="cannot be made into a grammar"):
        policy.sample_all([request])
