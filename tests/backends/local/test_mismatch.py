"""What samples and what learns say the same of the same tokens, as long as nothing is learned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.settings import OptimizerConfig
from genenv.algorithms.update import learn
from genenv.backends.local.trainer import LocalTrainer
from genenv.sampling import SampleRequest

ROUNDS = 50


def attempts(policy: Any, round_: int) -> list[Datum]:
    requests = [
        SampleRequest(prompt_ids=(5, 9, 2, 44), max_tokens=6, stream=10 * round_ + index)
        for index in range(4)
    ]
    return [
        Datum(
            prompt_ids=(5, 9, 2, 44),
            completion_ids=one.token_ids,
            weights=(1.0,) * len(one.token_ids),
            advantages=((-1.0) ** index,) * len(one.token_ids),
            old_logprobs=one.logprobs,
            loss="ppo",
        )
        for index, one in enumerate(policy.sample_all(requests))
    ]


def mismatches(policy: Any, rounds: int, lr: float, cap: float | None = None) -> list[float]:
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    found = []
    for round_ in range(rounds):
        lesson = UpdateBatch(units=[attempts(policy, round_)], objective=Objective(), importance_cap=cap)
        done = asyncio.run(learn(trainer, lesson, player="agent", learning_rate=lr, seed=round_))
        asyncio.run(trainer.publish())
        found.append(done.metrics()["agent/mismatch_kl"])
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_at_learning_rate_0_the_mismatch_is_flat(
    tiny: Any, kind: str, cap: float | None, caplog: Any
) -> None:
    policy = tiny.player(kind, noise=0.05)
    before = tiny.values(policy)
    found = mismatches(policy, ROUNDS, lr=0.0, cap=cap)
    assert max(found) < 1e-9
    assert all(bool((before[name] == value).all()) for name, value in tiny.values(policy).items())
    assert "mismatch" not in caplog.text


def test_learning_itself_makes_no_mismatch_where_every_round_is_published(tiny: Any) -> None:
    assert max(mismatches(tiny.player(noise=0.05), 5, lr=1e-2)) < 1e-9


def test_in_bfloat16_the_mismatch_stays_below_the_alarm(tiny: Any, caplog: Any) -> None:
    found = mismatches(tiny.player(noise=0.05, dtype="bfloat16"), 5, lr=0.0)
    assert 0 < max(found) < 5e-3
    assert "mismatch" not in caplog.text
