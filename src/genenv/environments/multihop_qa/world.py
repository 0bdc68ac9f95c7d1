"""A knowledge base, built in or from a user's corpus, with its chains, base data and the simulator's grammar.

Each alternative of the grammar for a seed fixes the difficulty fields, the start and the hops of a chain that
executes, and gives a pattern for its question. So every spec has one answer, names its start, and names no
intermediate thing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from genenv.environments.common import closed_object
from genenv.environments.multihop_qa.kb import (
    THINGS,
    Fact,
    Hop,
    KnowledgeBase,
    Passage,
    Relation,
    built_in,
    passage_of,
)
from genenv.environments.multihop_qa.search import SearchIndex
from genenv.environments.multihop_qa.spec import (
    EVERYDAY,
    QuestionSpec,
    Reader,
    draw_question,
    named,
    question_pattern,
)
from genenv.errors import UsageError, first_problem
from genenv.types import Json, JsonObject, Seed

MIN_HOPS, MAX_HOPS = 2, 4
MAX_CHAINS = 5_000
"""The maximum number of chains from one start; the facts of a user may allow millions."""
HELD_OUT_SHARE = 4
"""One name in this many is held out."""


class Chain(NamedTuple):
    """A chain of hops that executes."""

    start: str
    hops: tuple[Hop, ...]
    answer: str
    kind: str
    """The kind of the answer."""
    bridges: tuple[str, ...]
    """The things between start and answer."""

    @property
    def path(self) -> tuple[str, ...]:
        """The names from start to answer."""
        return self.start, *self.bridges, self.answer


class Chains:
    """The chains of a knowledge base by start, split into training and held-out ones."""

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        words = " ".join((*sorted(EVERYDAY), *(phrase for hop in base.hops.values() for phrase in hop.words)))
        lower = words.lower()
        self._unsayable = {
            name
            for name in base
            if any(each.lower() in lower and named([each], words) for each in base.names(name))
        }
        """Names that any question could contain as words, such as the code "is"; they are never answers."""
        self._hidden = frozenset(name for name in base if _hashed(base.key(name)))
        self.of = functools.lru_cache(maxsize=2048)(self._of)
        """Returns the chains of 2 to 4 hops from a start, of both halves of the split; the first
        `MAX_CHAINS`."""

    def is_held_out(self, name: str) -> bool:
        """Return whether a name is held out."""
        return name in self._hidden

    def reserved(self, path: Sequence[str]) -> str | None:
        """Return the first held-out name that excludes a path from training, or None."""
        for end in (path[0], path[-1]):
            if end in self._hidden:
                return end
        for place, name in enumerate(path):
            if name in self._hidden and not self._hidden.isdisjoint(path[place + MIN_HOPS :]):
                return name
        return None

    def _of(self, start: str) -> tuple[Chain, ...]:
        return tuple(itertools.islice(self._extend(start, start, (), (start,)), MAX_CHAINS))

    def _extend(self, start: str, here: str, hops: tuple[Hop, ...], seen: tuple[str, ...]) -> Iterator[Chain]:
        for hop in self._base.hops_from(here):
            if any(hop.relation == before.relation for before in hops):
                continue  # no person asks for the element after the element after ...
            end = self._base.step(here, hop).end
            if end in seen or end in self._unsayable or named(self._base.names(end), start):
                continue
            so_far, kind = (*hops, hop), self._base.kind(end)
            if len(so_far) >= MIN_HOPS:
                yield Chain(start, so_far, end, kind, seen[1:])
            if len(so_far) < MAX_HOPS and kind in THINGS:
                yield from self._extend(start, end, so_far, (*seen, end))

    def on_side(self, start: str, *, held_out: bool) -> list[Chain]:
        """Return the held-out or the training chains from a start."""
        if (start in self._hidden) != held_out:
            return []
        if held_out:
            return [chain for chain in self.of(start) if chain.answer in self._hidden]
        return [chain for chain in self.of(start) if self.reserved(chain.path) is None]

    def some(
        self, start: str, per_length: Sequence[int], *, held_out: bool, rng: random.Random
    ) -> list[Chain]:
        """Return some chains from a start: `per_length` numbers of 2, 3 and 4 hops, varied in answer kind."""
        chosen: list[Chain] = []
        for length, wanted in enumerate(per_length, MIN_HOPS):
            found = [chain for chain in self.on_side(start, held_out=held_out) if len(chain.hops) == length]
            rng.shuffle(found)
            found.sort(key=_repeats(found))
            chosen += found[:wanted]
        return chosen


def _hashed(key: str) -> bool:
    return hashlib.sha256(key.casefold().encode()).digest()[0] % HELD_OUT_SHARE == 0


def _repeats(chains: Sequence[Chain]) -> Callable[[Chain], int]:
    """Return a sort key that takes each kind of answer once before it takes any kind twice."""
    counts: dict[str, int] = {}
    rank: dict[Chain, int] = {}
    for chain in chains:
        rank[chain] = counts[chain.kind] = counts.get(chain.kind, 0) + 1
    return rank.__getitem__


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
    """The content of a corpus file while it is read: passages, and facts if there are any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passages: dict[str, Passage] = {}
        self.aliases: dict[str, list[str]] = {}
        self._relations: dict[str, Relation] = {}
        self._first: dict[tuple[str, str], tuple[Fact, int]] = {}
        self._lines: dict[str, int] = {}
        self._line = 0

    def base(self) -> KnowledgeBase | None:
        """Return the knowledge base of the corpus, or None if it has no facts."""
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
        """Parse a line and add its passage or relation."""
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
            self._fail(first_problem(error))

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
    """Return the words that occur twice, ignoring case, because questions are parsed without case."""
    plain = Counter(each.casefold() for each in words)
    return sorted(each for each in words if plain[each.casefold()] > 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def load_corpus(path: Path) -> Corpus:
    """Read a file of passages.

    Raises:
        UsageError: the file does not exist, has no passage, or has an invalid line.
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


class World:
    """A knowledge base with its chains, question parser and search index."""

    def __init__(self, base: KnowledgeBase, more: tuple[Passage, ...] = ()) -> None:
        self.base = base
        self.chains = Chains(base)
        self.reader = Reader(base.hops.values())
        self._more = more

    @functools.cached_property
    def index(self) -> SearchIndex:
        """The search index of all passages."""
        made = (passage_of(self.base, title) for title in self.base.by_subject)
        return SearchIndex([*(self.base.written.values() or made), *self._more])


def load_world(corpus: str | None) -> World:
    """Return the built-in knowledge base or a user's.

    Raises:
        UsageError: the user's file cannot be used.
    """
    if corpus is None:
        return _built_in()
    found = load_corpus(Path(corpus))
    base = found.base()
    return World(base) if base is not None else World(built_in(), tuple(found.passages.values()))


@functools.cache
def _built_in() -> World:
    return World(built_in())


SEEDS, HELD_OUT = 400, 160
_KINDS = {
    "country": 24,
    "city": 22,
    "airport": 16,
    "element": 16,
    "state": 8,
    "language": 6,
    "currency": 4,
    "code": 4,
    "thing": 100,
}
"""Kind of thing at which questions start -> percentage of the base data; exhausted kinds are skipped."""
_LENGTHS = (2, 3, 2, 3, 2, 4)
"""Numbers of hops, used in rotation."""


def training_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Yield up to 400 specs by id, with blanks; always the same for a knowledge base."""
    return _specs(world, "mq-seed", SEEDS, held_out=False)


def held_out_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Yield up to 160 held-out specs by id, with blanks; always the same for a knowledge base."""
    return _specs(world, "mq-held", HELD_OUT, held_out=True)


def spec_of(chain: Chain, rng: random.Random) -> QuestionSpec:
    """Return the spec of a chain, with a question drawn from those that the grammar allows."""
    return QuestionSpec(
        hops=len(chain.hops),
        answer=chain.kind,
        start=chain.start,
        relations=[hop.name for hop in chain.hops],
        question=draw_question(chain.hops, rng),
    )


def _specs(world: World, prefix: str, wanted: int, *, held_out: bool) -> Iterator[tuple[str, QuestionSpec]]:
    rng = random.Random(prefix)
    asked: Counter[str] = Counter()
    waiting = {kind: _chains(world, kind, asked, held_out=held_out, rng=rng) for kind in _KINDS}
    number = 0
    while waiting and number < wanted:
        kind = rng.choices(list(waiting), [_KINDS[kind] for kind in waiting])[0]
        chain = next(waiting[kind], None)
        if chain is None:
            del waiting[kind]
            continue
        number += 1
        asked[chain.hops[-1].name] += 1
        yield f"{prefix}-{number:03d}", spec_of(chain, rng)


def _chains(
    world: World, kind: str, asked: Mapping[str, int], *, held_out: bool, rng: random.Random
) -> Iterator[Chain]:
    """Yield chains from all starts of a kind: one from each start, then a second from each, and so on.

    Chains of the length that is next in `_LENGTHS` are preferred, then those with the rarest last relation.
    """
    names = [name for name in world.base.by_kind.get(kind, ()) if world.chains.is_held_out(name) == held_out]
    starts = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    used: set[Chain] = set()
    turn = 0
    while starts:
        left: list[str] = []
        for start in starts:
            chains = [c for c in world.chains.on_side(start, held_out=held_out) if c not in used]
            fitting = [chain for chain in chains if len(chain.hops) == _LENGTHS[turn % len(_LENGTHS)]]
            if chains:
                rng.shuffle(chains := fitting or chains)
                chain = min(chains, key=lambda chain: asked[chain.hops[-1].name])
                used.add(chain)
                left.append(start)
                turn += 1
                yield chain
        starts = left


_OTHER_STARTS = 3
_PER_LENGTH = (5, 4, 3)
"""Numbers of chains with 2, 3 and 4 hops from each start."""


def offered(world: World, seed: Seed) -> list[Chain]:
    """Return the chains that a simulator can choose from: from the seed's start and from three other starts.

    All are training chains, always the same for a seed, without the seed's chain. If a small corpus has no
    other chain, the seed's is offered.
    """
    spec = QuestionSpec.model_validate(seed.spec)
    rng = random.Random(f"{seed.id}/offered")
    found: list[Chain] = []
    for start in (spec.start, *_others(world, spec.start, rng)):
        found += world.chains.some(start, _PER_LENGTH, held_out=False, rng=rng)
    own = (spec.start, spec.relations)
    others = [chain for chain in found if (chain.start, [hop.name for hop in chain.hops]) != own]
    return others or found


def _others(world: World, start: str, rng: random.Random) -> list[str]:
    """Return up to three other starts of the same kind that have chains."""
    same = [name for name in world.base.by_kind[world.base.kind(start)] if not world.chains.is_held_out(name)]
    rng.shuffle(same)
    others = (name for name in same if name != start and world.chains.on_side(name, held_out=False))
    return [name for name, _ in zip(others, range(_OTHER_STARTS), strict=False)]


def spec_schema(world: World, seed: Seed) -> JsonObject:
    """Return a schema with one alternative for each chain that is offered for a seed."""
    return {"anyOf": [_alternative(chain) for chain in offered(world, seed)]}


def _alternative(chain: Chain) -> JsonObject:
    hops: list[Json] = [{"const": hop.name} for hop in chain.hops]
    fields: dict[str, Json] = {
        "hops": {"const": len(hops)},
        "answer": {"const": chain.kind},
        "start": {"const": chain.start},
        "relations": {"type": "array", "prefixItems": hops, "items": False, "minItems": len(hops)},
        "question": {"type": "string", "pattern": f"^({question_pattern(chain.hops)})$"},
    }
    return closed_object(fields)
