"""Of models that take images too, the language model is trained; the original loads what comes of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from composites import COMPOSITES, composite, original
from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local import loading
from genenv.backends.local.memory_estimate import shape_of
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.local.trainer import LocalTrainer
from genenv.errors import UsageError
from genenv.exporting.agent import Wanted
from genenv.exporting.agent import export as export_agent
from genenv.exporting.exporters import Form
from genenv.sampling import SampleRequest
from lessons import weighted
from trained import agents_logprobs, logprobs, trained_run

PROMPT = (5, 9, 2, 44, 60, 70)
TEXT = list(range(30, 54))
# PEFT asks transformers by a name that will go.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module", params=COMPOSITES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tiny: Any) -> Path:
    return composite(tiny, kind)


@pytest.fixture(scope="module")
def player(folder: Path, tiny: Any) -> Any:
    """A policy whose adapter is far from the base."""
    return tiny.player(folder=folder, noise=0.05)


def test_no_more_than_the_language_model_is_in_memory_and_its_weights_are_the_files(
    player: Any, folder: Path
) -> None:
    whole = dict(original(folder).named_parameters())
    own = {name.replace(".base_layer", ""): p for name, p in player.model.causal.named_parameters()}
    own = {name: parameter for name, parameter in own.items() if ".agent." not in name}
    beside = {name for name in whole if name.startswith(tuple(f"{o}." for o in player.model.other_inputs))}
    assert set(own) == set(whole) - beside
    assert beside
    for name, parameter in own.items():
        assert torch.equal(parameter, whole[name]), name


def test_samples_have_the_log_probabilities_of_the_original_with_the_adapter_put_on_by_peft(
    player: Any, folder: Path, tmp_path: Path
) -> None:
    player.weights.write_adapter(tmp_path)
    both = peft.PeftModel.from_pretrained(original(folder), str(tmp_path)).eval()
    adapted = [name for name, _ in both.named_parameters() if "lora_" in name]
    assert not [name for name in adapted if any(other in name for other in player.model.other_inputs)]
    for stream in range(3):
        request = SampleRequest(prompt_ids=PROMPT, max_tokens=8, stream=stream)
        (sampled,) = player.sample_all([request])
        found = logprobs(both, [*PROMPT, *sampled.token_ids])[len(PROMPT) - 1 :]
        assert sampled.logprobs == pytest.approx(found.tolist(), abs=1e-4)


def test_the_adapter_is_served(player: Any, folder: Path, tmp_path: Path) -> None:
    player.weights.write_adapter(tmp_path)
    served = LoadedBase(str(folder), player.model.config)
    served.load("mine", tmp_path)
    asked = [SampleRequest(prompt_ids=PROMPT, max_tokens=8, stream=stream) for stream in range(3)]
    for one, other in zip(served.sample("mine", asked), player.sample_all(asked), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_step_of_training_makes_what_is_trained_likelier_in_the_original(
    folder: Path, tiny: Any, tmp_path: Path
) -> None:
    policy = tiny.player(folder=folder)
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    data = weighted(1.0, 1.0, 1.0)
    asyncio.run(trainer.forward_backward(data, Objective()))
    asyncio.run(trainer.step(1e-2))
    policy.weights.write_adapter(tmp_path)

    def mean(model: Any) -> float:
        texts = [([*d.prompt_ids], [*d.completion_ids]) for d in data]
        return sum(float(logprobs(model, [*p, *c])[len(p) - 1 :].mean()) for p, c in texts)

    before = mean(original(folder))
    assert mean(peft.PeftModel.from_pretrained(original(folder), str(tmp_path)).eval()) > before + 0.01


@pytest.mark.long
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_an_exported_agent_is_the_original_with_other_weights_in_its_language_model(
    folder: Path, toy: Any, tmp_path: Path, tuning: str
) -> None:
    run = trained_run(tmp_path / "run", folder, toy, tuning=tuning)
    export_agent(
        Wanted(run=str(run), form=Form.MODEL, out=tmp_path / "out", dtype="auto"), lambda: "2026-01-31"
    )
    found, base = original(tmp_path / "out"), original(folder)
    expected = agents_logprobs(run, 1, TEXT)
    torch.testing.assert_close(logprobs(found, TEXT), expected, atol=2e-4, rtol=0)
    assert (logprobs(base, TEXT) - expected).abs().max() > 0.1
    own = dict(base.named_parameters())
    others = tuple(f"{name}." for name in loading.other_inputs(found))
    for name, parameter in found.named_parameters():
        if name.startswith(others):
            assert torch.equal(parameter, own[name]), name
    assert (tmp_path / "out/preprocessor_config.json").is_file()


@pytest.mark.long
def test_an_exported_adapter_is_put_on_the_original(folder: Path, toy: Any, tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", folder, toy)
    export_agent(
        Wanted(run=str(run), form=Form.ADAPTER, out=tmp_path / "out", dtype="auto"), lambda: "2026-01-31"
    )
    settings = json.loads((tmp_path / "out/adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == str(folder.resolve())
    both = peft.PeftModel.from_pretrained(original(folder), str(tmp_path / "out")).eval()
    torch.testing.assert_close(logprobs(both, TEXT), agents_logprobs(run, 1, TEXT), atol=2e-4, rtol=0)


def test_memory_is_worked_out_for_the_language_model_alone(player: Any, folder: Path) -> None:
    shape = shape_of(str(folder), "all-linear")
    own = {name: p.numel() for name, p in player.model.causal.named_parameters()}
    adapter = {name for name in own if ".agent." in name}
    assert shape.parameters == sum(own[name] for name in own if name not in adapter)
    assert 4 * shape.adapted == sum(own[name] for name in adapter)


def test_a_language_model_that_lacks_a_weight_is_refused(folder: Path, tiny: Any, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "model"))
    state = safetensors.torch.load_file(damaged / "model.safetensors")
    gone = next(name for name in sorted(state) if name.endswith("mlp.down_proj.weight"))
    del state[gone]
    safetensors.torch.save_file(state, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"mlp\.down_proj\.weight is missing, and would be random numbers"):
        tiny.model(folder=damaged)


CAPPED = {"final_logit_softcapping": 1.0, "num_kv_shared_layers": 1, "num_hidden_layers": 4}
CAPPED |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 300}


@pytest.mark.parametrize(
    "changes", [CAPPED, {"num_experts": 4, "top_k_experts": 2, "enable_moe_block": True}]
)
def test_gemma_4_as_it_is_published_is_sampled(tiny: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Scores are capped, layers share keys and values, some have experts."""
    config = transformers.AutoConfig.from_pretrained(composite(tiny, "gemma4"))
    for name, value in changes.items():
        setattr(config.text_config, name, value)
    if "num_experts" in changes:
        config.text_config.moe_intermediate_size = 16
    torch.manual_seed(2)
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    policy = tiny.player(folder=tmp_path, adapter=None, tuning="full")
    (sampled,) = policy.sample_all([SampleRequest(prompt_ids=PROMPT, max_tokens=8, stream=3)])
    expected = logprobs(original(tmp_path), [*PROMPT, *sampled.token_ids])[len(PROMPT) - 1 :]
    assert sampled.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    packed = Packed([Bundle(prompt_ids=PROMPT, completions=[sampled.token_ids])], policy.model.device)
    with torch.no_grad():
        assert policy.weights.logprobs(packed).tolist() == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("architecture", ["T5ForConditionalGeneration", "OddForConditionalGeneration"])
def test_what_has_no_language_model_inside_is_refused(tiny: Any, tmp_path: Path, architecture: str) -> None:
    shutil.copytree(tiny.folder(), tmp_path / "model")
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"architectures": [architecture]}
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match=f"is a {architecture}, not a causal language model"):
        tiny.model(folder=tmp_path / "model")
