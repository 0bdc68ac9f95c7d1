"""Under a grammar only what the schema allows is drawn."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict

from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UsageError
from genenv.sampling import SampleRequest


class Order(BaseModel):
    """What a constrained completion must be."""

    model_config = ConfigDict(extra="forbid")
    urgent: bool
    size: Literal["small", "large"]
    colours: list[Literal["red", "blue"]]


@pytest.fixture(scope="module")
def policy(tiny):
    return tiny.player(noise=0.05)


def constrained(count: int, **changes) -> list[SampleRequest]:
    schema = Order.model_json_schema()
    return [
        SampleRequest(prompt_ids=(5, 6, 7), max_tokens=120, stream=i, schema=schema, **changes)
        for i in range(count)
    ]


def test_a_grammar_is_kept_until_its_round_is_over(tiny):
    policy = tiny.player()
    for _ in range(2):
        policy.sample_all(constrained(2))
    kept = policy.model.grammars._compile.cache_info
    assert kept().misses == 1
    policy.end_round()
    assert kept().currsize == 0
    policy.sample_all(constrained(2))
    assert kept().currsize == 1


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
    with torch.no_grad(), policy.weights.active():
        expected = policy.weights.logprobs(packed)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert completion.logprobs[0] < -0.5  # the grammar alone would make the opening brace certain


def test_a_schema_that_is_no_schema_is_one_sentence(policy):
    request = SampleRequest(prompt_ids=(5,), max_tokens=4, schema={"type": "no such type"})
    with pytest.raises(UsageError, match="cannot be made into a grammar"):
        policy.sample_all([request])
