"""The agent's credit: advantages by hand, which tokens count, and what has nothing to teach."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.algorithms.advantages import (
    ADVANTAGES,
    group_advantages,
    grpo_credit,
    has_signal,
    imitate,
    team_advantages,
    zero_advantage_rate,
)
from genenv.algorithms.datum import UpdateBatch, averaged
from genenv.algorithms.settings import GrpoConfig
from genenv.curriculum.task_choice import by_attempts
from genenv.types import Choices, Group, StopReason, Trace, Verdict
from lessons import make_groups

rewards = st.lists(st.floats(0, 1), min_size=2, max_size=10)


def credit(
    groups: list[Group], solutions: dict[str, Trace] | None = None, temperature: float = 1.0, **config: Any
) -> UpdateBatch:
    return grpo_credit(groups, solutions or {}, GrpoConfig(**config), temperature=temperature)


def agreed(group: Group) -> Group:
    return replace(group, traces=tuple(replace(trace, reward=1.0) for trace in group.traces))


def test_advantages_are_rewards_minus_their_mean_over_the_sample_deviation():
    # mean 0.5; deviation sqrt((0.25 + 0.25 + 0.25 + 0.25) / 3) = 0.57735
    assert group_advantages([1, 0, 0, 1], "centred") == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1, 0, 0, 1], "normalised") == pytest.approx(
        [0.86588, -0.86588, -0.86588, 0.86588], 1e-5
    )
    # mean 0.25; deviation sqrt((0.5625 + 3 * 0.0625) / 3) = 0.5
    assert group_advantages([1, 0, 0, 0], "normalised") == pytest.approx(
        [1.4997, -0.4999, -0.4999, -0.4999], 1e-4
    )


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("row", [[0.3, 0.3, 0.3], [1.0], [0.1 + 0.2, 0.3]])
def test_a_group_that_agrees_has_no_advantage(row, name):
    assert group_advantages(row, name) == [0.0] * len(row)


@given(row=rewards, shift=st.floats(-3, 3), name=st.sampled_from(["centred", "normalised"]))
def test_advantages_sum_to_zero_and_do_not_depend_on_the_level_of_rewards(row, shift, name):
    advantages = group_advantages(row, name)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
    if max(row) - min(row) > 1e-6:
        moved = group_advantages([reward + shift for reward in row], name)
        assert moved == pytest.approx(advantages, abs=1e-6)


def test_compared_by_success_attempts_that_all_failed_are_alike(toy):
    (group, *_) = make_groups(toy)
    partial = [replace(group.traces[0], reward=reward, success=False) for reward in (0.4, 0.0, 0.7)]
    group = replace(group, traces=tuple(partial))
    assert len(credit([group]).units) == 1
    assert not credit([group], advantage_of="success").units
    choice = by_attempts([[([group.task, toy.task(name="other")], 1)], []], random.Random(1))
    (first,), spare = choice.new, {group.task.id, "other"}
    mine = replace(group, task=first)
    for config, count in ((GrpoConfig(), 0), (GrpoConfig(advantage_of="success"), 1)):
        found = choice.instead_of([mine], lambda one, config=config: has_signal(one, config))
        assert len(found) == count
        assert {one.id for one in found} <= spare - {first.id}
    solved = replace(group, traces=(replace(partial[0], success=True), *partial[1:]))
    (unit,) = credit([solved], advantage_of="success", advantage="centred").units
    rest = -1 / len(partial)
    assert [d.advantages[0] for d in unit] == pytest.approx([1 + rest, *[rest] * (len(partial) - 1)])


@pytest.mark.parametrize(("average", "share"), [("token", 1.0), ("sequence", 1 / 5)])
def test_an_attempt_is_a_datum_whose_sampled_tokens_count(toy, average, share):
    groups = make_groups(toy)
    spoken = replace(groups[0].traces[0], version=7)
    groups[0] = replace(groups[0], traces=(spoken, *groups[0].traces[1:]))
    lesson = credit(groups, temperature=0.7, advantage="centred", loss_average=average)
    datum = lesson.units[0][0]
    assert (datum.prompt_ids, datum.completion_ids) == ((5, 6, 7), (8, 9, 1, 30, 31, 4, 1))
    assert datum.weights == (share, share, share, 0.0, 0.0, share, share)  # what the environment said is none
    assert datum.old_logprobs == spoken.logprobs[3:]
    assert (datum.loss, datum.temperature, datum.share, datum.schema) == ("ppo", 0.7, 1.0, None)
    # rewards 1, 0, 0.25, 0: mean 0.3125; and 0, 1 of those that count: mean 0.5
    expected = [[0.6875, -0.3125, -0.0625, -0.3125], [-0.5, 0.5]]
    for unit, advantages in zip(lesson.units, expected, strict=True):
        for one, advantage in zip(unit, advantages, strict=True):
            assert one.advantages == (advantage,) * len(one.completion_ids)
    assert [d.tokens for d in lesson.data] == [5, 2, 5, 0, 2, 4]


def test_what_is_said_after_the_last_reply_is_not_trained_on(toy):
    groups = make_groups(toy)
    spoken = groups[0].traces[0]
    told = tuple(range(40, 140))
    longer = replace(
        spoken,
        token_ids=(*spoken.token_ids, *told),
        sampled=(*spoken.sampled, *[False] * len(told)),
        logprobs=(*spoken.logprobs, *[0.0] * len(told)),
    )
    after = [replace(groups[0], traces=(longer, *groups[0].traces[1:])), *groups[1:]]
    assert credit(after).data == credit(groups).data
    assert imitate(longer) == imitate(spoken)
    for replies, told_too in ((((4, 1, 40), (9,)), 1), (((7,),), 0)):  # the second was cut off
        of_list = replace(longer, choices=(Choices(start=8, replies=replies),))
        (datum,) = imitate(of_list)
        assert len(datum.completion_ids) == len(spoken.token_ids) - 3 + told_too


def test_the_settings_become_the_objective_and_the_steps(toy):
    lesson = credit(
        make_groups(toy),
        clip_low=0.1,
        clip_high=0.3,
        kl_coefficient=0.05,
        epochs=3,
        updates_per_epoch=2,
        guidance_coefficient=0.5,
    )
    objective = lesson.objective
    assert (objective.clip_low, objective.clip_high) == (0.1, 0.3)
    assert (objective.kl, objective.kl_coefficient) == ("k3", 0.05)
    assert (lesson.steps, lesson.epochs, lesson.cap) == (2, 3, None)
    assert lesson.coefficients == {"ppo": 1.0, "nll": 0.5}


OWN, OTHER = [1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]
TEAM = [0.5, 0.0, 0.5, 1.0]
"""Rewards of two seats in four episodes, and their means."""


def test_the_team_and_the_own_reward_are_compared_within_the_group_and_then_averaged():
    # own: 0.5 above or below its mean; team: mean 0.5
    assert team_advantages(OWN, TEAM, "centred", 0.5) == [0.25, -0.5, -0.25, 0.5]
    # deviations sqrt(1 / 3) = 0.57735 and sqrt(0.5 / 3) = 0.40825, each with 0.0001 added:
    # 0.75 * 0.86588 = 0.64941, and 0.25 * 1.22444 = 0.30611 where the team differs from its mean
    assert team_advantages(OWN, TEAM, "normalised", 0.25) == pytest.approx(
        [0.64941, -0.95552, -0.64941, 0.95552], abs=1e-5
    )


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_extremes_are_the_own_reward_alone_and_the_team_alone(name):
    assert team_advantages(OWN, TEAM, name, 0.0) == group_advantages(OWN, name)
    assert team_advantages(OWN, TEAM, name, 1.0) == group_advantages(TEAM, name)


def test_a_game_of_constant_sum_has_no_advantage_for_the_team():
    against = [1 - reward for reward in OWN]
    team = [(a + b) / 2 for a, b in zip(OWN, against, strict=True)]
    assert team_advantages(OWN, team, "normalised", 1.0) == [0.0] * 4
    assert team_advantages(OWN, team, "centred", 0.5) == [0.25, -0.25, -0.25, 0.25]


def seated(toy: Any, broken: int = 0) -> Group:
    """Four episodes with a team of two seats, and some that broke."""
    judged = [
        (
            Verdict(reward=own, success=own > 0, explanation=""),
            Verdict(reward=o, success=o > 0, explanation=""),
        )
        for own, o in zip(OWN, OTHER, strict=True)
    ]
    ran = [
        replace(toy.trace((5, 6), [(7, 1)], reward=pair[0].reward), success=pair[0].success, team=pair)
        for pair in judged
    ]
    lost = [toy.trace((5, 6), [(7, 1)], reward=0.0, stop_reason=StopReason.ERROR)] * broken
    return Group(task=toy.task(), traces=(*lost, *ran), seat="asker")


def of_rollouts(batch: UpdateBatch) -> list[float]:
    return [datum.advantages[0] for datum in batch.data if datum.advantages]


@pytest.mark.parametrize("of", ["reward", "success"])
def test_the_weight_of_the_team_changes_a_seats_advantages(toy, of):
    group, same = seated(toy, broken=2), {"advantage": "centred", "advantage_of": of}
    assert of_rollouts(credit([group], **same)) == [0.5, -0.5, -0.5, 0.5]
    assert of_rollouts(credit([group], **same, team_weight=0.5)) == [0.25, -0.5, -0.25, 0.5]
    assert of_rollouts(credit([group], **same, team_weight=1.0)) == [0.0, -0.5, 0.0, 0.5]


def test_a_seat_that_earns_the_same_everywhere_learns_from_the_team_alone(toy):
    group = seated(toy)
    lazy = replace(group, traces=tuple(replace(trace, reward=0.5) for trace in group.traces))
    assert credit([lazy]).units == []
    assert zero_advantage_rate([lazy], GrpoConfig()) == 1.0
    assert zero_advantage_rate([lazy], GrpoConfig(team_weight=0.1)) == 0.0
    assert len(credit([lazy], team_weight=0.1).units) == 1


def test_groups_without_seats_have_their_own_advantages_whatever_the_weight(toy):
    groups = make_groups(toy)
    found = of_rollouts(credit(groups, team_weight=0.3))
    assert found == pytest.approx(of_rollouts(credit(groups)), abs=1e-12)


def test_failed_attempts_do_not_count(toy):
    groups = make_groups(toy)
    without = [groups[0], replace(groups[1], traces=groups[1].traces[:2])]
    assert credit(groups) == credit(without)
    assert zero_advantage_rate(groups, GrpoConfig()) == zero_advantage_rate(without, GrpoConfig())


def test_groups_that_agree_are_skipped_and_counted(toy):
    groups = make_groups(toy)
    lone = replace(groups[0], traces=groups[0].traces[:1])
    more = [*groups, agreed(groups[0]), agreed(groups[0]), lone]
    assert credit(more) == credit(groups)
    assert zero_advantage_rate(groups, GrpoConfig()) == 0.0
    assert zero_advantage_rate(more, GrpoConfig()) == 0.5  # a lone attempt compares nothing
    assert zero_advantage_rate([lone], GrpoConfig()) == zero_advantage_rate([], GrpoConfig()) == 0.0


def test_groups_that_agree_may_be_kept_for_the_kl_term(toy):
    kept = credit([agreed(group) for group in make_groups(toy)], skip_zero_advantage=False)
    assert [len(unit) for unit in kept.units] == [4, 2]
    assert {value for datum in kept.data for value in datum.advantages} == {0.0}


def test_a_known_solution_stands_beside_the_attempts_at_its_task_or_alone(toy):
    groups = make_groups(toy)
    beside, other = (toy.trace(p, [(8, 9, 1)], success=True) for p in ((5, 6, 7), (2, 3)))
    lesson = credit(groups, {"task-1": beside, "elsewhere": other})
    plain = credit(groups)
    assert lesson.units == [[*plain.units[0], *imitate(beside)], plain.units[1], imitate(other)]
    silent = [agreed(groups[0]), replace(groups[1], traces=groups[1].traces[:1])]
    assert credit(silent, {"task-1": beside, "task-2": other}).units == [imitate(beside), imitate(other)]


def test_known_solutions_are_imitated_at_temperature_1_and_attempts_weighed_at_theirs(toy):
    known = toy.trace((5, 6, 7), [(8, 9, 1), (30,), (1,)], success=True)
    lesson = credit(make_groups(toy), {"task-1": known}, temperature=0.5)
    assert {(datum.loss, datum.temperature) for datum in lesson.data} == {("ppo", 0.5), ("nll", 1.0)}


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[list[tuple[float, int]]], list[int], str, float]:
    """Rewards and sampled tokens of the attempts at each task, lengths of solutions, and settings."""
    attempt = st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 9))
    return (
        draw(st.lists(st.lists(attempt, max_size=5), max_size=4)),
        draw(st.lists(st.integers(1, 9), max_size=3)),
        draw(st.sampled_from(["token", "sequence"])),
        draw(st.floats(1e-3, 100)),
    )


@given(drawn=rounds(), skip=st.booleans())
def test_weights_of_attempts_add_up_to_1_and_those_of_solutions_to_their_coefficient(toy, drawn, skip):
    attempts, solutions, average, coefficient = drawn
    groups = [
        Group(
            task=toy.task(name=f"task-{i}"),
            traces=tuple(toy.trace((5, 6), [(7,) * n, (8, 9), (7,) * n], reward=r) for r, n in row),
        )
        for i, row in enumerate(attempts)
    ]
    known = {f"task-{i + 2}": toy.trace((5, 6), [(7,) * n]) for i, n in enumerate(solutions)}
    lesson = credit(
        groups,
        known,
        loss_average=average,
        guidance_coefficient=coefficient,
        skip_zero_advantage=skip,
    )
    data = averaged(lesson.data, lesson.coefficients)
    for loss, expected in (("ppo", 1.0), ("nll", coefficient)):
        own = [datum for datum in data if datum.loss == loss]
        total = math.fsum(weight for datum in own for weight in datum.weights)
        assert total == pytest.approx(expected if any(d.tokens for d in own) else 0.0, rel=1e-9)
        shares = {sum(datum.weights) for datum in own if datum.tokens}
        each = {weight for datum in own for weight in datum.weights if weight}
        alike = shares if loss == "ppo" and average == "sequence" else each
        assert max(alike, default=0.0) == pytest.approx(min(alike, default=0.0), rel=1e-9)
    assert sum(datum.loss == "nll" for datum in data) == len(known)
