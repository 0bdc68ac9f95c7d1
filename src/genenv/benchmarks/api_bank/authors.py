"""API-Bank in its authors' form: prompts are `instruction` and `input`, as they publish them.

What they do: read `[ApiName(key='value', ...)]`, call the API on a fresh database, and compare with the
recorded result, API by API. Their implementations are no part of the data, so requests are compared instead:
equal name, the same parameters, and values that are the same under the API's own description
(`genenv.benchmarks.api_bank.values`). This differs from an executed score both ways: two requests with the
same result are different here, which matters most for `ToolSearcher`, where any words that find the tool are
right there; and a request that the database refuses is right here if it is the recorded one. So the figure is
called `request_match`, and requests to search and to call are told apart in it.

Thoughts, between `<think>` and `</think>`, are no part of a reply. Responses: ROUGE-L against the recorded
one, without "AI:" and "User:", as the authors' level-3 evaluation takes them out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from genenv.benchmarks.api_bank.calls import MAX_REPLY_CHARS, difference
from genenv.benchmarks.api_bank.questions import Question, reply_of, text_of
from genenv.benchmarks.api_bank.requests import request_in
from genenv.benchmarks.api_bank.rouge import rouge_l
from genenv.benchmarks.api_bank.values import declared_in, same_value
from genenv.chat.reasoning import without_thoughts
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from genenv.types import Json

REQUESTS: Mapping[str, str] = {
    "level-1-api": "api-bank/test-data/level-1-api.json",
    "level-2-api": "api-bank/test-data/level-2-api.json",
    "level-3-batch": "api-bank/test-data/level-3-batch-inf.json",
    "level-3-batch-icl": "api-bank/test-data/level-3-batch-inf-icl.json",
}
RESPONSES: Mapping[str, str] = {
    "level-1-response": "api-bank/test-data/level-1-response.json",
    "level-2-response": "api-bank/test-data/level-2-response.json",
    "level-3-response": "api-bank/test-data/level-3-batch-inf-response.json",
}
_SEARCH = "ToolSearcher"


def read_authors(data: DataFolder, part: str) -> list[Item]:
    """The questions of a part.

    Raises:
        DataError: its file is missing, changed or damaged.
    """
    name = {**REQUESTS, **RESPONSES}[part]
    read = _request if part in REQUESTS else _response
    items = data.entries(name, lambda place, entry: read(part, place, entry))
    sizes = Counter(item.data.dialogue for item in items)
    return [
        replace(item, cluster=name, data=replace(item.data, of_dialogue=sizes[name]))
        if (name := item.data.dialogue)
        else item
        for item in items
    ]


def _prompt(entry: Any) -> str:  # noqa: ANN401
    """One text: in level 3 the descriptions that the instruction announces open the input."""
    instruction, given = text_of(entry, "instruction"), text_of(entry, "input")
    return f"{instruction}{'' if instruction.endswith(chr(10)) else chr(10)}{given}"


def _recorded(entry: Any) -> str:  # noqa: ANN401
    return text_of(entry, "expected_output" if "expected_output" in entry else "output")


def _request(part: str, place: int, entry: Any) -> Item:  # noqa: ANN401
    prompt, gold = _prompt(entry), request_in(_recorded(entry))
    if gold is None:
        raise ValueError("the recorded answer is no API request")
    question = Question(
        kind="request",
        messages=({"role": "user", "content": prompt},),
        gold=gold,
        declared=declared_in(prompt, gold.name),
        dialogue=f"{part}/{entry['sample_id']}" if part.startswith("level-3") else "",
    )
    groups = {"level": part[:7], "request": "search" if gold.name == _SEARCH else "call"}
    return Item(id=f"{part}/{place}", groups=groups, data=question)


def _response(part: str, place: int, entry: Any) -> Item:  # noqa: ANN401
    question = Question(
        kind="response", messages=({"role": "user", "content": _prompt(entry)},), response=_recorded(entry)
    )
    return Item(id=f"{part}/{place}", groups={"level": part[:7]}, data=question)


def grade_request(question: Question, answer: Json) -> Grade:
    """1 if the request is the recorded one under the descriptions; measures: `exact`, `name`, `readable`."""
    gold, given = question.gold, request_in(without_thoughts(reply_of(answer)[:MAX_REPLY_CHARS]))
    if given is None:
        return Grade(
            score=0.0,
            explanation=f"{difference(gold, [])}.",
            measures=dict.fromkeys(("exact", "name", "readable"), 0.0),
        )
    named = given.name == gold.name
    right = named and given.parameters.keys() == gold.parameters.keys()
    right = right and all(_same(question, name, value) for name, value in given.parameters.items())
    why = difference(gold, [given], lambda name, value: _same(question, name, value))
    return Grade(
        score=float(right),
        explanation=f"{why}, by comparison: it was not executed." if right else f"{why}.",
        measures={"exact": float(given == gold), "name": float(named), "readable": 1.0},
    )


def _same(question: Question, name: str, value: Json) -> bool:
    gold = question.gold
    if gold.name == _SEARCH:
        return _words(value) == _words(gold.parameters[name])
    return same_value(value, gold.parameters[name], question.declared.get(name))


def _words(keywords: Json) -> list[str]:
    """Keywords, split at capitals as the authors do before they search; their order counts."""
    return re.sub(r"(?=[A-Z][a-z])", " ", str(keywords)).casefold().split()


def grade_response(question: Question, answer: Json) -> Grade:
    """ROUGE-L F against the recorded response."""
    reply = without_thoughts(reply_of(answer)[:MAX_REPLY_CHARS])
    said = reply.replace("User:", "").replace("AI:", "").strip()
    score = rouge_l(said, question.response)
    return Grade(score=min(1.0, score), explanation=f"ROUGE-L {score:.3f} against the recorded response.")
