"""The warm-up: what both players are shown, and what of it does not fit into their context."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from genenv.agent.grpo import GrpoLearner
from genenv.agent.settings import AgentConfig
from genenv.build import local_players
from genenv.config.run import RunConfig
from genenv.errors import DomainError, RolloutError, UsageError
from genenv.runs.progress import Silent
from genenv.simulator.rwr import Demonstration, Imitator, RwrLearner
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Group, Message, Seed, SimulatorSample

LONG = 10**60
"""A number of more digits than there is room for."""


@pytest.fixture
def players(tiny, toy):
    return players_with(tiny, toy)


def players_with(tiny, toy, **warmup):
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
            "kl_coefficient": 0.0,
            "skip_zero_advantage": False,
            "warmup": {"steps": 2, "batch": 2, "check_tasks": 1, "check_every": 2, **warmup},
        },
        "simulator": {"variations": 1, "warmup": {"steps": 8, "batch": 1, **warmup}},
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


@pytest.mark.parametrize(("kept", "first", "second"), [("none", 0, 0), ("second", 0, 1), ("both", 1, 1)])
def test_the_rounds_go_on_with_the_moments_that_the_settings_name(tiny, toy, kept, first, second):
    players = players_with(tiny, toy, kept_moments=kept)
    players.warmup(seeds_of(1, 2), tasks_of(toy, 1, 2, 3), Silent())
    for player, steps in ((players.agent, 2), (players.simulator, 8)):
        state = player.learner.optimizer.snapshot()
        for name, expected in (("exp_avg", first), ("exp_avg_sq", second)):
            assert any(v.any() for k, v in state.items() if k.endswith(f".{name}")) == bool(expected)
        taken = {int(v) for k, v in state.items() if k.endswith(".step")}
        assert taken == {0 if kept == "none" else steps}


@pytest.mark.parametrize(("kept", "still"), [("none", True), ("second", True), ("both", False)])
def test_attempts_that_teach_nothing_move_an_agent_only_by_the_momentum_of_its_warm_up(
    tiny, toy, kept, still
):
    players = players_with(tiny, toy, kept_moments=kept)
    players.warmup(seeds_of(1, 2), tasks_of(toy, 1, 2, 3), Silent())
    before = tiny.values(players.agent.policy)
    alike = tuple(toy.trace((5, 6), [(8, 9, 1)], reward=1.0) for _ in range(2))
    metrics = players.agent.learner.update([Group(task=toy.task(), traces=alike)], seed=0)
    assert (metrics["agent/steps"], metrics["agent/grad_norm"]) == (1, 0)
    after = tiny.values(players.agent.policy)
    assert all(torch.equal(after[name], before[name]) for name in before) is still


@pytest.mark.parametrize(("steps", "kept", "share"), [(2, "none", 0.1), (0, "none", 1.0), (2, "both", 1.0)])
def test_the_first_step_after_a_warm_up_that_left_no_moments_is_a_tenth(tiny, toy, steps, kept, share):
    """The learners alone, whose moments are fresh: AdamW moves the weights by lr, but for the ramp."""
    lr, warmup = 1e-3, {"steps": steps, "kept_moments": kept}
    traces = (toy.trace((5, 6), [(8, 9, 1)], reward=1.0), toy.trace((5, 6), [(30, 1)], reward=0.0))
    agent = GrpoLearner(tiny.player(), AgentConfig(lr=lr, warmup=warmup))
    generation = toy.generation("abc")
    simulator = RwrLearner(tiny.player(), SimulatorConfig(lr=lr, kl_cap=10.0, warmup=warmup))
    for learner, data in (
        (agent, [Group(task=toy.task(), traces=traces)]),
        (simulator, [SimulatorSample(generation=generation, weight=1.0)]),
    ):
        before = tiny.values(learner.policy)
        learner.update(data, seed=0)
        after = tiny.values(learner.policy)
        assert max((after[k] - before[k]).abs().max().item() for k in before) == pytest.approx(
            share * lr, rel=1e-2
        )


def test_a_solution_that_fails_when_it_is_played_is_the_domains_fault_and_not_the_windows(players, toy):
    """Both once ended in "does not fit into its context"."""
    wrong = replace(toy.task(3, 2, name="task-wrong"), oracle=("not the sum",))
    with pytest.raises(
        DomainError, match=r"'sums', task-wrong: its own solution does not pass when it is pl"
    ):
        players.warmup(seeds_of(1), [wrong, wrong], Silent())


@pytest.mark.parametrize("refused", [1, 3])
def test_a_solution_that_a_template_refuses_is_left_out_with_its_reason(
    players, toy, caplog, monkeypatch, refused
):
    encode, calls = players.agent.policy.encode_reply, []

    def encode_reply(text, tools=()):
        calls.append(text)
        if len(calls) <= refused:
            raise RolloutError("the chat template takes one call in a reply")
        return encode(text, tools)

    monkeypatch.setattr(players.agent.policy, "encode_reply", encode_reply)
    tasks = tasks_of(toy, 1, 2, 3, 4)
    said = "demonstrations for the warm-up of the agent cannot be given to its model: the chat template"
    if refused == 3:
        with pytest.raises(UsageError, match=said):
            players.warmup(seeds_of(1), tasks, Silent())
    else:
        players.warmup(seeds_of(1), tasks, Silent())
        assert f"1 of 3 {said}" in caplog.text
