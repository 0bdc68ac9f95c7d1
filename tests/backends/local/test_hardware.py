"""What suits this machine."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local import hardware
from typed import refused


@pytest.mark.parametrize(
    ("asked", "full", "half", "chosen", "says"),
    [
        ("auto", 2.0, 1.0, torch.bfloat16, False),
        ("auto", 1.2, 1.0, torch.float32, False),
        ("auto", 1.0, 5.0, torch.float32, False),  # a processor that only emulates bfloat16
        ("bfloat16", 1.0, 5.0, torch.bfloat16, True),
        ("bfloat16", 2.0, 1.0, torch.bfloat16, False),
        ("bfloat16", 1.0, 1.05, torch.bfloat16, False),
    ],
)
def test_a_processor_that_is_slow_in_bfloat16_uses_float32_unless_told(
    monkeypatch, caplog, asked, full, half, chosen, says
):
    seconds = {torch.float32: full, torch.bfloat16: half}
    monkeypatch.setattr(hardware, "cpu_seconds", lambda works, **_: {name: seconds[name] for name in works})
    monkeypatch.setattr(hardware, "_bfloat16_gain", hardware._bfloat16_gain.__wrapped__)
    monkeypatch.setattr(hardware, "_say_bfloat16_is_slow", hardware._say_bfloat16_is_slow.__wrapped__)
    assert hardware.choose_dtype(asked, torch.device("cpu")) == chosen
    sentences = [record.getMessage() for record in caplog.records]
    assert len(sentences) == says
    assert all("products take 5.0 times as long in it as in float32" in sentence for sentence in sentences)


def test_on_one_core_there_is_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert hardware.choose_threads() == 1


def test_apples_gpus_are_refused_in_a_sentence():
    """Nothing here was ever run on one."""
    said = refused("doctor", "demo", "--set", "policy.device=mps")
    assert 'setting \'policy.device\' is "mps"; allowed: "auto" or "cpu" or "cuda"' in said
