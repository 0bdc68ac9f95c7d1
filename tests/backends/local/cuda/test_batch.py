"""Sampling in steps over pages: what the other engine says, whatever comes and goes between the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from genenv.backends.local import engine
from genenv.backends.local.cuda.batch import PagedBatch
from genenv.backends.local.cuda.decode import buckets, difference, open_step
from genenv.backends.local.cuda.learning import TreeDecoder
from genenv.backends.local.served.models import ServedSampler as ServedSampler
from genenv.sampling import Conversation, SampleRequest
from torch_ops import TorchOps

PROMPTS = [(5, 9, 2), tuple(range(3, 100)), (5, 9, 2, 44), (5, 9, 2), tuple(range(3, 67))]


def paged(sampler, **config):
    """The same sampler, in steps."""
    model = sampler.model
    settings = model.config.model_copy(update={"max_batch_rows": 6, **config})
    model._decode_step_tried = True
    model._decode_step = open_step(model.causal, model.fused, settings, model.context_tokens, TorchOps)
    return sampler


def requests(count: int = 12, **changes) -> list[SampleRequest]:
    return [
        SampleRequest(
            prompt_ids=PROMPTS[i % len(PROMPTS)], max_tokens=1 + 17 * (i % 5), stream=100 + i, **changes
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def pair(request, tiny):
    return tiny.player(request.param, noise=0.05), paged(tiny.player(request.param, noise=0.05))


def same(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finished == other.finished
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.0}, {"temperature": 0.6}, {"top_p": 0.7}])
def test_tokens_and_log_probabilities_are_those_of_the_other_engine(pair, changes):
    plain, steps = pair
    asked = requests(**changes)
    same(steps.sample_all(asked), plain.sample_all(asked))


def test_replies_held_to_a_grammar_or_to_choices_are_those_of_the_other_engine(pair):
    schema = {"type": "object", "properties": {"to": {"enum": ["a", "bc"]}}, "required": ["to"]}
    choices = ((40, 41, 1), (40, 50, 51, 1), (60, 1))
    asked = [
        *(replace(one, schema=schema, max_tokens=40) for one in requests(3)),
        *(replace(one, choices=choices, max_tokens=6) for one in requests(4)),
        *requests(3),
    ]
    same(*(sampler.sample_all(asked) for sampler in reversed(pair)))


def test_after_a_batch_all_pages_are_free(pair):
    _, steps = pair
    pool = steps.model._decode_step.pool
    before = pool.free
    steps.sample_all(requests())
    assert pool.free == before


@pytest.mark.long
def test_adapters_that_learn_are_seen_by_the_next_batch(tiny):
    plain, steps = tiny.player(noise=0.05), paged(tiny.player(noise=0.05))
    steps.sample_all(requests(2))
    for sampler in (plain, steps):
        tiny.disturb(sampler, 0.05, seed=1)
    same(steps.sample_all(requests()), plain.sample_all(requests()))


def test_a_conversation_goes_on_from_its_pages(pair):
    for sampler in pair:
        sampler.held = [Conversation(), Conversation()]
    (first, *_), (other, *_) = (
        sampler.sample_all(
            [
                SampleRequest(
                    prompt_ids=PROMPTS[1],
                    max_tokens=70,
                    stream=3,
                    conversation=sampler.held[0],
                    survives_cut=True,
                )
            ]
        )
        for sampler in pair
    )
    same([first], [other])
    kept = [sampler.model.kept_caches[sampler.held[0]] for sampler in pair]
    assert kept[0].token_ids == kept[1].token_ids
    torch.testing.assert_close(kept[0].kept, kept[1].kept, atol=1e-4, rtol=1e-4)
    prompt = (*PROMPTS[1], *first.token_ids, 8, 8, 8)
    again = SampleRequest(prompt_ids=prompt, max_tokens=9, stream=4)
    same(*(s.sample_all([replace(again, conversation=s.held[0])]) for s in pair))


@pytest.mark.long
def test_a_pool_that_is_too_small_for_all_rows_lets_them_wait(tiny):
    plain, steps = tiny.player(noise=0.05), paged(tiny.player(noise=0.05))
    pool = steps.model._decode_step.pool
    pool.take(pool.free - 5)
    same(steps.sample_all(requests()), plain.sample_all(requests()))


def test_pages_of_a_batch_that_is_broken_off_are_free_again(pair, monkeypatch):
    _, steps = pair
    step = steps.model._decode_step
    before, count = step.pool.free, 0

    def breaks(*_):
        nonlocal count
        count += 1
        if count > 2:
            raise KeyboardInterrupt
        return PagedBatch.step(*_)

    monkeypatch.setattr(engine, "PagedBatch", type("Breaks", (PagedBatch,), {"step": breaks}))
    with pytest.raises(KeyboardInterrupt):
        steps.sample_all(requests())
    assert step.pool.free == before


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_a_nucleus_at_any_temperature_is_that_of_the_other_engine(pair, temperature):
    plain, steps = pair
    asked = requests(20, temperature=temperature, top_p=0.5)
    same(steps.sample_all(asked), plain.sample_all(asked))


def test_a_served_sampler_draws_as_it_was_asked_for_and_not_in_captured_steps():
    assert ServedSampler._captured is False


def test_a_step_says_what_the_model_says_and_one_that_does_not_is_found_out(tiny):
    sampler = paged(tiny.player("qwen3"))
    step, fused = sampler.model._decode_step, sampler.model.fused
    assert difference(step, fused) < 1e-5
    step._layers[0].out.weight[0] += 3.0
    step._final = step._final[0] * torch.linspace(0.5, 2, len(step._final[0])), step._final[1]
    assert difference(step, fused) > 1e-3


def test_buckets_hold_any_number_of_rows():
    assert list(buckets(100)) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    assert list(buckets(1)) == [1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_prompts_are_read_as_a_tree_into_their_pages(tiny, kind):
    plain, steps = tiny.player(kind, noise=0.05), paged(tiny.player(kind, noise=0.05))
    steps.model.tree = TreeDecoder(steps.model.fused, compile=False)
    same(steps.sample_all(requests()), plain.sample_all(requests()))
