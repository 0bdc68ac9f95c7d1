"""OpenAPI documents as people have them: several files, Swagger 2, odd names, slips, many operations."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from bundles import call
from genenv.errors import DataError, UsageError
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.generate.make_bundle import Made, Wanted, make
from genenv.tools.worlds.openapi.document import Document, operations
from genenv.tools.worlds.openapi.loading import load_text
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.service import Requests, Service, ServiceOrigin
from genenv.tools.worlds.origins import origin_of
from genenv.tools.worlds.sources import ROWS_FILE, OpenApiSource
from genenv.types import Json
from genenv.untrusted.schemas import Validator, plain_schema
from orders_api import Api, as_json, served

JSON = "application/json"


def of_kind(schema: Any) -> dict[str, Any]:
    return {"content": {JSON: {"schema": schema}}}


def answers(schema: Any) -> dict[str, Any]:
    return {"responses": {"200": of_kind(schema)}}


def in_path(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema or {"type": "string"}}


def document(paths: dict[str, Any], **schemas: Any) -> str:
    return json.dumps({"openapi": "3.0.3", "paths": paths, "components": {"schemas": schemas}})


def records(word: str, schema: Any, *, ids: str = "id") -> dict[str, Any]:
    """The five usual operations on records."""
    return {
        f"/{word}": {
            "get": answers({"type": "array", "items": schema}),
            "post": {"requestBody": of_kind(schema), **answers(schema)},
        },
        f"/{word}/{{{ids}}}": {
            "parameters": [in_path(ids)],
            "get": answers(schema),
            "put": {"requestBody": of_kind(schema), **answers(schema)},
            "delete": {"responses": {"204": {}}},
        },
    }


ORDER = {
    "type": "object",
    "required": ["item"],
    "properties": {
        "id": {"type": "string"},
        "item": {"type": "string"},
        "amount": {"type": "integer", "minimum": 1, "maximum": 9},
    },
}


def bundle(tmp_path: Path, text: str, name: str = "api.json") -> Made:
    (tmp_path / name).write_text(text, encoding="utf-8")
    origin = origin_of(str(tmp_path / name))
    return make(tmp_path / "made", Wanted(origin=origin, base=12, held_out=4), examined, Silent())


# --- several files ---

FILES = {
    "api.yaml": """
openapi: 3.0.3
paths:
  /orders:
    get:
      operationId: listOrders
      responses: {'200': {content: {application/json: {schema: {
        type: array, items: {$ref: './parts/order.yaml#/Order'}}}}}}
    post: {$ref: './parts/create.yaml'}
  /orders/{orderId}: {$ref: './parts/item.yaml'}
  /secrets: {$ref: '../outside.yaml'}
  /links: {$ref: 'link.yaml'}
  /others: {$ref: 'https://other.example/others.yaml'}
components:
  parameters:
    orderId: {name: orderId, in: path, required: true, schema: {type: string}}
""",
    "parts/order.yaml": """
Order: {type: object, required: [item], properties: {id: {type: string}, item: {$ref: '#/Item'}}}
Item: {type: string}
""",
    "parts/create.yaml": """
operationId: createOrder
requestBody: {content: {application/json: {schema: {$ref: 'order.yaml#/Order'}}}}
responses: {'201': {content: {application/json: {schema: {$ref: 'order.yaml#/Order'}}}}}
""",
    "parts/item.yaml": """
parameters: [{$ref: '../api.yaml#/components/parameters/orderId'}]
get:
  operationId: getOrder
  responses: {'200': {content: {application/json: {schema: {$ref: 'order.yaml#/Order'}}}}}
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "api" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "api" / name).write_text(text)
    (tmp_path / "outside.yaml").write_text("get: {operationId: secrets}")
    (tmp_path / "api" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    return tmp_path / "api"


class Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/api/moved.yaml":
            self.send_response(302)
            self.send_header("location", "http://localhost:9/api.yaml")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    Quiet.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_document_in_several_files_is_kept_as_one(folder: Path, tmp_path: Path) -> None:
    source = origin_of(str(folder / "api.yaml")).bring(tmp_path / "files")
    assert [one.name for one in (tmp_path / "files").glob("openapi*")] == ["openapi.json"]
    world = cast(MockWorld, source.open(tmp_path / "files"))
    headings = [one.heading for one in world.tools.values()]
    assert headings == ["list_orders()", "create_order(item)", "get_order(orderId)"]
    assert {name: why.split(",")[0] for name, why in world.left_out.items()} == {
        "get_secrets": "it needs ../outside.yaml",
        "get_links": "it needs link.yaml",
        "get_others": "it needs https://other.example/others.yaml",
    }


def test_files_beside_a_document_on_the_web_are_asked_of_its_host_alone(address: str) -> None:
    assert len(MockWorld(load_text(f"{address}/api/api.yaml"), "it").tools) == 3
    assert sorted(Quiet.asked) == [f"/api/{name}" for name in sorted((*FILES, "link.yaml"))]
    with pytest.raises(UsageError, match=r"moved.yaml cannot be read: .* only http://127.0.0.1:\d+ is asked"):
        load_text(f"{address}/api/moved.yaml")


@pytest.mark.long
def test_files_that_stand_for_endless_data_are_refused(tmp_path: Path) -> None:
    paths = {f"/a{n}s": {"$ref": f"part{n}.yaml"} for n in range(40)}
    (tmp_path / "api.json").write_text(document(paths))
    text = "a: &a [" + "x," * 999 + "x]\nb: [" + "*a," * 900 + "*a]"
    for number in range(40):
        (tmp_path / f"part{number}.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"api.json with its files is larger than 32 MiB"):
        load_text(str(tmp_path / "api.json"))


# --- Swagger 2 ---

SWAGGER = """
swagger: "2.0"
consumes: [application/json]
produces: [application/json]
definitions:
  Pet:
    type: object
    required: [name]
    properties: {id: {type: integer}, name: {type: string}, tags: {type: array, items: {type: string}}}
parameters:
  petId: {name: petId, in: path, required: true, type: integer, minimum: 1}
responses:
  Pet: {description: ok, schema: {$ref: '#/definitions/Pet'}}
paths:
  /pets:
    get:
      operationId: listPets
      parameters: [{name: tags, in: query, type: array, items: {type: string}, collectionFormat: pipes}]
      responses: {'200': {schema: {type: array, items: {$ref: '#/definitions/Pet'}}}}
    post:
      operationId: addPet
      parameters: [{name: body, in: body, required: true, schema: {$ref: '#/definitions/Pet'}}]
      responses: {'201': {$ref: '#/responses/Pet'}}
  /pets/{petId}:
    parameters: [{$ref: '#/parameters/petId'}]
    get: {operationId: getPet, responses: {'200': {$ref: '#/responses/Pet'}}}
    post:
      operationId: renamePet
      consumes: [application/x-www-form-urlencoded]
      parameters: [{name: name, in: formData, type: string, required: true}]
      responses: {'200': {$ref: '#/responses/Pet'}}
  /pets/{petId}/picture:
    post:
      operationId: addPicture
      consumes: [multipart/form-data]
      parameters: [{$ref: '#/parameters/petId'}, {name: file, in: formData, type: file}]
      responses: {'200': {description: ok}}
"""


def test_swagger_2_is_read_as_openapi_3() -> None:
    world = MockWorld(SWAGGER, "pets.yaml")
    assert [one.heading for one in world.tools.values()] == [
        "list_pets(tags: array=...)",
        "add_pet(name, tags: array=...)",
        "get_pet(petId: integer)",
        "rename_pet(petId: integer, name)",
    ]
    assert world.left_out == {"add_picture": "it takes no JSON"}
    made = world.play([call("add_pet", name="Rex"), call("rename_pet", petId=107, name="Max")]).outcomes
    assert [one.result for one in made] == [{"id": 107, "name": "Rex"}, {"id": 107, "name": "Max"}]
    asking = {one.name: Requests(one) for one in operations(Document(SWAGGER, "pets.yaml"))}
    assert asking["list_pets"].of({"tags": ["a", "b"]}).target == "/pets?tags=a%7Cb"
    assert asking["rename_pet"].of({"petId": 3, "name": "Max"}).body == b"name=Max"
    assert asking["add_pet"].of({"name": "Max"}).body == b'{"name": "Max"}'


# --- names ---


def test_words_of_yaml_1_2_are_texts() -> None:
    text = """
openapi: 3.0.3
paths:
  /lamps:
    get: {parameters: [{name: on, in: query, schema: {type: string, enum: [no, on, off, yes]}}],
      responses: {'200': {content: {application/json: {schema: {type: array, items: {type: object,
        properties: {id: {type: string}, on: {type: string, enum: [no, on, off, yes]}}}}}}}}}
"""
    (tool,) = MockWorld(text, "lamps.yaml").tools.values()
    assert tool.heading == 'get_lamps(on: "no"|"on"|"off"|"yes"=...)'


@pytest.mark.long
def test_names_of_any_script_are_names_of_tools_and_arguments(tmp_path: Path) -> None:
    fields = {"id": {"type": "string"}, "姓名": {"type": "string"}, "größe": {"type": "integer"}}
    booking = {"type": "object", "required": ["姓名"], "properties": fields}
    paths = records("预订", booking, ids="预订号")
    paths["/预订"]["post"]["operationId"] = "创建预订"
    paths["/预订"]["get"]["parameters"] = [{"name": "größe", "in": "query", "schema": {"type": "integer"}}]
    made = bundle(tmp_path, document(paths))
    assert [one.heading for one in made.bundle.world(9.0).tools.values()] == [
        "get_预订(größe: integer=...)",
        "创建预订(姓名, größe: integer=...)",
        "get_预订_预订号(预订号)",
        "put_预订_预订号(预订号, 姓名, größe: integer=...)",
        "delete_预订_预订号(预订号)",
    ]
    assert (made.base, made.held_out) == (12, 4)


def test_arguments_of_one_name_are_told_apart() -> None:
    paths = records("orders", ORDER)
    paths["/orders/{id}"]["put"]["parameters"] = [
        {"name": "id", "in": "query", "required": True, "schema": {"type": "integer"}}
    ]
    paths["/orders/{id}"]["put"]["requestBody"] = of_kind(
        {
            "type": "object",
            "required": ["id", "a-b", "a_b"],
            "properties": {name: {} for name in ("id", "a-b", "a_b")},
        }
    )
    (operation,) = [one for one in operations(Document(document(paths), "it")) if one.method == "put"]
    asking = Requests(operation)
    assert list(asking.tool.properties) == ["id", "query_id", "body_id", "a-b", "a_b"]
    request = asking.of({"id": "O/1", "query_id": 2, "body_id": 3, "a-b": 4, "a_b": 5})
    assert request.target == "/orders/O%2F1?id=2"
    assert request.body == b'{"id": 3, "a-b": 4, "a_b": 5}'
    tracks = {"type": "object", "required": ["title"], "properties": {"id": {}, "title": {"type": "string"}}}
    paths = records("albums", ORDER) | {
        "/albums/{id}/tracks": {
            "parameters": [in_path("id")],
            "post": {"requestBody": of_kind(tracks), **answers(tracks)},
        }
    }
    world = MockWorld(document(paths), "it")
    assert world.tools["post_albums_id_tracks"].heading == "post_albums_id_tracks(id, title)"
    (made,) = world.play([call("post_albums_id_tracks", id="ALB-101", title="So What")]).outcomes
    assert made.result == {"id": "TRA-107", "title": "So What"}


def test_endings_and_verbs_of_paths_are_no_names() -> None:
    paths = {
        "/Orders.json": records("Orders", ORDER)["/Orders"],
        "/Orders/{Sid}.json": {"parameters": [in_path("Sid")], "get": answers(ORDER), "post": of_body(ORDER)},
        "/Orders/{Sid}:cancel": {"parameters": [in_path("Sid")], "post": {"responses": {"204": {}}}},
    }
    world = MockWorld(document(paths), "it")
    assert list(world.tools) == [
        *("get_orders_json", "post_orders_json", "get_orders_sid_json", "post_orders_sid_json"),
        "post_orders_sid_cancel",
    ]
    calls = [
        call("post_orders_sid_json", Sid="ORD-101", item="tea"),
        call("post_orders_sid_cancel", Sid="ORD-101"),
    ]
    state = cast("dict[str, Any]", world.play(calls).state)
    assert state["Orders"]["ORD-101"]["item"] == "tea"
    assert state["Orders"]["ORD-101"]["cancel"] is True


def of_body(schema: Any) -> dict[str, Any]:
    return {"requestBody": of_kind(schema), **answers(schema)}


def test_descriptions_are_without_markup() -> None:
    paths = records("orders", ORDER)
    paths["/orders"]["get"]["description"] = (
        "<p>Returns **all** `orders` of a [customer](https://x.example/a) in 3&lt;5 days.</p> <p>More.</p>"
    )
    (told, *_) = MockWorld(document(paths), "it").tools.values()
    assert told.description == "Returns all orders of a customer in 3&lt;5 days"


# --- slips ---


@pytest.mark.long
def test_untyped_answers_take_the_records_of_the_body(tmp_path: Path) -> None:
    item = {
        "title": "Item",
        "required": ["name", "price"],
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "price": {"type": "number"},
            "tag": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    body, one = {"requestBody": of_kind(item)}, {"parameters": [in_path("item_id", type="integer")]}
    names = {"get": "read", "put": "update", "delete": "delete"}
    paths = {
        "/items/": {
            "get": {"operationId": "list_items_items__get", **answers({})},
            "post": {"operationId": "create_item_items__post", **body, **answers({})},
        },
        "/items/{item_id}": {
            method: {
                "operationId": f"{name}_item_items__item_id__{method}",
                **(body if method == "put" else {}),
                **one,
                **answers({}),
            }
            for method, name in names.items()
        },
    }
    made = bundle(tmp_path, json.dumps({"openapi": "3.1.0", "paths": paths}))
    assert [one.heading for one in made.bundle.world(9.0).tools.values()] == [
        "list_items_items_get()",
        "create_item_items_post(name, price: number, tag: string|null=...)",
        "read_item_items_item_id_get(item_id: integer)",
        "update_item_items_item_id_put(item_id: integer, name, price: number, tag: string|null=...)",
        "delete_item_items_item_id_delete(item_id: integer)",
    ]
    assert (made.base, made.held_out) == (12, 4)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "object", "required": True, "properties": {"name": {"type": "string"}}},
        True,
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {"$ref": "#/nowhere"},
        {"type": "string", "enum": []},
        {"type": ["string", "banana"], "minLength": "3", "pattern": "("},
        {"properties": 3, "items": 7, "allOf": "x", "anyOf": [None, 5]},
    ],
)
def test_an_odd_schema_costs_its_tool_at_most(odd: Any) -> None:
    odd_order = {**ORDER, "properties": {**cast("dict[str, Any]", ORDER["properties"]), "odd": odd}}
    paths = records("orders", ORDER) | {
        "/orders/{id}/odd": {"parameters": [in_path("id")], "put": of_body(odd)}
    }
    world = MockWorld(document(paths | records("others", odd_order)), "it")
    assert {"get_orders", "post_orders", "get_orders_id", "put_orders_id", "delete_orders_id"} <= {
        *world.tools
    }
    lost = {name: why for name, why in world.left_out.items() if "_others" in name or "_odd" in name}
    assert len(world.tools) + len(lost) == 11
    assert all(lost.values())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("how", ["plain", "nothing required", "allOf", "pointer"])
def test_bodies_in_an_envelope_have_the_same_arguments(how: str, *, wrapped: bool) -> None:
    fields = {
        "id": {"type": "string", "readOnly": True},
        "name": {"type": "string"},
        "urgency": {"enum": ["high", "low"]},
    }
    plain = {"type": "object", "required": ["name"], "properties": fields}
    item = {
        "plain": plain,
        "nothing required": {**plain, "required": []},
        "allOf": {"allOf": [{"type": "object", "properties": {"id": fields["id"]}}, plain]},
        "pointer": {"allOf": [{"$ref": "#/components/schemas/Base/allOf/0"}, {**plain, "required": []}]},
    }[how]
    body = {"type": "object", "required": ["service"], "properties": {"service": item}} if wrapped else item
    paths = records("services", body)
    del paths["/services"]["get"]
    base = {"allOf": [{"type": "object", "properties": {"id": {"type": "string"}}}]}
    headings = [one.heading for one in MockWorld(document(paths, Base=base), "it").tools.values()]
    assert headings[0] == 'post_services(name, urgency: "high"|"low"=...)'
    assert [one.partition("(")[0] for one in headings[1:]] == [
        *("get_services_id", "put_services_id", "delete_services_id"),
    ]
    assert headings[2].startswith("put_services_id(id, name")


def test_ids_keep_to_a_pattern_of_digits() -> None:
    number = {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}
    channel = {"type": "object", "properties": {"id": number, "name": {"type": "string"}}}
    paths = records("channels", channel)
    paths["/channels/{id}"]["parameters"] = [in_path("id", **number)]
    world = MockWorld(document(paths), "it")
    assert len(world.tools) == 5
    assert list(cast("dict[str, Any]", world.play(()).state)["channels"]) == [str(n) for n in range(101, 107)]


# --- what calls do ---


def test_a_change_needs_a_value() -> None:
    optional = {**ORDER, "required": []}
    paths = records("orders", optional)
    paths["/orders/{id}"]["delete"]["requestBody"] = of_kind(
        {"type": "object", "properties": {"dryRun": {"type": "boolean"}}}
    )
    world = MockWorld(document(paths), "it")
    nothing = [call("put_orders_id", id="ORD-101")]
    assert world.play(nothing).outcomes[0].error == "There is nothing to change."
    assert world.tools["delete_orders_id"].heading == "delete_orders_id(id)"


def test_a_bundle_keeps_its_rows_and_one_without_is_made_anew(tmp_path: Path) -> None:
    paths = {**records("orders", ORDER), **records("notes", ORDER)}
    files = tmp_path / "files"
    source = origin_of(str(write(tmp_path, document(paths)))).bring(files)
    rows: Any = source.open(files).play(()).state
    assert json.loads((files / ROWS_FILE).read_text()) == rows
    rows["orders"] = {"O-7": {"id": "O-7", "item": "mine"}}
    (files / ROWS_FILE).write_text(json.dumps({"orders": rows["orders"], "gone": {}}))
    found: Any = source.open(files).play([call("get_orders_id", id="O-7")])
    assert found.outcomes[0].result == {"id": "O-7", "item": "mine"}
    assert [*found.state] == ["orders", "notes"], "rows of other tables are drawn"
    (files / ROWS_FILE).write_text('{"orders": []}')
    with pytest.raises(DataError, match=r"rows\.json: orders: "):
        source.open(files)
    for row in ({"item": "mine"}, {"id": "O-8", "item": "mine"}):
        (files / ROWS_FILE).write_text(json.dumps({"orders": {"O-7": row}}))
        with pytest.raises(DataError, match="rows of orders: the row 'O-7' must have id = 'O-7'"):
            source.open(files)
    (files / ROWS_FILE).unlink()
    earlier = OpenApiSource.model_validate({"file": "openapi.json", "version": 4})
    with pytest.raises(UsageError, match="made by an earlier version of genenv; make it anew with"):
        earlier.open(files)


def write(folder: Path, text: str) -> Path:
    (folder / "api.json").write_text(text, encoding="utf-8")
    return folder / "api.json"


def test_a_session_sees_what_it_did_and_no_other_does() -> None:
    world = MockWorld(document(records("orders", ORDER)), "it")
    calls = [
        call("post_orders", item="tea"),
        call("put_orders_id", id="ORD-101", item="milk"),
        call("delete_orders_id", id="ORD-102"),
        call("get_orders"),
    ]
    begun = json.dumps(world.play(()).state)

    async def run() -> None:
        async with world.session() as one, world.session() as other:
            outcomes = [await one.call(single) for single in calls]
            kept = json.dumps(await one.state())
            await one.call(call("delete_orders_id", id="ORD-101"))
            assert json.dumps(await other.state()) == begun
        played = world.play(calls)
        assert [single.text for single in outcomes] == [single.text for single in played.outcomes]
        assert kept == json.dumps(played.state)

    asyncio.run(run())
    watched = world.play([*calls, call("put_orders_id", id="ORD-103", item="x"), calls[-1]], watch=True)
    assert [one.changed for one in watched.outcomes] == [True, True, True, False, True, False]
    assert json.dumps(world.play(()).state) == begun


def test_long_schemas_of_arguments_are_cut_to_what_they_require() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for level in range(3):
        fields = {f"f{level}{n}": deep for n in range(12)} | {"name": {"type": "string"}}
        deep = {"type": "object", "required": ["name"], "properties": fields}
    spec = {"type": "object", "required": ["spec"], "properties": {"id": {"type": "string"}, "spec": deep}}
    world = MockWorld(document(records("pods", spec)), "it")
    told = world.tools["post_pods"].properties["spec"]
    inner = cast("dict[str, Any]", told["properties"])
    assert list(inner) == [*(f"f2{n}" for n in range(12)), "name"]
    assert list(inner["f20"]["properties"]) == ["name"]
    made = world.play([call("post_pods", spec={"name": "a", "f20": {"name": "b", "f11": {"name": "c"}}})])
    assert made.outcomes[0].error is None


@pytest.mark.long
def test_five_thousand_operations_are_read_in_seconds() -> None:
    schemas, paths = {}, {}
    for number in range(1000):
        fields = {"next": {"$ref": f"#/components/schemas/T{(number + 1) % 1000}"}, "id": {"type": "string"}}
        schemas[f"T{number}"] = {"type": "object", "properties": {**fields, "name": {"type": "string"}}}
        paths |= records(f"thing{number}s", {"$ref": f"#/components/schemas/T{number}"})
    begun = time.process_time()
    world = MockWorld(document(paths, **schemas), "it")
    assert time.process_time() - begun < 20
    assert (len(world.tools), len(world.left_out)) == (48, 4952)


# --- a service that is asked ---


def test_a_key_in_the_query_is_sent_there_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOCK_KEY", "k3y+of the=stock")
    paths = {"/stock": {"get": {"operationId": "stock", **answers({"type": "array"})}}}
    paths["/lots"] = {
        "get": {
            "operationId": "lots",
            "parameters": [
                {"name": "Api_Key", "in": "query", "required": True, "schema": {"type": "string"}}
            ],
            **answers({"type": "array"}),
        }
    }
    text = json.loads(document(paths))
    text["components"]["securitySchemes"] = {"key": {"type": "apiKey", "in": "query", "name": "Api_Key"}}

    async def wait(seconds: float) -> None:
        del seconds

    with ExitStack() as stack:
        api: Api = stack.enter_context(served())
        path = write(tmp_path, json.dumps(text))
        with pytest.raises(UsageError, match=r"lots: it needs the key Api_Key; give it with --header"):
            ServiceOrigin(str(path), Service(address=api.address), ["/lots"], wait=wait).bring(
                tmp_path / "no"
            )
        api.special |= {
            f"/v1/{name}": lambda: as_json([{"id": 1, "told": "k3y%2Bof+the%3Dstock"}])
            for name in ("stock", "lots")
        }
        service = Service(address=api.address, headers=("api_key: $STOCK_KEY",))
        source = ServiceOrigin(str(path), service, wait=wait).bring(tmp_path / "files")
        assert {path for _, path, _ in api.received} == {
            f"/v1/{name}?Api_Key=k3y%2Bof+the%3Dstock" for name in ("stock", "lots")
        }
        assert not any("api_key" in headers for _, _, headers in api.received)
    assert [one.heading for one in source.open(tmp_path / "files").tools.values()] == ["stock()", "lots()"]
    assert "k3y" not in "".join(one.read_text() for one in (tmp_path / "files").iterdir())


# --- what a request refers to ---

GID = {"type": "string", "example": "12345"}


def of_tasks() -> dict[str, Any]:
    """Tasks of projects, wrapped and with gids, as large services have them."""
    task: dict[str, Any] = {
        "type": "object",
        "properties": {
            "gid": {**GID, "readOnly": True},
            "resource_type": {"type": "string", "example": "task", "readOnly": True},
            "name": {"type": "string", "example": "Buy catnip"},
            "workspace": {**GID, "description": "Gid of a workspace."},
            "projects": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Array of project gids.",
            },
            "notes": {"type": "string"},
        },
    }
    project: dict[str, Any] = {
        "type": "object",
        "properties": {"gid": {**GID, "readOnly": True}, "title": {"type": "string"}},
    }

    def wrapped(schema: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"data": schema}}

    def sent(**fields: Any) -> dict[str, Any]:
        return {"requestBody": of_kind(wrapped({"type": "object", "properties": fields}))}

    paths = dict[str, Any]()
    for word, schema in (("tasks", task), ("projects", project)):
        gid = in_path(f"{word[:-1]}_gid", **GID)
        paths[f"/{word}"] = {
            "get": answers(wrapped({"type": "array", "items": schema})),
            "post": {**sent(**schema["properties"]), **answers(wrapped(schema))},
        }
        paths[f"/{word}/{{{word[:-1]}_gid}}"] = {"parameters": [gid], "get": answers(wrapped(schema))}
    found = paths["/tasks/{task_gid}"]
    found["put"] = {
        **sent(name=task["properties"]["name"], notes={"type": "string"}),
        **answers(wrapped(task)),
    }
    for verb, fields in (
        ("addProject", {"project": {"type": "string", "description": "The project to add the task to."}}),
        (
            "setParent",
            {"parent": {"type": "string", "description": "The new parent of the task, or `null`."}},
        ),
        (
            "addDependencies",
            {"dependencies": {**task["properties"]["projects"], "description": "An array of task gids."}},
        ),
    ):
        body = {"type": "object", "properties": fields, "required": [*fields]}
        paths[f"/tasks/{{task_gid}}/{verb}"] = {
            "parameters": [in_path("task_gid")],
            "post": {"requestBody": of_kind(wrapped(body)), **answers(wrapped(task))},
        }
    return paths


def named(world: MockWorld, part: str) -> str:
    return min((name for name in world.tools if part in name), key=len)


def test_what_is_sent_names_records_that_there_are(tmp_path: Path) -> None:
    text = document(of_tasks())
    world = MockWorld(text, "it")
    tasks, projects = (list(cast("dict[str, Any]", world.play(()).state)[it]) for it in ("tasks", "projects"))
    for verb, name, there in (
        ("add_project", "project", projects[1]),
        ("set_parent", "parent", tasks[1]),
        ("add_dependencies", "dependencies", [tasks[1], tasks[2]]),
    ):
        tool, wrong = named(world, verb), "nothing" if isinstance(there, str) else [tasks[1], "nothing"]
        good, bad = (call(tool, task_gid=tasks[0], **{name: one}) for one in (there, wrong))
        assert world.play([good]).outcomes[0].error is None
        assert "There is no" in str(world.play([bad]).outcomes[0].error)
    created = "post_tasks"
    assert world.play([call(created, name="x", projects=[projects[0]])]).outcomes[0].error is None
    assert "There is no project" in str(
        world.play([call(created, name="x", projects=["P"])]).outcomes[0].error
    )


def test_rows_have_ids_like_the_example_and_one_type() -> None:
    rows = cast(
        "dict[str, dict[str, Any]]",
        cast("Any", MockWorld(document(of_tasks()), "it").play(()).state)["tasks"],
    )
    assert {one["resource_type"] for one in rows.values()} == {"task"}
    assert all(one["workspace"].isdigit() and len(one["workspace"]) == 5 for one in rows.values())
    assert len({one["workspace"] for one in rows.values()}) > 1
    assert {one["name"] for one in rows.values()} != {"Buy catnip"}
    tools = MockWorld(document(of_tasks()), "it").tools
    assert "examples" not in tools["get_tasks_task_gid"].properties["task_gid"]
    assert "examples" in tools["post_tasks"].properties["workspace"]


@pytest.mark.long
def test_tasks_use_what_a_call_with_a_gid_has_made_and_change_it(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(document(of_tasks()))
    wanted = Wanted(origin=origin_of(str(tmp_path / "api.json")), base=40, held_out=10)
    made = make(tmp_path / "it", wanted, examined, Silent())
    world = MockWorld(document(of_tasks()), "it")
    update, create = "put_tasks_task_gid", "post_tasks"
    assert {update, create, named(world, "set_parent")} <= {*made.graph.recipes}
    assert any((link.reader, link.user) == (create, update) for link in made.graph.links)
    ways = made.graph.recipes[named(world, "add_project")].ways
    assert ways["project"].startswith("projects.")


PAYMENT: dict[str, Any] = {
    "oneOf": [{"$ref": "#/components/schemas/Card"}, {"$ref": "#/components/schemas/Bank"}],
    "discriminator": {"propertyName": "method", "mapping": {"by_card": "#/components/schemas/Card"}},
}
ALTERNATIVES: dict[str, Any] = {
    "Card": {
        "type": "object",
        "required": ["method", "holder"],
        "additionalProperties": False,
        "properties": {
            "method": {"type": "string"},
            "holder": {"type": "string"},
            "pin": {"type": "integer"},
        },
    },
    "Bank": {
        "type": "object",
        "required": ["iban"],
        "properties": {"method": {"type": "string"}, "iban": {"type": "string"}},
    },
    "Guest": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "name": {"type": "string"},
            "email": {"type": "string"},
            "phone": {"type": "string"},
            "payment": PAYMENT,
        },
        "required": ["name", "payment"],
        "oneOf": [{"required": ["email"]}, {"required": ["phone"]}],
    },
}


def test_of_alternatives_a_call_gives_one_in_all_its_fields() -> None:
    paths = records("guests", {"$ref": "#/components/schemas/Guest"})
    world = MockWorld(document(paths, **ALTERNATIVES), "it.json")
    create = next(one for name, one in world.tools.items() if name.startswith("post"))
    assert create.required == {"name", "payment", "email"}
    assert "phone" not in create.properties
    guest = {**ALTERNATIVES["Guest"], "components": {"schemas": ALTERNATIVES}}
    whole = Validator(plain_schema(guest))
    for seed in range(20):
        args = {name: fresh(create, name, random.Random(seed)) for name in create.properties}
        assert create.problem(args) is None
        payment = cast("dict[str, object]", args["payment"])
        assert payment["method"] == "by_card"
        assert set(payment) == {"method", "holder"}
        assert whole.problem(args) is None


def test_alternatives_of_a_request_body_are_one_tool() -> None:
    schema = {**PAYMENT, "type": "object"}
    world = MockWorld(document(records("payments", schema), **ALTERNATIVES), "it.json")
    create = next(one for name, one in world.tools.items() if name.startswith("post"))
    assert set(create.properties) == {"holder", "pin"}  # which alternative it is, is no question
    (outcome,) = world.play([call(create.name, holder="Ada")]).outcomes
    assert cast("dict[str, object]", outcome.result)["method"] == "by_card"


def test_the_example_of_a_list_is_one_of_its_items() -> None:
    events = {"type": "array", "items": {"type": "string"}, "example": ["sent", "bounced", "opened"]}
    schema = {"type": "object", "properties": {"id": {"type": "string"}, "events": events}}
    world = MockWorld(document(records("hooks", schema)), "it.json")
    create = next(one for name, one in world.tools.items() if name.startswith("post"))
    drawn = cast("list[Json]", fresh(create, "events", random.Random(0)))
    assert {*map(str, drawn)} <= {*cast("list[str]", events["example"])}


def test_values_that_are_called_like_a_table_are_no_keys_of_it() -> None:
    sent: dict[str, Any] = {
        "email": {"type": "string", "description": "The email of the contact."},
        "events": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The events to be told of.",
            "example": ["email.sent", "email.opened"],
        },
        "topic": {"type": "string", "description": "The name of the topic."},
    }
    schema = {"type": "object", "properties": {"id": {"type": "string"}, **sent}}
    paths = dict[str, Any]()
    for word in ("emails", "events", "topics"):
        paths |= records(
            word, {"type": "object", "properties": {"id": {"type": "string"}, "sent": {"type": "boolean"}}}
        )
    world = MockWorld(document({**paths, **records("hooks", schema)}), "it")
    assert not world.actions["post_hooks"].refers
    good = call("post_hooks", email="ada@example.com", events=["email.sent"], topic="news")
    assert world.play([good]).outcomes[0].error is None


TEXT = {"type": "string"}


def test_a_field_that_a_request_spells_otherwise_is_the_same_field() -> None:
    user = {"type": "object", "properties": {"sid": TEXT, "friendly_name": TEXT}}
    paths = records("users", user, ids="Sid")
    sent = {"type": "object", "required": ["FriendlyName"], "properties": {"FriendlyName": TEXT}}
    paths["/users"]["post"]["requestBody"] = paths["/users/{Sid}"]["put"]["requestBody"] = of_kind(sent)
    world = MockWorld(document(paths), "it")
    assert list(world.tables["users"].fields) == ["sid", "friendly_name"]
    assert list(world.tools["put_users_sid"].properties) == ["Sid", "FriendlyName"]
    sid = next(iter(world.first["users"]))
    calls = [call("put_users_sid", Sid=sid, FriendlyName="Ada"), call("get_users_sid", Sid=sid)]
    assert [one.result["friendly_name"] for one in world.play(calls).outcomes] == ["Ada", "Ada"]


def test_a_default_may_be_given_or_left_out() -> None:
    done = {"type": "boolean", "default": False}
    line = {"type": "object", "required": ["title"], "properties": {"title": TEXT, "done": done}}
    lines = {"type": "array", "items": line}
    sent = {"name": TEXT, "color": {**TEXT, "default": "red"}, "lines": lines}
    paths = records("lists", {"type": "object", "properties": {"id": TEXT, "name": TEXT, "lines": lines}})
    paths["/lists"]["post"]["requestBody"] = of_kind(
        {"type": "object", "required": ["name"], "properties": sent}
    )
    world = MockWorld(document(paths), "it")
    ends = [
        world.play([call("post_lists", name="x", lines=[{"title": "y", **inner}], **outer)]).state
        for inner in ({}, {"done": False}, {"done": True})
        for outer in ({}, {"color": "red"}, {"color": "blue"})
    ]
    assert ends[0] == ends[1] == ends[3] == ends[4]
    assert all(ends[0] != ends[other] for other in (2, 5, 6, 7, 8))


SHOP_ORDER = {
    "type": "object",
    "required": ["id", "status"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "item": TEXT,
        "note": {**TEXT, "default": ""},
        "gift": {"type": "boolean", "default": False},
        "place": TEXT,
        "created_at": {**TEXT, "format": "date-time"},
        "status": {**TEXT, "enum": ["new", "paid"], "readOnly": True},
    },
}


def test_a_put_replaces_a_record_and_a_patch_keeps_the_rest_of_it_and_shows_no_defaults() -> None:
    paths = records("orders", SHOP_ORDER)
    paths["/orders/{id}"]["patch"] = paths["/orders/{id}"]["put"]
    world = MockWorld(document(paths), "it")
    key, row = next(iter(world.first["orders"].items()))
    key = int(key)
    left_out, stated = (
        world.play([call("put_orders_id", id=key, item="lamp", **more)]).state["orders"][str(key)]
        for more in ({}, {"note": "", "gift": False})
    )
    same = {name: row[name] for name in ("id", "created_at", "status")}
    assert left_out == stated == {**same, "item": "lamp", "note": "", "gift": False}
    assert world.tools["put_orders_id"].heading.startswith('put_orders_id(id: integer, item=..., note="",')
    assert "note=..., gift: boolean=..." in world.tools["patch_orders_id"].heading
    patched = world.play([call("patch_orders_id", id=key, item="lamp")]).state["orders"][str(key)]
    assert patched == {**row, "item": "lamp"}


@pytest.mark.parametrize(
    "owner",
    [
        {**TEXT, "nullable": True},
        {"type": ["string", "null"]},
        {"anyOf": [TEXT, {"type": "null"}]},
        {"$ref": "#/components/schemas/Name", "nullable": True},
    ],
)
def test_a_field_that_may_be_null_can_be_cleared(owner: dict[str, Any]) -> None:
    task = {
        "type": "object",
        "required": ["id", "title", "owner"],
        "properties": {"id": TEXT, "title": TEXT, "owner": owner, "user_id": {**TEXT, "nullable": True}},
    }
    sent = {"type": "object", "required": ["title"], "properties": task["properties"]}
    paths = records("tasks", task) | records("users", {"type": "object", "properties": {"id": TEXT}})
    paths["/tasks"]["post"]["requestBody"] = of_kind(sent)
    paths["/tasks/{id}"]["patch"] = {"requestBody": of_kind({**sent, "required": []}), **answers(task)}
    world = MockWorld(document(paths, Name=TEXT), "it")
    assert "title=..., owner: string|null=..." in world.tools["patch_tasks_id"].heading
    key, row = next(iter(world.first["tasks"].items()))
    played = world.play([call("patch_tasks_id", id=key, owner=None, user_id=None)])
    assert played.state["tasks"][key] == {"id": key, "title": row["title"]}
    assert played.outcomes[0].result == {"id": key, "title": row["title"], "owner": None}
    assert world.play([call("patch_tasks_id", id=key, title=None)]).outcomes[0].error is not None
    made = [world.play([call("post_tasks", title="x", **more)]) for more in ({}, {"owner": None})]
    assert made[0] == made[1]
    assert made[0].outcomes[0].result["owner"] is None


@pytest.mark.parametrize(
    ("verb", "values", "status"),
    [
        ("pay", ["new", "paying", "paid"], "paid"),
        ("cancel", ["new", "Cancelled"], "Cancelled"),
        ("ship", ["shipping_delayed", "shipped"], "shipped"),
        ("apply", ["new", "applied"], "applied"),
        ("close", ["open", "closed"], "closed"),
        ("print", ["new", "printing"], "printing"),
        ("open", ["opening_soon", "new"], None),
    ],
)
def test_an_action_sets_the_status_that_its_verb_names_and_nothing_else(
    verb: str, values: list[str], status: str | None
) -> None:
    fields = {
        "id": TEXT,
        "method": {**TEXT, "enum": ["paypal", "pay", "ship", "opened"]},
        "status": {**TEXT, "enum": values},
    }
    paths = records("orders", {"type": "object", "properties": fields})
    paths[f"/orders/{{id}}/{verb}"] = {"parameters": [in_path("id")], "post": {"responses": {"204": {}}}}
    world = MockWorld(document(paths), "it")
    key, row = next(iter(world.first["orders"].items()))
    after = world.play([call(f"post_orders_id_{verb}", id=key)]).state["orders"][key]
    assert after == {**row, **({verb: True} if status is None else {"status": status})}


def test_filters_compare_values_and_find_no_record_without_the_field() -> None:
    tags = {"type": "array", "items": TEXT}
    fields = {"id": TEXT, "price": {"type": "number"}, "owner": TEXT, "tags": tags}
    paths = records("lamps", {"type": "object", "properties": fields})
    paths["/lamps"]["get"]["parameters"] = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in {**fields, "tags": TEXT}.items()
        if name != "id"
    ]
    rows = {
        "a": {"id": "a", "price": 5.0, "owner": "Ada", "tags": ["New"]},
        "b": {"id": "b", "price": 1, "tags": []},
        "c": {"id": "c", "owner": None},
    }
    world = MockWorld(document(paths), "it", rows={"lamps": cast(Any, rows)})

    def found(**args: Json) -> list[str]:
        return [one["id"] for one in world.play([call("get_lamps", **args)]).outcomes[0].result]

    assert found(price=5) == found(owner="ada") == found(tags="new") == ["a"]
    assert found(owner="none") == found(owner="null") == []


def test_a_description_beside_a_reference_is_that_of_the_parameter() -> None:
    paths = records("orders", ORDER)
    name = {"$ref": "#/components/schemas/Name"}
    paths["/orders"]["post"]["requestBody"] = of_kind(
        {"type": "object", "properties": {"item": {**name, "description": "What is ordered."}}}
    )
    paths["/orders"]["get"]["parameters"] = [
        {"name": "item", "in": "query", "description": "Which item.", "schema": name}
    ]
    world = MockWorld(document(paths, Name={**TEXT, "description": "A name."}), "it")
    shown = [world.tools[one].properties["item"]["description"] for one in ("post_orders", "get_orders")]
    assert shown == ["What is ordered.", "Which item."]


def test_null_is_sent_in_a_body_and_nowhere_else() -> None:
    paths = records("orders", ORDER)
    owner = {**TEXT, "nullable": True}
    paths["/orders/{id}"]["patch"] = {
        "parameters": [{"name": "place", "in": "query", "schema": owner}],
        "requestBody": of_kind({"type": "object", "properties": {"owner": owner}}),
        "responses": {"204": {}},
    }
    (patch,) = [one for one in operations(Document(document(paths), "it")) if one.method == "patch"]
    made = Requests(patch)
    assert "null" not in str(made.tool.properties["place"])
    request = made.of({"id": "7", "owner": None})
    assert (request.target, request.body) == ("/orders/7", b'{"owner": null}')


def test_a_path_in_the_singular_is_no_second_table() -> None:
    table = {"type": "object", "properties": {"id": {"type": "integer"}, "title": {"type": "string"}}}
    sent = of_kind({"type": "object", "properties": {"path": {"type": "string"}}})
    rows = answers({"type": "object", "properties": {"rows": {"type": "integer"}}})
    paths = {
        "/import/table/{id}": {"parameters": [in_path("id")], "post": {"requestBody": sent, **rows}},
        **records("tables", table),
        "/table/{id}/": {"parameters": [in_path("id")], "patch": {"requestBody": of_kind(table)}},
    }
    world = MockWorld(document(paths), "it")
    assert {*world.tables} == {"tables"}
    assert "path" not in world.tables["tables"].fields
    assert world.left_out["post_import_table_id"].endswith(
        "about no records that this document lists or names"
    )
    key = int(next(iter(world.first["tables"])))
    calls = [call("patch_table_id", id=key, title="new"), call("get_tables_id", id=key)]
    assert world.play(calls).outcomes[1].result["title"] == "new"


def test_a_summary_of_several_lines_is_its_first_sentence() -> None:
    paths = records("tables", ORDER)
    paths["/tables"]["get"]["summary"] = "[api v2] Get all\nTables\n\nReturn an empty array if there are none"
    world = MockWorld(document(paths), "it")
    assert world.tools["get_tables"].description == "Get all Tables"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/user/{name}", {"name": TEXT, "bio": TEXT}),
        ("/mail/user/{id}", {"id": TEXT, "subject": TEXT, "sender": TEXT}),
    ],
)
def test_what_only_sounds_alike_is_a_table_of_its_own(path: str, answer: dict[str, Any]) -> None:
    user = {"type": "object", "properties": {"id": TEXT, "email": TEXT, "phone": TEXT}}
    blank = path.rpartition("{")[2][:-1]
    one = {"parameters": [in_path(blank)], "get": answers({"type": "object", "properties": answer})}
    world = MockWorld(document({**records("users", user), path: one}), "it")
    assert len(world.tables) == 2
    assert {*world.tables["users"].fields} == {"id", "email", "phone"}
    assert len(world.tools) == 6


def test_a_part_has_fields_of_its_own() -> None:
    profile = {"type": "object", "properties": {"displayName": TEXT, "bio": TEXT}}
    user = {"type": "object", "properties": {"id": TEXT, "display_name": TEXT, "profile": profile}}
    part = {"get": answers(profile), "put": {"requestBody": of_kind(profile), **answers(profile)}}
    paths = {**records("users", user), "/users/{id}/profile": {"parameters": [in_path("id")], **part}}
    world = MockWorld(document(paths), "it")
    key = next(iter(world.first["users"]))
    named = next(name for name in world.tools if name.startswith("put") and "profile" in name)
    played = world.play([call(named, id=key, displayName="Zed"), call("get_users_id", id=key)])
    assert played.outcomes[1].result["display_name"] == world.first["users"][key]["display_name"]
    assert played.outcomes[1].result["profile"]["displayName"] == "Zed"


def test_a_change_of_a_part_of_a_record_sets_no_defaults() -> None:
    settings = {"theme": TEXT, "notify": {"type": "boolean", "default": True}}
    box = {"type": "object", "required": ["theme"], "properties": settings}
    paths = records("users", {"type": "object", "properties": {"id": TEXT, "settings": box}})
    paths["/users/{id}"]["patch"] = paths["/users/{id}"]["put"]
    world = MockWorld(document(paths), "it")
    key = next(iter(world.first["users"]))
    changed, replaced = (
        world.play([call(f"{method}_users_id", id=key, settings={"theme": "b"})]).state["users"][key]
        for method in ("patch", "put")
    )
    assert changed["settings"] == {"theme": "b"}
    assert replaced["settings"] == {"theme": "b", "notify": True}
