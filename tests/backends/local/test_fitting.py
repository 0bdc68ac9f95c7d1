"""What a run takes of memory: what can be counted is counted exactly."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from genenv.backends.local import loading
from genenv.backends.local.adapters import add_lora_adapter
from genenv.backends.local.memory_estimate import estimate_memory, memory_needs, shape_in, shape_of
from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.settings import ALL_LAYERS, PolicyConfig
from genenv.errors import UsageError
from learners import qwen_7b
from typed import refused, succeeds

CPU = torch.device("cpu")
BOTH = ["agent", "simulator"]


def parts(*, processes: int = 1, **settings: Any) -> dict[str, float]:
    config = PolicyConfig(model="tiny", **settings)
    shape = shape_of(loading.resolve("tiny"), config.lora_targets)
    found = memory_needs(
        shape, config, policies=BOTH, held=["agent"], dtype=torch.float32, device=CPU, processes=processes
    )
    return {one.name: one.bytes for one in found}


@pytest.mark.long
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj"])
def test_weights_and_adapters_are_counted_as_they_are(targets: str) -> None:
    config = PolicyConfig(model="tiny", device="cpu", dtype="float32", lora_targets=targets, threads=1)
    model = LocalModel("tiny", config)
    base = sum(p.numel() for p in model.causal.parameters())
    model.add_adapter("agent", seed=0)
    own = sum(p.numel() for _, p in PolicyWeights(model, "agent").parameters())
    found = parts(lora_targets=targets)
    assert found["base weights"] == 4 * base
    assert found["adapters"] == 2 * own * 4
    assert found["gradients"] == own * 4  # of the policy that is updated
    assert found["moments of AdamW"] == 2 * own * 8
    assert found["what KL terms hold on to"] == own * 4


def test_the_packed_copy_is_counted_as_it_is() -> None:
    model = LocalModel("tiny", PolicyConfig(device="cpu", dtype="float32", threads=1, packed_weights=False))
    model.fuse()
    assert model.fused is not None
    own = sum(product.weight.nbytes for product in model.fused._products())
    assert parts(packed_weights=True)["their copy, packed for the processor"] == own


TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    "gemma2": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8},
    "phi": {},
    "phi3": {"pad_token_id": 0},
    "olmo2": {},
    "olmoe": {"num_experts": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "gpt_neox": {},
    "falcon": {},
    "starcoder2": {},
    "granite": {},
}
"""Small shapes of families, by the type that transformers has for each."""


@pytest.mark.parametrize("targets", ALL_LAYERS)
@pytest.mark.parametrize("family", TINY)
def test_adapters_are_counted_as_peft_makes_them(family: str, targets: str) -> None:
    shape = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2} | TINY[family]
    config = transformers.AutoConfig.for_model(family, **shape)
    counted = shape_in(config, targets)
    causal = transformers.AutoModelForCausalLM.from_config(config).requires_grad_(requires_grad=False)
    base = sum(p.numel() for p in causal.parameters())
    add_lora_adapter(causal, "agent", PolicyConfig(lora_rank=3, lora_targets=targets))
    own = [p.numel() for name, p in causal.named_parameters() if ".agent." in name]
    assert sum(own) == 3 * counted.adapted > 0
    assert counted.parameters == base


def test_targets_that_are_no_layers_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match=r"policy\.lora_targets = 'nothing' does not fit"):
        shape_of(loading.resolve("tiny"), "nothing")
    with pytest.raises(UsageError, match="embeddings and the output layer stay"):
        shape_of(loading.resolve("tiny"), "embed_tokens")


def test_a_sequence_takes_its_keys_and_values() -> None:
    shape = shape_of(loading.resolve("tiny"), "all-linear")
    found = parts(max_batch_rows=3, context_tokens=100)
    assert found["keys and values of a full batch"] == 3 * 100 * 2 * shape.sizes.layers * shape.sizes.keys * 4


def test_a_backward_pass_that_would_keep_too_much_keeps_inputs_of_layers_alone() -> None:
    free = parts(tokens_per_microbatch=100_000, activation_gib=100.0)["a backward pass"]
    held = parts(tokens_per_microbatch=100_000, activation_gib=0.001)["a backward pass"]
    assert held < free / 1.5


def test_full_tuning_has_two_models_and_no_adapter() -> None:
    lora, full = parts(), parts(tuning="full")
    assert full["base weights"] == 2 * lora["base weights"]
    assert "adapters" not in full


def test_a_model_without_a_shape_is_refused(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"the shape of .* cannot be read"):
        estimate_memory(PolicyConfig(model=str(tmp_path)), policies=BOTH, held=[])


def test_the_doctor_says_whether_a_run_fits() -> None:
    told = succeeds("doctor", "demo", "--set", "policy.model=tiny").stdout
    assert told.rstrip().endswith("It fits.")
    assert "a backward pass" in told
    long = succeeds("doctor", "demo", "--set", "policy.model=tiny", "--set", "policy.max_batch_rows=1000000")
    assert "It fits as long as sequences stay short" in long.stdout
    wide = ["--set", "policy.lora_rank=1024", "--set", "policy.tokens_per_microbatch=100000000"]
    assert "It does not fit" in succeeds("doctor", "demo", "--set", "policy.model=tiny", *wide).stdout
    assert "take no memory" in refused("doctor", "demo", "--set", "policy.backend=scripted")


def test_the_doctor_counts_every_agent_with_its_own_model_and_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[str, list[str], list[str]]] = []

    def estimated(policy: PolicyConfig, **named: Any) -> Any:
        counted.append((policy.model, named["policies"], named["held"]))
        return estimate_memory(policy, **named)

    monkeypatch.setattr("genenv.backends.local.memory_estimate.estimate_memory", estimated)
    two = ["policy.tuning=full", "agents.a.kl_coefficient=0.1", "agents.b.kl_coefficient=0"]
    sets = [word for one in (*two, "policy.model=tiny") for word in ("--set", one)]
    succeeds("doctor", "demo", *sets)
    there = ["agents.a.model=tiny", "agents.b.backend=scripted", "simulator.source=variation"]
    succeeds("doctor", "demo", *sets[:-2], *(word for one in there for word in ("--set", one)))
    assert [(model, policies) for model, policies, _ in counted] == [
        ("tiny", ["a", "b", "simulator"]),
        ("tiny", ["a"]),
    ]
    assert all("a" in held and "b" not in held for _, _, held in counted)
    assert "two base models" in refused("doctor", "demo", *sets, "--set", "agents.b.model=smollm2-135m")


def test_of_several_processes_each_holds_its_share_of_the_layers() -> None:
    config, source = PolicyConfig(model="tiny", backend="vllm"), loading.resolve("tiny")
    shape = shape_of(source, config.lora_targets)
    one, four = parts(), parts(processes=4)
    assert one["base weights"] - four["base weights"] == shape.products * 4 * 3 / 4
    assert four["layers that are brought together"] == 2 * shape.products / shape.sizes.layers * 4
    for name in ("gradients", "moments of AdamW", "what KL terms hold on to"):
        assert four[name] == one[name]
    there = ("--set", "policy.model=tiny", "--set", "policy.backend=vllm", "--processes", 2)
    assert "in each of 2 processes" in " ".join(succeeds("doctor", "demo", *there).stdout.split())
    assert "policy.backend is 'vllm' and policy.tuning 'full'" in refused(
        "doctor", "demo", *there, "--set", "policy.tuning=full"
    )
    assert "set policy.backend='vllm' and" in refused("doctor", "demo", "--processes", 2)
    assert "are for a CONFIG" in refused("doctor", "runs/none", "--processes", 2)


def test_of_qwen_7b_each_of_eight_gpus_holds_an_eighth() -> None:
    """Worked out by hand, for two policies with a reference each, in bfloat16 with float32 shards."""
    qwen = qwen_7b()
    attention = 2 * 3584 * 3584 + 3584 + 2 * (3584 * 512 + 512)  # query and output, keys and values, biases
    layers = 28 * (attention + 3 * 3584 * 18_944 + 2 * 3584)  # with the feed-forward part and two norms
    ends = 2 * 152_064 * 3584 + 3584
    assert (layers, ends) == (6_525_618_176, 1_089_998_336)
    shape = shape_in(qwen, "auto")
    assert (shape.in_layers, shape.parameters) == (layers, layers + ends) == (layers, 7_615_616_512)
    config = PolicyConfig(tuning="full", dtype="bfloat16", tokens_per_microbatch=16_384, activation_gib=8.0)
    options: dict[str, Any] = {"policies": BOTH, "held": BOTH, "device": CPU, "processes": 8}
    needs = memory_needs(shape, config, dtype=torch.bfloat16, **options)
    found = {one.name: round(one.bytes / 2**30, 2) for one in needs}
    assert found["base weights"] == 7.09  # 2 x 7.6157e9 x 4 / 8 bytes
    assert found["gradients"] == 3.55  # 7.6157e9 x 4 / 8
    assert found["moments of AdamW"] == 14.19  # 2 x 7.6157e9 x 8 / 8
    assert found["what KL terms hold on to"] == 7.09  # 2 x 7.6157e9 x 4 / 8
    assert found["layers that are brought together"] == 2.17  # 233.06e6 x (3 x 2 + 4)
    assert found["embeddings and output layer, whole"] == 7.11  # 1.09e9 x 2 x 2 + 545e6 x (2 + 4)
    assert found["a whole copy that samples, in the first process"] == 14.19  # 7.6157e9 x 2
    adapters = memory_needs(
        shape, PolicyConfig(backend="vllm", lora_rank=16), dtype=torch.bfloat16, **options
    )
    found = {one.name: round(one.bytes / 2**30, 2) for one in adapters}
    assert (
        found["base weights"] == 3.55
    )  # (6.5253e9 / 8 + 1.0903e9) x 2: norms and biases of layers stay whole
    rank_1 = 28 * ((3584 + 3584) * 2 + (3584 + 512) * 2 + (3584 + 18_944) * 3)
    assert shape.adapted == rank_1 == 2_523_136
    assert found["gradients"] == 0.15  # 16 x 2.523e6 x 4
    assert found["moments of AdamW"] == 0.60  # 2 x 16 x 2.523e6 x 8


@pytest.mark.long
def test_larger_models_take_more(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[3] / "bench" / "memory_table.py"
    runpy.run_path(str(script))["main"](["--context", "1024"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    for column in (1, 2, 3):
        sizes = [float(row[column]) for row in rows]
        assert sizes == sorted(sizes)
    assert float(rows[3][1]) == pytest.approx(2 * 8.19e9 / 2**30, rel=0.01)  # Qwen3-8B


def test_settings_of_a_run_are_its_own(tmp_path: Any) -> None:
    assert "a run has its settings" in refused("doctor", tmp_path, "--set", "run.seed=1")
