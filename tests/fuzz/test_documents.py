"""Documents of others: JSON, YAML, TOML, OpenAPI documents, files of a bundle."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzzing import Fuzz, json_values
from genenv.config.run import load_config
from genenv.config.tables import apply_override
from genenv.environments import FOLDER_MARK as MARK
from genenv.tools.bundle import Bundle
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.openapi.document import Document, operations
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.service import Requests
from genenv.tools.worlds.recorded import FILE, Recording
from genenv.untrusted.documents import read_document, read_json, read_toml, read_yaml

REFERENCES = st.builds(
    lambda reference: {"$ref": reference},
    st.sampled_from(
        ["#", "#/components/schemas/A", "#/components/schemas/B", "#/paths", "http://127.0.0.1:9/a", ""]
    ),
)
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null", "file"])
NAMES = st.sampled_from(["id", "name", "orderId", "status", "qty", "", "a b", "é", "__class__"])
ODD = json_values(texts=NAMES, most=4)


def loose(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """As a rule what belongs in a place, sometimes something else."""
    return st.integers(0, 40).flatmap(lambda number: ODD if number == 0 else strategy)


def described() -> st.SearchStrategy[object]:
    """Schemas of OpenAPI, nearly."""
    leaf = st.fixed_dictionaries(
        {"type": loose(KINDS)},
        optional={
            "minimum": ODD,
            "maximum": ODD,
            "minLength": ODD,
            "multipleOf": ODD,
            "pattern": st.sampled_from(["^(a+)+$", "[", r"^\\d+$", r"^([A-Za-z]+\\s?)*$"]),
            "enum": loose(st.lists(ODD, max_size=3)),
            "format": st.sampled_from(["date-time", "uuid", "date"]),
            "example": ODD,
            "examples": ODD,
            "readOnly": ODD,
            "nullable": ODD,
        },
    )
    return st.recursive(
        st.one_of(leaf, REFERENCES, ODD),
        lambda inner: st.one_of(
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": loose(st.dictionaries(NAMES, inner, max_size=4))},
                optional={"required": loose(st.lists(NAMES, max_size=2))},
            ),
            st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"minItems": ODD}),
            st.fixed_dictionaries({"allOf": loose(st.lists(inner, max_size=3))}, optional={"oneOf": ODD}),
            st.fixed_dictionaries({"anyOf": loose(st.lists(inner, max_size=3))}),
        ),
        max_leaves=8,
    )


def documents() -> st.SearchStrategy[object]:
    """OpenAPI documents, nearly."""
    content = loose(
        st.fixed_dictionaries({"application/json": loose(st.fixed_dictionaries({"schema": described()}))})
    )
    parameter = st.fixed_dictionaries(
        {"name": loose(NAMES), "in": loose(st.sampled_from(["query", "path", "header", "cookie"]))},
        optional={"schema": described(), "content": content, "required": ODD, "example": ODD, "style": ODD},
    )
    parameters = loose(st.lists(loose(st.one_of(parameter, REFERENCES)), max_size=3))
    operation = st.fixed_dictionaries(
        {
            "responses": loose(
                st.dictionaries(
                    st.sampled_from(["200", "201", "default", "x"]),
                    loose(st.fixed_dictionaries({"content": content})),
                    max_size=2,
                )
            )
        },
        optional={
            "operationId": ODD,
            "summary": ODD,
            "parameters": parameters,
            "requestBody": loose(st.fixed_dictionaries({"content": content})),
        },
    )
    methods = st.sampled_from(["get", "post", "put", "patch", "delete"])
    item = st.dictionaries(methods, loose(operation), min_size=1, max_size=4)
    paths = st.sampled_from(
        [
            "/orders",
            "/orders/{orderId}",
            "/orders/{orderId}/items",
            "/orders/{id}/cancel",
            "/",
            "x",
            "/{}",
            "//",
            "/é",
        ]
    )
    return st.fixed_dictionaries(
        {
            "openapi": st.just("3.1.0"),
            "paths": loose(st.dictionaries(paths, loose(item), min_size=2, max_size=4)),
        },
        optional={
            "components": loose(
                st.fixed_dictionaries(
                    {
                        "schemas": loose(
                            st.fixed_dictionaries({}, optional={"A": described(), "B": described()})
                        )
                    }
                )
            )
        },
    )


@pytest.mark.long
def test_an_openapi_document_gives_tools_or_a_sentence(fuzz: Fuzz) -> None:
    def read(document: object) -> None:
        text = json.dumps(document)
        for one in operations(Document(text, "api.json")):
            made = Requests(one)
            if made.problem is None:
                made.tool  # noqa: B018 - is made
                made.shorter  # noqa: B018 - is made
        world = MockWorld(text, "api.json")
        for name, tool in world.tools.items():
            world.play([Call(tool=name, args=dict.fromkeys(tool.required, "x"))], watch=True)
            world.play([Call(tool=name, args={})])

    fuzz(documents(), read)


def test_any_text_is_a_document_or_a_sentence(fuzz: Fuzz) -> None:
    pieces = st.sampled_from(
        [
            "&a ",
            "*a",
            "<<: *a",
            "- ",
            "? ",
            ": ",
            "\n",
            "  ",
            "[",
            "]",
            "{",
            "}",
            ",",
            "a",
            "!!binary ",
            "!x ",
            "|\n",
            "'",
            '"',
            "%YAML 1.2\n",
            "---\n",
            "...\n",
            "#",
            "@",
            "`",
            "\t",
            "0x1",
            "1e999",
            ".nan",
            "1:30",
            "\x00",
            "\ud800",
            "2026-01-05",
            "no",
            "~",
            "é",
            "9" * 5000,
            "1_0",
            "\\ud800",
            "NaN",
            "-Infinity",
            "- " * 200,
            "[" * 300,
        ]
    )
    texts = st.one_of(st.lists(pieces, max_size=24).map("".join), st.text(max_size=60))

    def read(text: str) -> None:
        json.dumps(read_document(text, "it"), allow_nan=False).encode()

    fuzz(texts, read)


def test_what_json_and_yaml_can_say_is_read_as_it_is(fuzz: Fuzz) -> None:
    def read(value: object) -> None:
        text = json.dumps(value)
        found = read_json(text, "it")
        json.dumps(found, allow_nan=False).encode()
        read_yaml(text, "it")

    fuzz(json_values(most=40), read)


def test_any_toml_is_read_or_refused(fuzz: Fuzz, tmp_path_factory: object) -> None:
    pieces = st.sampled_from(
        [
            "a",
            "b",
            ".",
            " = ",
            "[",
            "]",
            "\n",
            "{",
            "}",
            ",",
            '"',
            "'",
            '"""',
            "1",
            "nan",
            "inf",
            "2026-01-05",
            "#",
            "true",
            "a." * 200,
            "[" * 2000,
            "\x00",
            "é",
            "agent",
            "curriculum",
            "alpha",
            "seed",
            "model",
            "-",
        ]
    )
    texts = st.one_of(
        st.lists(pieces, max_size=20).map("".join), st.text(alphabet=string.printable, max_size=40)
    )
    fuzz(texts, lambda text: read_toml(text, "run.toml"))


def test_any_setting_on_the_command_line_is_taken_or_refused(fuzz: Fuzz) -> None:
    pieces = st.sampled_from(
        ["curriculum", "alpha", ".", "=", "0.5", "[", "{", "}", "a" * 300, '"', "agent", "nan", "\n"]
    )
    texts = st.lists(pieces, max_size=8).map("".join)

    def read(text: str) -> None:
        apply_override({}, text)
        load_config(None, [text])

    fuzz(texts, read)


def test_files_of_a_bundle_are_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    lines = st.sampled_from(
        [
            "version = 1",
            "name = 'a'",
            "[source]",
            "kind = 'openapi'",
            "file = 'a.json'",
            "leave_out = 3",
            "[state]",
            "volatile = ['a']",
            "a.b = {c = 1}",
            "quoted = nan",
            "[together]",
            "[starts]",
            "tool = 'a'",
            "training = 1e9",
        ]
    )

    def read(drawn: tuple[list[str], object]) -> None:
        told, recorded = drawn
        (tmp_path / MARK).write_text("\n".join(told), encoding="utf-8")
        (tmp_path / FILE).write_text(json.dumps(recorded), encoding="utf-8")
        (tmp_path / "graph.json").write_text(json.dumps(recorded), encoding="utf-8")
        (tmp_path / "wordings.toml").write_text("\n".join(told), encoding="utf-8")
        for read_one in (
            lambda: Recording.load(tmp_path),
            lambda: Bundle.open(tmp_path),
            lambda: Bundle.open(tmp_path).graph,
            lambda: Bundle.open(tmp_path).wordings,
        ):
            read_one()

    recordings = st.fixed_dictionaries(
        {"tools": st.lists(st.fixed_dictionaries({"name": NAMES, "parameters": ODD}), max_size=2)},
        optional={"answers": ODD, "left_out": ODD, "links": ODD, "recipes": ODD},
    )
    fuzz(st.tuples(st.lists(lines, max_size=8), recordings), read)
