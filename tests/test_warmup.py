"""The learning rate of a warm-up. The warm-up itself is tested in `test_cli_local.py`, on a real model."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from genenv.agent.settings import AgentWarmupConfig
from genenv.simulator.settings import SimulatorWarmupConfig
from genenv.warmup import learning_rate


def test_a_warm_up_keeps_its_learning_rate_unless_it_shall_decay() -> None:
    config = AgentWarmupConfig(steps=3, lr=2e-3)
    assert [learning_rate(config, step) for step in (1, 2, 3)] == pytest.approx([2e-3] * 3)


def test_a_decaying_learning_rate_falls_evenly_to_a_tenth_at_the_last_step() -> None:
    config = SimulatorWarmupConfig(steps=8, lr=1.0, lr_decay=0.5)
    rates = [learning_rate(config, step) for step in range(1, 9)]
    assert rates[:4] == pytest.approx([1.0] * 4)
    assert rates[4:] == pytest.approx([0.775, 0.55, 0.325, 0.1])
