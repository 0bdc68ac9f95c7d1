import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.tools import calls as written
from genenv.tools.calls import MAX_CALLS, MAX_REPLY_CHARS, Reply, format_calls
from genenv.tools.settings import Style
from genenv.tools.worlds.base import Call

CALL = Call(tool="create_event", args={"title": "Dentist", "date": "2025-03-17", "start": "09:30"})
STYLES: list[Style] = ["python", "json"]
KNOWN = {"create_event": ["title", "date", "start", "minutes"]}


def parse_calls(text: str, style: Style) -> list[Call]:
    return list(written.read_reply(text, style, KNOWN).calls)


def read_reply(text: str, style: Style) -> Reply:
    return written.read_reply(text, style, KNOWN)


def test_the_python_style_is_one_call_a_line() -> None:
    text = format_calls([CALL, Call(tool="switch_light", args={"on": False, "n": 1.5})], "python")
    assert text == (
        'create_event(title="Dentist", date="2025-03-17", start="09:30")\nswitch_light(on=False, n=1.5)'
    )


def test_the_json_style_is_one_tagged_block_a_call() -> None:
    text = format_calls([Call(tool="f", args={"x": 1})], "json")
    assert text == '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(-1e12, 1e12, allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
)
values = (
    scalars
    | st.none()
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.text("ab", max_size=3), scalars, max_size=2)
)
names = st.from_regex(r"[a-z]{2,8}_[a-z]{1,8}", fullmatch=True)
calls_lists = st.lists(
    st.builds(
        lambda tool, args: Call(tool=tool, args=args), names, st.dictionaries(names, values, max_size=4)
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("number", "fits"),
    [(2**64 - 1, True), (-(2**63), True), (2**64, False), (-(2**63) - 1, False), (2e15, False)],
)
def test_integers_have_64_bits_and_fractions_are_exact(number: float, fits: bool, style: Style) -> None:
    calls = [Call(tool="get_order", args={"id": number})]
    reply = written.read_reply(format_calls(calls, style), style, KNOWN)
    assert (reply.calls == tuple(calls), reply.malformed == "a number in it is out of range") == (
        fits,
        not fits,
    )


@settings(max_examples=40)
@given(calls_lists, st.sampled_from(STYLES))
def test_what_is_written_is_read_back_unchanged(calls: list[Call], style: Style) -> None:
    assert parse_calls(format_calls(calls, style), style) == calls


@given(st.text(st.characters(), max_size=300), st.sampled_from(STYLES))
def test_no_text_raises(text: str, style: Style) -> None:
    reply = read_reply(text, style)
    assert not (reply.malformed and reply.calls)


@given(st.text("abf_(){}[]\"'=,:.$\n -0129<>tool_call", max_size=120), st.sampled_from(STYLES))
def test_no_text_of_code_characters_raises(text: str, style: Style) -> None:
    reply = read_reply(text, style)
    assert not (reply.malformed and reply.calls)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "create_event(" * 1_000,
        "create_event(x=" + "[" * 3_000 + "]" * 3_000 + ")",
        "create_event(x=" + "-" * 3_900 + "1)",
        "create_event(x=" + "not " * 900 + "1)",
        'create_event(x="a\0b")' + "\0",
        'create_event(x="\ud800")',
        r'create_event(x="\ud800")',
        "create_event(x=" + "9" * 3_900 + ")",
        "create_event(x=1e999)",
        "create_event(x=b'1')",
        "create_event(x=1j)",
        "create_event(x=y)",
        "create_event(x=f(1))",
        "create_event(**{'x': 1})",
        "create_event(*[1])",
        "create_event(x=1, x=2)",
        "create_event(1, 2, 3, 4, 5, 6, 7)",
        "create_event(x=2025-03-17)",
        "a.create_event(x=1)",
        "e = create_event(x=1)",
        "I will call create_event(x=1) now.",
        "<tool_call>create_event",
        '<tool_call>\n{"name": "create_event"}\n</tool_call>',
        '<tool_call>\n{"name": "create_event", "arguments": {"x": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "create_event", "arguments": {"x": 1, "x": 2}}\n</tool_call>',
        '<tool_call>\n{"name": "create_event", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "create_event", "arguments": ' + "[" * 5_000 + "</tool_call>",
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_broken_calls_are_malformed_and_never_words(text: str, style: Style) -> None:
    reply = read_reply(text, style)
    assert reply.malformed
    assert not reply.calls
    assert not reply.words


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "text",
    [
        "None of my tools can do that.",
        "Which event(s) do you mean?",
        "Sorry (no tool fits)",
        "I need the date: when is it?",
        "It costs $1.50 [or so].",
        "Done.",
        "Désolé, je ne peux pas.",
    ],
)
def test_plain_sentences_are_words(text: str, style: Style) -> None:
    reply = read_reply(text, style)
    assert reply.words == text
    assert not reply.calls
    assert not reply.malformed


@pytest.mark.parametrize("text", ["", "   \n", "...", "```\n```"])
def test_silence_is_neither_a_call_nor_words(text: str) -> None:
    reply = read_reply(text, "python")
    assert not reply.calls
    assert not reply.words


@pytest.mark.parametrize(
    "text",
    [
        'create_event(title="Dentist", date="2025-03-17", start="09:30")',
        "create_event('Dentist', '2025-03-17', start='09:30')",
        'create_event("Dentist", date=\'2025-03-17\', start="09:30")  # booked',
        '```python\ncreate_event(title="Dentist", date="2025-03-17", start="09:30")\n```',
        'Sure:\n  create_event(title="Dentist", date="2025-03-17", start="09:30")',
        '[create_event(title="Dentist", date="2025-03-17", start="09:30")]',
    ],
)
def test_the_ways_small_models_write_a_call_are_understood(text: str) -> None:
    assert parse_calls(text, "python") == [CALL]


def test_several_calls_may_share_a_line() -> None:
    calls = [Call(tool="f", args={"x": 1}), Call(tool="g", args={"y": [True, None]})]
    assert parse_calls("f(x=1); g(y=[true, null])", "python") == calls
    assert parse_calls("[f(x=1), g(y=[True, None])]", "python") == calls


def test_positional_arguments_of_an_unknown_tool_get_stand_in_names() -> None:
    assert parse_calls("make_tea(3)", "python") == [Call(tool="make_tea", args={"arg1": 3})]


def test_a_bare_json_object_counts_as_a_call_when_nothing_else_is_said() -> None:
    body = json.dumps({"name": "f", "arguments": {"x": 1}})
    assert parse_calls(body, "json") == [Call(tool="f", args={"x": 1})]
    assert parse_calls(f"[{body}, {body}]", "json") == [Call(tool="f", args={"x": 1})] * 2
    assert read_reply(f"Here: {body}", "json").malformed


def test_a_negative_number_is_a_literal() -> None:
    assert parse_calls("set_temperature(celsius=-2.5)", "python")[0].args == {"celsius": -2.5}


def test_each_style_rejects_the_other() -> None:
    assert read_reply(format_calls([CALL], "json"), "python").malformed
    assert read_reply(format_calls([CALL], "python"), "json").malformed


@pytest.mark.parametrize("text", [":( " * 12, "[{(" * 9 + '"', "it's ((((((((((", '\\" ((((((((('])
@pytest.mark.parametrize("style", STYLES)
def test_brackets_in_a_text_are_not_nested(text: str, style: Style) -> None:
    sent = [Call(tool="send_note", args={"text": text, "to": ["Ada"]})]
    assert parse_calls(format_calls(sent, style), style) == sent
    assert read_reply(f"send_note(text={text!r}, to={'[' * 9}{']' * 9})", "python").malformed


def test_the_limits_are_where_they_say() -> None:
    words = "no " * (MAX_REPLY_CHARS // 3)
    assert read_reply(words, "python").words
    assert read_reply(words + "no no", "python").malformed
    assert len(parse_calls("f_f()\n" * MAX_CALLS, "python")) == MAX_CALLS
    assert read_reply("f_f()\n" * (MAX_CALLS + 1), "python").malformed


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("answer", ["42", "39.0", "$39", "T-1", "C-101", "é", '{"name": "Ada", "level": 2}'])
def test_a_final_answer_needs_no_word_and_may_quote_a_record_with_a_name(answer: str, style: Style) -> None:
    said = answer if style == "python" else f"It is {answer}."  # an object alone is a call without its tags
    assert read_reply(said, style) == Reply(words=said)


@pytest.mark.parametrize(
    "text",
    ['{"name": "create_event", "title": "Dentist"}', '{"name": "f", "arguments": {}}', '{"arguments": {}}'],
)
def test_a_call_that_is_not_written_as_asked_is_malformed(text: str) -> None:
    assert (
        read_reply(f"I do it: {text}", "python").malformed == "it holds a call that is not written as asked"
    )
