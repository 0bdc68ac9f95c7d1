"""Valid specs made wrong: the gate must reject each. No edit here leaves a spec right."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from genenv.environments.multihop_qa.kb import KnowledgeBase, built_in
from genenv.environments.multihop_qa.search import accepted
from genenv.environments.multihop_qa.spec import EVERYDAY
from genenv.environments.multihop_qa.world import load_world
from genenv.types import Json, JsonObject, Task

Spec = dict[str, Any]


def mutants(spec: Task | JsonObject, rng: random.Random) -> Iterator[tuple[str, dict[str, Json]]]:
    """Every kind of wrong spec that can be made from a valid one of the built-in knowledge base.

    Args:
        spec: a task, or a spec with or without its blank.
        rng: chooses names and places.
    """
    right = dict(spec.spec if isinstance(spec, Task) else spec)
    ends = rf"(?<!\w){re.escape(str(right['start']))}(?=\?$|\. [A-Z])"  # a code such as "is" is also a word
    right["question"] = re.sub(ends, "<start>", str(right["question"]))
    base = built_in()
    for kind, mutate in _MUTATIONS.items():
        wrong = mutate({**right, "relations": list(right["relations"])}, base, rng)  # type: ignore[arg-type]
        if wrong is not None:
            yield kind, wrong


def _path(spec: Spec, base: KnowledgeBase) -> list[str]:
    """The ends of its hops."""
    return [step.end for step in base.follow(spec["start"], [base.hops[name] for name in spec["relations"]])]


def _opened(spec: Spec, words: str) -> Spec:
    question = spec["question"]
    return {**spec, "question": f"{words}: {question[0].lower()}{question[1:]}"}


def _closed(spec: Spec, words: str) -> Spec:
    return {**spec, "question": f"{spec['question'].removesuffix('?')}{words}?"}


def leaked_answer(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    answer = _path(spec, base)[-1]
    form = rng.choice([_opened, _closed])
    return form(spec, f"Is it {answer}") if form is _opened else form(spec, f", such as {answer}")


def leaked_alias(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec | None:
    others = base.names(_path(spec, base)[-1])[1:]
    return _opened(spec, f"Not {rng.choice(others)}") if others else None


def leaked_number(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec | None:
    """The answer without its unit or its first word: "16" of "group 16"."""
    said = accepted(base, _path(spec, base)[-1])[-1]
    return _closed(spec, f", not {said}") if any(char.isdigit() for char in said) else None


def leaked_part(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec | None:
    """The answer's first letters, spelled out, in one piece with another word, or by a word of its own."""
    answer = _path(spec, base)[-1]
    if answer.casefold().split()[0] in EVERYDAY or answer[:4].casefold() in EVERYDAY or len(answer) < 4:
        return None
    said = rng.choice([answer[:4], " ".join(answer), f"My{answer}", answer.split()[0], answer[::-1]])
    return _opened(spec, f"Hint {said}")


def negated(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return _opened(spec, rng.choice(["Not as usual", "Do not say", "Unlike before", "Except for today"]))


def bridge_named(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return _opened(spec, f"A question on {rng.choice(_path(spec, base)[:-1])}")


def bridge_for_start(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    bridge = rng.choice(_path(spec, base)[:-1])
    return {**spec, "question": spec["question"].replace("<start>", bridge)}


def start_absent(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    kind = base.kind(spec["start"])
    return {**spec, "question": spec["question"].replace("<start>", rng.choice(["it", f"this {kind}", kind]))}


def start_of_another(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    taken = {name.casefold() for name in base.names(spec["start"])}
    names = [name for name in base.by_kind[base.kind(spec["start"])] if name.casefold() not in taken]
    return {**spec, "question": spec["question"].replace("<start>", rng.choice(names))}


def _said(spec: Spec, base: KnowledgeBase) -> list[tuple[str, str]]:
    """(hop, its phrase in the question), for each hop."""
    return [
        (name, max((w for w in base.hops[name].words if w in spec["question"]), key=len))
        for name in spec["relations"]
    ]


def relation_word_missing(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    _, phrase = rng.choice(_said(spec, base))
    return {**spec, "question": spec["question"].replace(f"{phrase} ", "", 1)}


def relation_word_vague(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    _, phrase = rng.choice(_said(spec, base))
    return {**spec, "question": spec["question"].replace(phrase, "the thing of", 1)}


def relation_word_of_another(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    name, phrase = rng.choice(_said(spec, base))
    other = rng.choice([hop for hop in base.hops.values() if hop.name != name])
    return {**spec, "question": spec["question"].replace(phrase, rng.choice(other.words), 1)}


def relation_words_swapped(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    (_, one), (_, two) = rng.sample(_said(spec, base), 2)
    question = spec["question"].replace(one, "\0").replace(two, one).replace("\0", two)
    return {**spec, "question": question}


def relation_word_added(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    words = rng.choice([words for hop in base.hops.values() for words in hop.words])
    phrase = _said(spec, base)[-1][1]
    return {**spec, "question": spec["question"].replace(phrase, f"{words} {phrase}", 1)}


def chain_changed(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    place = rng.randrange(len(spec["relations"]))
    spec["relations"][place] = rng.choice([name for name in base.hops if name != spec["relations"][place]])
    return spec


def chain_shortened(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec | None:
    if len(spec["relations"]) < 3:
        return None
    spec["relations"].pop(rng.randrange(len(spec["relations"])))
    return {**spec, "hops": len(spec["relations"])}


def ambiguous_chain(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec | None:
    """The first hop leads to several things: a country with several currencies or languages, and so on."""
    last = [name for name in base.hops if not base.hops[name].backward and base.hops[name].relation.many]
    starts = [n for n in base.by_kind["country"] if not base.hops_from(n) or n not in spec["question"]]
    rng.shuffle(starts)
    hop = base.hops[rng.choice([name for name in last if base.hops[name].source == "country"])]
    following = {"currency": "currency code", "language": "script"}[hop.target]
    for start in starts:
        if sum(fact.relation == hop.name for fact in base.by_subject[start]) > 1:
            question = f"What is {base.hops[following].words[0]} {hop.words[0]} <start>?"
            kind = base.hops[following].target
            chain = [hop.name, following]
            return {"hops": 2, "answer": kind, "start": start, "relations": chain, "question": question}
    return None


def shared_object(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    """Back from what several things have: "the country whose currency is the Euro"."""
    back, start = rng.choice(
        [("currency of", "Euro"), ("currency of", "US Dollar"), ("calling code of", "+1")]
    )
    question = f"What is the capital of {base.hops[back].words[0]} <start>?"
    return {"hops": 2, "answer": "city", "start": start, "relations": [back, "capital"], "question": question}


def loop(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    start = rng.choice([f.subject for f in base.facts if f.relation == "capital"])
    question = "What is the country whose capital is the capital of <start>?"
    relations = ["capital", "capital of"]
    return {"hops": 2, "answer": "country", "start": start, "relations": relations, "question": question}


def wrong_hops(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return {**spec, "hops": rng.choice([n for n in (2, 3, 4) if n != spec["hops"]])}


def wrong_kind(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return {**spec, "answer": rng.choice([kind for kind in sorted(base.by_kind) if kind != spec["answer"]])}


def unknown_start(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return {**spec, "start": spec["start"] + rng.choice(["ia", "x", " Two"])}


def unknown_relation(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    spec["relations"][rng.randrange(len(spec["relations"]))] = rng.choice(["mayor", "anthem", "population"])
    return spec


def other_blank(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    return _opened(spec, rng.choice(["For <name>", "On <answer>", "<end>"]))


def other_thing_named(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    known = {spec["start"], *_path(spec, base)}
    name = rng.choice([n for n in base.by_kind["country"] if n not in known and n not in spec["start"]])
    return _opened(spec, f"Think of {name}")


def asks_for_another(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    """In everyday words, for something about the chain's end instead of the end."""
    phrase = _said(spec, base)[-1][1]
    words = rng.choice(["the name of", "the mother of", "the time of", "was read of"])
    return {**spec, "question": spec["question"].replace(phrase, f"{words} {phrase}", 1)}


def held_out_end(spec: Spec, base: KnowledgeBase, rng: random.Random) -> Spec:
    """A question about a thing that is reserved for the ends of held-out ones."""
    relations = ["country", "continent"]
    start = rng.choice([name for name in base.by_kind["city"] if load_world(None).chains.is_held_out(name)])
    question = "What is the continent of the country that contains <start>?"
    return {"hops": 2, "answer": "continent", "start": start, "relations": relations, "question": question}


_MUTATIONS: dict[str, Callable[[Spec, KnowledgeBase, random.Random], Spec | None]] = {
    mutate.__name__: mutate
    for mutate in (
        leaked_answer,
        leaked_alias,
        leaked_number,
        leaked_part,
        negated,
        bridge_named,
        bridge_for_start,
        start_absent,
        start_of_another,
        relation_word_missing,
        relation_word_vague,
        relation_word_of_another,
        relation_words_swapped,
        relation_word_added,
        chain_changed,
        chain_shortened,
        ambiguous_chain,
        shared_object,
        loop,
        wrong_hops,
        wrong_kind,
        unknown_start,
        unknown_relation,
        other_blank,
        other_thing_named,
        asks_for_another,
        held_out_end,
    )
}
