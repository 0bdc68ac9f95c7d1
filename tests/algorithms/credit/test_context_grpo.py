"""The simulator by GRPO: generations of one context compared, under their grammar."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.algorithms.datum import UpdateBatch
from genenv.algorithms.reward_weighting import simulator_credit
from genenv.algorithms.settings import OptimizerConfig, SimulatorLearningConfig
from genenv.algorithms.update import learn
from genenv.backends.local.trainer import LocalTrainer
from genenv.types import Generation, Scored
from lessons import Recorder

BOOLEAN = {"type": "boolean"}
SEVERAL = {"enum": ["yes", "no", "maybe"]}


def written(context: str, *rewards: float, ids: tuple[int, ...] = (8, 9, 1)) -> list[Scored]:
    return [
        Scored(
            generation=Generation(
                id=f"{context}-{i}",
                context_id=context,
                prompt_ids=(5, 6),
                token_ids=ids,
                logprobs=(0.0,) * len(ids),
                text="",
                finished=True,
            ),
            reward=reward,
        )
        for i, reward in enumerate(rewards)
    ]


def credit(scored: list[Scored], schemas=None, temperature: float = 1.0, **config) -> UpdateBatch:
    settings = SimulatorLearningConfig(algorithm="grpo", **config)
    return simulator_credit(settings)((), schemas or {}, settings, temperature=temperature, scored=scored)


def test_the_mean_of_a_context_is_the_baseline():
    lesson = credit([*written("hard", 0.0, 0.2), *written("easy", 0.8, 1.0, 0.9)], advantage="centred")
    found = [[datum.advantages[0] for datum in unit] for unit in lesson.units]
    assert found == [pytest.approx([-0.1, 0.1]), pytest.approx([-0.1, 0.1, 0.0])]
    assert {datum.loss for datum in lesson.data} == {"ppo"}


def test_a_generation_alone_in_its_context_is_compared_with_nothing():
    lesson = credit([*written("alone", 1.0), *written("pair", 0.0, 1.0)], advantage="centred")
    assert [[datum.advantages[0] for datum in unit] for unit in lesson.units] == [[-0.5, 0.5]]


def test_what_was_drawn_at_random_is_learned_where_it_is_better_and_otherwise_left_alone():
    sampled, drawn = written("c", 0.2, 0.6), written("c", 1.0, 0.0)
    drawn = [replace(one, generation=replace(one.generation, logprobs=(), text="drawn")) for one in drawn]
    (unit,) = credit([*sampled, *drawn], advantage="centred").units
    assert [datum.advantages[0] for datum in unit] == pytest.approx([-0.25, 0.15, 0.55])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.sampled_from(["normalised", "centred"]))
def test_advantages_of_a_context_add_up_to_nothing(rewards, advantage):
    for unit in credit(written("c", *rewards), advantage=advantage).units:
        assert math.fsum(datum.advantages[0] for datum in unit) == pytest.approx(0.0, abs=1e-6)


def test_a_context_whose_rewards_agree_and_one_alone_teach_nothing():
    assert not credit([*written("a", 0.5, 0.5), *written("b", 1.0)]).units
    assert not credit(written("a", 0.0, 1.0, ids=())).units


def test_each_is_learnt_under_the_schema_of_its_context_at_the_temperature_of_the_sampling():
    lesson = credit([*written("a", 0.0, 1.0), *written("b", 0.0, 1.0)], {"a": BOOLEAN}, temperature=0.7)
    assert [datum.schema for datum in lesson.data] == [BOOLEAN, BOOLEAN, None, None]
    assert {datum.temperature for datum in lesson.data} == {0.7}


def test_a_round_is_cut_into_steps_of_about_the_batch_size_and_contexts_stay_whole():
    scored = [one for context in "abcde" for one in written(context, 0.0, 1.0)]
    assert credit(scored, batch=4).steps == 3
    assert credit(scored, batch=1).steps == 5


def test_ratios_are_taken_to_what_the_policy_was_when_the_update_began():
    trainer = Recorder()
    lesson = credit([*written("a", 0.0, 1.0), *written("b", 0.0, 1.0)], batch=1)
    asyncio.run(learn(trainer, lesson, player="simulator", learning_rate=1e-3, seed=0))
    assert len(trainer.data) == 2
    assert all(datum.old_logprobs == (0.0, 0.0, 0.0) for data in trainer.data for datum in data)


def test_what_earns_more_than_its_context_becomes_likelier_among_what_the_grammar_allows(tiny):
    player = tiny.player()
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    replies = {text: tuple(player.encode_reply(f'"{text}"')) for text in ("yes", "no", "maybe")}
    scored = [
        replace(one, generation=replace(one.generation, id=text, token_ids=ids))
        for (text, ids), one in zip(replies.items(), written("a", 0.1, 0.1, 1.0), strict=True)
    ]
    lesson = credit(scored, {"a": SEVERAL}, batch=1, epochs=8, kl_coefficient=0.0, kl_cap=1000)
    before = asyncio.run(trainer.logprobs(lesson.data))
    asyncio.run(learn(trainer, lesson, player="simulator", learning_rate=2e-3, seed=0))
    after = asyncio.run(trainer.logprobs(lesson.data))
    chances = [[math.exp(sum(row)) for row in rows] for rows in (before, after)]
    assert all(sum(row) <= 1.0 + 1e-5 for row in chances)
    shares = [row[2] / sum(row) for row in chances]
    assert shares[1] > shares[0] + 0.05
