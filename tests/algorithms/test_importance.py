"""Truncated importance sampling: worked by hand, and what it leaves as it was."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.agent.policy import AgentConfig
from genenv.algorithms.advantages import grpo_credit
from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.losses import k3
from genenv.algorithms.update import Mismatch, corrected, learn
from genenv.errors import UpdateSkipped
from lessons import Recorder, imitated, make_groups

LOGPROBS = st.floats(-60, 0)


def attempted(old: tuple[float, ...], advantage: float = 2.0, weights: tuple[float, ...] = ()) -> Datum:
    return Datum(
        prompt_ids=(1,),
        completion_ids=tuple(range(len(old))),
        weights=weights or (1.0,) * len(old),
        advantages=(advantage,) * len(old),
        old_logprobs=old,
        loss="ppo",
    )


def test_three_tokens_by_hand():
    """Twice, half and ten times as likely as when they were sampled; nothing is worth more than 2.5."""
    now = (math.log(0.4), math.log(0.2), math.log(0.5))
    noted = Mismatch()
    found = corrected(attempted((math.log(0.2), math.log(0.4), math.log(0.05))), now, 2.5, noted)
    assert found.advantages == pytest.approx((2.0 * 2, 2.0 * 0.5, 2.0 * 2.5))
    assert found.old_logprobs == now
    kl = (2 - 1 - math.log(2)) + (0.5 - 1 - math.log(0.5)) + (10 - 1 - math.log(10))
    assert noted.metrics("agent") == {
        "agent/mismatch_kl": pytest.approx(kl / 3),
        "agent/importance_ratio": pytest.approx((2 + 0.5 + 2.5) / 3),
        "agent/importance_capped": pytest.approx(1 / 3),
    }


def test_tokens_that_do_not_count_are_not_measured():
    noted = Mismatch()
    corrected(attempted((-1.0, -1.0), weights=(0.0, 1.0)), (-30.0, -1.0), 2.0, noted)
    assert noted.metrics("agent")["agent/mismatch_kl"] == 0
    assert Mismatch().metrics("agent") == {}


@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=5), st.floats(0.1, 10))
def test_weights_are_positive_and_at_most_the_cap(pairs: list[tuple[float, float]], cap: float):
    old, now = zip(*pairs, strict=True)
    noted = Mismatch()
    found = corrected(attempted(old, -1.0), now, cap, noted)
    assert found.advantages is not None
    assert all(-cap <= value < 0 for value in found.advantages)
    assert noted.kl >= 0


@given(st.lists(LOGPROBS, min_size=1, max_size=5), st.floats(1, 10))
def test_what_was_sampled_by_those_who_learn_is_as_it_was(old: list[float], cap: float):
    datum = attempted(tuple(old))
    assert corrected(datum, old, cap, Mismatch()) == datum


class Moved(Recorder):
    """Finds every token twice as likely as it was sampled, or as its data say."""

    async def logprobs(self, data, *, reference=False):
        self.calls.append("logprobs")
        return [tuple(value + math.log(2) for value in datum.old_logprobs or ()) for datum in data]

    async def forward_backward(self, data, objective):
        weight = math.fsum(w for datum in data if datum.loss == "ppo" for w in datum.weights)
        measured = await super().forward_backward(data, objective)
        return {**measured, "old_kl": weight * k3(0.0, math.log(2)) / len(self.data)}


def taken(lesson: UpdateBatch, trainer: Moved | None = None) -> tuple[Moved, dict[str, float]]:
    trainer = trainer or Moved()
    done = asyncio.run(learn(trainer, lesson, player="agent", learning_rate=0.1, seed=0))
    return trainer, done.metrics()


def test_an_update_weighs_attempts_alone_and_asks_once():
    units = [[attempted((-1.0, -2.0)), imitated((3,), (4, 5))]]
    trainer, metrics = taken(UpdateBatch(units=units, objective=Objective(), epochs=2, importance_cap=1.5))
    assert trainer.calls == ["logprobs", *["forward_backward", "step"] * 2]
    ppo, nll = trainer.data[1]
    assert ppo.advantages == (3.0, 3.0)
    assert nll == units[0][1]
    assert metrics["agent/importance_capped"] == 1


def test_without_a_cap_the_first_step_compares_and_all_stay_as_they_are():
    data = [attempted((-1.0,), weights=(0.5,)) for _ in range(5)]
    trainer, metrics = taken(UpdateBatch(units=[data], objective=Objective(), epochs=3))
    assert trainer.calls == ["forward_backward", "step"] * 3
    assert metrics["agent/mismatch_kl"] == pytest.approx(2 - 1 - math.log(2))
    assert "agent/importance_ratio" not in metrics
    assert [datum.old_logprobs for datum in trainer.data[0]] == [(-1.0,)] * 5


def test_data_whose_sampler_said_nothing_have_no_mismatch():
    unknown = replace(attempted((-1.0,)), old_logprobs=None)
    for data in ([unknown], [attempted((-1.0,)), unknown], [imitated((3,), (4, 5))]):
        _, metrics = taken(UpdateBatch(units=[data], objective=Objective()))
        assert "agent/mismatch_kl" not in metrics


class Late(Moved):
    """Its first pass cannot be made."""

    async def forward_backward(self, data, objective):
        measured = await super().forward_backward(data, objective)
        if len(self.data) == 1:
            raise UpdateSkipped("the loss is not finite")
        return measured


def test_where_the_first_step_is_skipped_the_next_one_compares():
    units = [[attempted((-1.0,))], [attempted((-2.0,))]]
    _, metrics = taken(UpdateBatch(units=units, objective=Objective(), steps=2, epochs=2), Late())
    assert metrics["agent/mismatch_kl"] == pytest.approx((1 - math.log(2)) / 2)


def test_a_mismatch_that_spoils_the_gradient_is_warned_of_and_what_to_do(caplog):
    lesson = UpdateBatch(units=[[attempted((-3.0, -3.0))]], objective=Objective())
    taken(lesson)
    (record,) = [one for one in caplog.records if "mismatch_kl" in one.getMessage()]
    assert "disagree by" in record.getMessage()
    assert "agent.importance_cap = 2" in record.getMessage()
    assert "policy.dtype = 'float32'" in record.getMessage()
    near = Mismatch()
    near.note(attempted((-1.0,)), (-1.01,))
    assert near.alarm("agent") is None
    assert near.metrics("agent")["agent/mismatch_kl"] == pytest.approx(math.exp(-0.01) - 1 + 0.01, rel=1e-6)


@pytest.mark.parametrize(("cap", "lesson"), [(0.0, None), (2.0, 2.0)])
def test_the_setting_is_grpos(toy, cap: float, lesson: float | None):
    config = AgentConfig(importance_cap=cap)
    assert grpo_credit(make_groups(toy), {}, config, temperature=1.0).importance_cap == lesson
