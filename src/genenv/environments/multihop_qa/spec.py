"""The spec that the simulator writes for a question, the grammar of questions, and their parser.

In a spec the chain comes before the question, so the simulator words a question whose answer is fixed.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from genenv.environments.common import WORDS, first_strange
from genenv.environments.multihop_qa.kb import Hop
from genenv.settings import PLACE, Settings, only_with

_SHOWN, _SEARCHED = only_with(mode=("passages",)), only_with(mode=("search",))


class MultihopConfig(Settings, frozen=True):
    """Settings of the multi-hop environment.

    `corpus` names a file of your passages (`--set environment.corpus=FILE.jsonl`), one JSON object per line:

        {"title": "Ada Falk", "text": "Ada Falk leads Delta.", "facts": [["Ada Falk", "team", "Delta"]]}

    `facts` are [subject, relation, object]. Subject and object must occur in the title or the text of their
    line. A line may also have "aliases" of the thing in its title. If the file has any facts, all questions
    are about them and not about the built-in knowledge base. If it has none, its passages are only added to
    those that `search` looks through. A line may describe a relation before the relation's first fact:

        {"relation": "team", "words": ["the team of"], "inverse_words": ["the head of"], "functional": true}

    Words are phrases that the name follows. A functional relation allows one object per subject; a second one
    is an error. In other relations a second object makes the hop ambiguous, so no question uses it.
    """

    mode: Literal["closed_book", "passages", "search"] = "passages"
    """closed_book: the question only. passages: also the passages that state the facts, among distractors.
    search: the agent looks passages up, over several turns."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: the F1 of the answer's words (GenEnv eq. 1); success stays exact."""
    distractors: int = Field(default=3, ge=0, le=20, json_schema_extra=_SHOWN)
    """Number of passages that do not help, in mode passages."""
    passage_facts: int = Field(default=3, ge=1, le=20, json_schema_extra=_SHOWN)
    """Facts per passage of the built-in knowledge base in mode passages; needed facts are always included."""
    max_turns: int = Field(default=6, ge=5, le=32, json_schema_extra=_SEARCHED)
    """Maximum number of replies in mode search; four hops take four searches and the answer."""
    results: int = Field(default=3, ge=1, le=10, json_schema_extra=_SEARCHED)
    """Number of passages that one search shows."""
    result_chars: int = Field(default=160, ge=120, le=2_000, json_schema_extra=_SEARCHED)
    """Characters of a passage that a search shows: the sentences that contain the most words of the query."""
    corpus: str | None = Field(default=None, min_length=1, json_schema_extra=PLACE)
    """A JSONL file of your passages; unset: only the built-in knowledge base."""


START = "<start>"
MIN_QUESTION, MAX_QUESTION = 8, 400
"""Limits in characters."""

Slots = Sequence[Sequence[str]]
"""A sentence pattern as a sequence of choices."""

_OPENING: Slots = (
    ("Quiz", "Trivia", "Puzzle", "Homework", "Riddle", "Bonus", "Contest", "Lesson"),
    (" question", " time", " round", " card", " challenge", ""),
    (" for you", " for me", " for the class", " from a friend", " from my teacher", " for our team", ""),
    (" today", " tonight", " again", " before dinner", " before bed", ""),
)
_ASK = ("What is", "Could you tell me", "Can you name", "Do you know")
_LEAD = ("Think of", "Take", "Consider", "Start with", "Look at", "Picture")

_ASKING = re.compile(rf"(?:^|[:,.!?;])\s*(?:{'|'.join((*_ASK, *_LEAD))})\s*$", re.IGNORECASE)
_ENDING = re.compile(r"[\s.!?\"”’]*")
_FRAME = (*(word for slot in _OPENING for word in slot), *_ASK, *_LEAD)
EVERYDAY = WORDS | frozenset(" ".join(_FRAME).lower().split())
"""The words that may surround a chain: those of the grammar, and others that say nothing about the chain.

Any other word could change the question ("not", "or") or reveal the answer, in ways that no check foresees.
Things whose names are everyday words are never answers.
"""


def strange_word(words: str) -> str | None:
    """Return the first word or sign that is not an everyday word, or None."""
    return first_strange(words, EVERYDAY)


class Reading(NamedTuple):
    """The parse of a question."""

    hops: tuple[Hop, ...]
    """Hops in the order of execution."""
    free: str
    """The words around the chain."""
    stray: str
    """A sentence about surrounding words that ask for something other than the chain's end, or empty."""


class Misread(Exception):
    """Raised if a question states no chain. The message is a sentence."""


def question_pattern(hops: Sequence[Hop]) -> str:
    """Return a regular expression of all questions that the grammar allows for a chain."""
    opening = "".join(_choice(slot) for slot in _OPENING)
    ask, lead = _choice(_ASK), _choice(_LEAD)
    front, last = hops[:-1], hops[-1:]
    whole = f"{ask} {_nested(hops)} {START}"
    halves = f"{lead} {_nested(front)} {START}[.] {ask} {_nested(last)} that {front[-1].target}"
    return f"({opening}: )?({whole}|{halves})[?]"


def draw_question(hops: Sequence[Hop], rng: random.Random) -> str:
    """Return a random question among those that the grammar allows."""
    opening = "".join(rng.choice(slot) for slot in _OPENING) + ": " if rng.random() < 0.6 else ""
    if rng.random() < 0.6:
        return f"{opening}{rng.choice(_ASK)} {_drawn(hops, rng)} {START}?"
    front, last = f"{rng.choice(_LEAD)} {_drawn(hops[:-1], rng)}", _drawn(hops[-1:], rng)
    return f"{opening}{front} {START}. {rng.choice(_ASK)} {last} that {hops[-2].target}?"


def _choice(options: Iterable[str]) -> str:
    return f"({'|'.join(options)})"  # words of letters, spaces, hyphens and apostrophes need no escaping


def _nested(hops: Sequence[Hop]) -> str:
    return " ".join(_choice(hop.words) for hop in reversed(hops))


def _drawn(hops: Sequence[Hop], rng: random.Random) -> str:
    return " ".join(rng.choice(hop.words) for hop in reversed(hops))


class Reader:
    """Parses questions into chains of hops of one knowledge base."""

    def __init__(self, hops: Iterable[Hop]) -> None:
        said = [(words, hop) for hop in hops for words in hop.words]
        said.sort(key=lambda pair: len(pair[0]), reverse=True)  # the longest matching phrase wins
        self._hops = [hop for _, hop in said]
        phrases = "|".join(f"({re.escape(words)})" for words, _ in said)
        self._phrase = re.compile(rf"(?<!\w)(?:{phrases})(?!\w)", re.IGNORECASE)

    def read(self, question: str, names: Sequence[str]) -> Reading:
        """Parse the chain that a question asks for.

        Args:
            question: with the start's name, no blanks.
            names: names of the start; the error uses the first.

        Raises:
            Misread: the start's name does not follow a relation's words, or a relation's words are out of
                place.
        """
        start = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        first, rest = self._run(question, rf"(?:the )?(?:{start})(?![\w'’])")
        if first is None:
            raise Misread(f"The question does not name {names[0]} after the words of a relation.")
        second, after = self._run(rest.after, r"(?:that (?P<kind>[\w ]+?)|it)(?=\W*$)")
        if second is None:
            if self._phrase.search(rest.before) or self._phrase.search(rest.after):
                raise Misread("Words of a relation stand apart from the start.")
            return Reading(first, f"{rest.before} {rest.after}", _stray((rest.before,), rest.after))
        if after.kind is not None and after.kind != first[-1].target:
            raise Misread(f"The question says 'that {after.kind}', but there stands a {first[-1].target}.")
        free = " ".join((rest.before, after.before, after.after))
        if self._phrase.search(free):
            raise Misread("Words of a relation stand apart from the start.")
        return Reading((*first, *second), free, _stray((rest.before, after.before), after.after))

    def _run(self, text: str, end: str) -> tuple[tuple[Hop, ...] | None, _Rest]:
        """Find adjacent phrases followed by `end`; return their hops in order of execution, and the rest."""
        closing = re.compile(end)
        for match in self._phrase.finditer(text):
            hops, place = [self._hop(match)], match.end()
            while (following := self._phrase.match(text, place + 1)) and text[place] == " ":
                hops.append(self._hop(following))
                place = following.end()
            if text[place : place + 1] == " " and (closed := closing.match(text, place + 1)):
                kind = closed.groupdict().get("kind")
                return tuple(reversed(hops)), _Rest(text[: match.start()], text[closed.end() :], kind)
        return None, _Rest("", text, None)

    def _hop(self, match: re.Match[str]) -> Hop:
        return self._hops[(match.lastindex or 1) - 1]


def _stray(before: Iterable[str], after: str) -> str:
    """Return a sentence if words around the chain change the question ("the mother of"), else "".

    Args:
        before: the text before each part of the chain.
        after: the text after the last part.
    """
    for words in before:
        if _ASKING.search(words) is None:
            said = " ".join(words.split()[-3:])[-40:]
            return f"Before the chain stands {said!r}, not words that ask for it such as {_ASK[0]!r}."
    if _ENDING.fullmatch(after) is None:
        return f"After the chain stands {after.strip()[:40]!r}, but the question must end there."
    return ""


class _Rest(NamedTuple):
    """The text around a run of phrases."""

    before: str
    after: str
    kind: str | None


@functools.lru_cache(maxsize=4096)
def _whole_words(name: str) -> re.Pattern[str]:
    """Return a pattern for a name as whole words; case matters for short names, as "IS" is not "is"."""
    flags = re.IGNORECASE if len(name) > 3 else 0
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", flags)


def named(names: Iterable[str], text: str) -> str | None:
    """Return the first of the names that a text contains as whole words, or None."""
    return next((name for name in names if _whole_words(name).search(text)), None)


Name = Annotated[str, Field(min_length=1, max_length=120)]


class QuestionSpec(BaseModel, frozen=True, extra="forbid", strict=True):
    """A chain of facts and the question that asks for its end."""

    hops: int = Field(ge=2, le=4)
    """The number of facts in the chain."""
    answer: Name
    """The kind of the answer, e.g. `city` or `code`."""
    start: Name
    """The thing that the question names."""
    relations: Annotated[list[Name], Field(min_length=2, max_length=4)]
    """The hops from the start on; `capital` leads from a country to a city, `capital of` back."""
    question: str = Field(min_length=MIN_QUESTION, max_length=MAX_QUESTION)
    """The question for the agent. `<start>` stands for the start's name."""
