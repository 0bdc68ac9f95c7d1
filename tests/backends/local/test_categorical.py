"""Draws follow softmax, never take what is forbidden, and come with the right normaliser."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genenv.backends.local.cpu import build
from genenv.backends.local.next_token import Odds

ALMOST_ONE = 1 - 2**-53


@pytest.fixture(scope="module", params=["torch", "compiled"])
def code(request):
    """Compiled code, or None for torch."""
    if request.param == "torch":
        return None
    if not any(shutil.which(name) for name in build.COMPILERS):
        pytest.skip("there is no C++ compiler here")
    found = build.load()
    assert found is not None
    return found


@pytest.mark.parametrize("vocabulary", [1, 7, 255, 256, 257, 1000])
def test_draws_are_distributed_as_softmax(code, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(vocabulary, generator=generator) * 2
    draws = 20_000
    uniform = torch.rand(draws, dtype=torch.float64, generator=generator)
    tokens = torch.cat([Odds(scores.expand(len(u), -1), kernels=code).draw(u) for u in uniform.split(2000)])
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
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_forbidden_token_is_never_drawn(code, scores, uniform, chunk, dtype):
    scores_RV = torch.tensor([scores]).to(dtype)
    token = Odds(scores_RV, chunk, code).draw(torch.tensor([uniform], dtype=torch.float64))
    weight = (scores_RV[0].float() - scores_RV.max().float()).exp()[token]
    assert weight > 0


def test_numbers_near_the_ends_draw_the_first_and_the_last_allowed_token(code):
    scores = torch.full((3, 600), float("-inf"))
    scores[:, [3, 4, 301]] = 0.0  # the last chunk holds nothing
    uniform = torch.tensor([0.0, 0.5, ALMOST_ONE], dtype=torch.float64)
    assert Odds(scores, kernels=code).draw(uniform).tolist() == [3, 4, 301]


@pytest.mark.parametrize("token", [0, 255, 256, 510])
@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE, 1.0])
def test_a_distribution_on_one_token_draws_it(code, token, uniform):
    scores = torch.full((1, 511), float("-inf"))
    scores[0, token] = -3.0
    assert Odds(scores, kernels=code).draw(torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 7, 256, 257, 49152])
def test_the_normaliser_is_that_of_softmax(code, vocabulary, dtype):
    scores = (torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 4).to(dtype)
    scores[:, 1::3] = float("-inf")
    found = Odds(scores, kernels=code).norm_R
    assert torch.allclose(found, scores.float().logsumexp(-1), atol=2e-6, rtol=0)
