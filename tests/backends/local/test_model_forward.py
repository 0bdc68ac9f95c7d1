"""Models whose attention is not the usual one run in their own forward pass, with the same results."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from genenv.backends.local import model_forward
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UsageError
from genenv.sampling import Conversation, SampleRequest

GEMMA = {"query_pre_attn_scalar": 16, "final_logit_softcapping": None, "attn_logit_softcapping": None}
SINKS = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
QWEN_MOE = EXPERTS | {"shared_expert_intermediate_size": 32, "max_window_layers": 1}
LFM = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
UNUSUAL = {
    "capped scores": ("gemma2", GEMMA | {"attn_logit_softcapping": 2.0}, "it caps its attention scores"),
    "a small window": ("mistral", {"sliding_window": 8}, "its attention is not the usual one"),
    "a window": ("mistral", {"sliding_window": 64}, "policy.context_tokens of 64 or less avoids this"),
    "some windows": ("gemma2", GEMMA | {"sliding_window": 100}, "policy.context_tokens of 100 or less"),
    "windows in masks alone": (
        "qwen2_moe",
        QWEN_MOE | {"use_sliding_window": True, "sliding_window": 64},
        "policy.context_tokens of 64 or less avoids this",
    ),
    "a mask of the layers' own": ("doge", {}, "it has an attention mask of its own"),
    "two attentions in a layer": ("diffllama", {}, "its attention is not the usual one"),
    "no attention in some layers": ("lfm2", LFM, ""),
    "sinks": ("gpt_oss", SINKS, "it has attention sinks"),
}


@pytest.fixture(scope="module", params=UNUSUAL)
def unusual(request, tiny):
    """A player, the same model in transformers' own hands, and why it is unusual."""
    kind, changes, reason = UNUSUAL[request.param]
    plain = tiny.plain(kind, **changes)
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        logger = logging.getLogger("genenv.backends.local.model_forward")
        patch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
        policy = tiny.player(kind, folder=tiny.folder(kind, **changes))
    return policy, plain, reason, said


def test_one_sentence_says_that_it_is_slower_and_why(unusual):
    policy, _, reason, said = unusual
    assert policy.model.own_forward
    (sentence,) = said
    assert "several times slower" in sentence
    assert reason in sentence


def test_windows_that_no_layer_uses_change_nothing(tiny):
    folder = tiny.folder("qwen2_moe", **QWEN_MOE, use_sliding_window=False, sliding_window=64)
    assert not tiny.model("qwen2_moe", folder=folder).own_forward


def asked() -> list[SampleRequest]:
    prompts = [tuple(range(5, 5 + n)) for n in (4, 19, 11)]
    return [
        SampleRequest(prompt_ids=prompt, max_tokens=3 + 9 * i, stream=10 * p + i)
        for p, prompt in enumerate(prompts)
        for i in range(3)
    ]


def test_samples_have_the_log_probabilities_of_single_sequences(unusual):
    policy, plain, *_ = unusual
    for request, completion in zip(asked(), policy.sample_all(asked()), strict=True):
        assert completion.finished or len(completion.token_ids) == request.max_tokens
        ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
        with torch.no_grad():
            scores = plain(ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        expected = scores.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.long
def test_samples_do_not_depend_on_who_is_sampled_beside_them(unusual, monkeypatch):
    policy, *_ = unusual
    together = policy.sample_all(asked())
    plain = policy._engine
    monkeypatch.setattr(policy, "_engine", lambda _, prefill: plain(2, prefill))
    for one, other in zip(together, policy.sample_all(asked()), strict=True):
        assert one.token_ids == other.token_ids


def test_a_mixed_batch_is_sampled_as_in_packed_attention(tiny, monkeypatch):
    usual = tiny.player(noise=0.05)
    monkeypatch.setattr(model_forward, "_why_not_packed", lambda *_: "a test says so")
    own = tiny.player(noise=0.05)
    schema = {"type": "object", "properties": {"n": {"enum": [12, 345]}}, "required": ["n"]}
    kinds = [
        {},
        {"temperature": 0.0},
        {"top_p": 0.5},
        {"temperature": 0.7},
        {"schema": schema},
        {"conversation": Conversation()},
    ]
    mixed = [replace(request, **kinds[i % len(kinds)]) for i, request in enumerate(asked())]
    for one, other in zip(usual.sample_all(mixed), own.sample_all(mixed), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_prompts_are_read_a_bounded_number_at_a_time(tiny, monkeypatch):
    monkeypatch.setattr(model_forward, "_why_not_packed", lambda *_: "a test says so")
    policy = tiny.player(noise=0.05)
    together = policy.sample_all(asked())
    monkeypatch.setattr(model_forward, "_PREFILLS", 1)
    plain, widest = policy._engine, []
    monkeypatch.setattr(policy, "_engine", lambda rows, _: plain(rows, 40))
    hidden = policy.model.hidden
    monkeypatch.setattr(
        policy.model, "hidden", lambda ids, *rest: widest.append(ids.numel()) or hidden(ids, *rest)
    )
    for one, other in zip(together, policy.sample_all(asked()), strict=True):
        assert one.token_ids == other.token_ids
    assert max(widest) <= 40


BUNDLES = [
    Bundle(prompt_ids=range(3, 20), completions=[range(7, 12), (), range(30, 51)]),
    Bundle(prompt_ids=range(3, 9)),
    Bundle(prompt_ids=range(3, 25), completions=[[9]]),
]


def test_log_probabilities_equal_those_of_single_sequences(unusual):
    policy, plain, *_ = unusual
    expected = []
    for bundle in BUNDLES:
        for row in filter(len, bundle.completions):
            ids = torch.tensor([[*bundle.prompt_ids, *row]])
            scores = plain(ids).logits[0, len(bundle.prompt_ids) - 1 : -1].log_softmax(-1)
            expected.append(scores.gather(1, ids[0, len(bundle.prompt_ids) :, None])[:, 0])
    with torch.no_grad():
        found = policy.weights.logprobs(Packed(BUNDLES, policy.model.device))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tokens", [1024, 64])  # all at once, and a sequence at a time
@pytest.mark.parametrize("adapter", ["agent", None])
def test_samples_and_gradients_equal_those_of_packed_attention(tiny, monkeypatch, adapter, tokens):
    settings = {"noise": 0.05, "adapter": adapter, "tokens_per_microbatch": tokens}
    policies = [tiny.player(**settings)]
    monkeypatch.setattr(model_forward, "_why_not_packed", lambda *_: "a test says so")
    policies.append(tiny.player(**settings))
    assert [policy.model.own_forward for policy in policies] == [False, True]
    found = []
    for policy in policies:
        policy.weights.logprobs(Packed(BUNDLES, policy.model.device)).sum().backward()
        gradients = {name: parameter.grad for name, parameter in policy.weights.parameters()}
        found.append(([completion.token_ids for completion in policy.sample_all(asked())], gradients))
    (ids, gradients), (other_ids, other_gradients) = found
    assert ids == other_ids
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_positions_that_depend_on_the_longest_sequence_are_refused(kind: str, tiny) -> None:
    """One long sequence would turn the keys of all that are computed with it."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {"factor": 4.0}
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "original_max_position_embeddings": 64, **factors}
    causal = tiny.plain("qwen2")
    causal.config.get_text_config().rope_parameters = rope
    with pytest.raises(UsageError, match=rf"rope_type '{kind}'.*policy.context_tokens to 64 or less"):
        model_forward.use_packed_attention(causal, "it", context_tokens=65)
