from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.stats import SkillStats
from genenv.errors import DataError


def test_a_fresh_profile_knows_nothing() -> None:
    stats = SkillStats(CurriculumConfig())
    assert stats.profile().overall is None
    assert not stats.profile().success
    assert stats.posterior("anything").mean == 0.5


def test_an_attempt_counts_for_every_skill_of_its_task(make) -> None:
    stats = SkillStats(CurriculumConfig(profile_decay=1.0))
    stats.observe(
        [make.group(make.task("a", ["add", "long"]), 6, 8), make.group(make.task("b", ["add"]), 0, 8)]
    )
    profile = stats.profile()
    assert profile.attempts == {"add": 16, "long": 8}
    assert profile.success == pytest.approx({"add": 7 / 18, "long": 7 / 10})  # (k + 1) / (n + 2)
    assert profile.overall == pytest.approx(6 / 16)


def test_old_attempts_decay_once_a_round_and_also_in_a_round_without_any(make) -> None:
    stats = SkillStats(CurriculumConfig(profile_decay=0.5))
    stats.observe([make.group("a", 8, 8)])
    stats.observe([make.group("b", 0, 8)])
    assert stats.profile().attempts["add"] == pytest.approx(12)
    assert stats.profile().overall == pytest.approx(4 / 12)
    stats.observe([])
    assert stats.profile().attempts["add"] == pytest.approx(6)
    assert stats.profile().overall == pytest.approx(4 / 12)


def test_broken_attempts_do_not_count(make) -> None:
    stats = SkillStats(CurriculumConfig())
    stats.observe([make.group("a", 2, 4, broken=4)])
    assert stats.profile().attempts == {"add": 4}
    stats = SkillStats(CurriculumConfig())
    stats.observe([make.group("a", 0, 0, broken=4)])
    assert stats.profile().overall is None
    assert not stats.profile().success


def test_a_task_is_as_hard_as_its_hardest_skill(make) -> None:
    stats = SkillStats(CurriculumConfig())
    stats.observe([make.group(make.task("a", ["easy"]), 8, 8), make.group(make.task("b", ["hard"]), 0, 8)])
    assert stats.hardest(["easy", "hard", "new"]) == stats.posterior("hard")
    assert stats.hardest(["easy", "new"]) == stats.posterior("new")
    assert stats.hardest([]).mean == 0.5  # 8 of 16 over all tasks


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), max_size=12), st.floats(0.1, 1))
def test_a_restored_profile_is_equal_and_goes_on_equally(make, rounds, decay: float) -> None:
    config = CurriculumConfig(profile_decay=decay)
    stats, restored = SkillStats(config), SkillStats(config)
    for skill, successes in rounds:
        stats.observe([make.group(make.task("t", [skill]), successes, 8)])
    restored.load_state_dict(json.loads(json.dumps(stats.state_dict())))
    for each in (stats, restored):
        each.observe([make.group("u", 3, 8)])
    assert restored.profile() == stats.profile()


@pytest.mark.parametrize("state", [{}, {"skills": {"a": {"successes": 3, "attempts": 2}}, "overall": {}}])
def test_a_damaged_state_is_a_data_error(state) -> None:
    with pytest.raises(DataError, match="the skill statistics in this run's store are damaged"):
        SkillStats(CurriculumConfig()).load_state_dict(state)
