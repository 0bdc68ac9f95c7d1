"""The vLLM that a run starts: a real server in its place, its share of memory, its sleep, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Opened, Role, open_backend
from genenv.backends.settings import PolicyConfig, VllmConfig
from genenv.backends.vllm import launcher
from genenv.backends.vllm.launcher import (
    Installed,
    adapters_place,
    examine,
    find_program,
    memory_share,
    own_options,
    root_cause,
)
from genenv.backends.vllm.policy import VllmSampler
from genenv.errors import GenenvError, UsageError
from lessons import imitated
from policies_on_servers import HERE, ROLES, lines_of, played, request
from running import comes
from typed import refused, succeeds
from vllm_stand_in import EVENTS, events, program

CONFIG = Path(__file__).parents[3] / "configs" / "tiny.toml"
SLEEPS, AWAKE = '["0.32.0", "none", true]', '["0.32.0", "none", false]'
GIB = 2.0**30
RUN = [
    *("policy.tuning=lora", "policy.backend=vllm", "policy.threads=1", "policy.compiled=false"),
    *("policy.packed_weights=false", "policy.dtype=float32", "run.rounds=2", "run.eval_tasks=8"),
    *("agent.rollouts=2", "agent.warmup.steps=3", "agent.warmup.check_tasks=8", "agent.warmup.batch=16"),
    *("simulator.contexts=2", "simulator.variations=2", "simulator.warmup.steps=3"),
]


def typed(*more: str) -> list[str]:
    return [word for one in (*RUN, *more) for word in ("--set", one)]


def launched(command: str, roles: list[Role] = ROLES, **settings: Any) -> Opened:
    """Both policies, on a server that this starts."""
    vllm = VllmConfig(command=command, timeout_s=60.0, **settings)
    config = PolicyConfig(backend="vllm", model="tiny", vllm=vllm, **HERE)
    return open_backend(config, roles, cast(Any, None), seed=1)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which servers note what they are asked."""
    monkeypatch.setenv(EVENTS, str(tmp_path / "events"))
    return tmp_path / "events"


def processes(noted: Path) -> list[int]:
    return [int(line.split()[1]) for line in events(noted) if line.startswith("began ")]


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


# whole runs


@pytest.mark.long
def test_one_setting_starts_a_server_and_the_run_is_as_with_a_named_one(tmp_path: Path, noted: Path) -> None:
    command = program(tmp_path, SLEEPS)
    found = launched(command)
    address = cast(Any, found.samplers["agent"]).fleet.servers[0].address
    key = cast(Any, found.samplers["agent"]).fleet._launched.key
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_API_KEY", key)
            named = typed(f'policy.vllm.addresses=["{address}"]')
            succeeds("train", CONFIG, *named, "--out", tmp_path / "named")
    finally:
        assert found.end is not None
        found.end()
    noted.unlink()
    succeeds("train", CONFIG, *typed(f"policy.vllm.command={command}"), "--out", tmp_path / "own")
    own, named = lines_of(tmp_path / "own"), lines_of(tmp_path / "named")
    timed = ("time/", "memory/")
    for mine, theirs in zip(own, named, strict=True):
        untimed = [
            {name: n for name, n in one.items() if not name.startswith(timed)} for one in (mine, theirs)
        ]
        assert untimed[0] == untimed[1]
    assert json.loads((tmp_path / "own" / "starts.jsonl").read_text())["server"]["vllm"] == "0.32.0"
    assert (tmp_path / "own" / "vllm.log").is_file()
    (process,) = processes(noted)
    assert gone(process)
    told = [line for line in events(noted) if not line.startswith("began")]
    assert told[:2] == ["/sleep", "/wake_up"]
    assert set(told) == {"/sleep", "/wake_up"}, "nothing is asked of a server that sleeps"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_server_outlives_a_run_that_is_killed(tmp_path: Path, noted: Path, number: signal.Signals) -> None:
    words = [*typed(f"policy.vllm.command={program(tmp_path)}", "run.rounds=500"), "--out", tmp_path / "run"]
    run = subprocess.Popen([sys.executable, "-m", "genenv", "train", str(CONFIG), *map(str, words)])
    try:
        comes(lambda: (tmp_path / "run" / "vllm.log").is_file())
        (process,) = processes(noted)
        assert not gone(process)
        run.send_signal(number)
        run.wait(60)
        comes(lambda: gone(process))
    finally:
        run.kill()
        run.wait()


# a server that dies


@pytest.mark.long
def test_a_server_that_dies_is_started_again_once_with_its_adapters(tmp_path: Path, noted: Path) -> None:
    found = launched(program(tmp_path))
    assert found.begin is not None
    assert found.end is not None
    found.begin(tmp_path)

    async def play() -> None:
        sampler = found.samplers["agent"]
        before = await sampler.sample(request(sampler))
        os.kill(processes(noted)[0], signal.SIGKILL)
        assert await sampler.sample(request(sampler)) == before
        await asyncio.to_thread(comes, lambda: len(processes(noted)) == 2)
        os.kill(processes(noted)[1], signal.SIGKILL)
        with pytest.raises(GenenvError, match=r"vLLM has ended a second time: .*vllm\.log\).*--resume"):
            await sampler.sample(request(sampler))

    try:
        played(found, play)
    finally:
        found.end()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "echo ' INFO begins'; echo '(E pid=3) ERROR 11:00 ValueError: No memory' >&2; echo bye; exit 1",
            "V",
        ),
        ("echo only this; exit 3", "only this"),
    ],
)
def test_a_server_that_does_not_start_is_quoted(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "vllm").write_text(f"#!/bin/sh\n{lines}\n")
    (tmp_path / "vllm").chmod(0o755)
    expected = "ValueError: No memory" if said == "V" else said
    with pytest.raises(
        UsageError, match=rf"^vLLM does not start: {expected} \(its output is in (\S+)\)$"
    ) as e:
        launched(str(tmp_path / "vllm"))
    log = Path(str(e.value).rpartition(" in ")[2].rstrip(")"))
    assert expected in log.read_text()
    log.unlink()


def test_a_server_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    (tmp_path / "vllm").chmod(0o755)
    with pytest.raises(
        UsageError, match=r"has not started within 0\.5 s .*start_timeout_s.*: (\d+)"
    ) as caught:
        launched(str(tmp_path / "vllm"), start_timeout_s=0.5)
    log = Path(str(caught.value).rpartition(" in ")[2].rstrip(")"))
    assert gone(int(log.read_text()))
    log.unlink()


# sleep


@pytest.mark.long
@pytest.mark.parametrize(
    ("found", "ahead", "sleep", "events_"),
    [
        (SLEEPS, False, True, ["/sleep", "/wake_up"]),
        (SLEEPS, True, True, []),
        (SLEEPS, False, False, []),
        (AWAKE, False, True, []),
    ],
)
def test_a_server_sleeps_while_policies_train_unless_a_round_is_sampled_then(
    tmp_path: Path, noted: Path, found: str, ahead: bool, sleep: bool, events_: list[str]
) -> None:
    role = Role(name="agent", optimizer=OptimizerConfig(), reference=False, ahead=ahead)
    opened = launched(program(tmp_path, found), [role], sleep=sleep)
    assert opened.end is not None

    async def play() -> None:
        sampler, trainer = opened.samplers["agent"], opened.trainers["agent"]
        asked = request(sampler)
        data = [imitated(asked.prompt_ids, (7, 8, 9))]
        for _ in range(2):  # two micro-steps of one update: it falls asleep once
            await trainer.forward_backward(data, Objective())
        await trainer.step(1e-2)
        assert await trainer.publish() == 1
        done = await asyncio.gather(*(sampler.sample(request(sampler, n)) for n in range(4)))
        assert {one.version for one in done} == {1}

    try:
        played(opened, play)
    finally:
        opened.end()
    (began,) = [line for line in events(noted) if line.startswith("began")]
    assert ("--enable-sleep-mode" in began) is bool(events_)
    assert events(noted)[1:] == events_


@pytest.mark.long
def test_a_request_in_flight_keeps_a_server_awake(tmp_path: Path, noted: Path) -> None:
    opened = launched(program(tmp_path, SLEEPS))
    fleet = cast(VllmSampler, opened.samplers["agent"]).fleet
    assert opened.end is not None

    async def play() -> None:
        fleet.servers[0].busy = 1
        await fleet.sleep()
        assert len(events(noted)) == 1
        fleet.servers[0].busy = 0
        await fleet.sleep()
        assert events(noted)[1:] == ["/sleep"]

    try:
        played(opened, play)
    finally:
        opened.end()


# what is refused, in a sentence


def test_no_vllm_is_said_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = refused("train", CONFIG, *typed(), "--out", tmp_path / "run")
    assert "there is no vllm here: pip install 'genenv[vllm]'" in sentence
    assert "or name a server in policy.vllm.addresses" in sentence
    with pytest.raises(UsageError, match=r"policy.vllm.command is '/no/vllm', which is no program"):
        find_program("/no/vllm")


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ('echo \'found ["0.31.2", "cuda", true]\'', "is vLLM 0.31.2, and a run needs 0.32 or newer"),
        (
            "echo 'ModuleNotFoundError: No module named vllm' >&2; exit 1",
            "cannot import vllm: ModuleNotFound",
        ),
    ],
)
def test_an_old_or_broken_vllm_is_said(tmp_path: Path, python: str, sentence: str) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(UsageError, match=sentence):
        examine(str(tmp_path / "vllm"))


def test_several_processes_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="several processes train together, and none of them starts vLLM"):
        launched("vllm")


@pytest.mark.parametrize(
    ("total", "free", "device", "sleeps", "share"),
    [
        (80, 70, "cuda", True, 0.725),  # 70 - 0.15 * 80 = 58 of 80
        (80, 70, "cuda", False, 0.437),  # half of 70, rounded down
        (100, 90, "cpu", False, 0.2),  # 16 + 2 + 2
        (100, 38, "cpu", False, 0.19),
    ],
)
def test_the_share_of_memory(total: float, free: float, device: str, sleeps: bool, share: float) -> None:
    sizes: dict[str, Any] = {"total": total * GIB, "free": free * GIB, "weights": 16 * GIB}
    sizes |= {"device": device, "sleeps": sleeps}
    assert memory_share(0.0, **sizes) == pytest.approx(share)
    assert memory_share(0.3, **sizes) == 0.3


def test_too_little_memory_is_said() -> None:
    sizes: dict[str, Any] = {"total": 24 * GIB, "weights": 14 * GIB, "device": "cuda", "sleeps": True}
    with pytest.raises(UsageError, match=r"needs about 16\.0 GiB of the GPU .* get 4\.4 of the 8\.0 GiB"):
        memory_share(0.0, free=8 * GIB, **sizes)
    with pytest.raises(
        UsageError, match=r"memory_share is 0\.9, 21\.6 GiB of the GPU, and 20\.0 GiB are free"
    ):
        memory_share(0.9, free=20 * GIB, **sizes)


def test_options_are_those_of_the_platform() -> None:
    config = VllmConfig(options=("--max-num-seqs", "8"))
    on_cpu, variables = own_options(
        config, Installed("0.32.0", "cpu", False), share=0.25, context=8192, sleeps=False
    )
    assert on_cpu[1:3] == ["--gpu-memory-utilization", "0.25"]
    assert on_cpu[on_cpu.index("--max-num-batched-tokens") + 1] == "8192"
    assert on_cpu[-2:] == ["--max-num-seqs", "8"]
    assert variables == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    on_gpu = own_options(config, Installed("0.32.0", "cuda", True), share=0.5, context=512, sleeps=True)
    assert on_gpu[0][3:] == ["--enable-sleep-mode", "--max-num-seqs", "8"]
    assert on_gpu[1] == {"VLLM_SERVER_DEV_MODE": "1"}
    assert own_options(config, None, share=None, context=512, sleeps=False) == (["--max-num-seqs", "8"], {})


def test_the_line_that_says_why_is_quoted() -> None:
    lines = [
        "(EngineCore pid=1) ERROR 11-27 ValueError: Free memory on device is less than desired",
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above.",
        "",
    ]
    assert root_cause(lines) == "ValueError: Free memory on device is less than desired"
    assert root_cause(["Killed", " "]) == "Killed"
    assert root_cause([]) == "it said nothing"


def test_adapters_go_into_memory_only_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual, memory = tmp_path / "usual", tmp_path / "memory"
    usual.mkdir()
    memory.mkdir()
    monkeypatch.setattr(launcher, "adapters_places", lambda: [memory, usual])
    assert adapters_place(1.0) == memory
    assert adapters_place(1e18) == usual
