"""The household laboratory as a run, with a tiny model in the place of the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("alfworld", reason="alfworld is not installed: pip install --no-deps alfworld")

from genenv.environments.household.environment import Household
from genenv.environments.household.spec import HouseholdConfig
from genenv.runs.store.store import PoolStore
from genenv.types import Group
from typed import stopped_in_round_two, succeeds

CONFIG = Path(__file__).parents[3] / "configs" / "household-lab.toml"
SMALL = {
    "run.rounds": 3,
    "run.eval_every": 0,
    "simulator.source": "variation",
    "simulator.contexts": 2,
    "agent.rollouts": 4,
    "agent.max_new_tokens": 80,
    "agent.kl_coefficient": 0.01,
    "agent.temperature": 1.0,
    "policy.context_tokens": 4000,
    "policy.device": "cpu",
    "policy.threads": 1,
}


def stored(path: Path) -> tuple[list[Group], str]:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return [group for number in (1, 2, 3) for group in store.groups(number)], store.digest()


@pytest.mark.long
def test_every_reply_is_possible_and_a_run_that_was_stopped_ends_as_one_that_was_not(
    tiny: Any, tmp_path: Path
) -> None:
    model = tiny.folder(max_position_embeddings=4096)
    settings = [w for k, v in {**SMALL, "policy.model": model}.items() for w in ("--set", f"{k}={v}")]
    words = ["train", CONFIG, *settings, "--out"]
    succeeds(*words, tmp_path / "whole")
    groups, digest = stored(tmp_path / "whole")
    env = Household(HouseholdConfig(mode="single", held_to_commands=True))
    for group in groups:
        possible = env.episode(group.task).choices
        assert all(trace.replies[0] in possible for trace in group.traces)
        assert all(0 < trace.response_tokens < len(trace.replies[0]) for trace in group.traces)
    stopped_in_round_two(*words, tmp_path / "stopped")
    succeeds("train", "--resume", "--out", tmp_path / "stopped")
    assert stored(tmp_path / "stopped") == (groups, digest)
