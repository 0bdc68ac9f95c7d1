"""What answers of samplers elsewhere say of the weights that they are of."""

from __future__ import annotations

import pytest

from genenv.backends.sampler_check import is_older


@pytest.mark.parametrize(
    ("gap", "older", "tokens", "found"),
    [
        (0.02, 0.001, 24, True),
        (0.02, 0.001, 7, False),  # over few tokens rounding alone may look like that
        (0.02, 0.006, 24, False),
        (5e-5, 1e-6, 24, False),  # a gap of rounding alone
    ],
)
def test_older_weights_are_several_times_nearer_over_enough_tokens(
    gap: float, older: float, tokens: int, found: bool
) -> None:
    assert is_older(gap, older, tokens=tokens) is found
