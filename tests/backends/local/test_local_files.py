"""Which models can be used, and that weights and optimizers come back bit for bit or not at all."""

from __future__ import annotations

import json
import shutil

import peft
import pytest
import safetensors.torch
import torch

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.optimizer import FILE, Optimizer
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import DataError, UsageError

PACKED = Packed([Bundle(prompt_ids=[3, 5, 9], completions=[[4, 4, 8], [1]])], torch.device("cpu"))


def optimizer_of(policy) -> Optimizer:
    return Optimizer(policy.weights.parameters(), OptimizerConfig(betas=(0.9, 0.99), weight_decay=0.01))


def state(policy, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Copies of parameters and moments."""
    values = {**dict(policy.weights.parameters()), **optimizer._moments()}
    return {name: value.detach().clone() for name, value in values.items()}


def step(policy, optimizer: Optimizer) -> None:
    with policy.weights.active():
        policy.weights.logprobs(PACKED).sum().neg().backward()
    optimizer.step(0.01)


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("adapter", ["agent", None])
def test_training_on_after_a_load_equals_training_without_a_break(tiny, tmp_path, adapter):
    straight = tiny.player(adapter=adapter)
    optimizer = optimizer_of(straight)
    step(straight, optimizer)
    straight.weights.anchor()
    straight.weights.save(tmp_path)
    optimizer.save(tmp_path)
    with torch.no_grad(), straight.weights.reference():
        anchored = straight.weights.logprobs(PACKED)
    resumed = tiny.player(adapter=adapter)
    other = optimizer_of(resumed)
    resumed.weights.load(tmp_path)
    other.load(tmp_path)
    assert equal(state(resumed, other), state(straight, optimizer))
    for policy, its_optimizer in ((straight, optimizer), (resumed, other)):
        step(policy, its_optimizer)
    assert equal(state(resumed, other), state(straight, optimizer))
    with torch.no_grad(), resumed.weights.reference():
        assert torch.equal(resumed.weights.logprobs(PACKED), anchored)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_saved_adapter_is_one_that_peft_loads(tiny, tmp_path):
    policy = tiny.player(noise=0.1)
    policy.weights.save(tmp_path)
    model = peft.PeftModel.from_pretrained(tiny.plain(), tmp_path)
    with torch.no_grad(), policy.weights.active():
        scores = model(torch.tensor([[3, 5, 9, 4, 4, 8]])).logits[0, 2:5].log_softmax(-1)
        expected = policy.weights.logprobs(PACKED)[:3]
    torch.testing.assert_close(scores[[0, 1, 2], [4, 4, 8]], expected, atol=1e-5, rtol=0)


def test_a_saved_adapter_lists_its_layers_in_one_order(tiny, tmp_path):
    tiny.player().weights.save(tmp_path)
    layers = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))["target_modules"]
    assert len(layers) > 1
    assert layers == sorted(layers)


def test_a_saved_whole_model_is_one_that_genenv_loads_again(tiny, tmp_path):
    policy = tiny.player(adapter=None)
    tiny.disturb(policy, 0.05)
    policy.weights.save(tmp_path)
    again = tiny.model(folder=tmp_path)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.causal.parameters(), policy.model.causal.parameters(), strict=True)
    )


@pytest.mark.parametrize("adapter", ["agent", None])
@pytest.mark.parametrize("damage", ["cut", "missing", "incomplete", "pickled"])
def test_damaged_weights_are_one_sentence(tiny, tmp_path, adapter, damage):
    policy = tiny.player(adapter=adapter)
    policy.weights.save(tmp_path)
    file = tmp_path / ("adapter_model.safetensors" if adapter else "model.safetensors")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    elif damage == "pickled":  # which could run code when it is read
        name = "adapter_model.bin" if adapter else "pytorch_model.bin"
        torch.save(safetensors.torch.load_file(file), tmp_path / name)
        file.unlink()
    else:
        state = safetensors.torch.load_file(file)
        state.pop(sorted(state)[0])
        safetensors.torch.save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"cannot be read|not complete|belongs to another"):
        policy.weights.load(tmp_path)


def test_an_adapter_of_another_rank_is_one_sentence(tiny, tmp_path):
    tiny.player(lora_rank=2).weights.save(tmp_path)
    with pytest.raises(DataError, match="belongs to another model or other LoRA settings"):
        tiny.player(lora_rank=4).weights.load(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "missing", "other rank"])
def test_a_damaged_optimizer_is_one_sentence(tiny, tmp_path, damage):
    optimizer = optimizer_of(tiny.player(lora_rank=2 if damage == "other rank" else 4))
    optimizer.save(tmp_path)
    file = tmp_path / FILE
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    with pytest.raises(DataError, match="optimizer state"):
        optimizer_of(tiny.player()).load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "bert"}, "not a causal language model"),
        ({"template": None}, "has no chat template"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_sentence(tiny, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        tiny.model(folder=tiny.folder(**changes))


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_a_sliding_window_as_wide_as_the_context_is_no_obstacle(tiny, kind):
    folder = tiny.folder(kind, sliding_window=256, use_sliding_window=True, max_window_layers=0)
    assert not tiny.model(folder=folder, context_tokens=256).own_forward
    assert tiny.model(folder=folder, context_tokens=257).own_forward


@pytest.mark.parametrize("name", ["./nothing-here", "/nothing/here"])
def test_a_missing_folder_is_one_sentence(tiny, name):
    with pytest.raises(UsageError, match="there is no model folder"):
        tiny.model(folder=name)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("config.json", "holds no config.json"),
        ("model.safetensors", r"the weights of .* could not be loaded"),
    ],
)
def test_a_folder_with_a_file_missing_is_one_sentence(tiny, tmp_path, file, sentence):
    folder = shutil.copytree(tiny.folder(), tmp_path / "model")
    (folder / file).unlink()
    with pytest.raises(UsageError, match=sentence):
        tiny.model(folder=folder)


def test_damaged_base_weights_are_one_sentence(tiny, tmp_path):
    folder = shutil.copytree(tiny.folder(), tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"the weights of .* could not be loaded"):
        tiny.model(folder=folder)


@pytest.mark.parametrize("targets", ["no_such_layer", "lm_head"])
def test_lora_targets_that_do_not_fit_are_one_sentence(tiny, targets):
    model = tiny.model(lora_targets=targets)
    with pytest.raises(UsageError, match=r"policy\.lora_targets"):
        model.add_adapter("agent", seed=0)


def test_lora_targets_are_names_separated_by_commas(tiny, tmp_path):
    policy = tiny.player(lora_targets="q_proj, v_proj")
    layers = {name.split(".")[-4] for name, _ in policy.weights.parameters()}
    assert layers == {"q_proj", "v_proj"}
    policy.weights.save(tmp_path)
    assert set(json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]) == layers
