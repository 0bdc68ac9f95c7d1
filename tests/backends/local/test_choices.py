"""Sampling among a few replies: only what some of them go on with, as likely as it is among these."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from genenv.backends.local.next_token import OneOf, is_forbidden
from genenv.chat.sampler import encode_choices
from genenv.sampling import SampleRequest
from genenv.types import Choices

TEXTS = ("go to bed 1", "go to desk 1", "look")


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return tiny.player(noise=0.05)


def allowed(sampler: Any, matcher: OneOf) -> set[int]:
    mask = sampler.model.grammars.allowed([matcher])
    return set((~is_forbidden(mask, sampler.model.vocabulary)[0]).nonzero()[:, 0].tolist())


def test_what_may_come_next_is_what_the_replies_that_are_left_go_on_with(sampler: Any) -> None:
    matcher = OneOf([(31, 63, 1), (31, 64, 1), (5, 1), (330, 1)])  # both ends of a word of 32 tokens
    assert allowed(sampler, matcher) == {31, 5, 330}
    assert matcher.accept_token(31)
    assert allowed(sampler, matcher) == {63, 64}
    assert not OneOf([(31, 1)]).accept_token(30)
    assert matcher.accept_token(64)
    assert allowed(sampler, matcher) == {1}
    assert matcher.accept_token(1)
    assert matcher.is_terminated()


def test_a_completion_that_is_none_of_its_choices_is_refused(sampler: Any) -> None:
    held = [Choices(start=1, replies=((8, 9, 1), (8, 7, 1)))]
    among = sampler.model.grammars.among(held, (4, 8, 7, 1, 20, 21))
    free = is_forbidden(among, sampler.model.vocabulary).sum(-1).tolist()
    everything = sampler.model.vocabulary
    assert free == [0, everything - 1, everything - 2, everything - 1, 0, 0]
    with pytest.raises(ValueError, match="token 2 of a completion is in none of its choices"):
        sampler.model.grammars.among(held, (4, 8, 6, 1))


def test_a_reply_is_as_likely_as_its_tokens_are_among_the_choices(sampler: Any) -> None:
    choices = encode_choices(TEXTS, sampler, thinks=False)
    requests = [
        SampleRequest(prompt_ids=(5, 6, 7), max_tokens=40, stream=i, choices=choices) for i in range(400)
    ]
    done = sampler.sample_all(requests)
    chances = {one.text: math.exp(sum(one.logprobs)) for one in done}
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-4)
    counts = Counter(one.text for one in done)
    for text, chance in chances.items():
        assert abs(counts[text] / 400 - chance) < 4 * math.sqrt(chance * (1 - chance) / 400)
    greedy = sampler.sample_all([replace(requests[0], temperature=0.0)])[0]
    assert greedy.text in TEXTS


def test_rows_with_choices_schemas_and_neither_share_a_batch(sampler: Any) -> None:
    plain = [SampleRequest(prompt_ids=(5, 6, 7), max_tokens=30, stream=i) for i in range(3)]
    held = [replace(one, choices=encode_choices(TEXTS, sampler, thinks=False)) for one in plain]
    schema = [replace(one, schema={"enum": ["yes", "no"]}) for one in plain]
    together = sampler.sample_all([*plain, *held, *schema])
    apart = [*sampler.sample_all(plain), *sampler.sample_all(held), *sampler.sample_all(schema)]
    assert [one.token_ids for one in together] == [one.token_ids for one in apart]


def test_a_reply_that_is_too_long_is_cut_off(sampler: Any) -> None:
    choices = encode_choices(("go to bed 1",), sampler, thinks=False)
    (done,) = sampler.sample_all([SampleRequest(prompt_ids=(5, 6), max_tokens=3, choices=choices)])
    assert (done.finished, done.token_ids) == (False, choices[0][:3])
    assert set(done.forced) == {0, 1, 2}
    assert done.logprobs == pytest.approx((0.0, 0.0, 0.0), abs=1e-6)
