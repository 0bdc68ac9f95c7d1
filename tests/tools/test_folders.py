"""What is in the folder of tools, whatever it is: content where it can be read, else a digest."""

from __future__ import annotations

import json
import os
import sqlite3
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.errors import UsageError
from genenv.tools.worlds.folder import Original, WorkingFolder, content_of
from genenv.tools.worlds.origins import PythonOrigin
from genenv.tools.worlds.python import PythonWorld


def database(path: Path, *statements: str) -> bytes:
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, bytes]:
    whole = database(
        tmp_path / "whole.db",
        "CREATE TABLE t (a, b)",
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 500) "
        "SELECT i, hex(zeroblob(200)) FROM n",
    )
    bomb = database(
        tmp_path / "bomb.db",
        "CREATE TABLE t (a, b AS (hex(zeroblob(400000))))",
        "INSERT INTO t (a) WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 500) "
        "SELECT i FROM n",
    )
    return {
        "deep.json": b"[" * 100_000 + b"]" * 100_000,
        "nested.json": b'{"a": ' * 500 + b"1" + b"}" * 500,
        "cut.db": whole[: len(whole) // 2],
        "overwritten.db": whole[:100] + b"\xff" * (len(whole) - 100),
        "header.db": b"SQLite format 3\x00 and nothing else",
        "bomb.db": bomb,
        "wide.csv": b"a,b\n" + b"x" * 200_000 + b",1\n",
    }


def test_what_is_damaged_or_too_deep_is_known_by_its_digest(
    tmp_path: Path, damaged: dict[str, bytes]
) -> None:
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        told = content_of(tmp_path / name)
        assert isinstance(told, str), name
        assert told.startswith(f"{len(content)} bytes, "), name
        (tmp_path / name).write_bytes(content + b" ")
        assert content_of(tmp_path / name) != told


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Ada,12,2026-01-03\nBen,7,2026-01-04\n", [["Ada", "12", "2026-01-03"], ["Ben", "7", "2026-01-04"]]),
        ("land,2025,2026\nPeru,1,2\n", [{"land": "Peru", "2025": "1", "2026": "2"}]),
        (",name,2026-01\n0,Ada,12\n", [{"": "0", "name": "Ada", "2026-01": "12"}]),
        ("name,age\nAda,12\n", [{"name": "Ada", "age": "12"}]),
        ("", []),
    ],
)
def test_a_table_without_names_of_columns_loses_no_row(tmp_path: Path, text: str, rows: list[Any]) -> None:
    (tmp_path / "table.csv").write_text(text)
    assert content_of(tmp_path / "table.csv") == rows


def test_an_archive_is_known_by_its_members(tmp_path: Path) -> None:
    def content(sheet: str, when: tuple[int, int, int, int, int, int]) -> Any:
        with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as archive:
            for name, text in (("xl/sheet1.xml", sheet), ("docProps/core.xml", str(when))):
                archive.writestr(zipfile.ZipInfo(name, when), text)
        return content_of(tmp_path / "book.xlsx")

    early, late = content("<a/>", (2026, 1, 1, 0, 0, 0)), content("<a/>", (2026, 1, 2, 0, 0, 0))
    assert set(early) == {"xl/sheet1.xml", "docProps/core.xml"}
    assert (
        early["xl/sheet1.xml"]
        == late["xl/sheet1.xml"]
        != content("<b/>", (2026, 1, 1, 0, 0, 0))["xl/sheet1.xml"]
    )
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(17 << 20))
    assert "bytes, " in content_of(tmp_path / "bomb.zip")
    whole = (tmp_path / "book.xlsx").read_bytes()
    (tmp_path / "cut.xlsx").write_bytes(whole[:-20])
    assert isinstance(content_of(tmp_path / "cut.xlsx"), str)


def test_the_folder_of_a_server_may_hold_what_is_damaged(tmp_path: Path, damaged: dict[str, bytes]) -> None:
    (tmp_path / "original").mkdir()
    folder = WorkingFolder(tmp_path / "folder", Original(tmp_path / "original"))
    for name, content in damaged.items():
        (folder.path / name).write_bytes(content)
    files: Any = folder.contents()["files"]
    assert set(files) == set(damaged)
    assert all("bytes, " in told for told in files.values())
    folder.restore()
    assert folder.contents() == {"folders": {".": None}}


def test_the_folder_of_python_tools_may_hold_what_is_damaged(
    tmp_path: Path, damaged: dict[str, bytes]
) -> None:
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tools.py").write_text("def f() -> int:\n    return 1\n")
    world = PythonWorld(tmp_path, "tools.py")
    try:
        state = world.play([]).state
        assert {name.partition(".")[0] for name in damaged} == set(cast(Any, state))
    finally:
        world.close()


def test_numbers_that_equal_nothing_are_the_same_state_twice(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"a": NaN, "b": 1e999, "c": "\\ud800"}')
    told = content_of(tmp_path / "odd.json")
    assert told == content_of(tmp_path / "odd.json")
    json.dumps(told, allow_nan=False).encode()


def test_of_files_that_are_gone_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "kept").write_text("kept")
    folder = WorkingFolder(tmp_path / "folder", Original(tmp_path / "original"))
    tracemalloc.start()
    try:
        for number in range(60):
            (folder.path / f"note-{number}").write_text(f"{number}" * 200_000)
            assert len(folder.contents()) == 2
            folder.restore()
        assert folder.contents()["files"] == {"kept": "kept"}
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


def test_a_pipe_in_the_place_of_a_file_is_seen_and_goes_when_the_folder_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "kept").write_text("kept")
    folder = WorkingFolder(tmp_path / "folder", Original(tmp_path / "original"))
    before = folder.contents()
    (folder.path / "kept").unlink()
    os.mkfifo(folder.path / "kept")
    os.mkfifo(folder.path / "new")
    assert folder.contents()["files"] == dict.fromkeys(("kept", "new"), "a pipe, a socket or a device")
    folder.restore()
    assert folder.contents() == before


@pytest.mark.long
def test_nothing_outside_the_folder_is_copied_for_tools_that_want_to_read_it(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "data.csv").write_text("a\n1\n")
    (tmp_path / "own" / "tools.py").write_text(
        "open('data.csv')\nopen('../secret.csv')\ndef f() -> int:\n    return 1\n"
    )
    with pytest.raises(UsageError, match=r"No such file or directory: '../secret.csv'"):
        PythonOrigin(tmp_path / "own" / "tools.py").bring(tmp_path / "bundle" / "files")
    assert {one.name for one in (tmp_path / "bundle").rglob("*")} == {"files", "tools.py", "data.csv"}
