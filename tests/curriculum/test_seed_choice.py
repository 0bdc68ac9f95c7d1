from __future__ import annotations

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.seed_choice import checked_choice, checked_state, choose_seeds, systematic
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import expected_env_reward
from genenv.curriculum.stats import SkillStats
from genenv.errors import UsageError


@pytest.fixture
def seeds(make):
    return [make.seed(f"s{index}", "add") for index in range(10)]


@pytest.mark.parametrize("choice", ["uniform", "expected_reward"])
@pytest.mark.parametrize("n", [0, 1, 10])
def test_seeds_are_chosen_without_replacement(seeds, choice, n: int) -> None:
    config = CurriculumConfig(seed_choice=choice)
    chosen = choose_seeds(seeds, SkillStats(config), n, random.Random(1), config)
    assert len({seed.id for seed in chosen}) == n


@pytest.mark.parametrize("choice", ["uniform", "expected_reward"])
def test_the_same_random_state_gives_the_same_seeds(seeds, choice) -> None:
    config = CurriculumConfig(seed_choice=choice)
    once, again, other = (
        choose_seeds(seeds, SkillStats(config), 5, random.Random(state), config) for state in (3, 3, 4)
    )
    assert once == again != other


def test_seeds_near_the_target_are_preferred_by_expected_reward_alone(make) -> None:
    seeds = [make.seed("mastered", "easy"), make.seed("half", "medium"), make.seed("hopeless", "hard")]

    def shares(**settings) -> Counter[str]:
        config = CurriculumConfig(**settings)
        stats = SkillStats(config)
        stats.observe(
            [
                make.group(make.task(skill, [skill]), k, 32)
                for skill, k in (("easy", 32), ("medium", 16), ("hard", 0))
            ]
        )
        rng = random.Random(0)
        return Counter(choose_seeds(seeds, stats, 1, rng, config)[0].id for _ in range(3000))

    assert shares(seed_choice="uniform")["half"] == pytest.approx(1000, abs=100)
    rewards = [expected_env_reward(k, 32, alpha=0.5, beta=2.0) for k in (32, 16, 0)]
    for strength in (0.0, 4.0, 8.0):
        weights = [math.exp(strength * reward) for reward in rewards]
        found = shares(seed_choice="expected_reward", seed_temperature=strength)["half"]
        assert found == pytest.approx(3000 * weights[1] / sum(weights), abs=100)


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(any),
    share=st.floats(0, 1),
    state=st.integers(0, 99),
)
def test_a_systematic_draw_is_of_different_items(weights, share, state) -> None:
    n = round(share * len(weights))
    drawn = systematic(weights, n, random.Random(state))
    assert drawn == sorted(set(drawn))
    assert len(drawn) == n


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=12, max_size=30),
    n=st.integers(1, 3),
    state=st.integers(0, 99),
)
def test_any_stretch_of_a_systematic_draw_gets_its_share(weights, n, state) -> None:
    total = sum(weights)
    chances = [min(1.0, w * n / total) for w in weights]
    if max(chances) == 1.0:
        return
    drawn = systematic(weights, n, random.Random(state))
    for start, end in ((0, 5), (3, 9), (4, len(weights))):
        share = sum(chances[start:end])
        assert abs(sum(start <= i < end for i in drawn) - share) < 1 + 1e-9


def test_chances_of_a_systematic_draw_follow_the_weights_up_to_certainty() -> None:
    rng = random.Random(0)
    counts = Counter(i for _ in range(4000) for i in systematic([1.0, 2.0, 1.0, 100.0], 2, rng))
    assert [counts[i] / 4000 for i in range(4)] == pytest.approx([0.25, 0.5, 0.25, 1.0], abs=0.03)


def test_each_round_has_the_same_mix_of_difficulty(make) -> None:
    easy = [make.seed(f"e{i}", "easy") for i in range(60)]
    hard = [make.seed(f"h{i}", "hard") for i in range(40)]
    config = CurriculumConfig(seed_choice="expected_reward", seed_temperature=0.0)
    stats = SkillStats(config)
    stats.observe([make.group(make.task(s, [s]), k, 32) for s, k in (("easy", 20), ("hard", 4))])
    for state in range(20):
        chosen = choose_seeds([*easy, *hard], stats, 10, random.Random(state), config)
        assert sum(seed.id.startswith("h") for seed in chosen) == 4


def test_no_seeds_and_too_few_seeds_end_in_a_sentence_that_says_what_to_do(seeds) -> None:
    config = CurriculumConfig()
    with pytest.raises(UsageError, match="no seeds to vary"):
        choose_seeds([], SkillStats(config), 1, random.Random(0), config)
    with pytest.raises(
        UsageError, match=r"simulator.contexts is 11.*has 10 seeds.*set simulator.contexts to 10"
    ):
        choose_seeds(seeds, SkillStats(config), 11, random.Random(0), config)


def test_the_easiest_and_the_hardest_seeds_are_left_out(make) -> None:
    seeds = [make.seed(f"seed{i}", f"s{i}") for i in range(20)]
    config = CurriculumConfig(seed_trim=0.1)
    stats = SkillStats(config)
    stats.observe([make.group(make.task(f"t{i}", [f"s{i}"]), i, 20) for i in range(20)])
    chosen = choose_seeds(seeds, stats, 16, random.Random(0), config)
    assert {seed.id for seed in chosen} == {f"seed{i}" for i in range(2, 18)}
    assert len(choose_seeds(seeds, stats, 20, random.Random(0), config)) == 20


def test_a_bandit_comes_to_draw_seeds_that_are_solved_half_of_the_time(make) -> None:
    seeds = [make.seed(f"{kind}{i}", kind) for kind in ("easy", "half", "hard") for i in range(10)]
    config = CurriculumConfig(seed_choice="bandit", env_reward="learnability")
    stats = SkillStats(config)
    known = [("easy", 40), ("half", 20), ("hard", 0)]
    stats.observe([make.group(make.task(kind, [kind]), k, 40) for kind, k in known])
    chosen = choose_seeds(seeds, stats, 10, random.Random(0), config)
    assert {seed.id for seed in chosen} == {f"half{i}" for i in range(10)}
    assert len({seed.id for seed in choose_seeds(seeds, stats, 30, random.Random(0), config)}) == 30
    other = SkillStats(config)
    other.load_state_dict(json.loads(json.dumps(stats.state_dict())))
    assert choose_seeds(seeds, other, 10, random.Random(3), config) == choose_seeds(
        seeds, stats, 10, random.Random(3), config
    )


def test_a_bandit_that_knows_nothing_tries_everything(make) -> None:
    seeds = [make.seed(f"{kind}{i}", kind) for kind in "abcd" for i in range(10)]
    config = CurriculumConfig(seed_choice="bandit")
    chosen = choose_seeds(seeds, SkillStats(config), 12, random.Random(0), config)
    assert len({seed.skills for seed in chosen}) >= 3


def test_combinations_are_counted_for_a_bandit_only(make) -> None:
    stats = SkillStats(CurriculumConfig())
    stats.observe([make.group(make.task("t", ["a", "b"]), 1, 4)])
    assert "combined" not in stats.state_dict()


def test_what_a_chooser_gives_is_so_many_different_seeds_or_one_sentence(seeds) -> None:
    assert checked_choice(iter(seeds[:2]), 2, "own.py:Mine") == seeds[:2]
    for chosen, gave in (
        (None, "a NoneType"),
        ([one.id for one in seeds[:3]], "a str"),
        (seeds[:2], "2 seeds, 2 of them different,"),
        ([*seeds[:2], seeds[0]], "3 seeds, 2 of them different,"),
    ):
        with pytest.raises(UsageError, match=f"seed_choice is 'own.py:Mine', which chose {gave} where 3"):
            checked_choice(chosen, 3, "own.py:Mine")


def test_the_state_of_a_chooser_is_kept_as_it_is_now_or_one_sentence() -> None:
    state = {"by_seed": {"a": (1, 2)}}
    kept = checked_state(state, "own.py:Mine")
    state["by_seed"].clear()
    assert kept == {"by_seed": {"a": [1, 2]}}
    for wrong, why in (
        (None, "it is a NoneType"),
        ([1], "it is a list"),
        ({"x": {1}}, "type set is not"),
        ({"x": np.int64(1)}, "type int64 is not"),
        ({"x": math.nan}, "Out of range float values"),
    ):
        with pytest.raises(UsageError, match=rf"state_dict\(\) is no dict that JSON can hold: .*{why}"):
            checked_state(wrong, "own.py:Mine")


def test_the_skills_of_base_tasks_are_what_is_counted(make) -> None:
    """A task may have skills that its seed lacks, and several orders of the same ones."""
    seeds = [make.seed(f"{kind}{i}", "put") for kind in ("easy", "half") for i in range(10)]
    base = {one.id: make.task(one.id, [f"plan:{one.id[:4]}", "put"]) for one in seeds}
    config = CurriculumConfig(seed_choice="bandit", env_reward="learnability")
    stats = SkillStats(config)
    stats.observe(
        [
            make.group(make.task(kind, ["put", f"plan:{kind}"]), k, 40)
            for kind, k in (("easy", 40), ("half", 20))
        ]
    )
    chosen = choose_seeds(seeds, stats, 10, random.Random(0), config, base=base)
    assert {seed.id for seed in chosen} == {f"half{i}" for i in range(10)}


def test_statistics_of_older_runs_have_skills_in_any_order(make) -> None:
    config = CurriculumConfig(seed_choice="bandit")
    stats = SkillStats(config)
    stats.observe([make.group(make.task("a", ["calls:2", "pay"]), 9, 10)])
    older = json.loads(json.dumps(stats.state_dict()).replace("calls:2 + pay", "pay + calls:2"))
    other = SkillStats(config)
    other.load_state_dict(older)
    assert other.combined(["pay", "calls:2"]) == stats.combined(["calls:2", "pay"])
    assert other.state_dict() == stats.state_dict()
