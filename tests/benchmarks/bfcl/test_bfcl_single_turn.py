"""One reply: asked with the official prompt or with tools, graded by the official checker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.single_turn import grade_question
from genenv.chat.tool_calls import UNREADABLE
from genenv.errors import UsageError
from recited import Recited

RIGHT = "[hotel.book(city='bad ems', nights=3)]"


@pytest.mark.parametrize(
    ("text", "score", "said"),
    [
        (RIGHT, 1.0, "among the possible answers"),
        ("[hotel.book(city='EMS.', nights=3, price=90, extras=['tea'])]", 1.0, "among"),
        ("[hotel.book(city='Ems', nights=3.0)]", 0.0, "Incorrect type for parameter 'nights'"),
        ("[hotel.book(city='Ems')]", 0.0, "Missing required parameter: 'nights'"),
        ("[hotel.book(city='Ems', nights=3, stars=5)]", 0.0, "Unexpected parameter: 'stars'"),
        ("[hotel_book(city='Ems', nights=3)]", 0.0, "'hotel.book' not found"),
        (
            "[hotel.book(city='Ems', nights=3), hotel.book(city='Ems', nights=3)]",
            0.0,
            "Wrong number of functions",
        ),
        ("There is no such hotel.", 0.0, "No calls can be read in the reply"),
        ("[]", 0.0, "Wrong number of functions"),
        ("[hotel.book(city='Ems', nights=3, extras=[1])]", 0.0, "Invalid value for parameter 'extras'"),
    ],
)
def test_text_is_compared_with_the_possible_answers(small: Any, text: str, score: float, said: str) -> None:
    grade = grade_question(small.question("simple_python"), {"text": text})
    assert grade.score == score
    assert said in grade.explanation


def test_native_calls_have_underscores_for_dots(small: Any) -> None:
    question = small.question("simple_python")
    calls = [{"name": "hotel_book", "arguments": {"city": "Ems", "nights": 3}}]
    assert grade_question(question, {"calls": calls}).score == 1.0
    calls[0]["name"] = "hotel.book"
    assert grade_question(question, {"calls": calls}).score == 0.0
    assert grade_question(question, {"calls": []}).score == 0.0


def test_arguments_that_are_no_json_make_no_call_as_officially(small: Any) -> None:
    calls = [{"name": "hotel_book", "arguments": {"city": "Ems", "nights": 3}}]
    spoilt = {"calls": [*calls, {"name": "hotel_book", "arguments": dict(UNREADABLE)}]}
    wrong = grade_question(small.question("simple_python"), spoilt)
    assert wrong.explanation == "No calls can be read in the reply: the arguments of a call are no JSON."
    assert grade_question(small.question("irrelevance"), spoilt).score == 1.0
    assert grade_question(small.question("live_relevance"), spoilt).score == 0.0


def test_parallel_calls_come_in_any_order(small: Any) -> None:
    question = small.question("parallel")
    text = "[hotel.book(city='Ulm', nights=1), hotel.book(city='Ems', nights=3)]"
    assert grade_question(question, {"text": text}).score == 1.0
    assert grade_question(question, {"text": text.replace("Ulm", "Rom")}).score == 0.0


def test_java_is_read_in_its_own_syntax(small: Any) -> None:
    question = small.question("simple_java")
    assert grade_question(question, {"text": "[Room.open(number=7L, tags=new String[]{x, y})]"}).score == 1.0
    assert grade_question(question, {"text": "[Room.open(number=7)]"}).score == 0.0


def test_irrelevance_is_right_without_calls_and_relevance_with_any(small: Any) -> None:
    for answer, called in [({"text": "No."}, 0), ({"text": "[]"}, 0), ({"text": "[anything()]"}, 1)]:
        assert grade_question(small.question("irrelevance"), answer).score == 1 - called
        assert grade_question(small.question("live_relevance"), answer).score == called
    grade = grade_question(small.question("irrelevance"), {"calls": [{"name": "f", "arguments": {}}]})
    assert grade.explanation == "A call was made, but it should not have been."


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[f(a=f'hello {x}')]", 1.0),  # officially no call: such a value cannot be read
        ("[print(f'hello {x}')]", 0.0),  # officially a call: what has no name is not read
        ("[sorted(lambda x: x)]", 0.0),
        ("[f(a=" + "+".join("1" * 200) + ")]", 0.0),
        ("[f(a='" + "x" * 60_000 + "')]", 0.0),
        ("I cannot do that (f'...').", 1.0),
        ("x" * 60_000, 1.0),
    ],
)
def test_calls_beyond_our_bounds_are_no_irrelevance(small: Any, text: str, score: float) -> None:
    assert grade_question(small.question("irrelevance"), {"text": text}).score == score


def test_what_would_have_to_be_evaluated_is_not_and_the_verdict_says_so(small: Any) -> None:
    why = "len('x') + 1 would have to be evaluated, which is not done."
    answer = {"text": "[hotel.book(city='Ems', nights=len('x') + 1)]"}
    wrong = grade_question(small.question("simple_python"), answer)
    assert (wrong.score, wrong.explanation) == (0.0, f"No calls can be read in the reply: {why}")
    made = grade_question(small.question("irrelevance"), answer)
    said = f"A call was made, but it should not have been. It was not read: {why}"
    assert (made.score, made.explanation) == (0.0, said)
    unknown = grade_question(small.question("irrelevance"), {"text": "[f(a=x * 2)]"})
    assert unknown.score == 1.0  # officially a NameError
    assert Bfcl().describe()["evaluated"] == "constants only"


def test_text_mode_asks_with_the_official_prompt(small: Any) -> None:
    talk = Recited(f"<think>Hm.</think>\n{RIGHT}")
    answer = asyncio.run(Bfcl().attempt(small.item("simple_python"), talk))
    assert answer == {"text": RIGHT}
    system, user = talk.heard[0]
    assert system["content"].startswith("You are an expert in composing functions.")
    assert "[func_name1(params_name1=params_value1" in system["content"]
    assert '"name": "hotel.book"' in system["content"]
    assert "Note that the provided function is in Python 3 syntax." in system["content"]
    assert user == {"role": "user", "content": "A room in Bad Ems, please."}
    assert talk.offered == [[]]


def test_native_mode_offers_tools(small: Any) -> None:
    talk = Recited([("hotel_book", {"city": "Ems", "nights": 3})], native_tools=True)
    benchmark, item = Bfcl(), small.item("simple_python")
    answer = asyncio.run(benchmark.attempt(item, talk))
    assert answer == {"calls": [{"name": "hotel_book", "arguments": {"city": "Ems", "nights": 3}}]}
    assert talk.heard == [[{"role": "user", "content": "A room in Bad Ems, please."}]]
    assert talk.offered == [["hotel_book"]]
    assert benchmark.grade(item, answer).score == 1.0


def test_prompting_can_be_chosen(small: Any) -> None:
    item = small.item("simple_python")
    talk = Recited(RIGHT, native_tools=True)
    assert asyncio.run(Bfcl(BfclSettings(prompting="text")).attempt(item, talk)) == {"text": RIGHT}
    with pytest.raises(UsageError, match="no format of its own for tools"):
        asyncio.run(Bfcl(BfclSettings(prompting="native")).attempt(item, Recited(RIGHT)))


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]
CALLS: list[Any] = [
    None,
    [],
    {},
    7,
    "text",
    {"text": 7},
    {"text": "x" * 1_000_000},
    {"text": "[hotel.book(city='\ud800\0', nights=3)]"},
    {"text": "[__import__('os').system('false')]"},
    {"calls": "all"},
    {"calls": [7]},
    {"calls": [{}]},
    {"calls": [{"name": 7, "arguments": {}}]},
    {"calls": [{"name": "hotel_book", "arguments": []}]},
    {"calls": [{"name": "hotel_book", "arguments": {"city": DEEP, "nights": 3}}]},
    {"calls": [{"name": "hotel_book", "arguments": {"city": {}, "nights": None, "extras": [{}]}}]},
    {"calls": [{"name": "hotel_book", "arguments": {"city": "x" * 1_000_000, "nights": 3}}]},
    {"calls": [{"name": "Room_open", "arguments": {"number": "7L", "tags": "new String[]{" + " " * 5_000}}]},
    {"turns": DEEP},
]


@pytest.mark.parametrize("answer", CALLS, ids=range(len(CALLS)))
@pytest.mark.parametrize("category", ["simple_python", "parallel", "simple_java", "live_relevance"])
def test_no_answer_of_a_wrong_shape_is_right_or_raises(small: Any, category: str, answer: Any) -> None:
    grade = grade_question(small.question(category), answer)
    called = category == "live_relevance" and grade.explanation.startswith("A call was made")
    assert grade.score == float(called)
    assert grade.explanation.endswith(".") or "…" in grade.explanation
    assert "\n" not in grade.explanation
    assert len(grade.explanation) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.fixed_dictionaries({}, optional={"city": JSON, "nights": JSON, "price": JSON, "extras": JSON})
NATIVE = st.builds(lambda words: {"calls": [{"name": "hotel_book", "arguments": words}]}, ARGUMENTS)


@settings(max_examples=200, deadline=None)
@given(answer=JSON | NATIVE)
@pytest.mark.long
def test_grading_never_raises(answer: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    from genenv.benchmarks.bfcl.data import Question

    names = ("city", "nights", "price", "extras")
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer"},
        {"type": "dict"},
        {"type": "array", "items": {"type": "dict"}},
    ]
    function = {
        "name": "hotel.book",
        "parameters": {"properties": dict(zip(names, kinds, strict=True)), "required": []},
    }
    possible = [
        {
            "hotel.book": {
                "city": ["x", ""],
                "nights": [1, ""],
                "price": [{"a": [1]}, ""],
                "extras": [[{"a": [1]}], ""],
            }
        }
    ]
    question = Question(
        category="simple_python", language="python", messages=[], functions=[function], possible=possible
    )
    assert 0.0 <= grade_question(question, answer).score <= 1.0
