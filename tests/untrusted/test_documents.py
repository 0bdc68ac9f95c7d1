"""Documents that others wrote: plain JSON of bounded size, or one sentence."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from fuzzing import limits
from genenv.config.tables import read_tables
from genenv.errors import UsageError
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.openapi.document import Document
from genenv.tools.worlds.openapi.loading import load_text
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.untrusted.documents import Unreadable, plain, read_document, read_json, read_toml, read_yaml

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11)]
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "it stands for over 1000000 values, which is more than is read"),
        (f"a: [*{'x' * 9000}]", r"it has an alias \*x{80} of nothing, or of what holds it$"),
        ("a: &a [*a]", r"it has an alias \*a of nothing, or of what holds it"),
        ("[" * 200_000, "it is nested too deeply to be read, or holds itself"),
        ("- " * 5000, "it is nested too deeply to be read, or holds itself"),
        ("? [a]\n: b", "it has a key that is no text"),
        ("a: 1\n---\nb: 2", "it holds 2 documents of YAML; keep one"),
        ("a: [", "it is not valid YAML: "),
        (f"s: &s {'x' * 9_000}\nb: [{', '.join(['*s'] * 9_000)}]", "it stands for over 64 MiB of text"),
    ],
)
def test_yaml_that_is_endless_or_none_is_one_sentence(text: str, why: str) -> None:
    with limits(4), pytest.raises(Unreadable, match=f"^{why}"):
        read_yaml(text, "it")


def test_merge_keys_merge_and_do_not_multiply() -> None:
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}", "it") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2, "z": 4},
    }
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 40)]
    with limits(), pytest.raises(Unreadable, match="it stands for over 1000000 values"):
        read_yaml("\n".join(lines), "it")


def test_yaml_is_read_as_its_version_1_2_has_it() -> None:
    text = (
        "no: 012\n200: 1e3\nday: 2026-01-05\nat: 18:30\nb: [yes, on, NO, True]\nn: ~\nbig: .inf\nquoted: '1'"
    )
    assert read_yaml(text, "it") == {
        "no": 12,
        "200": 1000.0,
        "day": "2026-01-05",
        "at": "18:30",
        "b": ["yes", "on", "NO", True],
        "n": None,
        "big": None,
        "quoted": "1",
    }
    assert read_yaml("tag: !!str 1\nown: !x y", "it") == {"tag": "1", "own": "y"}
    assert read_yaml("", "it") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "it is nested too deeply to be read, or holds itself"),
        ("[" * 150 + "]" * 150, "it is nested too deeply to be read, or holds itself"),
        ("[1,", "it is not valid JSON: "),
        (f"[{'9' * 5000}]", "it is not valid JSON: "),
        (f"[{'[],' * 2_000_000}[]]", "it stands for over 1000000 values"),
    ],
)
def test_json_that_is_endless_or_none_is_one_sentence(text: str, why: str) -> None:
    with limits(4), pytest.raises(Unreadable, match=f"^{why}"):
        read_json(text, "it")


def test_json_is_finite_and_can_be_encoded() -> None:
    assert read_json(
        '{"a\\ud800": [NaN, -Infinity, 1e999, 1.5, "\\ud800"], "b": ' + "9" * 400 + "}", "it"
    ) == {
        "a\ufffd": [None, None, None, 1.5, "\ufffd"],
        "b": None,
    }
    assert read_document("{a: 1}", "it") == {"a": 1}
    assert plain(("a", {1: b"x"}), "it") == ["a", {"1": "b'x'"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 20_000, "nested too deeply"),
        (f"{'a.' * 50_000}b = 1", "nested too deeply"),
        ("a = ", "is not valid TOML: "),
        ("a = " + "9" * 5000, "is not valid TOML: "),
    ],
)
def test_toml_that_is_endless_or_none_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    with limits(), pytest.raises(Unreadable, match=why):
        read_toml(text, "it")
    (tmp_path / "run.toml").write_text(text)
    with limits(), pytest.raises(UsageError, match=f"run.toml .*{why}.*; mend it or name another file"):
        read_tables(tmp_path / "run.toml")


def orders(**fields: object) -> str:
    """A document of orders whose records have one field more."""
    order = {"type": "object", "required": ["item"], "properties": {"id": {"type": "string"}, "item": fields}}
    content = {"content": {"application/json": {"schema": order}}}
    listed = {"content": {"application/json": {"schema": {"type": "array", "items": order}}}}
    named = {"name": "orderId", "in": "path", "required": True, "schema": {"type": "string"}}
    paths = {
        "/orders": {
            "get": {"responses": {"200": listed}},
            "post": {"requestBody": content, "responses": {"201": content}},
        },
        "/orders/{orderId}": {"get": {"parameters": [named], "responses": {"200": content}}},
    }
    return json.dumps({"openapi": "3.0.0", "paths": paths})


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "string", "pattern": r"^([A-Za-z]+\s?)*$", "example": "red kettle"},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "number", "minimum": -1e308, "maximum": 1e308, "multipleOf": -1},
        {"type": "number", "minimum": "NaN", "multipleOf": 1e-320},
        {"type": ["string"], "enum": 5, "allOf": 3, "required": True},
        {"type": "string", "example": "\ud800"},
    ],
)
def test_a_document_with_odd_or_hostile_fields_gives_tools_that_answer(odd: dict[str, object]) -> None:
    with limits():
        world = MockWorld(orders(**odd), "api.json")
        name = next(name for name in world.tools if name.startswith("post"))
        said = "ergonomic wireless keyboard and mouse combination-set"
        outcome = world.play([Call(tool=name, args={"item": said})]).outcomes[0]
        json.dumps([outcome.result, outcome.error, world.play([]).state], allow_nan=False).encode()
        if "pattern" in odd:
            assert "does not match" in str(outcome.error)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "string", "minLength": 1e9},
        {"type": "array", "minItems": 1e9, "items": {"type": "string"}},
        {"type": "number", "minimum": 2, "maximum": 1},
    ],
)
def test_a_document_whose_records_cannot_be_made_is_one_sentence(odd: dict[str, object]) -> None:
    with (
        limits(),
        pytest.raises(UsageError, match="post_orders: no value can be made that its parameters take"),
    ):
        MockWorld(orders(**odd), "api.json")


def test_what_has_another_type_than_the_standard_says_is_left_out() -> None:
    paths = {
        "/orders": 5,
        "/x": None,
        "/y": [1],
        "/z": {"get": 5, "post": {"responses": 7, "parameters": 3, "requestBody": []}},
    }
    with pytest.raises(UsageError, match=r"no operation of api.json reads or changes records"):
        MockWorld(json.dumps({"openapi": "3.0.0", "paths": paths}), "api.json")


def test_alternatives_that_are_no_objects_and_odd_places_are_read() -> None:
    for odd in (
        {"oneOf": [True, {"type": "string"}]},
        {"anyOf": ["string", [None]]},
        {"$ref": "#/paths/\u00b2"},
        {"$ref": f"#/tags/{'9' * 5000}"},
    ):
        with limits(), contextlib.suppress(UsageError):
            MockWorld(orders(**odd), "api.json")


def test_long_lists_of_values_are_joined_in_no_time() -> None:
    values = [f"value-{number}" for number in range(20_000)]
    with limits():
        found = Document(orders(), "api.json").schema(
            {"allOf": [{"type": "string", "enum": values}, {"enum": values[10:]}]}, writing=True
        )
    assert len(found["enum"]) == 19_990


def test_an_address_that_gives_no_document_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"http://localhost:abc/ cannot be read"):
        load_text("http://localhost:abc/")
