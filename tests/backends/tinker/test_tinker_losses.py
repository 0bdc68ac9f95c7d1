"""Losses put into those of the protocol: the same gradient and the same figures as the local backend's."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

pytest.importorskip("tinker")

from genenv.algorithms.datum import Datum, Objective
from genenv.backends.local.losses import Tokens, k3, token_losses
from genenv.backends.tinker import losses
from genenv.backends.tinker import service as wire

NATS = st.floats(-6, -0.01)
CLIPS = st.sampled_from([(0.2, 0.2), (0.1, 0.3), (0.05, 0.07)])


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[Datum], list[list[float]], list[list[float]]]:
    """Data of both losses, and what the weights and the reference say of them."""
    data, own, reference = list[Datum](), list[list[float]](), list[list[float]]()
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 4))

        def each(values: st.SearchStrategy[float], length: int = length) -> tuple[float, ...]:
            return tuple(draw(st.lists(values, min_size=length, max_size=length)))

        sampled = draw(st.booleans())
        data.append(
            Datum(
                prompt_ids=tuple(range(draw(st.integers(1, 3)))),
                completion_ids=tuple(range(length)),
                weights=(1.0, *each(st.sampled_from([0.0, 0.25, 1.0]))[1:]),
                loss="ppo" if sampled else "nll",
                advantages=each(st.sampled_from([-1.5, -0.5, 0.0, 0.25, 2.0])) if sampled else None,
                old_logprobs=each(NATS) if sampled else None,
            )
        )
        own.append(list(each(NATS)))
        reference.append(list(each(NATS)))
    return data, own, reference


def served(
    call: losses.Call, own: dict[int, torch.Tensor], data: list[Datum], sums: losses.Sums, count: int
) -> torch.Tensor:
    """What a server's loss is: by the protocol sums over tokens, or means as in SkyRL."""
    total = torch.zeros((), dtype=torch.float64)
    for place, sequence in zip(call.places, call.sequences, strict=True):
        before = len(data[place].prompt_ids) - 1
        inputs = {
            name: torch.tensor(t.data, dtype=torch.float64)[before:]
            for name, t in sequence.loss_fn_inputs.items()
        }
        if call.loss == "cross_entropy":
            total = total - (inputs["weights"] * own[place]).sum()
            continue
        ratio, advantage = (own[place] - inputs["logprobs"]).exp(), inputs["advantages"]
        gain = ratio * advantage
        if call.loss == "ppo":
            assert call.config is not None
            low, high = call.config["clip_low_threshold"], call.config["clip_high_threshold"]
            gain = torch.minimum(gain, ratio.clamp(low, high) * advantage)
        length = len(data[place].prompt_ids) + len(data[place].completion_ids) - 1
        total = total - gain.sum() / (length if sums.by_length else 1)
    return total / (count if sums.by_count else 1)


@pytest.mark.long
@given(
    given_=sequences(),
    clip=CLIPS,
    beta=st.sampled_from([0.0, 0.1]),
    kl=st.sampled_from(["k3", "exact"]),
    sums=st.builds(losses.Sums, weighs=st.booleans(), by_length=st.booleans(), by_count=st.booleans()),
)
def test_the_passes_have_the_gradient_and_the_figures_of_the_local_loss(given_, clip, beta, kl, sums):
    data, own, reference = given_
    objective = Objective(clip_low=clip[0], clip_high=clip[1], kl_coefficient=beta, kl=kl)
    leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in own]
    known = {place: tuple(own[place]) for place in losses.wants_own(data, objective, sums)}
    anchors = {place: tuple(reference[place]) for place in losses.wants_reference(data, objective)}
    made = losses.calls(data, objective, known, anchors, sums)
    count = sum(len(call.sequences) for call in made)
    total = sum(
        (served(call, dict(enumerate(leaves)), data, sums, count) for call in made),
        torch.zeros((), dtype=torch.float64),
    )
    found = torch.autograd.grad(total, leaves, allow_unused=True)

    again = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    counts = torch.tensor([w > 0 for datum in data for w in datum.weights])
    tokens = Tokens.of(data, torch.device("cpu"))
    own_M, reference_M = (
        torch.cat(again)[counts],
        torch.tensor([value for row in reference for value in row], dtype=torch.float64)[counts],
    )
    if kl == "exact":
        plain = Objective(clip_low=clip[0], clip_high=clip[1])
        expected, sums = token_losses(own_M, tokens, plain)
        term = k3(own_M, reference_M).mean()
        expected, sums = expected + beta * term, dict(sums, kl=term)
    else:
        expected, sums = token_losses(own_M, tokens, objective, reference_M if beta else None)
    wanted = torch.autograd.grad(expected, again, allow_unused=True)
    for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
        zero = torch.zeros_like(leaves[place])
        torch.testing.assert_close(
            zero if a is None else a, (zero if b is None else b).to(torch.float64), atol=1e-5, rtol=1e-4
        )

    figures = losses.measures(data, objective, dict(enumerate(map(tuple, own))), anchors)
    assert figures["loss"] == pytest.approx(float(expected.detach()), abs=1e-4)
    assert figures["tokens"] == int(counts.sum())
    if "clip_rate" in figures:
        assert figures["clip_rate"] == pytest.approx(float(sums["clip_rate"].detach()), abs=1e-6)
        assert figures["old_kl"] == pytest.approx(float(sums["old_kl"]), rel=1e-4, abs=1e-6)
    if beta and ("clip_rate" in figures or kl == "exact"):
        assert figures["kl"] == pytest.approx(float(sums["kl"].detach()), abs=1e-4)


def test_the_distance_is_nothing_for_equal_weights_and_estimates_the_divergence() -> None:
    assert losses.distance([(-1.0, -2.0)], [(-1.0, -2.0)]) == 0
    now, then = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.3, 0.4, 0.3])
    drawn = torch.multinomial(then, 20_000, replacement=True, generator=torch.Generator().manual_seed(1))
    found = losses.distance([now.log()[drawn].tolist()], [then.log()[drawn].tolist()])
    assert found == pytest.approx(float((now * (now / then).log()).sum()), rel=0.1)


def test_a_sequence_stands_shifted_with_nothing_beside_its_prompt() -> None:
    datum = Datum(prompt_ids=(5, 6, 7), completion_ids=(8, 9), weights=(1.0, 0.5), loss="nll")
    sent = wire.encoded(datum, weights=datum.weights)
    assert sent.model_input.to_ints() == [5, 6, 7, 8]
    assert list(sent.loss_fn_inputs["target_tokens"].data) == [6, 7, 8, 9]
    assert list(sent.loss_fn_inputs["weights"].data) == [0.0, 0.0, 1.0, 0.5]
    assert wire.logprobs_of([{"logprobs": sent.loss_fn_inputs["weights"]}], [datum]) == [(1.0, 0.5)]
    answer = {"elementwise_loss": sent.loss_fn_inputs["weights"], "logprobs": sent.loss_fn_inputs["weights"]}
    assert wire.losses_of([answer]) == [[0.0, 0.0, 1.0, 0.5]]
    with pytest.raises(ValueError, match="2 answers for 1"):
        wire.logprobs_of([{}, {}], [datum])


@pytest.mark.parametrize("length", [5, 4])
def test_what_a_sampler_says_of_a_whole_sequence_ends_with_the_completion(length: int) -> None:
    datum = Datum(prompt_ids=(5, 6, 7), completion_ids=(8, 9), weights=(1.0, 1.0), loss="nll")
    values = [None, -1.0, -2.0, -3.0, -4.0][5 - length :]
    assert wire.tail(values, datum) == (-3.0, -4.0)
    with pytest.raises(ValueError, match="3 log-probabilities for 5 tokens"):
        wire.tail([-1.0] * 3, datum)
    assert not wire.all_finite([[math.nan]])
