"""A user's own passages, from a JSONL file; `MultihopConfig` says what its lines are.

Every problem is one sentence that names the file and the line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from genenv.environments.multihop_qa.kb import Fact, KnowledgeBase, Passage
from genenv.environments.multihop_qa.relations import Relation
from genenv.errors import UsageError

_MAX_LINE = 20_000


def _in_one_line(name: str) -> str:
    if len(name.splitlines()) > 1:
        raise ValueError("a name must be one line")
    return name


_Name = Annotated[
    str, Field(min_length=1, max_length=120, pattern=r"^\S(?:[^\n\t]*\S)?$"), AfterValidator(_in_one_line)
]
_Phrase = Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z]+(?:[ '-][A-Za-z]+)*$")]


class _PassageLine(BaseModel, frozen=True, extra="forbid", strict=True):
    title: _Name
    text: str = Field(min_length=1, max_length=2_000)
    facts: list[Annotated[list[_Name], Field(min_length=3, max_length=3)]] = []
    aliases: list[_Name] = []


class _RelationLine(BaseModel, frozen=True, extra="forbid", strict=True):
    relation: _Phrase
    words: list[_Phrase] = Field(default=[], max_length=8)
    inverse_words: list[_Phrase] = Field(default=[], max_length=8)
    functional: bool = False


class Corpus:
    """What a file says: passages, and facts if there are any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passages: dict[str, Passage] = {}
        self.aliases: dict[str, list[str]] = {}
        self._relations: dict[str, Relation] = {}
        self._first: dict[tuple[str, str], tuple[Fact, int]] = {}
        self._lines: dict[str, int] = {}
        self._line = 0

    def base(self) -> KnowledgeBase | None:
        """The knowledge base of its facts; None without any."""
        facts = [fact for passage in self.passages.values() for fact in passage.facts]
        if not facts:
            return None
        relations = list(self._relations.values())
        phrases = [p for relation in relations for p in (*relation.words, *relation.back_words)]
        names = [name for relation in relations for name in (relation.name, relation.back)]
        twice = [*_repeated(names), *_repeated(phrases)]
        if twice:
            raise UsageError(f"{self.path}: {twice[0]!r} means two relations; give one of them other words")
        passages = self.passages.values()
        return KnowledgeBase(facts, relations=relations, aliases=self.aliases, passages=passages)

    def add(self, number: int, line: str) -> None:
        """Take a line."""
        self._line = number
        if len(line) > _MAX_LINE:
            self._fail(f"it is longer than {_MAX_LINE} characters; split the passage")
        try:
            data: object = json.loads(line)
        except (ValueError, RecursionError):
            self._fail("it is not JSON; write one object a line")
        if not isinstance(data, dict):
            self._fail("it is not a JSON object; write one with a title and a text")
        try:
            if "relation" in data:
                self._describe(_RelationLine.model_validate(data))
            else:
                self._take(_PassageLine.model_validate(data))
        except ValidationError as error:
            first = error.errors()[0]
            self._fail(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    def _fail(self, what: str) -> NoReturn:
        raise UsageError(f"{self.path}, line {self._line}: {what}")

    def _describe(self, line: _RelationLine) -> None:
        if line.relation in self._relations:
            self._fail(
                f"relation {line.relation!r} was described or used before; describe it once, and first"
            )
        self._relations[line.relation] = _relation(line)

    def _take(self, line: _PassageLine) -> None:
        if line.title in self._lines:
            first = self._lines[line.title]
            self._fail(
                f"the title {line.title!r} stands in line {first} too; rename one or join the passages"
            )
        self._lines[line.title] = self._line
        facts = [self._fact(Fact(*fact), line) for fact in line.facts]
        if len(set(facts)) < len(facts):
            self._fail("it gives the same fact twice; remove one")
        self.passages[line.title] = Passage(title=line.title, text=_one_line(line.text), facts=tuple(facts))
        if line.aliases:
            self.aliases[line.title] = line.aliases

    def _fact(self, fact: Fact, line: _PassageLine) -> Fact:
        for name in (fact.subject, fact.object):
            if name not in line.title and name not in _one_line(line.text):
                self._fail(
                    f"the fact {list(fact)} is about {name!r}, which neither title nor text has; say it there"
                )
        if fact.relation not in self._relations:
            if not re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*", fact.relation):
                self._fail(f"the relation {fact.relation!r} is not in plain words; write letters and spaces")
            self._relations[fact.relation] = _relation(_RelationLine(relation=fact.relation))
        before, number = self._first.setdefault((fact.subject, fact.relation), (fact, self._line))
        if before.object != fact.object and not self._relations[fact.relation].many:
            self._fail(
                f"it contradicts line {number}: {fact.relation} of {fact.subject} is {before.object!r} there "
                f"and {fact.object!r} here; mend one, or do not call the relation functional"
            )
        return fact


def _relation(line: _RelationLine) -> Relation:
    name = line.relation
    return Relation(
        name=name,
        subject="thing",
        object="thing",
        words=tuple(line.words) or (f"the {name} of",),
        back=f"{name} of",
        back_words=tuple(line.inverse_words) or (f"the one whose {name} is",),
        many=not line.functional,
    )


def _repeated(words: Sequence[str]) -> list[str]:
    """What is there twice, capitals aside: questions are read without them."""
    plain = Counter(each.casefold() for each in words)
    return sorted(each for each in words if plain[each.casefold()] > 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def load_corpus(path: Path) -> Corpus:
    """Read a file of passages.

    Raises:
        UsageError: it is not there, has no passage, or a line is wrong.
    """
    corpus = Corpus(path)
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r} is no name of a file; check the setting environment.corpus")
    try:
        for number, line in _lines(path):
            corpus.add(number, line)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; check the setting environment.corpus"
        ) from error
    if not corpus.passages:
        raise UsageError(f"{path} has no passage; write one JSON object a line, with a title and a text")
    return corpus


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise UsageError(
                    f"{path}, line {number}: it is not UTF-8 text; save the file as UTF-8"
                ) from None
            if line:
                yield number, line
