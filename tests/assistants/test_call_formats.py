from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.assistants.base import ToolCall
from genenv.assistants.call_formats import UNREADABLE, arguments_of, read_calls
from genenv.backends.chat.reasoning import answer_of
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
