from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.scoring import score_batches, scored
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import env_reward, expected_env_reward
from genenv.curriculum.update_selection import Selection, curriculum_metrics, select, trained_groups
from genenv.runs.metrics import _outcomes, check_names
from genenv.types import Context, Group, Proposal, TaskBatch

PAPER = CurriculumConfig(posterior=False, standardise_rewards=False)
ROBUST = CurriculumConfig()


def chosen_of(batches: Sequence[TaskBatch], config: CurriculumConfig) -> Selection:
    return select(batches, config, random.Random(0))


def score_batch(
    context: Context, proposals: Sequence[Proposal], groups: Sequence[Group], config: CurriculumConfig
) -> TaskBatch:
    (scored,) = score_batches([context], proposals, groups, config)
    return scored


@pytest.fixture
def batch(make):
    """`batch("c0", 8, [4, None, 6])`: three proposals of c0, the second rejected, 4 and 6 of 8 solved."""

    def build(name: str, attempts: int, outcomes: list[int | None], config: CurriculumConfig = PAPER):
        proposals, groups = [], []
        for index, successes in enumerate(outcomes):
            task = None if successes is None else make.task(f"{name}-t{index}")
            proposals.append(make.proposal(f"{name}-g{index}", task, context=name))
            if task is not None:
                groups.append(make.group(task, successes, attempts))
        return score_batch(make.context(name), proposals, groups, config)

    return build


def test_p_hat_is_the_rate_of_the_whole_batch(batch) -> None:
    scored = batch("c0", 8, [0, 8, 4])  # 12 of 24, though no single task but one is near 0.5
    assert scored.p_hat == 0.5
    assert scored.env_reward == 1.0


def test_a_batch_without_a_task_earns_zero(batch) -> None:
    scored = batch("c0", 8, [None, None])
    assert (scored.p_hat, scored.env_reward) == (None, 0.0)


def test_the_shuffled_control_takes_all_that_it_is_told_of_a_task_from_another_one(batch) -> None:
    """Hindsight reads the rate, and a buffer of levels whether outcomes were mixed: both would tell."""
    config = PAPER.model_copy(update={"p_hat_scope": "task", "env_reward": "learnability"})
    batches = [batch("a", 8, [0, 8, 4, None], config), batch("b", 8, [2, 6, 7], config)]
    told = [
        [(one.reward, one.rate, one.mixed) for one in scored(batches, asked, random.Random(1))]
        for asked in (config, config.model_copy(update={"shuffle_rewards": True}))
    ]
    right, shuffled = told
    assert right[:4] == [(0.0, 0.0, False), (0.0, 1.0, False), (1.0, 0.5, True), (0.0, None, None)]
    assert right[3] == shuffled[3], "what the gate rejected earns nothing in both"
    assert sorted(map(str, right)) == sorted(map(str, shuffled))
    assert right != shuffled


def test_a_regret_of_which_one_half_is_missing_is_not_known(make) -> None:
    """The strong agent's endpoint did not answer: not the task's fault, so it is not paid as the worst."""
    config = PAPER.model_copy(
        update={
            "p_hat_scope": "task",
            "band_filter": False,
            "agents_reward": "regret",
            "regret_agents": ("strong", "weak"),
        }
    )
    tasks = [make.task("lost"), make.task("known")]
    proposals = [make.proposal(f"g{i}", task) for i, task in enumerate(tasks)]
    groups = [
        replace(make.group(tasks[0], 0, 0, broken=4), agent="strong"),
        replace(make.group(tasks[0], 2, 4), agent="weak"),
        replace(make.group(tasks[1], 3, 4), agent="strong"),
        replace(make.group(tasks[1], 1, 4), agent="weak"),
    ]
    found = score_batch(make.context(), proposals, groups, config)
    assert [(one.generation.id, one.reward) for one in scored([found], config, random.Random(0))] == [
        ("g1", 0.75)
    ]
    chosen = chosen_of([found], config)
    assert [sample.generation.id for sample in chosen.samples] == ["g1"]


def test_a_task_with_mixed_outcomes_of_one_of_two_agents_has_them(make) -> None:
    config = PAPER.model_copy(update={"p_hat_scope": "task"})
    for order in ((2, 0), (0, 2)):
        task = make.task("t")
        groups = [replace(make.group(task, k, 4), agent=name) for name, k in zip("ab", order, strict=True)]
        found = score_batch(make.context(), [make.proposal("g", task)], groups, config)
        assert [one.mixed for one in scored([found], config, random.Random(0))] == [True]
    groups = [replace(make.group(task, k, 4), agent=name) for name, k in (("a", 4), ("b", 0))]
    found = score_batch(make.context(), [make.proposal("g", task)], groups, config)
    assert [one.mixed for one in scored([found], config, random.Random(0))] == [False]


def test_attempts_that_broke_do_not_count(make) -> None:
    task = make.task("t")
    proposals = [make.proposal("g", task)]
    half = score_batch(make.context(), proposals, [make.group(task, 2, 4, broken=4)], PAPER)
    assert half.p_hat == 0.5
    none = score_batch(make.context(), proposals, [make.group(task, 0, 0, broken=8)], PAPER)
    assert (none.p_hat, none.env_reward) == (None, 0.0)


def test_with_the_posterior_the_reward_is_its_expectation(batch) -> None:
    assert batch("c0", 8, [4, 4], ROBUST).env_reward == expected_env_reward(8, 16, alpha=0.5, beta=2.0)
    assert batch("c0", 8, [4, 4], PAPER).env_reward == env_reward(0.5, alpha=0.5, beta=2.0) == 1


def test_strangers_are_left_out(make) -> None:
    task, other = make.task("t"), make.task("other")
    own = score_batch(make.context(), [make.proposal("g", task)], [make.group(other, 1)], PAPER)
    assert (len(own.proposals), own.groups, own.p_hat) == (1, (), None)
    empty = score_batch(make.context(), [make.proposal("g", task, context="c9")], [], PAPER)
    assert empty.proposals == ()


def test_only_valid_generations_of_batches_inside_the_band_are_imitated(batch) -> None:
    batches = [batch("in", 8, [4, None, 4]), batch("easy", 8, [8, 8]), batch("none", 8, [None])]
    chosen = chosen_of(batches, PAPER)
    assert [sample.generation.id for sample in chosen.samples] == ["in-g0", "in-g2"]
    assert [sample.weight for sample in chosen.samples] == pytest.approx([0.5, 0.5])
    assert (chosen.dropped, chosen.weight_contrast, chosen.effective_samples) == (2, 1.0, 2.0)


def test_every_generation_of_a_batch_has_the_reward_of_its_batch(batch) -> None:
    batches = [batch("a", 10, [5, 5]), batch("b", 10, [4, 4])]  # p_hat 0.5 and 0.4, R_env 1 and exp(-0.02)
    chosen = chosen_of(batches, PAPER)
    ratio = math.exp(1 - math.exp(-0.02))
    assert [sample.weight for sample in chosen.samples] == pytest.approx(
        [ratio / (2 * ratio + 2), ratio / (2 * ratio + 2), 1 / (2 * ratio + 2), 1 / (2 * ratio + 2)]
    )
    assert chosen.weight_contrast == pytest.approx(ratio)
    assert chosen.weight_contrast < 1.021


def test_standardising_alone_makes_the_weights_differ(batch) -> None:
    batches = [batch("a", 10, [5, 5]), batch("b", 10, [4, 4])]
    chosen = chosen_of(batches, PAPER.model_copy(update={"standardise_rewards": True}))
    assert chosen.weight_contrast == pytest.approx(math.e**2)  # one deviation above and one below
    assert chosen.effective_samples < 4


def test_within_contexts_nothing_is_paid_for_the_seed_it_was_given(batch) -> None:
    config = PAPER.model_copy(
        update={
            "p_hat_scope": "task",
            "band_filter": False,
            "standardise_rewards": True,
            "rwr_within": "context",
        }
    )
    batches = [batch("good", 8, [4, 4], config), batch("mixed", 8, [4, 0, 4, 0], config)]
    chosen = chosen_of(batches, config)
    weights = {sample.generation.id: sample.weight for sample in chosen.samples}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["good-g0"] == pytest.approx(weights["good-g1"]) == pytest.approx(1 / 6)
    assert weights["mixed-g0"] / weights["mixed-g1"] == pytest.approx(math.e**2)
    assert weights["mixed-g0"] + weights["mixed-g1"] == pytest.approx(2 / 6)


def test_a_generation_near_another_of_the_archive_earns_less_than_a_new_one(make) -> None:
    tasks = [make.task(f"t{i}") for i in range(3)]
    news = (0.8, 0.4, 0.1)
    proposals = [make.proposal(f"g{i}", tasks[i], novelty=news[i]) for i in range(3)]
    groups = [make.group(task, 4, 8) for task in tasks]
    scored = score_batch(make.context(), proposals, groups, PAPER)  # p_hat 0.5, R_env 1
    assert chosen_of([scored], PAPER.model_copy(update={"full_novelty": 0.0})).env_rewards == (1, 1, 1)
    chosen = chosen_of([scored], PAPER.model_copy(update={"full_novelty": 0.4}))
    assert chosen.env_rewards == pytest.approx((1, 1, 0.25))
    assert chosen.samples[0].weight == chosen.samples[1].weight > chosen.samples[2].weight


def test_at_task_scope_each_task_stands_for_itself(batch) -> None:
    batches = [batch("c0", 8, [0, 8, 4])]
    by_task = PAPER.model_copy(update={"p_hat_scope": "task"})
    assert len(chosen_of(batches, PAPER).samples) == 3
    chosen = chosen_of(batches, by_task)
    assert [sample.generation.id for sample in chosen.samples] == ["c0-g2"]
    assert chosen.dropped == 2


def test_without_the_filter_every_attempted_batch_teaches(batch) -> None:
    batches = [batch("in", 8, [4]), batch("easy", 8, [8]), batch("none", 8, [None])]
    chosen = chosen_of(batches, PAPER.model_copy(update={"band_filter": False}))
    assert [sample.generation.id for sample in chosen.samples] == ["in-g0", "easy-g0"]
    assert chosen.weight_contrast == pytest.approx(math.exp(1 - math.exp(-0.5)))


def test_the_posterior_alone_keeps_three_and_five_of_eight(batch) -> None:
    batches = [batch(f"k{k}", 8, [k]) for k in range(9)]
    kept = [sample.generation.context_id for sample in chosen_of(batches, PAPER).samples]
    assert kept == ["k4"]
    with_posterior = PAPER.model_copy(update={"posterior": True})
    kept = [sample.generation.context_id for sample in chosen_of(batches, with_posterior).samples]
    assert kept == ["k3", "k4", "k5"]  # posterior means 0.4, 0.5, 0.6


def test_nothing_survives_means_an_empty_selection(batch) -> None:
    assert chosen_of([], ROBUST) == Selection()
    assert chosen_of([batch("easy", 8, [8, 8])], ROBUST) == Selection(dropped=1)


def test_a_task_that_was_never_attempted_is_not_imitated(make) -> None:
    tried, untried = make.task("tried"), make.task("untried")
    proposals = [make.proposal("g0", tried), make.proposal("g1", untried)]
    groups = [make.group(tried, 4, 8), make.group(untried, 0, 0, broken=8)]
    scored = score_batch(make.context(), proposals, groups, PAPER)
    for scope in ("batch", "task"):
        chosen = chosen_of([scored], PAPER.model_copy(update={"p_hat_scope": scope}))
        assert [sample.generation.id for sample in chosen.samples] == ["g0"]


outcomes = st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=5)


@given(
    st.lists(outcomes, max_size=5),
    st.sampled_from(["batch", "task"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_weights_sum_to_one_and_rejected_generations_are_never_among_them(
    make, rounds, scope, posterior, standardise, band_filter
) -> None:
    config = CurriculumConfig(
        p_hat_scope=scope, posterior=posterior, standardise_rewards=standardise, band_filter=band_filter
    )
    batches, valid = [], set()
    for index, batch_outcomes in enumerate(rounds):
        name, proposals, groups = f"c{index}", [], []
        for number, successes in enumerate(batch_outcomes):
            task = None if successes is None else make.task(f"{name}-t{number}")
            proposals.append(make.proposal(f"{name}-g{number}", task, context=name))
            if task is not None:
                groups.append(make.group(task, successes, 8))
                valid.add(f"{name}-g{number}")
        batches.append(score_batch(make.context(name), proposals, groups, config))
    chosen = chosen_of(batches, config)
    assert {sample.generation.id for sample in chosen.samples} <= valid
    if chosen.samples:
        assert math.fsum(sample.weight for sample in chosen.samples) == pytest.approx(1)
        assert 1 <= chosen.effective_samples <= len(chosen.samples) + 1e-9
        assert chosen.weight_contrast >= 1
    if not band_filter:
        assert {sample.generation.id for sample in chosen.samples} == valid
    found = curriculum_metrics(batches, chosen, config)
    check_names(found)
    assert all(map(math.isfinite, found.values()))


def test_the_metrics_of_a_round_measure_both_scopes(batch) -> None:
    batches = [batch("a", 8, [0, 8, None]), batch("b", 8, [8, 8]), batch("c", 8, [None])]
    found = curriculum_metrics(batches, chosen_of(batches, PAPER), PAPER)
    assert found["simulator/valid_rate"] == pytest.approx(4 / 6)
    assert found["simulator/rejected/duplicate"] == 2
    assert found["simulator/in_band_rate"] == 0.5  # of the two batches with attempts, one is at 0.5
    assert found["simulator/in_band_rate_task"] == 0  # no task of its own is
    assert found["curriculum/p_hat_task_agree"] == 1
    assert found["simulator/env_reward"] == pytest.approx((1 + math.exp(-0.5) + 0) / 3)
    assert found["curriculum/p_hat_mean"] == 0.75
    assert found["curriculum/p_hat_spread"] == 0.25
    assert found["curriculum/p_hat_batches"] == 2
    assert found["simulator/dropped"] == 2
    assert found["tasks/share/add"] == found["curriculum/skill_share_max"] == 1
    assert found["simulator/novelty"] == 0.5


def test_the_band_counts_what_the_agent_solved_and_not_where_the_posterior_lies(batch) -> None:
    """As in the quickstart: one variation, three attempts, k_min 0.3, and posterior means of 0.2 to 0.8."""
    wide = CurriculumConfig(k_min=0.3, band_filter=False)
    batches = [batch(name, 3, [solved], wide) for name, solved in (("a", 0), ("b", 1), ("c", 3), ("d", 3))]
    found = curriculum_metrics(batches, chosen_of(batches, wide), wide)
    assert found["simulator/in_band_rate"] == found["simulator/in_band_rate_task"] == 0.25


@pytest.mark.parametrize(("attempts", "k_min"), [(1, 0.3), (3, 0.1), (8, 0.5)])
def test_where_no_attempts_can_tell_the_band_has_no_rate(batch, attempts: int, k_min: float) -> None:
    """1 of 1 is never within 0.3 of one half, k of 3 never within 0.1, k of 8 always within 0.5."""
    config = CurriculumConfig(k_min=k_min)
    batches = [batch("a", attempts, [0], config), batch("b", attempts, [1], config)]
    found = curriculum_metrics(batches, chosen_of(batches, config), config)
    assert not {"simulator/in_band_rate", "simulator/in_band_rate_task"} & found.keys()


def test_batches_with_too_few_attempts_do_not_count_in_the_band(batch) -> None:
    batches = [batch("a", 8, [4]), batch("b", 8, [0]), batch("c", 3, [1])]
    found = curriculum_metrics(batches, chosen_of(batches, PAPER), PAPER)
    assert found["simulator/in_band_rate"] == 0.5
    assert found["curriculum/p_hat_batches"] == 3


def test_the_control_gives_other_tasks_the_same_rewards(batch) -> None:
    batches = [batch(f"c{k}", 8, [k]) for k in range(9)]
    config = PAPER.model_copy(update={"band_filter": False})
    right = chosen_of(batches, config)
    shuffled = chosen_of(batches, config.model_copy(update={"env_reward": "shuffled"}))
    assert sorted(shuffled.env_rewards) == pytest.approx(sorted(right.env_rewards))
    assert shuffled.env_rewards != right.env_rewards
    assert shuffled.effective_samples == pytest.approx(right.effective_samples)


@pytest.mark.parametrize("reward", ["learnability", "difficulty"])
def test_the_control_shuffles_what_the_simulator_is_paid_whatever_that_is(batch, reward: str) -> None:
    paid = PAPER.model_copy(update={"band_filter": False, "env_reward": reward})
    batches = [batch(f"c{k}", 8, [k]) for k in range(9)]
    right, shuffled = (
        chosen_of(batches, paid.model_copy(update={"shuffle_rewards": on})) for on in (False, True)
    )
    assert sorted(shuffled.env_rewards) == pytest.approx(sorted(right.env_rewards))
    assert shuffled.env_rewards != right.env_rewards


def test_in_the_control_the_band_is_that_of_the_other_task_too(batch) -> None:
    config = PAPER.model_copy(update={"p_hat_scope": "task", "shuffle_rewards": True})
    batches = [batch(f"c{i}", 8, [4, 0, 8, 8]) for i in range(10)]
    found = chosen_of(batches, config)
    kept = {sample.generation.id for sample in found.samples}
    assert len(kept) == 10, "as many as are in the band"
    assert {name[-1] for name in kept} > {"0"}, "but not those that are"
    assert set(found.env_rewards) == {1.0}


def test_a_reward_by_another_name_is_what_weighs(batch) -> None:
    config = PAPER.model_copy(update={"band_filter": False, "env_reward": "difficulty"})
    batches = [batch("hard", 8, [0], config), batch("easy", 8, [8], config)]
    assert [scored.env_reward for scored in batches] == [1.0, 0.0]
    assert chosen_of(batches, config).env_rewards == (1.0, 0.0)


def test_the_agent_may_be_taught_tasks_of_the_band_alone(make) -> None:
    groups = [make.group(make.task(f"t{k}"), k, 8) for k in range(9)] + [make.group(make.task("base"), 8, 8)]
    new = [group.task for group in groups[:-1]]
    assert trained_groups(groups, new, ROBUST) == groups
    band = ROBUST.model_copy(update={"agent_band": True, "k_min": 0.13})
    assert [group.task.id for group in trained_groups(groups, new, band)] == ["t3", "t4", "t5", "base"]


def test_each_generation_has_its_own_reward_and_what_is_no_task_has_none(batch) -> None:
    batches = [batch("c0", 8, [4, None, 8]), batch("c1", 8, [0])]
    found = scored(batches, PAPER, random.Random(0))
    rewards = {one.generation.id: one.reward for one in found}
    assert rewards == pytest.approx({"c0-g0": 1.0, "c0-g1": 0.0, "c0-g2": 0.6065, "c1-g0": 0.6065}, abs=1e-3)


def test_where_rewards_are_shuffled_what_is_no_task_still_has_none(batch) -> None:
    config = PAPER.model_copy(update={"env_reward": "shuffled"})
    batches = [batch(f"c{i}", 8, [4, None, 8]) for i in range(20)]
    found = {one.generation.id: one.reward for one in scored(batches, config, random.Random(0))}
    plain = {one.generation.id: one.reward for one in scored(batches, PAPER, random.Random(0))}
    assert sorted(found.values()) == pytest.approx(sorted(plain.values()))
    assert found != plain
    assert all(found[f"c{i}-g1"] == 0.0 for i in range(20))


def test_a_foretold_rate_counts_like_so_many_attempts(make) -> None:
    """Beta(16 p, 16 (1 - p)) and the attempts: E[4 p (1 - p)] by hand."""
    config = CurriculumConfig(foretold_attempts=16, env_reward="learnability", p_hat_scope="task")
    tried, untried = make.task("tried"), make.task("untried")
    proposals = [make.proposal("g0", tried), make.proposal("g1", untried)]
    proposals = [replace(one, predicted_rate=rate) for one, rate in zip(proposals, (0.25, 0.5), strict=True)]
    one = score_batch(make.context(), proposals, [make.group(tried, 6, 8)], config)
    found = {each.generation.id: each.reward for each in scored([one], config, random.Random(0))}

    def expected(a: float, b: float) -> float:
        return 4 * a * b / ((a + b) * (a + b + 1))

    assert found == pytest.approx({"g0": expected(4 + 6, 12 + 2), "g1": expected(8, 8)}, abs=1e-3)
    assert {sample.generation.id for sample in chosen_of([one], config).samples} == {"g0", "g1"}
    alone = config.model_copy(update={"foretold_attempts": 0})
    assert [each.generation.id for each in scored([one], alone, random.Random(0))] == ["g0"]


def test_progress_pays_the_rise_of_predicted_rates_and_no_rollout(make) -> None:
    config = CurriculumConfig(foretold_attempts=16, env_reward="progress", p_hat_scope="task")
    tasks = [make.task(name) for name in ("learned", "forgotten", "untried")]
    rises = [(0.75, 0.5), (0.25, -0.25), (0.5, 0.25)]
    proposals = [
        replace(make.proposal(f"g-{task.id}", task), predicted_rate=rate, progress=rise)
        for task, (rate, rise) in zip(tasks, rises, strict=True)
    ]
    proposals.append(make.proposal("g-refused", None))
    groups = [make.group(tasks[0], 0, 8), make.group(tasks[1], 8, 8)]
    one = score_batch(make.context(), proposals, groups, config)
    found = {each.generation.id: each.reward for each in scored([one], config, random.Random(0))}
    assert found == {"g-learned": 0.75, "g-forgotten": 0.375, "g-untried": 0.625, "g-refused": 0.0}
    assert one.env_reward == (1 + (0.5 - 0.25) / 2) / 2  # the mean over the tasks that were rolled out


def test_tasks_that_were_passed_over_do_not_lower_the_mean_reward(make) -> None:
    batches = [
        score_batch(make.context("c0"), [make.proposal("g0", make.task("a"))], [make.group("a", 4)], PAPER),
        score_batch(make.context("c1"), [make.proposal("g1", make.task("b"), context="c1")], [], PAPER),
    ]
    assert curriculum_metrics(batches, Selection(), PAPER)["simulator/env_reward"] == pytest.approx(1.0)


def own_share(successes, rollouts, rewards, config):
    return successes / rollouts


def test_an_own_reward_is_never_asked_about_no_rollout(batch) -> None:
    config = CurriculumConfig(
        env_reward=f"{__name__}:own_share", p_hat_scope="task", foretold_attempts=8.0, posterior=False
    )
    one = batch("c0", 8, [4])
    (proposal,) = one.proposals
    unknown = replace(one, groups=(), proposals=(replace(proposal, predicted_rate=0.25),))
    assert [found.reward for found in scored([one], config, random.Random(0))] == [0.5]
    assert [found.reward for found in scored([unknown], config, random.Random(0))] == [0.25]


def test_differences_between_tasks_are_no_variance(batch) -> None:
    config = PAPER.model_copy(update={"env_reward": "variance"})
    assert batch("c0", 8, [0, 8], config).env_reward == 0
    assert batch("c0", 8, [4, 8], config).env_reward == 0.5


def test_with_several_agents_a_task_is_counted_once(make) -> None:
    task, other = make.task("a"), make.task("b")
    groups = [make.group(task, 8, 8), replace(make.group(task, 4, 8), agent="weak")]
    groups += [make.group(other, 8, 8), replace(make.group(other, 0, 8), agent="weak")]
    found = _outcomes(groups)
    assert (found["tasks/mixed"], found["tasks/solved"], found["tasks/unsolved"]) == (0.5, 0, 0)
    assert {name: share for name, share in found.items() if "p_hat" in name and share} == {
        "tasks/p_hat/60-80": 0.5
    }
