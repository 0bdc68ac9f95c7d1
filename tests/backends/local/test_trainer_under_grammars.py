"""What was written under a grammar is learnt under it: likelihoods, KL terms, and the distance of the cap."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from genenv.algorithms.datum import Datum, Objective, averaged
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.trainer import LocalTrainer
from genenv.chat.sampler import with_free_text
from genenv.simulator.settings import SimulatorConfig
from learners import SimulatorLearner, gradients_of
from lessons import imitated, samples

BOOLEAN = {"type": "boolean"}
SEVERAL = {"enum": ["yes", "no", "maybe"]}
PLACES = {"enum": [{"city": "Paris"}, {"city": "Oslo"}, {"town": "Rome"}]}


def trained(sampler: Any, data: list[Datum], kl: float = 0.0) -> tuple[dict, dict[str, torch.Tensor]]:
    """What is measured, and the gradients."""
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    sums = asyncio.run(trainer.forward_backward(data, Objective(kl_coefficient=kl, kl="exact")))
    return dict(sums), gradients_of(trainer.optimizer)


def completions_of(sampler, schema) -> list[tuple[int, ...]]:
    """All that can be written under a grammar."""
    found, open_ = [], [()]
    while open_:
        ids = open_.pop()
        matcher = sampler.model.grammars.matcher(schema)
        assert all(matcher.accept_token(token) for token in ids)
        if ids[-1:] == (sampler.model.chat.end_id,):
            found.append(ids)
            continue
        next_ = is_forbidden(sampler.model.grammars.allowed([matcher]), sampler.model.vocabulary)[0]
        open_ += [(*ids, token) for token in (~next_).nonzero()[:, 0].tolist()]
    return found


def under(schema, prompt, ids, weight: float = 1.0, temperature: float = 1.0) -> Datum:
    return imitated(prompt, ids, weight, schema=schema, temperature=temperature)


@pytest.mark.parametrize(
    ("limits", "text", "fits"),
    [
        ({}, 'a \\"quoted\\" word\\nand a line', True),
        ({"minLength": 1, "maxLength": 240}, 'a \\"quoted\\" word\\nand a line', True),
        ({"maxLength": 3}, "abc", True),
        ({"maxLength": 3}, "abcd", False),
        ({"pattern": "^[ab]{2}$"}, "abab", False),
    ],
)
def test_a_text_with_a_length_limit_may_hold_quotes_and_line_breaks(tiny, limits, text, fits):
    """xgrammar allows no escape in a string with a length limit."""
    schema = {"type": "array", "prefixItems": [{"type": "string", **limits}], "items": False, "minItems": 1}
    matcher = tiny.player().model.grammars.matcher(schema)
    assert matcher.accept_string(f'["{text}"]') is fits
    assert with_free_text({"enum": [{"maxLength": 99}]}) == {"enum": [{"maxLength": 99}]}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_likelihood_under_a_grammar_is_one_among_what_it_allows(tiny, temperature):
    sampler = tiny.player(noise=0.05)
    written = completions_of(sampler, SEVERAL)
    data = [under(SEVERAL, (5, 6, 7), ids, temperature=temperature) for ids in written]
    assert sum(math.exp(-trained(sampler, [d])[0]["loss"]) for d in data) == pytest.approx(1.0, abs=1e-5)
    scored = asyncio.run(LocalTrainer(sampler.weights, OptimizerConfig()).logprobs(data))
    assert sum(math.exp(sum(row)) for row in scored) == pytest.approx(1.0, abs=1e-5)


def test_samples_of_equal_worth_move_nothing_on_average_under_their_grammars(tiny):
    sampler = tiny.player(noise=0.05)
    written = [(s, p, ids) for s, p in ((BOOLEAN, (5, 6, 7)), (SEVERAL, (8, 9)))
               for ids in completions_of(sampler, s)]  # fmt: skip
    chances = [math.exp(-trained(sampler, [under(*row)])[0]["loss"]) for row in written]
    weighed = [under(*row, weight=chance) for row, chance in zip(written, chances, strict=True)]
    moved = trained(sampler, weighed)[1]
    one = trained(sampler, weighed[:1])[1]
    without = trained(sampler, [replace(d, schema=None) for d in weighed])[1]
    assert _longest(moved) < 1e-4 * _longest(one)
    assert _longest(without) > _longest(one)


def _longest(grads: dict[str, torch.Tensor]) -> float:
    return max(grad.abs().max().item() for grad in grads.values())


def divergence_by_hand(scores, reference, choices: list[list[int]], temperature: float) -> float:
    """Mean over tokens of sum p log(p / q), each token among its own choices, in plain Python."""
    total = 0.0
    for own, other, allowed in zip(scores.tolist(), reference.tolist(), choices, strict=True):
        odds, others = ([math.exp(row[v] / temperature) for v in allowed] for row in (own, other))
        pairs = zip(odds, others, strict=True)
        total += sum(p / sum(odds) * math.log(p / sum(odds) / (q / sum(others))) for p, q in pairs)
    return total / len(choices)


def choices_along(sampler, schema, ids) -> list[list[int]]:
    """Token by token: what the grammar allows in its place."""
    matcher, choices = sampler.model.grammars.matcher(schema), []
    for token in ids:
        forbidden = is_forbidden(sampler.model.grammars.allowed([matcher]), sampler.model.vocabulary)[0]
        choices.append((~forbidden).nonzero()[:, 0].tolist())
        assert matcher.accept_token(token)
    return choices


def scores_of(sampler, prompt, ids):
    packed = Packed([Bundle(prompt_ids=prompt, completions=[ids])], torch.device("cpu"))
    with torch.no_grad():
        return sampler.model.head(sampler.weights.completion_hidden(packed)[0])


@pytest.mark.parametrize("adapter", ["simulator", None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_kl_is_taken_over_what_could_be_sampled(tiny, adapter, temperature):
    sampler, prompt = tiny.player(adapter=adapter, noise=0.05), (5, 6, 7)
    ids = max(completions_of(sampler, PLACES), key=len)
    choices = choices_along(sampler, PLACES, ids)
    assert {1, 2} <= {len(allowed) for allowed in choices}  # some tokens have a choice, some have none
    with sampler.weights.active():
        own = scores_of(sampler, prompt, ids)
    with sampler.weights.reference():
        initial = scores_of(sampler, prompt, ids)
    expected = divergence_by_hand(own, initial, choices, temperature)
    found = trained(sampler, [under(PLACES, prompt, ids, temperature=temperature)], kl=0.5)[0]
    assert found["kl"] == pytest.approx(expected, rel=1e-3)
    everything = [list(range(sampler.model.vocabulary))] * len(ids)
    assert found["kl"] < 0.5 * divergence_by_hand(own, initial, everything, 1.0)


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_the_cap_measures_what_could_be_sampled(tiny, adapter):
    sampler, prompt = tiny.player(adapter=adapter), (5, 6, 7)
    ids = max(completions_of(sampler, PLACES), key=len)
    sample = samples(1.0, 0.0, 0.0)[0]
    sample = replace(sample, generation=replace(sample.generation, prompt_ids=prompt, token_ids=ids))
    with sampler.weights.active():
        before = scores_of(sampler, prompt, ids)
    config = SimulatorConfig(lr=3e-3, kl_coefficient=0.05, kl_cap=10.0, temperature=0.7)
    player = SimulatorLearner(sampler, config)
    schemas = {sample.generation.context_id: PLACES}
    measured = player.update([sample], schemas=schemas)["simulator/kl_step"]
    with sampler.weights.active():
        after = scores_of(sampler, prompt, ids)
    expected = divergence_by_hand(after, before, choices_along(sampler, PLACES, ids), 0.7)
    assert measured == pytest.approx(expected, rel=1e-3)
    assert measured > 1e-4


def test_sequences_with_and_without_a_grammar_share_a_micro_batch(tiny):
    sampler = tiny.player(noise=0.05)
    bound = under(BOOLEAN, (5, 6, 7), completions_of(sampler, BOOLEAN)[0])
    free = imitated((5, 6, 7), (8, 9, 10, 1))
    losses = [trained(sampler, [d])[0]["loss"] for d in (bound, free)]
    assert trained(sampler, [bound, free])[0]["loss"] == pytest.approx(sum(losses))
    # the grammar speaks for all tokens of a completion, also where some of them do not count
    last = replace(bound, weights=(*(0.0,) * (len(bound.weights) - 1), 1.0))
    alone = asyncio.run(LocalTrainer(sampler.weights, OptimizerConfig()).logprobs([bound]))[0][-1]
    together = trained(sampler, [averaged([free], {"nll": 1.0})[0], last])[0]["loss"]
    assert together == pytest.approx(losses[1] / 4 - alone, abs=1e-5)


def test_a_random_variation_that_leaves_its_grammar_is_free_from_there_on(tiny):
    sampler = tiny.player(noise=0.05)
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    free = imitated((5, 6, 7), (8, 9, 1))
    strayed = under(BOOLEAN, (5, 6, 7), (8, 9, 1))
    found = asyncio.run(trainer.logprobs([free, strayed]))
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    first = completions_of(sampler, BOOLEAN)[0][0]
    partly, bound = asyncio.run(
        trainer.logprobs([under(BOOLEAN, (5, 6, 7), (first, 8, 1)), imitated((5, 6, 7), (first, 8, 1))])
    )
    assert partly[0] > bound[0]  # among the tokens that the grammar allows
    assert partly[1:] == pytest.approx(bound[1:], abs=1e-5)
