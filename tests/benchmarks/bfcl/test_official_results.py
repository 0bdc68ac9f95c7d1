"""Answers become the result files of bfcl-eval, whose handlers decode them to the calls that were graded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.data import items_of
from genenv.benchmarks.bfcl.multi_turn import native_commands
from genenv.benchmarks.bfcl.official import commands
from genenv.chat.tool_calls import UNREADABLE
from genenv.evaluation.results import Record
from genenv.evaluation.runner import Runner
from recited import Recited

TEXT, NATIVE = "result/gpt-4o-mini-2024-07-18", "result/gpt-4o-mini-2024-07-18-FC"


@pytest.fixture
def exported(small: Any) -> Any:
    """The one file and the one line of an item that a scripted model answered, and its record."""

    def export(category: str, replies: list[Any], *, native: bool = False) -> tuple[str, Any, Record]:
        class Assistant:
            def concurrency(self, *, many_turns: bool) -> int:
                return 1

            def talk(self, seed: int, *, many_turns: bool) -> Any:
                return Recited(*replies, native_tools=native)

        kept: list[Record] = []
        benchmark, item = Bfcl(), small.item(category)
        assistant: Any = Assistant()
        asyncio.run(Runner(benchmark, assistant, seed=0, keep=kept.append).items([item]))
        ((path, text),) = benchmark.export([(item, kept[0])], "p").items()
        (line,) = text.splitlines()
        return path, json.loads(line), kept[0]

    return export


def test_a_reply_in_text_is_exported_without_its_thoughts(exported: Any) -> None:
    path, line, _ = exported("simple_python", ["<think>Hm.</think>\n[hotel.book(city='Ems', nights=3)]"])
    assert path == f"{TEXT}/non_live/BFCL_v4_simple_python_result.json"
    assert line == {
        "id": "simple_python_0",
        "result": "[hotel.book(city='Ems', nights=3)]",
        "input_token_count": 0,
        "output_token_count": 0,
        "latency": line["latency"],
    }


def test_half_a_surrogate_pair_which_the_official_run_cannot_write_is_replaced(exported: Any) -> None:
    _, line, _ = exported("simple_python", ["It is \ud800."])
    assert line["result"] == "It is \ufffd."


def test_native_calls_are_exported_with_their_arguments_as_json(exported: Any) -> None:
    path, line, _ = exported("live_relevance", [[("hotel_book", {"city": "Ems"})]], native=True)
    assert path == f"{NATIVE}/live/BFCL_v4_live_relevance_result.json"
    assert line["result"] == [{"hotel_book": '{"city": "Ems"}'}]


def test_arguments_that_are_no_json_are_none_in_the_file_either(exported: Any) -> None:
    _, line, record = exported("irrelevance", [[("f", dict(UNREADABLE))]], native=True)
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(line["result"][0]["f"])
    assert record.score == 1.0


def steps_in(turn: list[Any], *, native: bool) -> list[list[str]]:
    """What bfcl-eval makes of the replies of a turn: those that cannot be decoded are passed over."""
    found: list[list[str]] = []
    for reply in turn:
        try:
            if native:
                pairs = [(name, json.loads(words)) for call in reply for name, words in call.items()]
                found.append(native_commands(pairs))
            else:
                found.append(commands(reply))
        except AttributeError:
            continue
    return [step for step in found if step]


@pytest.mark.parametrize("native", [False, True])
def test_a_conversation_is_exported_turn_by_turn_with_the_reply_that_ends_each(
    exported: Any, native: bool
) -> None:
    calls: list[Any] = (
        [[("mkdir", {"dir_name": "new"})], [("cd", {"folder": "new"})], "Done.", [("pwd", {})], ""]
        if native
        else ["[mkdir(dir_name='new')]", "[cd(folder='new')]", "Done.", "[pwd()]", "<think>x</think>There."]
    )
    path, line, record = exported("multi_turn_base", calls, native=native)
    assert path.endswith("/multi_turn/BFCL_v4_multi_turn_base_result.json")
    assert path.startswith(NATIVE if native else f"{TEXT}/")
    assert [len(turn) for turn in line["result"]] == [3, 2]
    assert line["result"][0][2] == "Done."
    assert line["result"][1][1] == ("" if native else "There.")
    answer: Any = record.answer
    assert [steps_in(turn, native=native) for turn in line["result"]] == answer["turns"]


def test_a_conversation_that_was_cut_off_by_too_many_steps_lacks_its_turns(exported: Any) -> None:
    _, line, record = exported("multi_turn_base", ["[ls()]"] * 30)
    assert [len(turn) for turn in line["result"]] == [21]
    assert record.score == 0


def test_what_did_not_fit_is_told_as_the_official_run_tells_it(small: Any) -> None:
    item = small.item("irrelevance")
    record = Record(
        id=item.id, groups={}, status="overflow", score=0.0, measures={}, explanation="It is too long."
    )
    ((_, text),) = Bfcl().export([(item, record)], "p").items()
    assert json.loads(text)["result"] == "Error during inference: It is too long."


def test_a_record_that_somebody_changed_is_left_out_and_the_papers_protocol_has_no_export(small: Any) -> None:
    item = small.item("multi_turn_base")
    for answer in ({"turns": [[["ls()"]]]}, {"turns": 7}, {"calls": [7]}, {}):
        record = Record(
            id=item.id, groups={}, status="graded", score=0.0, measures={}, explanation="", answer=answer
        )
        assert Bfcl().export([(item, record)], "p") == {}
        assert Bfcl(BfclSettings(protocol="genenv")).export([(item, record)], "p") == {}


@pytest.mark.parametrize("native", [False, True])
def test_a_question_about_a_memory_is_exported_with_the_latency_of_each_reply(
    small: Any, native: bool
) -> None:
    small.fill_memory()
    benchmark, item = Bfcl(), next(items_of(small.folder, "memory_rec_sum"))
    for before in item.data.before:
        benchmark.held(before, None)
    call = [("memory_clear", {})] if native else "[memory_clear()]"
    kept: list[Record] = []
    assistant: Any = SimpleNamespace(
        concurrency=lambda **_: 1, talk=lambda *_, **__: Recited(call, "Bea", native_tools=native)
    )
    asyncio.run(Runner(benchmark, assistant, seed=0, keep=kept.append).items([item]))
    record = replace(kept[0], latencies_s=[0.5, 0.25])
    ((path, text),) = benchmark.export([(item, record)], "p").items()
    model = NATIVE if native else TEXT
    assert path == f"{model}/agentic/memory/rec_sum/BFCL_v4_memory_rec_sum_result.json"
    line = json.loads(text)
    said = [{"memory_clear": "{}"}] if native else call
    assert (line["id"], line["result"]) == ("memory_rec_sum_0-customer-0", [[said, "Bea"]])
    assert [taken for turn in line["latency"] for taken in turn] == [0.5, 0.25]


def test_format_sensitivity_is_exported_under_its_long_ids(small: Any) -> None:
    item = small.formats()[0]
    record = Record(
        **{"id": item.id, "groups": {}, "status": "graded", "score": 0.0, "measures": {}, "explanation": ""},
        answer={"text": "[]"},
        latencies_s=[0.5],
    )
    ((path, text),) = Bfcl().export([(item, record)], "p").items()
    assert path == f"{TEXT}/format_sensitivity/BFCL_v4_format_sensitivity_result.json"
    assert json.loads(text)["latency"] == 0.5
    assert json.loads(text)["id"].startswith("format_sensitivity_0:ret_fmt=python&tool_call_tag=True&")
