"""What a reader adds: marks in a file of their own, and queries in SQL that read alone."""

from __future__ import annotations

import html
import http.client
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from genenv.viewer import folders
from genenv.viewer.pages import address
from genenv.viewer.reader import EXAMPLES, Marks
from viewer_runs import HOSTILE, Reader, ids_of, text_of, write_run


def posted(reader: Reader, path: str, fields: dict[str, str], **headers: str) -> int:
    """Send a form as a browser does; return the status."""
    given = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection(reader.host, timeout=20)) as connection:
        connection.request("POST", path, urlencode(fields), {**given, "Host": reader.host})
        answer = connection.getresponse()
        answer.read()
        return answer.status


def token_of(page: str) -> str:
    return html.unescape(re.findall(r'name="token" value="([^"]+)"', page)[0])


def test_a_task_is_marked_counted_listed_and_unmarked(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=4)
    reader, task = serve(tmp_path), address("demo", "task", id="task-2 plain")
    page = reader.page(task)
    assert "⚑ Mark: does not say what is asked" in text_of(page)
    fields, mark = {"token": token_of(page)}, address("demo", "mark", id="task-2 plain")
    assert posted(reader, mark, {**fields, "unclear": "yes"}) == 303
    assert "⚑ You marked it" in text_of(reader.page(task))
    listed = reader.page(address("demo", "tasks"))
    assert "You marked 1 task as not saying what is asked" in text_of(listed)
    assert ids_of(reader.page(address("demo", "tasks", marked="yes"))) == ["task-2 plain"]
    assert ids_of(reader.page(address("demo", "tasks", marked="yes", sort="hard"))) == ["task-2 plain"]
    assert posted(reader, mark, {**fields, "unclear": "no"}) == 303
    assert "You marked" not in text_of(reader.page(address("demo", "tasks")))
    assert not ids_of(reader.page(address("demo", "tasks", marked="yes")))


def test_marks_are_kept_beside_no_run_by_the_id_of_the_run(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "runs" / "demo", rounds=3)
    before = {path.name for path in folder.path.iterdir()}
    reader = serve(tmp_path / "runs")
    fields = {"token": token_of(reader.page(address("demo", "task", id="base plain"))), "unclear": "yes"}
    posted(reader, address("demo", "mark", id="base plain"), fields)
    assert {path.name for path in folder.path.iterdir()} == before
    (line,) = [json.loads(one) for one in reader.marks.read_text(encoding="utf-8").splitlines()]
    assert (line["task"], line["unclear"]) == ("base plain", True)
    folder.path.rename(tmp_path / "runs" / "moved")
    assert "⚑ You marked it" in text_of(reader.page(address("moved", "task", id="base plain")))


def test_a_form_of_another_site_or_without_the_token_marks_nothing(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=2)
    reader, path = serve(tmp_path), address("demo", "mark", id="held-0")
    fields = {"token": token_of(reader.page(address("demo", "task", id="held-0"))), "unclear": "yes"}
    assert posted(reader, path, fields, Origin="http://evil.example") == 403
    assert posted(reader, path, fields, Sec_Fetch_Site="cross-site") == 403
    assert posted(reader, path, fields | {"token": ""}) == 403
    assert posted(reader, path, fields | {"token": "x" * 43}) == 403
    assert posted(reader, path, fields, Content_Type="text/plain") == 415
    assert posted(reader, address("demo", "mark", id="none"), fields) == 404
    assert posted(reader, address("none", "mark", id="held-0"), fields) == 404
    assert reader.ask(path).status == 405
    assert not reader.marks.exists()


def test_a_file_of_marks_with_other_lines_is_read_as_far_as_it_is_one(tmp_path: Path) -> None:
    file = tmp_path / "state" / "marks.jsonl"
    marks = Marks(file)
    assert marks.of("r") == ()
    marks.set("r", "b", unclear=True)
    marks.set("r", "a", unclear=True)
    with file.open("ab") as end:
        end.write(
            b'\xff\xfe\n[1]\n{"run": "r", "task": 3, "unclear": "yes"}\n' + b"[" * 100_000 + b'\n{"run":'
        )
    assert marks.of("r") == ("b", "a")
    marks.set("other", "c", unclear=True)
    assert Marks(file).of("r") == ("b", "a"), "a cut-off line costs itself and at most the next"


@pytest.mark.parametrize("title", EXAMPLES)
def test_each_example_of_sql_gives_rows_or_none(title: str, reader: Reader) -> None:
    page = text_of(reader.page(address("sweep/rl/seed-0", "sql", sql=EXAMPLES[title])))
    assert re.search(r"\d+ rows?, 0\.\d\d s", page)
    assert "SQLite cannot" not in page


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("DELETE FROM traces", "only SELECT is allowed"),
        ("UPDATE tasks SET id = 1", "only SELECT is allowed"),
        ("INSERT INTO run VALUES (1, 2)", "only SELECT is allowed"),
        ("CREATE TABLE a (b)", "only SELECT is allowed"),
        ("CREATE TEMP TABLE a (b)", "only SELECT is allowed"),
        ("ATTACH '/tmp/x.db' AS x", "only SELECT is allowed"),
        ("PRAGMA journal_mode = DELETE", "only SELECT is allowed"),
        ("SELECT * FROM pragma_database_list", "only SELECT is allowed"),
        ("VACUUM INTO '/tmp/x.db'", "cannot VACUUM from within a transaction"),
        ("BEGIN", "only SELECT is allowed"),
        ("SELECT load_extension('x')", "only SELECT is allowed"),
        ("SELECT 1; DELETE FROM traces", "one statement"),
        ("SELECT absent FROM traces", "no such column: absent"),
        ("SELEKT", "syntax error"),
        ("-- nothing", "write one SELECT"),
        ("SELECT ?", "SQLite cannot answer this"),
        ("SELECT 'a\x00b'", "SQLite cannot answer this"),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("SELECT 1" + " + 1" * 2000, "SQLite cannot answer this"),
        ("SELECT '" + "x" * 11_000 + "'", "longer than 10,000 characters"),
    ],
)
def test_sql_that_is_no_select_or_wrong_gives_a_sentence(sql: str, sentence: str, reader: Reader) -> None:
    page = text_of(reader.page(address("sweep/rl/seed-0", "sql", sql=sql)))
    assert sentence in page


def test_sql_ends_at_its_limits_of_time_and_rows(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LIMIT_S", 0.1)
    write_run(tmp_path / "demo", rounds=1)
    reader = serve(tmp_path)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
    assert "took longer than" in text_of(reader.page(address("demo", "sql", sql=endless.format("count(*)"))))
    page = text_of(reader.page(address("demo", "sql", sql=endless.format("i"))))
    assert "200 rows, and more that are not shown" in page
    assert " 200 " in page
    assert " 201 " not in page


def test_values_of_sql_are_text_that_is_cut_off(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=2, text=HOSTILE)
    with closing(sqlite3.connect(tmp_path / "demo" / "pool.db")) as db:
        db.execute("UPDATE traces SET explanation = ?", ("<b>x</b>" * 700_000,))
        db.execute("UPDATE seeds SET spec = CAST(x'fffe41' AS TEXT)")
        db.commit()
    reader = serve(tmp_path)
    sql = "SELECT explanation, logprobs, NULL AS absent, reward FROM traces"
    page = reader.page(address("demo", "sql", sql=sql))
    assert len(page) < 40_000
    assert "(5,600,000 characters)" in page
    assert "24 bytes: 0000" in page
    assert "NULL" in text_of(page)
    page = reader.page(
        address("demo", "sql", sql="SELECT id AS \"<i>\u202ex\", spec FROM seeds, (SELECT '\x1b[2J')")
    )
    assert "<i>" not in page
    assert "\\u202ex" in page
    assert "\ufffd\ufffdA" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)
