"""Two players on one base, their references, and what happens when memory runs out."""

from __future__ import annotations

import asyncio

import pytest
import torch

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local import trainer as trainer_module
from genenv.backends.local.optimizer import Optimizer
from genenv.backends.local.packing import Bundle, Packed, micro_batches
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.trainer import LocalTrainer
from genenv.errors import RolloutError, UsageError
from genenv.sampling import SampleRequest
from lessons import imitated

CPU = torch.device("cpu")
PACKED = Packed([Bundle(prompt_ids=[3, 5, 9], completions=[[4, 4, 8], [1]])], CPU)


def logprobs(policy: LocalSampler) -> torch.Tensor:
    with torch.no_grad(), policy.weights.active():
        return policy.weights.logprobs(PACKED)


def reference(policy: LocalSampler) -> torch.Tensor:
    with torch.no_grad(), policy.weights.reference():
        return policy.weights.logprobs(PACKED)


def train(policy: LocalSampler, steps: int = 2) -> Optimizer:
    optimizer = Optimizer(
        policy.weights.parameters(), OptimizerConfig(betas=(0.9, 0.99), weight_decay=0.0, max_grad_norm=1.0)
    )
    for _ in range(steps):
        with policy.weights.active():
            policy.weights.logprobs(PACKED).sum().neg().backward()
        optimizer.step(0.01)
    return optimizer


def asked(count: int = 8, **changes) -> list[SampleRequest]:
    return [
        SampleRequest(**({"prompt_ids": (9, 4 + i % 3), "max_tokens": 5, "stream": i} | changes))
        for i in range(count)
    ]


def test_a_fresh_adapter_changes_nothing(tiny):
    model = tiny.model(decoder="transformers")
    bare = logprobs(LocalSampler(PolicyWeights(model, None, keep_reference=False)))
    model.add_adapter("agent", seed=1)
    assert torch.equal(logprobs(LocalSampler(PolicyWeights(model, "agent"))), bare)
    fused = tiny.player()
    assert torch.equal(logprobs(fused), reference(fused))
    torch.testing.assert_close(logprobs(fused), bare, atol=1e-5, rtol=0)


def test_adapters_begin_alike_with_the_same_seed_and_differently_with_another(tiny):
    first, second = ([p for _, p in tiny.player().weights.parameters()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    model = tiny.model()
    model.add_adapter("agent", seed=4)
    assert not torch.equal(PolicyWeights(model, "agent").parameters()[0][1], first[0])


def test_two_players_on_one_base_do_not_influence_each_other(tiny):
    model = tiny.model()
    for seed, name in enumerate(("agent", "simulator")):
        model.add_adapter(name, seed=seed)
    agent, simulator = (
        LocalSampler(PolicyWeights(model, "agent")),
        LocalSampler(PolicyWeights(model, "simulator")),
    )
    base = reference(agent)
    names = [{name for name, _ in player.weights.parameters()} for player in (agent, simulator)]
    assert names[0]
    assert not names[0] & names[1]
    before = tiny.values(simulator)
    train(agent)
    learned = logprobs(agent)
    assert learned.sum() > base.sum() + 0.1
    assert torch.equal(logprobs(simulator), base)
    train(simulator, steps=1)
    assert not torch.equal(logprobs(simulator), base)
    assert any(not torch.equal(value, before[name]) for name, value in tiny.values(simulator).items())
    assert torch.equal(logprobs(agent), learned)
    assert torch.equal(reference(agent), base)
    assert torch.equal(reference(simulator), base)


def test_the_reference_is_the_base_until_a_player_is_anchored(tiny):
    policy = tiny.player()
    base = reference(policy)
    train(policy)
    anchored = logprobs(policy)
    policy.weights.anchor()
    names = [name for name, _ in policy.weights.parameters()]
    train(policy)
    assert torch.equal(reference(policy), anchored)
    assert not torch.equal(anchored, base)
    assert not torch.equal(logprobs(policy), anchored)
    assert [name for name, _ in policy.weights.parameters()] == names


def test_full_fine_tuning_moves_the_weights_and_keeps_a_reference(tiny):
    policy = tiny.player(adapter=None)
    base = logprobs(policy)
    train(policy)
    assert logprobs(policy).sum() > base.sum()
    assert torch.equal(reference(policy), base)
    policy.weights.anchor()
    assert torch.equal(reference(policy), logprobs(policy))


def test_without_a_kept_reference_asking_for_it_is_one_sentence(tiny):
    policy = LocalSampler(PolicyWeights(tiny.model(), None, keep_reference=False))
    with pytest.raises(UsageError, match="keeps no reference"):
        reference(policy)


class OutOfMemory:
    """A forward pass that fails once when it sees more tokens than there is room for."""

    def __init__(self, model, monkeypatch, room: int, *, always: bool = False) -> None:
        self.room, self.always, self.failures, self.fed = room, always, 0, []
        self.plain = model.hidden
        monkeypatch.setattr(model, "hidden", self)

    def __call__(self, ids, positions, layout):
        if ids.shape[1] > self.room and (self.always or not self.failures):
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.fed.append(ids.shape[1])
        return self.plain(ids, positions, layout)


def test_sampling_that_runs_out_of_memory_is_halved_and_gives_the_same_completions(tiny, monkeypatch):
    policy = tiny.player(noise=0.05)
    expected = policy.sample_all(asked())
    memory = OutOfMemory(policy.model, monkeypatch, room=7, always=True)
    assert [c.token_ids for c in policy.sample_all(asked())] == [c.token_ids for c in expected]
    assert memory.failures == 1
    assert max(memory.fed[1:]) <= 4 + 2


def test_sampling_that_still_does_not_fit_fails_after_one_retry(tiny, monkeypatch):
    policy = tiny.player()
    memory = OutOfMemory(policy.model, monkeypatch, room=0, always=True)
    with pytest.raises(torch.OutOfMemoryError):
        policy.sample_all(asked())
    assert memory.failures == 2


def test_an_update_that_runs_out_of_memory_starts_again_with_half_the_micro_batch(tiny, monkeypatch):
    policy = tiny.player(tokens_per_microbatch=100)
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    budgets: list[int] = []
    plain = trainer_module.micro_batches

    def cut(pieces, budget):
        budgets.append(budget)
        return plain(pieces, budget)

    def backward(*arguments, **options):
        found = LocalTrainer._backward(trainer, *arguments, **options)
        if len(budgets) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(trainer_module, "micro_batches", cut)
    monkeypatch.setattr(trainer, "_backward", backward)
    data = [imitated((3, 5, 9), (4, 4, 8)), imitated((3, 5, 9), (1,))]
    asyncio.run(trainer.forward_backward(data, Objective()))
    twice = [p.grad.clone() for p in trainer.optimizer.parameters if p.grad is not None]
    trainer.optimizer.clear()
    asyncio.run(trainer.forward_backward(data, Objective()))
    once = [p.grad for p in trainer.optimizer.parameters if p.grad is not None]
    assert budgets == [100, 50, 100]
    assert twice
    assert all(torch.equal(a, b) for a, b in zip(twice, once, strict=True))


def test_another_error_of_an_update_is_not_taken_for_a_lack_of_memory(tiny, monkeypatch):
    trainer = LocalTrainer(tiny.player().weights, OptimizerConfig())

    def backward(*arguments, **options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(trainer, "_backward", backward)
    with pytest.raises(RuntimeError, match="shapes"):
        asyncio.run(trainer.forward_backward([imitated((3, 5), (4, 4))], Objective()))


def test_micro_batches_stay_within_the_budget_and_lose_nothing():
    lengths = [[4, 1, 3], [9], [], [2, 2, 2, 2, 2]]
    items = [
        (Bundle(prompt_ids=[b] * 3, completions=[[b] * n for n in row]), [(b, n) for n in row])
        for b, row in enumerate(lengths)
    ]
    batches = micro_batches(items, 8)
    pairs = [pair for batch in batches for _, rows in batch for pair in rows]
    assert sorted(pairs) == sorted((b, n) for b, row in enumerate(lengths) for n in row)
    for batch in batches:
        assert sum(bundle.tokens for bundle, _ in batch) <= 8 or [len(rows) for _, rows in batch] == [1]
        for bundle, rows in batch:
            assert [list(ids) for ids in bundle.completions] == [[b] * n for b, n in rows]
    assert micro_batches(items, 1000) == [sorted(items, key=lambda item: item[0].tokens)]


def test_a_long_prompt_is_not_read_again_for_every_completion():
    bundle = Bundle(prompt_ids=[1] * 60, completions=[[2] * 10] * 8)
    pieces = [piece for batch in micro_batches([(bundle, range(8))], 64) for piece, _ in batch]
    assert [len(piece.completions) for piece in pieces] == [2, 6]
    assert all(piece.tokens <= 2 * 64 for piece in pieces)


def test_requests_of_coroutines_that_wait_together_run_as_one_batch(tiny, monkeypatch):
    policy = tiny.player()
    sizes: list[int] = []
    plain = policy.sample_all
    monkeypatch.setattr(policy, "sample_all", lambda some: sizes.append(len(some)) or plain(some))

    async def episode(i: int) -> tuple[int, ...]:
        for _ in range(i % 4):
            await asyncio.sleep(0)  # a bit of work before the first request
        first = await policy.sample(asked(9)[i])
        return first.token_ids + (await policy.sample(asked(9)[i])).token_ids

    async def all_episodes() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(episode(i) for i in range(9)))

    together = asyncio.run(all_episodes())
    assert sizes[-1] == 9
    assert len(sizes) <= 4
    assert together == [c.token_ids * 2 for c in plain(asked(9))]


def test_an_error_while_sampling_reaches_every_waiter_and_the_next_batch_runs(tiny, monkeypatch):
    policy = tiny.player()
    plain = policy.model.hidden

    def broken(*_: object) -> None:
        raise ArithmeticError("no such kernel")

    async def ask() -> list[object]:
        return await asyncio.gather(*(policy.sample(r) for r in asked(3)), return_exceptions=True)

    monkeypatch.setattr(policy.model, "hidden", broken)
    assert [str(error) for error in asyncio.run(ask())] == ["no such kernel"] * 3
    monkeypatch.setattr(policy.model, "hidden", plain)
    assert [c.token_ids for c in asyncio.run(ask())] == [c.token_ids for c in policy.sample_all(asked(3))]


def test_an_interrupt_while_sampling_ends_the_event_loop_at_once(tiny, monkeypatch):
    policy = tiny.player()
    ended: list[type[BaseException]] = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    async def ask(request: SampleRequest) -> None:
        try:
            await policy.sample(request)
        except BaseException as error:
            ended.append(type(error))
            raise

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, asked(3)))

    monkeypatch.setattr(policy, "sample_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ask_all())
    assert ended == [asyncio.CancelledError] * 3


def test_a_request_that_was_cancelled_is_not_sampled(tiny, monkeypatch):
    policy = tiny.player()
    sizes: list[int] = []
    plain = policy.sample_all
    monkeypatch.setattr(policy, "sample_all", lambda some: sizes.append(len(some)) or plain(some))

    async def give_up() -> list[object]:
        tasks = [asyncio.ensure_future(policy.sample(request)) for request in asked(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, answered = asyncio.run(give_up())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert answered.token_ids == plain(asked(2))[1].token_ids
    assert sizes == [1]


def test_a_prompt_that_leaves_no_room_is_a_failed_rollout(tiny):
    policy = tiny.player(context_tokens=16)
    assert len(asyncio.run(policy.sample(asked(1, prompt_ids=(1,) * 11)[0])).token_ids) <= 5
    with pytest.raises(RolloutError, match="12 prompt tokens and 5 new ones pass the context window of 16"):
        asyncio.run(policy.sample(asked(1, prompt_ids=(1,) * 12)[0]))


def test_the_context_window_is_never_longer_than_the_model_allows(tiny):
    assert tiny.model(context_tokens=4096).context_tokens == 512
