"""The warm-up: what both players are shown, and what of it does not fit into their context."""

from __future__ import annotations

import pytest
import torch

from genenv.config import RunConfig
from genenv.errors import UsageError
from genenv.players import local_players
from genenv.progress import Silent
from genenv.simulator.rwr import Demonstration, Imitator
from genenv.types import Message, Seed

LONG = 10**60
"""A number of more digits than there is room for."""


@pytest.fixture
def players(tiny, toy):
    class Sums(toy.Domain):
        def simulator_messages(self, seed, profile, target):
            return (Message(role="user", content=f"a sum like {seed.spec['left']}"),)

        def variation(self, seed, rng):
            return {"turns": 1, "left": rng.randrange(10), "right": 2}

    config = {
        "policy": {"model": str(tiny.folder()), "device": "cpu", "dtype": "float32", "threads": 1}
        | {"lora_rank": 2, "context_tokens": 80},
        "agent": {
            "max_new_tokens": 4,
            "warmup": {"steps": 2, "batch": 2, "check_tasks": 1, "check_every": 2},
        },
        "simulator": {"variations": 1, "warmup": {"steps": 8, "batch": 1}},
    }
    return local_players(RunConfig.model_validate(config), Sums())


def tasks_of(toy, *lefts: int):
    return [toy.task(left, 2, name=f"task-{i}") for i, left in enumerate(lefts)]


def seeds_of(*lefts: int):
    return [
        Seed(id=f"seed-{i}", domain="sums", spec={"left": left}, skills=("sums",))
        for i, left in enumerate(lefts)
    ]


def test_demonstrations_that_do_not_fit_the_context_are_left_out_and_counted(players, toy, caplog):
    tasks, seeds = tasks_of(toy, 1, 2, 3, LONG, LONG + 1), seeds_of(1, LONG)
    checked, solved = players.warmup._solved(tasks)
    short = sum(task.payload["left"] < LONG for task in tasks if task not in checked)
    assert len(solved) == short
    assert all(d.tokens and len(d.prompt_ids) + len(d.completion_ids) <= 80 for d in solved)
    assert f"{4 - short} of 4 demonstrations for the warm-up of the agent do not fit" in caplog.text
    written = players.warmup._written(seeds)
    assert 0 < len(written) < 8
    assert all(len(d.prompt_ids) + len(d.completion_ids) <= 80 for step in written for d in step)
    assert f"{8 - len(written)} of 8 demonstrations for the warm-up of the simulator" in caplog.text

    metrics = players.warmup(seeds, tasks, Silent())
    assert metrics["agent/warmup_steps"] == 2
    assert metrics["agent/skipped_updates"] == metrics["simulator/skipped_updates"] == 0
    assert metrics["simulator/warmup_loss"] > 0


@pytest.mark.parametrize("player", ["agent", "simulator"])
def test_without_a_demonstration_that_fits_the_warm_up_ends_before_it_begins(tiny, toy, players, player):
    before = tiny.values(players.agent.policy)
    tasks = tasks_of(toy, *([LONG] * 3 if player == "agent" else [1, 2, 3]))
    with pytest.raises(UsageError, match=rf"warm-up of the {player} fits .* raise policy\.context_tokens"):
        players.warmup(seeds_of(LONG, LONG + 1), tasks, Silent())
    assert all(torch.equal(p, before[name]) for name, p in players.agent.policy.parameters())


def test_every_solution_is_shown_in_turn_from_the_first_on(players, toy, monkeypatch):
    """Two steps of two: of six tasks one is for the check, four are shown, and one is left."""
    checked, solved = players.warmup._solved(tasks_of(toy, 1, 2, 3, 4, 5, 6))
    assert (len(checked), len(solved)) == (1, 4)
    shown: list[Demonstration] = []
    plain = Imitator.gradients

    def watched(self, demonstrations, **options):
        shown.extend(demonstrations)
        return plain(self, demonstrations, **options)

    monkeypatch.setattr(Imitator, "gradients", watched)
    players.warmup._warm_agent(checked, solved, Silent())
    assert shown == list(solved)


def test_demonstrations_that_all_fit_are_shown_without_a_word(players, toy, caplog):
    checked, solved = players.warmup._solved(tasks_of(toy, 1, 2, 3))
    assert (len(checked), len(solved)) == (1, 2)
    assert [len(step) for step in players.warmup._written(seeds_of(1, 2))] == [1] * 8
    assert "do not fit" not in caplog.text
