"""What the agent's algorithms make of the same attempts and the same solutions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from genenv.agent.policy import AgentConfig
from genenv.algorithms.advantages import ALGORITHMS, agent_credit
from genenv.algorithms.reward_weighting import simulator_credit
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.types import Group


@pytest.fixture
def groups(toy) -> list[Group]:
    """Four attempts each, of which 0, 1, 3 and 4 succeed; no two alike."""

    def attempt(i: int, solved: int):
        return toy.trace((1, 2), [(5, i)], success=i < solved, reward=float(i < solved))

    return [
        Group(task=toy.task(name=f"t{solved}"), traces=tuple(attempt(i, solved) for i in range(4)))
        for solved in (0, 1, 3, 4)
    ]


def lesson(groups, name: str, solutions, **settings):
    config = AgentConfig(algorithm=name, **settings)
    return agent_credit(config)(groups, solutions, config, temperature=1.0)


def test_own_successes_are_imitated_each_different_one_once(groups) -> None:
    found = lesson(groups, "rft", {})
    assert len(found.units) == 1 + 3 + 4
    assert {datum.loss for datum in found.data} == {"nll"}
    same = [replace(group, traces=(group.traces[-1],) * 4) for group in groups[3:]]
    assert len(lesson(same, "rft", {}).units) == 1


def test_solutions_alone_are_imitated_under_sft(groups) -> None:
    solution = groups[3].traces[0]
    found = lesson(groups, "sft", {"t0": solution, "other": solution})
    assert [len(unit) for unit in found.units] == [1, 1]
    assert {datum.loss for datum in found.data} == {"nll"}


def test_grpo_learns_from_groups_whose_attempts_differ(groups) -> None:
    found = lesson(groups, "grpo", {})
    assert [len(unit) for unit in found.units] == [4, 4]
    assert {datum.loss for datum in found.data} == {"ppo"}


def test_ppo_takes_all_groups_and_leaves_advantages_to_the_trainer(groups) -> None:
    found = lesson(groups, "ppo", {"a": groups[3].traces[0]})
    assert len(found.units) == len(lesson(groups, "grpo", {}, skip_zero_advantage=False).units) + 1
    assert all((datum.advantages is None) for datum in found.data)
    assert {datum.loss for datum in found.data} == {"ppo", "nll"}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_steps_have_at_most_so_many_groups(groups, name: str, size: int) -> None:
    found = lesson(groups, name, {"a": groups[3].traces[0]}, groups_per_step=size)
    assert found.steps == math.ceil(len(found.units) / size)
    assert lesson(groups, name, {}, updates_per_epoch=5).steps == 5


def test_an_algorithm_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(
        UsageError,
        match=r'agent.algorithm.* is "dpo"; allowed: "grpo" or "ppo" or "sft" or "rft" '
        r"or module",
    ):
        load_config(None, ["agent.algorithm=dpo"])


OWN = """
from dataclasses import replace

from genenv.algorithms.advantages import grpo_credit
from genenv.algorithms.datum import Objective, UpdateBatch

def nothing(groups, solutions, config, *, temperature):
    return None

def flat(groups, solutions, config, *, temperature):
    batch = grpo_credit(groups, solutions, config, temperature=temperature)
    return replace(batch, units=batch.data)

def short(groups, solutions, config, *, temperature):
    batch = grpo_credit(groups, solutions, config, temperature=temperature)
    return replace(batch, units=[[replace(one, weights=())] for one in batch.data])

def unknown(groups, solutions, config, *, temperature):
    batch = grpo_credit(groups, solutions, config, temperature=temperature)
    return replace(batch, coefficients={"nll": 1.0})

def writes(samples, schemas, config, *, temperature, scored=()):
    return []
"""


@pytest.mark.parametrize(
    ("name", "gave"),
    [
        ("nothing", "a NoneType"),
        ("flat", "units that are no lists of Datum"),
        ("short", "a Datum with another number of weights, advantages or old_logprobs than of tokens"),
        ("unknown", "a Datum with the loss 'ppo', for which `coefficients` has no number"),
    ],
)
def test_what_an_algorithm_of_ones_own_gives_is_an_update_batch_or_one_sentence(
    groups, name: str, gave: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"agent.algorithm is '.*:{name}', which gave {gave}; it returns"):
        lesson(groups, f"{tmp_path / 'own.py'}:{name}", {})
    config = SimulatorLearningConfig(algorithm=f"{tmp_path / 'own.py'}:writes")
    with pytest.raises(UsageError, match=r"simulator.algorithm is '.*:writes', which gave a list; it"):
        simulator_credit(config)((), {}, config, temperature=1.0)
