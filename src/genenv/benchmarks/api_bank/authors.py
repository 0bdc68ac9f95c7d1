"""API-Bank in its authors' form: prompts are the published `instruction` and `input`.

The authors parse `[ApiName(key='value', ...)]`, call the API on a fresh database, and compare with the
recorded result. The data do not include the APIs' implementations, so requests are compared instead: equal
name, equal parameters, and values that are equal under the API's description (`same_value`). This differs
from an executed score in both directions. Two requests with the same result count as different here, which
matters most for `ToolSearcher`, for which any words that find the tool are right. A request that the database
refuses is right here if it is the recorded one. The figure is therefore called `request_match`, with searches
and calls as groups.

The authors' regular expression ends a value at the first quotation mark. So it cuts off lists of texts and
values with apostrophes, in recorded requests too (31 of 399 of level 1, 10 of 135 of level 2, 10 of 245 of
level 3). This code does not reproduce that. Recorded requests quote lists without escapes,
`attendees='['John', 'Jane']'`, which is not valid Python. Here a value ends at a quotation mark before
another parameter or the end. No text is evaluated as code.

Responses are scored by ROUGE-L against the recorded response, after removal of "AI:" and "User:", as in the
authors' level-3 evaluation. The score is the summary-level F of the package `rouge` (Lin 2004). Texts are
split into sentences at full stops and into words at spaces; case matters. For every sentence of the
reference, the words of its longest common subsequence with each sentence of the answer are collected. The
package counts every distinct word once, in these and in the lengths; so does this code.

Thoughts, between `<think>` and `</think>`, are not part of a reply.

Shapes: M = words of one sentence of the reference, N = words of one sentence of the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from genenv.benchmarks.api_bank.questions import (
    MAX_REPLY_CHARS,
    Call,
    Question,
    declared_in,
    difference,
    reply_of,
    same_value,
    text_of,
)
from genenv.chat.reasoning import without_thoughts
from genenv.evaluation.base import Grade, Item
from genenv.evaluation.data import DataFolder
from genenv.types import Json

_MAX_REPLY_CHARS = 20_000
_MAX_REQUEST_CHARS = 8_000
_MAX_PARAMETERS = 50
_START = re.compile(r"API-Request:\s*+\[?+\s*+(\w++)\s*+\(")
_BRACKET = re.compile(r"\[\s*+(\w++)\s*+\(")
_NAME = re.compile(r"[\s,]*+(\w++)\s*+=\s*+")
_END = re.compile(r"[\s,]*+\)")
_NEXT = r"(?=\s*+(?:,\s*+\w++\s*+=|,?\s*+\)\s*+(?:\]|$|\n)))"
"""The text after a value: a comma and another name, or the closing brackets."""
_QUOTED = {
    quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*+){quote}(?=\s*+[,)])", re.DOTALL) for quote in "'\""
}
_LOOSELY_QUOTED = {quote: re.compile(rf"{quote}(.*?){quote}{_NEXT}", re.DOTALL) for quote in "'\""}
_MARK = re.compile(r"[\[\](){},]")
_MARK_OR_TEXT = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|[\[\](){},]", re.DOTALL)
_NAMED = re.compile(r",\s*+\w++\s*+=")
_ESCAPE = re.compile(r"\\(['\"\\])")


def request_in(reply: str) -> Call | None:
    """Return the first request in a reply: the first after `API-Request:`, or else the first `[Name(`.

    Values are texts, quoted or not, as in the authors' evaluation.

    Returns:
        None if there is no request, or its brackets do not contain `key=value, ...`.
    """
    text = reply[:_MAX_REPLY_CHARS]
    start = _START.search(text) or _BRACKET.search(text)
    if start is None:
        return None
    parameters = _parameters(text[start.end() : start.end() + _MAX_REQUEST_CHARS])
    return None if parameters is None else Call(start[1], parameters)


def _parameters(text: str) -> Mapping[str, str] | None:
    found: dict[str, str] = {}
    at = 0
    while len(found) < _MAX_PARAMETERS:
        name = _NAME.match(text, at)
        if name is None:
            return found if _END.match(text, at) else None
        value = _value(text, name.end())
        if value is None:
            return None
        found[name[1]], at = value
    return None


def _value(text: str, at: int) -> tuple[str, int] | None:
    """Return the value at a position and its end, or None if it has no end."""
    quote = text[at : at + 1]
    if quote in _QUOTED and quote:
        exact = _QUOTED[quote].match(text, at)
        if exact:
            return _ESCAPE.sub(r"\1", exact[1]), exact.end()
        loose = _LOOSELY_QUOTED[quote].match(text, at)
        return (loose[1], loose.end()) if loose else None
    return _bare(text, at)


def _bare(text: str, start: int) -> tuple[str, int] | None:
    """Parse a value without quotation marks, up to the request's closing bracket or the next name."""
    depth, at = 0, start
    while found := (_MARK_OR_TEXT if depth else _MARK).search(text, at):
        mark, at = found[0], found.end()
        if mark in "[({":
            depth += 1
        elif mark in "])}":
            depth -= 1
        if depth < 0 or (mark == "," and depth == 0 and _NAMED.match(text, found.start())):
            return text[start : found.start()].strip(), found.start()
    return None


MAX_WORDS = 1_000
"""The most words of an answer that are compared; replies of 512 tokens have fewer."""
_MAX_CHARS = 50_000
_EPSILON = 1e-8


def rouge_l(answer: str, reference: str) -> float:
    """Return the ROUGE-L score F = 2PR / (P + R), in [0, 1].

    P and R are the number of distinct words in the common subsequences, divided by the number of distinct
    words in the answer and in the reference.
    """
    given, wanted = _sentences(answer), _sentences(reference)
    if not given or not wanted:
        return 0.0
    common: set[str] = set()
    for sentence in wanted:
        for other in given:
            common |= _common_words(sentence, other)
    precision, recall = len(common) / _distinct(given), len(common) / _distinct(wanted)
    return 2 * precision * recall / (precision + recall + _EPSILON)


def _sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence. A sentence of only spaces is one empty word, as in the package."""
    left, found = MAX_WORDS, list[list[str]]()
    for sentence in text[:_MAX_CHARS].split("."):
        if sentence and left > 0:
            words = (sentence.split() or [""])[:left]
            left -= len(words)
            found.append(words)
    return found


def _distinct(sentences: Sequence[Sequence[str]]) -> int:
    return len({word for sentence in sentences for word in sentence})


def _common_words(reference_M: Sequence[str], answer_N: Sequence[str]) -> set[str]:
    """Return the words of the longest common subsequence that the package finds, searching from the end."""
    if not set(reference_M) & set(answer_N):
        return set()
    rows = _lengths(reference_M, answer_N)
    i, j, found = len(reference_M), len(answer_N), set[str]()
    while i and j:
        if reference_M[i - 1] == answer_N[j - 1]:
            i, j = i - 1, j - 1
            found.add(reference_M[i])
        elif rows[i - 1][j] > rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def _lengths(first: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """Return the lengths of the longest common subsequences of all prefixes, [M+1][N+1]."""
    rows = [[0] * (len(second) + 1)]
    for word in first:
        above, row = rows[-1], [0]
        for j, other in enumerate(second):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        rows.append(row)
    return rows


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
    """Return the questions of a part of the data.

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
    """Return instruction and input as one text; in level 3 the input starts with the API descriptions."""
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
    """Return score 1 for the recorded request under its descriptions, with `exact`, `name`, `readable`."""
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
    """Split keywords at capitals, as the authors do before a search; their order matters."""
    return re.sub(r"(?=[A-Z][a-z])", " ", str(keywords)).casefold().split()


def grade_response(question: Question, answer: Json) -> Grade:
    """Return the ROUGE-L score against the recorded response."""
    reply = without_thoughts(reply_of(answer)[:MAX_REPLY_CHARS])
    said = reply.replace("User:", "").replace("AI:", "").strip()
    score = rouge_l(said, question.response)
    return Grade(score=min(1.0, score), explanation=f"ROUGE-L {score:.3f} against the recorded response.")
