"""What stands on a node, without a cluster: real servers and a real trainer, as processes of this machine."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.vllm.child import Child
from genenv.backends.vllm.client import read_addresses
from genenv.cluster import hosts
from genenv.cluster.hosts import Needs, News, Plan, ServerHost, TrainerHost, prepare, sees
from genenv.runs.folder import RunFolder
from running import comes

SETTINGS = '[policy]\nmodel = "tiny"\n[environment]\nname = "programs"\n'


def planned(run: Path, **asked: Any) -> Plan:
    few = Needs(cpus=1, gpus=0)
    usual: dict[str, Any] = {"run": run, "servers": 1, "server": few, "trainer": few, "vllm": False}
    return Plan(**usual | {"named": True, "typed_in": run.parent} | asked)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    """All programs that are started; ended at the end."""
    begun: list[Child] = []

    def begin(*words: Any, **options: Any) -> Child:
        begun.append(Child(*words, **options))
        return begun[-1]

    monkeypatch.setattr(hosts, "Child", begin)
    yield begun
    for child in begun:
        child.end()


@pytest.mark.long
def test_a_server_says_where_it_is_and_its_node_is_left_when_it_ends(
    tmp_path: Path, children: list[Child]
) -> None:
    plan, died = planned(tmp_path / "run"), list[int]()
    policy = prepare(plan, SETTINGS, "token")
    assert not isinstance(policy, str)
    host = ServerHost("server-0", plan.serving(policy), plan, "127.0.0.1", key="secret", die=died.append)
    address = comes(lambda: host.state().address)
    assert read_addresses(plan.addresses) == (address,)
    host.end()
    assert died == [1]
    assert read_addresses(plan.addresses) == ()


def test_a_server_that_does_not_start_says_why_and_is_tried_again(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_AGAIN_S", 0.1)
    plan = planned(tmp_path / "run")
    plan.folder.mkdir(parents=True)
    said = "echo no model in $PWD; exit 2"
    host = ServerHost("server-0", ["sh", "-c", said, "sh"], plan, "127.0.0.1")
    try:
        assert comes(lambda: host.state().complaint) == f"no model in {tmp_path}"
        comes(lambda: len(children) > 1)
        assert host.state().address is None
    finally:
        host.end()
    assert (plan.folder / "server-0.log").read_text().startswith("no model in ")


def test_a_server_whose_log_cannot_be_written_says_so_and_is_tried_again(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_AGAIN_S", 0.1)
    plan = planned(tmp_path / "run")  # its folder is missing
    host = ServerHost("server-0", ["sh", "-c", "echo started", "sh"], plan, "127.0.0.1")
    try:
        assert "No such file or directory" in comes(lambda: host.state().complaint)
        plan.folder.mkdir(parents=True)
        comes(lambda: host.state().complaint == "started")
    finally:
        host.end()


@pytest.mark.long
def test_a_server_whose_address_cannot_be_announced_is_ended_and_says_why(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_AGAIN_S", 0.1)
    plan, died = planned(tmp_path / "run"), list[int]()
    policy = prepare(plan, SETTINGS, "token")
    assert not isinstance(policy, str)
    plan.addresses.rmdir()
    plan.addresses.write_text("a file instead of a folder")
    host = ServerHost("server-0", plan.serving(policy), plan, "127.0.0.1", key="secret", die=died.append)
    try:
        assert "File exists" in comes(lambda: host.state().complaint)
        assert children[0].status is not None
    finally:
        host.end()
    assert died == []


def told(host: TrainerHost, life: str = "", after: int = 0) -> Iterator[News]:
    """All news until the trainer ends."""
    news = host.news(life, after)
    while news.status is None:
        yield news
        news = host.news(news.life, news.next)
    yield news


def test_a_trainer_that_begins_anew_says_so_and_goes_on(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "run")
    assert not isinstance(prepare(plan, SETTINGS, "token"), str)
    monkeypatch.setattr(Plan, "training", lambda _, *, again: ["echo", f"again: {again}"])
    first = list(told(TrainerHost(plan, "launch", {})))
    assert [line for news in first for line in news.lines] == ["again: False"]
    assert first[-1].status == 0
    RunFolder.create(plan.run, "")
    second = list(told(TrainerHost(plan, "launch", {}), first[-1].life, first[-1].next))
    assert [line for news in second for line in news.lines] == ["again: True"]
    assert second[-1].life != first[-1].life
    third = list(told(TrainerHost(plan, "another launch", {})))
    assert [line for news in third for line in news.lines] == ["again: False"]


@pytest.mark.long
def test_a_trainer_is_interrupted_as_by_ctrl_c_and_ended_where_that_is_not_enough(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "run")
    plan.folder.mkdir(parents=True)
    # No shell where it has to be heard: one that is about to start its next command may miss it.
    heard = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    deaf = ["sh", "-c", "trap '' INT; echo deaf; sleep 600; sleep 600"]
    for words, status, seconds in ((heard, 130, 60.0), (deaf, 137, 0.5)):
        monkeypatch.setattr(hosts, "_STOPPING_S", seconds)
        monkeypatch.setattr(Plan, "training", lambda _, *, again, words=words: words)
        host = TrainerHost(plan, status, {})
        assert children[-1].said(0, 20).lines
        host.interrupt()
        assert children[-1].status == status


def test_the_folder_of_a_run_is_made_ready_and_seen_by_those_who_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "run", overrides=("policy.lora_rank=4",))
    policy = prepare(plan, SETTINGS, "token")
    assert not isinstance(policy, str)
    assert (policy.model, policy.lora_rank) == ("tiny", 4)
    assert sees(plan, "token", 0)
    assert not sees(plan, "another", 0.3)
    assert not sees(planned(tmp_path / "elsewhere"), "token", 0)

    def refuses(**_: object) -> None:
        raise OSError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", refuses)
        assert not sees(plan, "token", 0)
    (plan.addresses / "old.address").write_text("http://old:1")
    prepare(plan, SETTINGS, "token")
    assert read_addresses(plan.addresses) == ()


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_cannot_hold_the_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; choose another --out" in str(prepare(planned(tmp_path / "file"), SETTINGS, "t"))
    assert "holds no run" in str(prepare(planned(tmp_path, resume=True), None, "t"))
    said = str(prepare(planned(tmp_path / "file" / "run"), SETTINGS, "t"))
    assert f"{tmp_path / 'file'} is a file); choose another --out" in said
    run = tmp_path / "run"
    RunFolder.create(run, SETTINGS)
    (run / "metrics.jsonl").write_text("{}\n")
    assert "already holds a run" in str(prepare(planned(run), SETTINGS, "t"))
    with RunFolder(run).lock():
        assert "is being written by another process" in str(prepare(planned(run, resume=True), None, "t"))
