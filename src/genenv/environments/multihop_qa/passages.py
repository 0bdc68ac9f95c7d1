"""Passages: what the knowledge base says about a thing, in sentences, and the facts read back from them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence

from genenv.environments.multihop_qa.kb import Fact, KnowledgeBase, Passage, Step

_NEXT = r"\.(?= Its? |$)"
"""Every sentence begins with It or Its."""


def passage_of(base: KnowledgeBase, title: str, facts: Sequence[Fact] | None = None) -> Passage:
    """The passage about a thing.

    Args:
        base: where it is from.
        title: what it is about.
        facts: only these; left out, all. Passages of a user's corpus always say all they say.
    """
    if title in base.written:
        return base.written[title]
    said = base.by_subject.get(title, ()) if facts is None else facts
    text = " ".join(base.relations[fact.relation].says.format(fact.object) for fact in said)
    return Passage(title=f"{title} ({base.kind(title)})", text=text, facts=tuple(said))


def line_of(passage: Passage) -> str:
    """How an agent sees a passage."""
    return f"{passage.title}: {passage.text}"


def facts_in(base: KnowledgeBase, line: str) -> set[Fact]:
    """The facts that a passage of the built-in knowledge base says, read from its text alone."""
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
    """The passages that hold the facts of a chain, with other facts of the same things up to `most` each."""
    needed: dict[str, list[Fact]] = {}
    for step in steps:
        needed.setdefault(base.source(step.fact), []).append(step.fact)
    return [passage_of(base, title, _some(base, title, facts, most, rng)) for title, facts in needed.items()]


def distracting(
    base: KnowledgeBase, steps: Sequence[Step], wanted: int, most: int, rng: random.Random
) -> list[Passage]:
    """Passages about other things of the same kinds, with facts of the same relations.

    What they say is true, so the chain has one end with them too.
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
    """The needed facts and some others of a thing, in the order of the knowledge base."""
    known = base.by_subject.get(title, ())
    rest = [fact for fact in known if fact not in needed]
    more = rng.sample(rest, min(len(rest), max(0, most - len(needed))))
    return [fact for fact in known if fact in needed or fact in more]
