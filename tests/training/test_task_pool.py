"""The task pool: what a round's choice reads, and what no generated task may resemble."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.config.run import parse_config
from genenv.curriculum.seed_choice import Controller
from genenv.curriculum.task_choice import Predicted
from genenv.environments.wrappers import ShiftingEnvironment
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.training.opening import open_environment
from genenv.training.task_pool import TaskPool
from genenv.types import Group, JsonObject

SMALL: JsonObject = {"name": "programs", "depths": [1, 2], "lengths": [2, 3]}


def pool_of(**sections: JsonObject) -> TaskPool:
    config = parse_config({"environment": SMALL, "simulator": {"source": "variation"}, **sections})
    return TaskPool(config, open_environment(config))


@pytest.mark.parametrize(("number", "chosen"), [(1, "easy"), (10, "hard")])
def test_candidates_are_chosen_by_the_alpha_of_the_round(number: int, chosen: str) -> None:
    pool = pool_of(
        run={"rounds": 10},
        simulator={"source": "variation", "contexts": 1, "variations": 1},
        curriculum={
            "alpha": 0.9,
            "alpha_last": 0.3,
            "candidates": 2,
            "candidate_reward": "alpha",
            "candidate_temperature": 1000.0,
        },
    )
    easy, hard = list(pool.base.values())[:2]
    rates = {easy.id: 0.9, hard.id: 0.3}
    (found,) = pool.chosen(number, [easy, hard], [], Predicted(rates=rates)).new
    assert found is {"easy": easy, "hard": hard}[chosen]


def test_a_controller_steers_to_the_alpha_of_the_round(toy: Any) -> None:
    pool = pool_of(
        run={"rounds": 10}, curriculum={"alpha": 0.9, "alpha_last": 0.3, "seed_choice": "controller"}
    )
    assert isinstance(pool.chooser, Controller)
    task = next(iter(pool.base.values()))
    for number, harder in ((1, False), (10, True)):
        before = pool.chooser.level
        traces = tuple(replace(toy.trace((1,), [(2,)]), success=i < 5) for i in range(8))
        pool.observe(number, [Group(task=task, traces=traces)], new=[task.id])
        assert (pool.chooser.level > before) is harder


@pytest.mark.long
def test_held_out_tasks_of_the_world_to_come_are_protected_from_the_start() -> None:
    pool = pool_of(shift={"round": 2, "environment": {"renamed": True}})
    assert isinstance(pool.env, ShiftingEnvironment)
    now, later = pool.env.held_out(), pool.env.to_come[1]
    assert len(pool.gate.held_out) == len(now) + len(later)
    pool.enter(2)
    surfaces = [pool.env.surface(task) for task in pool.env.held_out()]
    again = pool_of(shift={"round": 2, "environment": {"renamed": True}})
    assert {again.gate.held_out.nearest(text)[0] for text in surfaces} == {1.0}
    assert len(pool.gate.held_out) == len(later)


def test_a_world_to_come_may_have_tasks_that_the_present_one_does_not_know(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = ({"prompt": f"{name} {n} {name * n}", "answer": str(n)} for n in range(1, 9))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text("def score(completion, answer): return float(answer in completion)\n")
    settings: JsonObject = {"data": str(tmp_path / "a.jsonl"), "reward": f"{tmp_path / 'reward.py'}:score"}
    config = parse_config(
        {
            "environment": {"name": "dataset", **settings, "held_out": 0.3},
            "simulator": {"source": "none"},
            "shift": {"round": 2, "environment": {"data": str(tmp_path / "b.jsonl")}},
        }
    )
    pool = TaskPool(config, open_environment(config))
    assert pool.gate.held_out.nearest("b 3 bbb")[0] < 1.0 or len(pool.gate.held_out)
    pool.enter(2)


@pytest.mark.long
def test_rounds_of_a_branch_count_since_which_its_tasks_are_written_as_they_are_now(tmp_path: Path) -> None:
    """A run of fixed tasks, its branch by parameters with more of them, and a branch of that one."""
    ways: list[JsonObject] = [{"per_seed": 4}, {"per_seed": 8, "writes": "parameters"}, {"per_seed": 4}]
    pools = [pool_of(simulator={"source": "variation", **way}) for way in ways]
    with PoolStore.open(tmp_path / "pool.db", create=True) as store:
        for number, pool in enumerate([pools[0], pools[0], pools[1], pools[2]]):
            store.commit_round(RoundRecord(number=number, metrics={}, state=pool.state()))
        since = [pool.written_alike_since(store, "per_seed", "writes") for pool in pools]
        assert since == [3, 4, 3]
        assert pool_of().written_alike_since(store, "writes") == 3
        earlier = {key: value for key, value in pools[0].state().items() if key != "written"}
        store.commit_round(RoundRecord(number=4, metrics={}, state=earlier))
        assert pools[2].written_alike_since(store, "per_seed", "writes") == 3, "it does not say otherwise"


CHOOSERS = """
class First:
    key = "first"

    def __init__(self, config):
        self.n = 0

    def choose(self, seeds, n, rng):
        return seeds[:n]

    def observe(self, groups):
        self.n += 1

    def state_dict(self):
        return {self.key: self.n}

    def load_state_dict(self, state):
        self.n = state[self.key]


class Second(First):
    key = "second"
"""


def test_a_branch_with_another_chooser_of_ones_own_starts_it_without_state(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(CHOOSERS)
    first, again, second = (
        pool_of(curriculum={"seed_choice": f"{file}:{name}"}) for name in ("First", "First", "Second")
    )
    first.observe(1, [], new=())
    with PoolStore.open(tmp_path / "pool.db", create=True) as store:
        store.commit_round(RoundRecord(number=1, metrics={}, state=first.state()))
        again.recall(store, 1)
        second.recall(store, 1)
    assert [cast(Any, pool.chooser).n for pool in (first, again, second)] == [1, 1, 0]
