"""Threads wait awake where each has a core, asleep beside other processes, and no result hangs on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from genenv.backends.local.cpu.threads import Choice, Crowd, lacked_s

linux = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")


def looks(*lacked: float) -> list[bool]:
    """What is chosen at looks that are a second apart."""
    choice = Choice()
    return [choice.asleep(seconds, 1.0) for seconds in lacked]


def test_on_a_quiet_machine_threads_wait_awake() -> None:
    assert not any(looks(0.0, 0.01, 0.05, 0.0))


def test_beside_another_process_they_sleep_and_it_is_tried_again_once_it_is_gone() -> None:
    assert looks(0.0, 0.5, 0.0, 0.0, 0.0) == [False, True, False, False, False]


def test_trials_on_a_machine_that_stays_busy_become_rare() -> None:
    choice = Choice()
    asleep = [choice.asleep(0.05, 0.1) for _ in range(3000)]  # five minutes
    assert asleep.count(False) <= 15  # trials: after 1, 2, 4, ... 32 seconds
    assert False in asleep[-400:]


def test_after_a_quiet_time_a_disturbance_costs_a_second_again() -> None:
    choice = Choice()
    for _ in range(3000):
        choice.asleep(0.05, 0.1)
    while choice.asleep(0.0, 0.1):
        pass
    for _ in range(20):
        assert not choice.asleep(0.0, 0.1)
    assert choice.asleep(0.05, 0.1)
    assert 9 <= [choice.asleep(0.0, 0.1) for _ in range(20)].count(True) <= 10


@linux
def test_a_crowd_comes_and_goes_and_changes_no_number() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(64, 576, generator=torch.Generator().manual_seed(0))
        expected, threads = x @ x.T, len(os.listdir("/proc/self/task"))
        crowd = Crowd()
        assert len(os.listdir("/proc/self/task")) == threads + 2
        assert torch.equal(x @ x.T, expected)
        crowd.leave()
        end = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < end:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/task")) == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


EXITS = """
import os, sys, time, torch
from genenv.backends.local.cpu import threads

threads._LOOK_EVERY_S, threads.lacked_s = 0.0, iter(range(10**9)).__next__
threads.Choice.asleep = lambda *_, turns=iter(range(10**9)): next(turns) % 2 == 0
for child in range(12):
    if not os.fork():
        threads.follow_the_machine()
        time.sleep(0.02 + 0.001 * child)
        sys.exit()
sys.exit(max(os.wait()[1] for _ in range(12)) > 0)
"""


@linux
@pytest.mark.long
def test_a_process_ends_while_threads_come_and_go() -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@linux
def test_what_threads_lacked_only_grows_and_sleeping_is_no_lack() -> None:
    for _ in range(20):
        threads, before = set(os.listdir("/proc/self/task")), lacked_s()
        if before is None:
            pytest.skip("this system does not tell")
        time.sleep(0.2)
        after = lacked_s()
        assert after is not None
        if set(os.listdir("/proc/self/task")) == threads:  # one that ends takes its share with it
            break
    else:
        pytest.fail("some thread came or went at every look")
    assert 0 <= after - before < 0.1
