"""`genenv train --view`: pages beside a run, in a process that ends with it however it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scripted_genenv as fakes
from running import comes_true, descendants, running

pytestmark = pytest.mark.long

SLOW = """
    import sys, time
    sys.path.insert(0, {tests!r})
    import scripted_genenv as fakes
    from genenv.agent.policy import Agent
    from genenv.training import opening

    async def waiting(self, *arguments, **options):
        found = await roll_out(self, *arguments, **options)
        if {wait}:  # until the test has seen the page
            sys.stdin.readline()
        return found

    roll_out, Agent.roll_out = Agent.roll_out, waiting
    fakes.few_base_data()
    opening.load_players = fakes.scripted_players
    fakes.main()
"""


@contextmanager
def training(place: Path, *options: str, wait: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A run of one round that, if it waits, goes on when a line is written to it."""
    (place / "a.toml").write_text(fakes.SETTINGS.format(rounds=1), encoding="utf-8")
    program = textwrap.dedent(SLOW).format(tests=str(Path(__file__).parents[1]), wait=wait)
    command = [sys.executable, "-c", program, "train", str(place / "a.toml"), "--out", str(place / "run")]
    with subprocess.Popen(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background job
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_in(stderr: Any) -> str:
    """The address that is printed while the run goes on."""
    for line in stderr:
        if found := re.search(r"in your browser: (http://127\.0\.0\.1:\d+/runs/run/-/)$", line.rstrip()):
            return found[1]
    raise AssertionError("no address")


def page(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - an address on loopback
        return answer.read().decode()


def is_gone(url: str) -> bool:
    try:
        page(url)
    except OSError:
        return True
    return False


def test_the_pages_show_the_run_and_end_with_it(tmp_path: Path) -> None:
    with training(tmp_path, "--view") as process:
        url = address_in(process.stderr)
        assert comes_true(lambda: "round 1/1: rollouts" in page(url))
        children = descendants(process.pid)
        out, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0
    assert out.rstrip().endswith(f"in one file: genenv report {tmp_path / 'run'}")
    assert f"genenv view {tmp_path / 'run'}" in out
    assert is_gone(url)
    assert children
    assert not running().keys() & set(children)


def test_two_runs_are_shown_side_by_side(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    with training(places[0], "--view") as first, training(places[1], "--view") as second:
        assert address_in(first.stderr) != address_in(second.stderr)
        for process in (first, second):
            process.communicate("\n", timeout=60)
            assert process.returncode == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_or_killed_leaves_no_server(tmp_path: Path, how: signal.Signals) -> None:
    with training(tmp_path, "--view") as process:
        url = address_in(process.stderr)
        children = descendants(process.pid)
        process.send_signal(how)
        assert comes_true(lambda: process.poll() is not None)
        assert comes_true(lambda: not running().keys() & set(children))
    assert is_gone(url)
    assert (tmp_path / "run/live.json").exists() == (how == signal.SIGKILL)


def test_with_view_after_the_pages_stay_until_an_interrupt(tmp_path: Path) -> None:
    with training(tmp_path, "--view-after") as process:
        url = address_in(process.stderr)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr is not None
        assert any("the pages stay until Ctrl-C" in line for line in process.stderr)
        assert "finished" in page(url)
        process.send_signal(signal.SIGINT)
        assert comes_true(lambda: process.poll() == 0)
        assert process.stderr.read() == ""
    assert is_gone(url)


def test_without_the_option_a_line_says_how_to_see_the_run(tmp_path: Path) -> None:
    with training(tmp_path, wait=False) as process:
        _, told = process.communicate(timeout=60)
    assert f"in your browser: genenv view {tmp_path / 'run'}" in told.splitlines()
    assert not (tmp_path / "run/live.json").exists()
