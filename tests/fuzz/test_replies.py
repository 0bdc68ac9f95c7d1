"""Replies of models: read as calls or as words, whatever they are."""

from __future__ import annotations

import json
from typing import cast

from hypothesis import strategies as st

from fuzzing import Fuzz, json_values
from genenv.chat.tool_calls import arguments_of, read_calls
from genenv.tools.calls import read_reply
from genenv.tools.settings import Style
from genenv.tools.worlds.base import Tool

TOOL = Tool(
    name="find",
    parameters={
        "type": "object",
        "properties": {
            "item": {"type": "string", "pattern": r"^([A-Za-z]+\s?)*$"},
            "tags": {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", 1]}},
            "size": {"anyOf": [{"type": "integer", "multipleOf": 0.1}, {"type": "null"}]},
        },
    },
)
PIECES = st.sampled_from(
    [
        "find(",
        ")",
        "item=",
        "tags=",
        "size=",
        ", ",
        '"ergonomic wireless keyboard and mouse combination-set"',
        "[",
        "]",
        "{",
        "}",
        "<tool_call>",
        "</tool_call>",
        "<function=find>",
        "<parameter=size>",
        "<parameter=tags>",
        "</parameter>",
        "<|channel|>commentary to=find<|message|>",
        '{"name": "find", "arguments": {',
        '"item": ',
        "\n",
        "```",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "1e999",
        "NaN",
        "9" * 4400,
        "-" * 900,
        "lambda: " * 90,
        "'",
        '"',
        "\\ud800",
        "\ud800",
        "\x00",
        "é",
        "f'{a}'",
        "1j",
        "...",
        "*a",
        "**b",
        "(" * 300,
        "[" * 3000,
        "not " * 500,
        "a." * 900,
        "Sorry, I cannot do that.",
    ]
)
REPLIES = st.one_of(st.lists(PIECES, max_size=20).map("".join), st.text(max_size=60))


def test_a_reply_is_calls_or_words_or_malformed(fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        for style in ("python", "json"):
            for call in read_reply(text, cast(Style, style), {"find": list(TOOL.properties)}).calls:
                json.dumps(call.json, allow_nan=False).encode()
                TOOL.problem(call.args)

    fuzz(REPLIES, read)


def test_calls_in_the_forms_of_models_are_read(fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        words, calls = read_calls(text, [TOOL.schema])
        assert isinstance(words, str)
        for call in calls:
            TOOL.problem(call.arguments)

    fuzz(REPLIES, read)


def test_arguments_of_any_kind_are_an_object_or_unreadable(fuzz: Fuzz) -> None:
    fuzz(json_values(most=30), lambda value: TOOL.problem(arguments_of(value)))
