"""The fused layers say what the layers of transformers and PEFT say, forwards and backwards."""

from __future__ import annotations

import logging

import pytest
import torch

from genenv.backends.local.attention import Layout
from genenv.backends.local.fused_decoder import FAMILIES, FusedDecoder, why_not
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalSampler

FAMILY_NAMES = ("llama", "mistral", "qwen2", "qwen3")
BUNDLES = [
    Bundle(prompt_ids=[1, 2, 3, 4, 5], completions=[[6, 7, 8], [9, 10]]),
    Bundle(prompt_ids=[1, 2, 30, 4], completions=[[60, 7, 8]]),
]


def hidden_and_gradients(policy, *, fused: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = policy.model
    packed = Packed(BUNDLES, model.device)
    own = model.fused
    assert own is not None
    model.fused = own if fused else None
    for _, parameter in policy.weights.parameters():
        parameter.grad = None
    with policy.weights.active():
        states = model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    model.fused = own
    return states.detach(), {name: p.grad.clone() for name, p in policy.weights.parameters()}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,up_proj", "k_proj,v_proj,down_proj"])
@pytest.mark.parametrize("kind", FAMILY_NAMES)
def test_states_and_gradients_equal_those_of_transformers(tiny, kind, targets):
    policy = tiny.player(kind, noise=0.05, lora_targets=targets)
    states, gradients = hidden_and_gradients(policy, fused=True)
    expected_states, expected = hidden_and_gradients(policy, fused=False)
    assert relative(states, expected_states) < 2e-6
    assert gradients.keys() == expected.keys()
    assert max(relative(gradients[name], expected[name]) for name in expected) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_rounding_is_no_worse_than_that_of_transformers(tiny, kind):
    policy = tiny.player(kind, noise=0.05)
    found, expected = (hidden_and_gradients(policy, fused=flag) for flag in (True, False))
    policy.model.causal.double()
    exact = hidden_and_gradients(policy, fused=False)  # the fused layers hold on to their float32 tensors
    worst = [max(relative(run[1][name], exact[1][name]) for name in exact[1]) for run in (found, expected)]
    assert worst[0] < 2 * worst[1]


def test_bfloat16_is_as_close_as_its_digits_allow(tiny):
    half = tiny.player("llama", noise=0.05, dtype="bfloat16")
    states, gradients = hidden_and_gradients(half, fused=True)
    full = tiny.player("llama", noise=0.05)
    expected_states, expected = hidden_and_gradients(full, fused=True)
    assert states.dtype == torch.bfloat16
    assert relative(states, expected_states) < 0.03
    assert all(gradients[name].dtype == parameter.dtype for name, parameter in half.weights.parameters())
    assert max(relative(gradients[name], expected[name]) for name in expected) < 0.1


def kept_bytes(policy, budget: float) -> tuple[int, int, dict[str, torch.Tensor]]:
    """Bytes kept for the backward pass of the layers, tokens, and gradients."""
    model = policy.model
    model.fused._activation_bytes = budget
    weights = {p.untyped_storage().data_ptr() for p in model.causal.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = [list(range(5, 25))] * 4
    packed = Packed(
        [Bundle(prompt_ids=[i + 1, *range(1, 40)], completions=rows) for i in range(3)], model.device
    )
    for _, parameter in policy.weights.parameters():
        parameter.grad = None
    with policy.weights.active(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed))
        total = sum(kept.values())
        states.square().sum().backward()
    return total, packed.ids_1N.shape[1], {name: p.grad.clone() for name, p in policy.weights.parameters()}


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_layers_are_computed_twice_when_memory_is_short(tiny, kind):
    policy = tiny.player(kind, noise=0.05)
    plenty, tokens, expected = kept_bytes(policy, float("inf"))
    sizes = policy.model.fused.sizes
    estimate = 4 * tokens * sizes.layers * sizes.kept_by_fused_layer
    assert 0.75 < plenty / estimate < 1.25
    assert kept_bytes(policy, 1.01 * estimate)[0] == plenty
    short, _, gradients = kept_bytes(policy, 0.99 * estimate)
    assert short < plenty / 8
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_the_budget_is_a_setting_and_otherwise_a_share_of_the_memory(tiny):
    assert tiny.player(activation_gib=0.5).model.fused._activation_bytes == 2**29
    assert 2**26 < tiny.player().model.fused._activation_bytes < 2**42


def test_another_adapter_or_none_is_another_model(tiny):
    policy = tiny.player(noise=0.05)
    policy.model.add_adapter("simulator", seed=9)
    packed = Packed(BUNDLES, policy.model.device)

    def states(adapter: str | None) -> torch.Tensor:
        with torch.no_grad():
            layout = Layout(packed=packed)
            return policy.model.fused.hidden(packed.ids_1N, packed.positions_1N, layout, adapter)

    assert torch.equal(states("simulator"), states(None))  # it has not learned anything yet
    assert not torch.allclose(states("agent"), states(None), atol=1e-3)


def test_projections_are_views_of_their_joint_tensor(tiny):
    model = tiny.player().model
    attention = model.causal.get_decoder().layers[0].self_attn
    weights = [getattr(attention, f"{x}_proj").base_layer.weight for x in "qkv"]
    joint = model.fused.layers[0].qkv.product.weight
    assert {weight.untyped_storage().data_ptr() for weight in weights} == {joint.untyped_storage().data_ptr()}
    assert torch.equal(joint, torch.cat([weight.detach() for weight in weights]))


def test_what_is_not_known_runs_in_the_layers_of_transformers(tiny, caplog):
    with caplog.at_level(logging.INFO, "genenv.backends.local.model_forward"):
        policy = _player_of(tiny, hidden_act="gelu")
    assert policy.model.fused is None
    assert "its activation is gelu, not silu" in caplog.text
    packed = Packed(BUNDLES, policy.model.device)
    with torch.no_grad():
        assert torch.isfinite(policy.weights.logprobs(packed)).all()


def _player_of(tiny, **changes):
    model = tiny.model(folder=tiny.folder("llama", **changes))
    model.add_adapter("agent", seed=3)
    return LocalSampler(PolicyWeights(model, "agent"))


def test_results_that_differ_are_not_used(tiny, caplog, monkeypatch):
    wrong = FusedDecoder.hidden
    monkeypatch.setattr(FusedDecoder, "hidden", lambda *arguments: wrong(*arguments).flip(0))
    with caplog.at_level(logging.INFO, "genenv.backends.local.model_forward"):
        assert tiny.player().model.fused is None
    assert "differ by" in caplog.text


def test_a_setting_leaves_them_out(tiny):
    assert tiny.player(decoder="transformers").model.fused is None


def test_the_families_are_those_that_are_tested(tiny):
    assert {type(tiny.plain(kind).get_decoder()).__name__ for kind in FAMILY_NAMES} == set(FAMILIES)
    assert why_not(tiny.plain("gemma")) is not None
