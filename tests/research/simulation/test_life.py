"""Lives through the project's curriculum: what must hold of every arm, and of the comparison of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from genenv.errors import UsageError
from genenv.research.simulation import simulated_run
from genenv.research.simulation.learner import LabConfig
from genenv.research.simulation.run import lab_config, run_arms, standard_error
from genenv.research.simulation.simulated_run import ARMS, Arm, Curve, SimulatedRun, chosen
from genenv.types import Profile, Task

CONFIG = LabConfig()
SHORT = LabConfig(rounds=4)
LEARNING = [name for name, arm in ARMS.items() if arm.algorithm != "none"]


def run(arm: Arm, config: LabConfig = SHORT, seed: int = 3) -> Curve:
    return SimulatedRun(arm, config, seed).run()


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_lives_and_attempts_full_rounds(name: str) -> None:
    life, played = SimulatedRun(ARMS[name], SHORT, 3), list[int]()
    attempt = life._agent.attempt  # what is attempted is seen here alone

    def counted(skills_N: np.ndarray, levels_N: np.ndarray) -> np.ndarray:
        played.append(len(skills_N))
        return attempt(skills_N, levels_N)

    life._agent.attempt = counted  # type: ignore[method-assign]
    curve = life.run()
    assert played == [SHORT.tasks] * 4
    assert len(curve.held_out) == 5
    assert all(0 < rate < 1 for rate in curve.held_out)
    assert all(0 <= share <= 1 for share in curve.mixed)
    assert curve == run(ARMS[name])


def test_two_arms_that_are_equal_come_out_equal() -> None:
    for name in ("genenv", "robust", "state", "bandit"):
        same = replace(ARMS[name], about="the same by another name")
        assert run(same) == run(ARMS[name])


def test_all_arms_of_a_seed_begin_with_the_same_agent() -> None:
    assert len({run(arm, LabConfig(rounds=1)).held_out[0] for arm in ARMS.values()}) == 1


def test_a_reward_that_is_alike_for_all_leaves_reinforce_where_it_was() -> None:
    assert run(ARMS["state-constant"]) == run(ARMS["random"])


@pytest.mark.parametrize("name", LEARNING)
def test_a_simulator_that_copies_does_not_move(name: str) -> None:
    copying = SHORT.model_copy(update={"copy_share": 1.0})
    assert run(ARMS[name], copying) == run(replace(ARMS[name], algorithm="none"), copying)


def test_without_signal_nobody_learns() -> None:
    """Tasks that are far too hard for all: curves stay where they are."""
    hopeless = LabConfig(rounds=3, ability_mean=-10, ability_sd=0, noise=0, slope=20)
    for name in ("random", "genenv", "state", "oracle"):
        curve = run(ARMS[name], hopeless)
        assert curve.mixed == (0, 0, 0)
        assert len(set(curve.held_out)) == 1


@pytest.mark.long
def test_the_oracle_is_far_above_a_simulator_that_never_learns() -> None:
    results = run_arms(["random", "oracle"], CONFIG, seeds=range(100))
    gains = results["oracle"].final() - results["random"].final()
    assert gains.mean() > 3 * standard_error(gains)
    assert gains.mean() > 0.2


def test_a_simulator_that_learns_finds_tasks_with_mixed_outcomes() -> None:
    results = run_arms(["random", "reinforce"], CONFIG, seeds=range(40))
    more = results["reinforce"].mixed[:, -3:].mean(axis=1) - results["random"].mixed[:, -3:].mean(axis=1)
    assert more.mean() > 3 * standard_error(more)


@pytest.mark.long
def test_any_number_of_processes_gives_the_same() -> None:
    names, seen = ["random", "state"], list[int]()
    alone = run_arms(names, SHORT, seeds=range(45), jobs=1, advance=seen.append)
    several = run_arms(names, SHORT, seeds=range(45), jobs=2)
    assert seen == [20, 20, 5]
    for name in names:
        assert (alone[name].held_out == several[name].held_out).all()
        assert (alone[name].mixed == several[name].mixed).all()


def test_more_seeds_begin_with_the_same_ones() -> None:
    few, many = (run_arms(["genenv"], SHORT, seeds=range(n))["genenv"].held_out for n in (3, 6))
    assert (few == many[:3]).all()


def test_attempts_are_counted_to_where_the_curve_crosses_the_goal() -> None:
    results = run_arms(["random"], SHORT, seeds=range(3))["random"]
    curves = np.array([[0.1, 0.2, 0.4, 0.5], [0.3, 0.2, 0.2, 0.2], [0.05, 0.1, 0.2, 0.4]])
    results = replace(results, held_out=curves)
    assert results.attempts_to(0.3) == pytest.approx(1.5 * 256)  # 1.5, 0 and 2.5 rounds
    assert results.attempts_to(0.45) is None
    assert results.attempts_to(0.01) == 0
    two = replace(results, held_out=curves[:2])
    assert two.attempts_to(0.45) == pytest.approx(2.5 * 256), "half of the seeds reach it"
    assert two.attempts_to(0.3) == pytest.approx(0.75 * 256)


def test_the_nouns_are_those_of_a_run() -> None:
    proposal = simulated_run.proposal_of("r0001-c00", 2, 1, 5)
    assert isinstance(proposal.outcome, Task)
    assert simulated_run.place_of(proposal.outcome) == (1, 5)
    group = simulated_run.group_of(proposal.outcome, 3, 8)
    assert (group.successes, len(group.valid)) == (3, 8)
    assert sum(trace.reward for trace in group.traces) == 3


def test_solved_levels_are_the_area_under_what_the_profile_tells() -> None:
    rates = {simulated_run.tag(0, level): rate for level, rate in {1: 1.0, 3: 0.0, 4: 0.0}.items()}
    areas = simulated_run.solved_levels(Profile(success=rates), 2, 6)
    assert areas.tolist() == [2.5, 3.0]  # 1 + 1 + 0.5 + 0 + 0 + 0; half of six levels without attempts


def test_wrong_settings_and_arms_end_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="unknown arm 'orcle'; did you mean 'oracle'"):
        chosen(["random", "orcle"])
    with pytest.raises(UsageError, match="unknown setting 'slop'; did you mean 'slope'"):
        lab_config(["slop=1"])
    with pytest.raises(UsageError, match="'slope' is -1; allowed"):
        lab_config(["slope=-1"])
    with pytest.raises(UsageError, match="8 seeds"):
        lab_config(["contexts=9", "levels=2"])
    assert lab_config(["slope=2"], rounds=3) == LabConfig(slope=2, rounds=3)
