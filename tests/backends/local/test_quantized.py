"""A frozen base in 4 bits: its numbers are those of nf4, adapters on it learn, and what it does not allow."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local import loading
from genenv.backends.local.memory_estimate import NF4_BYTES, estimate_memory, memory_needs, shape_in
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.local.sharding import check_can_shard
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError
from genenv.sampling import SampleRequest
from learners import gradients_of, qwen_7b
from lessons import imitated, weighted
from typed import refused, succeeds

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
NF4 = {"quantize": "nf4"}
LAYER = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def dequantized(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model whose linear layers are what nf4 makes of them, as numbers again."""
    functional = pytest.importorskip("bitsandbytes").functional
    folder = shutil.copytree(tiny.folder(), tmp_path_factory.mktemp("numbers") / "model")
    file = folder / "model.safetensors"
    state = safetensors.torch.load_file(file)
    for name, weight in state.items():
        if "proj" in name:
            packed = functional.quantize_4bit(
                weight, blocksize=64, compress_statistics=True, quant_type="nf4"
            )
            state[name] = functional.dequantize_4bit(*packed)
            assert not torch.equal(state[name], weight)
    safetensors.torch.save_file(state, file, metadata={"format": "pt"})
    return folder


def gradients(sampler: Any, data: list[Datum]) -> tuple[float, dict[str, torch.Tensor]]:
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    sums = asyncio.run(trainer.forward_backward(data, Objective()))
    found = gradients_of(trainer.optimizer)
    trainer.optimizer.clear()
    return sums["loss"], found


@needs_bitsandbytes
@pytest.mark.parametrize("gib", [0.0, 1e-9])
def test_loss_and_gradients_are_those_of_a_base_whose_weights_are_rounded_to_nf4(
    tiny: Any, dequantized: Path, gib: float
) -> None:
    policy = tiny.player(noise=0.05, activation_gib=gib, **NF4)
    assert policy.model.causal.get_submodule(LAYER).base_layer.weight.dtype == torch.uint8
    assert policy.model._recomputes(10) == (gib > 0)
    rounded = tiny.player(folder=dequantized, noise=0.05, decoder="transformers")
    loss, found = gradients(policy, weighted(1.0, 0.5, -1.0))
    expected_loss, expected = gradients(rounded, weighted(1.0, 0.5, -1.0))
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_trainer_agree_before_and_after_the_first_update(tiny: Any, dtype: str) -> None:
    policy = tiny.player(noise=0.05, dtype=dtype, **NF4)
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    for stream in range(2):
        prompt = (5, 9, 2, 44)
        asked = [SampleRequest(prompt_ids=prompt, max_tokens=8, stream=10 * stream + i) for i in range(4)]
        sampled = policy.sample_all(asked)
        data = [imitated(prompt, tuple(one.token_ids)) for one in sampled]
        scored = asyncio.run(trainer.logprobs(data))
        for one, own in zip(sampled, scored, strict=True):
            assert own == pytest.approx(one.logprobs, abs=1e-4 if dtype == "float32" else 0.15)
        asyncio.run(trainer.forward_backward(data, Objective()))
        asyncio.run(trainer.step(1e-2))


def taught(trainer: LocalTrainer, steps: int) -> list[float]:
    async def learn() -> list[float]:
        found = []
        for _ in range(steps):
            found.append((await trainer.forward_backward(weighted(1.0, 1.0, 1.0), Objective()))["loss"])
            await trainer.step(1e-2)
        return found

    return asyncio.run(learn())


@needs_bitsandbytes
def test_adapters_learn_and_go_on_from_a_checkpoint_as_if_never_stopped(tiny: Any, tmp_path: Path) -> None:
    policy = tiny.player(**NF4)
    base = policy.model.causal.get_submodule(LAYER).base_layer.weight.clone()
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    losses = taught(trainer, 6)
    assert losses[-1] < 0.7 * losses[0]
    asyncio.run(trainer.save(tmp_path))
    again = tiny.player(**NF4)
    other = LocalTrainer(again.weights, OptimizerConfig())
    asyncio.run(other.load(tmp_path))
    assert taught(other, 3) == taught(trainer, 3)
    for name, value in tiny.values(policy).items():
        assert torch.equal(tiny.values(again)[name], value)
    assert torch.equal(policy.model.causal.get_submodule(LAYER).base_layer.weight, base)


@needs_bitsandbytes
def test_an_adapter_is_saved_as_on_any_base_and_served_on_both(tiny: Any, tmp_path: Path) -> None:
    policy = tiny.player(noise=0.05, **NF4)
    policy.weights.write_adapter(tmp_path)
    asked = [SampleRequest(prompt_ids=(5, 9, 2), max_tokens=6, stream=i) for i in range(3)]
    here = policy.sample_all(asked)
    config = {"dtype": "float32", "device": "cpu", "threads": 1, "context_tokens": 256}
    found = {}
    for quantize in ("nf4", "none"):
        base = LoadedBase(str(tiny.folder()), PolicyConfig.model_validate(config | {"quantize": quantize}))
        base.load("mine", tmp_path)
        found[quantize] = base.sample("mine", asked)
    for one, other in zip(found["nf4"], here, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert [one.logprobs for one in found["none"]] != [one.logprobs for one in here]


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["gemma2", "qwen2", "gpt2"])
def test_other_architectures_are_quantized_as_well(tiny: Any, kind: str) -> None:
    policy = tiny.player(kind, noise=0.05, **NF4)
    loss, found = gradients(policy, weighted(1.0, 1.0, 1.0))
    assert loss > 0
    assert any(gradient.abs().max() > 0 for gradient in found.values())


@needs_bitsandbytes
def test_what_a_quantized_base_does_not_allow_is_refused_in_one_sentence(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"weights in 4 bits cannot be trained; use policy\.tuning='lora'"):
        tiny.model(tuning="full", **NF4)
    with pytest.raises(UsageError, match=r"policy\.decoder is 'fused', which reads weights as numbers"):
        tiny.model(decoder="fused", **NF4)
    with pytest.raises(UsageError, match=r"policy\.packed_weights is true, which reads weights"):
        tiny.model(packed_weights=True, **NF4)
    with pytest.raises(UsageError, match="take one process"):
        check_can_shard(PolicyConfig(quantize="nf4"))
    quantized = shutil.copytree(tiny.folder(), tmp_path / "quantized")
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"are already quantized \(gptq\), and policy\.quantize needs the"):
        tiny.model(folder=quantized, **NF4)
    damaged = shutil.copytree(tiny.folder(), tmp_path / "damaged")
    state = safetensors.torch.load_file(damaged / "model.safetensors")
    state[f"{LAYER}.weight"][3, 5] = float("nan")
    safetensors.torch.save_file(state, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"the weight {LAYER}\.weight of .* is not finite"):
        tiny.model(folder=damaged, **NF4)


def test_without_bitsandbytes_the_extra_is_named(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_QUANTIZERS", ("bitsandbytes_that_nobody_has", "json"))
    with pytest.raises(
        UsageError, match=r"which needs bitsandbytes_that_nobody_has: pip install 'genenv\[ql"
    ):
        tiny.model(**NF4)


@pytest.mark.long
def test_a_base_of_7_billion_weights_takes_5_gib_in_4_bits() -> None:
    config = PolicyConfig(quantize="nf4", tokens_per_microbatch=4096, activation_gib=4.0, max_batch_rows=16)
    needs = memory_needs(
        shape_in(qwen_7b(), "auto"),
        config,
        policies=["agent", "simulator"],
        held=[],
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    found = {one.name: one.bytes for one in needs}
    # per layer: queries and output, keys and values, three matrices of the MLP
    linear = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18_944)
    assert linear == 6_525_288_448
    assert pytest.approx(0.515869, abs=1e-6) == NF4_BYTES
    biases_and_norms = 28 * (3584 + 2 * 512 + 2 * 3584) + 3584
    rest = 2 * (2 * 152_064 * 3584 + biases_and_norms)
    assert found["base weights"] == pytest.approx(linear * NF4_BYTES + rest)
    assert found["base weights"] / 2**30 == pytest.approx(5.17, abs=0.01)
    assert found["a matrix as numbers"] == 2 * 3584 * 18_944
    assert "their copy, packed for the processor" not in found
    assert sum(found.values()) < 16e9


@needs_bitsandbytes
def test_memory_of_quantized_weights_is_what_is_counted(tiny: Any) -> None:
    folder = tiny.folder(hidden_size=256, intermediate_size=512)
    causal = loading.load_causal_lm(
        str(folder), dtype=torch.bfloat16, device=torch.device("cpu"), quantize="nf4"
    )
    constants = 2 * 7 * (4 * (16 + 256) + 4)  # of each matrix: both tables of values, and an offset
    held = -constants
    for parameter in causal.parameters():
        state = getattr(parameter, "quant_state", None)
        held += parameter.nbytes
        if state is not None:
            inner = (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
            held += sum(tensor.nbytes for tensor in inner)
    shape = shape_in(causal.config, "auto")
    config = PolicyConfig(quantize="nf4")
    cpu = torch.device("cpu")
    needs = memory_needs(shape, config, policies=["agent"], held=[], dtype=torch.bfloat16, device=cpu)
    assert needs[0].bytes == pytest.approx(held, rel=1e-3)


def test_the_doctor_counts_4_bits_and_refuses_what_training_would() -> None:
    told = succeeds("doctor", "demo", "--set", "policy.model=tiny", "--set", "policy.quantize=nf4").stdout
    assert "a matrix as numbers" in told
    with pytest.raises(UsageError, match="cannot be trained"):
        estimate_memory(
            PolicyConfig(model="tiny", quantize="nf4", tuning="full"), policies=["agent"], held=[]
        )


def test_a_device_that_is_not_supported_is_refused_in_one_sentence() -> None:
    said = refused("doctor", "demo", "--set", "policy.device=mps")
    assert said == 'setting \'policy.device\' is "mps"; allowed: "auto" or "cpu" or "cuda"'
