from __future__ import annotations

import json
from typing import Any

import pytest

from genenv.benchmarks.api_bank import ApiBank
from genenv.benchmarks.api_bank.questions import Call, calls_in, is_subset
from genenv.errors import DataError
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from quickly import within

TEA = {"kind": "Assam", "cups": "2", "day": "2023-03-05", "guests": "['Ann', 'Bo']"}


def block(*calls: Any) -> str:
    return "<think>x</think>\n<tool_call>\n" + "\n".join(map(json.dumps, calls)) + "\n</tool_call>"


def call(name: str = "OrderTea", **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


@pytest.fixture
def items(folder: DataFolder) -> list[Item]:
    return list(ApiBank().load(folder, "all"))


def graded(item: Item, reply: str) -> Grade:
    return ApiBank().grade(item, {"reply": reply})


def test_levels_are_read_in_order_with_a_bare_answer_too(folder: DataFolder, items: list[Item]) -> None:
    assert [item.id for item in items] == ["level-1/0", "level-1/1", "level-2/0", "level-3/0"]
    assert [item.groups["level"] for item in items] == ["level-1", "level-1", "level-2", "level-3"]
    assert items[2].data.gold == Call("OrderTea", {"kind": ""})
    assert [item.id for item in ApiBank().load(folder, "level-3")] == ["level-3/0"]
    assert {name: it.type for name, it in items[0].data.declared.items()} == {
        "kind": "str",
        "cups": "int",
        "day": "str",
        "guests": "list(str)",
    }
    assert set(items[3].data.declared) == {"word"}
    assert len(folder.hashes) == 3


def test_the_prompt_is_sent_as_it_is(items: list[Item]) -> None:
    assert [message["role"] for message in items[0].data.messages] == ["system", "user"]
    assert items[0].data.messages[1]["content"] == "Tea!"


@pytest.mark.parametrize(
    "reply",
    [
        block(call(**TEA)),
        block(call("Now"), call(**TEA)),
        block([call("Now"), call(**TEA)]),
        f"<tool_call>\n{json.dumps(call(**TEA), indent=2)}\n</tool_call>",
        f"<tool_call>not this\n{json.dumps(call(**TEA))}, and so on",
        f"I think.</think><tool_call>{json.dumps({'name': 'OrderTea', 'arguments': TEA})}",
        f"<think>never closed <tool_call>{json.dumps(call(**TEA))}</tool_call>",
        block(call("Now")) + "<response>and</response>" + block(call(**TEA)),
    ],
)
def test_any_call_that_is_the_recorded_one_is_right(items: list[Item], reply: str) -> None:
    grade = graded(items[0], reply)
    assert (grade.score, grade.explanation) == (1, "OrderTea as recorded.")
    assert {value for name, value in grade.measures.items() if name != "toolrl_code"} == {1.0}


@pytest.mark.parametrize(
    ("reply", "by_paper", "by_code"),
    [
        (block(call(**TEA)), 1, 1),
        (block(call("Now"), call(**TEA)), 1, 1),
        (block(call("Now")) + block(call(**TEA)), 1, 1),
        (block(call(**TEA)) + block(call("Now")), 1, 0),  # only the last block is read
        (block([call(**TEA)]), 1, 0),
        (f"<tool_call>\n{json.dumps(call(**TEA), indent=2)}\n</tool_call>", 1, 0),
        (f"<tool_call>{json.dumps({'name': 'OrderTea', 'arguments': TEA})}", 1, 0),
        (block(7, call(**TEA)), 1, 0),  # a number ends the reading
        (block(TEA), 0, 1),  # parameters without a name are those of the right tool
        (json.dumps(call(**TEA)), 0, 1),  # without a block the whole reply is one
        (f"<think><tool_call>{json.dumps(call(**TEA))}</tool_call></think>No.", 0, 1),
        (block(json.dumps(call(**TEA))), 0, 1),  # text that is JSON
        (block(None, call(**TEA)), 1, 0),
        (block("name", "parameters"), 0, 0),
        ("[" * 100_000, 0, 0),
        ("", 0, 0),
    ],
)
def test_the_papers_rule_and_the_published_code_are_two_figures(
    items: list[Item], reply: str, by_paper: int, by_code: int
) -> None:
    grade = graded(items[0], reply)
    assert (grade.score, grade.measures["toolrl_code"]) == (by_paper, by_code)


def test_calls_that_an_endpoint_took_out_count_by_the_published_code_too(items: list[Item]) -> None:
    grade = ApiBank().grade(items[0], {"reply": "Now.", "calls": [call(**TEA)]})
    assert grade.measures["toolrl_code"] == 1


def test_the_summary_says_that_the_rule_is_the_papers() -> None:
    assert ApiBank().describe()["rule"] == "the paper's: any call equal to the recorded one"


@pytest.mark.parametrize(
    ("reply", "explanation", "measures"),
    [
        ("", "no call could be read; OrderTea was wanted.", (0, 0, 0, 0)),
        (json.dumps(call(**TEA)), "no call could be read; OrderTea was wanted.", (0, 0, 0, 0)),
        (
            f"<think><tool_call>{json.dumps(call(**TEA))}</tool_call></think> no",
            "no call could be read; OrderTea was wanted.",
            (0, 0, 0, 0),
        ),
        (block({"name": "OrderTea"}), "no call could be read; OrderTea was wanted.", (0, 0, 0, 0)),
        (block(call("Now")), '"Now" was called; OrderTea was wanted.', (0, 0, 0, 1)),
        (block(call("ordertea", **TEA)), '"ordertea" was called; OrderTea was wanted.', (0, 0, 0, 1)),
        (
            block(call(**{**TEA, "kind": "Green"})),
            'OrderTea has kind="Green"; "Assam" was wanted.',
            (0, 0, 1, 1),
        ),
        (block(call(**{**TEA, "cups": 2})), 'OrderTea has cups=2; "2" was wanted.', (0, 1, 1, 1)),
        (
            block(call(**{**TEA, "guests": ["Ann", "Bo"]})),
            "OrderTea has guests=a list; \"['Ann', 'Bo']\" was wanted.",
            (0, 1, 1, 1),
        ),
        (
            block(call(**{**TEA, "kind": {"a": 1}})),
            'OrderTea has kind=an object; "Assam" was wanted.',
            (0, 0, 1, 1),
        ),
        (block(call(kind="Assam")), "OrderTea lacks cups.", (0, 0, 1, 1)),
        (block(call(**TEA, milk="")), 'OrderTea has "milk", which is not wanted.', (1, 0, 1, 1)),
        (block(call(**TEA, milk="yes")), 'OrderTea has "milk", which is not wanted.', (1, 0, 1, 1)),
    ],
)
def test_other_calls_are_wrong_and_say_why(
    items: list[Item], reply: str, explanation: str, measures: tuple[float, ...]
) -> None:
    grade = graded(items[0], reply)
    assert grade.score == 0
    assert grade.explanation.replace('cups="2".', "cups.") == explanation
    assert tuple(grade.measures[name] for name in ("lenient", "typed", "name", "readable")) == measures


def test_a_call_without_parameters_must_say_so(items: list[Item]) -> None:
    assert graded(items[1], block(call("Now"))).score == 1
    assert graded(items[1], block(call("Now", zone="x"))).score == 0


def test_the_lenient_rule_drops_what_is_empty_and_allows_more() -> None:
    gold = Call("f", {"a": "1", "b": "", "c": []})
    assert is_subset(gold, Call("f", {"a": "1"}))
    assert is_subset(gold, Call("f", {"a": "1", "b": "anything", "d": 0}))
    assert not is_subset(gold, Call("f", {"a": 1}))
    assert not is_subset(gold, Call("g", {"a": "1"}))
    assert not is_subset(Call("f", {"a": 0}), Call("f", {"a": ""}))


def test_figures_are_the_accuracy_then_levels_then_measures(items: list[Item]) -> None:
    right = [block(call(**TEA)), "", block(call(kind="")), block(call("Lookup", word="x", more="y"))]
    bench = ApiBank()
    figures = bench.figures([(item, graded(item, reply)) for item, reply in zip(items, right, strict=True)])
    assert [(figure.name, figure.group, figure.value, figure.items) for figure in figures] == [
        ("accuracy", "", 0.5, 4),
        ("accuracy", "level=level-1", 0.5, 2),
        ("accuracy", "level=level-2", 1, 1),
        ("accuracy", "level=level-3", 0, 1),
        ("toolrl_code", "", 0.5, 4),
        ("lenient", "", 0.75, 4),
        ("typed", "", 0.5, 4),
        ("name", "", 0.75, 4),
        ("readable", "", 0.75, 4),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "at its top: .*a list was expected"),
        ("[\n{]", "line 2: it is not JSON"),
        ("[{}]", "entry 0: .*KeyError: 'system'"),
        ('[{"system": 1, "user": "x", "answer": []}]', "entry 0: .*system must be a text"),
        ('[{"system": "a", "user": "x", "answer": []}]', "entry 0: .*ValueError"),
        ('[{"system": "a", "user": "x", "answer": [{"name": "f"}]}]', "entry 0: .*no call with name"),
        ("[null]", "entry 0: .*TypeError"),
    ],
)
def test_damage_is_named(folder: DataFolder, content: str, message: str) -> None:
    (folder.root / "api-bank/toolrl/level-2-api_processed.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"level-2-api_processed\.json, {message}"):
        ApiBank().load(folder, "all")


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>" + "[" * 100_000,
        "<tool_call>" + '{"name":' * 100_000,
        "<tool_call>" + "[\n" * 50_000,
        "<tool_call>" * 10_000,
        "<think>" * 100_000,
        "<tool_call>" + "1 " * 500_000,
        "<tool_call>" + "9" * 1_000_000,
        "<tool_call>" + " " * 1_000_000,
        '<tool_call>{"name": "OrderTea", "parameters": {"kind": ' + "[" * 900 + "]" * 900 + "}}",
        '<tool_call>{"name": "\\ud800", "parameters": {"\\ud800": NaN}}',
    ],
)
def test_hostile_replies_are_wrong_and_quick(items: list[Item], reply: str) -> None:
    with within(1):
        grade = graded(items[0], reply)
    assert grade.score == 0
    grade.explanation.encode()


def test_only_so_much_of_a_reply_is_read() -> None:
    assert calls_in(" " * 100_000 + block(call("Now"))) == []
    assert calls_in(" " * 99_000 + block(call("Now"))) == [Call("Now", {})]


def mutations(name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    changed = [{**parameters, key: value + "x"} for key, value in parameters.items()]
    dropped = [{k: v for k, v in parameters.items() if k != key} for key in parameters]
    renamed = [{(k + "_x" if k == key else k): v for k, v in parameters.items()} for key in parameters]
    moved = [*changed, *dropped, *renamed, {**parameters, "extra_x": "1"}]
    others = [{"name": name, "parameters": each} for each in moved]
    return [*others, {"name": name + "X", "parameters": parameters}]


def test_all_answers_are_right_and_no_mutation_is(samples: DataFolder, whose: str) -> None:
    bench = ApiBank()
    items = bench.load(samples, "all")
    n_items, n_parameters = {"ours": (4, 6), "official": (597, 1313)}[whose]
    assert (len(items), len({item.id for item in items})) == (n_items, n_items)
    wrong = 0
    for item in items:
        gold = item.data.gold
        right = bench.grade(item, {"reply": block({"name": gold.name, "parameters": gold.parameters})})
        assert {right.score, *right.measures.values()} == {1.0}
        for each in mutations(gold.name, dict(gold.parameters)):
            wrong += bench.grade(item, {"reply": block(each)}).score == 0
    assert wrong == 3 * n_parameters + 2 * n_items
