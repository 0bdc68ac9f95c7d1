"""API-Bank: predict the next API call of a dialogue, with its parameters.

There are two forms of the same questions.

ToolRL's form (arXiv:2504.13958, 597 questions) leaves out the searches for tools and asks for `<tool_call>`
blocks. Each question has one recorded call, and a reply is right if any of its calls has the same name and
exactly the same parameters. That is the rule of ToolRL's paper. The files have flaws. Every value is recorded
as text, even if the prompt declares a number or a list (107 answers). Of the 597 recorded calls, 6 use a tool
that the prompt does not offer, 8 give a parameter that it does not declare, and 5, all of BookHotel, lost a
value at a quotation mark. All 597 are scored as they are, as in published results; the measure `typed` shows
the effect of the types.

ToolRL's published code (`benchmarks/API-Bank/generate.py` and `evaluate.py` of github.com/qiancheng0/ToolRL,
8cee13e) differs from its paper's rule; it is the measure `toolrl_code`. It parses a reply, including
thoughts, from the last `<tool_call>` on, or completely if there is none; a call is one line. An object
without `name` or `parameters` counts as the parameters of the right tool. A value that is not an object, list
or text stops the parsing.

The authors' form (arXiv:2304.08244, 779 requests) has the published `instruction` and `input` as prompts. The
authors parse `[ApiName(key='value', ...)]`, call the API on a fresh database, and compare with the recorded
result. The data do not include the APIs' implementations, so requests are compared instead: equal name, equal
parameters, and values that are equal under the API's description (`same_value`). This differs from an
executed score in both directions. Two requests with the same result count as different here, which matters
most for `ToolSearcher`, for which any words that find the tool are right. A request that the database refuses
is right here if it is the recorded one. The figure is therefore called `request_match`, with searches and
calls as groups.

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

Thoughts, between `<think>` and `</think>`, are not part of a reply, except for `toolrl_code`.

Shapes: M = words of one sentence of the reference, N = words of one sentence of the answer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel

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
    same_value,
    same_values,
    text_of,
)
from genenv.chat.assistant import Talk
from genenv.chat.reasoning import without_thoughts
from genenv.errors import UsageError
from genenv.evaluation.base import Benchmark, Grade, Graded, Item
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings
from genenv.statistics import Figure, rate
from genenv.types import Json, JsonObject


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


_MAX_SEARCHED_CHARS = 20_000
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
    text = reply[:_MAX_SEARCHED_CHARS]
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


_MAX_TOKENS = {"toolrl": 1024, "authors": 512}
_KEPT_CHARS = 100_000


class ApiBankConfig(Settings, frozen=True):
    """Settings of API-Bank."""

    form: Literal["toolrl", "authors"] = "toolrl"
    """toolrl: 597 questions as ToolRL prepares and scores them. authors: the authors' own prompts; requests
    are compared with the recorded ones, not executed.
    """


class ApiBank(Benchmark):
    """The API-Bank benchmark. `form` chooses prompts and rules; a split belongs to one form or to both."""

    name: ClassVar[str] = "api-bank"
    config = ApiBankConfig
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar[Mapping[str, str]] = {
        "all": "all requests: 597 in ToolRL's form; levels 1, 2 and 3, 779, in the authors'",
        "level-1": "ToolRL's form: the APIs are given, 399",
        "level-2": "ToolRL's form: the API was found by a search before, 67",
        "level-3": "ToolRL's form: several APIs in a row, 131",
        "level-1-api": "authors' form: level 1, 399 requests",
        "level-2-api": "authors' form: level 2 with searches for tools, 135 requests",
        "level-3-batch": "authors' form: level 3 with searches for tools, 245 requests of 50 dialogues",
        "level-3-batch-icl": "authors' form: the same with an example in the prompt",
        "level-1-response": "authors' form: 375 answers to the user, ROUGE-L",
        "level-2-response": "authors' form: 103 answers to the user, ROUGE-L",
        "level-3-response": "authors' form: 50 answers to the user, ROUGE-L",
    }

    settings: ApiBankConfig

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self.max_tokens = _MAX_TOKENS[self.settings.form]

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the questions of a split, in the order of their files.

        Raises:
            DataError: a file is missing, changed or damaged; the message names file and place.
            UsageError: the split belongs to the other form.
        """
        form = self.settings.form
        mine: Mapping[str, str] = FILES if form == "toolrl" else {**REQUESTS, **RESPONSES}
        if split != "all" and split not in mine:
            raise UsageError(
                f"split {split!r} is not of form {form}; choose one of all, {', '.join(mine)}, "
                "or set form to the other"
            )
        if form == "toolrl":
            return [item for level in FILES if split in ("all", level) for item in read_toolrl(data, level)]
        wanted = [part for part in REQUESTS if not part.endswith("-icl")] if split == "all" else [split]
        return [item for part in wanted for item in read_authors(data, part)]

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Ask in one turn, and return the reply's text and native calls."""
        question = _question(item)
        reply = await talk([dict(message) for message in question.messages])
        answer: dict[str, Json] = {"reply": reply.text[:_KEPT_CHARS]}
        if reply.calls:
            answer["calls"] = [{"name": call.name, "parameters": call.arguments} for call in reply.calls]
        return answer

    def grade(self, item: Item, answer: Json) -> Grade:
        """Grade by the rule of the item's form; a malformed answer counts as empty."""
        question = _question(item)
        if question.kind == "call":
            return grade_toolrl(question, answer)
        return (
            grade_request(question, answer)
            if question.kind == "request"
            else grade_response(question, answer)
        )

    def figures(self, graded: Sequence[Graded]) -> list[Figure]:
        """Return accuracy (also by level) or mean ROUGE-L, then the further measures.

        `accuracy` follows the rule of ToolRL's paper, `toolrl_code` its published code. `request_match`
        compares requests in the authors' form, without executing them. `dialogue_match` is the share of level
        3's dialogues in which all requests are right.
        """
        return [*super().figures(graded), *_dialogues(graded)]

    def headline_of(self, graded: Sequence[Graded]) -> str:
        """Return the headline's name for these kinds of question."""
        kinds = {_question(item).kind for item, _ in graded}
        return "accuracy" if "call" in kinds else "rouge_l" if "response" in kinds else "request_match"

    def describe(self) -> JsonObject:
        """Return the form and its rule."""
        rules = {
            "toolrl": "the paper's: any call equal to the recorded one",
            "authors": "comparison, nothing executed",
        }
        return {"form": self.settings.form, "rule": rules[self.settings.form]}


def _question(item: Item) -> Question:
    question: Question = item.data
    return question


def _dialogues(graded: Sequence[Graded]) -> list[Figure]:
    """Return the share of dialogues with only right requests, among completely graded ones."""
    scores: dict[str, list[float]] = {}
    wanted: dict[str, int] = {}
    for item, grade in graded:
        question = _question(item)
        if question.dialogue:
            scores.setdefault(question.dialogue, []).append(grade.score)
            wanted[question.dialogue] = question.of_dialogue
    whole = [min(of_one) for dialogue, of_one in scores.items() if len(of_one) == wanted[dialogue]]
    return [rate("dialogue_match", whole)] if whole else []
