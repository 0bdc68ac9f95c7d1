"""Rollouts that only score tasks: the agent never trains on them, all else counts them, kills do no harm."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.runs.store.store import PoolStore
from genenv.training.rounds import Learner
from genenv.types import Group
from genenv.viewer import tasks
from genenv.viewer.folders import Runs, reading
from typed import stopped_in_round_two, succeeds

PENDULUM = """
[run]
rounds = 3
eval_every = 0
keep_checkpoints = 4

[environment]
name = "control"
base_tasks = 8
held_out_tasks = 3

[environment.values]
lift = [1.2, 1.0]
tolerance = [0.8, 0.6]
hold = [6, 8]

[curriculum]
band_filter = false
base_share = 0.2
review_share = 0.0
env_reward = "learnability"
p_hat_scope = "task"
full_novelty = 0.0
gate = "executes"
novelty_threshold = 0.0

[simulator]
writes = "parameters"
contexts = 6
variations = 1

[simulator.search]
period = 3
scored_rounds = 1

[agent]
algorithm = "ppo"
rollouts = 4
max_new_tokens = 121
lr = 1e-2

[policy]
backend = "ppo"
context_tokens = 1024
ppo = { hidden = 8, initial_std = 1.0 }
"""
SOURCES = ["robust-plr", "robust-accel", "sfl"]
FAST = ("robust-accel", 1)


def words(folder: Path, variant: str, *more: str) -> list[object]:
    file = folder / "pendulum.toml"
    file.write_text(PENDULUM, encoding="utf-8")
    return ["train", file, "--variant", variant, *(word for one in more for word in ("--set", one))]


def weights(path: Path, number: int, agent: str = "agent") -> bytes:
    return (path / "checkpoints" / f"round-{number:04d}" / agent / "policy.safetensors").read_bytes()


def scored_only(path: Path, number: int) -> set[str | None]:
    """Ids of the generations of a round whose tasks were only scored."""
    with PoolStore.open(path / "pool.db", create=False) as store:
        written = [p.generation for batch in store.batches(number) for p in batch.proposals]
    return {one.id for one in written if one.scored_only}


@pytest.mark.parametrize("variant", [*SOURCES, "plr", "accel"])
def test_the_agent_trains_on_every_rollout_but_those_that_only_score(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Sequence[Group]] = []
    learns = Learner.agent_learns

    def noted(self: Learner, number: int, groups: Sequence[Group], *rest: Any) -> Any:
        trained.append(groups)
        return learns(self, number, groups, *rest)

    monkeypatch.setattr(Learner, "agent_learns", noted)
    again = ("curriculum.base_share=0.1", "curriculum.review_share=0.3", "curriculum.replay_share=0.3")
    succeeds(*words(tmp_path, variant, *again), "--out", tmp_path / "run")
    marked = [scored_only(tmp_path / "run", number) for number in (1, 2, 3)]
    for number, own, given in zip((1, 2, 3), marked, trained, strict=True):
        before = {name for earlier in marked[:number] for name in earlier}
        assert not before & {group.task.lineage.generation_id for group in given}, "nor in later rounds"
        with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
            groups, metrics = store.groups(number), store.metrics(number)
        expected = [group.task.id for group in groups if group.task.lineage.generation_id not in own]
        assert [group.task.id for group in given] == expected
        assert metrics["agent/attempts"] == 4 * len(groups)
        assert metrics["tokens/agent_sampled"] == sum(t.response_tokens for g in groups for t in g.traces)
        new = {group.task.id for group in groups if group.task.lineage.generation_id}
        assert metrics.get("tasks/scored_only", 0) == len(new - set(expected))
    if variant in SOURCES:
        assert len(marked[0]) == 6  # nothing can be replayed yet
        assert sum(map(len, marked)) < 18  # later something is
    else:
        assert not any(marked)


def test_a_round_that_only_scores_changes_no_weight(tmp_path: Path) -> None:
    succeeds(*words(tmp_path, "robust-plr", "curriculum.base_share=0"), "--out", tmp_path / "run")
    assert weights(tmp_path / "run", 1) == weights(tmp_path / "run", 0)
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        assert store.metrics(1)["agent/steps"] == 0
        assert store.metrics(1)["agent/skipped_updates"] == 1
        assert store.metrics(1)["tasks/mixed"] > 0  # it did find something to replay
    assert weights(tmp_path / "run", 3) != weights(tmp_path / "run", 1)


@pytest.mark.parametrize(
    ("variant", "staleness"),
    [
        pytest.param(name, lag, marks=[] if (name, lag) == FAST else pytest.mark.long)
        for name, lag in [*itertools.product(SOURCES, (0, 1)), ("paired", 0)]
    ],
)
def test_a_killed_run_is_equal_to_one_that_was_not(variant: str, staleness: int, tmp_path: Path) -> None:
    said = words(tmp_path, variant, f"run.staleness={staleness}")
    succeeds(*said, "--out", tmp_path / "whole")
    stopped_in_round_two(*said, "--out", tmp_path / "run")
    succeeds("train", "--resume", "--out", tmp_path / "run")
    with (
        PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as whole,
        PoolStore.open(tmp_path / "run" / "pool.db", create=False) as run,
    ):
        assert whole.digest() == run.digest()
        assert run.damage(whole=True) == []
    for name in ("protagonist", "antagonist") if variant == "paired" else ("agent",):
        assert weights(tmp_path / "whole", 3, name) == weights(tmp_path / "run", 3, name)
        assert weights(tmp_path / "whole", 3, name) != weights(tmp_path / "whole", 0, name)
    states = [
        (tmp_path / name / "checkpoints" / "round-0003" / "simulator" / "search.json").read_text()
        for name in ("whole", "run")
    ]
    assert states[0] == states[1]
    assert json.loads(states[0])["state"]["logits" if variant == "paired" else "levels"]


def test_the_viewer_says_that_a_rollout_only_scored_its_task(tmp_path: Path) -> None:
    succeeds(*words(tmp_path, "robust-plr", "run.rounds=1"), "--out", tmp_path / "run")
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        marked, base = (
            next(group for group in store.groups(1) if (group.task.lineage.generation_id is None) is base)
            for base in (False, True)
        )
    run = Runs(tmp_path).find("run")
    for group, expected in ((marked, True), (base, False)):
        page = reading(
            run,
            lambda db, g=group: tasks.trace_page(
                db, g.traces[0].id, lambda _: lambda ids: [""] * len(ids), str
            ),
        )
        assert page.scored_only is expected
    page = reading(run, lambda db: tasks.task_page(db, marked.task.id, 1, family=None))
    assert page.written is not None
    assert page.written["scored_only"] == 1
