"""Tools in a model's own form: what is imitated is what the template writes and what is read of a reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.chat.format import ChatFormat
from genenv.chat.reasoning import answer_of
from genenv.chat.tool_calls import message_of, normalize_tool_calls, read_calls
from genenv.errors import RolloutError, UsageError
from genenv.types import Message

TOOL = {
    "type": "function",
    "function": {
        "name": "pay",
        "description": "Pays.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    },
}
ALL = ["qwen", "thinking", "always", "llama", "mistral"]
PAY = ("pay", {"to": "Zoë"})
SINGLE = {"llama"}
"""Templates that take one call in a reply."""


def text_of(*calls: tuple[str, Any], words: str = "") -> str:
    blocks = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
    return "\n".join([*([words] if words else []), *(f"<tool_call>\n{b}\n</tool_call>" for b in blocks)])


@pytest.fixture(scope="module")
def chats(tiny: Any, templates: dict[str, str]) -> dict[str, ChatFormat]:
    return {name: ChatFormat(tiny.tokenizer(templates[name])) for name in ALL}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("<|im_end|>"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=3)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_a_known_solution_in_the_models_form_is_read_as_the_same_calls(
    chats: dict[str, ChatFormat], name: str, arguments: list[Any]
) -> None:
    chat = chats[name]
    solution = text_of(*(("pay", given) for given in arguments[: 1 if name in SINGLE else 3]))
    *ids, end = chat.encode_reply(solution, [TOOL])
    assert end == chat.end_id
    assert chat.end_id not in ids
    assert normalize_tool_calls(answer_of(chat.decode(ids), opened=chat.opens_thought)) == solution


@pytest.mark.parametrize("name", ALL)
def test_words_are_said_as_they_are(chats: dict[str, ChatFormat], name: str) -> None:
    chat = chats[name]
    ids = chat.encode_reply("I cannot do that.", [TOOL])
    assert normalize_tool_calls(answer_of(chat.decode(ids), opened=chat.opens_thought)) == "I cannot do that."


@pytest.mark.parametrize("name", ["qwen", "llama", "mistral"])
def test_turn_by_turn_the_ids_are_those_of_the_template_with_its_tools(
    chats: dict[str, ChatFormat], name: str
) -> None:
    chat = chats[name]
    asked = [Message(role="user", content="Pay Zoë.")]
    first, second = text_of(("pay", {"to": "Zoë"})), text_of(("pay", {"to": "</tool_response>"}))
    result = Message(role="tool", content='{"paid": 1}')
    ids = [*chat.render(asked, first=True, tools=[TOOL]), *chat.encode_reply(first, [TOOL])]
    ids += chat.render([result], first=False, tools=[TOOL], after=first)
    ids += chat.encode_reply(second, [TOOL])
    ids += chat.render([result], first=False, tools=[TOOL], after=second)
    told = {"role": "tool", "content": result.content, "tool_call_id": "call00000", "name": "pay"}
    whole = [{"role": "user", "content": "Pay Zoë."}, message_of(first), told, message_of(second), told]
    assert tuple(ids) == chat.render_whole(whole, [TOOL])[0]


def test_where_a_template_begins_a_thought_a_known_solution_ends_it_first(
    chats: dict[str, ChatFormat],
) -> None:
    chat = chats["always"]
    assert chat.opens_thought
    reply = chat.decode(chat.encode_reply(text_of(("pay", {"to": "Zoë"})), [TOOL]))
    assert reply == '\n</think>\n\n<tool_call>\n{"name": "pay", "arguments": {"to": "Zoë"}}\n</tool_call>'


def test_a_template_variable_switches_thoughts_off_in_all_prompts(
    tiny: Any, templates: dict[str, str]
) -> None:
    tokenizer = tiny.tokenizer(templates["thinking"])
    on, off = ChatFormat(tokenizer), ChatFormat(tokenizer, {"enable_thinking": False})
    asked = [Message(role="user", content="Pay.")]
    for first in (True, False):
        plain, closed = (on.render(asked, first=first), off.render(asked, first=first))
        assert off.decode(closed) == on.decode(plain) + "<think>\n\n</think>\n\n"
    assert off.render_whole([{"role": "user", "content": "Pay."}])[0] == off.render(asked, first=True)
    assert off.decode(off.encode_reply(text_of(("pay", {})), [TOOL])).startswith("<tool_call>")


def test_what_genenv_gives_a_template_itself_is_no_variable_of_it(tiny: Any) -> None:
    with pytest.raises(UsageError, match=r"policy\.chat_template_kwargs cannot set 'tools'"):
        ChatFormat(tiny.tokenizer(), {"tools": "x"})


@pytest.mark.parametrize(
    ("written", "instead"),
    [("", ""), ("<tool_call>\n{", "<call>{"), ("{{ t | tojson }}", "")],
    ids=["no tools", "calls in another form", "tools left out"],
)
def test_a_template_without_a_known_form_for_tools_is_refused_in_a_sentence(
    tiny: Any, templates: dict[str, str], written: str, instead: str
) -> None:
    template = templates["qwen"].replace(written, instead) if written else None
    chat = ChatFormat(tiny.tokenizer(*filter(None, [template])))
    with pytest.raises(UsageError, match="no form of its own for tools"):
        chat.render([Message(role="user", content="Pay.")], first=True, tools=[TOOL])
    with pytest.raises(UsageError, match="no form of its own for tools"):
        chat.encode_reply("x", [TOOL])


def test_more_calls_than_a_template_takes_fail_the_attempt_and_not_the_run(
    chats: dict[str, ChatFormat],
) -> None:
    with pytest.raises(RolloutError, match="one call at a time"):
        chats["llama"].encode_reply(text_of(("pay", {}), ("pay", {"to": "Zoë"})), [TOOL])


@pytest.mark.parametrize(
    ("written", "instead", "solution"),
    [
        ("m.tool_calls or []", "(m.tool_calls or [])[:1]", text_of(PAY, PAY)),
        (
            "{{ c.function.arguments | tojson }}",
            '{ {% for k, v in c.function.arguments.items() %}"{{ k }}": "{{ v }}"{% endfor %} }',
            text_of(("pay", {"to": '"Zoë"'})),
        ),
        (
            "{{ m.content }}{% for c",
            "{{ '' if m.tool_calls else m.content }}{% for c",
            text_of(PAY, words="Yes."),
        ),
    ],
    ids=["the first call only", "strings without escapes", "no words beside calls"],
)
def test_a_solution_that_a_template_changes_fails_the_attempt_and_not_the_run(
    tiny: Any, templates: dict[str, str], written: str, instead: str, solution: str
) -> None:
    assert written in templates["qwen"]
    chat = ChatFormat(tiny.tokenizer(templates["qwen"].replace(written, instead)))
    assert chat.encode_reply(text_of(PAY), [TOOL])
    with pytest.raises(RolloutError, match="otherwise than a model could say it"):
        chat.encode_reply(solution, [TOOL])


def test_a_broken_call_is_heard_as_a_call_that_is_right_nowhere() -> None:
    said = normalize_tool_calls('Fine. <tool_call>{"name": "pay", "arguments": </tool_call>')
    assert said.startswith('Fine.\n<tool_call>\n{"name": ""')


def test_values_of_arguments_choose_no_tool() -> None:
    quoted = {"x": "<function=g>x</function>"}
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': quoted})}</tool_call>"
    (call,) = read_calls(text)[1]
    assert (call.name, call.arguments) == ("f", quoted)
    open_ended = (
        "<tool_call><function=f>\n<parameter=x>\n5\n<parameter=y>\n6\n</parameter>\n</function></tool_call>"
    )
    (call,) = read_calls(open_ended)[1]
    assert (call.name, call.arguments) == ("f", {"x": 5, "y": 6})
