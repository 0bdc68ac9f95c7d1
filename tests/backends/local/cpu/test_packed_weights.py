"""Products with packed weights say what plain ones say."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local.cpu.packed_weights import Product, can_be_packed, worth_packing
from tensors import DTYPES, close, random


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_product_equals_the_plain_one(dtype):
    weight, bias, x = (random(*shape, seed=1, dtype=dtype) for shape in ((48, 33), (48,), (5, 33)))
    product = Product(weight, bias)
    plain = product(x)
    assert isinstance(worth_packing([weight]), bool)
    if dtype == torch.bfloat16 and not can_be_packed(weight):
        pytest.skip("this processor has no packed products of bfloat16")
    product.pack()
    with torch.no_grad():
        close(product(x), plain)
    assert torch.equal(product(x), plain)  # with gradients the plain one is used
