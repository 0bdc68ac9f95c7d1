"""What is asked of a cluster, and the command lines that it comes to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.cli.app import load_command
from genenv.cluster.hosts import Needs, Plan, at

RUN = Path("/shared/run")


def planned(**asked: Any) -> Plan:
    usual: dict[str, Any] = {
        "run": RUN,
        "servers": 2,
        "server": Needs(cpus=4, gpus=1),
        "trainer": Needs(cpus=1, gpus=0),
        "vllm": False,
        "overrides": ("run.rounds=3",),
        "named": True,
        "typed_in": Path.cwd(),
    }
    return Plan(**usual | asked)


def words_of(command: str, words: list[str]) -> None:
    """Fails where the command line has no such option."""
    assert words[:4] == [sys.executable, "-m", "genenv", command]
    load_command(command).make_context(command, list(words[4:]))


def test_the_trainer_is_placed_first_and_nothing_is_asked_that_is_none() -> None:
    assert [part.bundle() for part in planned().parts()] == [{"CPU": 1}, *([{"CPU": 4, "GPU": 1}] * 2)]
    assert str(planned()) == "2 servers, each of 4 CPUs and 1 GPU, and a trainer of 1 CPU and 0 GPUs"
    assert str(planned(servers=1)).startswith("a server of 4 CPUs and 1 GPU, and")


def test_a_server_has_the_settings_of_the_policy_that_are_not_the_usual_ones() -> None:
    policy = PolicyConfig(model="tiny", backend="vllm", lora_rank=8, dtype="float32", threads=1)
    words = planned().serving(policy)
    assert words[4:] == [
        *("--model", "tiny", "--set", "policy.lora_rank=8"),
        *("--set", 'policy.dtype="float32"', "--set", "policy.threads=1"),
        *("--adapters", "/shared/run/cluster/adapters"),
    ]
    words_of("serve", words)
    own = planned(vllm=True, server=Needs(cpus=1, gpus=2)).serving(policy)
    assert own[-4:] == ["--vllm", "--", "--tensor-parallel-size", "2"]
    placed = at(own, "10.0.0.2", 8000)
    assert placed[-7:] == ["--host", "10.0.0.2", "--port", "8000", "--", "--tensor-parallel-size", "2"]
    words_of("serve", placed)
    found = VllmConfig(command=".venv-vllm/bin/vllm", options=("--max-num-seqs", "64"))
    theirs = planned(vllm=True).serving(policy.model_copy(update={"vllm": found}))
    assert theirs[-8:-5] == ["--set", 'policy.vllm.command=".venv-vllm/bin/vllm"', "--vllm"]
    assert theirs[-5:] == ["--", "--tensor-parallel-size", "1", "--max-num-seqs", "64"]
    words_of("serve", at(theirs, "10.0.0.2", 8000))
    assert at(words, "10.0.0.2", 8000)[-4:] == ["--host", "10.0.0.2", "--port", "8000"]


@pytest.mark.parametrize(
    ("resume", "named", "again", "begins"),
    [
        (False, True, False, ["--out", str(RUN), "/shared/run/cluster/config.toml"]),
        (False, True, True, ["--out", str(RUN), "--resume"]),
        (True, False, False, ["--out", str(RUN), "--resume"]),
        (True, True, False, ["--out", str(RUN), "--resume", "/shared/run/cluster/config.toml"]),
        (True, True, True, ["--out", str(RUN), "--resume", "/shared/run/cluster/config.toml"]),
    ],
)
def test_a_trainer_that_begins_anew_goes_on_with_the_run(
    resume: bool, named: bool, again: bool, begins: list[str]
) -> None:
    words = planned(resume=resume, named=named).training(again=again)
    said = [
        *("--set", "run.rounds=3", "--set", "policy.backend=vllm"),
        *("--set", 'policy.vllm.addresses_folder="/shared/run/cluster/addresses"'),
        *("--set", 'policy.vllm.folder="/shared/run/cluster/adapters"'),
    ]
    assert words[4:] == [*begins, *said]
    words_of("train", words)


def test_a_trainer_of_several_gpus_has_a_process_on_each() -> None:
    words = planned(trainer=Needs(cpus=4, gpus=2)).training(again=False)
    assert words[:4] == [sys.executable, "-m", "genenv.backends.local.launch_ranks", "2"]
    assert words[4:] == planned(trainer=Needs(cpus=4, gpus=1)).training(again=False)[3:]
