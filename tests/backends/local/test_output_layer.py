"""What some models do to the scores of their output layer is done here too."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from genenv.backends.local import model_forward
from genenv.backends.local.model_forward import Shaping, shaping
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UsageError
from genenv.sampling import SampleRequest

SHAPED = [
    ("gemma2", {"final_logit_softcapping": 1.0, "query_pre_attn_scalar": 16, "attn_logit_softcapping": None}),
    ("granite", {"logits_scaling": 8.0}),
    ("cohere", {"logit_scale": 0.0625}),
]


def test_scores_are_scaled_and_capped_as_worked_out_by_hand():
    found = Shaping(factor=0.5, cap=2.0)(torch.tensor([4.0, -8.0]))
    assert found.tolist() == pytest.approx([2 * math.tanh(1.0), 2 * math.tanh(-2.0)])
    assert shaping(transformers.AutoConfig.for_model("qwen3")).is_nothing


@pytest.mark.parametrize(("kind", "changes"), SHAPED)
@pytest.mark.parametrize("adapter", ["agent", None])
def test_log_probabilities_and_gradients_are_those_of_transformers(tiny, kind, changes, adapter):
    folder = tiny.folder(kind, **changes)
    policy = tiny.player(folder=folder, adapter=adapter, tuning="lora" if adapter else "full")
    assert not policy.weights.head_is_frozen
    plain = tiny.plain(kind, **changes)
    ids = torch.tensor([[5, 9, 2, 44, 60, 70, 81]])
    expected = plain(ids).logits[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    packed = Packed([Bundle(prompt_ids=[5, 9, 2], completions=[ids[0, 3:].tolist()])], policy.model.device)
    found = policy.weights.logprobs(packed)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    if adapter is None:
        expected.sum().backward()
        found.sum().backward()
        of = dict(plain.named_parameters())
        for name, parameter in policy.weights.parameters():
            torch.testing.assert_close(parameter.grad, of[name].grad, atol=1e-4, rtol=1e-3, msg=name)
        hidden = torch.randn(2, 64)
        assert torch.equal(policy.weights.frozen_head()(hidden), policy.model.head(hidden))


@pytest.mark.parametrize(("kind", "changes"), SHAPED)
def test_samples_have_the_log_probabilities_that_the_trainer_finds(tiny, kind, changes):
    policy = tiny.player(folder=tiny.folder(kind, **changes), noise=0.05)
    request = SampleRequest(prompt_ids=(5, 9, 2), max_tokens=8, stream=1)
    (sampled,) = policy.sample_all([request])
    packed = Packed([Bundle(prompt_ids=(5, 9, 2), completions=[sampled.token_ids])], policy.model.device)
    with torch.no_grad(), policy.weights.active():
        assert sampled.logprobs == pytest.approx(policy.weights.logprobs(packed).tolist(), abs=1e-4)


def test_a_model_that_does_something_else_to_its_scores_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(model_forward, "scores_of", lambda causal, hidden: causal.lm_head(hidden))
    with pytest.raises(UsageError, match="it does something to its scores"):
        tiny.model(folder=tiny.folder("granite", logits_scaling=8.0))
