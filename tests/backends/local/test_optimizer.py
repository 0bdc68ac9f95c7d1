"""What AdamW goes on with after a warm-up: numbers by hand for one weight, and what noise does to many."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch import nn

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local import optimizer
from genenv.backends.local.optimizer import Optimizer

BETAS = (0.9, 0.999)


def optimizer_of(weights: int, betas: tuple[float, float] = BETAS) -> tuple[Optimizer, nn.Parameter]:
    weight = nn.Parameter(torch.zeros(weights, dtype=torch.float64))
    config = OptimizerConfig(betas=betas, weight_decay=0.0, max_grad_norm=1e6)
    return Optimizer([("weight", weight)], config), weight


def step(optimizer: Optimizer, weight: nn.Parameter, gradient: torch.Tensor, lr: float = 1.0) -> torch.Tensor:
    """How far one step moved the weights."""
    before = weight.detach().clone()
    weight.grad = gradient.to(weight.dtype)
    optimizer.step(lr)
    return weight.detach() - before


@pytest.mark.parametrize(
    ("kept", "moved"),
    [
        # m = 0.9 * -0.19 + 0.1 * 0.1 = -0.161, over 1 - 0.9^3 = 0.271: -0.5941, still the warm-up's way;
        # v = 0.999 * 0.001999 + 0.001 * 0.01 = 0.002007, over 1 - 0.999^3 = 0.002997: 0.6697, root 0.8183
        ("both", 0.7260),
        ("second", -0.0451),  # m = 0.01, over 0.271: 0.0369
        ("none", -0.1),  # m / sqrt(v) = 1 after correction, and a ramp of 1 - 0.9
    ],
)
def test_after_two_steps_up_one_step_down_goes_as_far_as_the_moments_say(kept, moved):
    optimizer, weight = optimizer_of(1)
    for _ in range(2):
        assert step(optimizer, weight, torch.tensor([-1.0])).item() == pytest.approx(1.0, abs=1e-6)
    optimizer.keep(kept)
    assert step(optimizer, weight, torch.tensor([0.1])).item() == pytest.approx(moved, abs=1e-4)


@pytest.mark.parametrize(("kept", "still"), [("both", False), ("second", True), ("none", True)])
def test_only_a_first_moment_that_was_kept_moves_weights_without_a_gradient(kept, still):
    optimizer, weight = optimizer_of(1)
    step(optimizer, weight, torch.tensor([-1.0]))
    optimizer.keep(kept)
    assert (step(optimizer, weight, torch.tensor([0.0])).item() == 0.0) is still


def test_no_step_that_sees_noise_alone_is_longer_than_the_later_ones():
    """Root mean squares over 4,000 weights: from 0.1 to sqrt(0.1 / 1.9) = 0.23; without a ramp, from 1."""
    optimizer, weight = optimizer_of(4000)
    optimizer.keep("none")
    noise = torch.Generator().manual_seed(0)
    ramped: list[float] = []
    for _ in range(40):
        moved = step(optimizer, weight, torch.randn(4000, generator=noise))
        ramped.append(moved.square().mean().sqrt().item())
    assert ramped[0] == pytest.approx(0.1, abs=1e-6)
    assert max(ramped) < 0.24
    assert ramped[-1] == pytest.approx(0.23, abs=0.01)
    fresh, other = optimizer_of(4000)
    moved = step(fresh, other, torch.randn(4000, generator=noise))
    assert moved.abs().min().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("kept", "ramped"), [("none", True), ("second", False), ("both", False)])
def test_whether_steps_are_ramped_is_a_part_of_the_state(tmp_path, kept, ramped):
    optimizer, weight = optimizer_of(1)
    step(optimizer, weight, torch.tensor([-1.0]))
    optimizer.keep(kept)
    optimizer.save(tmp_path)
    again, _ = optimizer_of(1)
    again.load(tmp_path)
    assert again.ramped is ramped
    state = safetensors.torch.load_file(tmp_path / "optimizer.safetensors")
    safetensors.torch.save_file(state, tmp_path / "optimizer.safetensors")
    again.load(tmp_path)
    assert again.ramped, "of an earlier version, which did not say so"


def test_the_ramp_goes_on_where_it_was_saved(tmp_path):
    optimizer, weight = optimizer_of(1)
    assert optimizer.ramp() == pytest.approx(0.1)
    step(optimizer, weight, torch.tensor([1.0]))
    assert optimizer.ramp() == pytest.approx(0.19)
    optimizer.save(tmp_path)
    other, _ = optimizer_of(1)
    other.load(tmp_path)
    assert other.ramp() == optimizer.ramp()


def test_without_momentum_there_is_no_ramp():
    assert optimizer_of(1, betas=(0.0, 0.999))[0].ramp() == 1.0


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_shortened_step_leads_where_a_smaller_learning_rate_would_have(decay):
    """To within the rounding of the interpolation; its moments are those of the whole step."""
    found = []
    for lr, fraction in ((0.25, None), (1.0, 0.25)):
        weight = nn.Parameter(torch.linspace(-1, 1, 50, dtype=torch.float64))
        optimizer = Optimizer([("weight", weight)], OptimizerConfig(weight_decay=decay, max_grad_norm=1e6))
        weight.grad = torch.linspace(1, 3, 50, dtype=torch.float64)
        optimizer.step(lr, keep_before=True)
        if fraction is not None:
            optimizer.shorten(0.5)
            optimizer.shorten(fraction)
        found.append((weight.detach().clone(), optimizer._moments()))
    (expected, moments), (shortened, others) = found
    torch.testing.assert_close(shortened, expected, rtol=1e-14, atol=1e-15)
    assert all(torch.equal(value, others[name]) for name, value in moments.items())


def test_a_step_that_is_taken_back_leaves_the_weights_exactly_as_they_were():
    optimizer, weight = optimizer_of(50)
    before = weight.detach().clone()
    weight.grad = torch.linspace(1, 3, 50, dtype=torch.float64)
    optimizer.step(1.0, keep_before=True)
    optimizer.shorten(0.5)
    optimizer.shorten(0.0)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_makes_the_weights_another_version(monkeypatch, fused):
    """Samplers that copied them look at it; a fused step of torch does not count it up by itself."""
    monkeypatch.setattr(optimizer, "_all_on_gpus", lambda _: fused)
    weight = torch.nn.Parameter(torch.ones(3))
    steps = Optimizer([("w", weight)], OptimizerConfig())
    weight.grad = torch.ones(3)
    before = weight._version
    steps.step(0.1)
    assert weight._version > before
    assert float(weight.detach()[0]) < 1.0


def test_only_matrices_decay() -> None:
    """Without a gradient a step of AdamW leaves the decay alone: w - lr * decay * w."""
    matrix, norm = (nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,)))
    made = Optimizer([("matrix", matrix), ("norm", norm)], OptimizerConfig(weight_decay=0.1))
    for one in (matrix, norm):
        one.grad = torch.zeros_like(one)
    made.step(0.5)
    assert torch.allclose(matrix, torch.full((2, 2), 0.95))
    assert torch.equal(norm, torch.ones(2))
