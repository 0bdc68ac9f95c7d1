"""JSON schemas of others: made plain, drawn from, and checked, whatever stands in them."""

from __future__ import annotations

import contextlib
import json
import random

from hypothesis import strategies as st

from fuzzing import Fuzz, json_values
from genenv.interop.imported.environment import random_call
from genenv.interop.imported.openenv import actions_of
from genenv.simulator.schema_sampling import sample_json
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.grammar import writable
from genenv.tools.worlds.base import Tool, usable
from genenv.untrusted.patterns import BadPattern, TookTooLong, draw, engine
from genenv.untrusted.schemas import Validator, plain_schema

PATTERNS = st.one_of(
    st.sampled_from(
        [
            *(
                "^(a+)+$",
                r"^([A-Za-z]+\s?)*$",
                "(a|aa)+$",
                "^(?=a)(a+)+b$",
                r"(\w*)*\1",
                r"^\p{L}+$",
                "(",
                "[^]",
                "",
            ),
            *(
                "a{99999}",
                "(a{9999}){9999}",
                "(?=x)((a{99}){99}){99}",
                "(?<a>x)",
                "[\\u0000-\\U0010ffff]{9}",
                "[[a]&&b]",
            ),
            *(
                "^" + "(" * 300 + ")" * 300,
                "a?" * 500 + "a" * 500,
                "(?:" * 90 + "a+" + ")+" * 90,
                "\\",
                "(?i)é",
                "(?P<a>b)(?P=a)",
            ),
        ]
    ),
    st.text(alphabet="ab\\dw[]()|*+?{}1,9^$.:=!<>p-&", max_size=24),
)
KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "pattern",
        "patternProperties",
        "format",
        "additionalProperties",
        "prefixItems",
        "contains",
        "default",
        "examples",
        "description",
        "$ref",
        "$defs",
        "$dynamicRef",
        "$id",
        "$schema",
        "$anchor",
        "definitions",
        "nullable",
        "dependentRequired",
        "dependentSchemas",
        "propertyNames",
        "unevaluatedProperties",
        "title",
    ]
)
REFERENCES = st.sampled_from(
    [
        "#",
        "#/",
        "#/$defs/a",
        "#/properties/a",
        "#a",
        "http://127.0.0.1:9/x",
        "file:///etc/passwd",
        "../a.json",
        "#/0",
    ]
)
WORDS = st.one_of(
    KEYWORDS,
    REFERENCES,
    PATTERNS,
    st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "a", "b"]),
)


def schemas() -> st.SearchStrategy[object]:
    """What could be schemas, and what is hardly one."""
    return st.recursive(
        json_values(texts=WORDS, most=6),
        lambda inner: st.one_of(
            st.dictionaries(KEYWORDS, inner, max_size=6),
            st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.dictionaries(WORDS, inner, max_size=4)},
                optional={
                    "required": st.lists(WORDS, max_size=3),
                    "additionalProperties": inner,
                    "$defs": inner,
                },
            ),
            st.fixed_dictionaries(
                {"type": st.just("string")},
                optional={"pattern": PATTERNS, "minLength": inner, "maxLength": inner, "format": WORDS},
            ),
            st.fixed_dictionaries(
                {}, optional={"$ref": REFERENCES, "anyOf": st.lists(inner, max_size=3), "a": inner}
            ),
            st.fixed_dictionaries(
                {"type": st.sampled_from(["integer", "number"])},
                optional={"minimum": inner, "maximum": inner, "multipleOf": inner, "exclusiveMinimum": inner},
            ),
        ),
        max_leaves=16,
    )


def test_a_schema_of_a_tool_is_used_or_left_out(fuzz: Fuzz) -> None:
    def read(drawn: tuple[object, object]) -> None:
        schema, value = drawn
        tools, left_out = usable({"look": lambda: Tool(name="look", parameters=schema)})  # type: ignore[arg-type]
        assert len(tools) + len(left_out) == 1
        for tool in tools.values():
            tool.heading  # noqa: B018 - is read
            rng = random.Random(0)
            args = {name: fresh(tool, name, rng) for name in tool.properties}
            tool.problem(args)
            tool.problem(dict.fromkeys(tool.properties, value))  # type: ignore[arg-type]
            for one in tool.properties.values():
                json.dumps(writable(tool.resolved(one)))

    fuzz(st.tuples(schemas(), json_values(texts=WORDS)), read)


def test_a_plain_schema_stays_as_it_is(fuzz: Fuzz) -> None:
    def read(schema: object) -> None:
        plain = plain_schema(schema)
        assert plain_schema(plain) == plain

    fuzz(schemas(), read)


def test_any_value_is_checked_against_any_schema(fuzz: Fuzz) -> None:
    fuzz(
        st.tuples(schemas(), json_values(texts=WORDS, most=40)),
        lambda drawn: Validator(plain_schema(drawn[0])).problem(drawn[1]),  # type: ignore[arg-type]
    )


def test_values_are_drawn_from_a_schema_or_refused(fuzz: Fuzz) -> None:
    def read(schema: object) -> None:
        drawn = sample_json(plain_schema(schema), random.Random(0))
        assert len(json.dumps(drawn)) < 10_000_000

    fuzz(schemas(), read)


def test_a_server_of_actions_can_describe_them_in_any_way(fuzz: Fuzz) -> None:
    def read(drawn: tuple[object, str]) -> None:
        schema, reply = drawn
        if isinstance(schema, dict):
            actions = actions_of(schema)
            actions.read(reply)
            actions.random_reply([], random.Random(0))
            random_call([{"function": {"name": "a", "parameters": schema}}], random.Random(0))

    fuzz(st.tuples(schemas(), st.text()), read)


def _used(pattern: str, text: str) -> None:
    found = engine(pattern)
    for one in (text, "a" * 60 + "!", "ergonomic wireless keyboard and mouse combination-set"):
        with contextlib.suppress(TookTooLong):
            found(one)
    assert found(draw(pattern, random.Random(0)))


def test_a_pattern_matches_and_is_drawn_from_within_limits(fuzz: Fuzz) -> None:
    def read(drawn: tuple[str, str]) -> None:
        pattern, text = drawn
        with contextlib.suppress(BadPattern):
            _used(pattern, text)

    fuzz(st.tuples(PATTERNS, st.text(max_size=40)), read)
