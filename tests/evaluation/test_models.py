"""What `--policy` names: bases, adapters of runs, whole models of runs, endpoints."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from genenv.backends.local.model import LocalModel
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
from genenv.config.run import dump_toml, load_config
from genenv.errors import DataError, UsageError
from genenv.evaluation.models import _digest, assistant
from genenv.runs.checkpoint import checkpoint_path, mark_committed
from genenv.runs.folder import RunFolder
from genenv.runs.store.reader import read_last_round, read_run_id
from genenv.runs.store.store import PoolStore
from saving import write_checkpoint
from sharing import Shared

HERE = PolicyConfig(device="cpu", threads=1, context_tokens=4096)
USER = [{"role": "user", "content": "Send 20 euros to Zoë"}]


def answer(name: str, policy: PolicyConfig = HERE) -> tuple[str, Any]:
    made = assistant(name, policy, EndpointConfig(), SamplingConfig())
    return asyncio.run(made.talk(0)(USER, max_tokens=12)).text, made.describe()


@pytest.fixture
def run(tiny: Any, shared: Shared, tmp_path: Path) -> Path:
    """A run whose rounds 1 and 3 have checkpoints, the agent's adapter being far from the base."""
    model = tiny.folder(max_position_embeddings=256)
    made = shared("run-of-adapters", lambda to: make_run(to, model, tuning="lora"))
    return shutil.copytree(made, tmp_path / "run")


def make_run(path: Path, model: Path, *, tuning: str, more: Sequence[str] = ()) -> Path:
    settings = [f'policy.model="{model}"', "policy.lora_rank=2", f'policy.tuning="{tuning}"', *more]
    config = load_config(None, [*settings, 'policy.device="cpu"', 'policy.dtype="float32"'])
    folder = RunFolder.create(path, dump_toml(config))
    for number in (1, 3):
        base = LocalModel(str(model), config.policy)
        for player in ("agent", "simulator"):
            whole = tuning == "full"
            if not whole:
                base.add_adapter(player, seed=1)
        write_checkpoint(
            folder.checkpoints,
            number,
            lambda to, base=base, n=number: save(base, to, n, tuning),
            run=read_run_id(folder.pool),
        )
    return path


def save(base: LocalModel, to: Path, number: int, tuning: str) -> None:
    for player in ("agent", "simulator"):
        policy = LocalSampler(PolicyWeights(base, None if tuning == "full" else player, keep_reference=False))
        generator = torch.Generator().manual_seed(number + len(player))
        with torch.no_grad():
            for _, parameter in policy.weights.parameters():
                parameter += torch.randn(parameter.shape, generator=generator) * 0.3
        policy.weights.save(to / player)


@pytest.mark.long
def test_a_base_is_asked_in_its_own_window(tiny: Any) -> None:
    text, described = answer(str(tiny.folder(max_position_embeddings=256)))
    assert text
    assert described["context_tokens"] == 256


def test_adapters_of_a_run_answer_otherwise_than_the_base_and_each_other(run: Path, tiny: Any) -> None:
    names = [str(tiny.folder(max_position_embeddings=256)), f"{run}@1", f"{run}@3", f"{run}@3:simulator"]
    answers = [answer(name)[0] for name in names]
    assert len(set(answers)) == 4


def test_left_out_it_is_the_newest_round_and_the_agent(run: Path) -> None:
    text, described = answer(str(run))
    assert text == answer(f"{run}@3:agent")[0]
    assert (described["round"], described["player"]) == (3, "agent")


def test_a_whole_model_of_a_run_is_loaded_from_its_checkpoint(tiny: Any, tmp_path: Path) -> None:
    path = make_run(tmp_path / "full", tiny.folder(max_position_embeddings=256), tuning="full")
    assert answer(str(path))[0] != answer(f"{path}@1")[0]


@pytest.mark.parametrize(
    ("tuning", "stored", "kept"),
    [("lora", "bfloat16", "bfloat16"), ("full", "bfloat16", "bfloat16"), ("full", "auto", "float32")],
)
def test_a_run_answers_in_the_number_format_in_which_it_measured_itself(
    tiny: Any, tmp_path: Path, tuning: str, stored: str, kept: str
) -> None:
    path = make_run(tmp_path / "run", tiny.folder(max_position_embeddings=256), tuning=tuning)
    text = (path / "config.toml").read_text()
    RunFolder(path).write_settings(text.replace('dtype = "float32"', f'dtype = "{stored}"'))
    assert answer(str(path))[1]["dtype"] == kept
    other = {"bfloat16": "float32", "float32": "bfloat16"}[kept]
    assert answer(str(path), HERE.model_copy(update={"dtype": other}))[1]["dtype"] == other


@pytest.mark.long
def test_other_weights_in_the_same_place_are_told_apart(tiny: Any, tmp_path: Path) -> None:
    model = tiny.folder(max_position_embeddings=256)
    first = answer(str(make_run(tmp_path / "a", model, tuning="lora")))[1]["files"]
    shutil.rmtree(tmp_path / "a")
    second = answer(str(make_run(tmp_path / "a", model, tuning="full")))[1]["files"]
    assert first
    assert first != second


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_run_is_asked_with_the_template_variables_that_it_was_trained_with(
    tiny: Any, tmp_path: Path, tuning: str
) -> None:
    model = tiny.folder(max_position_embeddings=256)
    given = ["policy.chat_template_kwargs.enable_thinking=false", "policy.max_thinking_tokens=5"]
    path = make_run(tmp_path / "run", model, tuning=tuning, more=given)
    described = answer(str(path))[1]
    assert described["chat_template_kwargs"] == {"enable_thinking": False}
    assert described["max_thinking_tokens"] == 5
    other = HERE.model_copy(update={"chat_template_kwargs": {"enable_thinking": True}})
    assert answer(str(path), other)[1]["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_round_without_checkpoint_is_one_sentence(run: Path) -> None:
    with pytest.raises(UsageError, match=r"keeps no checkpoint of round 2; it keeps 1, 3"):
        answer(f"{run}@2:agent")


def test_a_damaged_checkpoint_is_one_sentence(run: Path) -> None:
    path = checkpoint_path(run / "checkpoints", 3) / "agent" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged"):
        answer(str(run))


@pytest.mark.parametrize("whose", ["another round", "another run"])
def test_a_checkpoint_of_another_round_or_run_is_one_sentence(run: Path, tmp_path: Path, whose: str) -> None:
    if whose == "another round":
        shutil.rmtree(run / "checkpoints/round-0003")
        shutil.copytree(run / "checkpoints/round-0001", run / "checkpoints/round-0003")
        message = "round-0003 is the checkpoint of round 1, not of 3"
    else:
        (run / "pool.db").unlink()
        PoolStore.open(run / "pool.db", create=True).close()
        message = "round-0003 is of another run"
    with pytest.raises(DataError, match=message):
        answer(f"{run}@3")


def test_which_run_it_is_needs_no_right_to_write(run: Path) -> None:
    before = sorted(run.iterdir())
    found = read_run_id(run / "pool.db")
    assert sorted(run.iterdir()) == before
    with PoolStore.open(run / "pool.db", create=False) as store:
        assert store.run_id() == found
        assert read_run_id(run / "pool.db") == found, "also while it is open"
    (run / "pool.db").write_bytes(b"")
    assert read_last_round(run / "pool.db") is None
    with pytest.raises(DataError, match=r"pool\.db is damaged \(no such table: run\)"):
        read_run_id(run / "pool.db")


def test_the_mark_of_a_committed_round_makes_no_other_weights_of_it(run: Path) -> None:
    """A resumed run may add it later; results that were begun before are still continued."""
    first = answer(f"{run}@3")[1]["files"]
    mark_committed(checkpoint_path(run / "checkpoints", 3))
    assert answer(f"{run}@3")[1]["files"] == first


def test_a_folder_that_is_no_run_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="holds no run"):
        answer("somewhere@3:agent")


def test_other_weights_of_the_same_size_are_another_model(tmp_path: Path) -> None:
    """Files of up to 4 MiB are read whole, larger ones at 64 places."""
    seen = set[str]()
    for size in (100, 20_000_000):
        file = tmp_path / "model.safetensors"
        for byte in (b"a", b"b"):
            file.write_bytes(byte * size)
            seen.add(_digest(tmp_path))
    assert len(seen) == 4
    file.write_bytes(b"a" * 20_000_000)
    assert _digest(tmp_path) in seen
    assert _digest(tmp_path / "nowhere") == ""
