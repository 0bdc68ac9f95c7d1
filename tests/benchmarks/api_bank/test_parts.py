from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.api_bank import ApiBank, ApiBankConfig
from genenv.benchmarks.api_bank.benchmark import rouge_l
from genenv.benchmarks.api_bank.questions import Call, Declared, Question, declared_in, same_value
from genenv.chat.assistant import Reply, ToolCall
from genenv.chat.reasoning import without_thoughts
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder
from recited import Recited


def declared(kind: str, description: str = "") -> Declared:
    return Declared(type=kind, description=description)


@pytest.mark.parametrize(
    ("given_value", "gold", "of", "same"),
    [
        ("x", "x", None, True),
        (" x ", "x", None, True),
        ("X", "x", None, False),
        ("X", "x", declared("str"), False),
        ("J46801", "j46801", declared("str", "The user id. Cases are ignored."), True),
        (34567890, "34567890", declared("str"), True),
        ("007", "7", declared("str"), False),
        ("007", "7", declared("int"), True),
        (2.0, "2", declared("int"), True),
        ("2", "2.0", declared("float"), True),
        (True, "1", declared("int"), False),
        ("two", "2", declared("int"), False),
        ("nan", "2", declared("float"), False),
        (True, "True", declared("bool"), True),
        ("true", "True", declared("bool"), True),
        ("1", "True", declared("bool"), False),
        (["a"], "['a']", declared("list(str)"), True),
        ('["a"]', "['a']", declared("list"), True),
        ("('a',)", "['a']", declared("list"), False),
        ("['it\\'s', None]", '["it\'s", null]', declared("list"), True),
        ("[{'a': 1, 'b': (2, 3)}]", '[{"b": [2, 3], "a": 1}]', declared("json"), True),
        ("a", "['a']", declared("list"), False),
        (None, "", declared("str"), False),
        (["x"], "x", declared("str"), False),
        ("2023-3-5", "2023-03-05", declared("str", "Format: %Y-%m-%d"), True),
        ("2023-3-5", "2023-03-05", declared("str", "Format be like %Y-%m-%d."), True),
        ("2023-3-5", "2023-03-05", declared("str", "The day."), False),
        ("2023-3-6", "2023-03-05", declared("str", "Format: %Y-%m-%d"), False),
        ("2-29", "02-29", declared("str", "Format: %m-%d"), True),
        ("soon", "02-29", declared("str", "Format: %m-%d"), False),
        ("1" * 10_000, "02-29", declared("str", "Format: %m-%d"), False),
    ],
)
def test_values_are_the_same_under_their_declaration(
    given_value: Any, gold: str, of: Declared | None, same: bool
) -> None:
    assert same_value(given_value, gold, of) is same


def test_declarations_are_read_of_the_right_api() -> None:
    prompt = (
        "1. Name: A\nDescription: x\nParameters: {'a': {'type': 'str', 'description': 'One.'}}\n"
        "2. AB: y\nParameters: {'b': {'type': 'int', 'description': \"It's two.\"}}\n"
        "{'name': 'C', 'input_parameters': {'c': {'type': 'list', 'description': ''}}, "
        "'output_parameters': {'d': {'type': 'str', 'description': 'Not this.'}}}"
    )
    assert declared_in(prompt, "A") == {"a": declared("str", "One.")}
    assert declared_in(prompt, "AB") == {"b": declared("int", "It's two.")}
    assert declared_in(prompt, "C") == {"c": declared("list")}
    assert declared_in(prompt, "D") == {}


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("the cat sat", "the cat sat", 1),
        ("", "the cat", 0),
        ("...", "the cat", 0),
        ("The Cat", "the cat", 0),
        # Common: the, sat. P = 2 / 3, R = 2 / 4.
        ("the dog sat", "the cat sat down", 4 / 7),
        # In order only "c" or "a" is common: P = 1 / 2, R = 1 / 2.
        ("c a", "a c", 1 / 2),
        # Distinct words: the answer has one, the reference two. P = 1, R = 1 / 2.
        ("a a a", "a b", 2 / 3),
        # Sentences: "a b" and "c d" have all of "a b c d" in them though it is one sentence. P = R = 1.
        ("a b. c d", "a b c d", 1),
    ],
)
def test_rouge_l_is_as_worked_out_by_hand(answer: str, reference: str, value: float) -> None:
    assert rouge_l(answer, reference) == pytest.approx(value, abs=1e-7)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab. ", max_size=40), st.text(alphabet="ab. ", max_size=40))
def test_rouge_l_is_in_range_and_whole_for_equal_texts(one: str, other: str) -> None:
    assert 0 <= rouge_l(one, other) <= 1
    if one.strip(". "):
        assert rouge_l(one, one) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a", "a"),
        ("<think>x</think>a", "a"),
        ("x</think>a", "a"),
        ("a<think>x</think>b<think>y</think>c", "abc"),
        ("x</think>a<think>y</think>b", "ab"),
        ("a<think>x", "a<think>x"),
        ("</think>", ""),
    ],
)
def test_thoughts_are_taken_out(text: str, left: str) -> None:
    assert without_thoughts(text) == left


def test_an_attempt_asks_once_and_keeps_the_reply(folder: DataFolder) -> None:
    bench = ApiBank()
    item = bench.load(folder, "level-3")[0]
    talk = Recited(Reply(text="<tool_call>", finished=False))
    answer = asyncio.run(bench.attempt(item, talk))
    assert answer == {"reply": "<tool_call>"}
    assert talk.heard == [[dict(message) for message in item.data.messages]]
    assert talk.offered == [[]]
    assert bench.grade(item, answer).score == 0


def test_calls_that_an_endpoint_took_out_count(folder: DataFolder) -> None:
    bench = ApiBank()
    item = bench.load(folder, "level-3")[0]
    reply = Reply(text="", calls=(ToolCall(name="Lookup", arguments={"word": "x"}),))
    answer = asyncio.run(bench.attempt(item, Recited(reply)))
    assert bench.grade(item, json.loads(json.dumps(answer))).score == 1


def test_replies_may_be_longer_where_thoughts_are_asked_for() -> None:
    authors = ApiBank(ApiBankConfig(form="authors"))
    assert (ApiBank().max_tokens, authors.max_tokens) == (1024, 512)
    assert authors.describe()["rule"] == "comparison, nothing executed"
    assert ApiBank().describe()["form"] == "toolrl"


ITEMS = [
    Item(
        id=kind,
        groups={},
        data=Question(
            kind=kind,
            messages=(),
            gold=Call("A", {"a": "1", "b": "['x']", "c": "2023-01-01"}),
            response="Fine. It is done.",
            declared={
                "a": declared("int"),
                "b": declared("list"),
                "c": declared("str", "Format: %Y-%m-%d"),
            },
        ),
    )
    for kind in ("call", "request", "response")
]
PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", '{"name": "A", "parameters": ', '{"a": 1}', "}", "[A(", ")]"),
    *("API-Request: ", "a=", "b=", "'", '"', ", ", "\\", "[", "]", "1", "\n", "x", "(", ")", "A"),
)
TEXT = st.text(st.characters(exclude_categories=())) | st.lists(st.sampled_from(PIECES), max_size=30).map(
    "".join
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["reply", "calls", "name", "parameters", "a", "b"]), inner)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(JSON | TEXT.map(lambda text: {"reply": text}))
def test_grading_never_raises(answer: Any) -> None:
    for item in ITEMS:
        grade = ApiBank().grade(item, answer)
        assert 0 <= grade.score <= 1
        assert all(0 <= value <= 1 for value in grade.measures.values())
        grade.explanation.encode()
        assert "\n" not in grade.explanation
