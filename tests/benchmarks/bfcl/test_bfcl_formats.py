"""Format sensitivity: the same questions under 26 formats of the prompt, and calls read in each."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.data import items_of, prompt_formats
from genenv.errors import DataError, UsageError
from genenv.evaluation.base import Grade, Item
from recited import Recited

CALLS = {
    "python": "[hotel.book(city='Ems', nights=3)]",
    "json": '```json\n[{"function": "hotel.book", "parameters": {"city": "Ems", "nights": 3}}]\n```',
    "verbose_xml": '<functions><function name="hotel.book"><params><param name="city" value="Ems" '
    'type="string"/><param name="nights" value="3" type="integer"/></params></function></functions>',
    "concise_xml": '<functions><function name="hotel.book"><param name="city" type="string">Ems</param>'
    '<param name="nights" type="integer">3</param></function></functions>',
}
"""The same right call in every format."""


def form_of(item: Item) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in item.data.prompt_format.split("&"))


def right_for(item: Item) -> str:
    form = form_of(item)
    text = CALLS[form["ret_fmt"]]
    return f"<TOOLCALL>{text}</TOOLCALL>" if form["tool_call_tag"] == "True" else text


def test_there_are_26_formats_each_once_and_the_default_is_one() -> None:
    from bfcl_eval.constants.default_prompts import DEFAULT_SYSTEM_PROMPT_FORMAT

    formats = prompt_formats()
    assert len(set(formats)) == len(formats) == 26
    assert DEFAULT_SYSTEM_PROMPT_FORMAT in formats


def test_every_item_is_asked_under_every_format(small: Any) -> None:
    items = small.formats()
    assert len(items) == 52
    assert items[26].id == f"format_sensitivity_26:{prompt_formats()[0]}:parallel_0"
    assert {item.cluster for item in items} == {"simple_python_0", "parallel_0"}


def test_a_call_is_right_in_its_format_and_wrong_in_another(small: Any) -> None:
    benchmark = Bfcl()
    for item in small.formats()[:26]:
        form = form_of(item)
        assert benchmark.grade(item, {"text": right_for(item)}).score == 1.0
        others = {name: text for name, text in CALLS.items() if name != form["ret_fmt"]}
        for text in others.values():
            assert benchmark.grade(item, {"text": text}).score == 0.0
        if form["tool_call_tag"] == "True":
            assert benchmark.grade(item, {"text": CALLS[form["ret_fmt"]]}).score == 0.0


def test_the_prompt_is_in_the_items_format(small: Any) -> None:
    prompts: dict[str, str] = {}
    for item in small.formats()[:26]:
        talk = Recited(right_for(item))
        answer = asyncio.run(Bfcl().attempt(item, talk))
        assert answer == {"text": right_for(item)}
        prompts[item.data.prompt_format] = talk.heard[0][0]["content"]
    assert len(set(prompts.values())) == 26
    for name, prompt in prompts.items():
        assert ("<TOOLCALL>" in prompt) == ("tool_call_tag=True" in name)
        assert ('<function name="hotel.book">' in prompt) == ("func_doc_fmt=xml" in name)
        assert ("# Function: hotel.book" in prompt) == ("func_doc_fmt=python" in name)
        assert prompt.count("Note that the provided function is in Python 3 syntax.") == 2  # as officially
        assert ("## Task" in prompt) == ("prompt_fmt=markdown" in name)


def test_a_model_with_its_own_format_for_calls_is_not_asked(small: Any) -> None:
    with pytest.raises(
        UsageError, match=r"format_sensitivity is about prompts in text.*bfcl\.prompting=text"
    ):
        asyncio.run(Bfcl().attempt(small.formats()[0], Recited(native_tools=True)))


def test_the_spread_over_formats_is_measured_as_officially(small: Any) -> None:
    items = small.formats()
    right = {0: 2, 1: 1}  # of the first format both are right, of the second one is
    graded = [
        (item, Grade(score=float(right.get(at % 26, 0) > at // 26), explanation="."))
        for at, item in enumerate(items)
    ]
    figures = Bfcl().figures(graded)
    assert [figure.name for figure in figures[:3]] == [
        *("format_sensitivity_max_delta", "format_sensitivity_std", "format_sensitivity_accuracy"),
    ]
    mean = 1.5 / 26
    variance = ((1 - mean) ** 2 + (0.5 - mean) ** 2 + 24 * mean**2) / 25
    assert figures[0].value == 1.0
    assert figures[1].value == pytest.approx(math.sqrt(variance))
    assert figures[2].value == pytest.approx(3 / 52)
    by_format = [figure for figure in figures if figure.group.startswith("format=")]
    assert [figure.value for figure in by_format[:3]] == [1.0, 0.5, 0.0]
    assert len(by_format) == 26


def test_one_format_alone_has_no_spread(small: Any) -> None:
    figures = Bfcl().figures([(small.formats()[0], Grade(score=1.0, explanation="."))])
    assert [figure.value for figure in figures[:2]] == [0.0, 0.0]


@pytest.mark.parametrize("text", ["[]", '{"simple_python": 7}', "7", "{"])
def test_a_damaged_list_of_items_is_named(small: Any, text: str) -> None:
    small.formats()
    (small.root / "BFCL_v4_format_sensitivity.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"BFCL_v4_format_sensitivity\.json"):
        list(items_of(small.folder, "format_sensitivity"))


BOMBS = [
    '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><functions><function name="&d;"/></functions>',
    "<functions>" + "<a>" * 50_000,
    "[" * 10_000,
    '[{"function": 7, "parameters": "x"}]',
    '[{"function": "hotel.book"}]',
    "<TOOLCALL></TOOLCALL>",
    '<functions><function name="f"><param name="a" type="dict">{}["a"]</param></function></functions>',
    '<functions><function name="f"><param name="a" type="array">f()</param></function></functions>',
]


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
def test_no_reply_in_any_format_raises_or_is_run(small: Any, text: str) -> None:
    benchmark = Bfcl()
    for item in small.formats()[:26:5]:
        assert benchmark.grade(item, {"text": text}).score == 0.0
