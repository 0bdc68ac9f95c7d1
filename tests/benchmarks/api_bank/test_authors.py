from __future__ import annotations

from typing import Any

import pytest

from genenv.benchmarks.api_bank import ApiBank, ApiBankConfig
from genenv.benchmarks.api_bank.benchmark import request_in
from genenv.benchmarks.api_bank.questions import Call
from genenv.errors import DataError, UsageError
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from quickly import within

AUTHORS = ApiBankConfig(form="authors")
ORDER = "API-Request: [OrderTea(kind='Assam', cups='2', day='2023-03-05', guests='['Ann', 'Bo']')]"


@pytest.fixture
def tea(folder: DataFolder) -> Item:
    return ApiBank(AUTHORS).load(folder, "level-1-api")[0]


def graded(item: Item, reply: str) -> Grade:
    return ApiBank(AUTHORS).grade(item, {"reply": reply})


@pytest.mark.parametrize(
    ("reply", "name", "parameters"),
    [
        ("API-Request: [Now()]", "Now", {}),
        ("[Now( )]", "Now", {}),
        ("API-Request: Now()", "Now", {}),
        ("API-Request: [Echo(text='a, b=c')]", "Echo", {"text": "a, b=c"}),
        ('API-Request: [Echo(text="it\'s", n=3)]', "Echo", {"text": "it's", "n": "3"}),
        ("API-Request: [Echo(text='it's', n=3)]", "Echo", {"text": "it's", "n": "3"}),
        (r"API-Request: [Echo(text='it\'s (so)')]", "Echo", {"text": "it's (so)"}),
        ("API-Request: [Echo(text='')]", "Echo", {"text": ""}),
        ("API-Request: [Sum(formula='(5+6)*3')]", "Sum", {"formula": "(5+6)*3"}),
        ("API-Request: [Sum(formula=(5+6)*3)]", "Sum", {"formula": "(5+6)*3"}),
        ("[Call(who='['John', 'Jane']', at='x')]", "Call", {"who": "['John', 'Jane']", "at": "x"}),
        ("[Call(who=['John', 'Jane'], at='x')]", "Call", {"who": "['John', 'Jane']", "at": "x"}),
        ("[Log(d='[{'n': 'a', 'v': '1'}, {'n': 'b'}]')]", "Log", {"d": "[{'n': 'a', 'v': '1'}, {'n': 'b'}]"}),
        ("[Log(d=[{'n': 'a'}])]", "Log", {"d": "[{'n': 'a'}]"}),
        ("[First(a='1'), Second(a='2')]", "First", {"a": "1"}),
        ("[Hint(a='1')] so API-Request: [Second(a='2',\n  b='3')]\nDone.", "Second", {"a": "2", "b": "3"}),
        ("[A(a='__import__('os').system('x')')]", "A", {"a": "__import__('os').system('x')"}),
        ("[A(a=1, 2, b=John's, c=[x's, (y)])]", "A", {"a": "1, 2", "b": "John's", "c": "[x's, (y)]"}),
        ("[A(a=open('x').read())]", "A", {"a": "open('x').read()"}),
        ("[A(a=[9**9 for _ in range(9**9)])]", "A", {"a": "[9**9 for _ in range(9**9)]"}),
    ],
)
def test_requests_are_read_as_texts(reply: str, name: str, parameters: dict[str, str]) -> None:
    assert request_in(reply) == Call(name, parameters)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "None is needed.",
        "[x]",
        "[Sum('5+6')]",
        "[Sum(formula='5",
        "[Sum(formula=5",
        "[Sum(",
    ],
)
def test_what_is_no_request_is_none(reply: str) -> None:
    assert request_in(reply) is None


@pytest.mark.parametrize(
    "request_text",
    [
        ORDER,
        "[OrderTea(kind='assam', cups=2, day='2023-3-5', guests=[\"Ann\", 'Bo'])]",
        "<think>[Now()]</think>[OrderTea(guests=\"['Ann', 'Bo']\", day=2023-3-05, cups=2.0, kind='ASSAM')]",
    ],
)
def test_the_recorded_request_is_right_however_it_is_written(tea: Item, request_text: str) -> None:
    grade = graded(tea, request_text)
    assert grade.score == 1
    assert grade.explanation == "OrderTea as recorded, by comparison: it was not executed."
    assert grade.measures == {"exact": float(request_text == ORDER), "name": 1, "readable": 1}


@pytest.mark.parametrize(
    ("changed", "explanation"),
    [
        (("'Assam'", "'Green'"), 'OrderTea has kind="Green"; "Assam" was wanted.'),
        (("'2'", "'3'"), 'OrderTea has cups="3"; "2" was wanted.'),
        (("'2'", "'two'"), 'OrderTea has cups="two"; "2" was wanted.'),
        (("03-05", "05-03"), 'OrderTea has day="2023-05-03"; "2023-03-05" was wanted.'),
        (
            ("'Ann', 'Bo'", "'Bo', 'Ann'"),
            "OrderTea has guests=\"['Bo', 'Ann']\"; \"['Ann', 'Bo']\" was wanted.",
        ),
        (("cups='2', ", ""), 'OrderTea lacks cups="2".'),
        (("cups=", "cup="), 'OrderTea lacks cups="2".'),
        (("kind=", "milk='', kind="), 'OrderTea has "milk", which is not wanted.'),
        (("OrderTea", "orderTea"), '"orderTea" was called; OrderTea was wanted.'),
        (("[OrderTea(", "OrderTea["), "no call could be read; OrderTea was wanted."),
    ],
)
def test_other_requests_are_wrong_and_say_why(tea: Item, changed: tuple[str, str], explanation: str) -> None:
    grade = graded(tea, ORDER.replace(*changed))
    assert (grade.score, grade.explanation) == (0, explanation)


def test_searches_are_compared_by_their_words(folder: DataFolder) -> None:
    search = ApiBank(AUTHORS).load(folder, "level-3-batch")[0]
    assert search.groups == {"level": "level-3", "request": "search"}
    for words, right in (("OrderTea", 1), ("order tea", 1), ("Order Tea", 1), ("tea order", 0), ("tea", 0)):
        assert graded(search, f"[ToolSearcher(keywords='{words}')]").score == right


def test_the_prompt_is_instruction_and_input(tea: Item) -> None:
    (message,) = tea.data.messages
    assert message["role"] == "user"
    assert message["content"].startswith("Write a request.\n{")
    assert message["content"].endswith("}\nUser: Tea!\n")


def test_figures_name_what_was_compared_and_count_dialogues(folder: DataFolder) -> None:
    bench = ApiBank(AUTHORS)
    items = bench.load(folder, "all")
    assert [item.id for item in items] == [
        "level-1-api/0",
        "level-2-api/0",
        "level-3-batch/0",
        "level-3-batch/1",
        "level-3-batch/2",
    ]
    replies = [ORDER, ORDER, "[ToolSearcher(keywords='tea')]", ORDER, ORDER]
    figures = bench.figures([(i, graded(i, reply)) for i, reply in zip(items, replies, strict=True)])
    values = {(figure.name, figure.group): figure.value for figure in figures}
    assert next(iter(values)) == ("request_match", "")
    assert values["request_match", ""] == 0.8
    assert values["request_match", "request=call"] == 1
    assert values["request_match", "request=search"] == 0
    assert values["dialogue_match", ""] == 0.5
    assert not any(figure.name == "accuracy" for figure in figures)
    part = bench.figures([(item, graded(item, ORDER)) for item in items[:3]])
    assert not any(figure.name == "dialogue_match" for figure in part), "no dialogue is whole"


def test_responses_are_measured_by_rouge_l(folder: DataFolder) -> None:
    bench = ApiBank(AUTHORS)
    (item,) = bench.load(folder, "level-1-response")
    assert graded(item, "AI: Your tea comes. Enjoy it.").score == pytest.approx(1)
    # Of the reference's 5 words, 3 are among the answer's 3: P = 1, R = 3 / 5.
    half = graded(item, "<think>Enjoy it</think>Your tea comes.")
    assert half.score == pytest.approx(0.75)
    assert half.explanation == "ROUGE-L 0.750 against the recorded response."
    assert graded(item, "").score == 0
    assert [figure.name for figure in bench.figures([(item, half)])] == ["rouge_l", "rouge_l"]
    assert [len(bench.load(folder, part)) for part in ("level-2-response", "level-3-response")] == [1, 1]


def test_splits_belong_to_a_form(folder: DataFolder) -> None:
    with pytest.raises(UsageError, match="'level-1-api' is not of form toolrl; choose one of all, level-1,"):
        ApiBank().load(folder, "level-1-api")
    with pytest.raises(UsageError, match="'level-1' is not of form authors; choose one of all, level-1-api,"):
        ApiBank(AUTHORS).load(folder, "level-1")


def test_every_split_can_be_loaded_in_one_of_the_forms(folder: DataFolder) -> None:
    for split in ApiBank.splits:
        form: Any = "toolrl" if split in ("all", "level-1", "level-2", "level-3") else "authors"
        assert ApiBank(ApiBankConfig(form=form)).load(folder, split)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("level-1-api", "[{}]", "entry 0: .*'instruction'"),
        ("level-1-api", "7", "at its top"),
        (
            "level-2-api",
            '[{"instruction": "a", "input": "b", "expected_output": "c"}]',
            "entry 0: .*no API req",
        ),
        (
            "level-2-api",
            '[{"instruction": "a", "input": 1, "expected_output": "c"}]',
            "entry 0: .*input must",
        ),
        (
            "level-3-batch-inf",
            '[{"instruction": "a", "input": "b", "output": "[A()]"}]',
            "entry 0: .*sample_id",
        ),
    ],
)
def test_damage_is_named(folder: DataFolder, name: str, content: str, message: str) -> None:
    (folder.root / f"api-bank/test-data/{name}.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"{name}\.json, {message}"):
        ApiBank(AUTHORS).load(folder, "all")


@pytest.mark.parametrize(
    "reply",
    [
        "API-Request:" + " " * 1_000_000,
        "API-Request: [A(" + "a=" * 500_000,
        "[A(a='" + "'," * 500_000,
        "[A(a=" + " " * 1_000_000,
        "[A(" + " a=" + "[" * 100_000,
        "[" * 1_000_000,
        "[A(" + ",".join(f"a{i}='" for i in range(100_000)),
        "[OrderTea(kind='" + "\\" * 100_001,
        "[OrderTea(kind='Assam', cups='2', day='2023-03-05', guests='" + "[" * 5_000 + "')]",
        "[OrderTea(kind='Assam', cups='" + "9" * 5_000 + "', day='2023-03-05', guests='x')]",
        "[OrderTea(kind='\ud800\x00', cups='2', day='2023-03-05', guests='x')]",
        "a." * 500_000,
    ],
)
def test_hostile_replies_are_wrong_and_quick(folder: DataFolder, tea: Item, reply: str) -> None:
    (response,) = ApiBank(AUTHORS).load(folder, "level-2-response")
    with within(2):
        grade = graded(tea, reply)
        graded(response, reply)
    assert grade.score == 0
    grade.explanation.encode()


def test_all_requests_are_right_when_repeated(samples: DataFolder, whose: str) -> None:
    bench = ApiBank(AUTHORS)
    items = bench.load(samples, "all")
    assert len(items) == {"ours": 1 + 1 + 3, "official": 399 + 135 + 245}[whose]
    for item in items:
        gold = item.data.gold
        said = ", ".join(f"{name}={value!r}" for name, value in gold.parameters.items())
        grade = bench.grade(item, {"reply": f"API-Request: [{gold.name}({said})]"})
        assert {grade.score, *grade.measures.values()} == {1.0}, (item.id, grade.explanation)


@pytest.mark.parametrize(
    ("part", "count"), [("level-1-response", 375), ("level-2-response", 103), ("level-3-response", 50)]
)
def test_all_responses_match_themselves(samples: DataFolder, whose: str, part: str, count: int) -> None:
    bench = ApiBank(AUTHORS)
    items = bench.load(samples, part)
    assert len(items) == {"ours": 1, "official": count}[whose]
    assert all(bench.grade(item, {"reply": item.data.response}).score > 0.999 for item in items)
