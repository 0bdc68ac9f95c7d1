"""A batch takes no more rows than their keys and values may have memory, and draws what it draws."""

from __future__ import annotations

from typing import Any

import pytest

from genenv.backends.local import hardware
from genenv.backends.local.engine import _Batch
from genenv.sampling import SampleRequest


@pytest.mark.parametrize(("tokens", "most"), [(1, 1), (40, 3), (10_000, 8)])
def test_rows_are_admitted_while_their_tokens_have_room(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tokens: int, most: int
) -> None:
    policy = tiny.player(noise=0.05)
    asked = [SampleRequest(prompt_ids=(5, 9, 2 + i), max_tokens=10, stream=i) for i in range(8)]
    expected = [one.token_ids for one in policy.sample_all(asked)]
    per_token = hardware.batch_bytes(policy.model.device) / policy.model.batch_tokens
    monkeypatch.setattr(hardware, "batch_bytes", lambda device: tokens * per_token)
    live, step = list[int](), _Batch.step

    def counted(batch: _Batch) -> Any:
        live.append(len(batch.rows))
        return step(batch)

    monkeypatch.setattr(_Batch, "step", counted)
    assert [one.token_ids for one in policy.sample_all(asked)] == expected
    assert max(live) == most
