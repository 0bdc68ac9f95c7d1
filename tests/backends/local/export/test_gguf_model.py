"""Weights as llama.cpp has them; that whole files say what the agent says is in `tests/exporting`."""

from __future__ import annotations

import torch

from genenv.backends.local.export_gguf import paired


def test_rows_that_rotate_together_come_to_stand_side_by_side() -> None:
    weight = torch.arange(8.0)[:, None].expand(8, 3)  # two heads of four dimensions: 0 turns with 2, 1 with 3
    assert paired(weight, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert paired(torch.arange(4.0), 1).tolist() == [0, 2, 1, 3], "biases too"
