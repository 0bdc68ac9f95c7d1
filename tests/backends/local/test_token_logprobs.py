"""Log-probabilities in pieces, with derivatives of their own: the values and gradients of plain autograd."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local import token_logprobs as vocabulary
from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.token_logprobs import entropy_of, frozen_scores, kl_full

ROWS, WIDTH, WORDS = 11, 8, 70


@pytest.fixture(params=[4, 256], autouse=True)
def rows_at_a_time(request, monkeypatch):
    monkeypatch.setattr(vocabulary, "ROWS", request.param)


def head_of(*, bias: bool, dtype: torch.dtype = torch.float64) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype).requires_grad_(requires_grad=False)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden, reference = (torch.randn(ROWS, WIDTH, generator=generator).to(dtype) * 2 for _ in range(2))
    return hidden.requires_grad_(), torch.randint(WORDS, (ROWS,), generator=generator), reference


def masks(tokens: torch.Tensor) -> torch.Tensor:
    """Bit masks that allow each row its token and about half of the others."""
    bits = torch.randint(-(2**31), 2**31 - 1, (ROWS, 3), generator=torch.Generator().manual_seed(2))
    bits = bits.to(torch.int32)
    for row, token in enumerate(tokens.tolist()):
        bits[row, token // 32] |= torch.tensor(1, dtype=torch.int32) << (token % 32)
    return bits


def scored(head, hidden, temperature, allowed) -> torch.Tensor:
    scores = head(hidden).float() / temperature
    return scores if allowed is None else scores.masked_fill(is_forbidden(allowed, WORDS), float("-inf"))


def plain(head, hidden, tokens, temperature, allowed) -> torch.Tensor:
    return scored(head, hidden, temperature, allowed).log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_equal_those_of_autograd(temperature, masked, bias):
    head, (hidden, tokens, reference) = head_of(bias=bias), inputs()
    allowed = masks(tokens) if masked else None
    upstream = torch.linspace(-1, 2, 3 * ROWS).view(3, ROWS)
    expected = plain(head, hidden, tokens, temperature, allowed)
    expected_kl = kl_full(*(scored(head, states, temperature, allowed) for states in (hidden, reference)))
    expected_entropy = entropy_of(scored(head, hidden, temperature, allowed).log_softmax(-1))
    (upstream * torch.stack([expected, expected_kl, expected_entropy])).sum().backward()
    wanted, hidden.grad = hidden.grad, None
    options = {"temperature": temperature, "allowed": allowed}
    found, kl, entropy = frozen_scores(head, hidden, tokens, reference, entropy=True, **options)
    (upstream * torch.stack([found, kl, entropy])).sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kl, expected_kl, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden.grad, wanted, atol=1e-5, rtol=1e-5)
    alone = frozen_scores(head, hidden, tokens, **options).logprobs_M
    assert torch.equal(alone, found)
    (gradient,) = torch.autograd.grad((upstream[0] * alone).sum(), hidden)
    (expected_gradient,) = torch.autograd.grad(
        (upstream[0] * plain(head, hidden, tokens, temperature, allowed)).sum(), hidden
    )
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-5)


def test_results_may_go_unused():
    head, (hidden, tokens, reference) = head_of(bias=False), inputs()
    scores, other = head(hidden).float(), head(reference).float()
    expected = {"kl_M": kl_full(scores, other), "entropy_M": entropy_of(scores.log_softmax(-1))}
    found = frozen_scores(head, hidden, tokens, reference, entropy=True)
    for name, value in expected.items():
        gradients = [
            torch.autograd.grad(x.sum(), hidden, retain_graph=True)[0] for x in (getattr(found, name), value)
        ]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_what_is_not_asked_for_is_left_out():
    head, (hidden, tokens, reference) = head_of(bias=False), inputs()
    alone, with_kl, with_entropy = (
        frozen_scores(head, hidden, tokens),
        frozen_scores(head, hidden, tokens, reference),
        frozen_scores(head, hidden, tokens, entropy=True),
    )
    assert [x is None for x in (*alone[1:], *with_kl[1:], *with_entropy[1:])] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    (expected,) = torch.autograd.grad(alone.logprobs_M.sum(), hidden)
    for more in (with_kl, with_entropy):
        assert torch.equal(more.logprobs_M, alone.logprobs_M)
        assert torch.equal(torch.autograd.grad(more.logprobs_M.sum(), hidden)[0], expected)


@pytest.mark.parametrize("masked", [False, True])
def test_the_slope_of_the_entropy_is_that_of_finite_differences(masked):
    head, (hidden, tokens, _) = head_of(bias=True), inputs()
    allowed = masks(tokens) if masked else None

    def exact(states: torch.Tensor) -> float:
        scores = head(states)
        scores = (
            scores if allowed is None else scores.masked_fill(is_forbidden(allowed, WORDS), float("-inf"))
        )
        return float(entropy_of(scores.log_softmax(-1)).sum())

    found = frozen_scores(head, hidden, tokens, allowed=allowed, entropy=True).entropy_M
    (slope,) = torch.autograd.grad(found.sum(), hidden)
    direction = torch.randn(slope.shape, generator=torch.Generator().manual_seed(3), dtype=slope.dtype)
    ahead, behind = (exact(hidden.detach() + step * direction) for step in (1e-5, -1e-5))
    assert (slope * direction).sum().item() == pytest.approx((ahead - behind) / 2e-5, rel=1e-4)


def test_without_gradients_nothing_is_kept():
    head, (hidden, tokens, _) = head_of(bias=False), inputs()
    with torch.no_grad():
        assert frozen_scores(head, hidden, tokens).logprobs_M.grad_fn is None
    assert frozen_scores(head, hidden.detach(), tokens).logprobs_M.grad_fn is None


def test_no_rows_are_no_values():
    head, (hidden, tokens, _) = head_of(bias=False), inputs()
    assert frozen_scores(head, hidden[:0], tokens[:0]).logprobs_M.shape == (0,)


def test_temperature_0_counts_as_1():
    head, (hidden, tokens, _) = head_of(bias=False), inputs()
    assert torch.equal(
        frozen_scores(head, hidden, tokens, temperature=0.0).logprobs_M,
        frozen_scores(head, hidden, tokens).logprobs_M,
    )
