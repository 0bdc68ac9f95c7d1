from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bamboogle import COPIES, MAIN, Bamboogle, BamboogleConfig, Question, says_yes
from genenv.chat.assistant import Reply, ToolCall
from genenv.errors import DataError, UsageError
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder
from recited import Recited

ITEM = Item(id="q_1", groups={}, data=Question("Which river?", ("the Tarn",)))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    lines = [
        {"title": "Arvonia", "text": "Arvonia is a country. Its capital is Belmar."},
        {"title": "Belmar", "text": "Belmar is a city on the river Tarn."},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def searching(corpus: Path, data: DataFolder, **more: Any) -> Bamboogle:
    pytest.importorskip("bm25s")
    bench = Bamboogle(BamboogleConfig(mode="search", corpus=str(corpus), **more))
    bench.load(data, "all")
    return bench


def test_questions_are_read_in_order_and_every_file_is_hashed(folder: DataFolder) -> None:
    items = Bamboogle().load(folder, "all")
    assert [item.id for item in items] == ["q_1", "q_2"]
    assert items[1].data.right == ("3 May 1871", "May 3, 1871")
    assert set(folder.hashes) == {MAIN, *COPIES}


def test_copies_may_be_missing_but_must_agree(folder: DataFolder) -> None:
    first, second = (folder.root / name for name in COPIES)
    first.unlink()
    assert len(Bamboogle().load(folder, "all")) == 2
    second.write_text(second.read_text(encoding="utf-8").replace("Tarn", "Turn"), encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.json, entry 0: it is not what"):
        Bamboogle().load(folder, "all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "at its top"),
        ("[", "line 1: it is not JSON"),
        ("[{}]", "entry 0: .*KeyError: 'answer'"),
        ('[{"Question": 3, "id": "a", "answer": ["x"]}]', "entry 0: .*a text was expected"),
        ('[{"Question": "x", "id": "a", "answer": []}]', "entry 0: .*no answer"),
        ('[{"Question": "x", "id": "a", "answer": "y"}]', "entry 0: .*a list was expected"),
        ("[7]", "entry 0: .*TypeError"),
    ],
)
def test_damage_is_named(folder: DataFolder, content: str, message: str) -> None:
    (folder.root / MAIN).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"bamboogle\.json, {message}"):
        Bamboogle().load(folder, "all")


def test_closed_book_asks_once_and_the_answer_is_graded() -> None:
    talk = Recited("The capital is Belmar.\nAnswer: Tarn.")
    answer = asyncio.run(Bamboogle().attempt(ITEM, talk))
    assert answer == {"reply": "The capital is Belmar.\nAnswer: Tarn."}
    assert talk.heard[0][0]["content"].endswith("Question: Which river?")
    grade = Bamboogle().grade(ITEM, json.loads(json.dumps(answer)))
    assert (grade.score, grade.measures) == (1, {"f1": 1, "sub_em": 1})
    assert grade.explanation == "The answer is 'Tarn.', as wanted."


def test_a_wrong_answer_explains_itself() -> None:
    grade = Bamboogle().grade(ITEM, {"reply": "the Po"})
    assert (grade.score, grade.explanation) == (0, "The answer is 'the Po'; 'the Tarn' was wanted.")
    assert Bamboogle().grade(ITEM, None).explanation == "There is no answer; 'the Tarn' was wanted."


def test_the_headline_is_exact_match() -> None:
    graded = [(ITEM, Bamboogle().grade(ITEM, {"reply": text})) for text in ("Tarn", "the river Tarn")]
    figures = {figure.name: figure.value for figure in Bamboogle().figures(graded)}
    assert figures == {"exact_match": 0.5, "f1": pytest.approx((1 + 2 / 3) / 2), "sub_em": 1}
    assert next(iter(figures)) == "exact_match"


def test_searching_by_text_shows_passages_and_cuts_what_was_made_up(corpus: Path, folder: DataFolder) -> None:
    bench = searching(corpus, folder)
    talk = Recited(
        "First the capital.\nSearch: capital of Arvonia\nPassages: none\nAnswer: Po",
        "<search>Belmar river</search>",
        "Answer: Tarn\nSearch: more",
    )
    answer = asyncio.run(bench.attempt(ITEM, talk))
    assert answer == {"reply": "Answer: Tarn\nSearch: more", "searches": 2}
    said, shown = talk.heard[1][1:]
    assert said == {"role": "assistant", "content": "First the capital.\nSearch: capital of Arvonia"}
    assert shown["role"] == "user"
    assert "Its capital is Belmar." in shown["content"]
    assert "river Tarn" in talk.heard[2][-1]["content"]
    assert talk.offered == [[], [], []]


def test_searching_by_tool_answers_every_call(corpus: Path, folder: DataFolder) -> None:
    bench = searching(corpus, folder)
    calls = (
        ToolCall(name="search", arguments={"query": "Belmar"}, id="c7"),
        ToolCall(name="look", arguments={"query": "Belmar"}),
        ToolCall(name="search", arguments={"query": ["Belmar"]}),
    )
    talk = Recited(Reply(text="", calls=calls), "Answer: Tarn", native_tools=True)
    answer = asyncio.run(bench.attempt(ITEM, talk))
    assert answer == {"reply": "Answer: Tarn", "searches": 1}
    assert talk.offered[0] == ["search"]
    results = talk.heard[1][2:]
    assert [result["tool_call_id"] for result in results] == ["c7", "call_1", "call_2"]
    assert "river Tarn" in results[0]["content"]
    assert [result["content"] for result in results[1:]] == ["Only search(query) can be called."] * 2


def test_searches_end(corpus: Path, folder: DataFolder) -> None:
    bench = searching(corpus, folder, max_searches=2)
    talk = Recited(*["Search: Belmar"] * 4)
    answer = asyncio.run(bench.attempt(ITEM, talk))
    assert answer == {"reply": "Search: Belmar", "searches": 2}
    assert len(talk.heard) == bench.most_replies(ITEM)
    assert talk.heard[3][-1]["content"] == "No searches are left. Give the final answer now."
    assert bench.grade(ITEM, answer).score == 0


def test_mode_search_needs_a_corpus(folder: DataFolder) -> None:
    with pytest.raises(UsageError, match="set corpus"):
        Bamboogle(BamboogleConfig(mode="search")).load(folder, "all")
    with pytest.raises(UsageError, match=r"no file 'gone\\x00'; check the setting corpus"):
        Bamboogle(BamboogleConfig(mode="search", corpus="gone\0")).load(folder, "all")


def test_the_summary_says_what_was_searched_and_who_judged(
    corpus: Path, folder: DataFolder, reciter: Any
) -> None:
    assert Bamboogle().describe() == {"mode": "closed_book", "answers": "boxes opened"}
    bench = searching(corpus, folder)
    bench.judge = reciter("yes")
    told = bench.describe()
    assert len(str(told["corpus_sha256"])) == 64
    assert told["judge"] == {"prompt_version": "1", "model": "reciter"}


@pytest.mark.parametrize(("verdict", "value"), [("Yes.", 1), ("no", 0), ("", 0)])
def test_a_judge_is_asked_about_the_final_answer(verdict: str, value: float, reciter: Any) -> None:
    bench = Bamboogle()
    bench.judge = reciter(verdict)
    answer = asyncio.run(bench.attempt(ITEM, Recited("Answer: the river Tarn")))
    assert answer == {"reply": "Answer: the river Tarn", "judge": verdict}
    asked = bench.judge.talks[0].heard[0][0]["content"]
    assert asked.endswith("Question: Which river?\nRight answer: the Tarn\nGiven answer: the river Tarn")
    assert bench.grade(ITEM, answer).measures["judge"] == value


@pytest.mark.parametrize(
    ("verdict", "yes"),
    [
        ("yes", True),
        ("**Yes**, it does. No doubt.", True),
        ("No, not yes", False),
        ("eyes", False),
        ("<think>no?</think> yes", True),
    ],
)
def test_verdicts_are_read(verdict: str, yes: bool) -> None:
    assert says_yes(verdict) is yes


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["reply", "judge", "searches"]), inner),
    max_leaves=8,
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(JSON)
def test_grading_never_raises(answer: Any) -> None:
    grade = Bamboogle().grade(ITEM, answer)
    assert 0 <= grade.score <= 1
    grade.explanation.encode()
    assert "\n" not in grade.explanation


def test_all_answers_are_right_and_others_are_not(questions: DataFolder, whose: str) -> None:
    bench = Bamboogle()
    items = bench.load(questions, "all")
    count = {"ours": 2, "official": 125}[whose]
    assert (len(items), len({item.id for item in items})) == (count, count)
    grades = [bench.grade(item, {"reply": f"So.\nAnswer: {item.data.right[0]}"}) for item in items]
    assert all(grade.score == grade.measures["f1"] == grade.measures["sub_em"] == 1 for grade in grades)
    others = [bench.grade(item, {"reply": "Answer: none of these"}) for item in items]
    assert sum(grade.score for grade in others) == 0
