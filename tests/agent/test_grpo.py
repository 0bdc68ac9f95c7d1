"""The agent's update: advantages by hand, what carries loss, and updates that must not happen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genenv.agent.grpo import Clip, GrpoLearner, TokenBatch, group_advantages, grpo_loss, k3
from genenv.agent.settings import AgentConfig
from genenv.runs.folder import metrics_line
from genenv.types import Group, StopReason

rewards = st.lists(st.floats(0, 1), min_size=2, max_size=10)


@pytest.fixture(scope="module")
def policy(tiny):
    """Shared by tests that leave its parameters as they are."""
    return tiny.player(noise=0.05)


def make_groups(toy) -> list[Group]:
    first = (
        toy.trace((5, 6, 7), [(8, 9, 1), (30, 31), (4, 1)], reward=1.0),
        toy.trace((5, 6, 7), [(8, 2)], reward=0.0),
        toy.trace((5, 6, 7), [(9, 9, 9, 9, 9)], reward=0.25, stop_reason=StopReason.LENGTH),
        toy.trace((5, 6, 7), [], reward=0.0, stop_reason=StopReason.CONTEXT),
    )
    second = (
        toy.trace((11, 12), [(13, 1)], reward=0.0),
        toy.trace((11, 12), [(14, 15, 1), (40,), (3,)], reward=1.0),
        toy.trace((11, 12), [(99, 98)], reward=1.0, stop_reason=StopReason.TIMEOUT),
    )
    return [Group(task=toy.task(), traces=first), Group(task=toy.task(), traces=second)]


def learner(policy, **config) -> GrpoLearner:
    return GrpoLearner(policy, AgentConfig(**({"lr": 1e-2, "kl_coefficient": 0.05} | config)))


def gradients(learner: GrpoLearner, groups: list[Group], monkeypatch) -> tuple[dict[str, torch.Tensor], dict]:
    """What the update accumulates, before it is clipped or applied."""
    caught: dict[str, torch.Tensor] = {}

    def catch() -> float:
        named = zip(learner.optimizer.names, learner.optimizer.parameters, strict=True)
        caught.update({name: p.grad.clone() for name, p in named if p.grad is not None})
        return 0.0

    monkeypatch.setattr(learner.optimizer, "clip", catch)
    monkeypatch.setattr(learner.optimizer, "step", lambda lr: None)
    return caught, dict(learner.update(groups, seed=0))


def test_advantages_are_rewards_minus_their_mean_over_the_sample_deviation():
    # mean 0.5; deviation sqrt((0.25 + 0.25 + 0.25 + 0.25) / 3) = 0.57735
    assert group_advantages([1, 0, 0, 1], normalise=False) == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([1, 0, 0, 1], normalise=True) == pytest.approx(
        [0.86588, -0.86588, -0.86588, 0.86588], 1e-5
    )
    # mean 0.25; deviation sqrt((0.5625 + 3 * 0.0625) / 3) = 0.5
    assert group_advantages([1, 0, 0, 0], normalise=True) == pytest.approx(
        [1.4997, -0.4999, -0.4999, -0.4999], 1e-4
    )


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("row", [[0.3, 0.3, 0.3], [1.0], [0.1 + 0.2, 0.3]])
def test_a_group_that_agrees_has_no_advantage(row, normalise):
    assert group_advantages(row, normalise=normalise) == [0.0] * len(row)


@given(row=rewards, shift=st.floats(-3, 3), normalise=st.booleans())
def test_advantages_sum_to_zero_and_do_not_depend_on_the_level_of_rewards(row, shift, normalise):
    advantages = group_advantages(row, normalise=normalise)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
    if max(row) - min(row) > 1e-6:
        moved = group_advantages([reward + shift for reward in row], normalise=normalise)
        assert moved == pytest.approx(advantages, abs=1e-6)


def test_the_loss_of_three_tokens_by_hand():
    batch = TokenBatch(
        old_M=torch.tensor([-1.0, -1.0, -1.0]),
        reference_M=torch.tensor([-1.0, -2.0, -1.0]),
        advantage_M=torch.tensor([1.0, -2.0, 1.0]),
        weight_M=torch.tensor([0.5, 0.25, 0.25]),
    )
    own = torch.tensor([-1.0, -1.0 + math.log(0.5), -1.0 + math.log(2.0)])
    loss, sums = grpo_loss(own, batch, Clip(low=0.2, high=0.28, kl=0.1))
    # ratios 1, 0.5, 2: surrogates 1 (free), -2 * 0.8 (clipped from below), 1.28 (clipped from above)
    distance = [
        0.0,
        math.exp(-1 + math.log(2)) - (-1 + math.log(2)) - 1,
        math.exp(-math.log(2)) + math.log(2) - 1,
    ]
    kl = 0.25 * (distance[1] + distance[2])
    assert loss.item() == pytest.approx(-(0.5 * 1 + 0.25 * -1.6 + 0.25 * 1.28) + 0.1 * kl, abs=1e-6)
    assert sums["clip_rate"].item() == pytest.approx(0.5)
    assert sums["kl"].item() == pytest.approx(kl, abs=1e-6)


@given(own=st.floats(-8, 0), reference=st.floats(-8, 0))
def test_the_kl_estimate_is_never_negative_and_zero_where_both_agree(own, reference):
    value = k3(torch.tensor(own, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)).item()
    assert value >= -1e-12
    assert k3(torch.tensor(own), torch.tensor(own)).item() == 0.0


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (math.log(2), 1 - math.log(2)),  # 2 - 0.693 - 1
        (2.6, math.exp(2.6) - 3.6),  # 9.864: below the bound
        (2.7, 10.0),  # 11.180 without the bound
        (12.0, 10.0),  # 162,742
        (1e4, 10.0),  # infinite
        (-10.0, math.exp(-10) + 9),
        (-1e4, 10.0),
    ],
)
def test_one_token_adds_at_most_ten_nats_to_the_kl(d, expected):
    own = torch.tensor([-20.0], requires_grad=True)
    value = k3(own, own.detach() + d)
    assert value.item() == pytest.approx(expected, rel=1e-5)
    value.sum().backward()
    assert own.grad is not None
    assert own.grad.item() == (0.0 if expected == 10.0 else pytest.approx(1 - math.exp(d), rel=1e-5))


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_a_token_that_became_much_likelier_than_when_it_was_sampled_leaves_the_loss_finite(advantage):
    own = torch.tensor([-0.5], requires_grad=True)
    batch = TokenBatch(
        old_M=torch.tensor([-150.0]),
        reference_M=None,
        advantage_M=torch.tensor([advantage]),
        weight_M=torch.tensor([1.0]),
    )
    loss, sums = grpo_loss(own, batch, Clip(low=0.2, high=0.2, kl=0.0))
    loss.backward()
    assert loss.item() == pytest.approx({-1.0: math.exp(20), 0.0: 0.0, 1.0: -1.2}[advantage])
    assert math.isfinite(own.grad.item())
    assert sums["clip_rate"].item() == (advantage > 0)


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_the_micro_batch_size_does_not_change_the_gradient(tiny, toy, monkeypatch, average):
    found = []
    for budget in (16, 4096):
        player = learner(tiny.player(noise=0.05, tokens_per_microbatch=budget), loss_average=average)
        found.append(gradients(player, make_groups(toy), monkeypatch)[0])
    assert found[0].keys() == found[1].keys() != set()
    small, large = (torch.cat([grad.flatten() for grad in grads.values()]).double() for grads in found)
    # Float32 sums in another order: 0.4e-6 to 1.7e-6 apart over fourteen sets of weights, in either code.
    assert (small - large).norm() < 3e-6 * large.norm()


def test_what_the_environment_said_carries_no_loss(policy, toy, monkeypatch):
    groups = make_groups(toy)
    spoken = groups[0].traces[0]
    at = [i for i, flag in enumerate(spoken.sampled) if i >= spoken.prompt_tokens and not flag]
    assert at == [6, 7]
    wild = replace(
        spoken, logprobs=tuple(-50.0 if i in at else value for i, value in enumerate(spoken.logprobs))
    )
    changed = [replace(groups[0], traces=(wild, *groups[0].traces[1:])), groups[1]]
    plain, other = (gradients(learner(policy), data, monkeypatch) for data in (groups, changed))
    assert plain[1]["tokens/trained"] == 5 + 2 + 5 + 0 + 2 + 4
    assert all(torch.equal(plain[0][name], other[0][name]) for name in plain[0])


def test_failed_attempts_do_not_count(policy, toy, monkeypatch):
    groups = make_groups(toy)
    without = [groups[0], replace(groups[1], traces=groups[1].traces[:2])]
    first, second = (gradients(learner(policy), data, monkeypatch) for data in (groups, without))
    assert first[1] == second[1]
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])


def test_groups_that_agree_are_skipped_and_counted(policy, toy, monkeypatch):
    groups = make_groups(toy)
    agreed = Group(task=toy.task(), traces=tuple(replace(t, reward=1.0) for t in groups[0].traces))
    lone = Group(task=toy.task(), traces=(groups[0].traces[0],))
    first = gradients(learner(policy), groups, monkeypatch)
    second = gradients(learner(policy), [*groups, agreed, agreed, lone], monkeypatch)
    assert second[1]["agent/zero_advantage_rate"] == 0.5
    assert first[1]["tokens/trained"] == second[1]["tokens/trained"]
    assert all(torch.allclose(first[0][name], second[0][name], atol=1e-8) for name in first[0])


def test_groups_that_agree_may_be_kept_for_the_kl_term(tiny, toy, monkeypatch):
    agreed = [replace(g, traces=tuple(replace(t, reward=1.0) for t in g.traces)) for g in make_groups(toy)]
    for kl, moves in ((0.05, True), (0.0, False)):
        player = learner(tiny.player(noise=0.05), skip_zero_advantage=False, kl_coefficient=kl)
        found, metrics = gradients(player, agreed, monkeypatch)
        assert any(value.abs().max() > 0 for value in found.values()) is moves
        assert metrics["agent/zero_advantage_rate"] == 1.0


def test_the_update_makes_rewarded_attempts_more_likely(tiny, toy):
    player = learner(tiny.player(), kl_coefficient=0.0, clip_low=0.9, clip_high=9.0)
    groups = make_groups(toy)[1:]
    before = _gap(player, groups[0])
    metrics = player.update(groups, seed=0)
    assert _gap(player, groups[0]) > before
    assert metrics["agent/skipped_updates"] == 0
    assert metrics["agent/grad_norm"] > 0


def _gap(player: GrpoLearner, group: Group) -> float:
    """Log-probability of the rewarded attempt minus that of the other."""
    from genenv.backends.local.packing import Bundle, Packed

    bad, good = (t.token_ids[2:] for t in group.traces[:2])
    packed = Packed(
        [Bundle(prompt_ids=group.traces[0].token_ids[:2], completions=[good, bad])], torch.device("cpu")
    )
    with torch.no_grad(), player.policy.active():
        values = player.policy.logprobs(packed)
    flags = torch.tensor(group.traces[1].sampled[2:])
    return float(values[: len(good)][flags].sum() - values[len(good) :].sum())


@pytest.mark.parametrize("place", ["trace", "advantage", "gradient"])
def test_an_update_with_a_value_that_is_not_finite_is_skipped_and_counted(tiny, toy, place):
    policy = tiny.player(noise=0.05)
    player = learner(policy)
    groups = make_groups(toy)
    player.update(groups, seed=0)  # moments are not empty any more
    trace = groups[0].traces[1]
    if place == "trace":
        trace = replace(trace, logprobs=(0.0, 0.0, 0.0, float("nan"), -1.0))
    elif place == "advantage":
        trace = replace(trace, reward=float("nan"))
    else:
        policy.parameters()[0][1].register_hook(lambda grad: grad * float("inf"))
    broken = [replace(groups[0], traces=(groups[0].traces[0], trace)), groups[1]]
    before = player.optimizer.snapshot()
    metrics = player.update(broken, seed=0)
    assert metrics["agent/skipped_updates"] == 1
    after = player.optimizer.snapshot()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(p.grad is None for p in player.optimizer.parameters)


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_a_policy_far_from_its_reference_has_a_kl_of_at_most_ten_and_still_learns(tiny, toy, kl):
    policy = tiny.player(noise=0.3)
    with torch.no_grad():  # far enough from the reference for exp(d) to overflow
        policy.model.causal.get_output_embeddings().weight *= 1000
    measured = dict(learner(policy, kl_coefficient=kl).update(make_groups(toy), seed=0))
    assert (measured["agent/steps"], measured["agent/skipped_updates"]) == (1, 0)
    assert 1 < measured["agent/kl"] <= 10
    assert metrics_line(1, measured)


def test_a_reference_that_is_not_finite_skips_the_update_instead_of_ending_the_run(tiny, toy, caplog):
    policy = tiny.player(noise=0.05)
    policy.anchor()
    own = {id(parameter) for _, parameter in policy.parameters()}
    with torch.no_grad():
        for name, parameter in policy.model.causal.named_parameters():
            if "agent_initial" in name and id(parameter) not in own:
                parameter.fill_(float("nan"))
    measured = dict(learner(policy, kl_coefficient=0.0).update(make_groups(toy), seed=0))
    assert measured["agent/skipped_updates"] == 1
    assert "the KL to the initial agent is not finite" in caplog.text
    assert metrics_line(1, measured)


def test_weights_that_are_not_finite_do_not_end_the_run(tiny, toy):
    policy = tiny.player(noise=0.05)
    with torch.no_grad():
        policy.parameters()[0][1][0, 0] = float("nan")
    metrics = learner(policy).update(make_groups(toy), seed=0)
    assert metrics["agent/skipped_updates"] == 1
    assert metrics["tokens/trained"] == 0


def test_an_update_without_anything_to_learn_from_changes_nothing(tiny, toy):
    player = learner(tiny.player(), skip_zero_advantage=False)
    silent = [
        Group(
            task=toy.task(), traces=tuple(replace(make_groups(toy)[0].traces[3], id=str(i)) for i in range(2))
        )
    ]
    before = player.optimizer.snapshot()
    assert player.update([], seed=0)["tokens/trained"] == 0
    assert player.update([], seed=0)["agent/skipped_updates"] == 1
    assert player.update(silent, seed=0)["agent/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.optimizer.snapshot().items())


def test_steps_that_cannot_measure_the_kl_do_not_count_in_its_mean(tiny, toy):
    attempts = make_groups(toy)[:1]
    known = Group(task=toy.task(), traces=(), guide=toy.trace((5, 6, 7), [(8, 9, 1)], success=True))
    alone, beside, nothing = (
        learner(tiny.player(noise=0.3), kl_coefficient=0.0, lr=1e-12, updates_per_epoch=steps).update(
            groups, seed=0
        )
        for steps, groups in ((1, attempts), (2, [*attempts, known]), (1, [known]))
    )
    assert beside["agent/steps"] == 2
    assert alone["agent/kl"] > 0
    assert beside["agent/kl"] == pytest.approx(alone["agent/kl"], rel=1e-4)
    assert "agent/kl" not in nothing


def test_a_round_may_be_shared_out_among_several_updates(tiny, toy, monkeypatch):
    player = learner(tiny.player(noise=0.05), epochs=2, updates_per_epoch=2)
    steps: list[float] = []
    plain = player.optimizer.step
    monkeypatch.setattr(player.optimizer, "step", lambda lr: steps.append(lr) or plain(lr))
    told: list[tuple[int, int]] = []
    player.progress = lambda tokens, items: told.append((tokens, items))
    metrics = player.update(make_groups(toy), seed=0)
    assert steps == [1e-2] * 4
    assert metrics["tokens/trained"] == 2 * (12 + 6)
    assert sum(items for _, items in told) == 2 * 5


def test_a_round_is_cut_into_as_many_steps_as_asked_for(tiny, toy):
    groups = [group for _ in range(4) for group in make_groups(toy)][:7]
    assert learner(tiny.player(), updates_per_epoch=6).update(groups, seed=0)["agent/steps"] == 6
    assert learner(tiny.player(), updates_per_epoch=9).update(groups, seed=0)["agent/steps"] == 7
