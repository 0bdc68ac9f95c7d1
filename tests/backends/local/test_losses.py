"""The losses, token by token: by hand, at their bounds, and for known solutions beside attempts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genenv.algorithms.datum import Objective
from genenv.algorithms.losses import LOSSES
from genenv.backends.local.losses import Tokens, k3, token_losses
from lessons import imitated


def tokens(*, old, advantage, weight, nll=None, dtype=torch.float32) -> Tokens:
    return Tokens(
        old_M=torch.tensor(old, dtype=dtype),
        advantage_M=torch.tensor(advantage, dtype=dtype),
        weight_M=torch.tensor(weight, dtype=dtype),
        nll_M=torch.tensor(nll or [False] * len(old)),
        loss=None if all(nll or [False]) else LOSSES["ppo"],
        lengths=(len(old),),
    )


def test_the_tokens_of_data_are_those_that_count_in_order():
    attempt = imitated(
        (1, 2),
        (3, 4, 5),
        loss="ppo",
        weights=(0.5, 0.0, 0.25),
        advantages=(-1.0,) * 3,
        old_logprobs=(-1.0, -2.0, -3.0),
    )
    found = Tokens.of([attempt, imitated((1,), (6, 7), 2.0)], torch.device("cpu"))
    assert found.weight_M.tolist() == [0.5, 0.25, 2.0, 2.0]
    assert found.advantage_M.tolist() == [-1.0, -1.0, 0.0, 0.0]
    assert found.old_M.tolist() == [-1.0, -3.0, 0.0, 0.0]
    assert found.nll_M.tolist() == [False, False, True, True]
    assert found.loss is LOSSES["ppo"]
    assert not Tokens.of([imitated((1,), (6, 7), 2.0)], torch.device("cpu")).loss


def test_the_loss_of_three_tokens_by_hand():
    batch = tokens(old=[-1.0, -1.0, -1.0], advantage=[1.0, -2.0, 1.0], weight=[0.5, 0.25, 0.25])
    reference = torch.tensor([-1.0, -2.0, -1.0])
    own = torch.tensor([-1.0, -1.0 + math.log(0.5), -1.0 + math.log(2.0)])
    objective = Objective(clip_low=0.2, clip_high=0.28, kl_coefficient=0.1, kl="k3")
    loss, sums = token_losses(own, batch, objective, reference)
    # ratios 1, 0.5, 2: surrogates 1 (free), -2 * 0.8 (clipped from below), 1.28 (clipped from above)
    distance = [
        0.0,
        math.exp(-1 + math.log(2)) - (-1 + math.log(2)) - 1,
        math.exp(-math.log(2)) + math.log(2) - 1,
    ]
    kl = 0.25 * (distance[1] + distance[2])
    assert loss.item() == pytest.approx(-(0.5 * 1 + 0.25 * -1.6 + 0.25 * 1.28) + 0.1 * kl, abs=1e-6)
    assert sums["clip_rate"].item() == pytest.approx(0.5)
    assert sums["kl"].item() == pytest.approx(kl, abs=1e-6)
    # k3(then, now) of the same ratios: 0, 0.5 - 1 + log 2, 2 - 1 - log 2, which add up to 0.5
    assert sums["old_kl"].item() == pytest.approx(0.25 * 0.5, abs=1e-6)


@given(own=st.floats(-8, 0), reference=st.floats(-8, 0))
def test_the_kl_estimate_is_never_negative_and_zero_where_both_agree(own, reference):
    value = k3(torch.tensor(own, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)).item()
    assert value >= -1e-12
    assert k3(torch.tensor(own), torch.tensor(own)).item() == 0.0


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (math.log(2), 1 - math.log(2)),  # 2 - 0.693 - 1
        (2.6, math.exp(2.6) - 3.6),  # 9.864: below the bound
        (2.7, 10.0),  # 11.180 without the bound
        (12.0, 10.0),  # 162,742
        (1e4, 10.0),  # infinite
        (-10.0, math.exp(-10) + 9),
        (-1e4, 10.0),
    ],
)
def test_one_token_adds_at_most_ten_nats_to_the_kl(d, expected):
    own = torch.tensor([-20.0], requires_grad=True)
    value = k3(own, own.detach() + d)
    assert value.item() == pytest.approx(expected, rel=1e-5)
    value.sum().backward()
    assert own.grad is not None
    assert own.grad.item() == (0.0 if expected == 10.0 else pytest.approx(1 - math.exp(d), rel=1e-5))


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_a_token_that_became_much_likelier_than_when_it_was_sampled_leaves_the_loss_finite(advantage):
    own = torch.tensor([-0.5], requires_grad=True)
    batch = tokens(old=[-150.0], advantage=[advantage], weight=[1.0])
    loss, sums = token_losses(own, batch, Objective(clip_low=0.2, clip_high=0.2))
    loss.backward()
    assert loss.item() == pytest.approx({-1.0: math.exp(20), 0.0: 0.0, 1.0: -1.2}[advantage])
    assert math.isfinite(own.grad.item())
    assert sums["clip_rate"].item() == (advantage > 0)


def test_the_gradient_of_a_known_solution_is_the_supervised_one():
    generator = torch.Generator().manual_seed(0)
    logprobs_M = -torch.rand(6, generator=generator, dtype=torch.float64) * 5
    alone = tokens(
        old=[0.0] * 6, advantage=[0.0] * 6, weight=[1.5 / 6] * 6, nll=[True] * 6, dtype=torch.float64
    )
    attempt = tokens(old=[-1.0], advantage=[0.0], weight=[1.0], dtype=torch.float64)
    beside = Tokens(
        **{
            name: torch.cat([getattr(alone, name), getattr(attempt, name)])
            for name in ("old_M", "advantage_M", "weight_M", "nll_M")
        },
        loss=LOSSES["ppo"],
        lengths=(6, 1),
    )
    objective = Objective(clip_low=0.2, clip_high=0.2, kl_coefficient=0.5, kl="k3")
    last = torch.tensor([-1.0], dtype=torch.float64)  # as when it was sampled, and as the reference says
    for batch, own in ((alone, logprobs_M), (beside, torch.cat([logprobs_M, last]))):
        leaf = own.clone().requires_grad_()
        reference_M = torch.cat([torch.full((6,), -9.0, dtype=torch.float64), last])[: len(own)]
        loss, sums = token_losses(leaf, batch, objective, reference_M)
        loss.backward()
        assert loss.item() == pytest.approx(-1.5 * logprobs_M.mean().item())
        assert torch.allclose(leaf.grad[:6], torch.full((6,), -1.5 / 6, dtype=torch.float64))
        assert float(sums.get("kl", 0.0)) == 0.0
        assert float(sums.get("clip_rate", 0.0)) == 0.0


def test_tokens_beside_a_known_solution_count_as_they_did():
    logprobs_M = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    reference_M = torch.tensor([-1.1, -1.0, -0.7], dtype=torch.float64)
    batch = tokens(
        old=[-1.2, -1.5, -0.6], advantage=[1.0, -1.0, 0.5], weight=[0.2, 0.3, 0.5], dtype=torch.float64
    )
    objective = Objective(clip_low=0.2, clip_high=0.2, kl_coefficient=0.1, kl="k3")
    plain, sums = token_losses(logprobs_M, batch, objective, reference_M)
    more = Tokens(
        old_M=torch.cat([batch.old_M, torch.zeros(1)]),
        advantage_M=torch.cat([batch.advantage_M, torch.zeros(1)]),
        weight_M=torch.cat([batch.weight_M, torch.tensor([0.25])]),
        nll_M=torch.tensor([False] * 3 + [True]),
        loss=LOSSES["ppo"],
        lengths=(3, 1),
    )
    one = torch.tensor([-2.0], dtype=torch.float64)
    marked, others = token_losses(
        torch.cat([logprobs_M, one]), more, objective, torch.cat([reference_M, -9 * one])
    )
    assert marked.item() == pytest.approx(plain.item() + 0.25 * 2.0, rel=1e-12)
    assert {name: float(value) for name, value in others.items()} == pytest.approx(
        {name: float(value) for name, value in sums.items()}, rel=1e-12
    )
