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

from bundles import call
from genenv.errors import UsageError
from genenv.tools.worlds import copying
from genenv.tools.worlds import folder as folders
from genenv.tools.worlds.folder import Original, SessionFolder, WorkingFolder, content_of, data_files
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
        assert set(damaged) == set(cast(Any, world.play([]).state)["files"])
        assert "bomb.db, cut.db, header.db, overwritten.db: damaged" in "".join(world.remarks)
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


_WRITES = """
from pathlib import Path
files = {}
def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name
def make(name: str) -> str:
    Path(name).mkdir()
    return name
def link(name: str) -> str:
    Path(name).symlink_to(Path.cwd() / "code", target_is_directory=True)
    return name
"""


def test_the_endings_of_files_empty_folders_and_links_are_state_of_python_tools(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tools.py").write_text(_WRITES)
    with closing(PythonWorld(tmp_path, "code/tools.py")) as world:

        def state(tool: str, **args: str) -> Any:
            return world.play([call(tool, **args)]).state

        begun: Any = world.play([]).state
        assert begun == {"files": {}}, "a name of the tools' own stays, and folders of code are none"
        written = state("write", name="out/report.txt", text="1")
        assert written == {**begun, "files_": {"out/report.txt": "1"}, "folders": {"out": None}}
        assert (
            len({str(state("write", name=f"out/report{one}", text="1")) for one in ("", ".rst", ".md")}) == 3
        )
        data = state("write", name="report.json", text="1")
        assert data == {**begun, "files_": {"report.json": None}, "report": 1}
        assert state("make", name="new") == {**begun, "folders": {"new": None}}
        assert state("link", name="new") == {**begun, "files_": {"new": "a link to /files/code"}}


def test_databases_with_equal_rows_are_equal_whatever_their_size(tmp_path: Path) -> None:
    rows = [(f"item {number}", "x" * 1000) for number in range(1200)]
    for name, order in (("one.db", rows), ("other.db", rows[::-1])):
        with closing(sqlite3.connect(tmp_path / name)) as made:
            made.execute("CREATE TABLE items (name TEXT, note TEXT)")
            made.executemany("INSERT INTO items VALUES (?, ?)", order)
            made.commit()
    assert (tmp_path / "one.db").stat().st_size > 1 << 20
    assert content_of(tmp_path / "one.db") == content_of(tmp_path / "other.db")
    assert len(content_of(tmp_path / "one.db")["items"]) == 1200
    (tmp_path / "empty").mkdir()
    server = WorkingFolder(tmp_path / "server", Original(tmp_path / "empty"))
    (tmp_path / "one.db").rename(server.path / "one.db")
    assert len(cast(Any, server.contents())["one"]["items"]) == 1200


def test_a_database_with_too_many_rows_stays_with_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    many, few = tmp_path / "files" / "many.db", tmp_path / "files" / "few.db"
    for path, rows in ((many, 2200), (few, 10)):
        with closing(sqlite3.connect(path)) as made:
            made.execute("CREATE TABLE t (a, b)")
            made.executemany("INSERT INTO t VALUES (?, ?)", ((one, "x" * 1000) for one in range(rows)))
            made.commit()
    assert isinstance(content_of(many), str), "more than 2 MiB"
    session = SessionFolder(tmp_path / "files", tmp_path / "session", data_files(tmp_path / "files"))
    server = WorkingFolder(tmp_path / "server", Original(tmp_path / "files"))
    for folder in (session, server):
        with closing(sqlite3.connect(folder.path / "many.db")) as made:
            made.execute("DELETE FROM t WHERE a > 10")
            made.commit()
        found: Any = folder.contents()
        assert isinstance(found["files"]["many.db"], str), "not rows, though there are few now"
        assert len(found["few"]["t"]) == 10
    monkeypatch.setattr(folders, "_MOST_CELLS", 19)
    assert isinstance(content_of(few), str)


_READS = """
import json, os, sqlite3
from pathlib import Path
HERE = Path(__file__).parent
ORDERS = json.loads((HERE / "orders.json").read_text()) if (HERE / "orders.json").exists() else {}
RATES = os.listdir("rates") if os.access("rates", os.R_OK) else []
KEY = Path(".env").exists()
LARGE = os.path.isdir("large")
def notes() -> list: return sorted(one.name for one in HERE.glob("*.note"))
def stock() -> int:
    return sqlite3.connect("file:stock.db?mode=ro", uri=True).execute("select 1").fetchone()[0]
def part(name: str) -> str: return Path("large", name).read_text()
"""


@pytest.mark.long
def test_files_that_tools_test_for_or_list_are_copied_and_others_beside_them_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_MOST_BYTES", 1 << 20)
    own, files = tmp_path / "own", tmp_path / "files"
    for name in ("rates", "large"):
        (own / name).mkdir(parents=True)
        (own / name / "a.csv").write_text("a\n")
    for name in ("orders.json", "other.json", "a.note", "b.note", ".env", "large/b.csv"):
        (own / name).write_text('{"O-1": 1}')
    (own / "large" / "c.csv").write_bytes(bytes(1 << 20))
    sqlite3.connect(own / "stock.db").close()
    (own / "tools.py").write_text(_READS)
    origin = PythonOrigin(own / "tools.py")
    source = origin.bring(files)
    assert {one.name for one in files.iterdir()} == {"tools.py", "orders.json", "rates", "large"}
    calls = [call("notes"), call("stock"), call("part", name="b.csv")]
    with closing(source.open(files)) as world:
        world.play(calls)
        assert origin.complete(world, source, files) is source
    with closing(source.open(files)) as world:
        played = world.play(calls)
        assert [one.result for one in played.outcomes] == [["a.note", "b.note"], 1, '{"O-1": 1}']
        assert cast(Any, played.state)["orders"] == {"O-1": 1}
        assert origin.complete(world, source, files) is None
        assert "no tool asked for them by name: other.json, large;" in "".join(cast(Any, world).remarks)
    assert {one.name for one in (files / "large").iterdir()} == {"b.csv"}
    assert not (files / ".env").exists()


_BY_ID = """
import json, os
from pathlib import Path
HERE = Path(__file__).parent
OWN = HERE / "conf" / "local.json"
SETTINGS = json.loads(OWN.read_text()) if OWN.exists() else {}
def batches() -> list: return sorted(os.listdir(HERE / "data" / "batches"))
def customer(customer_id: str) -> dict:
    return json.loads((HERE / "data" / "customers" / f"{customer_id}.json").read_text())
def supplier(supplier_id: str) -> dict:
    path = HERE / "data" / "suppliers" / f"{supplier_id}.json"
    if not path.exists(): raise ValueError("there is no such supplier")
    return json.loads(path.read_text())
def report(text: str) -> None: (HERE / "data" / "reports" / "new.csv").write_text(text)
"""


def of_records(own: Path) -> PythonOrigin:
    for name in ("batches/b1", "customers/k1", "customers/k2", "suppliers/s1", "notes/n1"):
        (own / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (own / "data" / f"{name}.json").write_text('{"name": "Ada"}')
    (own / "data" / "customers" / ".key.json").write_text("secret")
    (own / "conf").mkdir()
    (own / "conf" / "live.json").write_text('{"key": "secret"}')
    (own / "data" / "reports").mkdir()
    (own / "data" / "reports" / "old.csv").write_text("old")
    (own / "tools.py").write_text(_BY_ID)
    return PythonOrigin(own / "tools.py")


@pytest.mark.long
def test_records_that_are_opened_by_their_ids_are_copied_though_no_id_is_known(tmp_path: Path) -> None:
    origin, files = of_records(tmp_path / "own"), tmp_path / "files"
    source = origin.bring(files)
    missed = [
        call("batches"),
        call("customer", customer_id="b1"),
        call("supplier", supplier_id="b1"),
        call("report", text="a"),
    ]
    for settled in (source, None):
        with closing(source.open(files)) as world:
            world.play(missed)
            assert origin.complete(world, source, files) is settled
    data = {str(one.relative_to(files / "data")) for one in (files / "data").rglob("*.*")}
    assert data == {"batches/b1.json", "customers/k1.json", "customers/k2.json", "suppliers/s1.json"}
    assert not (files / "conf").exists()  # what is missing on import is no record
    remarks = "".join(cast(Any, world).remarks)
    assert "no tool asked for them by name: conf, data/notes, data/reports;" in remarks


def test_all_is_copied_of_the_files_own_folder_if_it_is_named(tmp_path: Path) -> None:
    of_records(tmp_path / "own")
    files = tmp_path / "files"
    (tmp_path / "own" / "data" / "gone.json").symlink_to(tmp_path / "nowhere")
    marks = ("bundle/bundle.toml", "bundle/graph.json", "bundle/tasks/base.jsonl", "venv/pyvenv.cfg")
    for name in (*marks, ".git/pack", "data/shops/bundle.toml"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text("")
    (tmp_path / "own" / "data" / "up").symlink_to(tmp_path / "own")
    os.mkfifo(tmp_path / "own" / "data" / "pipe")
    with (tmp_path / "own" / ".git" / "pack").open("ab") as pack:
        pack.truncate(1 << 30)  # what is not copied does not make a folder too large
    PythonOrigin(tmp_path / "own" / "tools.py", root=tmp_path / "own").bring(files)
    assert (files / "data" / "notes" / "n1.json").is_file()
    assert not (files / "data" / "customers" / ".key.json").exists()
    assert {one.name for one in files.iterdir()} == {"conf", "data", "tools.py"}
    assert (files / "data" / "shops" / "bundle.toml").is_file(), "of something else"
    assert not {"gone.json", "up", "pipe"} & {one.name for one in (files / "data").iterdir()}
