"""The simulator's update: weighted imitation near the initial simulator, no step beyond the cap."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from genenv.backends.local.grammar import is_forbidden
from genenv.backends.local.kl import kl_full
from genenv.backends.local.optimizer import Optimizer
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UpdateSkipped
from genenv.simulator.rwr import Demonstration, Imitator, RwrLearner, weighted_tokens
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Generation, SimulatorSample

DEMONSTRATIONS = [
    Demonstration(prompt_ids=(5, 6, 7), completion_ids=(8, 9, 10, 1)),
    Demonstration(prompt_ids=(5, 6, 7), completion_ids=(9, 1)),
    Demonstration(prompt_ids=(11, 12), completion_ids=(40, 41, 42, 43, 44, 1)),
]


def imitator(policy) -> Imitator:
    return Imitator(
        policy, Optimizer(policy.parameters(), betas=(0.9, 0.99), weight_decay=0.0, max_grad_norm=1e9)
    )


def gradients(
    policy, demonstrations, kl: float = 0.0, total: float | None = None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    own = imitator(policy)
    sums = own.gradients(demonstrations, kl_coefficient=kl, total=total)
    pairs = zip(own.optimizer.names, own.optimizer.parameters, strict=True)
    grads = {name: p.grad.clone() for name, p in pairs if p.grad is not None}
    own.optimizer.clear()
    return sums, grads


def weighted(*weights: float) -> list[Demonstration]:
    return [
        Demonstration(prompt_ids=d.prompt_ids, completion_ids=d.completion_ids, weight=w)
        for d, w in zip(DEMONSTRATIONS, weights, strict=True)
    ]


def samples(*weights: float) -> list[SimulatorSample]:
    return [
        SimulatorSample(
            generation=Generation(
                id=f"g{i}",
                context_id="c",
                prompt_ids=d.prompt_ids,
                token_ids=d.completion_ids,
                logprobs=(0.0,) * len(d.completion_ids),
                text="",
                finished=True,
            ),
            weight=w,
        )
        for i, (d, w) in enumerate(zip(DEMONSTRATIONS, weights, strict=True))
    ]


def learner(policy, **config) -> RwrLearner:
    return RwrLearner(policy, SimulatorConfig(**({"lr": 1e-3, "kl_coefficient": 0.05} | config)))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("budget", [8, 4096])
def test_with_equal_weights_the_loss_and_its_gradient_are_the_supervised_ones_of_transformers(
    tiny, kind, budget
):
    plain = tiny.plain(kind)
    rows = [(d.prompt_ids, d.completion_ids) for d in DEMONSTRATIONS]
    width = max(len(prompt) + len(ids) for prompt, ids in rows)
    short = [width - len(prompt) - len(ids) for prompt, ids in rows]
    output = plain(
        input_ids=torch.tensor([[*p, *ids, *[0] * n] for (p, ids), n in zip(rows, short, strict=True)]),
        attention_mask=torch.tensor([[1] * (width - n) + [0] * n for n in short]),
        labels=torch.tensor(
            [[*[-100] * len(p), *ids, *[-100] * n] for (p, ids), n in zip(rows, short, strict=True)]
        ),
    )
    output.loss.backward()
    policy = tiny.player(kind, adapter=None, tokens_per_microbatch=budget)
    sums, grads = gradients(policy, weighted(0.2, 0.2, 0.2))
    assert sums["loss"] == pytest.approx(output.loss.item(), abs=1e-5)
    assert sums["tokens"] == 12
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, atol=1e-5, rtol=1e-5, msg=name)


def test_weights_count_for_each_token_that_the_player_wrote():
    assert weighted_tokens(weighted(0.5, 0.25, 0.25)) == 0.5 * 4 + 0.25 * 2 + 0.25 * 6
    halves = Demonstration(prompt_ids=(1,), completion_ids=(2, 3, 4), counted=(True, False, True))
    assert weighted_tokens([halves]) == 2


def test_weights_act_linearly(tiny):
    policy = tiny.player(noise=0.05)
    alone = [gradients(policy, [d])[1] for d in DEMONSTRATIONS]  # each a mean over its own tokens
    together = gradients(policy, weighted(0.6, 0.3, 0.1))[1]
    parts = [0.6 * 4, 0.3 * 2, 0.1 * 6]
    for name, found in together.items():
        expected = sum(part * grad[name] for part, grad in zip(parts, alone, strict=True)) / sum(parts)
        # Sums of float32 in another order: with compiled code one value of 128 is 1.8e-6 off.
        torch.testing.assert_close(found, expected, atol=4e-6, rtol=1e-5, msg=name)


def test_a_factor_on_all_weights_changes_nothing(tiny):
    policy = tiny.player(noise=0.05)
    first, second = (gradients(policy, weighted(*row)) for row in ([0.6, 0.3, 0.1], [6.0, 3.0, 1.0]))
    assert first[0]["loss"] == pytest.approx(second[0]["loss"], abs=1e-6)


def test_tokens_that_the_player_did_not_write_carry_no_loss(tiny):
    policy = tiny.player(noise=0.05)
    whole = Demonstration(prompt_ids=(5, 6), completion_ids=(8, 9, 10), counted=(True, True, False))
    cut = Demonstration(prompt_ids=(5, 6), completion_ids=(8, 9))
    (first, grads), (second, others) = (gradients(policy, [d], kl=0.1) for d in (whole, cut))
    assert first == pytest.approx(second, abs=1e-5)
    for name in grads:
        torch.testing.assert_close(grads[name], others[name], atol=1e-6, rtol=1e-5)


def test_the_kl_of_two_distributions_by_hand():
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    reference = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    expected = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    torch.testing.assert_close(kl_full(scores, reference), torch.tensor([expected, 0.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_the_kl_term_is_zero_at_the_start_and_pulls_back_after_a_step(tiny, adapter):
    policy = tiny.player(adapter=adapter)
    assert gradients(policy, DEMONSTRATIONS, kl=0.5)[0]["kl"] == pytest.approx(0.0, abs=1e-7)
    without = gradients(policy, DEMONSTRATIONS)[1]
    started = gradients(policy, DEMONSTRATIONS, kl=0.5)[1]
    assert all(torch.allclose(without[name], started[name], atol=1e-5) for name in without)
    assert (
        learner(policy, lr=3e-3, kl_cap=10.0).update(samples(0.5, 0.25, 0.25), seed=0)["simulator/kl_step"]
        > 0
    )
    assert gradients(policy, DEMONSTRATIONS, kl=0.5)[0]["kl"] > 1e-4
    moved = gradients(policy, DEMONSTRATIONS)[1]
    pulled = gradients(policy, DEMONSTRATIONS, kl=0.5)[1]
    assert any(not torch.allclose(moved[name], pulled[name], atol=1e-5) for name in moved)


def test_imitating_all_that_a_policy_may_write_as_often_as_it_does_changes_nothing(tiny):
    policy, prompt = tiny.player(), (5, 6, 7)
    with torch.no_grad():
        every = range(policy.model.vocabulary)
        packed = Packed([Bundle(prompt_ids=prompt, completions=[[y] for y in every])], torch.device("cpu"))
        chances = policy.logprobs(packed, temperature=0.5).exp().tolist()
    written = [
        Demonstration(prompt_ids=prompt, completion_ids=(y,), weight=chance)
        for y, chance in enumerate(chances)
    ]

    def norm(temperature: float) -> float:
        own = imitator(policy)
        own.gradients(written, kl_coefficient=0.0, temperature=temperature)
        return own.optimizer.clip()

    assert norm(0.5) < 1e-4 * norm(1.0)


def test_an_update_imitates_at_the_temperature_of_the_sampling(tiny):
    losses = [
        learner(tiny.player(), temperature=t, kl_coefficient=0.0).update(samples(1, 1, 1), seed=0)[
            "simulator/loss"
        ]
        for t in (1.0, 0.5)
    ]
    plain = imitator(tiny.player()).gradients(DEMONSTRATIONS, kl_coefficient=0.0, temperature=0.5)["loss"]
    assert losses[1] == pytest.approx(plain)
    assert losses[1] != pytest.approx(losses[0])


def test_micro_batches_do_not_change_loss_kl_and_gradient(tiny):
    found = [
        gradients(tiny.player(noise=0.05, tokens_per_microbatch=budget), weighted(0.6, 0.3, 0.1), kl=0.5)
        for budget in (6, 4096)
    ]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    small, large = (torch.cat([g.flatten() for g in grads.values()]).double() for _, grads in found)
    assert (small - large).norm() < 1e-6 * large.norm()


def test_the_update_makes_the_heavier_generation_more_likely(tiny):
    policy = tiny.player()
    before = [gradients(policy, [d])[0]["loss"] for d in DEMONSTRATIONS]
    metrics = learner(policy, lr=3e-3, kl_cap=10.0, epochs=2).update(samples(0.9, 0.1, 0.0), seed=0)
    after = [gradients(policy, [d])[0]["loss"] for d in DEMONSTRATIONS]
    assert after[0] < before[0]
    assert metrics["tokens/trained"] == 2 * 6  # a weight of zero is left out
    assert metrics["simulator/skipped_updates"] == metrics["simulator/kl_retries"] == 0


@pytest.mark.parametrize("adapter", ["simulator", None])
@pytest.mark.parametrize("halvings", [1, 3])
def test_a_step_beyond_the_cap_is_taken_back_and_halved(tiny, adapter, halvings):
    lr = 4e-3
    small = tiny.player(adapter=adapter)
    reached = learner(small, lr=lr / 2**halvings, kl_cap=10.0).update(samples(0.5, 0.25, 0.25), seed=0)
    policy = tiny.player(adapter=adapter)
    cap = reached["simulator/kl_step"] * 1.01
    metrics = learner(policy, lr=lr, kl_cap=cap).update(samples(0.5, 0.25, 0.25), seed=0)
    assert metrics["simulator/kl_retries"] == halvings
    assert metrics["simulator/kl_step"] == reached["simulator/kl_step"]
    assert metrics["simulator/skipped_updates"] == 0
    expected = tiny.values(small)
    assert all(torch.equal(value, expected[name]) for name, value in tiny.values(policy).items())


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_after_three_retries_the_step_is_skipped_and_nothing_has_changed(tiny, adapter):
    policy = tiny.player(adapter=adapter)
    player = learner(policy, lr=1e-3, kl_cap=10.0)
    player.update(samples(0.5, 0.25, 0.25), seed=0)  # the moments are not empty any more
    player.config = player.config.model_copy(update={"kl_cap": 1e-12})
    before = player.optimizer.snapshot()
    metrics = player.update(samples(0.25, 0.25, 0.5), seed=1)
    assert metrics["simulator/skipped_updates"] == 1
    assert metrics["simulator/kl_retries"] == 3
    assert metrics["tokens/trained"] == 0
    after = player.optimizer.snapshot()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(p.grad is None for p in player.optimizer.parameters)


def test_a_loss_or_gradient_that_is_not_finite_is_skipped_and_counted(tiny):
    policy = tiny.player()
    player = learner(policy)
    policy.parameters()[0][1].register_hook(lambda grad: grad * float("nan"))
    before = player.optimizer.snapshot()
    assert player.update(samples(0.5, 0.25, 0.25), seed=0)["simulator/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.optimizer.snapshot().items())
    with torch.no_grad():
        policy.parameters()[1][1].fill_(float("inf"))
    with pytest.raises(UpdateSkipped, match="loss is not finite"):
        player.imitator.gradients(DEMONSTRATIONS, kl_coefficient=0.0)


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_two_updates_equal_one_update_a_save_a_load_and_another(tiny, tmp_path, adapter):
    rows = (samples(0.5, 0.25, 0.25), samples(0.1, 0.2, 0.7))
    straight = learner(tiny.player(adapter=adapter))
    first = [dict(straight.update(row, seed=i)) for i, row in enumerate(rows)]
    broken_off = learner(tiny.player(adapter=adapter))
    second = [dict(broken_off.update(rows[0], seed=0))]
    broken_off.save(tmp_path)
    resumed = learner(tiny.player(adapter=adapter))
    resumed.load(tmp_path)
    second.append(dict(resumed.update(rows[1], seed=1)))
    assert first == second
    expected = straight.optimizer.snapshot()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.optimizer.snapshot().items())


def test_without_samples_nothing_happens(tiny):
    player = learner(tiny.player())
    before = player.optimizer.snapshot()
    for nothing in ([], samples(0.0, 0.0, 0.0)):
        metrics = player.update(nothing, seed=0)
        assert metrics["tokens/trained"] == metrics["simulator/steps"] == 0
        assert metrics["simulator/skipped_updates"] == 1
    assert all(torch.equal(value, before[name]) for name, value in player.optimizer.snapshot().items())


def test_a_round_is_cut_into_steps_of_the_batch_size_and_progress_is_told(tiny):
    player = learner(tiny.player(), batch=2, kl_cap=10.0)
    told: list[tuple[int, int]] = []
    player.progress = lambda tokens, items: told.append((tokens, items))
    metrics = player.update(samples(0.5, 0.25, 0.25), seed=0)
    assert sum(items for _, items in told) == 3
    assert metrics["tokens/trained"] == 12
    assert player.optimizer.snapshot()[f"{player.optimizer.names[0]}.step"].item() == 2


def test_the_steps_of_an_update_share_its_weights(tiny):
    policy, demonstrations = tiny.player(decoder="transformers"), weighted(0.6, 0.3, 0.1)
    whole, total = gradients(policy, demonstrations)[1], weighted_tokens(demonstrations)
    parts = [gradients(policy, [d], total=total)[1] for d in demonstrations]
    assert all(torch.allclose(whole[name], sum(part[name] for part in parts), atol=1e-6) for name in whole)


def test_the_cap_holds_for_all_steps_of_an_update_together(tiny):
    def far(cap: float, epochs: int) -> dict[str, float]:
        player = learner(tiny.player(), lr=2e-3, kl_cap=cap, epochs=epochs)
        return dict(player.update(samples(0.5, 0.25, 0.25), seed=0))

    one, four = far(10.0, 1), far(10.0, 4)
    assert four["simulator/kl_step"] > 2 * one["simulator/kl_step"]
    cap = 1.5 * one["simulator/kl_step"]
    held = far(cap, 4)
    assert held["simulator/kl_retries"] > 0
    assert held["simulator/kl_step"] <= cap


BOOLEAN = {"type": "boolean"}
SEVERAL = {"enum": ["yes", "no", "maybe"]}


def completions_of(policy, schema) -> list[tuple[int, ...]]:
    """All that can be written under a grammar."""
    found, open_ = [], [()]
    while open_:
        ids = open_.pop()
        matcher = policy.model.grammars.matcher(schema)
        assert all(matcher.accept_token(token) for token in ids)
        if ids[-1:] == (policy.model.chat.end_id,):
            found.append(ids)
            continue
        next_ = is_forbidden(policy.model.grammars.allowed([matcher]), policy.model.vocabulary)[0]
        open_ += [(*ids, token) for token in (~next_).nonzero()[:, 0].tolist()]
    return found


def under(schema, prompt, ids, weight=1.0) -> Demonstration:
    return Demonstration(prompt_ids=prompt, completion_ids=ids, weight=weight, schema=schema)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_likelihood_under_a_grammar_is_one_among_what_it_allows(tiny, temperature):
    policy = tiny.player(noise=0.05)
    own = imitator(policy)
    total = 0.0
    for ids in completions_of(policy, SEVERAL):
        sums = own.gradients(
            [under(SEVERAL, (5, 6, 7), ids)], kl_coefficient=0.0, temperature=temperature, total=1.0
        )
        total += math.exp(-sums["loss"])
    assert total == pytest.approx(1.0, abs=1e-5)


def test_samples_of_equal_worth_move_nothing_on_average_under_their_grammars(tiny):
    policy = tiny.player(noise=0.05)
    written = [(s, p, ids) for s, p in ((BOOLEAN, (5, 6, 7)), (SEVERAL, (8, 9)))
               for ids in completions_of(policy, s)]  # fmt: skip
    chances = [
        math.exp(-imitator(policy).gradients([under(*row)], kl_coefficient=0.0, total=1.0)["loss"])
        for row in written
    ]
    weighed = [under(*row, weight=chance) for row, chance in zip(written, chances, strict=True)]
    moved = gradients(policy, weighed, total=1.0)[1]
    one = gradients(policy, weighed[:1], total=1.0)[1]
    free = [
        Demonstration(prompt_ids=d.prompt_ids, completion_ids=d.completion_ids, weight=d.weight)
        for d in weighed
    ]
    without = gradients(policy, free, total=1.0)[1]
    assert _longest(moved) < 1e-4 * _longest(one)
    assert _longest(without) > _longest(one)


def divergence_by_hand(scores, reference, choices: list[list[int]], temperature: float) -> float:
    """Mean over tokens of sum p log(p / q), each token among its own choices, in plain Python."""
    total = 0.0
    for own, other, allowed in zip(scores.tolist(), reference.tolist(), choices, strict=True):
        odds, others = ([math.exp(row[v] / temperature) for v in allowed] for row in (own, other))
        pairs = zip(odds, others, strict=True)
        total += sum(p / sum(odds) * math.log(p / sum(odds) / (q / sum(others))) for p, q in pairs)
    return total / len(choices)


def choices_along(policy, schema, ids) -> list[list[int]]:
    """Token by token: what the grammar allows in its place."""
    matcher, choices = policy.model.grammars.matcher(schema), []
    for token in ids:
        forbidden = is_forbidden(policy.model.grammars.allowed([matcher]), policy.model.vocabulary)[0]
        choices.append((~forbidden).nonzero()[:, 0].tolist())
        assert matcher.accept_token(token)
    return choices


def scores_of(policy, prompt, ids):
    packed = Packed([Bundle(prompt_ids=prompt, completions=[ids])], torch.device("cpu"))
    with torch.no_grad():
        return policy.model.head(policy.completion_hidden(packed)[0])


PLACES = {"enum": [{"city": "Paris"}, {"city": "Oslo"}, {"town": "Rome"}]}


@pytest.mark.parametrize("adapter", ["simulator", None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_kl_is_taken_over_what_could_be_sampled(tiny, adapter, temperature):
    policy, prompt = tiny.player(adapter=adapter, noise=0.05), (5, 6, 7)
    ids = max(completions_of(policy, PLACES), key=len)
    choices = choices_along(policy, PLACES, ids)
    assert {1, 2} <= {len(allowed) for allowed in choices}  # some tokens have a choice, some have none
    with policy.active():
        own = scores_of(policy, prompt, ids)
    with policy.reference():
        initial = scores_of(policy, prompt, ids)
    expected = divergence_by_hand(own, initial, choices, temperature)
    found = imitator(policy).gradients(
        [under(PLACES, prompt, ids)], kl_coefficient=0.5, temperature=temperature
    )
    assert found["kl"] == pytest.approx(expected, rel=1e-3)
    everything = [list(range(policy.model.vocabulary))] * len(ids)
    assert found["kl"] < 0.5 * divergence_by_hand(own, initial, everything, 1.0)


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_the_cap_measures_what_could_be_sampled(tiny, adapter):
    policy, prompt = tiny.player(adapter=adapter), (5, 6, 7)
    ids = max(completions_of(policy, PLACES), key=len)
    (sample,) = samples(1.0, 0.0, 0.0)[:1]
    sample = replace(
        sample, schema=PLACES, generation=replace(sample.generation, prompt_ids=prompt, token_ids=ids)
    )
    with policy.active():
        before = scores_of(policy, prompt, ids)
    player = learner(policy, lr=3e-3, kl_cap=10.0, temperature=0.7)
    measured = player.update([sample], seed=0)["simulator/kl_step"]
    with policy.active():
        after = scores_of(policy, prompt, ids)
    expected = divergence_by_hand(after, before, choices_along(policy, PLACES, ids), 0.7)
    assert measured == pytest.approx(expected, rel=1e-3)
    assert measured > 1e-4


def _longest(grads: dict[str, torch.Tensor]) -> float:
    return max(grad.abs().max().item() for grad in grads.values())


def test_demonstrations_with_and_without_a_grammar_share_a_micro_batch(tiny):
    policy = tiny.player(noise=0.05)
    bound = under(BOOLEAN, (5, 6, 7), completions_of(policy, BOOLEAN)[0])
    losses = [gradients(policy, [d], total=1.0)[0]["loss"] for d in (bound, DEMONSTRATIONS[0])]
    assert gradients(policy, [bound, DEMONSTRATIONS[0]], total=1.0)[0]["loss"] == pytest.approx(sum(losses))


def test_a_sample_that_does_not_follow_its_grammar_is_refused(tiny):
    policy = tiny.player()
    with pytest.raises(ValueError, match="token 0 of a completion does not follow its grammar"):
        gradients(policy, [under(BOOLEAN, (5, 6), (8, 9, 1))])
