"""A base that is served: sums of losses against torch, adapters apart, sampling as asked, exact restarts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.backends.local.served.learner import Terms, checked
from genenv.backends.local.served.models import LoadedBase, ServedBase
from genenv.backends.served import AdamParams, AdapterShape, Example, Loss, PromptRequest
from genenv.backends.settings import PolicyConfig
from genenv.errors import DataError, UsageError
from genenv.sampling import SampleRequest

SHAPE = AdapterShape(rank=4)
PROMPT = tuple(b"The weather today")
CONFIG = PolicyConfig(model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False)
CE = Loss(name="cross_entropy", config={})


@pytest.fixture(scope="module")
def base() -> ServedBase:
    return ServedBase("tiny", CONFIG)


def example(text: str, prompt: tuple[int, ...] = PROMPT, **inputs: Any) -> Example:
    """A prompt and how it goes on; inputs are of the tokens that follow it, 0 elsewhere."""
    whole = (*prompt, *text.encode())
    before = len(prompt) - 1

    def spread(value: Any) -> np.ndarray:
        own = np.broadcast_to(np.asarray(value, np.float32), len(text))
        return np.concatenate([np.zeros(before, np.float32), own])

    return Example(
        ids=whole[:-1],
        targets=np.array(whole[1:], np.int64),
        inputs={name: spread(value) for name, value in inputs.items()},
    )


def logprob(learner: Any, one: Example) -> float:
    scored = learner.forward([one], CE, backward=False)
    return float((scored.logprobs[0] * (one.inputs["weights"] != 0)).sum())


def moved(learner: Any, seed: int = 0) -> None:
    """Weights that are no longer those of the base."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.optimizer.parameters:
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def gradient(learner: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in learner.optimizer.parameters]).clone()


DATA = [
    example(" is fine", weights=1.0),
    example(" is cold", weights=np.linspace(-1, 1, 8)),
    example(" was", weights=[0.0, 2.0, 0.0, -3.0]),
    example("?", prompt=(7,), weights=0.5),
    example(" nothing counts here", weights=0.0),
]


@pytest.mark.parametrize(("budget", "unembed"), [(24, False), (4096, False), (4096, True)])
def test_loss_gradient_and_logprobs_are_those_of_transformers(budget: int, unembed: bool) -> None:
    config = CONFIG.model_copy(update={"tokens_per_microbatch": budget})
    shape = AdapterShape(rank=4, train_unembed=unembed)
    learner = ServedBase("tiny", config).learner(shape, seed=3)
    moved(learner)
    scored = learner.forward(DATA, CE, backward=True)
    found = gradient(learner)
    learner.optimizer.clear()

    plain = ServedBase("tiny", config.model_copy(update={"decoder": "transformers", "attention": "own"}))
    other = plain.learner(shape, seed=3)
    moved(other)
    loss = torch.zeros(())
    for one, logprobs, losses in zip(DATA, scored.logprobs, scored.losses, strict=True):
        with other.weights.active():
            hidden = plain.model.causal.get_decoder()(input_ids=torch.tensor([one.ids])).last_hidden_state[0]
        logits = plain.model.output(hidden)
        if other.weights.unembed is not None:
            down, up = other.weights.unembed
            logits = logits + 32 / 4 * (hidden @ down.T) @ up.T
        own = logits.log_softmax(-1).gather(1, torch.from_numpy(one.targets)[:, None])[:, 0]
        weights = torch.from_numpy(one.inputs["weights"])
        np.testing.assert_allclose(logprobs, own.detach().numpy(), atol=2e-5)
        np.testing.assert_allclose(losses, (-own.detach() * weights).numpy(), atol=1e-4)
        loss = loss - (own * weights).sum()
    loss.backward()
    assert scored.loss == pytest.approx(loss.item(), abs=1e-3)
    expected = torch.cat([p.grad.flatten() for p in other.optimizer.parameters])
    assert (found - expected).abs().max() < 1e-4 * (1 + expected.abs().max())


@given(st.sampled_from(["importance_sampling", "ppo", "cispo", "dro"]), st.integers(0, 2**16))
@settings(max_examples=40)
def test_the_other_losses_are_their_formulas(name: str, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    old, now = drawn.normal(-1, 0.4, 6).astype(np.float32), drawn.normal(-1, 0.4, 6).astype(np.float32)
    advantages = drawn.normal(size=6).astype(np.float32)
    mask = drawn.integers(0, 2, 6).astype(np.float32)
    one = Example(
        ids=(1,) * 6,
        targets=np.zeros(6, np.int64),
        inputs={"logprobs": old, "advantages": advantages, "mask": mask},
    )
    config = {"beta": 0.3} if name == "dro" else {}
    terms = Terms(name, checked(Loss(name=name, config=config)), torch.device("cpu"))
    terms.add(one, np.ones(6, bool))
    logprobs = torch.from_numpy(now).requires_grad_()
    losses = terms.losses(logprobs)
    losses.sum().backward()
    ratio = np.exp(now - old)
    held = np.clip(ratio, 0.8, 1.2)
    free = (ratio * advantages <= held * advantages) if name == "ppo" else np.ones(6, bool)
    expected, slope = {
        "importance_sampling": (-ratio * advantages, -ratio * advantages),
        "ppo": (-np.minimum(ratio * advantages, held * advantages), -ratio * advantages * free),
        "cispo": (-held * advantages * now, -held * advantages),
        "dro": (-(now * advantages - 0.15 * (now - old) ** 2), -(advantages - 0.3 * (now - old))),
    }[name]
    np.testing.assert_allclose(losses.detach().numpy(), expected * mask, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logprobs.grad.numpy(), slope * mask, rtol=1e-5, atol=1e-6)


def test_weights_move_likelihoods_by_their_sign_and_clients_do_not_touch_each_other(base) -> None:
    mine, other = base.learner(SHAPE, seed=1), base.learner(AdapterShape(rank=2), seed=1)
    up, down = example(" is fine", weights=1.0), example("zqxzqx", (3, 4, 5), weights=-1.0)
    before = logprob(mine, up), logprob(mine, down), logprob(other, up)
    for _ in range(3):
        mine.forward([up, down], CE, backward=True)
        mine.step(AdamParams(learning_rate=1e-2))
    assert logprob(mine, up) > before[0] + 0.5
    assert logprob(mine, down) < before[1] - 0.1
    assert logprob(other, up) == before[2], "bit for bit"
    for learner in (mine, other):
        base.drop(learner)


def test_gradients_add_up_until_the_step(base) -> None:
    learner = base.learner(SHAPE, seed=1)
    moved(learner)
    learner.forward(DATA, CE, backward=True)
    whole = gradient(learner)
    learner.optimizer.clear()
    for one in DATA:
        learner.forward([one], CE, backward=True)
        learner.forward(DATA, CE, backward=False)
    assert (gradient(learner) - whole).abs().max() < 1e-4
    before = gradient(learner)
    with pytest.raises(UsageError, match="datum 1 holds a token outside of the vocabulary"):
        learner.forward([DATA[0], example("x", (10_000,), weights=1.0)], CE, backward=True)
    assert torch.equal(gradient(learner), before)
    assert learner.step(AdamParams(learning_rate=0.0, grad_clip_norm=0.1)) == pytest.approx(
        float(whole.norm()), rel=1e-4
    )
    assert learner.step(AdamParams()) == 0.0, "no gradient is left"
    base.drop(learner)


def test_a_row_of_targets_is_scored_each(base) -> None:
    learner = base.learner(SHAPE, seed=1)
    one = example(" is", weights=1.0)
    two = np.stack([one.targets, one.targets[::-1]], 1)
    weights = np.stack([one.inputs["weights"], 0.5 * one.inputs["weights"]], 1)
    pair = Example(ids=one.ids, targets=two, inputs={"weights": weights})
    found = learner.forward([pair], CE, backward=False).logprobs[0]
    for column in range(2):
        alone = Example(ids=one.ids, targets=two[:, column], inputs={})
        np.testing.assert_allclose(
            found[:, column], learner.forward([alone], CE, backward=False).logprobs[0], atol=1e-5
        )
    base.drop(learner)


@pytest.mark.parametrize("unembed", [False, True])
def test_what_was_saved_goes_on_to_the_last_bit(base, tmp_path: Path, unembed: bool) -> None:
    def steps(learner: Any, count: int) -> None:
        for _ in range(count):
            learner.forward(DATA, CE, backward=True)
            learner.step(AdamParams(learning_rate=1e-3, weight_decay=0.01))

    shape = AdapterShape(rank=4, train_unembed=unembed)
    learner = base.learner(shape, seed=5)
    steps(learner, 3)
    learner.save(tmp_path)
    steps(learner, 2)
    fresh = ServedBase("tiny", base.settled).learner(shape, seed=None)
    fresh.load(tmp_path, optimizer=True)
    steps(fresh, 2)
    for mine, other in zip(learner.optimizer.parameters, fresh.optimizer.parameters, strict=True):
        assert torch.equal(mine, other)
    fresh.load(tmp_path, optimizer=False)
    steps(fresh, 2)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(learner.optimizer.parameters, fresh.optimizer.parameters, strict=True)
    )
    with pytest.raises(DataError, match="belongs to another model or other LoRA settings"):
        base.learner(AdapterShape(rank=3, train_unembed=unembed), seed=1).load(tmp_path, optimizer=False)


@pytest.mark.parametrize("unembed", [False, True])
def test_sampled_log_probabilities_are_those_of_a_forward_pass(base, tmp_path: Path, unembed: bool) -> None:
    shape = AdapterShape(rank=4, train_unembed=unembed)
    learner = base.learner(shape, seed=1)
    moved(learner)
    learner.save(tmp_path)
    asked = PromptRequest(prompt_ids=PROMPT, samples=3, max_tokens=20, seed=7, prompt_logprobs=True)
    warm = PromptRequest(
        prompt_ids=PROMPT, samples=2, max_tokens=20, seed=7, temperature=0.5, top_k=5, top_p=0.9
    )
    cold = PromptRequest(prompt_ids=PROMPT, samples=1, max_tokens=20, temperature=0.0, top_prompt_logprobs=3)
    answers = base.answer(tmp_path, shape, [asked, warm, cold])
    for sequence in itertools.chain(*(answer.sequences for answer in answers)):
        whole = (*PROMPT, *sequence.token_ids)
        text = Example(ids=whole[:-1], targets=np.array(whole[1:], np.int64), inputs={})
        own = learner.forward([text], CE, backward=False).logprobs[0]
        np.testing.assert_allclose(sequence.logprobs, own[len(PROMPT) - 1 :], atol=1e-5)
        if answers[0].prompt_logprobs is not None:
            np.testing.assert_allclose(answers[0].prompt_logprobs[1:], own[: len(PROMPT) - 1], atol=1e-5)
    assert np.isnan(answers[0].prompt_logprobs[0])
    ids, top = answers[2].top_prompt_logprobs
    assert ids.shape == top.shape == (len(PROMPT), 3)
    assert (ids[0] == 0).all()
    assert (top[0] == -99999).all()
    assert (np.diff(top[1:], axis=1) <= 0).all()
    base.drop(learner)


def test_equal_seeds_draw_equal_tokens(base) -> None:
    asked = PromptRequest(prompt_ids=PROMPT, samples=4, max_tokens=12, seed=7)
    first, again = (base.answer(None, SHAPE, [asked])[0].sequences for _ in range(2))
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    assert len({one.token_ids for one in first}) > 1
    alone = base.answer(None, SHAPE, [PromptRequest(prompt_ids=PROMPT, max_tokens=12, seed=7)])[0]
    assert alone.sequences[0].token_ids == first[0].token_ids
    other = base.answer(None, SHAPE, [PromptRequest(prompt_ids=PROMPT, samples=4, max_tokens=12, seed=8)])[0]
    assert [one.token_ids for one in other.sequences] != [one.token_ids for one in first]


def test_completions_end_where_they_are_told_to(base) -> None:
    free = base.answer(None, SHAPE, [PromptRequest(prompt_ids=PROMPT, max_tokens=40, seed=3)])[0].sequences[0]
    text = base.model.tokenizer.decode(list(free.token_ids))
    by_id = PromptRequest(prompt_ids=PROMPT, max_tokens=40, seed=3, stop_ids=(free.token_ids[5],))
    by_text = PromptRequest(prompt_ids=PROMPT, max_tokens=40, seed=3, stop_texts=(text[9:11],))
    one, two = (base.answer(None, SHAPE, [asked])[0].sequences[0] for asked in (by_id, by_text))
    assert one.finished
    assert one.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[5]) + 1]
    assert two.finished
    said = base.model.tokenizer.decode(list(two.token_ids))
    assert said.endswith(text[9:11])
    assert said == text[: len(said)]
    full = PromptRequest(prompt_ids=(65,) * base.context_tokens, prompt_logprobs=True)
    answer = base.answer(None, SHAPE, [full])[0]
    assert answer.sequences[0].token_ids == ()
    with pytest.raises(UsageError, match="leaves no room in the context window of 256"):
        base.answer(None, SHAPE, [PromptRequest(prompt_ids=(65,) * 256)])


@pytest.mark.long
def test_few_adapters_are_kept_for_sampling(base, tmp_path: Path) -> None:
    shapes = [AdapterShape(rank=2 + i % 2, train_mlp=i % 3 != 0) for i in range(6)]
    asked = PromptRequest(prompt_ids=PROMPT, max_tokens=8, temperature=0.0)
    said = []
    for i, shape in enumerate(shapes):
        learner = base.learner(shape, seed=i)
        moved(learner, seed=i)
        learner.save(tmp_path / str(i))
        base.drop(learner)
        said.append(base.answer(tmp_path / str(i), shape, [asked])[0].sequences[0].token_ids)
    again = [
        base.answer(tmp_path / str(i), shape, [asked])[0].sequences[0].token_ids
        for i, shape in enumerate(shapes)
    ]
    assert again == said
    assert len(base._slots) <= 4
    base.forget(tmp_path / "5")


@pytest.mark.parametrize(
    "changes",
    [
        {},  # of GPT-2 PEFT writes fan_in_fan_out
        {"exclude_modules": r"vision_model\..*"},
        {"target_modules": r"transformer\.h\..*\.(c_attn|c_proj|c_fc)"},
        {"target_modules": ["c_attn", "c_proj", "c_fc", "q_proj"]},
    ],
)
def test_settings_with_which_an_adapter_computes_the_same_are_served(
    changes: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    shape = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "n_inner": 96}
    policy = tiny.player(folder=tiny.folder("gpt2", **shape), noise=0.05)
    policy.weights.write_adapter(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    served = LoadedBase(policy.model.source, policy.model.config)
    served.load("mine", tmp_path)
    asked = [SampleRequest(prompt_ids=(5, 9, 2), max_tokens=6, stream=i) for i in range(3)]
    assert served.sample("mine", asked) == policy.sample_all(asked)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"exclude_modules": ["c_attn"]}, "belongs to another model or other LoRA settings"),
        ({"target_modules": "("}, "is no file of a LoRA adapter"),
        ({"target_modules": None}, "its target_modules are no layers of the base"),
    ],
)
def test_settings_that_select_other_layers_than_the_weights_are_refused(
    changes: dict[str, Any], sentence: str, tiny: Any, tmp_path: Path
) -> None:
    shape = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "n_inner": 96}
    policy = tiny.player(folder=tiny.folder("gpt2", **shape))
    policy.weights.write_adapter(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UsageError, match=sentence):
        LoadedBase(policy.model.source, policy.model.config).load("mine", tmp_path)


def test_only_the_kind_of_layers_that_a_client_names_is_trained(tiny: Any) -> None:
    """Layers of both kinds have the same name in GPT-2."""
    shape = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "n_inner": 96}
    served = ServedBase(str(tiny.folder("gpt2", **shape)), CONFIG)
    learner = served.learner(AdapterShape(rank=2, train_mlp=False), seed=1)
    names = {name.split(".lora")[0] for name, _ in learner.weights.parameters()}
    assert names == {f"transformer.h.{i}.attn.{own}" for i in range(2) for own in ("c_attn", "c_proj")}


@pytest.mark.parametrize(
    ("loss", "inputs", "sentence"),
    [
        (Loss(name="pop", config={}), {}, "unknown loss 'pop'; did you mean 'ppo'"),
        (Loss(name="ppo", config={"clip": 1.0}), {}, "unknown setting of the loss ppo 'clip'"),
        (Loss(name="dro", config={}), {}, "the loss dro needs a finite 'beta' in its loss_fn_config"),
        (Loss(name="ppo", config={}), {"advantages": 1.0}, "datum 0: the loss ppo needs 'logprobs'"),
        (CE, {"weight": 1.0}, "unknown input of the loss cross_entropy in datum 0 'weight'"),
        (CE, {"weights": float("nan")}, "datum 0: weights holds numbers that are not finite"),
    ],
)
def test_what_cannot_be_learned_is_a_sentence(base, loss: Loss, inputs: Any, sentence: str) -> None:
    learner = base.learner(SHAPE, seed=1)
    with pytest.raises(UsageError, match=sentence):
        learner.forward([example(" x", **inputs)], loss, backward=True)
    base.drop(learner)


@pytest.mark.parametrize("rate", [3e37, 3e38, 1e300])
def test_a_step_after_which_weights_are_not_finite_is_undone(base, rate: float) -> None:
    learner = base.learner(SHAPE, seed=1)

    def state() -> list[torch.Tensor]:
        own = learner.optimizer
        return [one.detach().clone() for one in (*own.parameters, *own._moments().values())]

    learner.forward([example(" fine", weights=1.0)], CE, backward=True)
    learner.step(AdamParams(learning_rate=1e-3))
    before = state()
    learner.forward([example(" fine", weights=1.0)], CE, backward=True)
    with pytest.raises(
        UsageError, match=r"weights would not be finite: it is undone.* smaller learning rate"
    ):
        learner.step(AdamParams(learning_rate=rate, weight_decay=100.0))
    assert all(map(torch.equal, state(), before))
    assert learner.step(AdamParams()) == 0  # the gradient is gone
    base.drop(learner)


def test_a_ratio_beyond_all_bounds_is_refused_and_leaves_the_gradient(base) -> None:
    learner = base.learner(SHAPE, seed=1)
    bad = example(" x", advantages=1.0, logprobs=-1000.0)
    with pytest.raises(UsageError, match="the loss importance_sampling is not finite"):
        learner.forward([bad], Loss(name="importance_sampling", config={}), backward=True)
    assert all(p.grad is None for p in learner.optimizer.parameters)
    base.drop(learner)
