"""API-Bank: predict the next API call of a dialogue, with its parameters.

There are two forms of the same questions. ToolRL's form (arXiv:2504.13958, 597 questions) leaves out the
searches for tools and asks for `<tool_call>` blocks. Each question has one recorded call, and a reply is
right if any of its calls has the same name and exactly the same parameters. That is the rule of ToolRL's
paper. Its published code parses some replies differently: the measure `toolrl_code`. The authors' form
(arXiv:2304.08244, 779 requests) asks for `API-Request: [...]`, executes the request on a fresh database and
compares the results; `authors.py` explains the differences here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel

from genenv.benchmarks.api_bank.authors import (
    REQUESTS,
    RESPONSES,
    grade_request,
    grade_response,
    read_authors,
)
from genenv.benchmarks.api_bank.questions import Question
from genenv.benchmarks.api_bank.toolrl import FILES, grade_toolrl, read_toolrl
from genenv.chat.assistant import Talk
from genenv.errors import UsageError
from genenv.evaluation.base import Grade, Graded, Item, PlainBenchmark
from genenv.evaluation.data import DataFolder
from genenv.settings import Settings
from genenv.statistics import Figure, rate
from genenv.types import Json, JsonObject

_MAX_TOKENS = {"toolrl": 1024, "authors": 512}
_KEPT_CHARS = 100_000


class ApiBankConfig(Settings, frozen=True):
    """Settings of API-Bank."""

    form: Literal["toolrl", "authors"] = "toolrl"
    """toolrl: 597 questions as ToolRL prepares and scores them. authors: the authors' own prompts; requests
    are compared with the recorded ones, not executed.
    """


class ApiBank(PlainBenchmark):
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
