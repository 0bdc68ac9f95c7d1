"""A place that takes no files is found before a model is loaded, by every command that writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from genenv.errors import UsageError
from genenv.files import check_writable
from typed import refused

NOWHERE = Path("/proc/genenv/out")
"""Below a folder in which nobody can make one, root neither."""


def test_a_place_that_is_made_later_takes_files_and_is_not_made_yet(tmp_path: Path) -> None:
    check_writable(tmp_path / "runs" / "demo")
    check_writable(tmp_path)
    (tmp_path / "there.jsonl").write_text("x\n")
    check_writable(tmp_path / "there.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
    assert (tmp_path / "there.jsonl").read_text() == "x\n"


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file is a file\); choose another --export"):
        check_writable(tmp_path / "file" / "run", "--export")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        check_writable(tmp_path / "run")
    tmp_path.chmod(0o700)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
@pytest.mark.parametrize(
    "words",
    [
        ("train", "demo", "--out", NOWHERE),
        ("sweep", "{config}", "--variants", "static", "--out", NOWHERE),
        ("generate", "demo", "--out", NOWHERE / "tasks.jsonl"),
        ("eval", "held-out", "--policy", "smollm2-135m", "--set", "held_out.config=demo", "--out", NOWHERE),
        ("export-env", "tool_calling", "--out", NOWHERE.with_name("some_env")),
        ("env", "new", NOWHERE, "--from", "{tools}"),
        ("lab", "--seeds", "1000000", "--out", NOWHERE),
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_writes_says_so_at_once(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def never() -> None:\n    raise SystemError\n")
    (tmp_path / "config.toml").write_text("")
    places = {"config": tmp_path / "config.toml", "tools": tmp_path / "tools.py"}
    said = refused(*(str(word).format_map(places) for word in words))
    assert f"{NOWHERE.parent}" in said
    assert "cannot be written (/proc: " in said
    assert "choose another " in said
    assert "loading" not in said
