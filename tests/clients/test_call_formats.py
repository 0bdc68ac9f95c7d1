from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.chat.assistant import ToolCall
from genenv.chat.reasoning import answer_of
from genenv.chat.tool_calls import UNREADABLE, arguments_of, read_calls
from quickly import within

F = ToolCall(name="f", arguments={"a": 1})
G = ToolCall(name="g", arguments={})


@pytest.mark.parametrize(
    ("text", "words", "calls"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", (F,)),
        ('Sure.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "Sure.", (F,)),
        ('<tool_call>{"name":"f","arguments":{"a":1}}</tool_call><tool_call>{"name":"g"}', "", (F, G)),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", (F,)),
        ('{"name": "f", "parameters": {"a": 1}}', "", (F,)),
        ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", (F,)),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', "", (F, G)),
        ('Let me see.[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "Let me see.", (F,)),
        ("The token [TOOL_CALLS] begins calls.", "The token [TOOL_CALLS] begins calls.", ()),
        ('{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "", (F, G)),
        ('{"name": "f", "parameters": {"a": 1}}; done', '{"name": "f", "parameters": {"a": 1}}; done', ()),
        ('{"answer": 4}; {"answer": 5}', '{"answer": 4}; {"answer": 5}', ()),
        ('{"name": "g", "parameters": null}', "", (G,)),
        ('<tool_call>{"name": "g", "arguments": null}</tool_call>', "", (G,)),
        ('<tool_call>{"name": "g", "arguments": ""}</tool_call>', "", (G,)),
        ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', "", (F,)),
        ("There is no such tool.", "There is no such tool.", ()),
        ('{"answer": 4}', '{"answer": 4}', ()),
        ('{"name": "Bob"}', '{"name": "Bob"}', ()),
        ('{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": [1]}', ()),
        (
            '{"name": "f", "arguments": {"a": "\\ud800"}}',
            "",
            (ToolCall(name="f", arguments={"a": "\ufffd"}),),
        ),
    ],
)
def test_calls_are_read_as_chat_templates_ask_for_them(
    text: str, words: str, calls: tuple[ToolCall, ...]
) -> None:
    assert read_calls(text) == (words, calls)


TEXT = ToolCall(name="f", arguments={"a": "1"})
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
XML = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"
DEEPSEEK = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="{}">1</｜DSML｜parameter>'
)
FORMATS = {
    "Qwen 3.5": (f"Sure.<tool_call>\n{XML}\n</tool_call>", F),
    "Seed": (f"Sure.<seed:tool_call>{XML}</seed:tool_call>", F),
    "GLM": ("Sure.<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", F),
    "GLM, no arguments": ("Sure.<tool_call>g</tool_call>", G),
    "DeepSeek R1": (
        "Sure."
        + DEEPSEEK.format(
            '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
        ),
        F,
    ),
    "DeepSeek V3.1": (
        "Sure." + DEEPSEEK.format('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'),
        F,
    ),
    "DeepSeek V3.2, no text": (
        f"Sure.{DSML.format('false')}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        F,
    ),
    "DeepSeek V3.2, a text": (
        f"Sure.{DSML.format('true')}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        TEXT,
    ),
    "MiniMax": (
        'Sure.<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        F,
    ),
    "Gemma 4": ("Sure.<|tool_call>call:f{a:1}<tool_call|>", F),
    "Gemma 4, a text": (
        'Sure.<|tool_call>call:f{a:<|"|>{b: "c", d:1}<|"|>}<tool_call|>',
        ToolCall(name="f", arguments={"a": '{b: "c", d:1}'}),
    ),
    "gpt-oss": (
        "Sure.<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"a": 1}<|call|>',
        F,
    ),
    "gpt-oss, as its template has it": (
        'Sure.<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        F,
    ),
    "gpt-oss, no content type": (
        'Sure.<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
        F,
    ),
    "gpt-oss, code": ('Sure.<|channel|>commentary to=functions.f code<|message|>{"a": 1}<|call|>', F),
    "gpt-oss, among thoughts": (
        'Sure.<|channel|>analysis to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        F,
    ),
    "gpt-oss, the recipient first": (
        'Sure.<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a": 1}<|call|>',
        F,
    ),
    "gpt-oss, a tool of its own": ('Sure.<|channel|>commentary to=f<|message|>{"a": 1}<|call|>', F),
    "Mistral": ('Sure.[TOOL_CALLS]f[ARGS]{"a": 1}', F),
    "LFM 2": ("Sure.<|tool_call_start|>[f(a=1)]<|tool_call_end|>", F),
    "Llama 4": ("Sure.<|python_start|>[f(a=1)]<|python_end|>", F),
}


@pytest.mark.parametrize("name", FORMATS)
def test_models_call_in_forms_of_their_own(name: str) -> None:
    text, call = FORMATS[name]
    assert read_calls(text) == ("Sure.", (call,))
    twice = text.removeprefix("Sure.") * 2
    assert read_calls(twice) == ("", (call, call))


@pytest.mark.parametrize("name", ["Qwen 3.5", "Seed", "GLM", "MiniMax"])
def test_a_tool_says_what_is_a_text_where_the_format_does_not(name: str) -> None:
    assert read_calls(FORMATS[name][0], [TOOL])[1] == (TEXT,)


TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
READINGS = [
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "false", False),
    ({"type": ["integer", "null"]}, "None", None),
    ({"type": "integer", "minimum": 5}, "3", 3),
    (TEXT_OR_NULL, "12345", "12345"),
    (TEXT_OR_NULL, "None", None),
    (TEXT_OR_NULL, "null", None),
    ({"type": ["string", "null"]}, "[1]", "[1]"),
    ({"$ref": "#/$defs/code"}, "12345", "12345"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, "auto"]}, "1", 1),
    ({"type": "string", "pattern": "^a"}, "12345", "12345"),
    ({"type": "string"}, "None", "None"),
    ({"type": "string"}, '"12"', '"12"'),
    ({"type": "array", "items": {"type": "string"}}, "['a', None]", ["a", None]),
    ({"type": "object"}, "{'a': True}", {"a": True}),
    ({"type": "integer"}, "many", "many"),
    ({}, "12", 12),
    ({}, "True", True),
    ({}, "(555) 12", "(555) 12"),
]


@pytest.mark.parametrize(
    "form",
    [
        "<tool_call><function=f><parameter=a>\n{}\n</parameter></function></tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value></tool_call>",
        '<invoke name="f"><parameter name="a">{}</parameter></invoke>',
    ],
    ids=["Qwen 3.5", "GLM", "MiniMax"],
)
@pytest.mark.parametrize(("schema", "text", "value"), READINGS)
def test_a_value_without_a_type_is_what_the_schema_of_its_parameter_allows(
    form: str, schema: Any, text: str, value: Any
) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": {"code": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = ToolCall(name="f", arguments={"a": value})
    assert read_calls(form.replace("{}", text), [tool]) == ("", (call,))


def test_gemma_may_write_the_constants_of_python() -> None:
    text = '<|tool_call>call:f{a:None,None:[1,True,None],c:<|"|>x,None<|"|>}<tool_call|>'
    arguments = {"a": None, "None": [1, True, None], "c": "x,None"}
    assert read_calls(text) == ("", (ToolCall(name="f", arguments=arguments),))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(a=1), g()]", (F, G)),
        ("[m.f(a=[1, {'b': None}])]", (ToolCall(name="m.f", arguments={"a": [1, {"b": None}]}),)),
        ("[f(1)]", (ToolCall(name="f", arguments=UNREADABLE),)),
        ("[f(a=g())]", (ToolCall(name="f", arguments=UNREADABLE),)),
        ("[f(a=__import__('os').getcwd())]", (ToolCall(name="f", arguments=UNREADABLE),)),
        ("[1, 2]", ()),
        ("[f(a=1)] it is", ()),
        ("[" * 100_000, ()),
    ],
)
def test_calls_as_python_writes_them_are_parsed_and_never_run(text: str, calls: tuple[ToolCall, ...]) -> None:
    assert read_calls(text) == (("" if calls else text), calls)


@pytest.mark.parametrize(
    "piece",
    [
        '<invoke name="f"><parameter name="a">',
        "<tool_call><function=f><parameter=a>",
        "<arg_key>a</arg_key><arg_value>",
        '<|tool_call>call:f{a:<|"|>',
        " to=functions.f<|channel|>commentary",
        "<|channel|>commentary to=functions.f <|constrain|>",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS][{",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        "<|python_start|>[f(",
    ],
)
def test_calls_that_are_begun_again_and_again_take_no_time(piece: str) -> None:
    for text in (piece * (150_000 // len(piece)), "<tool_call>" + piece * (150_000 // len(piece))):
        with within(2.0):
            read_calls(text)


@pytest.mark.parametrize(
    "block",
    [
        "f(a=1)",
        "{oops}",
        '{"name": "f", "arguments": 7}',
        '{"name": 7}',
        "",
        "[[[[",
        '{"a":' * 70 + "1" + "}" * 70,
    ],
)
def test_what_is_in_the_place_of_a_call_is_a_call_that_is_right_nowhere(block: str) -> None:
    good = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    words, calls = read_calls(f"{good}<tool_call>{block}</tool_call>")
    assert words == ""
    assert calls[0] == F
    assert len(calls) == 2
    assert calls[1].name == "" or calls[1].arguments == UNREADABLE or "a" not in calls[1].arguments


@pytest.mark.parametrize(("depth", "fine"), [(60, True), (70, False), (20_000, False)])
def test_arguments_are_read_up_to_a_depth_whatever_their_strings_hold(depth: int, fine: bool) -> None:
    nested = "[" * depth + "]" * depth
    text = f'{{"s": "{"]" * 5_000}", "d": {nested}}}'
    assert (arguments_of(text) != UNREADABLE) is fine
    assert arguments_of({"s": "[" * 100}) == {"s": "[" * 100}


@pytest.mark.long
@given(st.text(alphabet=st.sampled_from('<tool_call>{"name":/}[]a1,\\ \ud800')))
def test_whatever_a_model_writes_can_be_read(text: str) -> None:
    read_calls(text)
    answer_of(text)
    answer_of(text, opened=True, finished=False)


@pytest.mark.parametrize(
    "text", ["[" * 10**6, "<tool_call>" * 10**4, "<tool_call>" + "{" * 10**5, '{"a":' * 10**5]
)
def test_bombs_are_words_and_take_no_time(text: str) -> None:
    with within(1):
        assert all(call.name == "" for call in read_calls(text)[1])
