"""The trainer of a local player: gradients, KL terms, checkpoints, and steps that must not happen."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from genenv.agent.policy import AgentConfig
from genenv.algorithms.datum import Datum, Objective, averaged
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.optimizer import STATE
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.token_logprobs import kl_full
from genenv.backends.local.trainer import LocalTrainer
from genenv.errors import DataError, UpdateSkipped
from genenv.runs.folder import metrics_line
from genenv.sampling import SampleRequest
from genenv.simulator.settings import SimulatorConfig
from learners import AgentLearner, SimulatorLearner, gradients_of
from lessons import SEQUENCES, imitated, make_groups, samples, weighted

DATA = weighted(1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def sampler(tiny):
    """Shared by tests that leave its parameters as they are."""
    return tiny.player(noise=0.05)


def mean(data: list[Datum]) -> list[Datum]:
    """Weights as in a weighted mean over tokens."""
    return averaged(data, {"nll": 1.0})


def gradients(sampler: Any, data: list[Datum], kl: float = 0.0) -> tuple[dict, dict[str, torch.Tensor]]:
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    sums = asyncio.run(trainer.forward_backward(data, Objective(kl_coefficient=kl, kl="exact")))
    grads = gradients_of(trainer.optimizer)
    trainer.optimizer.clear()
    return dict(sums), grads


def flat(grads: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.flatten() for grad in grads.values()]).double()


def agent(sampler: Any, **config: Any) -> AgentLearner:
    return AgentLearner(sampler, AgentConfig(**({"lr": 1e-2, "kl_coefficient": 0.05} | config)))


def simulator(sampler: Any, **config: Any) -> SimulatorLearner:
    return SimulatorLearner(sampler, SimulatorConfig(**({"lr": 1e-3, "kl_coefficient": 0.05} | config)))


def test_gradients_of_several_calls_add_up_until_the_step(sampler):
    trainer, parts = LocalTrainer(sampler.weights, OptimizerConfig()), (DATA[:1], DATA[1:])
    expected = sum(flat(gradients(sampler, part)[1]) for part in parts)
    for part in parts:
        asyncio.run(trainer.forward_backward(part, Objective()))
    torch.testing.assert_close(flat(gradients_of(trainer.optimizer)), expected)
    bad = [replace(DATA[0], weights=(math.inf,) * len(DATA[0].weights))]
    with pytest.raises(UpdateSkipped):
        asyncio.run(trainer.forward_backward(bad, Objective()))
    assert all(parameter.grad is None for parameter in trainer.optimizer.parameters)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("budget", [8, 4096])
def test_with_equal_weights_the_loss_and_its_gradient_are_the_supervised_ones_of_transformers(
    tiny, kind, budget
):
    plain = tiny.plain(kind)
    width = max(len(prompt) + len(ids) for prompt, ids in SEQUENCES)
    short = [width - len(prompt) - len(ids) for prompt, ids in SEQUENCES]
    output = plain(
        input_ids=torch.tensor([[*p, *ids, *[0] * n] for (p, ids), n in zip(SEQUENCES, short, strict=True)]),
        attention_mask=torch.tensor([[1] * (width - n) + [0] * n for n in short]),
        labels=torch.tensor(
            [[*[-100] * len(p), *ids, *[-100] * n] for (p, ids), n in zip(SEQUENCES, short, strict=True)]
        ),
    )
    output.loss.backward()
    player = tiny.player(kind, adapter=None, tokens_per_microbatch=budget)
    sums, grads = gradients(player, mean(weighted(0.2, 0.2, 0.2)))
    assert sums["loss"] == pytest.approx(output.loss.item(), abs=1e-5)
    assert sums["tokens"] == 12
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, atol=1e-5, rtol=1e-5, msg=name)


def test_weights_act_linearly(sampler):
    alone = [gradients(sampler, mean([d]))[1] for d in DATA]  # each a mean over its own tokens
    together = gradients(sampler, mean(weighted(0.6, 0.3, 0.1)))[1]
    parts = [0.6 * 4, 0.3 * 2, 0.1 * 6]
    for name, found in together.items():
        expected = sum(part * grad[name] for part, grad in zip(parts, alone, strict=True)) / sum(parts)
        # Sums of float32 in another order: with compiled code one value of 128 is 1.8e-6 off.
        torch.testing.assert_close(found, expected, atol=4e-6, rtol=1e-5, msg=name)


def test_the_steps_of_an_update_share_its_weights(tiny):
    player, data = tiny.player(decoder="transformers"), mean(weighted(0.6, 0.3, 0.1))
    whole = flat(gradients(player, data)[1])
    parts = sum(flat(gradients(player, [d])[1]) for d in data)
    assert (whole - parts).norm() < 3e-6 * whole.norm()


def test_tokens_that_the_player_did_not_write_carry_no_loss(sampler):
    whole = imitated((5, 6), (8, 9, 10), weights=(0.5, 0.5, 0.0))
    cut = imitated((5, 6), (8, 9), 0.5)
    (first, grads), (second, others) = (gradients(sampler, [d], kl=0.1) for d in (whole, cut))
    assert first == pytest.approx(second, abs=1e-5)
    assert grads.keys() == others.keys() != set()
    apart = flat(grads) - flat(others)
    assert apart.norm() < 3e-6 * flat(grads).norm()


def test_what_the_environment_said_carries_no_loss(sampler, toy):
    groups = make_groups(toy)
    spoken = groups[0].traces[0]
    at = [i for i, flag in enumerate(spoken.sampled) if i >= spoken.prompt_tokens and not flag]
    assert at == [6, 7]
    wild = replace(
        spoken, logprobs=tuple(-50.0 if i in at else value for i, value in enumerate(spoken.logprobs))
    )
    changed = [replace(groups[0], traces=(wild, *groups[0].traces[1:])), groups[1]]
    player = agent(sampler)
    plain, other = (player.gradients(player.lesson(data)) for data in (groups, changed))
    assert plain[1]["tokens/trained"] == 5 + 2 + 5 + 0 + 2 + 4
    assert plain[0]
    assert all(torch.equal(plain[0][name], other[0][name]) for name in plain[0])


def test_groups_that_agree_feel_the_kl_term_where_they_are_kept(tiny, toy):
    agreed = [replace(g, traces=tuple(replace(t, reward=1.0) for t in g.traces)) for g in make_groups(toy)]
    for kl, moves in ((0.05, True), (0.0, False)):
        player = agent(tiny.player(noise=0.05), skip_zero_advantage=False, kl_coefficient=kl)
        found, _ = player.gradients(player.lesson(agreed))
        assert any(value.abs().max() > 0 for value in found.values()) is moves
        assert player.update(agreed)["agent/zero_advantage_rate"] == 1.0


def test_micro_batches_do_not_change_loss_kl_and_gradient(tiny):
    data = mean(weighted(0.6, 0.3, 0.1))
    found = [
        gradients(tiny.player(noise=0.05, tokens_per_microbatch=budget), data, kl=0.5) for budget in (6, 4096)
    ]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    small, large = (flat(grads) for _, grads in found)
    assert (small - large).norm() < 1e-6 * large.norm()


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_the_micro_batch_size_does_not_change_the_gradient_of_attempts(tiny, toy, average):
    found = []
    for budget in (16, 4096):
        player = agent(tiny.player(noise=0.05, tokens_per_microbatch=budget), loss_average=average)
        found.append(player.gradients(player.lesson(make_groups(toy)))[0])
    assert found[0].keys() == found[1].keys() != set()
    small, large = map(flat, found)
    # Float32 sums in another order: 0.4e-6 to 1.7e-6 apart over fourteen sets of weights, in either code.
    assert (small - large).norm() < 3e-6 * large.norm()


def test_known_solutions_are_scored_at_temperature_1_beside_attempts_at_theirs(tiny):
    player = tiny.player(noise=0.3)
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    attempt = imitated((5, 6, 7), (8, 9, 1), loss="ppo", temperature=0.5)
    known = imitated((5, 6, 7), (4, 30, 1))
    packed = Packed([Bundle(prompt_ids=(5, 6, 7), completions=[(8, 9, 1), (4, 30, 1)])], torch.device("cpu"))
    with torch.no_grad(), player.weights.active():
        cold, plain = player.weights.logprobs(packed, temperature=0.5), player.weights.logprobs(packed)
        hidden = player.weights.completion_hidden(packed)
        found, alone = (
            trainer._scores(*hidden, trainer._rows(data)).logprobs_M
            for data in ([attempt, known], [replace(known, completion_ids=(8, 9, 1)), known])
        )
    assert torch.allclose(found, torch.cat([cold[:3], plain[3:]]))
    assert not torch.allclose(cold, plain)
    assert torch.allclose(alone, plain)


def test_the_kl_of_two_distributions_by_hand():
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    reference = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    expected = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    torch.testing.assert_close(kl_full(scores, reference), torch.tensor([expected, 0.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_the_kl_term_is_zero_at_the_start_and_pulls_back_after_a_step(tiny, adapter):
    player, data = tiny.player(adapter=adapter), mean(DATA)
    assert gradients(player, data, kl=0.5)[0]["kl"] == pytest.approx(0.0, abs=1e-7)
    without = gradients(player, data)[1]
    started = gradients(player, data, kl=0.5)[1]
    assert all(torch.allclose(without[name], started[name], atol=1e-5) for name in without)
    stepped = simulator(player, lr=3e-3, kl_cap=10.0).update(samples(0.5, 0.25, 0.25))
    assert stepped["simulator/kl_step"] > 0
    assert gradients(player, data, kl=0.5)[0]["kl"] > 1e-4
    moved = gradients(player, data)[1]
    pulled = gradients(player, data, kl=0.5)[1]
    assert any(not torch.allclose(moved[name], pulled[name], atol=1e-5) for name in moved)


def test_imitating_all_that_a_policy_may_write_as_often_as_it_does_changes_nothing(tiny):
    player, prompt = tiny.player(), (5, 6, 7)
    with torch.no_grad():
        every = range(player.model.vocabulary)
        packed = Packed([Bundle(prompt_ids=prompt, completions=[[y] for y in every])], torch.device("cpu"))
        chances = player.weights.logprobs(packed, temperature=0.5).exp().tolist()

    def norm(temperature: float) -> float:
        written = [imitated(prompt, (y,), p, temperature=temperature) for y, p in enumerate(chances)]
        return float(flat(gradients(player, mean(written))[1]).norm())

    assert norm(0.5) < 1e-4 * norm(1.0)


def test_an_update_imitates_at_the_temperature_of_the_sampling(tiny):
    losses = [
        simulator(tiny.player(), temperature=t, kl_coefficient=0.0).update(samples(1, 1, 1))["simulator/loss"]
        for t in (1.0, 0.5)
    ]
    plain = gradients(tiny.player(), mean([replace(d, temperature=0.5) for d in DATA]))[0]["loss"]
    assert losses[1] == pytest.approx(plain)
    assert losses[1] != pytest.approx(losses[0])


@pytest.mark.parametrize("place", ["trace", "advantage", "gradient"])
def test_an_update_with_a_value_that_is_not_finite_is_skipped_and_counted(tiny, toy, place):
    player = agent(tiny.player(noise=0.05))
    groups = make_groups(toy)
    player.update(groups)  # moments are not empty any more
    trace = groups[0].traces[1]
    if place == "trace":
        trace = replace(trace, logprobs=(0.0, 0.0, 0.0, float("nan"), -1.0))
    elif place == "advantage":
        trace = replace(trace, reward=float("nan"))
    else:
        player.sampler.weights.parameters()[0][1].register_hook(lambda grad: grad * float("inf"))
    broken = [replace(groups[0], traces=(groups[0].traces[0], trace)), groups[1]]
    before = player.state()
    metrics = player.update(broken)
    assert metrics["agent/skipped_updates"] == 1
    after = player.state()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(p.grad is None for p in player.optimizer.parameters)


def test_a_loss_or_gradient_that_is_not_finite_is_skipped_and_counted(tiny):
    player = simulator(tiny.player())
    parameters = player.sampler.weights.parameters()
    parameters[0][1].register_hook(lambda grad: grad * float("nan"))
    before = player.state()
    assert player.update(samples(0.5, 0.25, 0.25))["simulator/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.state().items())
    with torch.no_grad():
        parameters[1][1].fill_(float("inf"))
    with pytest.raises(UpdateSkipped, match="loss is not finite"):
        asyncio.run(player.trainer.forward_backward(mean(DATA), Objective()))
    assert all(p.grad is None for p in player.optimizer.parameters)


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_a_policy_far_from_its_reference_has_a_kl_of_at_most_ten_and_still_learns(tiny, toy, kl):
    player = tiny.player(noise=0.3)
    with torch.no_grad():  # far enough from the reference for exp(d) to overflow
        player.model.causal.get_output_embeddings().weight *= 1000
    measured = agent(player, kl_coefficient=kl).update(make_groups(toy))
    assert (measured["agent/steps"], measured["agent/skipped_updates"]) == (1, 0)
    assert 1 < measured["agent/kl"] <= 10
    assert metrics_line(1, measured)


def test_a_reference_that_is_not_finite_skips_the_update_instead_of_ending_the_run(tiny, toy, caplog):
    player = tiny.player(noise=0.05)
    player.weights.anchor()
    own = {id(parameter) for _, parameter in player.weights.parameters()}
    with torch.no_grad():
        for name, parameter in player.model.causal.named_parameters():
            if "agent_initial" in name and id(parameter) not in own:
                parameter.fill_(float("nan"))
    measured = agent(player, kl_coefficient=0.0).update(make_groups(toy))
    assert measured["agent/skipped_updates"] == 1
    assert "the KL to the reference is not finite" in caplog.text
    assert metrics_line(1, measured)


def test_weights_that_are_not_finite_do_not_end_the_run(tiny, toy):
    player = tiny.player(noise=0.05)
    with torch.no_grad():
        player.weights.parameters()[0][1][0, 0] = float("nan")
    metrics = agent(player).update(make_groups(toy))
    assert metrics["agent/skipped_updates"] == 1
    assert metrics["tokens/trained"] == 0


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_two_updates_equal_one_update_a_save_a_load_and_another(tiny, tmp_path, adapter):
    rows = (samples(0.5, 0.25, 0.25), samples(0.1, 0.2, 0.7))
    straight = simulator(tiny.player(adapter=adapter))
    first = [straight.update(row, seed=i) for i, row in enumerate(rows)]
    broken_off = simulator(tiny.player(adapter=adapter))
    second = [broken_off.update(rows[0], seed=0)]
    broken_off.save(tmp_path)
    resumed = simulator(tiny.player(adapter=adapter))
    resumed.load(tmp_path)
    second.append(resumed.update(rows[1], seed=1))
    assert first == second
    expected = straight.state()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.state().items())


def test_publishing_counts_versions_which_completions_carry_and_checkpoints_keep(tiny, tmp_path):
    player = simulator(tiny.player())
    request = SampleRequest(prompt_ids=(5, 6, 7), max_tokens=2)

    def sampled(one: SimulatorLearner) -> int:
        return asyncio.run(one.sampler.sample(request)).version

    assert sampled(player) == 0
    player.update(samples(0.5, 0.25, 0.25))
    assert sampled(player) == player.sampler.weights.version == 1
    player.update([])  # an update that had nothing to learn from is published too
    assert asyncio.run(player.trainer.publish()) == 3
    player.save(tmp_path)
    resumed = simulator(tiny.player())
    resumed.load(tmp_path)
    assert sampled(resumed) == 3
    assert asyncio.run(resumed.trainer.publish()) == 4


def test_a_checkpoint_of_before_versions_has_none_and_a_damaged_one_is_refused(tiny, tmp_path):
    player = simulator(tiny.player())
    asyncio.run(player.trainer.publish())
    player.save(tmp_path)
    for damaged in ("{", "{}", '{"version": null}', '"1"'):
        (tmp_path / STATE).write_text(damaged)
        with pytest.raises(DataError, match=rf"{STATE} cannot be read"):
            player.load(tmp_path)
    (tmp_path / STATE).unlink()
    player.load(tmp_path)
    assert player.sampler.weights.version == 0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT's own use of transformers
@pytest.mark.parametrize("adapter", ["agent", None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_log_probabilities_of_data_are_those_of_the_model_now_and_of_its_reference(
    tiny, tmp_path, adapter, temperature
):
    import peft

    player = tiny.player(adapter=adapter, noise=0.1)
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    data = [replace(d, temperature=temperature) for d in weighted(1.0, 0.5, 0.0)]  # the last counts nothing

    def directly(model: Any) -> list[list[float]]:
        """In transformers."""
        values = []
        for prompt, ids in SEQUENCES:
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            chances = (scores / temperature).log_softmax(-1)
            values.append([row[token].item() for row, token in zip(chances, ids, strict=True)])
        return values

    player.weights.save(tmp_path)
    own = tiny.plain()
    if adapter:
        own = peft.PeftModel.from_pretrained(own, tmp_path)
    else:
        own.load_state_dict(player.model.causal.state_dict())
    now, reference = (asyncio.run(trainer.logprobs(data, reference=flag)) for flag in (False, True))
    for found, expected in ((now, directly(own)), (reference, directly(tiny.plain()))):
        for row, values in zip(found, expected, strict=True):
            assert row == pytest.approx(values, abs=1e-5)
    assert sum(reference, ()) != pytest.approx(sum(now, ()), abs=1e-3)


@pytest.mark.parametrize("adapter", ["agent", None])
def test_data_can_be_scored_under_weights_that_were_saved_before(tiny, tmp_path, adapter):
    player = simulator(tiny.player(adapter=adapter, noise=0.1))
    data, scores = weighted(1.0, 0.5, 0.0), list[Any]()
    for version in range(2):
        player.save(tmp_path / str(version))
        scores.append(asyncio.run(player.trainer.logprobs(data)))
        player.update(samples(0.5, 0.25, 0.25), seed=version)
    scores.append(asyncio.run(player.trainer.logprobs(data)))
    state = {name: value.clone() for name, value in player.state().items()}
    for version in (1, 0, 1):  # one place for all: each read takes that of the one before
        assert asyncio.run(player.trainer.logprobs(data, written=tmp_path / str(version))) == scores[version]
    assert asyncio.run(player.trainer.logprobs(data)) == scores[2] != scores[1] != scores[0]
    assert all(torch.equal(value, state[name]) for name, value in player.state().items())
    with pytest.raises(DataError, match="none"):
        asyncio.run(player.trainer.logprobs(data, written=tmp_path / "none"))


def test_measuring_keeps_nothing_for_gradients(tiny, monkeypatch):
    player = tiny.player()
    trainer = LocalTrainer(player.weights, OptimizerConfig())
    plain, enabled = player.weights.completion_hidden, []

    def watched(packed: Packed) -> Any:
        enabled.append(torch.is_grad_enabled())
        return plain(packed)

    monkeypatch.setattr(player.weights, "completion_hidden", watched)
    asyncio.run(trainer.watch(DATA))
    assert asyncio.run(trainer.moved()) == pytest.approx(0.0, abs=1e-7)
    asyncio.run(trainer.logprobs(DATA))
    assert len(enabled) >= 3
    assert not any(enabled)


def test_nothing_is_measured_before_it_is_watched(tiny):
    player = simulator(tiny.player())
    with pytest.raises(RuntimeError, match="watch comes before moved"):
        asyncio.run(player.trainer.moved())
    player.update(samples(0.5, 0.25, 0.25))  # which ends with it
    with pytest.raises(RuntimeError, match="watch comes before moved"):
        asyncio.run(player.trainer.moved())
