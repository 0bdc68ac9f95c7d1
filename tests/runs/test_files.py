"""Files are there whole, or as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from genenv.files import write_new, write_whole


def test_a_file_is_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    for text in ("old", "Zoë\n"):
        write_whole(tmp_path / "report.html", text)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "Zoë\n"


def test_several_writers_of_one_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(_: Path) -> None:
        monkeypatch.undo()
        write_whole(tmp_path / "report.html", "theirs")

    monkeypatch.setattr("genenv.files.sync", meanwhile)
    write_whole(tmp_path / "report.html", "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "ours"


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "report.html").write_text("old")
    monkeypatch.setattr("genenv.files.sync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "report.html", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


def test_a_file_of_the_same_name_that_was_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert write_new(path, "mine") == path
    assert write_new(path, "theirs") == tmp_path / "tasks-2.jsonl"
    assert (path.read_text(), (tmp_path / "tasks-2.jsonl").read_text()) == ("mine", "theirs")
    assert len(list(tmp_path.iterdir())) == 2
