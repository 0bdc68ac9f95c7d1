"""An exported agent is the run's agent: its weights, its tokens, its chat template, in every form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from genenv.backends.local.export_merged import TrainedAgent, add_what_older_readers_look_for, save_model
from genenv.backends.local.loading import load_tokenizer
from genenv.backends.settings import PolicyConfig
from genenv.config.run import load_config
from genenv.errors import DataError, UsageError
from genenv.exporting.agent import Exported, Wanted, offers_tools
from genenv.exporting.agent import export as export_agent
from genenv.exporting.exporters import Form
from trained import agents_logprobs, logprobs, trained_run

TEXT = (
    '<|im_start|>user\nSend 20 euros to Zoë: {"to":"Zoë"}<|im_end|>\n'
    "<|im_start|>assistant\n12345 it's  3 \n\n x"
)


@pytest.fixture(scope="module")
def runs(tiny: Any, toy: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run whose agent is an adapter, and one whose agent is a whole model."""
    root = tmp_path_factory.mktemp("runs")
    return {
        tuning: trained_run(root / tuning, tiny.folder(), toy, tuning=tuning) for tuning in ("lora", "full")
    }


def export(run: Path | str, out: Path, form: Form = Form.MODEL, dtype: str = "auto") -> Exported:
    return export_agent(Wanted(run=str(run), form=form, out=out, dtype=dtype), lambda: "2026-01-31")


def loaded(folder: Path, **more: Any) -> tuple[Any, Any]:
    """Model and tokenizer as anybody loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **more)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **more)


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_the_model_says_what_the_agent_says(
    runs: dict[str, Path], tiny: Any, tmp_path: Path, tuning: str
) -> None:
    exported = export(runs[tuning], tmp_path / "out")
    model, tokenizer = loaded(tmp_path / "out")
    ids = tokenizer.encode(TEXT)
    assert ids == load_tokenizer(str(tiny.folder())).encode(TEXT)
    torch.testing.assert_close(logprobs(model, ids), agents_logprobs(runs[tuning], 1, ids), atol=2e-5, rtol=0)
    assert exported.nearness is not None
    assert (exported.nearness.texts, exported.nearness.same) == (2, exported.nearness.places)
    assert exported.nearness.nats < 1e-5
    assert exported.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", ["gemma", "gpt_neox", "qwen2"])
def test_other_kinds_of_models_do_as_well(tiny: Any, toy: Any, tmp_path: Path, kind: str) -> None:
    run = trained_run(tmp_path / "run", tiny.folder(kind), toy)
    export(run, tmp_path / "out")
    model, tokenizer = loaded(tmp_path / "out")
    ids = tokenizer.encode(TEXT)
    assert ids == load_tokenizer(str(tiny.folder(kind))).encode(TEXT)
    assert tokenizer.chat_template == tiny.tokenizer().chat_template
    torch.testing.assert_close(logprobs(model, ids), agents_logprobs(run, 1, ids), atol=1e-4, rtol=0)


def test_older_readers_find_how_positions_are_rotated(tiny: Any, toy: Any, tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    run = trained_run(tmp_path / "run", tiny.folder(rope_parameters=linear), toy)
    export(run, tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rope_theta"] == 500.0
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    model, tokenizer = loaded(tmp_path / "out")
    ids = tokenizer.encode(TEXT)
    torch.testing.assert_close(logprobs(model, ids), agents_logprobs(run, 1, ids), atol=1e-3, rtol=0)


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
TWO = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
PARTIAL = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}


def exported_config(folder: Path, out: Path) -> dict[str, Any]:
    """The configuration of a whole agent that is written."""
    out.mkdir()
    save_model(TrainedAgent(str(folder), PolicyConfig(tuning="full"), folder), out)
    return json.loads((out / "config.json").read_text())


@pytest.mark.parametrize(
    ("kind", "rope"),
    [
        ("gemma3_text", TWO),
        ("olmo3", {name: own | {"rope_theta": 500_000.0} for name, own in TWO.items()}),
        *((kind, PARTIAL) for kind in ("gpt_neox", "phi3", "glm4", "stablelm")),
    ],
)
def test_the_old_names_alone_give_the_same_rotary_positions(
    kind: str, rope: dict[str, Any], tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = SLIDING if "full_attention" in rope else {}
    config = exported_config(tiny.folder(kind, rope_parameters=rope, **changes), tmp_path / "out")
    assert config.pop("rope_parameters") == rope
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").rope_parameters == rope
    assert "needs transformers 5" not in caplog.text


def test_what_the_old_names_cannot_say_needs_a_new_reader(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = exported_config(tiny.folder("olmo3", rope_parameters=TWO, **SLIDING), tmp_path / "out")
    assert not config.keys() & {"rope_scaling", "rope_theta"}
    assert f"{tmp_path / 'out/config.json'} needs transformers 5 or newer" in caplog.text


@pytest.mark.parametrize("kind", ["gemma4_text", "laguna", "mimo_v2_flash"])
def test_a_config_whose_reader_knows_no_old_names_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
    before = (tmp_path / "config.json").read_text()
    add_what_older_readers_look_for(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text() == before
    assert transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        (["style='native'"], True),
        (["style='json'"], False),
        (["name='dataset'"], False),
        (["name='dataset'", "tools='shop.py'"], True),
        (["name='dataset'", "tools='shop.py'", "style='json'"], False),
        (["name='openenv:http://127.0.0.1:9'"], False),
        (["name='mixture'", "members={a={name='dataset'}, b={name='programs'}}"], False),
        (["name='mixture'", "members={a={name='tool_calling', style='native'}, b={name='programs'}}"], True),
    ],
)
def test_settings_say_whether_the_chat_template_offers_tools(settings: list[str], offered: bool) -> None:
    config = load_config(None, [f"environment.{one}" for one in settings])
    assert offers_tools(config.environment.settings) == offered


def test_rounds_are_told_apart_and_the_last_is_taken(runs: dict[str, Path], tmp_path: Path) -> None:
    found = {}
    for name in ("lora@0", "lora@1", "lora"):
        export(f"{runs['lora'].parent}/{name}", tmp_path / name)
        model, tokenizer = loaded(tmp_path / name)
        found[name] = logprobs(model, tokenizer.encode(TEXT))
    assert torch.equal(found["lora"], found["lora@1"])
    assert (found["lora@0"] - found["lora@1"]).abs().max() > 0.1


@pytest.mark.parametrize(("dtype", "nats"), [("float16", 1e-2), ("bfloat16", 1e-1)])
def test_a_number_format_rounds_and_the_readme_says_by_how_much(
    runs: dict[str, Path], tmp_path: Path, dtype: str, nats: float
) -> None:
    exported = export(runs["lora"], tmp_path / "out", dtype=dtype)
    assert exported.nearness is not None
    assert 0 < exported.nearness.nats < nats
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == dtype
    model, tokenizer = loaded(tmp_path / "out")
    ids = tokenizer.encode(TEXT)
    apart = (logprobs(model, ids) - agents_logprobs(runs["lora"], 1, ids)).abs().mean()
    assert 0 < apart < 10 * nats
    assert f"{exported.nearness.nats:.2g} nats" in (tmp_path / "out/README.md").read_text()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's
def test_an_adapter_is_put_on_its_base_by_peft(runs: dict[str, Path], tiny: Any, tmp_path: Path) -> None:
    export(runs["lora"], tmp_path / "out", Form.ADAPTER)
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tiny.folder().resolve()
    )
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode(TEXT)
    found, expected = logprobs(model, ids), agents_logprobs(runs["lora"], 1, ids)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-6)  # float32: four of its steps besides


WIDE = {"head_dim": 128}
"""What transformers takes for granted where it reads a GGUF file of qwen3."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "tuning", "shape"),
    [
        ("llama", "lora", {}),
        ("llama", "full", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("qwen2", "full", {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}),
        ("qwen3", "lora", WIDE),
    ],
)
def test_a_gguf_file_says_what_the_agent_says(
    tiny: Any, toy: Any, tmp_path: Path, kind: str, tuning: str, shape: dict[str, Any]
) -> None:
    run = trained_run(tmp_path / "run", tiny.folder(kind, **shape), toy, tuning=tuning)
    export(run, tmp_path / "out", Form.GGUF, dtype="float32")
    model, tokenizer = loaded(tmp_path / "out", gguf_file="run-1.gguf")
    own = load_tokenizer(str(tiny.folder(kind, **shape)))
    ids = own.encode(TEXT)
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer.decode(ids) == own.decode(ids)
    assert tokenizer.chat_template == own.chat_template
    assert tokenizer.eos_token == "<|im_end|>"  # noqa: S105
    torch.testing.assert_close(logprobs(model, ids), agents_logprobs(run, 1, ids), atol=1e-4, rtol=0)


def test_the_template_keeps_what_the_run_gave_it(tiny: Any, toy: Any, tmp_path: Path) -> None:
    template = "{% if calm %}calm {% endif %}" + tiny.tokenizer().chat_template
    given = ["policy.chat_template_kwargs.calm=true"]
    run = trained_run(tmp_path / "run", tiny.folder(template=template), toy, more=given)
    export(run, tmp_path / "out")
    _, tokenizer = loaded(tmp_path / "out")
    asked = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == "calm <|im_start|>user\nhi<|im_end|>\n"
    assert "calm" not in tokenizer.apply_chat_template(asked, tokenize=False, calm=False)
    assert "The chat template has the run's values for `calm`" in (tmp_path / "out/README.md").read_text()


def test_replies_end_where_the_turn_ends(runs: dict[str, Path], tmp_path: Path) -> None:
    export(runs["lora"], tmp_path / "out")
    model, tokenizer = loaded(tmp_path / "out")
    assert model.generation_config.eos_token_id == [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert not model.generation_config.do_sample


def test_the_readme_says_what_it_is_and_the_example_is_a_task(runs: dict[str, Path], tmp_path: Path) -> None:
    export(f"{runs['lora']}@0", tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text()
    assert f"`{runs['lora'].as_posix()}`, round 0 of 1" in text
    assert "2026-01-31" in text
    assert "25.0%" in text, "as measured in round 0, not in the last one"
    assert f"vllm serve {tmp_path.as_posix()}/out --served-model-name lora-0" in text
    request = json.loads((tmp_path / "out/example.json").read_text())
    assert request["messages"] == [{"role": "user", "content": "add 1 and 2"}]
    assert request["model"] == "lora-0"


def test_what_is_written_is_a_policy_of_genenv(runs: dict[str, Path], tmp_path: Path) -> None:
    from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
    from genenv.evaluation.models import assistant

    export(runs["lora"], tmp_path / "out")
    here = PolicyConfig(device="cpu", threads=1)
    for name in (str(tmp_path / "out"), str(runs["lora"])):
        made = assistant(name, here, EndpointConfig(), SamplingConfig())
        assert made.describe()["context_tokens"] == 512


def test_a_folder_that_holds_something_is_left_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="out is not empty; choose another --out"):
        export(runs["lora"], tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    export(runs["lora"], tmp_path / "empty", Form.ADAPTER)
    assert (tmp_path / "empty/README.md").is_file()


@pytest.mark.long
def test_what_a_kind_of_model_cannot_be_is_one_sentence(tiny: Any, toy: Any, tmp_path: Path) -> None:
    gemma = trained_run(tmp_path / "gemma", tiny.folder("gemma"), toy)
    with pytest.raises(UsageError, match="is a gemma model, and GGUF is written for llama, qwen2, qwen3"):
        export(gemma, tmp_path / "out", Form.GGUF)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256}
    stretched = trained_run(tmp_path / "yarn", tiny.folder(rope_parameters=yarn), toy)
    with pytest.raises(UsageError, match="rotates positions by 'yarn', which is not written to GGUF"):
        export(stretched, tmp_path / "out", Form.GGUF)
    assert not list(tmp_path.glob("*out*")), "nothing is left of what could not be"


def test_whole_weights_are_no_adapter(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has trained all weights, there is no adapter"):
        export(runs["full"], tmp_path / "out", Form.ADAPTER)


def test_a_damaged_adapter_is_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["lora"], tmp_path / "run")
    weights = tmp_path / "run/checkpoints/round-0001/agent/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(DataError, match="is damaged"):
        export(tmp_path / "run", tmp_path / "out")
