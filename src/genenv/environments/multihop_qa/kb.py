"""The knowledge base: things, the relations between them, facts, and passages that state facts."""

from __future__ import annotations

import functools
import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

from genenv.errors import DataError

THINGS = frozenset({"country", "city", "airport", "element", "currency", "language", "state", "thing"})
"""Kinds that a chain may pass through; other kinds (codes, years, ...) only start or end a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A kind of fact, such as `capital`."""

    name: str
    """Also the name of the hop from subject to object."""
    subject: str
    """Kind of the subject."""
    object: str
    """Kind of the object."""
    words: tuple[str, ...]
    """Phrases for the object of a subject, e.g. "the capital of"."""
    sentence: str = ""
    """The sentence in a passage about the subject, with `{}` for the object; empty for the default."""
    back: str = ""
    """Name of the hop from object to subject; empty if there is none."""
    back_words: tuple[str, ...] = ()
    """Phrases for the only subject of an object, e.g. "the country whose capital is"."""
    many: bool = False
    """Whether a subject may have several objects, which makes the hop ambiguous and unused. If not, two
    objects are a contradiction."""

    @property
    def says(self) -> str:
        """The sentence of a passage, with `{}` for the object."""
        return self.sentence or f"Its {self.name} is {{}}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A relation in one of its two directions."""

    relation: Relation
    backward: bool

    @property
    def name(self) -> str:
        """The name in specs."""
        return self.relation.back if self.backward else self.relation.name

    @property
    def words(self) -> tuple[str, ...]:
        """The phrases that ask for the end of the hop."""
        return self.relation.back_words if self.backward else self.relation.words

    @property
    def source(self) -> str:
        """The kind of thing at which the hop starts."""
        return self.relation.object if self.backward else self.relation.subject

    @property
    def target(self) -> str:
        """The kind of thing to which the hop leads."""
        return self.relation.subject if self.backward else self.relation.object


def _relation(name: str, row: Mapping[str, Any]) -> Relation:
    fields: dict[str, Any] = {**row, "words": tuple(row["words"])}
    if "back_words" in row:
        fields |= {"back": row.get("back", f"{name} of"), "back_words": tuple(row["back_words"])}
    return Relation(name=name, **fields)


_FILE = resources.files("genenv.environments.multihop_qa") / "data/relations.toml"
RELATIONS = tuple(_relation(*row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8")).items())
"""The relations of the built-in knowledge base. A backward hop is called `NAME of` by default."""


class Fact(NamedTuple):
    """One fact: the subject has the object as its `relation`."""

    subject: str
    relation: str
    object: str


class Step(NamedTuple):
    """One hop of an executed chain."""

    hop: Hop
    fact: Fact
    end: str
    """The thing to which the hop leads."""


class BrokenChain(Exception):
    """Raised if a chain has no unique end. The message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text about one thing."""

    title: str
    text: str
    facts: tuple[Fact, ...] = field(default=())
    """The facts that the text states."""


class KnowledgeBase:
    """Facts with their relations, aliases, and the passages that state them."""

    def __init__(
        self,
        facts: Iterable[Fact],
        *,
        relations: Sequence[Relation] = RELATIONS,
        aliases: Mapping[str, Sequence[str]] | None = None,
        passages: Iterable[Passage] = (),
    ) -> None:
        self.facts = tuple(dict.fromkeys(facts))
        self.relations = {relation.name: relation for relation in relations}
        self.aliases = aliases or {}
        self.hops = {
            hop.name: hop
            for relation in relations
            for hop in (Hop(relation=relation, backward=False), Hop(relation=relation, backward=True))
            if hop.name
        }
        self._ends: defaultdict[tuple[str, str], list[Fact]] = defaultdict(list)
        self._kinds: dict[str, str] = {}
        by_subject: defaultdict[str, list[Fact]] = defaultdict(list)
        for fact in self.facts:
            relation = self.relations[fact.relation]
            self._ends[fact.subject, relation.name].append(fact)
            if relation.back:
                self._ends[fact.object, relation.back].append(fact)
            by_subject[fact.subject].append(fact)
            self._kinds.setdefault(fact.object, relation.object)
            self._kinds[fact.subject] = relation.subject
        self.by_subject: Mapping[str, Sequence[Fact]] = by_subject
        self.written = {passage.title: passage for passage in passages}
        """The passages of a user's corpus by title; if empty, passages are generated from facts."""
        self._sources = {
            fact: title for title, passage in reversed(self.written.items()) for fact in passage.facts
        }

    def __contains__(self, name: str) -> bool:
        """Return whether any fact is about a thing of this name."""
        return name in self._kinds

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all things in facts, sorted."""
        return iter(sorted(self._kinds))

    def source(self, fact: Fact) -> str:
        """Return the title of the first passage that states a fact; if generated, the fact's subject."""
        return self._sources.get(fact, fact.subject)

    def kind(self, name: str) -> str:
        """Return the kind of the thing with this name."""
        return self._kinds[name]

    def names(self, name: str) -> tuple[str, ...]:
        """Return a name and its aliases."""
        return name, *self.aliases.get(name, ())

    def key(self, name: str) -> str:
        """Return one key for all things that share a name or an alias, directly or through other things."""
        return self._keys.get(name, name)

    @functools.cached_property
    def _keys(self) -> Mapping[str, str]:
        """Thing -> key, for all things that share a name with another thing."""
        called: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._kinds:
            for each in {other.casefold() for other in self.names(name)}:
                called[each].append(name)
        near: defaultdict[str, set[str]] = defaultdict(set)
        for together in called.values():
            if len(together) > 1:
                for name in together:
                    near[name].update(together)
        keys: dict[str, str] = {}
        for name in sorted(near):
            waiting = [name]
            while waiting:
                here = waiting.pop()
                if here not in keys:
                    keys[here] = name
                    waiting += near[here]
        return keys

    def hops_from(self, name: str) -> list[Hop]:
        """Return the hops that lead from a thing to exactly one other, in the order of the relations."""
        return [hop for hop in self.hops.values() if len(self._ends.get((name, hop.name), ())) == 1]

    def step(self, name: str, hop: Hop) -> Step:
        """Follow one hop.

        Raises:
            BrokenChain: the hop leads nowhere or to several things.
        """
        found = self._ends.get((name, hop.name), [])
        if not found:
            raise BrokenChain(f"The knowledge base has no {hop.name!r} hop from {name}.")
        if len(found) > 1:
            ends = " and ".join(sorted(_end(fact, hop) for fact in found)[:2])
            raise BrokenChain(f"{hop.name!r} of {name} is ambiguous: it leads to {ends}.")
        return Step(hop, found[0], _end(found[0], hop))

    def follow(self, start: str, hops: Sequence[Hop]) -> list[Step]:
        """Execute a chain and return its steps.

        Raises:
            BrokenChain: a hop has no unique end, or the chain returns to an earlier thing or relation.
        """
        steps: list[Step] = []
        seen = {start}
        for number, hop in enumerate(hops, 1):
            if any(hop.relation == step.hop.relation for step in steps):
                raise BrokenChain(f"Hop {number} uses the relation {hop.relation.name!r} a second time.")
            step = self.step(steps[-1].end if steps else start, hop)
            if step.end in seen:
                raise BrokenChain(f"Hop {number} comes back to {step.end}.")
            if number < len(hops) and self.kind(step.end) not in THINGS:
                raise BrokenChain(f"Hop {number} ends at {step.end}, from which no chain goes on.")
            seen.add(step.end)
            steps.append(step)
        return steps

    @functools.cached_property
    def by_kind(self) -> Mapping[str, Sequence[str]]:
        """Kind -> all names of that kind, sorted."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(self._kinds):
            found[self._kinds[name]].append(name)
        return found

    @functools.cached_property
    def _possible(self) -> Mapping[str, Sequence[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for (_, name), facts in self._ends.items():
            found[name].update(_end(fact, self.hops[name]) for fact in facts)
        return {name: sorted(ends) for name, ends in found.items()}

    def ends(self, hop: Hop) -> Sequence[str]:
        """Return all things to which a hop leads from any start, sorted."""
        return self._possible.get(hop.name, ())


def _end(fact: Fact, hop: Hop) -> str:
    return fact.subject if hop.backward else fact.object


def joined(facts: Iterable[Fact], start: str, hops: Sequence[Hop]) -> set[str]:
    """Return all ends of a chain by a join over a list of facts, without any index."""
    facts = tuple(facts)
    here = {start}
    for hop in hops:
        name = hop.relation.name
        if hop.backward:
            here = {fact.subject for fact in facts if fact.relation == name and fact.object in here}
        else:
            here = {fact.object for fact in facts if fact.relation == name and fact.subject in here}
    return here


@functools.cache
def built_in() -> KnowledgeBase:
    """Load the knowledge base of this package.

    Raises:
        DataError: its files are damaged.
    """
    folder = resources.files("genenv.environments.multihop_qa") / "data"
    rows = (folder / "facts.tsv").read_text(encoding="utf-8").splitlines()
    facts: list[Fact] = []
    for number, row in enumerate(rows, 1):
        cells = row.split("\t")
        if len(cells) != len(Fact._fields):
            raise DataError(f"facts.tsv, line {number}: not three columns; reinstall genenv")
        facts.append(Fact(*cells))
    lines = (folder / "aliases.tsv").read_text(encoding="utf-8").splitlines()
    aliases = {name: others for name, *others in (line.split("\t") for line in lines)}
    return KnowledgeBase(facts, aliases=aliases)


_NEXT = r"\.(?= Its? |$)"
"""Matches the end of a sentence; every sentence begins with It or Its."""


def passage_of(base: KnowledgeBase, title: str, facts: Sequence[Fact] | None = None) -> Passage:
    """Return the passage about a thing.

    Args:
        base: the knowledge base.
        title: the name of the thing.
        facts: the facts to state; None for all. Passages of a user's corpus are always whole.
    """
    if title in base.written:
        return base.written[title]
    said = base.by_subject.get(title, ()) if facts is None else facts
    text = " ".join(base.relations[fact.relation].says.format(fact.object) for fact in said)
    return Passage(title=f"{title} ({base.kind(title)})", text=text, facts=tuple(said))


def line_of(passage: Passage) -> str:
    """Return a passage in the form that the agent sees."""
    return f"{passage.title}: {passage.text}"


def facts_in(base: KnowledgeBase, line: str) -> set[Fact]:
    """Parse the facts that a passage of the built-in knowledge base states from its text."""
    match = re.match(r"(?P<title>.+) \((?P<kind>[a-z ]+)\): (?P<text>.*)", line, re.DOTALL)
    if match is None:
        return set()
    found: set[Fact] = set()
    for relation in base.relations.values():
        if relation.subject == match["kind"]:
            before, after = map(re.escape, relation.says.removesuffix(".").split("{}"))
            for said in re.finditer(rf"(?:^|(?<= )){before}(.+?){after}{_NEXT}", match["text"]):
                found.add(Fact(match["title"], relation.name, said[1]))
    return found


def supporting(base: KnowledgeBase, steps: Iterable[Step], most: int, rng: random.Random) -> list[Passage]:
    """Return the passages with the facts of a chain; other facts fill each up to `most`."""
    needed: dict[str, list[Fact]] = {}
    for step in steps:
        needed.setdefault(base.source(step.fact), []).append(step.fact)
    return [passage_of(base, title, _some(base, title, facts, most, rng)) for title, facts in needed.items()]


def distracting(
    base: KnowledgeBase, steps: Sequence[Step], wanted: int, most: int, rng: random.Random
) -> list[Passage]:
    """Return passages about other things of the same kinds, with facts of the same relations.

    Their facts are true, so the chain still has one end. From a user's corpus, any unused passages are drawn.
    """
    on_path = {name for step in steps for name in step.fact if name in base}
    if base.written:
        used = {base.source(step.fact) for step in steps}
        others = [passage for title, passage in base.written.items() if title not in used]
        return rng.sample(others, min(wanted, len(others)))
    found: dict[str, Passage] = {}
    for attempt in range(wanted * 8):
        if len(found) == wanted:
            break
        step = steps[attempt % len(steps)]
        title = rng.choice(base.by_kind[step.hop.relation.subject])
        same = [fact for fact in base.by_subject.get(title, ()) if fact.relation == step.fact.relation]
        if title not in on_path and same:
            found[title] = passage_of(base, title, _some(base, title, same[:1], most, rng))
    return list(found.values())


def _some(
    base: KnowledgeBase, title: str, needed: Sequence[Fact], most: int, rng: random.Random
) -> list[Fact]:
    """Return the needed facts and some other facts of a thing, in the order of the knowledge base."""
    known = base.by_subject.get(title, ())
    rest = [fact for fact in known if fact not in needed]
    more = rng.sample(rest, min(len(rest), max(0, most - len(needed))))
    return [fact for fact in known if fact in needed or fact in more]
