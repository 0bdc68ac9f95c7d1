"""Memories: filled by conversations in their order, asked about afterwards, kept for runs that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bfcl import benchmark as bfcl_benchmark
from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.data import MemoryTask, items_of
from genenv.benchmarks.bfcl.worker import Worker, worker
from genenv.chat.assistant import Reply
from genenv.chat.tool_calls import UNREADABLE
from genenv.errors import ContextOverflow, RolloutError, UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation.base import Item
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.evaluate import Request, evaluate, regrade
from genenv.evaluation.results import Outcome
from genenv.progress import Silent
from recited import Recited

OTHER = {"core_memory": {}, "archival_memory": {}}


@pytest.fixture
def tasks(small: Any) -> Any:
    """The questions of a kind of memory, each with the conversations before it."""

    def read(category: str = "memory_kv") -> list[Item]:
        small.fill_memory()
        return list(items_of(small.folder, category))

    return read


def held(benchmark: Bfcl, item: Item, *replies: Any, native: bool = False) -> Recited:
    """Hold a conversation that fills a memory, and keep what it left."""
    talk = Recited(*replies, native_tools=native)
    benchmark.held(item, asyncio.run(benchmark.attempt(item, talk)))
    return talk


def answered(benchmark: Bfcl, item: Item, *replies: Any, native: bool = False) -> tuple[float, Recited]:
    """The score of an answer, and the conversation."""
    talk = Recited(*replies, native_tools=native)
    answer = asyncio.run(benchmark.attempt(item, talk))
    return benchmark.grade(item, answer).score, talk


@pytest.mark.parametrize("native", [False, True])
def test_a_memory_goes_from_conversation_to_conversation_and_to_every_question(
    tasks: Any, native: bool
) -> None:
    first, second = tasks()[0].data.before
    benchmark, calls = Bfcl(), ["[core_memory_add(key='name', value='Ann')]", "Noted."]
    again = ["[core_memory_replace(key='name', value='Bea')]", "Noted."]
    forget = "[core_memory_clear()]"
    if native:
        calls[0] = [("core_memory_add", {"key": "name", "value": "Ann"})]  # type: ignore[call-overload]
        again[0] = [("core_memory_replace", {"key": "name", "value": "Bea"})]  # type: ignore[call-overload]
        forget = [("core_memory_clear", {})]  # type: ignore[assignment]
    talk = held(benchmark, first, *calls, native=native)
    assert "There is no content in the core memory at this point." in talk.heard[0][0]["content"]
    assert "Key-value pair added." in str(talk.heard[1][-1]["content"])
    assert '"name": "Ann"' in held(benchmark, second, *again, native=native).heard[0][0]["content"]
    for item in tasks()[:2]:
        score, talk = answered(benchmark, item, forget, "{'answer': 'Bea'}", native=native)
        assert '"name": "Bea"' in talk.heard[0][0]["content"]
        assert "you must respond in this format" in talk.heard[0][0]["content"]
        assert score == float(item is not None and item.id == "memory_kv_0-customer-0")


def test_the_other_kind_of_memory_is_one_text(tasks: Any) -> None:
    question = tasks("memory_rec_sum")[0]
    first, second = question.data.before
    benchmark = Bfcl()
    held(benchmark, first, "[memory_append(text='Ann. ')]", "Noted.")
    talk = held(benchmark, second, "[memory_append(text='Bea.')]", "Noted.")
    assert "from previous interactions:\nAnn. \n" in talk.heard[0][0]["content"]
    score, talk = answered(benchmark, question, "Bea")
    assert "from previous interactions:\nAnn. Bea.\n" in talk.heard[0][0]["content"]
    assert score == 1.0


def test_ids_are_those_of_the_official_run(tasks: Any) -> None:
    items = tasks("memory_rec_sum")
    assert [item.id for item in items] == [
        *("memory_rec_sum_0-customer-0", "memory_rec_sum_1-customer-1", "memory_rec_sum_2-student-2"),
    ]
    assert [item.id for item in items[0].data.before] == [
        *("memory_rec_sum_prereq_0-customer-0", "memory_rec_sum_prereq_1-customer-1"),
    ]
    chains = Bfcl().prerequisites(items)
    assert [[item.data.scenario for item in chain] for chain in chains] == [["customer"] * 2, ["student"]]
    assert Bfcl().prerequisites(items[:1]) == [items[0].data.before]


def test_a_first_conversation_starts_from_an_empty_memory_whatever_was_before(tasks: Any) -> None:
    first, _ = tasks()[0].data.before
    benchmark = Bfcl()
    held(benchmark, first, "[core_memory_add(key='name', value='Ann')]", "Noted.")
    assert "There is no content" in held(benchmark, first, "Hello.").heard[0][0]["content"]
    assert "There is no content" in held(benchmark, first, "Hello.").heard[0][0]["content"]


def test_a_conversation_that_did_not_fit_leaves_the_memory_as_it_was(tasks: Any) -> None:
    first, second = tasks()[0].data.before
    benchmark = Bfcl()
    held(benchmark, first, "[core_memory_add(key='name', value='Ann')]", "Noted.")
    benchmark.held(second, None)
    _, talk = answered(benchmark, tasks()[0], "Ann")
    assert '"name": "Ann"' in talk.heard[0][0]["content"]


def test_a_question_is_not_asked_before_its_memory_is_filled(tasks: Any) -> None:
    benchmark, question = Bfcl(), tasks()[0]
    held(benchmark, question.data.before[0], "Hello.")
    with pytest.raises(RolloutError, match="memory_kv_prereq_1-customer-1, which fills the memory, was not"):
        answered(benchmark, question, "Bea")


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("{'answer': 'Bea', 'context': 'It was said.'}", 1.0),
        ("BEA.", 1.0),
        ("b-e-a", 1.0),
        ("beatrice", 1.0),
        ("Beat", 0.0),
        ("Be a", 0.0),
        ("", 0.0),
        ("I do not know", 0.0),
        ("\ud800", 0.0),
        (None, 0.0),
        (7, 0.0),
    ],
)
def test_a_message_is_right_if_it_has_an_answer_in_it_but_for_marks_and_capitals(
    tasks: Any, said: Any, score: float
) -> None:
    assert Bfcl().grade(tasks()[0], {"turns": [[]], "said": said}).score == score


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    said=st.text(alphabet="Ab4 .,-_*^()/'\"\n", max_size=12) | st.text(max_size=12),
    possible=st.lists(st.text(alphabet="Ab4 .-'", min_size=1, max_size=5), min_size=1, max_size=3),
)
@example(said="June 26 ,2024", possible=["June 26, 2024"])
def test_messages_are_graded_as_the_official_checker_does(said: str, possible: list[str]) -> None:
    from bfcl_eval.eval_checker.agentic_eval.agentic_checker import agentic_checker

    turns = [[{"role": "user", "content": "?"}]]
    task = MemoryTask(
        id="memory_kv_0-student-0",
        category="memory_kv",
        scenario="student",
        turns=turns,
        functions=[],
        possible=possible,
    )
    item = Item(id=task.id, groups={"category": "memory_kv"}, data=task)
    right = bool(said) and agentic_checker(said, possible)["valid"]
    assert Bfcl().grade(item, {"turns": [[]], "said": said}).score == float(right)


@pytest.mark.parametrize("answer", [None, 7, [], {}, {"text": "Bea"}, {"said": ["Bea"]}])
def test_no_answer_of_a_wrong_shape_is_right(tasks: Any, answer: Any) -> None:
    assert Bfcl().grade(tasks()[0], answer).score == 0.0


def test_too_many_steps_leave_no_last_message(tasks: Any) -> None:
    benchmark, question = Bfcl(BfclSettings(max_steps=2)), tasks()[0]
    for item in question.data.before:
        held(benchmark, item, "Hello.")
    talk = Recited(*["[core_memory_clear()]"] * 9)
    answer: Any = asyncio.run(benchmark.attempt(question, talk))
    assert answer == {"turns": [[["core_memory_clear()"]] * 3], "said": None}
    assert benchmark.grade(question, answer).explanation == "There is no last message without calls."


def test_a_call_that_cannot_be_read_is_the_last_message_as_officially(tasks: Any) -> None:
    benchmark, question = Bfcl(), tasks()[0]
    for item in question.data.before:
        held(benchmark, item, "Hello.")
    talk = Recited([("Bea", dict(UNREADABLE))], native_tools=True)
    answer: Any = asyncio.run(benchmark.attempt(question, talk))
    assert answer["said"] == "{'Bea': '{'}"
    assert benchmark.grade(question, answer).score == 1.0


def test_calls_change_nothing_but_the_memory_and_cannot_reach_further(tasks: Any, tmp_path: Path) -> None:
    question = tasks()[0]
    calls = [
        "core_memory_add(key='a', value='x')",
        "_flush_memory_to_local_file()",
        "_load_scenario({})",
        f"core_memory_add(key='b', value=open({str(tmp_path / 'made')!r}, 'w'))",
        "archival_memory_key_search(query='x')",
        "core_memory_add(key='Bad Key', value='x')",
    ]
    found = worker().ask("remember", api="MemoryAPI_kv", memory=OTHER, calls=calls, entry_id=question.id)
    assert found["memory"] == {"core_memory": {"a": "x"}, "archival_memory": {}}
    assert [result.startswith("Error during execution") for result in found["results"]] == [
        *(False, True, True, True, True, False),
    ]
    assert not (tmp_path / "made").exists()


@pytest.mark.long
def test_calls_that_take_too_much_change_nothing(short: Worker) -> None:
    big = {"core_memory": {}, "archival_memory": {"a": "x", "b": "y"}}
    calls = [f"archival_memory_key_search(query={'x ' * 50_000!r})"] * 20
    arguments = {"api": "MemoryAPI_kv", "memory": big, "calls": calls, "entry_id": "memory_kv_0-customer-0"}
    with pytest.raises(Exception, match="it takes more than"):
        short.ask("remember", **arguments)
    assert short.ask("remember", **{**arguments, "calls": []})["memory"] == big


# Whole evaluations.


class Noting:
    """A model that notes names, forgets nothing, and answers from what it is shown of its memory."""

    name, native_tools = "noting", False

    def __init__(self, fails: str = "", overflows: str = "", workers: int = 2) -> None:
        self.fails, self.overflows, self.workers = fails, overflows, workers
        self.asked: list[str] = []

    def concurrency(self, *, many_turns: bool) -> int:
        return self.workers

    def talk(self, seed: int, *, many_turns: bool) -> Any:
        return self

    async def __call__(self, messages: Sequence[Any], **_: Any) -> Reply:
        await asyncio.sleep(0)
        shown, said = (
            messages[0]["content"].partition("from previous interactions:")[2],
            messages[-1]["content"],
        )
        self.asked.append(said)
        if self.fails and self.fails in said:
            raise RolloutError("the server is down")
        if self.overflows and self.overflows in said:
            raise ContextOverflow("it is too long")
        if said.startswith("My name is "):
            call = (
                "core_memory_add(key='name_{}', value={!r})"
                if "Core Memory" in messages[0]["content"]
                else ""
            )
            text = call.format(len(shown), said) if call else f"memory_append(text={said + ' '!r})"
        else:
            text = "Noted." if said.startswith("[{'role'") else f"{{'answer': {shown!r}}}"
        return Reply(text=text, prompt_tokens=100, tokens=10)

    def describe(self) -> dict[str, Any]:
        return {"kind": "noting"}

    def spending(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def measure(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluate a model on the small memories."""
    small.fill_memory()
    monkeypatch.setattr(bfcl_benchmark, "data_folder", lambda: small.root)

    def run(model: Noting, *, overrides: Sequence[str] = (), **changes: Any) -> Outcome:
        monkeypatch.setattr(evaluation, "assistant", lambda *_: model)
        fields: dict[str, Any] = {"names": ["bfcl"], "policy": "p", "split": "memory", "changed_data": True}
        request = Request(**{**fields, "out": tmp_path / "r.jsonl", **changes})
        return next(evaluate(request, load_evaluation_config(overrides), Silent()))

    return run


def kept(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "r.prerequisites.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_conversations_come_first_and_are_in_no_figure(measure: Any, tmp_path: Path) -> None:
    model = Noting()
    outcome = measure(model)
    assert [record.score for record in outcome.records] == [1.0, 1.0, 0.0] * 2
    figures = {figure.name: figure for figure in outcome.figures if not figure.group}
    assert (figures["memory_kv_and_rec_sum"].value, figures["memory_kv_and_rec_sum"].items) == (2 / 3, 6)
    asked = [said for said in model.asked if not said.startswith("[{'role'")]
    assert asked.index("What is my name?") > max(i for i, said in enumerate(asked) if said.startswith("My"))
    summary = json.loads((tmp_path / "r.summary.json").read_text())
    assert summary["items"] == 6
    assert summary["prerequisites"] == {
        **{"conversations": 6, "failed": 0, "overflow": 0},
        "tokens": {"prompt": 1000, "sampled": 100, "replies": 10, "cut": 0},
    }
    assert sorted(record["id"] for record in kept(tmp_path)) == [
        *("memory_kv_prereq_0-customer-0", "memory_kv_prereq_0-student-0", "memory_kv_prereq_1-customer-1"),
        *("memory_rec_sum_prereq_0-customer-0", "memory_rec_sum_prereq_0-student-0"),
        "memory_rec_sum_prereq_1-customer-1",
    ]


def test_a_run_that_is_continued_holds_no_conversation_twice(measure: Any, tmp_path: Path) -> None:
    outcome = measure(Noting(fails="What is my name?"))
    assert [record.id for record in outcome.failed] == [
        *("memory_kv_0-customer-0", "memory_rec_sum_0-customer-0"),
    ]
    before, again = kept(tmp_path), Noting()
    outcome = measure(again, resume=True)
    assert again.asked == ["What is my name?"] * 2
    assert [record.score for record in outcome.records] == [1.0, 1.0, 0.0] * 2
    assert kept(tmp_path) == before


def test_where_a_conversation_fails_its_questions_wait_for_the_next_run(measure: Any, tmp_path: Path) -> None:
    outcome = measure(Noting(fails="Bea now", workers=1))  # which gives up after two failures in a row
    assert [record.id for record in outcome.failed] == [
        *(f"{kind}_{at}-customer-{at}" for kind in ("memory_kv", "memory_rec_sum") for at in (0, 1)),
    ]
    assert (
        "memory_kv_prereq_1-customer-1, which fills the memory, was not held" in outcome.failed[0].explanation
    )
    again = Noting()
    outcome = measure(again, resume=True)
    assert not outcome.failed
    assert [record.score for record in outcome.records] == [1.0, 1.0, 0.0] * 2
    assert "My name is Ann." not in again.asked
    assert again.asked.count("My name is Bea now.") == 2


def test_a_conversation_that_overflows_is_counted_and_the_chain_goes_on(measure: Any, tmp_path: Path) -> None:
    outcome = measure(Noting(overflows="My name is Ann"))
    assert [record.score for record in outcome.records] == [1.0, 0.0, 0.0] * 2
    assert json.loads((tmp_path / "r.summary.json").read_text())["prerequisites"]["overflow"] == 2


def test_a_limit_holds_only_the_conversations_that_its_items_need(measure: Any, tmp_path: Path) -> None:
    measure(Noting(), limit=2)
    assert {record["id"].split("-")[1] for record in kept(tmp_path)} == {"customer"}


@pytest.mark.parametrize("resume", [False, True])
def test_another_run_starts_from_empty_memories(measure: Any, tmp_path: Path, resume: bool) -> None:
    measure(Noting())
    for name in ("r.jsonl", "r.summary.json"):
        (tmp_path / name).unlink()
    model = Noting()
    measure(model, resume=resume)  # no summary says whose conversations these are
    assert model.asked.count("My name is Ann.") == 2


def test_regrading_keeps_the_account_of_the_conversations(measure: Any, tmp_path: Path) -> None:
    measure(Noting())
    before = json.loads((tmp_path / "r.summary.json").read_text())
    (outcome,) = regrade([tmp_path / "r.jsonl"], None, changed_data=True)
    after = json.loads((tmp_path / "r.summary.json").read_text())
    assert after["figures"] == before["figures"]
    assert after["prerequisites"] == before["prerequisites"]
    assert after["leaderboard"] == before["leaderboard"]
    assert len(outcome.records) == 6


def test_costs_are_those_of_the_endpoints_prices_and_are_kept_when_answers_are_graded_again(
    measure: Any, tmp_path: Path
) -> None:
    prices = ["endpoint.price_in=1000", "endpoint.price_out=10000"]
    outcome = measure(Noting(), policy="openai:http://localhost/v1#m", overrides=prices)
    asked = outcome.tokens("replies")
    cost = asked * (100 * 1000 + 10 * 10000) / 1_000_000  # what filled the memories is not part of it
    summary = json.loads((tmp_path / "r.summary.json").read_text())
    assert summary["leaderboard"]["columns"]["Total Cost ($)"] == str(round(cost, 2)) == "1.2"
    assert outcome.notes[-1] == "total cost: 1.2, in the currency of the prices"
    assert all(len(record.latencies_s) == record.tokens["replies"] for record in outcome.records)
    (again,) = regrade([tmp_path / "r.jsonl"], None, changed_data=True)
    assert again.leaderboard == outcome.leaderboard
    assert "26.7%" not in " ".join(again.notes)  # nothing of an overall was measured


def test_a_missing_package_is_named_before_anything_is_asked(
    measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfcl_benchmark, "_memory_problem", lambda: "No module named 'rank_bm25'")
    with pytest.raises(UsageError, match=r"No module named 'rank_bm25'.*rank-bm25==0\.2\.2"):
        measure(Noting())


class TestRealData:
    """The data of the installed package."""

    def test_every_question_has_the_conversations_of_its_scenario_before_it(self, tmp_path: Path) -> None:
        from genenv.evaluation.data import DataFolder

        items = Bfcl().load(DataFolder(tmp_path), "memory_rec_sum")
        chains = Bfcl().prerequisites(items)
        sizes = {chain[0].data.scenario: len(chain) for chain in chains}
        assert sizes == {"customer": 10, "healthcare": 5, "finance": 7, "student": 10, "notetaker": 5}
        assert all(chain[0].data.first and not chain[1].data.first for chain in chains)
        assert all(item.data.possible and item.data.before for item in items)
