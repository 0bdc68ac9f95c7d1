"""OpenAPI documents as worlds: what is read, what the tables do, what is refused in a sentence."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import EXAMPLES, call
from genenv.config.run import load_config
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.openapi.document import Document
from genenv.tools.worlds.openapi.mock_world import MOST_TOOLS, MockWorld
from genenv.tools.worlds.openapi.rows import ROWS
from genenv.tools.worlds.origins import origin_of

LIBRARY = EXAMPLES / "library.yaml"


@pytest.fixture(scope="module")
def world() -> MockWorld:
    return MockWorld(LIBRARY.read_text(), LIBRARY.name)


def played(world: MockWorld, *calls: Any) -> list[Any]:
    return [one.error or one.result for one in world.play(calls).outcomes]


def document(paths: dict[str, Any], **more: Any) -> str:
    return json.dumps({"openapi": "3.1.0", "paths": paths, **more})


def listing(properties: dict[str, Any]) -> dict[str, Any]:
    """A GET that lists records."""
    schema = {"type": "array", "items": {"type": "object", "properties": properties}}
    return {"get": {"responses": {"200": {"content": {"application/json": {"schema": schema}}}}}}


def test_each_operation_on_records_is_a_tool_and_the_others_say_why_not(world: MockWorld) -> None:
    assert [tool.heading for tool in world.tools.values()] == [
        'list_books(shelf: "north"|"south"|"cellar"=...)',
        'add_book(title, author: object=..., shelf: "north"|"south"|"cellar"=..., copies: integer=...)',
        "get_book(bookId: integer)",
        'change_book(bookId: integer, title=..., shelf: "north"|"south"|"cellar"=...)',
        "remove_book(bookId: integer)",
        "search_books(q)",
        "list_notes(bookId: integer)",
        "add_note(bookId: integer, text)",
        "lend_book(bookId: integer, reader: string|null, due: date=...)",
        "get_loan(loanId)",
        "return_book(loanId)",
        "set_receipt(loanId, amount: number)",
    ]
    assert world.left_out == {
        "import_books": "it takes no JSON",
        "health": "GET /health is about no records that this document lists or names",
    }


def test_tables_do_what_the_operations_say(world: MockWorld) -> None:
    state = cast("dict[str, dict[str, Any]]", world.play(()).state)
    assert {name: len(rows) for name, rows in state.items()} == {"books": ROWS, "loans": ROWS, "notes": ROWS}
    assert {loan["bookId"] for loan in state["loans"].values()} <= {int(key) for key in state["books"]}
    assert {str(note["bookId"]) for note in state["notes"].values()} <= set(state["books"])
    book = next(iter(state["books"].values()))

    made, shown, listed = played(
        world,
        call("add_book", title="Emma", shelf="cellar"),
        call("get_book", bookId=101 + ROWS),
        call("list_books", shelf="cellar"),
    )
    assert (
        made == shown == {"id": 107, "title": "Emma", "shelf": "cellar", "added_at": "2026-01-05T09:00:00Z"}
    )
    assert made in listed["books"]
    assert all(one["shelf"] == "cellar" for one in listed["books"])

    changed, gone, after = played(
        world,
        call("change_book", bookId=book["id"], title="Persuasion"),
        call("remove_book", bookId=book["id"]),
        call("get_book", bookId=book["id"]),
    )
    assert changed == {**book, "title": "Persuasion"}
    assert (gone, after) == ({"deleted": book["id"]}, f"There is no book {book['id']}.")
    assert played(world, call("search_books", q=book["title"].upper()))[0] == [book]


def test_what_belongs_to_a_record_and_what_is_done_to_one(world: MockWorld) -> None:
    state = cast("dict[str, dict[str, Any]]", world.play(()).state)
    loan_id, loan = next((key, one) for key, one in state["loans"].items() if one["status"] != "returned")
    note, notes, lost = played(
        world,
        call("add_note", bookId=101, text="torn"),
        call("list_notes", bookId=101),
        call("add_note", bookId=999, text="torn"),
    )
    assert note == {"id": "NOT-107", "text": "torn"}  # a note is declared so; the state knows its book
    assert note in notes
    assert len(notes) == 1 + sum(one["bookId"] == 101 for one in state["notes"].values())
    assert lost == "There is no book 999."
    back, receipt = played(
        world, call("return_book", loanId=loan_id), call("set_receipt", loanId=loan_id, amount=3)
    )
    assert back == {**loan, "status": "returned"}
    assert receipt["receipt"] == {"amount": 3}
    lent, refused = played(
        world, call("lend_book", bookId=102, reader="Ada"), call("lend_book", bookId=999, reader="Ada")
    )
    assert (lent["bookId"], lent["status"], refused) == (102, "open", "There is no book 999.")


def test_a_world_says_the_same_every_time_and_calls_change_nothing_for_the_next(world: MockWorld) -> None:
    calls = [call("add_book", title="Emma"), call("remove_book", bookId=101)]
    one, other = world.play(calls, watch=True), world.play(calls, watch=True)
    assert one == other
    assert [outcome.changed for outcome in one.outcomes] == [True, True]
    assert MockWorld(LIBRARY.read_text(), LIBRARY.name).play(calls, watch=True) == one
    assert world.play([call("get_book", bookId=101)]).outcomes[0].error is None


@pytest.mark.long
def test_a_document_becomes_tasks_that_pass_the_gate(tmp_path: Path) -> None:
    folder = tmp_path / "library"
    made = make(folder, Wanted(origin=origin_of(str(LIBRARY)), base=40, held_out=10), examined, Silent())
    recipes = made.graph.recipes
    assert set(recipes) == set(MockWorld(LIBRARY.read_text(), LIBRARY.name).tools)
    assert recipes["change_book"].writes  # though it changes nothing where nothing is given
    assert (made.base, made.held_out) == (40, 10)
    env = cast(Tools, load_environment(str(folder)))
    rng = random.Random(0)
    tasks = base_tasks(env, env.seeds(), seed=0)
    assert len(tasks) == 40
    assert all(examined(env, task, rng) is None for task in (*tasks.values(), *env.held_out()))
    assert 'kind = "openapi"' in (folder / "bundle.toml").read_text()


@pytest.mark.long
def test_a_suggested_reply_is_as_long_as_ids_of_many_tokens_need(tmp_path: Path) -> None:
    shelf = {"id": {"type": "string", "format": "uuid"}, "title": {"type": "string"}}
    of_one = {"parameters": [{"name": "bookId", "in": "path", "required": True, "schema": shelf["id"]}]}
    body = {
        "requestBody": {
            "content": {"application/json": {"schema": {"properties": {"title": shelf["title"]}}}}
        }
    }
    paths = {"get": of_one, "delete": of_one, "patch": {**of_one, **body}}
    origin = tmp_path / "books.json"
    origin.write_text(document({"/books": listing(shelf), "/books/{bookId}": paths}), encoding="utf-8")
    make(tmp_path / "books", Wanted(origin=origin_of(str(origin)), base=60, held_out=4), examined, Silent())
    config = load_config(tmp_path / "books" / "train.toml", [f"environment.name={tmp_path}/books"])
    env = load_environment(f"{tmp_path}/books", config.environment.settings)
    tasks = [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
    digits = max(len(re.findall(r"[^a-z ]", reply)) for task in tasks for reply in task.oracle)
    assert 88 < digits <= config.agent.max_new_tokens < 512  # each of them is a token


def test_of_fields_of_one_name_the_outermost_can_be_asked_for() -> None:
    from genenv.tools.discover.state_values import single_paths

    found = single_paths({"id": 1, "author": {"id": 2, "name": "Ada"}, "shelves": [{"no": 4}, {"no": 5}]})
    assert found == {"id": (("id",), 1), "author.name": (("author", "name"), "Ada")}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(EXAMPLES))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_document_on_the_web_is_kept_as_it_is_that_day(address: str, tmp_path: Path) -> None:
    source = origin_of(f"{address}/library.yaml").bring(tmp_path / "files")
    assert (tmp_path / "files" / "openapi.yaml").read_text() == LIBRARY.read_text()
    assert source.open(tmp_path / "files").tools.keys() == MockWorld(LIBRARY.read_text(), "").tools.keys()
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read"):
        origin_of(f"{address}/none.yaml").bring(tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no OpenAPI document, but NoneType"),
        ("[]", "is no OpenAPI document, but list"),
        ("<html><body>404</body></html>", "is no OpenAPI document, but str"),
        ("a: [", "is neither JSON nor YAML"),
        ("[" * 100_000, "is neither JSON nor YAML|nested too deeply"),
        ('{"swagger": "2.0", "paths": {}}', "describes no paths"),
        ('{"swagger": "1.2", "paths": {}}', "has no `openapi: 3.…` or `swagger: 2.0`"),
        ('{"paths": {}}', "has no `openapi: 3"),
        ('{"openapi": "3.1.0", "paths": {}}', "describes no paths"),
        ('{"openapi": "3.1.0", "webhooks": {}}', "describes no paths"),
        ('{"openapi": "3.1.0", "paths": {"/": 3, "/a": {"get": {"responses": {}}}}}', "no operation of"),
    ],
)
def test_what_is_no_document_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        MockWorld(text, "it.json")


@pytest.mark.long
def test_only_some_paths_and_no_more_than_fit() -> None:
    fields = {"id": {"type": "string"}, "name": {"type": "string"}}
    many = document({f"/things{n}s": listing(fields) for n in range(300)})
    world = MockWorld(many, "many.json")
    assert len(world.tools) == MOST_TOOLS
    assert len(world.left_out) == 300 - MOST_TOOLS
    assert len(MockWorld(many, "many.json", ["/things29"]).tools) == 11
    with pytest.raises(UsageError, match="no path that begins with /none"):
        MockWorld(many, "many.json", ["/none"])


def test_who_makes_a_record_says_something_whatever_the_document_requires() -> None:
    thing = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    order = {"type": "object", "properties": {"id": {"type": "integer"}, "thingId": {"type": "integer"}}}

    def taking(schema: dict[str, Any]) -> dict[str, Any]:
        content = {"content": {"application/json": {"schema": schema}}}
        return {"requestBody": content, "responses": {"200": content}}

    item = {"get": {"responses": taking(thing)["responses"]}}
    paths = {"/things": {"post": taking(thing)}, "/things/{id}": item, "/orders": {"post": taking(order)}}
    told = [tool.heading for tool in MockWorld(document(paths), "it.json").tools.values()]
    assert told == ["post_things(name)", "get_things_id(id: integer)", "post_orders(thingId: integer)"]


def test_an_id_finds_no_field_that_holds_a_name() -> None:
    trips = listing({"id": {"type": "string"}, "origin": {"type": "string"}, "dogs": {"type": "boolean"}})
    uuid = {"type": "string", "format": "uuid"}
    trips["get"]["parameters"] = [
        {"name": "origin", "in": "query", "required": True, "schema": uuid},
        {"name": "dogs", "in": "query", "schema": {"type": "boolean"}},
    ]
    (tool,) = MockWorld(document({"/trips": trips}), "it.json").tools.values()
    assert tool.heading == "get_trips(origin: uuid, dogs: boolean=...)"


def test_schemas_that_hold_themselves_or_grow_without_end_are_cut() -> None:
    node = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/c/node"}}}
    wide = {"properties": {f"f{n}": {"$ref": f"#/c/wide{n}"} for n in range(9)}}
    parts = {f"wide{n}": {"properties": {f"g{m}": {"$ref": "#/c/wide"} for m in range(9)}} for n in range(9)}
    text = document({"/nodes": listing({"id": {"type": "string"}})}, c={"node": node, "wide": wide, **parts})
    made = Document(text, "it.json")
    assert made.schema({"$ref": "#/c/node"}, writing=True)["properties"]["next"] == {}
    assert len(json.dumps(made.schema({"$ref": "#/c/wide"}, writing=True))) < 200_000
    cyclic = (
        "openapi: 3.1.0\npaths: {/as: {get: {responses: {'200': {content: {application/json: "
        "{schema: &s {type: array, items: *s}}}}}}}}"
    )
    with pytest.raises(UsageError, match=r"it.yaml has an alias \*s of nothing, or of what holds it"):
        MockWorld(cyclic, "it.yaml")


def test_schemas_of_older_and_newer_versions_say_the_same() -> None:
    made = Document(document({"/a": {}}), "it.json")

    def read(schema: dict[str, Any]) -> dict[str, Any]:
        return made.schema(schema, writing=True)

    assert read({"type": "integer", "minimum": 2, "exclusiveMinimum": True}) == {
        "type": "integer",
        "exclusiveMinimum": 2,
    }
    nullable = {"type": "string", "enum": ["a"], "nullable": True}
    assert read({"type": ["string", "null"], "enum": ["a", None]}) == nullable == read(nullable)
    assert read({"anyOf": [{"type": "integer"}, {"type": "null"}]}) == {"type": "integer", "nullable": True}
    assert read({"oneOf": [{"type": "null"}, {"type": "number"}]})["type"] == "number"
    assert read({"type": "string", "example": "x", "pattern": "(?<bad"}) == {
        "type": "string",
        "examples": ["x"],
    }
    assert read({"$ref": "#/nowhere"}) == read({"$ref": "other.json#/a"}) == {}
    parts = {
        "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
        "required": ["b"],
    }
    assert read(parts) == {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
