"""The live file: it says where a run is, it costs a run nothing, and damage in it is never believed."""

from __future__ import annotations

import contextvars
import json
import os
from pathlib import Path

import pytest

from genenv.progress import LiveFile, LiveState, Silent, advance, read_live, staged
from running import comes_true

WHOLE = {
    "version": 1,
    "began": 1.0,
    "at": 2.0,
    "round_s": 1.0,
    "stages": [
        {
            "name": "rollouts",
            "done": 3,
            "total": 4,
            "unit": "rollouts",
            "tokens": 30,
            "note": "",
            "seconds": 6.0,
        }
    ],
}


def read(path: Path) -> LiveState:
    found = read_live(path)
    assert found is not None
    return found


@pytest.mark.long
def test_the_file_follows_the_stages_and_goes_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    with LiveFile(path, Silent()) as live:
        with staged(live, "round 1/2: rollouts", items=4, unit="rollouts"):
            advance(tokens=20, items=1, note="half \ud800")
            assert comes_true(
                lambda: path.exists() and bool(read(path).stages) and read(path).stages[0].done == 1
            )
            (stage,) = read(path).stages
            assert (stage.name, stage.total, stage.unit) == ("round 1/2: rollouts", 4, "rollouts")
            assert (stage.tokens, stage.note) == (20, "half \ufffd")
        live.round(1, 2, {})
        assert comes_true(lambda: read(path).stages == ())
        assert read(path).round_s < 5
    assert list(tmp_path.iterdir()) == []
    with live:
        assert comes_true(path.exists)


@pytest.mark.parametrize("place", ["missing/live.json", "folder"])
def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with LiveFile(tmp_path / place, Silent()) as live, staged(live, "rollouts", items=1, unit="rollouts"):
        advance(items=1)
    assert (tmp_path / "folder").is_dir()


def test_the_time_left_is_that_of_the_items_so_far(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text(json.dumps(WHOLE), encoding="utf-8")
    (stage,) = read(tmp_path / "live.json").stages
    assert (stage.left_s, stage.tokens_per_s) == (2.0, 5.0)
    assert stage.model_copy(update={"done": 0}).left_s is None
    assert stage.model_copy(update={"done": 9}).left_s is None
    assert stage.model_copy(update={"total": None}).left_s is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(WHOLE)[:-9],
        json.dumps(WHOLE | {"version": 2}),
        json.dumps(WHOLE | {"stages": [{"name": 1}]}),
        json.dumps(WHOLE | {"stages": WHOLE["stages"] * 17}),  # type: ignore[operator]
        json.dumps(WHOLE | {"began": float("nan")}),
        json.dumps(WHOLE | {"round_s": -1}),
        json.dumps(WHOLE | {"at": 1e300}),
        "[" * 50_000,
        " " * (1 << 20) + json.dumps(WHOLE),
        '{"version": 1, "stages": "\ud800"}',
    ],
    ids=["empty", "half", "version", "stage", "many", "nan", "negative", "far", "deep", "huge", "surrogate"],
)
def test_damage_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_bytes(text.encode(errors="surrogatepass"))
    assert read_live(tmp_path / "live.json") is None


def test_only_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "whole").write_text(json.dumps(WHOLE), encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "whole")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    found = [read_live(tmp_path / name) for name in ("link", "pipe", ".", "missing", "whole")]
    assert [one is None for one in found] == [True, True, True, True, False]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_stage_that_ends_in_another_context_is_no_error() -> None:
    """So it is where a run is interrupted twice: its coroutines are closed by whoever closes the loop."""
    stage = staged(Silent(), "rollouts", items=1, unit="rollouts")
    contextvars.copy_context().run(stage.__enter__)
    assert not contextvars.copy_context().run(stage.__exit__, None, None, None)
