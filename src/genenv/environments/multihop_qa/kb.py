"""The knowledge base: facts by subject and by object, and what one hop leads to.

A hop is defined where exactly one thing is at its end. `KnowledgeBase.follow` answers from indexes;
`joined` answers the same question from the bare list of facts and is there to be compared with it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

from genenv.environments.multihop_qa.relations import RELATIONS, THINGS, Hop, Relation
from genenv.errors import DataError


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
    """What the hop leads to."""


class BrokenChain(Exception):
    """A chain has no unique end. The message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text about one thing."""

    title: str
    text: str
    facts: tuple[Fact, ...] = field(default=())
    """What it says, as far as chains go."""


class KnowledgeBase:
    """Facts with their relations, aliases, and passages that say them."""

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
        """The passages of a user's own corpus, by title; empty: passages are made from facts."""
        self._sources = {
            fact: title for title, passage in reversed(self.written.items()) for fact in passage.facts
        }

    def __contains__(self, name: str) -> bool:
        """Whether any fact is about something of this name."""
        return name in self._kinds

    def __iter__(self) -> Iterator[str]:
        """The names of everything that facts are about, sorted."""
        return iter(sorted(self._kinds))

    def source(self, fact: Fact) -> str:
        """The title of the first passage that says a fact; of made passages, its subject."""
        return self._sources.get(fact, fact.subject)

    def kind(self, name: str) -> str:
        """What kind of thing a name stands for."""
        return self._kinds[name]

    def names(self, name: str) -> tuple[str, ...]:
        """A name and its aliases."""
        return name, *self.aliases.get(name, ())

    def key(self, name: str) -> str:
        """One name for all things that share a name or an alias, directly or by way of others."""
        return self._keys.get(name, name)

    @functools.cached_property
    def _keys(self) -> Mapping[str, str]:
        """Keys of the things that do not stand alone."""
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
        """The hops that lead from here to exactly one thing, in the order of the relations."""
        return [hop for hop in self.hops.values() if len(self._ends.get((name, hop.name), ())) == 1]

    def step(self, name: str, hop: Hop) -> Step:
        """Follow one hop.

        Raises:
            BrokenChain: it leads nowhere, or to several things.
        """
        found = self._ends.get((name, hop.name), [])
        if not found:
            raise BrokenChain(f"The knowledge base has no {hop.name!r} hop from {name}.")
        if len(found) > 1:
            ends = " and ".join(sorted(_end(fact, hop) for fact in found)[:2])
            raise BrokenChain(f"{hop.name!r} of {name} is ambiguous: it leads to {ends}.")
        return Step(hop, found[0], _end(found[0], hop))

    def follow(self, start: str, hops: Sequence[Hop]) -> list[Step]:
        """Execute a chain.

        Raises:
            BrokenChain: a hop has no unique end, or the chain comes back to where it was.
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
        """All names of each kind, sorted."""
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
        """Everything that a hop leads to from anywhere, sorted."""
        return self._possible.get(hop.name, ())


def _end(fact: Fact, hop: Hop) -> str:
    return fact.subject if hop.backward else fact.object


def joined(facts: Iterable[Fact], start: str, hops: Sequence[Hop]) -> set[str]:
    """Everything at the end of a chain by a join over a list of facts, without any index."""
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
    """The knowledge base of this package.

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
