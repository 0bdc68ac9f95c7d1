"""API-Bank in ToolRL's form: 399 + 67 + 131 prompts, each with one recorded call.

The files have flaws. Every value is recorded as text, even if the prompt declares a number or a list (107
answers). Of the 597 recorded calls, 6 use a tool that the prompt does not offer, 8 give a parameter that it
does not declare, and 5, all of BookHotel, lost a value at a quotation mark. All 597 are scored as they are,
as in published results; the measure `typed` shows the effect of the types.

ToolRL's published code (`benchmarks/API-Bank/generate.py` and `evaluate.py` of github.com/qiancheng0/ToolRL,
8cee13e) differs from its paper's rule; it is the measure `toolrl_code`. It parses a reply, including
thoughts, from the last `<tool_call>` on, or completely if there is none; a call is one line. An object
without `name` or `parameters` counts as the parameters of the right tool. A value that is not an object, list
or text stops the parsing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from genenv.benchmarks.api_bank.questions import (
    MAX_REPLY_CHARS,
    Call,
    Question,
    call_of,
    calls_in,
    declared_in,
    difference,
    is_subset,
    reply_of,
    same_values,
    text_of,
)
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from genenv.types import Json


def right_by_code(reply: str, native: Sequence[Call], gold: Call) -> bool:
    """Return whether ToolRL's published code finds the recorded call in a reply.

    Args:
        reply: the text; only the end of a very long text is parsed.
        native: calls that an endpoint extracted, treated as if appended to the reply.
        gold: the recorded call.
    """
    values = [
        *_lines(reply[-MAX_REPLY_CHARS:]),
        *({"name": c.name, "parameters": c.parameters} for c in native),
    ]
    try:
        return any(_is_gold(value, gold) for value in values)
    except (TypeError, ValueError, LookupError, RecursionError):
        return False


def _lines(reply: str) -> Iterator[Any]:
    block = reply.strip().split("<tool_call>")[-1].split("</tool_call>")[0]
    for line in block.strip().split("\n"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _is_gold(value: Any, gold: Call) -> bool:  # noqa: ANN401
    call = cast("dict[str, Any]", json.loads(value) if isinstance(value, str) else value)
    if "name" not in call or "parameters" not in call:
        return call == gold.parameters
    return bool(call["name"] == gold.name and call["parameters"] == gold.parameters)


FILES: Mapping[str, str] = {
    level: f"api-bank/toolrl/{level}-api_processed.json" for level in ("level-1", "level-2", "level-3")
}


def read_toolrl(data: DataFolder, level: str) -> list[Item]:
    """Return the questions of a level.

    Raises:
        DataError: its file is missing, changed or damaged.
    """
    return data.entries(FILES[level], lambda place, entry: _item(level, place, entry))


def _item(level: str, place: int, entry: Any) -> Item:  # noqa: ANN401
    system, user = text_of(entry, "system"), text_of(entry, "user")
    gold = _gold(entry["answer"])
    question = Question(
        kind="call",
        messages=({"role": "system", "content": system}, {"role": "user", "content": user}),
        gold=gold,
        declared=declared_in(system, gold.name),
    )
    return Item(id=f"{level}/{place}", groups={"level": level}, data=question)


def _gold(answer: Any) -> Call:  # noqa: ANN401
    """Return the recorded call, which levels 1 and 3 wrap in a list."""
    (only,) = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
    gold = call_of(only)
    if gold is None:
        raise ValueError("the answer is no call with name and parameters")
    return gold


def grade_toolrl(question: Question, answer: Json) -> Grade:
    """Return score 1 if any call has the recorded name and exactly the recorded parameters: the paper's rule.

    Measures: `toolrl_code`, the verdict of ToolRL's published code; `lenient`, GenEnv's rule (`is_subset`);
    `typed`, values equal under their declared types (`same_values`); `name`, only the API's name is right;
    `readable`, the reply has a call.
    """
    gold, reply, native = question.gold, reply_of(answer), _native(answer)
    calls = [*calls_in(reply), *native]
    right = gold in calls
    named = [call for call in calls if call.name == gold.name]
    return Grade(
        score=float(right),
        explanation=f"{gold.name} as recorded." if right else f"{difference(gold, calls)}.",
        measures={
            "toolrl_code": float(right_by_code(reply, native, gold)),
            "lenient": float(any(is_subset(gold, call) for call in named)),
            "typed": float(
                any(same_values(call.parameters, gold.parameters, question.declared) for call in named)
            ),
            "name": float(bool(named)),
            "readable": float(bool(calls)),
        },
    )


def _native(answer: Json) -> list[Call]:
    """Return the calls that an endpoint extracted from the reply."""
    calls = answer.get("calls") if isinstance(answer, Mapping) else None
    found = [call_of(each) for each in calls] if isinstance(calls, list) else []
    return [call for call in found if call is not None]
