"""Several processes that train together find what one finds, and each holds a part of the base."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import TCPStore

from genenv.backends.base import open_backend
from genenv.backends.local import backend, processes
from genenv.backends.local.processes import Call, Opening, Processes
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import PolicyConfig
from genenv.errors import DataError, UpdateSkipped, UsageError
from genenv.servers.vllm import SamplingServer
from policies_on_servers import lines_of
from several_processes import TORCHRUN, found, numbers, ran

CONFIG = Path(__file__).parents[3] / "configs" / "tiny.toml"
HERE = {"dtype": "float32", "device": "cpu", "threads": 1, "packed_weights": False, "compiled": False}
COMPARED = {
    "agent/eval_success",
    "agent/success_rate",
    "agent/response_tokens",
    "agent/steps",
    "simulator/loss",
    "simulator/kl",
    "simulator/grad_norm",
}
CASES = Path(__file__).with_name("together_cases.py")


@pytest.mark.long
def test_three_processes_learn_what_one_learns(tmp_path: Path) -> None:
    alone, several = found(CASES, tmp_path / "1"), found(*TORCHRUN, "3", CASES, tmp_path / "3")
    assert several["batches"] == 5
    assert several["held"] == pytest.approx(several["whole"] / 3, rel=0.05)
    assert several["loaded"] == several["agent"] != several["learned"]
    for name in sorted(alone.keys() - {"held"}):
        assert numbers(several[name]) == pytest.approx(numbers(alone[name]), rel=1e-4, abs=2e-5), name


def test_micro_batches_are_shared_out_so_that_all_have_as_many() -> None:
    for size in (1, 2, 3, 5):
        for batches in range(1, 12):
            turns = [list(Processes(rank, size).turns(batches)) for rank in range(size)]
            assert len({len(own) for own in turns}) == 1
            assert sorted(turn.own for own in turns for turn in own if turn.counts) == list(range(batches))
            assert all(turn.own in turn.all for own in turns for turn in own)


@pytest.mark.long
def test_who_follows_waits_as_long_as_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LISTENS", timedelta(seconds=0.1))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    leads = Processes(0, 2, store)
    later = threading.Timer(0.5, lambda: [leads.broadcast({"first": 1}), leads.broadcast(None)])
    later.start()
    follows = Processes(1, 2, TCPStore("127.0.0.1", store.port, is_master=False))
    assert follows.receive() == {"first": 1}
    assert follows.receive() is None
    later.join()
    assert store.num_keys() <= 1  # what all have read is let go of


class Damaged:
    """A trainer whose file is damaged in this process."""

    def load(self, error: type[Exception]) -> None:
        raise error("the file is damaged")


@pytest.mark.parametrize(
    ("error", "later", "raised"),
    [
        (DataError, Call("agent", "load", (DataError,), {}), True),  # rank 0 has loaded its own file
        (DataError, None, False),  # rank 0 says it
        (UpdateSkipped, Call("agent", "load", (UpdateSkipped,), {}), False),
    ],
)
def test_who_follows_does_not_go_on_after_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], later: Any, raised: bool
) -> None:
    said = iter([Opening(PolicyConfig(), (), 1), Call("agent", "load", (error,), {}), later, None])
    follows = Processes(1, 2)
    monkeypatch.setattr(follows, "receive", lambda: next(said))
    monkeypatch.setattr(follows, "_store", cast(Any, SimpleNamespace(wait=lambda *_: None)))
    monkeypatch.setattr(backend, "connected", lambda: follows)
    opened = SimpleNamespace(trainers={"agent": Damaged()})
    monkeypatch.setattr(backend, "_open", lambda *_: opened)
    with pytest.raises(error) if raised else contextlib.nullcontext():
        backend.follow_rank_0()


@pytest.fixture
def server() -> Iterator[str]:
    base = LoadedBase("tiny", PolicyConfig(model="tiny", **HERE))
    with SamplingServer(base, "tiny") as running:
        yield running.url


def settings(address: str) -> list[str]:
    said = (
        *("policy.tuning=lora", "policy.backend=vllm", "policy.threads=1", "policy.compiled=false"),
        *("policy.decoder=transformers", "policy.packed_weights=false"),
        f"policy.vllm.addresses={json.dumps([address])}",
        *("run.rounds=2", "run.eval_tasks=8", "run.eval_every=1", "run.keep_checkpoints=3"),
        *("agent.rollouts=4", "agent.warmup.steps=60", "agent.warmup.check_tasks=8"),
        *("simulator.contexts=4", "simulator.variations=2", "simulator.warmup.steps=3"),
    )
    return [word for one in said for word in ("--set", one)]


@pytest.mark.long
def test_a_run_of_two_processes_is_as_one_of_one_and_goes_on(server: str, tmp_path: Path) -> None:
    words = ["-m", "genenv", "train", CONFIG, *settings(server)]
    two = [*TORCHRUN, "2"]
    for start, run in (([], tmp_path / "one"), (two, tmp_path / "two")):
        done = ran(*start, *words, "--out", run)
        assert done.returncode == 0, done.stderr[-3000:]
    one, other = lines_of(tmp_path / "one"), lines_of(tmp_path / "two")
    assert [row["round"] for row in other] == [0, 1, 2]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() & COMPARED:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name
    assert one[-1].keys() >= COMPARED
    assert other[-1]["agent/steps"] > 0
    again = ["-m", "genenv", "train", "--out", tmp_path / "two", "--resume", "--set", "run.rounds=3"]
    done = ran(*two, *again)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["round"] for row in lines_of(tmp_path / "two")] == [0, 1, 2, 3]


@pytest.mark.long
def test_what_several_processes_cannot_do_is_said_once_and_all_end(server: str, tmp_path: Path) -> None:
    asked = [*settings(server), "--set", "policy.decoder=fused", "--out", tmp_path / "run"]
    done = ran(*TORCHRUN, "2", "-m", "genenv", "train", CONFIG, *asked)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("genenv: ")]
    assert "policy.decoder needs the whole base in one process" in sentence
    assert done.returncode


def test_several_processes_train_while_servers_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UsageError, match=r"'local' and .* 2 processes train adapters .* policy.backend='vllm'"
    ):
        open_backend(PolicyConfig(model="tiny"), [], cast(Any, None), seed=1)
