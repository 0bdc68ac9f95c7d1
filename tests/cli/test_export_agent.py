"""`genenv export-agent`: a run that has really trained becomes a folder; what cannot be is one sentence."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from trained import agents_logprobs, logprobs, trained_run
from typed import refused, succeeds

SETTINGS = """
[run]
rounds = 2
eval_tasks = 4

[environment]
name = "programs"

[simulator]
contexts = 2
variations = 1
max_new_tokens = 24

[simulator.warmup]
steps = 1
batch = 1

[agent]
rollouts = 2
max_new_tokens = 6
lr = 2e-2
skip_zero_advantage = false

[agent.warmup]
steps = 4
batch = 4
lr = 5e-2
check_tasks = 4

[policy]
model = "{model}"
device = "cpu"
dtype = "float32"
threads = 1
context_tokens = 512
"""
TEXT = "<|im_start|>user\nSend 20 euros to Zoë<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def played(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has warmed up and played two rounds."""
    root = tmp_path_factory.mktemp("played")
    (root / "small.toml").write_text(SETTINGS.format(model=tiny.folder()), encoding="utf-8")
    succeeds("train", root / "small.toml", "--out", root / "run")
    return root / "run"


@pytest.mark.long
def test_what_a_run_has_trained_is_what_others_load(played: Path, tiny: Any, tmp_path: Path) -> None:
    told = succeeds("export-agent", played, "--out", tmp_path / "out").stdout
    assert "places" in told
    assert f"vllm serve {tmp_path}/out --served-model-name run-2" in told
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer.encode(TEXT)
    found = logprobs(model, ids)
    torch.testing.assert_close(found, agents_logprobs(played, 2, ids), atol=2e-5, rtol=0)
    assert (found - logprobs(tiny.plain(), ids)).abs().max() > 1e-2, "it has learned something"
    readme = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "round 2 of 2" in readme
    assert "tasks of `programs`" in readme


def test_a_gguf_file_has_a_modelfile_beside_it(played: Path, tmp_path: Path) -> None:
    told = succeeds("export-agent", f"{played}@1", "--format", "gguf", "--out", tmp_path / "out").stdout
    assert f"ollama create run-1 -f {tmp_path}/out/Modelfile" in told
    assert f"llama-server -m {tmp_path}/out/run-1.gguf" in told
    lines = (tmp_path / "out/Modelfile").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "FROM ./run-1.gguf"
    assert "PARAMETER num_ctx 512" in lines
    assert lines[-1] == 'PARAMETER stop "<|im_end|>"'


def test_left_out_the_folder_is_called_like_the_run(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeeds("export-agent", played, "--adapter")
    names = {path.name for path in (tmp_path / "exports/run-2-adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= names


def test_what_names_no_trained_agent_is_one_sentence(
    played: Path, tiny: Any, toy: Any, tmp_path: Path
) -> None:
    run = trained_run(tmp_path / "run", tiny.folder(), toy)
    assert "nowhere is not a folder; name the folder of a run" in refused(
        "export-agent", tmp_path / "nowhere"
    )
    assert "holds no run" in refused("export-agent", tiny.folder())
    assert "has no round 7; its last is 1" in refused("export-agent", f"{run}@7")
    assert "is the simulator, which stays in its run" in refused("export-agent", f"{run}@1:simulator")
    assert "unknown --format 'gguff'; did you mean 'gguf'?" in refused(
        "export-agent", played, "--format", "gguff"
    )
    assert "unknown --dtype 'int4'" in refused("export-agent", played, "--dtype", "int4")
    assert "leave out --adapter or --format gguf" in refused(
        "export-agent", played, "--adapter", "--format", "gguf"
    )
    assert "leave --dtype out" in refused("export-agent", played, "--adapter", "--dtype", "float16")


@pytest.mark.long
def test_a_run_without_a_round_or_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    words = ["train", "tiny", "--set", "policy.backend=scripted", "--set", "run.rounds=1", "--out"]
    succeeds(*words, tmp_path / "scripts")
    assert "is 'scripted': no weights are in that folder" in refused("export-agent", tmp_path / "scripts")
    text = (tmp_path / "scripts/config.toml").read_text()
    RunFolder(tmp_path / "scripts").write_settings(text.replace('backend = "scripted"', 'backend = "local"'))
    (tmp_path / "scripts/pool.db").unlink()
    PoolStore.open(tmp_path / "scripts/pool.db", create=True).close()
    assert "has no committed round yet; train it first" in refused("export-agent", tmp_path / "scripts")


def test_characters_for_tokens_are_no_gguf_file(toy: Any, tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", "tiny", toy)
    sentence = refused("export-agent", run, "--format", "gguf", "--out", tmp_path / "out")
    assert "the tokenizer of tiny cannot be written to GGUF: it has no merges" in sentence
    assert not list(tmp_path.glob("*out*"))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 50,000 bytes, which the system says as it says that a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_disk_that_takes_no_more_is_one_sentence(
    played: Path, tmp_path: Path, full_disk: None, form: str
) -> None:
    sentence = refused("export-agent", played, "--format", form, "--out", tmp_path / "out")
    assert sentence.startswith(f"{tmp_path}/out was not written: ")
    assert list(tmp_path.iterdir()) == []
