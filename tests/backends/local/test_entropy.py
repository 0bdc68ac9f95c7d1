"""The entropy bonus of a trainer, with and without LoRA: plain autograd and finite differences."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.trainer import LocalTrainer
from learners import gradients_of
from lessons import SEQUENCES, imitated

TEMPERATURE, WEIGHTS = 0.7, (0.1, 0.15, 0.05)
KNOWN = imitated((5, 6, 7), (4, 30, 1))


def attempts(advantage: float = 0.0) -> list[Datum]:
    return [
        imitated(
            prompt,
            ids,
            weight,
            loss="ppo",
            advantages=(advantage,) * len(ids),
            old_logprobs=(-4.0,) * len(ids),
            temperature=TEMPERATURE,
        )
        for (prompt, ids), weight in zip(SEQUENCES, WEIGHTS, strict=True)
    ]


def accumulated(player: Any, data: list[Datum], entropy: float) -> tuple[dict[str, float], dict[str, Any]]:
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    objective = Objective(kl="k3", entropy_coefficient=entropy)
    sums = asyncio.run(trainer.forward_backward(data, objective))
    found = gradients_of(trainer.optimizer)
    trainer.optimizer.clear()
    return dict(sums), found


def plain_entropy(player: Any) -> torch.Tensor:
    """Weighted like the loss, over the whole vocabulary, in one piece."""
    packed = Packed(
        [Bundle(prompt_ids=prompt, completions=[ids]) for prompt, ids in SEQUENCES], torch.device("cpu")
    )
    weight_M = torch.tensor(
        [weight for (_, ids), weight in zip(SEQUENCES, WEIGHTS, strict=True) for _ in ids]
    )
    with player.weights.active():
        hidden_MW, _ = player.weights.completion_hidden(packed)
        log_pi_MV = (player.weights.model.head(hidden_MW) / TEMPERATURE).log_softmax(-1)
    return -(weight_M[:, None] * log_pi_MV.exp() * log_pi_MV).sum()


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()]).double()


@pytest.fixture(params=["agent", None], ids=["lora", "full"])
def player(tiny, request):
    return tiny.player(adapter=request.param, noise=0.05)


def test_value_and_gradient_are_those_of_autograd(player):
    sums, found = accumulated(player, attempts(), 2.0)
    value = plain_entropy(player)
    assert sums["entropy"] == pytest.approx(value.item(), rel=1e-5)
    assert sums["loss"] == pytest.approx(-2 * value.item(), rel=1e-5)  # advantages of 0 add nothing
    parameters = dict(player.weights.parameters())
    expected = torch.autograd.grad(-2 * value, list(parameters.values()), allow_unused=True)
    wanted = {
        name: gradient for name, gradient in zip(parameters, expected, strict=True) if gradient is not None
    }
    apart = flat({name: found[name] for name in wanted}) - flat(wanted)
    assert apart.norm() < 1e-5 * flat(wanted).norm()


def test_the_gradient_is_that_of_finite_differences(player):
    _, found = accumulated(player, attempts(), 1.0)
    length, step, values = flat(found).norm().item(), 2e-3, list[float]()
    with torch.no_grad():
        for move in (step, -2 * step):
            for name, parameter in player.weights.parameters():
                parameter += move / length * found[name]
            values.append(-plain_entropy(player).item())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(length, rel=1e-2)


def test_micro_batches_do_not_change_it(tiny):
    small, large = (
        accumulated(tiny.player(noise=0.05, tokens_per_microbatch=budget), [*attempts(1.0), KNOWN], 0.5)
        for budget in (8, 4096)
    )
    for name in ("loss", "entropy"):
        assert small[0][name] == pytest.approx(large[0][name], rel=1e-5)
    assert (flat(small[1]) - flat(large[1])).norm() < 3e-6 * flat(large[1]).norm()


def test_without_a_coefficient_and_for_known_solutions_there_is_none(player):
    assert "entropy" not in accumulated(player, attempts(1.0), 0.0)[0]
    with_bonus, without = (accumulated(player, [KNOWN], entropy) for entropy in (1.0, 0.0))
    assert with_bonus[0] == without[0]
    assert all(torch.equal(with_bonus[1][name], value) for name, value in without[1].items())


def test_known_solutions_beside_attempts_do_not_change_the_mean(player):
    beside, alone = (accumulated(player, data, 1.0)[0] for data in ([*attempts(), KNOWN], attempts()))
    assert beside["entropy"] == pytest.approx(alone["entropy"], rel=1e-5)
