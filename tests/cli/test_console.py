"""What a log file shows: where the work is, at once and at least every so often."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest
from rich.console import Console

from genenv.cli.console import pair_of, seeds_of
from genenv.cli.progress import PLAIN_EVERY_S, ConsoleReporter, _PlainStage
from genenv.errors import UsageError


def reporter(every_s: float) -> tuple[ConsoleReporter, io.StringIO]:
    log = io.StringIO()
    return ConsoleReporter(Console(file=log, width=200, highlight=False), every_s=every_s), log


def wait_for(log: io.StringIO, lines: int) -> list[str]:
    for _ in range(500):
        if log.getvalue().count("\n") >= lines:
            break
        time.sleep(0.01)
    return log.getvalue().splitlines()


def test_without_a_terminal_lines_are_ten_seconds_apart_at_least() -> None:
    assert PLAIN_EVERY_S == 10


def lines_of(advances: list[int], *, total: int | None, seconds: float) -> list[float]:
    """When a stage speaks that advances by so many items each second, then no more."""
    stage, last, spoken = _PlainStage("attempting", total, "attempts"), 0.0, list[float]()
    for second in range(int(seconds)):
        stage(0, advances[second] if second < len(advances) else 0)
        if stage.due(second - last, PLAIN_EVERY_S):
            stage.line()
            spoken, last = [*spoken, second], float(second)
    return spoken


def test_while_nothing_advances_lines_come_at_waits_that_double() -> None:
    assert lines_of([], total=120, seconds=700) == [10, 30, 70, 150, 310, 610]


def test_a_tenth_more_is_a_line_and_so_are_thirty_seconds_of_less() -> None:
    assert lines_of([1] * 60, total=100, seconds=60) == [10, 20, 30, 40, 50]
    assert lines_of([1] * 100, total=10_000, seconds=100) == [30, 60, 90]
    assert lines_of([1] * 100, total=None, seconds=100) == [30, 60, 90]
    assert len(lines_of([2] * 50, total=100, seconds=50)) == 4


def test_a_stage_that_said_where_it_is_says_when_it_is_over() -> None:
    said, log = reporter(every_s=0.02)
    with said.stage("attempting", items=3, unit="attempts") as advance:
        wait_for(log, 2)
        advance(0, 3)
    assert log.getvalue().splitlines()[1].startswith("  attempting: 0/3 attempts, 0 s so far")
    assert log.getvalue().splitlines()[-1] == "  attempting: 3/3 attempts, done in 0 s"


def test_a_stage_says_where_it_is_though_nothing_advances() -> None:
    said, log = reporter(every_s=0.02)
    with said.stage("warm-up of the agent", items=128, unit="steps") as advance:
        advance(640, 2, "7 of 24 solved")
        lines = wait_for(log, 3)
    assert lines[0] == "  warm-up of the agent: 128 steps"
    assert all(line.startswith("  warm-up of the agent: 2/128 steps, ") for line in lines[1:3])
    assert all(line.endswith(" s left, 7 of 24 solved") for line in lines[1:3])


def test_work_without_items_says_how_long_it_has_taken() -> None:
    said, log = reporter(every_s=0.02)
    with said.stage("loading a model", items=None, unit=""):
        lines = wait_for(log, 2)
    assert lines[0] == "  loading a model"
    assert lines[1] == "  loading a model: 0 s so far"


def test_nothing_is_said_of_a_stage_that_is_over() -> None:
    said, log = reporter(every_s=0.01)
    with said.stage("attempting", items=3, unit="attempts"):
        pass
    before = log.getvalue()
    time.sleep(0.05)
    assert log.getvalue() == before


def test_short_stages_in_a_row_share_the_time_between_lines() -> None:
    said, log = reporter(every_s=60.0)
    said.round(1, 3, {})  # from the first row of the table on, stages are not announced
    before = log.getvalue()
    for _ in range(3):
        with said.stage("attempting", items=3, unit="attempts") as advance:
            advance(0, 3)
    assert log.getvalue() == before


@pytest.mark.long
def test_the_first_sign_of_life_comes_before_libraries_are_loaded() -> None:
    script = (
        "import sys; from genenv.cli.app import load_command; load_command('train')\n"
        "from genenv.cli.console import begin; begin('starting'); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "starting ...\n")


def test_stages_side_by_side_share_a_terminal_and_the_one_that_lasts_stays() -> None:
    written = io.StringIO()
    reporter = ConsoleReporter(Console(file=written, force_terminal=True, width=120))
    with reporter.stage("agent learns", items=2, unit="sequences") as learning:
        with reporter.stage("attempting", items=4, unit="attempts") as attempting:
            attempting(0, 4)
        written.truncate(0)
        learning(0, 1)
        reporter.note("meanwhile")
        assert "agent learns" in written.getvalue()
        assert "attempting" not in written.getvalue().partition("meanwhile")[2]
    with reporter.stage("writing tasks", items=None, unit="specs"):
        written.truncate(0)
        reporter.note("later")
        assert "agent learns" not in written.getvalue()


def test_a_stage_that_begins_first_may_end_first() -> None:
    written = io.StringIO()
    reporter = ConsoleReporter(Console(file=written, force_terminal=True, width=120))
    first = reporter.stage("attempting", items=4, unit="attempts")
    first.__enter__()
    second = reporter.stage("agent learns", items=2, unit="sequences")
    second.__enter__()
    first.__exit__(None, None, None)
    written.truncate(0)
    reporter.note("meanwhile")
    assert "agent learns" in written.getvalue()
    second.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [0, 1, 2]),
        ("100-103", [100, 101, 102, 103]),
        ("7,", [7]),
        ("0, 2,10-12", [0, 2, 10, 11, 12]),
        ("1-3,2-4", [1, 2, 3, 4]),
    ],
)
def test_seeds_are_a_number_a_range_or_a_list(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-3", "5-3", "a", "1-2-3", "1.5", "0-9999999", ","])
def test_what_names_no_seeds_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds"):
        seeds_of(text)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("rl:base", ("rl", "base")),
        ("rl+agent.lr=1e-4:rl", ("rl+agent.lr=1e-4", "rl")),
        ("rl+agent.loss=m:f:rl", ("rl+agent.loss=m:f", "rl")),
        ("rl:rl+agent.loss=m:f", ("rl", "rl+agent.loss=m:f")),
        ("agent.loss=m:f:agent.loss=m:g", ("agent.loss=m:f", "agent.loss=m:g")),
        ("agent.loss=./a/m.py:f+rl:rl+run.seed=1", ("agent.loss=./a/m.py:f+rl", "rl+run.seed=1")),
    ],
)
def test_a_contrast_is_read_though_a_variant_names_a_function_of_ones_own(
    text: str, pair: tuple[str, str]
) -> None:
    assert pair_of(text) == pair


@pytest.mark.parametrize("text", ["base", ":base", "base:", "a:b:c", "", "a.b=:c", "rl+:base"])
def test_a_contrast_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form A:B, two variants"):
        pair_of(text)
