"""The words that start vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genenv.backends.settings import PolicyConfig
from genenv.backends.vllm.launcher import vllm_command as command
from genenv.errors import UsageError
from typed import refused

POLICY = PolicyConfig(model="smollm2-135m", lora_rank=8)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    """Programs of that name are found, and no others."""
    for name in programs:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_run_finds_there_what_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "vllm", "python")
    words = command(POLICY, "base", host="127.0.0.1", port=1, context=256, more=["--seed", "3"])
    assert words[:3] == [str(tmp_path / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in {
        "--model": "base",
        "--served-model-name": "smollm2-135m",
        "--max-lora-rank": "8",
        "--max-model-len": "256",
        "--logprobs-mode": "processed_logprobs",
        "--seed": "3",
    }.items():
        assert words[words.index(name) + 1] == value
    assert "--enable-scale-out" in words  # token ids in, token ids out
    assert "--dtype" not in words
    grammars = json.loads(words[words.index("--structured-outputs-config") + 1])
    assert grammars["disable_any_whitespace"] is True


def test_where_no_interpreter_stands_beside_it_the_program_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "vllm")
    policy = POLICY.model_copy(update={"dtype": "float32"})
    words = command(policy, "base", host="127.0.0.1", port=1, context=256)
    assert words[:2] == [str(tmp_path / "vllm"), "serve"]
    assert words[-2:] == ["--dtype", "float32"]


def test_no_vllm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no vllm here"):
        command(POLICY, "base", host="127.0.0.1", port=1, context=256)


def test_options_of_vllm_need_vllm() -> None:
    assert "--tensor-parallel-size 2: options of vLLM's own go with --vllm" in refused(
        "serve", "--", "--tensor-parallel-size", "2"
    )


def test_the_largest_rank_is_one_that_vllm_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "vllm")
    for rank, largest in ((1, "1"), (4, "8"), (16, "16"), (24, "32"), (257, "320"), (512, "512")):
        policy = POLICY.model_copy(update={"lora_rank": rank})
        words = command(policy, "base", host="127.0.0.1", port=1, context=256)
        assert words[words.index("--max-lora-rank") + 1] == largest
    with pytest.raises(UsageError, match=r"lora_rank is 513, and vLLM takes adapters of rank 512 at most"):
        command(POLICY.model_copy(update={"lora_rank": 513}), "base", host="127.0.0.1", port=1, context=256)


@pytest.mark.long
@pytest.mark.parametrize(
    ("host", "given"), [("10.0.0.9", None), ("127.0.0.1", None), ("127.0.0.1", "own-key")]
)
def test_vllm_gets_a_key_where_others_reach_it(tmp_path: Path, host: str, given: str | None) -> None:
    """A program in vLLM's place says what it was started with; nothing listens."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "key=$VLLM_API_KEY words=$*"\n')
    program.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "RUN_KEY": given or ""}
    variables.pop("VLLM_API_KEY", None)
    words = [
        "serve",
        "--model",
        "tiny",
        "--vllm",
        "--host",
        host,
        "--set",
        "policy.vllm.key_variable=RUN_KEY",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "genenv", *words], env=variables, capture_output=True, text=True, check=True
    )
    key = done.stdout.rpartition("key=")[2].partition(" ")[0]
    assert "--allowed-origins []" in done.stdout
    if given is not None or host == "127.0.0.1":
        assert key == (given or "")
        assert "export" not in done.stdout
    else:
        assert len(key) > 40
        assert f"export RUN_KEY={key}\n" in done.stdout
