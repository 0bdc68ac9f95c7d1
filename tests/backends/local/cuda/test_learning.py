"""The decoder over a tree of tokens says what the usual one says, forwards and backwards."""

from __future__ import annotations

import asyncio
import logging

import pytest
import torch

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.cuda import learning, tree_layers
from genenv.backends.local.cuda.learning import TreeDecoder, compiled_scores
from genenv.backends.local.cuda.tree_layers import TreeMask
from genenv.backends.local.packing import Bundle, Packed, TokenTree
from genenv.backends.local.token_logprobs import frozen_scores
from genenv.backends.local.trainer import LocalTrainer
from tensors import random

CPU = torch.device("cpu")
BUNDLES = [
    Bundle(prompt_ids=[1, 2, 3, 4, 5], completions=[[6, 7, 8], [], [9, 10]]),
    Bundle(prompt_ids=[1, 2, 30, 4], completions=[[60, 7, 8]]),
    Bundle(prompt_ids=[1, 2, 3], completions=[[60, *range(100, 250)]]),
]
KINDS = ("llama", "mistral", "qwen2", "qwen3")


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def logprobs_and_gradients(policy, tree: TreeDecoder | None):
    policy.model.tree = tree
    for _, parameter in policy.weights.parameters():
        parameter.grad = None
    with policy.weights.active():
        hidden, tokens = policy.weights.completion_hidden(policy.weights.packed(BUNDLES))
        found = frozen_scores(policy.model.output, hidden, tokens).logprobs_M
        (found * torch.linspace(-1, 1, len(found), device=found.device)).sum().backward()
    return found.detach(), {name: p.grad.clone() for name, p in policy.weights.parameters()}


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,up_proj", "k_proj,v_proj,o_proj,down_proj"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_gradients_equal_those_of_the_usual_layers(tiny, kind, targets):
    policy = tiny.player(kind, noise=0.05, lora_targets=targets)
    found, gradients = logprobs_and_gradients(policy, TreeDecoder(policy.model.fused, compile=False))
    assert isinstance(policy.weights.packed(BUNDLES), TokenTree)
    expected, expected_gradients = logprobs_and_gradients(policy, None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert max(relative(gradients[name], expected_gradients[name]) for name in gradients) < 1e-5


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_layers_that_are_computed_twice_give_the_same_gradient(tiny, kind):
    policy = tiny.player(kind, noise=0.05)
    found = logprobs_and_gradients(policy, TreeDecoder(policy.model.fused, compile=False))
    short = logprobs_and_gradients(policy, TreeDecoder(policy.model.fused, 1.0, compile=False))
    assert torch.equal(found[0], short[0])
    assert all(torch.equal(found[1][name], short[1][name]) for name in found[1])


def attempt(prompt: range, ids: range) -> Datum:
    ones = (1.0,) * len(ids)
    values = {"weights": ones, "advantages": ones, "old_logprobs": (-5.0,) * len(ids), "loss": "ppo"}
    return Datum(prompt_ids=tuple(prompt), completion_ids=tuple(ids), **values)  # type: ignore[arg-type]


def kl_of(policy, data: list[Datum]) -> float:
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    return asyncio.run(trainer.forward_backward(data, Objective(kl="k3")))["kl"]


def test_kl_without_weight_is_measured_on_a_part_of_a_large_micro_batch(tiny, monkeypatch):
    policy = tiny.player("qwen3", noise=0.05)
    data = [attempt(range(1, 9), range(20 + 9 * i, 29 + 9 * i)) for i in range(20)]
    long = attempt(range(50, 52), range(100, 220))
    begin = attempt(range(50, 52), range(100, 115))
    alone = [kl_of(policy, [datum]) for datum in (data[0], begin)]
    policy.model.tree = TreeDecoder(policy.model.fused, compile=False)
    asked, packed = [], policy.weights.packed
    monkeypatch.setattr(policy.weights, "packed", lambda bundles: asked.append(bundles) or packed(bundles))
    assert kl_of(policy, data) == pytest.approx(alone[0], rel=1e-4)
    assert [len(bundles[0].completions) for bundles in asked] == [20, 1]
    assert kl_of(policy, [long]) == pytest.approx(alone[1], rel=1e-4)  # 122 tokens: on an eighth of them
    assert [bundle.tokens for bundle in asked[-1]] == [17]
    with pytest.raises(KeyError):  # the prompt has half of the tokens
        kl_of(policy, data[:1])


def test_without_an_adapter_it_is_the_base(tiny):
    policy = tiny.player("qwen3", noise=0.05)
    with torch.no_grad(), policy.weights.reference():
        expected = policy.weights.logprobs(policy.weights.packed(BUNDLES))
    policy.model.tree = TreeDecoder(policy.model.fused, compile=False)
    with torch.no_grad(), policy.weights.reference():
        found = policy.weights.logprobs(policy.weights.packed(BUNDLES))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad(), policy.weights.active():
        own = policy.weights.logprobs(policy.weights.packed(BUNDLES))
    assert not torch.allclose(own, expected, atol=1e-3)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile:UserWarning")
def test_flex_attention_says_what_dense_attention_says():
    bundles = [
        Bundle(prompt_ids=range(200), completions=[range(150), range(9)]),
        Bundle(prompt_ids=[*range(130), 7], completions=[range(20)]),
    ]
    tree = TokenTree(bundles, CPU)
    q, k, v = (random(len(tree.ids_N), heads, 16, seed=heads) for heads in (4, 2, 2))
    q_SB, k_SB, v_SB = (each.unflatten(0, (tree.blocks, -1)) for each in (q, k, v))
    found = tree_layers.flex(q_SB, k_SB, v_SB, TreeMask.of(tree), 0.25).flatten(0, 1)
    torch.testing.assert_close(found, tree_layers.dense(q, k, v, tree, 0.25), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_and_their_derivatives_are_the_same(masked, temperature, monkeypatch):
    monkeypatch.setattr("genenv.backends.local.cuda.learning.ROWS", 5)
    head = torch.nn.Linear(8, 40)
    tokens = torch.arange(12)
    allowed = torch.full((12, 2), -1, dtype=torch.int32)
    allowed[:, 1] = 3
    results = []
    for scores, options in ((frozen_scores, {}), (compiled_scores, {"compile": False})):
        hidden = random(12, 8, seed=3).requires_grad_()
        asked = {"temperature": temperature, "allowed": allowed if masked else None, "entropy": True}
        found = scores(head, hidden, tokens, random(12, 8, seed=4), **asked, **options)
        ((found.logprobs_M + 0.3 * found.kl_M - 0.2 * found.entropy_M) * torch.arange(12)).sum().backward()
        results.append((*(each.detach() for each in found), hidden.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_where_layers_cannot_be_compiled_a_sentence_says_so_and_the_usual_ones_run(tiny, caplog, monkeypatch):
    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("no Triton here")

    policy = tiny.player("qwen3", noise=0.05)
    monkeypatch.setattr(learning, "TreeLayer", no_compiler)
    policy.model.tree = TreeDecoder(policy.model.fused)
    with caplog.at_level(logging.WARNING):
        assert isinstance(policy.weights.packed(BUNDLES), Packed)
        assert isinstance(policy.weights.packed(BUNDLES), Packed)
    assert [record.getMessage() for record in caplog.records] == [
        "learning runs without compiled layers, which is slower: no Triton here"
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_gpu_learns_what_a_cpu_learns(tiny, kind):
    own = tiny.player(kind, noise=0.05, device="cuda")
    assert own.model.tree is not None
    assert own.weights.runs_compiled
    found, gradients = logprobs_and_gradients(own, own.model.tree)
    expected, expected_gradients = logprobs_and_gradients(tiny.player(kind, noise=0.05), None)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
    assert max(relative(gradients[name].cpu(), expected_gradients[name]) for name in gradients) < 1e-3


def test_gradients_are_tried_also_where_another_player_is_in_place(tiny, monkeypatch):
    policy = tiny.player("qwen3", noise=0.05)
    policy.model.add_adapter("other", seed=4)
    policy.model.use("other")  # PEFT takes the gradients of the first one away
    tree = TreeDecoder(policy.model.fused, compile=False)
    assert tree._tried("agent", learning=True)
    matrices = tree._adapters_of("agent").matrices
    assert matrices
    assert not any(matrix.requires_grad for matrix in matrices)
    monkeypatch.setattr(tree_layers, "swiglu_back", lambda joint, dy: torch.ones_like(joint))
    assert not tree._tried("agent", learning=True)
