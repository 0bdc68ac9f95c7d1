"""Where a run is inside a round, on the pages: only what the process that has the lock wrote is believed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from genenv.runs.folder import RunFolder
from genenv.viewer.pages import address
from viewer_runs import HOSTILE, write_run


def say(folder: RunFolder, name: str = "round 2/9: rollouts", *, left: float = 0.0, **changed: Any) -> None:
    """Write a live file."""
    stage = {
        "name": name,
        "done": 3,
        "total": 12,
        "unit": "rollouts",
        "tokens": 600,
        "note": "",
        "seconds": 6.0,
    }
    state = {"version": 1, "began": 1.0, "at": 3600.0, "round_s": 1.0, "stages": [stage | changed]}
    folder.live.write_text(json.dumps(state), encoding="utf-8")


def test_a_run_is_shown_inside_its_round_with_the_time_left(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=3, planned=9)  # each takes 4 s, and 7 are left
    reader = serve(tmp_path)
    with folder.lock():
        say(folder)
        page = reader.page(address("demo"))
        for text in ("round 2/9: rollouts", "3 of 12 rollouts", "100 tokens/s", "about 18 s left"):
            assert text in page
        assert "about 27 s left in the run" in page
        assert '<progress max="12" value="3"' in page
        shown = reader.page("/")
        assert "3 of 12 rollouts" in shown
        assert '<progress max="12" value="3"' in shown
        say(folder, total=None)
        assert "3 rollouts" in reader.page(address("demo"))
        assert "<progress" not in reader.page(address("demo"))
        say(folder, total=None, unit="")
        assert "for 6 s" in reader.page(address("demo"))
        say(folder, done=40)
        assert '<progress max="12" value="12"' in reader.page(address("demo"))


def test_what_another_process_left_is_not_taken_for_now(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2, planned=9)
    reader = serve(tmp_path)
    say(folder)
    os.utime(folder.live, (time.time() - 60,) * 2)
    with folder.lock():
        assert "rollouts" not in reader.ask("/", HX_Request="true").text
        assert "12 rollouts" not in reader.page(address("demo"))
    assert "Last seen" not in reader.page(address("demo"))


def test_a_killed_run_says_where_it_was(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2, planned=9)
    done = write_run(tmp_path / "done", rounds=3)
    for one in (folder, done):
        with one.lock():
            say(one)
    reader = serve(tmp_path)
    page = reader.page(address("demo"))
    assert "Last seen at 1970-01-01 01:00:00 UTC in round 2/9: rollouts, 3 of 12 rollouts" in page
    assert "<progress" not in page
    assert "Last seen" not in reader.page(address("done"))
    assert "rollouts" not in reader.ask("/", HX_Request="true").text


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', "[" * 70_000, "\0" * 100])
def test_damage_is_not_shown_and_breaks_no_page(tmp_path: Path, serve: Any, text: str) -> None:
    folder = write_run(tmp_path / "demo", rounds=2, planned=9)
    reader = serve(tmp_path)
    with folder.lock():
        folder.live.write_text(text, encoding="utf-8")
        for path in ("/", address("demo")):
            assert "running" in reader.page(path)
            assert "<progress" not in reader.page(path)


def test_texts_in_it_are_shown_as_text(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=2, planned=9)
    reader = serve(tmp_path)
    with folder.lock():
        say(folder, HOSTILE.replace("\ud800", ""), note="<b>\u202e")
        for path in ("/", address("demo")):
            page = reader.page(path)
            assert "<script>alert" not in page
            assert "onerror=alert(1)&gt;" in page
            assert "\u202e" not in page
        assert "&lt;b&gt;\\u202e" in reader.page(address("demo"))
