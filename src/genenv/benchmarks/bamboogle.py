r"""Bamboogle (Press et al. 2022, arXiv:2210.03350): 125 two-hop questions.

Search engines do not return their answers directly.

The headline is exact match. Token F1 and substring match after SQuAD's normalization are also measured, and
a judge's verdict if a judge is set. Published numbers often use web search and a judge. The summary has
`mode` and the judge's name, so that only equal measurements are compared.

SQuAD's normalization (Rajpurkar et al. 2016) applies, in this order: lower case, no ASCII punctuation, no
articles, single spaces. As in SQuAD, minus signs are removed, but accents and other punctuation are not. The
environment `multihop_qa` differs in both. LaTeX is removed: `\boxed{\text{the Tarn}}` becomes "the Tarn".
"""

from __future__ import annotations

import hashlib
import re
import string
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from genenv.chat.assistant import Assistant, ChatMessage, Reply, Talk
from genenv.chat.reasoning import without_thoughts
from genenv.environments.multihop_qa.search import SearchIndex, require_search, word_f1
from genenv.environments.multihop_qa.world import load_corpus
from genenv.errors import ContextOverflow, DataError, UsageError
from genenv.evaluation.base import Benchmark, Grade, Item
from genenv.evaluation.data import DataFolder, a_list
from genenv.settings import Settings
from genenv.types import Json, JsonObject

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])[ \t]*")
_MOST = 8
"""The most boxes to try, from the last one; empty boxes are skipped."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DISPLAY = re.compile(r"\$|\\[\])]|\n")
"""The end of a box without braces or without a closing brace."""
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|sc|sl|up|md|normal)?|math(?:rm|bf|it|sf|tt|cal|bb)|mbox|hbox|emph|underline"
    r"|operatorname|bm|boldsymbol|displaystyle|textstyle|left|right)(?![A-Za-z])\*?"
)
_SPACE = re.compile(r"\\(?:[ ,;:!/>\n]|q?quad(?![A-Za-z])|\\)|(?<!\\)~")
_MATHS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_ESCAPED = re.compile(r"\\([%&#_{}$])")


def last_box(text: str) -> str:
    """Return the content of the last non-empty box; "" if there is none.

    Braces inside are matched. A box without an end extends to the end of its line.
    """
    for box in list(_BOX.finditer(text))[: -_MOST - 1 : -1]:
        found = plain(_content(text, box.end()))
        if found:
            return found
    return ""


def _content(text: str, at: int) -> str:
    if not text.startswith("{", at):
        return _DISPLAY.split(text[at:], maxsplit=1)[0]
    depth = 0
    for brace in _BRACES.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[at + 1 : brace.start()]
    return _DISPLAY.split(text[at + 1 :], maxsplit=1)[0]


def plain(text: str) -> str:
    r"""Return text without LaTeX commands: `\textbf{10{,}000}~km` becomes "10,000 km"."""
    for marks, instead in ((_STYLE, ""), (_SPACE, " "), (_MATHS, "")):
        text = marks.sub(instead, text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    return " ".join(_ESCAPED.sub(r"\1", text).split())


MAX_REPLY_CHARS = 20_000
"""The most characters parsed: the last of a reply, and the first of a request to search or of a verdict."""
_MAX_ANSWER_CHARS = 2_000
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_COLON = r"\\?[:：﹕︰]"
_DASH = r"(?:[-–—−=]++>?|[→⇒➔])[ \t\u00a0]"
_MARKER = re.compile(
    rf"\b(?:answer[ \t*_\u00a0]*+{_COLON}|final answer is\b[ \t*_\u00a0]*+(?:{_COLON})?+)"
    rf"|^[ \t*_#>\u00a0-]*+(?:the )?(?:final )?answer[ \t*_\u00a0]*+(?<=[ \t*_\u00a0]){_DASH}",
    re.IGNORECASE | re.MULTILINE,
)
"""A colon of any width is accepted anywhere. A dash or arrow is accepted only if the line starts with the
word, as elsewhere a clause may follow.
"""
_TAGGED = re.compile("<answer>", re.IGNORECASE)
_END_TAG = re.compile("</answer>", re.IGNORECASE)
_STYLED = re.compile(r"\\(?:text|math)[a-z]*\{")
_TAGS = re.compile(r"</?[A-Za-z_|][^<>]{0,30}>")
"""Tags of a copied template, or a model's end tokens, around an answer."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """Measures of an answer against the closest right answer, each in [0, 1]."""

    em: float
    """Exact match after normalization."""
    f1: float
    """F1 of the words."""
    sub_em: float
    """Whether the normalized right answer is a substring of the normalized answer."""


def final_answer(reply: str) -> str:
    r"""Extract the final answer from a reply.

    It is the content of the last `<answer>`. Else it follows the last "Answer:", "Answer - " at the start of
    a line, or "final answer is", on the same line or, if that is empty, on the next. Else it is the last
    non-empty line. If the last `\boxed{}` is in that text or after it, its content is the answer; without any
    of those marks, the content of the reply's last box. Thoughts are ignored.
    """
    text = without_thoughts(reply[-MAX_REPLY_CHARS:])
    tagged = list(_TAGGED.finditer(text))
    if tagged:
        content = _END_TAG.split(text[tagged[-1].end() :], maxsplit=1)[0]
        return _cut(last_box(content) or content)
    for marker in reversed(list(_MARKER.finditer(text))):
        rest = text[marker.end() :]
        lines = _lines(rest.replace("*", " "))
        if lines:
            return _cut(last_box(rest) or lines[0])
    lines = _lines(text)
    return _cut(last_box(text) or lines[-1]) if lines else ""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _cut(text: str) -> str:
    cut = text.strip()[:_MAX_ANSWER_CHARS]
    cut = plain(cut) if _STYLED.search(cut) else cut
    return _TAGS.sub("", cut).strip() or cut


def normalized(text: str) -> str:
    """Return text in SQuAD's normalization."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def closeness(answer: str, right: Sequence[str]) -> Closeness:
    """Return the maximum of each measure over the right answers."""
    given, wanted = normalized(answer), [normalized(each) for each in right]
    return Closeness(
        em=float(given in wanted),
        f1=max((word_f1(given.split(), each.split()) for each in wanted), default=0.0),
        sub_em=float(any(each and each in given for each in wanted)),
    )


_MAX_QUERY_CHARS = 200
_MAX_QUERIES = 4
"""The most searches answered per reply."""
_END = (
    'end with a line that begins with "Answer:" and gives only the final answer, in as few words as possible.'
    "\n\nQuestion: {question}"
)
_CLOSED_BOOK = "Answer the question. Think step by step, briefly, then " + _END
_SEARCH = (
    "Answer the question. {how} You may search {searches} times. Think step by step, briefly. When you know "
    "the answer, " + _END
)
_BY_TOOL = "Look up what you need with the tool `search`."
_BY_TEXT = (
    "To look something up, end your reply with a line `Search: <a few words>`; you will be shown passages."
)
_NONE_LEFT = "No searches are left. Give the final answer now."
_JUDGE = """Does the given answer to the question mean the same as the right answer?
More detail is fine if it does not contradict the right answer. Reply with "yes" or "no" alone.

Question: {question}
Right answer: {right}
Given answer: {given}"""
_LINE = re.compile(r"^[ \t*]*+Search:[ \t*]*+(?P<line>[^\n]*\S)[^\n]*|<search>(?P<tag>[^<]*)</search>", re.M)
_ANSWERED = re.compile(r"<answer>|^[ \t*]*+Answer[ \t*]*+:", re.M | re.IGNORECASE)
_VERDICT = re.compile(r"\b(?:yes|no)\b", re.IGNORECASE)
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find passages by words.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "A few words."}},
            "required": ["query"],
        },
    },
}


class Searching:
    """One rollout with searches: by native tool calls if the model supports them, else by lines of text."""

    def __init__(self, passages: SearchIndex, talk: Talk, *, limits: tuple[int, int, int]) -> None:
        """Prepare a rollout.

        Args:
            passages: the search index.
            talk: the model.
            limits: the number of searches, passages per search, and characters per passage.
        """
        self.used = 0
        self._passages, self._talk = passages, talk
        self._most, self._results, self._chars = limits

    async def ask(self, question: str) -> str:
        """Roll out, and return the first reply without a search, or the reply after all searches."""
        how = _BY_TOOL if self._talk.native_tools else _BY_TEXT
        text = _SEARCH.format(how=how, searches=self._most, question=question)
        messages: list[ChatMessage] = [{"role": "user", "content": text}]
        tools: Sequence[JsonObject] = [_TOOL] if self._talk.native_tools else ()
        for _ in range(self._most + 1):
            reply = await self._talk(messages, tools=tools)
            more = self._by_tool(reply) if reply.calls else self._by_text(reply)
            if not more:
                return reply.text
            messages += more
        return (await self._talk(messages, tools=tools)).text

    def _by_tool(self, reply: Reply) -> list[ChatMessage]:
        said = reply.message()
        answers: list[ChatMessage] = []
        for place, call in enumerate(reply.calls):
            query = call.arguments.get("query") if call.name == "search" else None
            known = isinstance(query, str) and place < _MAX_QUERIES
            content = self._find(str(query)) if known else "Only search(query) can be called."
            answers.append({"role": "tool", "tool_call_id": call.id or f"call_{place}", "content": content})
        return [said, *answers]

    def _by_text(self, reply: Reply) -> list[ChatMessage]:
        """Return the reply up to its first search, and the result; empty if the reply answers first."""
        text = reply.text[:MAX_REPLY_CHARS]
        thoughtless = without_thoughts(text)
        found, answered = _LINE.search(thoughtless), _ANSWERED.search(thoughtless)
        if found is None or (answered and answered.start() < found.start()):
            return []
        said = thoughtless[: found.end()].strip()
        content = self._find(found["line"] or found["tag"])
        return [{"role": "assistant", "content": said}, {"role": "user", "content": content}]

    def _find(self, query: str) -> str:
        if self.used >= self._most:
            return _NONE_LEFT
        self.used += 1
        return self._passages.search(query[:_MAX_QUERY_CHARS], results=self._results, chars=self._chars)


async def asked(talk: Talk, text: str) -> str:
    """The reply to a single message."""
    return (await talk([{"role": "user", "content": text}])).text


def says_yes(verdict: str) -> bool:
    """Return whether a judge's first yes or no after its thoughts is a yes; if there is none, False."""
    found = _VERDICT.search(without_thoughts(verdict[:MAX_REPLY_CHARS]))
    return found is not None and found[0].lower() == "yes"


MAIN = "bamboogle/bamboogle.json"
COPIES = {
    "bamboogle/bamboogle_test_questions_and_answers.json": ("question", "answer"),
    "bamboogle/data.json": ("Question", "Answer"),
}
"""Other files with the same questions; those that exist must agree with `MAIN`."""
JUDGE_PROMPT_VERSION = "1"
_MAX_SHOWN = 80


class BamboogleConfig(Settings, frozen=True):
    """Settings of Bamboogle."""

    mode: Literal["closed_book", "search"] = "closed_book"
    """closed_book: the model answers from its knowledge. search: it may search in `corpus`."""
    corpus: str | None = Field(default=None, min_length=1)
    """In mode search, a JSONL file of passages with one `{"title": ..., "text": ...}` per line, as for the
    environment multihop_qa.
    """
    max_searches: int = Field(default=5, ge=1, le=20)
    """The most searches per question, in mode search."""
    results: int = Field(default=3, ge=1, le=10)
    """The number of passages that a search shows."""
    result_chars: int = Field(default=500, ge=120, le=2_000)
    """The number of characters of each passage that a search shows."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its right answers."""

    text: str
    right: tuple[str, ...]


class Bamboogle(Benchmark):
    """The Bamboogle benchmark, with or without searches."""

    name: ClassVar[str] = "bamboogle"
    config = BamboogleConfig
    prompt_version: ClassVar[str] = "1"
    splits: ClassVar[Mapping[str, str]] = {"all": "all 125 questions"}
    headline = "exact_match"

    settings: BamboogleConfig

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self.judge: Assistant | None = None
        """The judge, set before the first rollout, decides whether an answer is right: measure `judge`."""
        self._passages: SearchIndex | None = None
        self._corpus_sum = ""

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        """Return the questions; in mode search, also load the corpus.

        Raises:
            DataError: a file is missing, changed or damaged, or a copy differs.
            UsageError: mode search lacks its corpus or the search package, or there is no such split.
        """
        if split not in self.splits:
            raise UsageError(f"bamboogle has no split {split!r}; leave it out")
        if self.settings.mode == "search":
            self._index()
        items = data.entries(MAIN, lambda _, entry: _item(entry))
        _check_copies(data, [item.data for item in items])
        return items

    def _index(self) -> SearchIndex:
        """Return the search index of the corpus, built once."""
        if self._passages is None:
            if self.settings.corpus is None:
                raise UsageError("mode search needs passages: set corpus to a JSONL file of them")
            require_search()
            path = Path(self.settings.corpus)
            if not path.is_file():
                raise UsageError(f"there is no file {self.settings.corpus!r}; check the setting corpus")
            self._passages = SearchIndex(load_corpus(path).passages.values())
            self._corpus_sum = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._passages

    def many_turns(self, item: Item) -> bool:
        """Return whether searches are allowed."""
        return self.settings.mode == "search"

    def most_replies(self, item: Item) -> int:
        """Return the most replies: one; with searches one each, one that asks for too many, the last."""
        return 2 + self.settings.max_searches if self.many_turns(item) else 1

    async def attempt(self, item: Item, talk: Talk) -> Json:
        """Roll out the question, then ask the judge, and return both replies."""
        question: Question = item.data
        answer: dict[str, Json] = {}
        if self.settings.mode == "search":
            limits = (self.settings.max_searches, self.settings.results, self.settings.result_chars)
            searching = Searching(self._index(), talk, limits=limits)
            answer["reply"] = (await searching.ask(question.text))[-MAX_REPLY_CHARS:]
            answer["searches"] = searching.used
        else:
            answer["reply"] = (await asked(talk, _CLOSED_BOOK.format(question=question.text)))[
                -MAX_REPLY_CHARS:
            ]
        if self.judge is not None:
            judge = self.judge.talk(zlib.crc32(item.id.encode()))
            given = final_answer(str(answer["reply"]))
            try:
                right = " / ".join(question.right)
                text = _JUDGE.format(question=question.text, right=right, given=given)
                answer["judge"] = (await asked(judge, text))[:2_000]
            except ContextOverflow:
                answer["judge"] = "no, the judge's window is too small"
        return answer

    def grade(self, item: Item, answer: Json) -> Grade:
        """Return exact match as score, with F1 and substring match; a malformed answer counts as empty."""
        question: Question = item.data
        found: Mapping[str, Json] = answer if isinstance(answer, Mapping) else {}
        reply, verdict = found.get("reply"), found.get("judge")
        given = final_answer(reply) if isinstance(reply, str) else ""
        near = closeness(given, question.right)
        measures = {"f1": near.f1, "sub_em": near.sub_em}
        if isinstance(verdict, str):
            measures["judge"] = float(says_yes(verdict))
        right = " or ".join(map(ascii, question.right))
        what = f"the answer is {given[:_MAX_SHOWN]!a}" if given else "there is no answer"
        why = f"{what}, as wanted" if near.em else f"{what}; {right} was wanted"
        return Grade(score=near.em, explanation=f"{why[0].upper()}{why[1:]}.", measures=measures)

    def describe(self) -> JsonObject:
        """Return the mode, its corpus, how answers are extracted, and the judge."""
        found: dict[str, Json] = {"mode": self.settings.mode, "answers": "boxes opened"}
        if self._corpus_sum:
            found["corpus_sha256"] = self._corpus_sum
        if self.judge is not None:
            found["judge"] = {"prompt_version": JUDGE_PROMPT_VERSION, **self.judge.describe()}
        return found


def _item(entry: Any) -> Item:  # noqa: ANN401
    right = tuple(_text(each) for each in a_list(entry["answer"]))
    if not right:
        raise ValueError("there is no answer")
    return Item(id=_text(entry["id"]), groups={}, data=Question(_text(entry["Question"]), right))


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str) or not value.strip():
        raise TypeError("a text was expected")
    return value


def _check_copies(data: DataFolder, questions: Sequence[Question]) -> None:
    for name, (question, answer) in COPIES.items():
        if not (data.root / name).is_file():
            continue
        said = data.entries(name, lambda _, e, q=question, a=answer: (_text(e[q]), _text(e[a])))
        if len(said) != len(questions):
            raise DataError(f"{data.root / name}: it has {len(said)} questions, {MAIN} {len(questions)}")
        for place, ((text, right), known) in enumerate(zip(said, questions, strict=True)):
            if text != known.text or right not in known.right:
                raise DataError(f"{data.root / name}, entry {place}: it is not what {MAIN} says; fetch both")
