"""What suits this machine."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local import hardware
from typed import refused


@pytest.mark.parametrize(
    ("asked", "full", "half", "chosen", "says"),
    [
        ("auto", 2.0, 1.0, torch.bfloat16, False),
        ("auto", 1.2, 1.0, torch.float32, False),
        ("auto", 1.0, 5.0, torch.float32, False),  # a processor that only emulates bfloat16
        ("bfloat16", 1.0, 5.0, torch.bfloat16, True),
        ("bfloat16", 2.0, 1.0, torch.bfloat16, False),
        ("bfloat16", 1.0, 1.05, torch.bfloat16, False),
    ],
)
def test_a_processor_that_is_slow_in_bfloat16_uses_float32_unless_told(
    monkeypatch, caplog, asked, full, half, chosen, says
):
    seconds = {torch.float32: full, torch.bfloat16: half}
    monkeypatch.setattr(hardware, "cpu_seconds", lambda works, **_: {name: seconds[name] for name in works})
    monkeypatch.setattr(hardware, "_bfloat16_gain", hardware._bfloat16_gain.__wrapped__)
    monkeypatch.setattr(hardware, "_say_bfloat16_is_slow", hardware._say_bfloat16_is_slow.__wrapped__)
    assert hardware.choose_dtype(asked, torch.device("cpu")) == chosen
    sentences = [record.getMessage() for record in caplog.records]
    assert len(sentences) == says
    assert all("products take 5.0 times as long in it as in float32" in sentence for sentence in sentences)


def test_on_one_core_there_is_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert hardware.choose_threads() == 1


def test_there_are_no_more_threads_than_cores(monkeypatch):
    tried = []
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(
        hardware, "cpu_seconds", lambda works, **_: tried.extend(works) or dict.fromkeys(works, 1.0)
    )
    assert hardware.choose_threads() == 2
    assert tried == [1, 2]


CPU = torch.device("cpu")
LIMITS = {
    "v2": (
        "0::/job/task",
        {
            "job/memory.max": 3000,
            "job/memory.current": 2500,
            "job/memory.stat": "anon 1500\nfile 1000\nactive_file 300\ninactive_file 600\n",
            "job/task/memory.max": "max",
            "job/task/memory.current": 10,
        },
    ),
    "v1": (
        "4:memory:/job",
        {
            "memory/memory.limit_in_bytes": 9223372036854771712,
            "memory/memory.usage_in_bytes": 10**9,
            "memory/job/memory.limit_in_bytes": 3000,
            "memory/job/memory.usage_in_bytes": 2500,
            "memory/job/memory.stat": "active_file 1\ntotal_active_file 300\ntotal_inactive_file 600\n",
        },
    ),
}


@pytest.mark.parametrize(("groups", "files"), LIMITS.values(), ids=LIMITS)
def test_memory_is_what_a_container_or_a_batch_system_allows(groups, files, tmp_path):
    files = {f"sys/fs/cgroup/{name}": str(text) for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, "proc/meminfo": "MemAvailable: 10 kB", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert hardware.memory_bytes(CPU, tmp_path) == 3000
    assert hardware.free_bytes(CPU, tmp_path) == 3000 - (2500 - 900), "files in memory can be dropped"
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1 kB\n")
    assert hardware.free_bytes(CPU, tmp_path) == 1024
    assert hardware.memory_bytes(CPU, tmp_path / "none") == hardware.memory_bytes(CPU)
    assert hardware.free_bytes(CPU, tmp_path / "none") == float("inf")


@pytest.mark.parametrize(
    ("asked", "gib", "token_bytes", "tokens"),
    [
        (0, 80, 975e3, 44_032),  # Qwen3-0.6B in bfloat16: an update of 36,864 tokens is one micro-batch
        (0, 80, 20e6, 4096),
        (0, 80, 1e3, 65_536),
        (500, 80, 975e3, 500),
        (0, 80, None, 16_384),
    ],
)
def test_micro_batches_fill_half_of_a_gpu(monkeypatch, asked, gib, token_bytes, tokens):
    monkeypatch.setattr(hardware, "memory_bytes", lambda _: gib * 2.0**30)
    assert hardware.microbatch_tokens(asked, torch.device("cuda"), token_bytes) == tokens
    assert hardware.microbatch_tokens(asked, torch.device("cpu"), token_bytes) == (asked or 4096)


def test_apples_gpus_are_refused_in_a_sentence():
    """Nothing here was ever run on one."""
    said = refused("doctor", "demo", "--set", "policy.device=mps")
    assert 'setting \'policy.device\' is "mps"; allowed: "auto" or "cpu" or "cuda"' in said
