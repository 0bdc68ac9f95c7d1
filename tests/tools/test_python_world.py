"""Tools of a Python file, called in a process of their own: whatever they do, there is an answer."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bundles import EXAMPLES, call, ledger
from genenv.errors import UsageError
from genenv.tools.discover.asking import ObservedWorld
from genenv.tools.worlds.base import Call, LimitedWorld, Outcome
from genenv.tools.worlds.python import PythonWorld
from genenv.types import Json


@pytest.fixture(scope="module")
def hostile() -> Iterator[PythonWorld]:
    world = PythonWorld(EXAMPLES, "hostile.py", call_s=0.5)
    yield world
    world.close()


@pytest.fixture(scope="module")
def desk() -> Iterator[PythonWorld]:
    world = PythonWorld(EXAMPLES, "desk.py")
    yield world
    world.close()


def test_methods_are_tools_with_schemas_from_types_and_words_from_docstrings(desk: PythonWorld) -> None:
    assert list(desk.tools)[:3] == ["find_customer", "list_orders", "get_order"]
    refund = desk.tools["refund_order"]
    assert refund.description == "Refund part or all of an order."
    assert refund.required == {"order_id", "amount"}
    assert refund.properties["amount"] == {"type": "number", "description": "in dollars."}
    assert refund.heading == 'refund_order(order_id, amount: number, reason="none given")'
    assert desk.tools["open_ticket"].heading == (
        'open_ticket(customer_id, subject, priority: "low"|"normal"|"high"="normal")'
    )
    assert refund.problem({"order_id": "O-1"}) == "refund_order lacks the argument 'amount'."
    assert refund.problem({"order_id": "O-1", "amount": "much"}) == "amount: 'much' is not of type 'number'."
    assert refund.problem({"order_id": "O-1", "amount": 1, "to": 2}) == "refund_order has no parameter 'to'."


def test_every_program_starts_from_the_same_state(desk: PythonWorld) -> None:
    calls = [call("refund_order", order_id="O-5001", amount=5), call("get_order", order_id="O-5001")]
    first = desk.play(calls, watch=True)
    assert [one.changed for one in first.outcomes] == [True, False]
    assert first.outcomes[1].result["refunded"] == 5
    assert desk.play(calls, watch=True) == first
    assert desk.play([]).state["orders"]["O-5001"]["refunded"] == 0


def test_a_file_that_is_called_like_a_field_does_not_take_its_place(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "desk.py", tmp_path)
    (tmp_path / "orders.json").write_text('{"kettle": 1}')
    (tmp_path / "orders.yaml").write_text("kettle: 1")
    world = PythonWorld(tmp_path, "desk.py")
    try:
        played = world.play([call("refund_order", order_id="O-5001", amount=5)], watch=True)
        assert played.outcomes[0].changed
        assert played.state["orders"]["O-5001"]["refunded"] == 5
        assert played.state["orders.json"] == {"kettle": 1}
        assert played.state["files"] == {"orders.json": None, "orders.yaml": "kettle: 1"}
    finally:
        world.close()


def test_what_a_tool_raises_is_an_outcome(desk: PythonWorld) -> None:
    played = desk.play([call("get_order", order_id="none"), call("cancel_order", order_id="O-5001")])
    assert [one.error for one in played.outcomes] == ["KeyError: 'none'", "it is too late for that"]
    assert played.outcomes[1].text == '{"error":"it is too late for that"}'


def test_a_session_takes_milliseconds(desk: PythonWorld) -> None:
    took: list[float] = []
    for _ in range(50):
        start = time.perf_counter()
        desk.play_uncached([])
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05


def test_global_variables_are_state_also_where_they_are_bound_anew(tmp_path: Path) -> None:
    (tmp_path / "shelf.py").write_text((EXAMPLES / "shelf.py").read_text())
    world = PythonWorld(tmp_path, "shelf.py")
    try:
        assert list(world.tools) == ["search_books", "lend", "copies_left"]
        assert world.left_out == {"anything": "it takes any number of arguments (*things)"}
        assert world.tools["lend"].properties["reader"]["description"] == "to whom."
        lent = [call("lend", book_id="B2", reader="Ada"), call("copies_left", book_id="B2")]
        played = world.play(lent, watch=True)
        assert [one.result for one in played.outcomes] == [{"loans": 1}, 0]
        assert (played.state["count"], played.state["loans"][0]["reader"]) == (1, "Ada")
        assert set(world.play([]).state) == {"_books", "loans", "count"}
        assert world.play([]).state["count"] == 0
    finally:
        world.close()


def test_files_are_state_and_are_put_back(tmp_path: Path) -> None:
    ledger(tmp_path)
    world = PythonWorld(tmp_path, "ledger.py")
    try:
        rows = [{"name": "rent", "amount": 20.0}, {"name": "savings", "amount": 100.0}]
        assert world.play([]).state["ledger"] == {"accounts": rows}
        move = call("transfer", source_account="savings", target_account="rent", amount=30)
        played = world.play([move, call("balance", account="rent")], watch=True)
        assert [one.changed for one in played.outcomes] == [True, False]
        assert played.outcomes[1].result == {"amount": 50.0, "currency": "EUR"}
        assert world.play([]).state["ledger"] == {"accounts": rows}
    finally:
        world.close()


def test_notes_are_state_and_documentation_is_once_it_changes(tmp_path: Path) -> None:
    for name in ("README.md", "a.md", "a.txt"):
        (tmp_path / name).write_text("as it came")
    text = """
        from pathlib import Path

        def write(name: str, text: str) -> str:
            Path(name).write_text(text)
            return name

        def remove(name: str) -> str:
            Path(name).unlink()
            return name
        """
    with closing(world_of(tmp_path, text)) as world:

        def state(tool: str, **args: str) -> object:
            return world.play([call(tool, **args)]).state

        came = {"a.txt": "as it came"}
        assert world.play([]).state == {"files": came}
        for name in ("b.md", "a-journal", "a.md"):
            assert state("write", name=name, text="hello") == {"files": {**came, name: "hello"}}
        assert state("write", name="a.md", text="as it came") == {"files": came}
        assert state("remove", name="README.md") != {"files": came}


@pytest.mark.long
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("exits", "bye"),
        ("returns_bytes", "The tool returned bytes, which is no JSON."),
        ("returns_megabytes", "The result is longer than 64000 characters."),
        ("returns_nan", "The tool returned nan, which is no JSON."),
        ("returns_a_cycle", "The tool returned something that is too deeply nested, or holds itself."),
        ("returns_an_object", "The tool returned a object, which is no JSON."),
        ("eats_memory", "MemoryError"),
        ("reads_the_input", "EOF when reading a line"),
        ("spins", "The tool took too long."),
        ("dies", "The tool ended its process, or took too long."),
        ("none", "There is no tool 'none'."),
    ],
)
def test_whatever_a_tool_does_there_is_an_answer(hostile: PythonWorld, tool: str, said: str) -> None:
    played = hostile.play([call("fine", word="first"), call(tool)])
    assert played.outcomes == (Outcome(result="first", changed=True), Outcome(error=said))
    assert played.state["log"] == ["first"]
    assert hostile.play([call("fine", word="next")]).outcomes == (Outcome(result="next", changed=True),)


@pytest.mark.long
def test_a_call_that_takes_too_long_is_ended_and_the_next_one_is_not(hostile: PythonWorld) -> None:
    played = hostile.play([call("hangs", seconds=60.0), call("fine", word="next")])
    assert [one.error for one in played.outcomes] == ["The tool took too long.", None]


def test_what_is_printed_left_behind_or_half_a_character_spoils_no_answer(hostile: PythonWorld) -> None:
    played = hostile.play([call("prints"), call("forks"), call("surrogates")])
    assert [one.result for one in played.outcomes] == [1, 1, "?"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "tools.py cannot be imported: invalid syntax"),
        ("import no_such_module", "tools.py cannot be imported: No module named 'no_such_module'"),
        ("import mcp.not_there", "--from 'mcp:PYTHON tools.py'"),
        ("raise SystemExit(1)", "tools.py cannot be imported: 1"),
        ("x = 1", "tools.py has no functions, and no class with methods"),
        ("def f(*a): pass", "nothing in tools.py can be a tool (f: it takes any number of arguments (*a))"),
        ("def f(x: open): pass", "nothing in tools.py can be a tool (f: "),
        ("import os\nos._exit(1)", "tools.py cannot be imported: it ends the process"),
        ("class A:\n def f(self): pass\nclass B:\n def f(self): pass", "tools.py has several classes (A, B)"),
        ("class A:\n def __init__(self, x): pass\n def f(self): pass", "A cannot begin without x; give"),
        ("class A:\n def __init__(self): raise OSError(1)\n def f(self): pass", "A() fails: "),
    ],
)
def test_a_file_that_gives_no_tools_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "tools.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        PythonWorld(tmp_path, "tools.py")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def parking() -> Iterator[PythonWorld]:
    world = PythonWorld(EXAMPLES, "parking.py")
    yield world
    world.close()


def test_a_connection_of_a_module_is_state_and_begins_each_attempt_anew(parking: PythonWorld) -> None:
    for _ in range(2):
        played = parking.play([call("park", bay="A1", plate="X"), call("list_free")], watch=True)
        assert [one.error for one in played.outcomes] == [None, None]
        assert [one.changed for one in played.outcomes] == [True, False]
        assert played.outcomes[1].result == ["A2", "B1"]
        assert [row["state"] for row in played.state["DB"]["bays"]] == ["taken", "free", "free"]
    assert parking.play([]).state["DB"]["bays"][0] == {
        "id": "A1",
        "state": "free",
        "plate": None,
        "since": "2026-01-05",
    }


def test_what_a_connection_has_not_committed_is_seen_and_can_be_taken_back(parking: PythonWorld) -> None:
    played = parking.play([call("reserve", bay="A2", plate="X")], watch=True)
    assert played.outcomes[0].changed
    assert played.state["DB"]["bays"][1]["state"] == "reserved"
    played = parking.play([call("reserve", bay="A2", plate="X"), call("cancel")], watch=True)
    assert [one.changed for one in played.outcomes] == [True, True]
    assert played.state == parking.play([]).state


def test_a_copied_connection_keeps_how_it_was_opened(parking: PythonWorld) -> None:
    played = parking.play([call("add_pass", bay="none"), call("since", bay="A1")])
    assert [one.error or one.result for one in played.outcomes] == ["FOREIGN KEY constraint failed", "date"]


def test_objects_that_are_called_are_state_and_caches_begin_empty(parking: PythonWorld) -> None:
    for _ in range(2):
        played = parking.play([call("park", bay="A1", plate="X"), call("raise_tariff", by=1)])
        assert [one.result for one in played.outcomes] == [{"bay": "A1", "number": 1}, 3]
        assert played.state["gate"] == {"seen": 1}


def world_of(folder: Path, text: str, name: str | None = None) -> PythonWorld:
    (folder / "shop.py").write_text(textwrap.dedent(text))
    return PythonWorld(folder, "shop.py", name)


SELL = """
    def sell(item: str) -> str:
        "Sell an item."
        if not DB.execute("delete from items where id = ?", (item,)).rowcount:
            raise ValueError("there is no such item")
        DB.commit()
        return item
"""


@pytest.mark.parametrize("mode", ["", "PRAGMA journal_mode = WAL"])
def test_a_connection_to_a_file_of_the_folder_is_opened_anew_on_what_was_put_back(
    tmp_path: Path, mode: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as made:
        made.execute(mode)
        made.executescript("create table items (id text); insert into items values ('kettle');")
    world = world_of(tmp_path, f"import sqlite3\nDB = sqlite3.connect('shop.db')\n{textwrap.dedent(SELL)}")
    with closing(world):
        for _ in range(2):
            played = world.play([call("sell", item="kettle"), call("sell", item="kettle")], watch=True)
            assert [one.error for one in played.outcomes] == [None, "there is no such item"]
            assert played.state["shop"] == played.state["DB"] == {"items": []}
        assert world.play([]).state["shop"] == {"items": [{"id": "kettle"}]}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as kept:
        assert kept.execute("select count(*) from items").fetchone() == (1,)


def test_a_connection_that_an_object_holds_is_state(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        import sqlite3

        class Shop:
            def __init__(self):
                self.db = sqlite3.connect(":memory:", isolation_level=None)
                self.db.execute("create table items (id text)")

            def add(self, item: str) -> str:
                "Add an item."
                self.db.execute("insert into items values (?)", (item,))
                return item
        """,
    )
    with closing(world):
        for _ in range(2):
            played = world.play([call("add", item="kettle")], watch=True)
            assert played.outcomes[0].changed
            assert played.state == {"db": {"items": [{"id": "kettle"}]}}


ADD = """
def add(item: str) -> str:
    'Add an item.'
    DB.execute('insert into items values (?)', (item,))
    return item
"""


@pytest.mark.parametrize(
    "opened",
    [
        "DB.create_function('shout', 1, str.upper)",
        "DB.execute(\"attach ':memory:' as other\")",
        "DB.execute('create temp table t (id text)')",
        "held = open(__file__)",
    ],
)
def test_what_no_copy_could_hold_is_there_in_every_session(tmp_path: Path, opened: str) -> None:
    begin = "import sqlite3\nDB = sqlite3.connect(':memory:', isolation_level=None)\n"
    begin += "DB.execute('create table items (id text)')\n"
    with closing(world_of(tmp_path, f"{begin}{opened}\n{ADD}")) as world:
        for _ in range(2):
            played = world.play([call("add", item="kettle")], watch=True)
            assert [one.changed for one in played.outcomes] == [True]
            assert played.state["DB"]["items"] == [{"id": "kettle"}]


def test_tables_beside_the_main_database_are_state(tmp_path: Path) -> None:
    text = (
        "import sqlite3\nDB = sqlite3.connect(':memory:')\nDB.execute(\"attach ':memory:' as other\")\n"
        "DB.execute('create temp table notes (id text)')\nDB.execute('create table other.log (id text)')\n"
        "def note(item: str) -> str:\n"
        "    'Note an item.'\n"
        "    DB.execute('insert into notes values (?)', (item,))\n"
        "    DB.execute('insert into other.log values (?)', (item,))\n"
        "    return item\n"
    )
    with closing(world_of(tmp_path, text)) as world:
        played = world.play([call("note", item="kettle")], watch=True)
        row = [{"id": "kettle"}]
        assert played.outcomes[0].changed
        assert played.state["DB"] == {"temp.notes": row, "other.log": row}


def test_a_class_beside_functions_is_said_to_be_no_tool_unless_it_is_their_state(tmp_path: Path) -> None:
    text = """
        class Desk:
            def open(self) -> str:
                "Open it."
                return "open"
        class Book:
            def add(self) -> None:
                "Add a page."
        BOOK = Book()
        def shorten(text: str) -> str:
            "Shorten a text."
            return text[:5]
    """
    with closing(world_of(tmp_path, text)) as world:
        why = "the functions of the file are the tools; for its methods name shop.py:Desk"
        assert (list(world.tools), world.left_out) == (["shorten"], {"Desk": why})


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    text = "lines = (line for line in 'ab')\ndef take() -> str:\n    'Take one.'\n    return next(lines)\n"
    with closing(world_of(tmp_path, text)) as world:
        assert world.unseen == {"lines": "builtins.generator"}
        assert LimitedWorld(world, ["take"]).unseen == world.unseen
        assert ObservedWorld(world, [call("take")]).unseen == {}, "questions are about it"


_BOOKS = """
    from types import SimpleNamespace
    names = []
    {books}
    def add(name: str) -> int:
        "Add a name."
        names.append(name)
        return len(names)
    def put(name: str) -> int:
        "Put a name into the innermost."
        inner.name = name
        return 1
"""


@pytest.mark.long
def test_what_a_library_holds_by_many_paths_is_read_in_no_time(tmp_path: Path) -> None:
    twice = "for _ in range(25): books = SimpleNamespace(one=books, other=books)"
    many = f"books = inner = SimpleNamespace()\n    {twice}\n    del _"
    with closing(world_of(tmp_path, _BOOKS.format(books=many))) as world:
        assert world.unseen == {}
        added, put = world.play([call("add", name="x")]).state, world.play([call("put", name="x")]).state
        assert added["names"] == ["x"]
        assert added["books"] != put["books"]


@pytest.mark.long
def test_what_a_library_holds_too_much_of_is_named_and_not_read(tmp_path: Path) -> None:
    large = "books, inner = SimpleNamespace(all=[[] for _ in range(300_001)]), SimpleNamespace()"
    with closing(world_of(tmp_path, _BOOKS.format(books=large))) as world:
        assert world.unseen == {"books": "types.SimpleNamespace"}
        assert world.play([call("add", name="x")]).state["books"] == "<SimpleNamespace>"


@pytest.mark.parametrize("place", ["sqlite://", "sqlite:///./shop.db"])
def test_rows_of_sqlalchemy_are_state_and_its_books_are_not(tmp_path: Path, place: str) -> None:
    pytest.importorskip("sqlalchemy", reason="the package sqlalchemy is not installed")
    text = f"""
        from sqlalchemy import create_engine
        from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
        engine = create_engine("{place}")
        class Base(DeclarativeBase):
            pass
        class Item(Base):
            __tablename__ = "items"
            name: Mapped[str] = mapped_column(primary_key=True)
        Base.metadata.create_all(engine)
        Session = sessionmaker(bind=engine)
        current = []
        def add(name: str) -> int:
            "Add an item."
            with Session() as session:
                session.add(Item(name=name))
                session.commit()
                current[:] = [session.get(Item, name)]
                return session.query(Item).count()
    """
    with closing(world_of(tmp_path, text)) as world:
        assert not world.unseen
        for _ in range(2):
            played = world.play_uncached([call("add", name="lamp"), call("add", name="chair")])
            assert [one.result for one in played.outcomes] == [1, 2]
            assert played.state["current"] == ["<Item ('chair',)>"]
            rows = {"items": [{"name": "chair"}, {"name": "lamp"}]}
            assert played.state["engine" if place == "sqlite://" else "shop"] == rows


@pytest.mark.long
def test_the_tools_of_a_server_are_those_that_it_knows_and_it_is_no_state(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the package mcp is not installed: pip install 'genenv[mcp]'")
    text = """
        from mcp.server.mcpserver import MCPServer
        server = MCPServer("crm")
        leads: list[str] = []
        @server.tool()
        def add_lead(name: str) -> int:
            "Add a lead."
            leads.append(name)
            return len(leads)
        @server.resource("crm://leads")
        def stats() -> str:
            "How many leads there are."
            return str(len(leads))
        def reset() -> None:
            "Forget all leads."
            leads.clear()
    """
    (tmp_path / "bare").mkdir()
    with closing(world_of(tmp_path / "bare", text.replace('"Add a lead."', "..."))) as world:
        assert (list(world.tools), world.play([]).state) == (["add_lead"], {"leads": []})
    with closing(world_of(tmp_path, text)) as world:
        assert {name: one.description for name, one in world.tools.items()} == {"add_lead": "Add a lead."}
        assert world.play([call("add_lead", name="Ada")]).state == {"leads": ["Ada"]}


def test_a_default_that_is_a_field_is_what_the_field_says(tmp_path: Path) -> None:
    text = """
        from typing import Annotated
        from pydantic import Field
        stored = []
        def add(
            item: str = Field(description="Which one."),
            count: int = Field(default=1, ge=1),
            tags: list[str] = Field(default_factory=list),
            note: str = Field(default=None),
            place: Annotated[str, Field(description="Where.")] = "cellar",
        ) -> int:
            stored.append([item, count, tags, note, place])
            return len(stored)
    """
    with closing(world_of(tmp_path, text)) as world:
        add = world.tools["add"]
        assert add.required == {"item"}
        assert [add.properties[name].get("description") for name in ("item", "place")] == [
            "Which one.",
            "Where.",
        ]
        assert "minimum" in str(add.problem({"item": "lamp", "count": 0}))
        played = world.play([call("add", item="lamp", tags=["new"]), call("add", item="desk", count=2)])
        assert [one.error for one in played.outcomes] == [None, None]
        rows = [["lamp", 1, ["new"], None, "cellar"], ["desk", 2, [], None, "cellar"]]
        assert played.state == {"stored": rows}


def test_one_odd_value_or_annotation_spoils_nothing_else(tmp_path: Path) -> None:
    text = """
        import sqlite3

        HELD = [sqlite3.connect(":memory:"), {"a": 1}]
        HELD[0].close()

        def odd(x: "first number") -> int:
            return 1

        def add(item: str) -> int:
            HELD.append(item)
            return len(HELD)
        """
    with closing(world_of(tmp_path, text)) as world:
        assert list(world.tools) == ["add"]
        assert "its types cannot be read" in world.left_out["odd"]
        assert world.unseen == {"HELD": "sqlite3.Connection"}
        held = world.play([call("add", item="kettle")]).state["HELD"]
        assert held == ["<Connection>", {"a": 1}, "kettle"]


def test_what_is_no_text_in_an_error_or_a_path_ends_no_process(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        import pathlib

        FOUND = [pathlib.Path("\\udcff")]

        def fail() -> str:
            "Fail."
            raise ValueError("no \\udcff")
        """,
    )
    with closing(world):
        played = world.play([call("fail")])
        assert [one.error for one in played.outcomes] == ["no ?"]
        assert played.state == {"FOUND": ["?"]}


@pytest.mark.long
def test_tools_run_where_the_system_allows_less_than_their_limits(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def f() -> int:\n    return 1\n")
    code = (
        "from pathlib import Path; import sys; from genenv.tools.worlds.python import PythonWorld; "
        "print(list(PythonWorld(Path(sys.argv[1]), 'shop.py').tools))"
    )
    words = ["sh", "-c", 'ulimit -f 1000; exec "$0" "$@"', sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['f']", done.stderr


NOTEBOOK = """
    import pathlib
    import sqlite3

    HERE = pathlib.Path(__file__).parent / "notebook"
    HERE.mkdir(exist_ok=True)
    (HERE / "todo.txt").write_text("milk")
    DB = sqlite3.connect("shop.db")
    DB.execute("create table if not exists items (id text)")
    DB.execute("insert into items values ('kettle')")
    DB.commit()

    def add(line: str) -> str:
        "Add a line."
        (HERE / "todo.txt").write_text(line)
        return line
"""


def test_what_a_file_makes_when_it_is_imported_is_there_in_every_attempt(tmp_path: Path) -> None:
    world = world_of(tmp_path, textwrap.dedent(NOTEBOOK) + textwrap.dedent(SELL))
    with closing(world):
        begun = world.play([]).state
        assert begun["files"]["notebook/todo.txt"] == "milk"
        for _ in range(2):
            played = world.play([call("add", line="tea"), call("sell", item="kettle")], watch=True)
            assert [one.error for one in played.outcomes] == [None, None]
            assert [one.changed for one in played.outcomes] == [True, True]
            assert played.state["files"]["notebook/todo.txt"] == "tea"
            assert played.state["shop"] == {"items": []}
        assert world.play([]).state == begun
    assert not (tmp_path / "notebook").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "threading.Thread(target=time.sleep, args=(60,), name='clock', daemon=True).start()",
            "thread clock",
        ),
        ("log = open('log.txt', 'a')", "log.txt"),
        (
            "def named():\n    import ctypes\n    ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd')\n"
            "    time.sleep(60)\n\nthreading.Thread(target=named, daemon=True).start()\ntime.sleep(0.2)",
            "",
        ),
        ("", ""),
    ],
)
def test_what_a_file_leaves_open_is_said_as_it_makes_programs_slow(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "tools.py").write_text(
        f"import threading, time\nrows = []\n{text}\ndef add(name: str) -> int:\n    rows.append(name)\n"
        "    return len(rows)\n"
    )
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        assert bool(said) == bool(world.remarks)
        assert said in "".join(world.remarks)
        for name in ("a", "b"):
            assert world.play([call("add", name=name)]).outcomes[0].result == 1


def states(world: PythonWorld, *calls: Call) -> list[Json]:
    with closing(world):
        return [world.play([one]).state for one in calls]


def test_objects_of_several_classes_with_equal_attributes_are_not_the_same(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        class Card:
            def __init__(self, amount): self.amount = amount
        class Cash(Card): pass
        class Shop:
            def __init__(self): self.paid = [Card(1)]
            def by_card(self) -> None: self.paid.append(Card(2))
            def in_cash(self) -> None: self.paid.append(Cash(2))
        """,
        "Shop",
    )
    card, cash = states(world, call("by_card"), call("in_cash"))
    assert card == {"paid": [{"amount": 1}, {"amount": 2}]}
    assert cash == {"paid": [{"class": "Card", "amount": 1}, {"class": "Cash", "amount": 2}]}


def test_an_object_of_which_two_names_are_is_state_of_the_second_too(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        import enum
        class Mode(enum.Enum):
            OFF = "off"
            HEAT = "heat"
        class Open: pass
        class Closed: pass
        class Side:
            def __init__(self): self.points = 0
        class Game:
            def __init__(self):
                self.white, self.black = Side(), Side()
                self.turn, self.state = self.white, Open()
                self.living, self.kitchen, self.bedroom = Mode.OFF, Mode.HEAT, Mode.OFF
            def pass_turn(self) -> None: self.turn = self.black
            def heat(self) -> None: self.bedroom = Mode.HEAT
            def close(self) -> None: self.state = Closed()
        """,
        "Game",
    )
    passed, heated, closed = states(world, call("pass_turn"), call("heat"), call("close"))
    assert (passed["turn"], heated["turn"]) == ("= black", "= white")
    assert (passed["bedroom"], heated["bedroom"]) != (heated["bedroom"], passed["bedroom"])
    assert (passed["state"], closed["state"]) == ("<Open>", "<Closed>")


def test_cached_functions_and_methods_of_any_name_are_tools(tmp_path: Path) -> None:
    text = """
        import functools
        @functools.lru_cache
        def title(n: int) -> str: return f"board {n}"
        class Board:
            def __init__(self): self.n = 0
            def snapshot(self) -> int: return self.n
            def restore(self, n: int) -> None: self.n = n
        """
    with closing(world_of(tmp_path, text)) as world:
        assert set(world.tools) == {"title"}
        assert world.play([call("title", n=2)]).outcomes[0].result == "board 2"
    with closing(world_of(tmp_path, text, "Board")) as world:
        assert set(world.tools) == {"snapshot", "restore"}


def test_an_object_in_a_closure_is_state(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        class Store:
            def __init__(self): self.items = []
        def make():
            store = Store()
            def add_item(item: str) -> int:
                store.items.append(item)
                return len(store.items)
            return add_item
        add_item = make()
        """,
    )
    (state,) = states(world, call("add_item", item="kettle"))
    assert "kettle" in str(state)


def test_what_decorators_write_down_about_calls_is_no_state(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        """
        import functools
        def counted(function):
            @functools.wraps(function)
            def wrapped(*args, **named):
                wrapped.calls += 1
                return function(*args, **named)
            wrapped.calls = 0
            return wrapped
        @counted
        def look(item: str) -> str:
            return item
        def add(item: str) -> int:
            add.items.append(item)
            return len(add.items)
        add.items = []
        """,
    )
    with closing(world):
        looked = world.play([call("look", item="kettle")], watch=True)
        added = world.play([call("add", item="mug")], watch=True)
    assert not looked.outcomes[0].changed
    assert looked.state != added.state
    assert "mug" in str(added.state)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_tools_reach_no_service_that_listens_on_a_file(tmp_path: Path) -> None:
    address = str(tmp_path / "real.sock")
    folder = tmp_path / "tools"
    folder.mkdir()
    text = """
        import socket
        def send(path: str) -> str:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(path)
            return "sent"
        def pair() -> str:
            one, other = socket.socketpair()
            one.send(b"x")
            return other.recv(1).decode()
        """
    with socket.socket(socket.AF_UNIX) as service, closing(world_of(folder, text)) as world:
        service.bind(address)
        service.listen()
        sent, made = world.play([call("send", path=address), call("pair")]).outcomes
        assert (sent.error, made.result) == ("[Errno 13] Permission denied", "x")


def test_what_functions_keep_and_keys_that_look_alike_are_state_and_an_equal_constant_is_none(
    tmp_path: Path,
) -> None:
    world = world_of(
        tmp_path,
        """
        class Shelf:
            __slots__ = ("__rows",)
            def __init__(self): self.__rows = {1: "number", "1": "text"}
            def put(self, key, text): self.__rows[key] = text
            def seen(self, text, found=[]): found.append(text)
        shelf = Shelf()
        TITLE, RATES = "my list", (1, 2)
        def keep(text: str) -> None: keep.last = text
        def note(text: str) -> None: shelf.seen(text)
        def number(text: str) -> None: shelf.put(1, text)
        def text(text: str) -> None: shelf.put("1", text)
        def set_title(text: str) -> None:
            global TITLE, RATES
            TITLE, RATES = text, (1, len(RATES))
        """,
    )
    with closing(world):
        for tool in ("keep", "note", "number", "text", "set_title"):
            assert world.play([call(tool, text="x")]).outcomes[0].changed, tool
        assert not world.play([call("set_title", text="my list")]).outcomes[0].changed


def test_what_is_yielded_to_a_tool_is_a_list_and_what_yields_itself_is_said_to_be_no_tool(
    tmp_path: Path,
) -> None:
    text = """
        import itertools
        STOCK = {"nail": 2, "nut": 3}
        def names() -> object: return STOCK.keys()
        def squares(n: int) -> object: return (one * one for one in range(n))
        def without_end() -> object: return (one for one in itertools.count())
        def lines(n: int):
            yield n
        async def stream(n: int):
            yield n
        """
    with closing(world_of(tmp_path, text)) as world:
        why = "it yields its results one by one; return a list of them"
        assert world.left_out == {"lines": why, "stream": why}
        played = world.play([call("names"), call("squares", n=3), call("without_end")])
        assert [one.result for one in played.outcomes] == [["nail", "nut"], [0, 1, 4], None]
        assert played.outcomes[2].error == "The result is longer than 64000 characters."
