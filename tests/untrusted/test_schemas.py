"""Schemas that others wrote: they refer to nothing outside, and no value takes long to be checked."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import EXAMPLES, call
from fuzzing import limits
from genenv.errors import UsageError
from genenv.interop.imported.openenv import actions_of
from genenv.simulator.schema_sampling import sample_json
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.grammar import writable
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.recorded import RecordedTool, RecordedWorld, Recording
from genenv.types import Json
from genenv.untrusted.schemas import BadSchema, Validator, fits_keyword, plain_schema

SENTENCE = "ergonomic wireless keyboard and mouse combination-set"


@pytest.fixture
def web() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was asked for there."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *_: object) -> None:  # type: ignore[override]
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long
def test_a_tool_whose_schema_refers_elsewhere_is_left_out_and_nothing_is_asked(
    web: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = web
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "string"}')
    (tmp_path / "files").mkdir()
    command = (sys.executable, "-S", str(EXAMPLES / "schema_server.py"), address, str(secret))
    world = McpWorld(tmp_path / "files", McpSource(command=command, fresh=False), call_s=20)
    try:
        assert list(world.tools) == ["of_itself"]
        assert world.left_out["of_the_web"] == (
            "the schema of its arguments cannot be used: it refers to "
            f"'{address}/id.json', and only what a schema holds itself is read"
        )
        assert "file://" in world.left_out["of_a_file"]
        assert "other.json#id" in world.left_out["of_an_anchor"]
        tool = world.tools["of_itself"]
        assert tool.problem({"id": "red kettle", "tree": {"left": {"left": 1}}}) is None
        with limits():
            assert "does not match" in str(tool.problem({"id": SENTENCE}))
            found = world.play([call("of_itself", id=SENTENCE), call("of_itself", id="red")]).outcomes
        assert "Invalid structured content" in str(found[0].error)
        assert found[1].result == {"said": "red"}
    finally:
        world.close()
    assert asked == []


def test_a_schema_that_was_recorded_refers_to_nothing_outside_either(web: tuple[str, list[str]]) -> None:
    address, asked = web
    tools = [
        RecordedTool(name=name, parameters={"properties": {"id": schema}})
        for name, schema in {"bad": {"$ref": f"{address}/a"}, "good": {"type": "string"}}.items()
    ]
    world = RecordedWorld(Recording(tools=tuple(tools), left_out={"other": "why"}))
    assert list(world.tools) == ["good"]
    assert list(world.left_out) == ["other", "bad"]
    with pytest.raises(UsageError, match="schema of the server's actions cannot be used: it refers to"):
        actions_of({"properties": {"a": {"$ref": f"{address}/a"}}})
    assert asked == []


def test_references_are_replaced_by_what_they_name() -> None:
    schema = {
        "$defs": {
            "size": {"type": "integer", "minimum": 1},
            "a/b": {"type": "string"},
            "c": {"$anchor": "there"},
        },
        "definitions": {"color": {"enum": ["red", "blue"], "description": "Of it."}},
        "$id": "https://example.com/order.json",
        "properties": {
            "size": {"$ref": "#/$defs/size", "default": 3},
            "text": {"$ref": "#/$defs/a~1b"},
            "color": {"$ref": "https://example.com/order.json#/definitions/color"},
            "both": {"$ref": "#/$defs/size", "minimum": 5},
            "there": {"$ref": "#there", "type": "null"},
        },
    }
    assert plain_schema(schema)["properties"] == {
        "size": {"type": "integer", "minimum": 1, "default": 3},
        "text": {"type": "string"},
        "color": {"enum": ["red", "blue"], "description": "Of it."},
        "both": {"minimum": 5, "allOf": [{"type": "integer", "minimum": 1}]},
        "there": {"type": "null"},
    }


@pytest.mark.parametrize(
    ("own", "other", "value"),
    [
        ({"properties": {"a": {}}}, {"additionalProperties": False}, {"a": 1}),
        ({"additionalProperties": False}, {"properties": {"a": {}}}, {"a": 1}),
        ({"patternProperties": {"^a": {}}}, {"additionalProperties": {"type": "string"}}, {"a": 1}),
        ({"prefixItems": [{}]}, {"items": {"type": "string"}}, [1]),
        ({"minContains": 0}, {"contains": {"const": 1}}, [2]),
    ],
)
def test_a_schema_beside_a_reference_does_not_change_what_the_other_means(
    own: dict[str, Any], other: dict[str, Any], value: Any
) -> None:
    plain = plain_schema({**own, "$ref": "#/$defs/other", "$defs": {"other": other}})
    assert plain == {**own, "allOf": [other]}
    assert Validator(plain).problem(value) is not None


def test_then_beside_a_reference_to_an_if_is_not_held_to() -> None:
    other = {"if": {"type": "integer"}}
    schema = {"then": {"minimum": 5}, "$ref": "#/$defs/other", "$defs": {"other": other}}
    assert Validator(plain_schema(schema)).problem(1) is None


def test_the_dependencies_of_earlier_drafts_are_held_to() -> None:
    schema = {
        "dependencies": {"a": ["b"], "c": {"required": ["d"]}, "e": False},
        "dependentRequired": {"f": ["g"]},
    }
    plain = plain_schema(schema)
    assert plain == {
        "dependentRequired": {"a": ["b"], "f": ["g"]},
        "dependentSchemas": {"c": {"required": ["d"]}, "e": {"not": {}}},
    }
    validator = Validator(plain)
    for wrong in ({"a": 1}, {"c": 1}, {"e": 1}, {"f": 1}):
        assert validator.problem(cast(Json, wrong)) is not None
    assert validator.problem({"a": 1, "b": 2, "c": 3, "d": 4}) is None
    assert plain_schema({"dependencies": 3}) == {}


@pytest.mark.parametrize("address", ["https://example.com/a.json#", "https://example.com/a.json"])
def test_a_reference_to_itself_is_known_whether_its_address_ends_with_a_hash_or_not(address: str) -> None:
    schema = {"$defs": {"n": {"type": "null"}}, "$id": address}
    for reference in ("https://example.com/a.json#/$defs/n", "#/$defs/n"):
        assert plain_schema({**schema, "items": {"$ref": reference}}) == {"items": {"type": "null"}}
    whole = plain_schema({"$id": address, "type": "array", "items": {"$ref": "https://example.com/a.json"}})
    assert whole["items"] == {"type": "array", "items": {}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (3, "it is no object"),
        ({"$ref": "#/a/b"}, "it refers to '#/a/b', which it does not hold"),
        ({"$ref": "#nowhere"}, "it refers to '#nowhere', which it does not hold"),
        (
            {"items": {"$ref": "other.json"}},
            "it refers to 'other.json', and only what a schema holds itself is read",
        ),
    ],
)
def test_what_is_no_schema_or_is_not_whole_is_said(schema: object, why: str) -> None:
    with pytest.raises(BadSchema, match=f"^{why}"):
        plain_schema(schema)


def test_schemas_that_hold_themselves_or_multiply_are_cut() -> None:
    with limits():
        tree = plain_schema({"type": "object", "properties": {"next": {"$ref": "#"}}})
        assert tree == {
            "type": "object",
            "properties": {"next": {"type": "object", "properties": {"next": {}}}},
        }
        assert plain_schema({"$ref": "#"}) == {}
        doubling: dict[str, Any] = {
            f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(20)
        }
        laughs = plain_schema({"$ref": "#/$defs/d0", "$defs": {**doubling, "d20": {"type": "null"}}})
        assert len(json.dumps(laughs)) < 1_000_000
        Validator(laughs).problem("x")
        deep: dict[str, Any] = {}
        for _ in range(90):
            deep = {"items": deep}
        assert json.dumps(plain_schema(deep)).count("items") < 30


def test_what_json_schema_does_not_know_is_not_held_to() -> None:
    odd = {
        "type": "strng",
        "required": True,
        "minimum": float("nan"),
        "maxLength": "3",
        "enum": [],
        "pattern": "(",
        "multipleOf": 0,
        "items": [{"type": "string"}, False],
        "properties": {"a": True, "b": False, "c": 5},
    }
    assert plain_schema(odd) == {
        "prefixItems": [{"type": "string"}, {"not": {}}],
        "items": {},
        "properties": {"a": {}, "b": {"not": {}}, "c": {}},
    }
    assert plain_schema({"type": "string", "nullable": True, "minimum": 1, "exclusiveMinimum": True}) == {
        "type": ["string", "null"],
        "exclusiveMinimum": 1,
    }
    assert not fits_keyword("x-own", 1)


def test_an_ordinary_value_is_checked_in_no_time_whatever_the_pattern() -> None:
    tool = Tool(name="order", parameters={"properties": {"item": {"pattern": r"^([A-Za-z]+\s?)*$"}}})
    with limits():
        assert tool.problem({"item": SENTENCE}) == (
            f"item: '{SENTENCE}' does not match '^([A-Za-z]+\\\\s?)*$'."
        )
        assert tool.problem({"item": "red kettle"}) is None
    named = {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False}
    with limits():
        assert Validator(plain_schema(named)).problem({"a" * 60: 1}) is None
        assert Validator(plain_schema(named)).problem({"a" * 60 + "!": 1}) is not None
        assert Validator(plain_schema(named)).problem({"aa": "1"}) == ("aa", "'1' is not of type 'integer'")


@pytest.mark.long
def test_a_value_that_takes_too_many_steps_is_refused() -> None:
    schema = plain_schema({"items": {"anyOf": [{"const": n} for n in range(2000)]}})
    with limits(20):
        assert Validator(schema).problem([-1] * 5000) == (
            "",
            "it is too large to be checked against what is asked for",
        )
        assert Validator(plain_schema({"uniqueItems": True})).problem([{"a": n} for n in range(5000)]) is None
        assert Validator(plain_schema({"uniqueItems": True})).problem([1, 1.0]) is not None


def test_huge_bounds_are_no_huge_work() -> None:
    with limits():
        for odd in ({"minLength": 10**9, "type": "string"}, {"minItems": 10**9, "type": "array"}):
            tool = Tool(name="note", parameters={"properties": {"text": odd}})
            drawn = fresh(tool, "text", random.Random(0))
            assert len(drawn) < 5000  # type: ignore[arg-type]
            assert tool.problem({"text": drawn}) is not None
        with pytest.raises(UsageError, match="endless or huge"):
            sample_json({"type": "array", "minItems": 10**9, "items": {"type": "null"}}, random.Random(0))
        with pytest.raises(UsageError, match="endless or huge"):
            sample_json({"$ref": "#"}, random.Random(0))


def test_a_grammar_has_only_what_grammars_can_hold_to() -> None:
    odd = {
        "type": "array",
        "description": "Of it.",
        "minItems": 3,
        "maxItems": 1,
        "items": {"type": "string", "pattern": r"^(?=a)\p{L}+$", "minLength": 2},
    }
    assert writable(plain_schema(odd)) == {"type": "array", "items": {"type": "string", "minLength": 2}}
    kept = {"type": "integer", "maximum": -5, "pattern": r"^\d{3}$"}
    assert writable(kept) == kept


@pytest.mark.parametrize("value", [10**400, float("inf"), [10**400], float("nan")])
def test_numbers_that_no_float_holds_are_refused(value: object) -> None:
    for schema in ({"multipleOf": 0.01}, {"items": {"multipleOf": 0.01}}):
        found = Validator(plain_schema(schema)).problem(cast(Json, value))
        assert found is None or found == ("", "it holds a number that is too large to be checked")


@pytest.mark.parametrize(
    ("step", "multiples", "others"),
    [
        (0.01, [19.99, 0.07, 4.35, 5, 0, -0.07, 1e300, 10**400], [0.075, 19.991, 1e-320, float("inf")]),
        (0.1, [3 * 0.1, 0.3], [0.35, 0.3000001]),
        (1e-320, [0.0, 3e-320], []),
        (3, [9, 9.0, 3 * 10**30], [10, 9.5, 10**30, float("nan"), float("inf")]),
        (1.0, [2**60], [2**51 + 0.5]),
    ],
)
def test_multiples_are_those_of_the_numbers_as_written(
    step: float, multiples: list[float], others: list[float]
) -> None:
    checked = Validator(plain_schema({"multipleOf": step}))
    assert [value for value in multiples if checked.problem(value)] == []
    assert [value for value in others if not checked.problem(value)] == []


def test_a_number_that_no_message_can_show_is_refused() -> None:
    assert Validator(plain_schema({"type": "string"})).problem(10**5000) is not None


def test_long_values_in_many_messages_take_no_time() -> None:
    numbers = cast(Json, list(range(100_000)))
    with limits():
        schema = plain_schema({"allOf": [{"maxItems": number} for number in range(1000)]})
        assert Validator(schema).problem(numbers) == (
            "",
            "it is too large to be checked against what is asked for",
        )
        names = cast(Json, {f"name-{number}": 1 for number in range(20_000)})
        schema = plain_schema({"patternProperties": {f"x{number}": {} for number in range(300)}})
        assert Validator(schema).problem(names) is not None


def test_numbers_are_drawn_below_zero_too_and_none_where_none_fits() -> None:
    rng = random.Random(1)
    assert {sample_json({"type": "integer", "maximum": -3, "minimum": -4}, rng) for _ in range(20)} == {
        -3,
        -4,
    }
    assert cast(int, sample_json({"type": "integer", "maximum": -1}, rng)) <= -1
    assert sample_json({"type": "integer", "minimum": 0.5, "maximum": 1.5}, rng) == 1
    for bounds in ({"minimum": 2, "maximum": 1}, {"minimum": 0.2, "maximum": 0.8}):
        with pytest.raises(UsageError, match="allows nothing"):
            sample_json({"type": "integer", **bounds}, rng)
