"""Mock worlds held to their documents: what is sent can be said, ids are ids, and answers are as declared.

The documents in `apis` are written in the styles of services that people use. All is checked against the
document itself, by a validator of JSON schema and with its references, not by genenv's own reading of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator

from bundles import call
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.check import calls_of
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.openapi.mock_world import MOST_TOOLS, MockWorld
from genenv.tools.worlds.origins import origin_of

APIS = sorted(Path(__file__).with_name("apis").glob("*.yaml"))
LEFT_OUT = {
    "chat": {"join_thread"},
    "forum": {"index_posts", "publish_post"},
    "incidents": {
        "add_escalation_policy_to_team",
        "remove_escalation_policy_from_team",
        "list_service_audit_records",
    },
    "store": {"count_products"},
}
"""Operations of these documents that mock tables cannot do, or need not."""
METHODS = ("get", "post", "put", "patch", "delete")
named = pytest.mark.parametrize("api", APIS, ids=lambda one: one.stem)


@cache
def document(api: Path) -> dict[str, Any]:
    return yaml.safe_load(api.read_text(encoding="utf-8"))


@cache
def world(api: Path) -> MockWorld:
    return MockWorld(api.read_text(encoding="utf-8"), api.name)


def of(name: str) -> MockWorld:
    return world(next(one for one in APIS if one.stem == name))


def at(api: Path, node: Any) -> Any:
    """A node of a document, or what it refers to."""
    while isinstance(node, Mapping) and "$ref" in node:
        found: Any = document(api)
        for part in str(node["$ref"]).removeprefix("#/").split("/"):
            found = found[int(part)] if isinstance(found, list) else found[part]
        node = found
    return node


def operations(api: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation by its name, with the parameters of its path."""
    for item in document(api)["paths"].values():
        for method in METHODS:
            if method in item:
                shared = [*item.get("parameters", ()), *item[method].get("parameters", ())]
                yield item[method]["operationId"], {**item[method], "parameters": shared}


def schema_of(api: Path, node: Any) -> Any:
    """The schema of a body or a response; None: it has none."""
    content = at(api, node or {}).get("content", {})
    return next((one["schema"] for one in content.values()), None)


def problems(api: Path, schema: Any, value: Any) -> list[str]:
    whole = {**schema, "components": document(api)["components"]}
    return [
        f"{one.json_path}: {one.message}" for one in Draft202012Validator(cast(Any, whole)).iter_errors(value)
    ]


def sent_fields(api: Path, schema: Any) -> Iterator[str]:
    """Names of the single fields of a body, wherever they are, but those that only the server sets."""
    schema = at(api, schema)
    for part in (*schema.get("allOf", ()), *schema.get("anyOf", ())[:1], *schema.get("oneOf", ())[:1]):
        yield from sent_fields(api, part)
    for name, one in schema.get("properties", {}).items():
        inner = at(api, one)
        if inner.get("readOnly") or len(inner.get("enum", ())) == 1:
            continue
        below = list(sent_fields(api, inner))
        yield from below if inner.get("type") == "object" or below else [name]


@named
def test_every_operation_is_a_tool_or_is_said_not_to_be_one(api: Path) -> None:
    told = world(api)
    assert set(told.left_out) == LEFT_OUT.get(api.stem, set())
    assert [name for name, _ in operations(api) if name not in told.left_out] == list(told.tools)


@named
def test_every_field_of_a_body_can_be_said(api: Path) -> None:
    for name, operation in operations(api):
        tool = world(api).tools.get(name)
        schema = schema_of(api, operation.get("requestBody"))
        if tool is None or schema is None:
            continue
        known = json.dumps(tool.parameters) + " ".join(world(api).remarks)
        path = {at(api, one)["name"] for one in operation["parameters"]} | {"id"}  # the server gives ids
        lost = [field for field in sent_fields(api, schema) if field not in known and field not in path]
        assert not lost, f"{name} loses {lost}"


@named
def test_every_answer_is_as_the_document_declares_it(api: Path) -> None:
    found = world(api)
    for name, operation in operations(api):
        if name not in found.tools:
            continue
        sample = found.sample(name)
        assert sample is not None
        (outcome,) = found.play([sample]).outcomes
        assert outcome.error is None, name
        good = [at(api, one) for code, one in operation["responses"].items() if code.startswith("2")]
        if (schema := schema_of(api, good[0])) is not None:
            assert problems(api, schema, outcome.result) == [], name


@named
def test_every_id_is_one_that_the_parameters_take(api: Path) -> None:
    found = world(api)
    for name, operation in operations(api):
        if (tool := found.tools.get(name)) is None:
            continue
        sample = found.sample(name)
        assert sample is not None
        for one in operation["parameters"]:
            parameter = at(api, one)
            if parameter["in"] == "path":
                assert parameter["name"] in tool.properties
                assert problems(api, parameter["schema"], sample.args[parameter["name"]]) == [], name


def test_fields_in_an_envelope_are_arguments_and_answers_come_in_it() -> None:
    incidents = of("incidents")
    assert incidents.tools["create_service"].heading.startswith("create_service(name=..., description=...,")
    policy = next(iter(cast("dict[str, Any]", incidents.play(()).state)["escalation_policies"]))
    made, got, lost = incidents.play(
        [
            call("create_service", name="Shop", escalation_policy_id=policy),
            call("get_service", id="SER-107"),
            call("create_service", name="Shop", escalation_policy_id="none"),
        ]
    ).outcomes
    assert made.result == got.result
    service = cast("dict[str, Any]", made.result)["service"]
    assert (service["id"], service["type"], service["name"]) == ("SER-107", "service", "Shop")
    assert service["escalation_policy"] == {"id": policy, "type": "escalation_policy_reference"}
    assert lost.error == "There is no escalation policy none."


def test_attributes_and_relationships_are_fields_like_others() -> None:
    articles = of("articles")
    heading = 'create_article(title, body=..., status: "draft"|"live"=..., author_id=...)'
    assert articles.tools["create_article"].heading == heading
    made, listed = articles.play(
        [
            call("create_article", title="Tea", status="live", author_id="PEO-101"),
            call("list_articles", filter_status="live"),
        ]
    ).outcomes
    assert cast("dict[str, Any]", made.result)["data"] == {
        "type": "articles",
        "id": "ART-107",
        "attributes": {"title": "Tea", "status": "live"},
        "relationships": {"author": {"data": {"type": "people", "id": "PEO-101"}}},
    }
    assert cast("dict[str, Any]", made.result)["data"] in cast("dict[str, Any]", listed.result)["data"]


def test_what_belongs_to_a_record_keeps_its_own_id_where_both_are_called_alike() -> None:
    music = of("music")
    state = cast("dict[str, dict[str, Any]]", music.play(()).state)
    one, other = list(state["albums"])[:2]
    made, here, there = music.play(
        [
            call("add_track", id=one, title="Air"),
            call("get_album_tracks", id=one),
            call("get_album_tracks", id=other),
        ]
    ).outcomes
    track = cast("dict[str, Any]", made.result)
    assert track == {"id": "TRA-107", "title": "Air"}
    assert track["id"] not in state["albums"]
    assert track in cast("dict[str, Any]", here.result)["items"]
    assert track not in cast("dict[str, Any]", there.result)["items"]
    assert len({row["id"] for row in state["tracks"].values()}) == len(state["tracks"])
    assert {row["album_id"] for row in state["tracks"].values()} <= set(state["albums"])


def test_records_that_belong_to_two_tables_whose_ids_are_called_alike_keep_both() -> None:
    album, artist = records("albums"), records("artists")
    tracks = {"get": records("tracks")["/tracks"]["get"]}
    paths = {
        **album,
        **artist,
        **records("tracks"),
        "/albums/{id}/tracks": tracks,
        "/artists/{id}/tracks": tracks,
    }
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "it.json")
    state = cast("dict[str, dict[str, Any]]", found.play(()).state)
    assert {row["album_id"] for row in state["tracks"].values()} <= set(state["albums"])
    assert {row["artist_id"] for row in state["tracks"].values()} <= set(state["artists"])
    one = next(iter(state["artists"]))
    (listed,) = found.play([call("get_artists_id_tracks", id=one)]).outcomes
    own = [row["id"] for row in state["tracks"].values() if row["artist_id"] == one]
    assert [row["id"] for row in cast("list[dict[str, Any]]", listed.result)] == own


def test_what_a_record_belongs_to_has_to_be_there_when_a_body_names_it_too() -> None:
    paths = {**records("channels"), **records("webhooks", links="channel")}
    paths["/channels/{channel_id}/webhooks"] = {"get": paths["/webhooks"]["get"]}
    body = paths["/webhooks"]["post"]["requestBody"]
    paths["/webhooks/{id}"]["patch"] = {"requestBody": body, "responses": {"200": body}}
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "it.json")
    lost, moved = found.play(
        [
            call("patch_webhooks_id", id="WEB-101", channel_id="754"),
            call("patch_webhooks_id", id="WEB-101", channel_id="CHA-102"),
        ]
    ).outcomes
    assert lost.error == "There is no channel 754."
    assert cast("dict[str, Any]", moved.result)["channel_id"] == "CHA-102"


def test_a_record_of_two_ids_is_found_by_both() -> None:
    repositories = of("repositories")
    state = cast("dict[str, dict[str, Any]]", repositories.play(()).state)
    name, repo = next(iter(state["repos"].items()))
    owner = repo["repo_owner"]
    stranger = next(row["repo_owner"] for row in state["repos"].values() if row["repo_owner"] != owner)
    made, listed, wrong, comment = repositories.play(
        [
            call("create_issue", owner=owner, repo=name, title="It rains"),
            call("list_issues", owner=owner, repo=name),
            call("create_issue", owner=stranger, repo=name, title="It rains"),
            call("create_issue_comment", owner=owner, repo=name, issue_number=207, body="So it does"),
        ]
    ).outcomes
    assert cast("dict[str, Any]", made.result)["number"] == 207
    assert made.result in cast("list[Any]", listed.result)
    assert wrong.error == f"There is no repo {name}."
    assert comment.error is None
    issues = {key: (row["owner"], row["repo"]) for key, row in state["issues"].items()}
    assert all(state["repos"][repo]["repo_owner"] == owner for owner, repo in issues.values())


def test_ids_and_constants_are_as_their_schemas_want_them() -> None:
    chat = of("chat")
    state = cast("dict[str, dict[str, Any]]", chat.play(()).state)
    assert all(key.isdigit() for table in state.values() for key in table)
    assert {row["type"] for row in state["channels"].values()} <= {0, 2, 5}
    assert {row["guild_id"] for row in state["channels"].values()} <= set(state["guilds"])
    assert len({key for table in state.values() for key in table}) == sum(map(len, state.values()))
    (made,) = chat.play([call("create_guild_channel", guild_id="101", name="tea")]).outcomes
    assert cast("dict[str, Any]", made.result)["guild_id"] == "101"


def test_an_id_with_one_example_and_a_least_length_is_another_one_in_every_row() -> None:
    paths = records("users")
    long = {"type": "string", "minLength": 26, "examples": ["AGKWDNQ24N4SXBBWYENPROSIYQ"]}
    paths["/users/{id}"]["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": long}]
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "it.json")
    state = cast("dict[str, dict[str, Any]]", found.play(()).state)
    assert [len(key) for key in state["users"]] == [26] * 6
    assert set(found.tools) == {"get_users", "post_users", "get_users_id", "delete_users_id"}


def test_who_only_changes_what_a_record_belongs_to_deletes_none() -> None:
    left_out = of("incidents").left_out
    assert left_out["remove_escalation_policy_from_team"] == (
        "it may delete a record, or only take it from what it belongs to"
    )
    assert left_out["add_escalation_policy_to_team"] == "what it does to a record is not said"


def test_records_of_one_word_that_are_not_alike_are_tables_of_their_own() -> None:
    def listing(*names: str) -> dict[str, Any]:
        fields = {name: {"type": "string"} for name in ("id", *names)}
        schema = {"type": "array", "items": {"type": "object", "properties": fields}}
        return {"get": {"responses": {"200": {"content": {"application/json": {"schema": schema}}}}}}

    paths = {
        "/services": listing("owner", "tier"),
        "/services/{id}": {"delete": {"responses": {}}},
        "/pages/{id}/services": listing("impact", "shown_as"),
        "/teams/{id}/services": listing("owner", "tier"),
        "/pages/{id}": {"delete": {"responses": {}}},
        "/teams/{id}": {"delete": {"responses": {}}},
    }
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "it.json")
    state = cast("dict[str, dict[str, Any]]", found.play(()).state)
    assert set(state) == {"services", "pages", "teams", "pages_services"}
    assert {"owner", "tier", "team_id"} <= set(next(iter(state["services"].values())))
    assert {"impact", "shown_as", "page_id"} <= set(next(iter(state["pages_services"].values())))


def records(name: str, *, links: str = "", deprecated: bool = False) -> dict[str, Any]:
    """The usual operations on records of a name."""
    fields = {"id": {"type": "string"}, "title": {"type": "string"}} | (
        {f"{links}_id": {"type": "string"}} if links else {}
    )
    one = {"type": "object", "properties": fields}
    body = {"content": {"application/json": {"schema": one}}}
    many = {"content": {"application/json": {"schema": {"type": "array", "items": one}}}}
    mark = {"deprecated": True} if deprecated else {}
    listed = {
        "get": {"responses": {"200": many}, **mark},
        "post": {"requestBody": body, "responses": {"201": body}, **mark},
    }
    single = {"get": {"responses": {"200": body}, **mark}, "delete": {"responses": {}, **mark}}
    return {f"/{name}": listed, f"/{name}/{{id}}": single}


@pytest.mark.long
def test_of_many_operations_the_usual_ones_of_the_tables_that_others_refer_to_are_taken() -> None:
    ledgers = {f"/admin/v2/ledgers{n}s": {"get": records("x")["/x"]["get"]} for n in range(60)}
    paths = {**ledgers, **records("olds", deprecated=True), **records("orders", links="customer")}
    for n in range(9):
        paths |= records(f"things{n}s", links="customer")
    paths |= records("customers")
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "many.json")
    assert len(found.tools) == MOST_TOOLS
    assert {"get_customers", "post_customers", "get_orders", "post_orders", "delete_orders_id"} <= set(
        found.tools
    )
    assert not any("olds" in tool for tool in found.tools)
    assert found.left_out["get_olds"].startswith("it is deprecated")
    assert sum("ledgers" in tool for tool in found.tools) == MOST_TOOLS - 4 * 11
    asked = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "many.json", ["/olds"])
    assert set(asked.tools) == {"get_olds", "post_olds"}


def test_what_is_in_another_file_is_said_and_never_read_as_nothing() -> None:
    kept = records("orders")
    elsewhere = {
        "/customers/{id}": {"$ref": "./customers.yaml"},
        "/notes": {
            "get": {
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "./notes.yaml#/Note"}}}}
                }
            }
        },
    }
    found = MockWorld(json.dumps({"openapi": "3.0.3", "paths": {**kept, **elsewhere}}), "it.json")
    assert len(found.tools) == 4
    assert {name: why.split(",")[0] for name, why in found.left_out.items()} == {
        "get_customers_id": "it needs ./customers.yaml",
        "get_notes": "it needs ./notes.yaml#/Note",
    }
    with pytest.raises(UsageError, match="neither in the document nor in a file of its folder"):
        MockWorld(json.dumps({"openapi": "3.0.3", "paths": elsewhere}), "it.json")


def test_an_operation_that_would_answer_otherwise_than_declared_is_left_out_by_name() -> None:
    paths = records("orders")
    impossible = {
        "type": "object",
        "required": ["code"],
        "properties": {"code": {"type": "string", "enum": ["a"], "pattern": "^b$"}},
    }
    paths["/orders/{id}"]["put"] = {
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"title": {"type": "string"}}}
                }
            }
        },
        "responses": {"200": {"content": {"application/json": {"schema": impossible}}}},
    }
    found = MockWorld(json.dumps({"openapi": "3.1.0", "paths": paths}), "it.json")
    assert set(found.left_out) == {"put_orders_id"}
    assert found.left_out["put_orders_id"].startswith("mock tables do not answer as the document says")


def test_older_marks_and_untyped_answers_are_read() -> None:
    item = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "author": {"type": "object", "required": True, "properties": {"name": {"type": "string"}}},
        },
    }
    untyped = {"200": {"content": {"application/json": {"schema": {}}}}}
    body = {"requestBody": {"content": {"application/json": {"schema": item}}}, "responses": untyped}
    one = {"parameters": [{"name": "item_id", "in": "path", "required": True, "schema": {"type": "integer"}}]}
    paths = {
        "/items/": {"get": {"responses": untyped}, "post": body},
        "/items/{item_id}": {**one, "get": {"responses": untyped}},
    }
    found = MockWorld(json.dumps({"openapi": "3.0.1", "paths": paths}), "it.json")
    made, listed = found.play([call("post_items", title="Tea"), call("get_items")]).outcomes
    assert made.result == {"id": 107, "title": "Tea"}
    assert made.result in cast("list[Any]", listed.result)
    assert found.tools["get_items_item_id"].heading == "get_items_item_id(item_id: integer)"


def test_names_that_python_does_not_take_stay() -> None:
    fields = {
        "id": {"type": "string"},
        "from": {"type": "string"},
        "x-class": {"type": "string", "enum": ["slow", "fast"]},
    }
    body = {
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["from"], "properties": fields}}
        }
    }
    paths = {
        "/transfers": {"post": {"requestBody": body, "responses": {"201": body}}},
        "/transfers/{transfer-id}": {"get": {"responses": {"200": body}}},
    }
    text = json.dumps({"openapi": "3.0.3", "paths": paths})
    found = MockWorld(text, "it.json")
    assert [one.heading for one in found.tools.values()] == [
        'post_transfers("from", "x-class": "slow"|"fast"=...)',
        'get_transfers_transfer_id("transfer-id")',
    ]
    calls = [
        call("post_transfers", **{"from": "Ada", "x-class": "fast"}),
        call("get_transfers_transfer_id", **{"transfer-id": "TRA-107"}),
    ]
    for one in found.play(calls).outcomes:
        assert one.result == {"id": "TRA-107", "from": "Ada", "x-class": "fast"}


def test_an_operation_whose_success_has_no_content_does_not_answer_as_an_error() -> None:
    item = {"type": "object", "properties": {"id": {"type": "string"}, "name": {"type": "string"}}}
    error = {"type": "object", "properties": {"code": {"type": "string"}}}

    def of(schema: object) -> object:
        return {"content": {"application/json": {"schema": schema}}}

    paths = {
        "/tasks/{task_id}": {
            "get": {"responses": {"200": of(item)}},
            "delete": {"responses": {"204": {"description": "Nothing."}, "default": of(error)}},
        },
        "/tasks": {"get": {"responses": {"default": of({"type": "array", "items": item})}}},
    }
    text = json.dumps({"openapi": "3.0.3", "paths": paths})
    found = MockWorld(text, "it.json")
    calls = [call("delete_tasks_task_id", task_id="TAS-101"), call("get_tasks")]
    deleted, listed = found.play(calls).outcomes
    assert deleted.result == {"deleted": "TAS-101"}
    assert listed.result


@pytest.mark.long
@pytest.mark.parametrize("name", ["incidents", "music"])
def test_no_task_of_a_document_calls_a_tool_that_says_nothing(name: str, tmp_path: Path) -> None:
    source = next(one for one in APIS if one.stem == name)
    made = make(
        tmp_path / name, Wanted(origin=origin_of(str(source)), base=20, held_out=4), examined, Silent()
    )
    assert made.base == 20
    assert set(made.graph.recipes) == set(of(name).tools)
    env = Tools(ToolsConfig(), made.bundle.path)
    places = {
        tool: {
            told["name"] for told in (at(source, node) for node in one["parameters"]) if told["in"] == "path"
        }
        for tool, one in operations(source)
        if "requestBody" in one
    }
    for task in base_tasks(env, env.seeds(), seed=0).values():
        for one in calls_of(task.payload, "calls"):
            assert one.tool not in places or set(one.args) - places[one.tool], one
