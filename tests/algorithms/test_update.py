"""An update: how a lesson becomes steps, what is skipped and counted, and what a tiny model learns of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from genenv.agent.policy import AgentConfig
from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.update import Done, evenly, learn
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UpdateSkipped, UsageError
from genenv.progress import Silent, staged
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Group
from learners import AgentLearner, SimulatorLearner
from lessons import Recorder, imitated, make_groups, samples, weighted

UNITS = [[imitated((i,), (7,) * (i + 1), 0.5)] for i in range(5)]


def lesson(units: Sequence[Sequence[Datum]] = UNITS, **changes: Any) -> UpdateBatch:
    return UpdateBatch(**({"units": units, "objective": Objective()} | changes))


def taken(given: UpdateBatch, trainer: Recorder, seed: int = 0) -> Done:
    return asyncio.run(learn(trainer, given, player="agent", learning_rate=0.25, seed=seed))


def agent(sampler: Any, **config: Any) -> AgentLearner:
    return AgentLearner(sampler, AgentConfig(**({"lr": 1e-2, "kl_coefficient": 0.05} | config)))


def simulator(sampler: Any, **config: Any) -> SimulatorLearner:
    return SimulatorLearner(sampler, SimulatorConfig(**({"lr": 1e-3, "kl_coefficient": 0.05} | config)))


def logprob(sampler: Any, prompt: tuple[int, ...], ids: tuple[int, ...], flags: Sequence[bool] = ()) -> float:
    packed = Packed([Bundle(prompt_ids=prompt, completions=[ids])], torch.device("cpu"))
    with torch.no_grad(), sampler.weights.active():
        values = sampler.weights.logprobs(packed)
    return float(values[torch.tensor(flags or [True] * len(ids))].sum())


@pytest.mark.parametrize(
    ("items", "parts", "sizes"), [(7, 3, [2, 2, 3]), (3, 5, [1, 1, 1]), (4, 1, [4]), (0, 2, [])]
)
def test_a_sequence_is_cut_into_parts_of_sizes_that_differ_by_one_at_most(items, parts, sizes):
    cut = evenly(range(items), parts)
    assert [len(part) for part in cut] == sizes
    assert [item for part in cut for item in part] == list(range(items))


def test_every_unit_is_gone_through_once_an_epoch_and_the_seed_says_in_which_order():
    def order(seed: int) -> list[list[Datum]]:
        trainer = Recorder()
        assert taken(lesson(steps=2, epochs=3), trainer, seed).steps == 6
        return trainer.data

    first = order(0)
    assert [len(step) for step in first] == [2, 3] * 3
    for epoch in range(3):
        seen = [datum for step in first[2 * epoch : 2 * epoch + 2] for datum in step]
        assert sorted(seen, key=lambda d: d.prompt_ids) == [datum for unit in UNITS for datum in unit]
    assert order(0) == first != order(1)
    assert first[:2] != first[2:4]


def test_the_data_of_a_unit_stay_together():
    pairs = [[imitated((i,), (7,)), imitated((i,), (8,))] for i in range(6)]
    trainer = Recorder()
    taken(lesson(pairs, steps=3), trainer)
    assert all(step[i : i + 2] in pairs for step in trainer.data for i in range(0, 4, 2))


def test_weights_are_averaged_step_by_step_where_the_lesson_has_coefficients():
    plain, scaled = Recorder(), Recorder()
    taken(lesson(steps=2), plain)
    taken(lesson(steps=2, coefficients={"nll": 0.3}), scaled)
    assert all(weight == 0.5 for step in plain.data for datum in step for weight in datum.weights)
    for step in scaled.data:
        assert math.fsum(w for datum in step for w in datum.weights) == pytest.approx(0.3)


def test_a_lesson_without_a_cap_never_watches_how_far_the_weights_go():
    trainer = Recorder()
    done = taken(lesson(steps=2), trainer)
    assert trainer.calls == ["forward_backward", "step"] * 2
    assert trainer.rates == [0.25] * 2
    assert done.region is None
    assert not {"agent/kl_step", "agent/kl_retries"} & done.metrics().keys()


def test_a_lesson_with_a_cap_is_watched_from_its_start_and_measured_after_each_step():
    trainer = Recorder([2.0, 0.75, 0.5])
    done = taken(lesson(steps=2, cap=1.0, cap_retries=3), trainer)
    one, two = ["forward_backward", "step", "moved"], ["shorten", "moved"]
    assert trainer.calls == ["watch", *one, *two, *one]
    assert trainer.watched
    assert {datum.prompt_ids for datum in trainer.watched} == {(i,) for i in range(5)}
    assert done.metrics()["agent/kl_step"] == 0.5
    assert done.metrics()["agent/kl_retries"] == 1


@pytest.mark.parametrize("cap", [None, 1.0])
def test_nothing_to_learn_is_one_skipped_step(cap):
    trainer = Recorder()
    found = taken(lesson([], steps=3, epochs=2, cap=cap), trainer).metrics()
    assert trainer.calls == []
    assert (found["agent/steps"], found["agent/skipped_updates"], found["tokens/trained"]) == (0, 1, 0)
    assert "agent/kl_step" not in found


class Stumbling(Recorder):
    """Cannot make its second gradient, nor its third step."""

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        measured = await super().forward_backward(data, objective)
        if self.calls.count("forward_backward") == 2:
            raise UpdateSkipped("the loss is not finite")
        return measured

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        measured = await super().step(learning_rate)
        if self.calls.count("step") == 3:
            raise UpdateSkipped("the gradient is not finite")
        return measured


@pytest.mark.parametrize("cap", [None, 1.0])
def test_a_step_that_cannot_be_made_is_skipped_and_counted_and_the_others_go_on(caplog, cap):
    trainer = Stumbling()
    done = taken(lesson(steps=5, cap=cap), trainer)
    assert (done.steps, done.skipped) == (3, 2)
    made = [trainer.data[i] for i in (0, 2, 4)]
    assert done.metrics()["tokens/trained"] == sum(d.tokens for step in made for d in step)
    assert [record.getMessage() for record in caplog.records] == [
        "an update of the agent was skipped: the loss is not finite",
        "an update of the agent was skipped: the gradient is not finite",
    ]


def test_metrics_are_means_over_the_steps_that_measured_something():
    done = Done("agent", skipped=1)
    done.note({"loss": 1.0, "tokens": 4.0, "grad_norm": 2.0})
    done.note({"loss": 3.0, "tokens": 5.0, "grad_norm": 3.0, "kl": 0.5, "clip_rate": 0.25})
    assert done.metrics() == {
        "agent/loss": 2.0,
        "agent/grad_norm": 2.5,
        "agent/kl": 0.5,
        "agent/clip_rate": 0.25,
        "agent/steps": 2.0,
        "agent/skipped_updates": 1.0,
        "tokens/agent_trained": 9.0,
        "tokens/trained": 9.0,
    }


def test_the_update_makes_rewarded_attempts_more_likely(tiny, toy):
    player = agent(tiny.player(), kl_coefficient=0.0, clip_low=0.9, clip_high=9.0)
    groups = make_groups(toy)[1:]

    def gap() -> float:
        """Log-probability of the rewarded attempt minus that of the other."""
        two = [(t.token_ids[:2], t.token_ids[2:], t.sampled[2:]) for t in groups[0].traces[:2]]
        bad, good = (logprob(player.sampler, *one) for one in two)
        return good - bad

    before = gap()
    metrics = player.update(groups, seed=0)
    assert gap() > before
    assert metrics["agent/skipped_updates"] == 0
    assert metrics["agent/grad_norm"] > 0


def test_a_group_that_solved_nothing_learns_the_solution_and_says_that_its_attempts_agreed(tiny, toy):
    prompt, answer = (5, 6, 7), (8, 9, 1)
    sampler = tiny.player()
    group = Group(task=toy.task(), traces=(toy.trace(prompt, [(4, 1)]), toy.trace(prompt, [(30, 1)])))
    known = {"task-1": toy.trace(prompt, [answer], reward=1.0, success=True)}
    before = logprob(sampler, prompt, answer)
    metrics = agent(sampler).update([group], solutions=known)
    assert metrics["agent/steps"] == 1
    assert metrics["agent/zero_advantage_rate"] == 1.0
    assert logprob(sampler, prompt, answer) > before
    assert agent(sampler).update([group])["agent/steps"] == 0


def test_solutions_alone_are_learnt_too_and_one_attempt_compares_nothing(tiny, toy):
    sampler = tiny.player()
    known = {"task-1": toy.trace((5, 6, 7), [(8, 9, 1)], reward=1.0, success=True)}
    failed = Group(task=toy.task(), traces=(toy.trace((5, 6, 7), [(8, 9, 1)]),))
    for groups in ([], [failed]):
        found = agent(sampler).update(groups, solutions=known)
        assert found["agent/steps"] == 1
        assert (found["tokens/trained"], found["agent/zero_advantage_rate"]) == (3, 0)


def test_an_update_without_anything_to_learn_from_changes_nothing(tiny, toy):
    player = agent(tiny.player(), skip_zero_advantage=False)
    silent = Group(
        task=toy.task(), traces=tuple(replace(make_groups(toy)[0].traces[3], id=str(i)) for i in range(2))
    )
    before = player.state()
    assert player.update([])["tokens/trained"] == 0
    assert player.update([])["agent/skipped_updates"] == 1
    assert player.update([silent])["agent/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.state().items())


def test_without_samples_nothing_happens(tiny):
    player = simulator(tiny.player())
    before = player.state()
    for nothing in ([], samples(0.0, 0.0, 0.0)):
        metrics = player.update(nothing)
        assert metrics["tokens/trained"] == metrics["simulator/steps"] == 0
        assert metrics["simulator/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.state().items())


def test_steps_that_cannot_measure_the_kl_do_not_count_in_its_mean(tiny, toy):
    attempts = make_groups(toy)[:1]
    known = {"other": toy.trace((5, 6, 7), [(8, 9, 1)], success=True)}
    alone, beside, nothing = (
        agent(tiny.player(noise=0.3), kl_coefficient=0.0, lr=1e-12, updates_per_epoch=steps).update(
            groups, solutions=solutions
        )
        for steps, groups, solutions in ((1, attempts, {}), (2, attempts, known), (1, [], known))
    )
    assert beside["agent/steps"] == 2
    assert alone["agent/kl"] > 0
    assert beside["agent/kl"] == pytest.approx(alone["agent/kl"], rel=1e-4)
    assert "agent/kl" not in nothing
    assert "agent/clip_rate" not in nothing


class Counting(Silent):
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.tokens = self.items = 0

    def stage(self, name: str, *, items: int | None, unit: str) -> Any:
        import contextlib

        def told(tokens: int, items: int, note: str = "") -> None:
            self.tokens, self.items = self.tokens + tokens, self.items + items

        return contextlib.nullcontext(told)


def test_a_round_may_be_shared_out_among_several_updates(tiny, toy, monkeypatch):
    player = agent(tiny.player(noise=0.05), epochs=2, updates_per_epoch=2)
    steps: list[float] = []
    plain = player.optimizer.step
    monkeypatch.setattr(player.optimizer, "step", lambda lr, **how: steps.append(lr) or plain(lr, **how))
    told = Counting()
    with staged(told, "an update", items=None, unit=""):
        metrics = player.update(make_groups(toy))
    assert steps == [1e-2] * 4
    assert metrics["tokens/trained"] == 2 * (12 + 6)
    assert told.items == 2 * 5


def test_a_round_is_cut_into_as_many_steps_as_asked_for(tiny, toy):
    groups = [group for _ in range(4) for group in make_groups(toy)][:7]
    assert agent(tiny.player(), updates_per_epoch=6).update(groups)["agent/steps"] == 6
    assert agent(tiny.player(), updates_per_epoch=9).update(groups)["agent/steps"] == 7


def test_a_round_is_cut_into_steps_of_the_batch_size_and_progress_is_told(tiny):
    player, told = simulator(tiny.player(), batch=2, kl_cap=10.0), Counting()
    with staged(told, "an update", items=None, unit=""):
        metrics = player.update(samples(0.5, 0.25, 0.25))
    assert told.items == 3
    assert metrics["tokens/trained"] == 12
    assert player.state()[f"{player.optimizer.names[0]}.step"].item() == 2


def test_the_update_makes_the_heavier_generation_more_likely(tiny):
    sampler = tiny.player()
    heavy = weighted(0.9, 0.1, 0.0)[0]
    before = logprob(sampler, heavy.prompt_ids, heavy.completion_ids)
    metrics = simulator(sampler, lr=3e-3, kl_cap=10.0, epochs=2).update(samples(0.9, 0.1, 0.0))
    assert logprob(sampler, heavy.prompt_ids, heavy.completion_ids) > before
    assert metrics["tokens/trained"] == 2 * 6  # a weight of zero is left out
    assert metrics["simulator/skipped_updates"] == metrics["simulator/kl_retries"] == 0


@pytest.mark.parametrize("coefficient", [0.0, 0.05])
def test_metrics_are_means_over_tokens_whatever_the_loss_is_divided_by(
    tiny: Any, toy: Any, coefficient: float
) -> None:
    found: dict[str, dict[str, float]] = {}
    for average in ("token", "constant"):
        own = agent(
            tiny.player(noise=0.3),
            loss_average=average,
            kl_coefficient=coefficient,
            entropy_coefficient=0.01,
            lr=1e-12,
            clip_low=1e-3,
        )
        found[average] = own.update(make_groups(toy))
    for measure in ("agent/kl", "agent/entropy", "agent/clip_rate"):
        assert found["constant"][measure] == pytest.approx(found["token"][measure], rel=1e-3, abs=1e-6)
    assert found["token"]["agent/entropy"] > 1


class Judge(Recorder):
    """A trainer with a value function."""

    async def advantages(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        return [(1.0,) * len(datum.completion_ids) for datum in data]


def test_a_step_of_some_of_a_rollouts_tokens_counts_so_much_of_the_rollout():
    """Dr. GRPO: all steps together are divided by 100 tokens for each of the two rollouts."""
    units = [[imitated((i,), (7,) * 8, loss="ppo", old_logprobs=(-1.0,) * 8)] for i in range(2)]
    trainer = Judge()
    taken(lesson(units, steps=4, coefficients={"ppo": 1.0}, loss_tokens=100.0), trainer)
    sums = [math.fsum(w for datum in step for w in datum.weights) for step in trainer.data]
    assert sums == pytest.approx([16 / 200] * 4)
    with pytest.raises(UsageError, match="left out advantages, which only the value function"):
        taken(lesson(units), Recorder())
