"""Which weights of a model get an adapter, what is said of the others, and that experts learn with theirs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.adapters import ADAPTER, add_lora_adapter, unadapted, unadapted_sentence
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError
from genenv.exporting.agent import Wanted
from genenv.exporting.agent import export as export_agent
from genenv.exporting.exporters import Form
from genenv.sampling import SampleRequest
from lessons import weighted
from trained import agents_logprobs, logprobs, trained_run
from typed import succeeds

TEXT = list(range(30, 54))
EXPERTS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0},
    "granitemoehybrid": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
# PEFT asks transformers by a name that will go.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def on_meta(kind: str, **shape: Any) -> Any:
    """A model without numbers, of two layers of width 64."""
    usual = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    usual |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(kind, **(usual | shape))
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config).requires_grad_(requires_grad=False)


def adapted(kind: str, targets: str, **shape: Any) -> Any:
    causal = on_meta(kind, **shape)
    with torch.device("meta"):
        add_lora_adapter(causal, "agent", PolicyConfig(lora_rank=1, lora_targets=targets))
    return causal


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt_neox"])
def test_where_all_layers_are_linear_auto_is_all_linear_to_the_last_digit(
    tiny: Any, tmp_path: Path, kind: str
) -> None:
    for targets in ("auto", "all-linear"):
        tiny.player(kind, lora_targets=targets).weights.write_adapter(tmp_path / targets)
    auto, linear = (safetensors.torch.load_file(tmp_path / name / ADAPTER) for name in ("auto", "all-linear"))
    assert auto.keys() == linear.keys()
    assert all(torch.equal(auto[name], linear[name]) for name in auto)


@pytest.mark.parametrize(("kind", "before"), [("gpt_oss", 0.601), ("granitemoehybrid", 0.747)])
def test_experts_get_adapters_and_what_gets_none_is_named_with_its_share(kind: str, before: float) -> None:
    left = unadapted(adapted(kind, "all-linear", **EXPERTS[kind]))
    assert sum(left.values()) == pytest.approx(before, abs=0.001)
    said = unadapted_sentence(left)
    assert said is not None
    assert said.startswith(f"{sum(left.values()):.0%} of the weights in its layers get no adapter")
    assert "experts.gate_up_proj (" in said
    assert sum(unadapted(adapted(kind, "auto", **EXPERTS[kind])).values()) < 0.02


def test_shares_are_as_worked_out_by_hand() -> None:
    causal = adapted("qwen2", "v_proj,mlp.up_proj")
    layer = {"q": 64 * 64, "k": 64 * 32, "v": 64 * 32, "o": 64 * 64, "gate": 64 * 96, "up": 64 * 96}
    total = sum(layer.values()) + 64 * 96
    assert unadapted(causal) == pytest.approx(
        {
            "mlp.gate_proj": 64 * 96 / total,
            "mlp.down_proj": 64 * 96 / total,
            "self_attn.q_proj": 64 * 64 / total,
            "self_attn.o_proj": 64 * 64 / total,
            "self_attn.k_proj": 64 * 32 / total,
        }
    )
    assert unadapted_sentence({"a": 0.004, "b": 0.004}) is None
    assert unadapted_sentence({"a": 0.25, "b": 0.125}) == (
        "38% of the weights in its layers get no adapter and stay as they are: a (25.0%), b (12.5%)"
    )


def test_layers_that_peft_refuses_are_left_out() -> None:
    shape = {"num_heads": 16, "head_dim": 8, "n_groups": 1}
    with pytest.raises(UsageError, match="'out_proj' is incompatible with Mamba"):
        adapted("mamba2", "all-linear", **shape)
    left = unadapted(adapted("mamba2", "auto", **shape))
    assert set(left) == {"mixer.out_proj", "mixer.conv1d"}


def test_stacked_weights_can_be_named(tiny: Any) -> None:
    causal = adapted("qwen3_moe", "q_proj,experts.down_proj", **EXPERTS["qwen3_moe"])
    assert {"self_attn.q_proj", "mlp.experts.down_proj"}.isdisjoint(unadapted(causal))
    assert "mlp.experts.gate_up_proj" in unadapted(causal)


@pytest.mark.parametrize("targets", ["auto", "all-linear"])
def test_routers_that_are_more_than_a_linear_layer_get_no_adapter(tiny: Any, targets: str) -> None:
    folder = tiny.folder("phimoe", num_local_experts=4, sliding_window=None)
    policy = tiny.player(folder=folder, lora_targets=targets)
    assert "mlp.router" in unadapted(policy.model.causal)
    (sampled,) = policy.sample_all([SampleRequest(prompt_ids=(5, 9, 2, 44), max_tokens=8, stream=3)])
    found = logprobs(plain(folder), [5, 9, 2, 44, *sampled.token_ids])[3:]
    assert sampled.logprobs == pytest.approx(found.tolist(), abs=1e-4)
    with pytest.raises(UsageError, match="unknown layer 'router'"):
        adapted("phimoe", "q_proj,router", num_local_experts=4)


def test_linear_layers_with_code_of_their_own_get_adapters() -> None:
    assert unadapted(adapted("falcon", "auto")) == {}


@pytest.mark.parametrize(
    ("targets", "near"),
    [("q_proj,v_projj", "v_proj"), ("mlp.experts.down_prj,q_proj", "mlp.experts.down_proj")],
)
def test_a_name_that_fits_nothing_is_told_where_another_fits(
    targets: str, near: str, caplog: pytest.LogCaptureFixture
) -> None:
    adapted("qwen3_moe", targets, **EXPERTS["qwen3_moe"])
    (record,) = caplog.records
    assert re.search(f"unknown layer .*; did you mean '{near}'", record.getMessage())
    with pytest.raises(UsageError, match=r"does not fit: .*not found"):
        adapted("qwen3_moe", "v_projj", **EXPERTS["qwen3_moe"])


def test_all_linear_and_the_old_names_of_experts_select_what_peft_selects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for targets in ("all-linear", "q_proj,k_proj,v_proj,o_proj,gate,gate_proj,up_proj,down_proj"):
        assert unadapted(adapted("qwen3_moe", targets, **EXPERTS["qwen3_moe"])) == {}
    assert not caplog.records


def test_before_a_run_begins_one_warning_names_what_gets_no_adapter(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.folder("mixtral", **EXPERTS["mixtral"])
    model = tiny.model(folder=tiny.folder("gpt_oss", **EXPERTS["gpt_oss"]), lora_targets="all-linear")
    for name in ("agent", "simulator"):
        model.add_adapter(name, seed=1)
    assert len([r for r in caplog.records if "get no adapter" in r.getMessage()]) == 1
    caplog.clear()
    tiny.player(folder=folder, lora_targets="q_proj")
    assert "get no adapter" not in caplog.text, "whoever names layers knows"


@pytest.mark.long
def test_the_doctor_names_it_too(tiny: Any) -> None:
    folder = tiny.folder("gpt_oss", **EXPERTS["gpt_oss"])
    given = ("doctor", "demo", "--set", f"policy.model={folder}", "--set", "policy.lora_targets")
    told = " ".join(succeeds(*given[:-1], "policy.lora_targets=all-linear").stdout.split())
    assert "of the weights in its layers get no adapter and stay as they are: mlp.experts" in told
    assert "get no adapter" not in succeeds(*given[:-1], "policy.lora_targets=auto").stdout


@pytest.fixture(scope="module", params=EXPERTS)
def moe(request: pytest.FixtureRequest, tiny: Any) -> Path:
    """A model with experts, on disk."""
    return tiny.folder(request.param, **EXPERTS[request.param])


def plain(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


@pytest.mark.long
def test_experts_learn_and_peft_puts_the_adapter_on_the_original(
    moe: Path, tiny: Any, tmp_path: Path
) -> None:
    policy = tiny.player(folder=moe)
    policy.model.add_adapter("simulator", seed=2)
    before = tiny.values(policy)
    trainer = LocalTrainer(policy.weights, OptimizerConfig())
    for _ in range(2):  # in the first step half of an adapter has no gradient
        asyncio.run(trainer.forward_backward(weighted(1.0, 1.0, 1.0), Objective()))
        asyncio.run(trainer.step(1e-2))
    experts = [name for name in before if ".experts." in name]
    after = tiny.values(policy)
    assert len(experts) == 2 * 2 * 2
    assert all(not torch.equal(before[name], after[name]) for name in experts)
    policy.weights.write_adapter(tmp_path)
    both = peft.PeftModel.from_pretrained(plain(moe), str(tmp_path)).eval()
    (sampled,) = policy.sample_all([SampleRequest(prompt_ids=(5, 9, 2, 44), max_tokens=8, stream=3)])
    found = logprobs(both, [5, 9, 2, 44, *sampled.token_ids])[3:]
    assert sampled.logprobs == pytest.approx(found.tolist(), abs=1e-4)


@pytest.mark.long
def test_an_agent_with_adapted_experts_is_exported(moe: Path, toy: Any, tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", moe, toy)
    wanted = Wanted(run=str(run), form=Form.MODEL, out=tmp_path / "out", dtype="auto")
    exported = export_agent(wanted, lambda: "2026-01-31")
    assert exported.nearness is not None
    assert exported.nearness.nats < 1e-4
    expected = agents_logprobs(run, 1, TEXT)
    torch.testing.assert_close(logprobs(plain(tmp_path / "out"), TEXT), expected, atol=2e-4, rtol=0)
    assert (logprobs(plain(moe), TEXT) - expected).abs().max() > 0.1
    export_agent(
        Wanted(run=str(run), form=Form.ADAPTER, out=tmp_path / "adapter", dtype="auto"), lambda: "2026-01-31"
    )
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text(encoding="utf-8"))
    assert settings["target_parameters"] == sorted(settings["target_parameters"])
