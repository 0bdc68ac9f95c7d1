"""The environment's own gate: does the question say the chain, give nothing away, and have one answer?

No model takes part. What the words say is read back by code; the answer is found again by a join over all
facts, and from the passages alone that the agent gets; and a second way of comparing answers must agree with
the first, on wrong answers too.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Sequence

from genenv.environments.common import Refused
from genenv.environments.multihop_qa.answers import PLAIN, accepted, answer_of
from genenv.environments.multihop_qa.build import executed
from genenv.environments.multihop_qa.check import (
    answers_in,
    check,
    final_reply,
    look_up,
    random_replies,
    searched,
)
from genenv.environments.multihop_qa.kb import Fact, Step, joined
from genenv.environments.multihop_qa.passages import facts_in
from genenv.environments.multihop_qa.settings import MultihopConfig
from genenv.environments.multihop_qa.spec import QuestionSpec
from genenv.environments.multihop_qa.wording import Misread, Reading, named, strange_word
from genenv.environments.multihop_qa.world import World
from genenv.types import Rejection, RejectReason, Task


def audit(task: Task, rng: random.Random, world: World, settings: MultihopConfig) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    spec = QuestionSpec.model_validate(task.spec)
    try:
        steps = executed(spec, world)
        reading = _read(spec, steps, world)
        _gives_nothing_away(spec, steps, reading, world)
        _has_one_answer(spec, steps, world)
        _can_be_answered(task, spec, steps, world, settings)
        _checks_agree(task, steps, rng, world, settings)
    except Refused as refused:
        return refused.rejection
    return None


def _read(spec: QuestionSpec, steps: Sequence[Step], world: World) -> Reading:
    """The question names the start and says the chain's relations, and no others."""
    try:
        reading = world.reader.read(spec.question, world.base.names(spec.start))
    except Misread as misread:
        raise Refused(RejectReason.UNSTATED, str(misread)) from None
    wanted, said = [step.hop.name for step in steps], [hop.name for hop in reading.hops]
    missing = [name for name in wanted if name not in said]
    if missing:
        raise Refused(RejectReason.UNSTATED, f"The question lacks the words of the relation {missing[0]!r}.")
    if said != wanted:
        explanation = f"The question says {', then '.join(said)}, but the chain is {', then '.join(wanted)}."
        raise Refused(RejectReason.INCONSISTENT, explanation)
    return reading


def _gives_nothing_away(spec: QuestionSpec, steps: Sequence[Step], reading: Reading, world: World) -> None:
    """No name or part of what is to be found, and no words that ask for something else."""
    for step in steps:
        found = named(world.base.names(step.end), spec.question)
        if found is not None:
            what = "its answer" if step is steps[-1] else "a bridge"
            raise Refused(RejectReason.LEAK, f"The question names {what}, {found}.")
    found = named(accepted(world.base, steps[-1].end), reading.free)
    if found is not None:
        raise Refused(RejectReason.LEAK, f"The question gives its answer away: {found}.")
    word = strange_word(reading.free)
    if word is not None:
        explanation = f"Around its chain the question says {word!r}, which is no everyday word."
        raise Refused(RejectReason.LEAK, explanation)
    if reading.stray:
        raise Refused(RejectReason.INCONSISTENT, reading.stray)


def _has_one_answer(spec: QuestionSpec, steps: Sequence[Step], world: World) -> None:
    """A join over the bare list of facts finds the same one thing after each hop."""
    for number in range(1, len(steps) + 1):
        hops = [step.hop for step in steps[:number]]
        found = joined(world.base.facts, spec.start, hops)
        if found != {steps[number - 1].end}:
            explanation = f"A join over all facts gives {len(found)} things after hop {number}."
            raise Refused(RejectReason.CHECKS_DISAGREE, explanation)


def _can_be_answered(
    task: Task, spec: QuestionSpec, steps: Sequence[Step], world: World, settings: MultihopConfig
) -> None:
    """What the agent can read says the facts of the chain, and leads to the same one answer."""
    if settings.mode == "closed_book":
        return
    if settings.mode == "search":
        lines = [line for text in _heard(task, world, settings) for line in text.splitlines()]
    else:
        lines = [line.removeprefix("- ") for line in task.messages[-1].content.splitlines()[:-1]]
    facts = {fact for line in lines for fact in _said(line, steps, world)}
    lacking = next((step.fact for step in steps if step.fact not in facts), None)
    if lacking is not None:
        explanation = f"No passage says the {lacking.relation} of {lacking.subject}."
        raise Refused(RejectReason.UNSTATED, explanation)
    if joined(facts, spec.start, [step.hop for step in steps]) != {steps[-1].end}:
        explanation = "The passages alone do not lead to the answer."
        raise Refused(RejectReason.CHECKS_DISAGREE, explanation)


def _heard(task: Task, world: World, settings: MultihopConfig) -> Iterable[str]:
    """What the searches of the task's own solution show."""
    for reply in task.oracle:
        words = searched(reply)
        if words is not None:
            yield look_up(world, words, settings)


def _said(line: str, steps: Sequence[Step], world: World) -> Iterable[Fact]:
    """The facts that a shown passage says; of a user's passage, those of the chain whose names it has."""
    if not world.base.written:
        return facts_in(world.base, line)
    return [step.fact for step in steps if step.fact.subject in line and step.fact.object in line]


def _checks_agree(
    task: Task, steps: Sequence[Step], rng: random.Random, world: World, settings: MultihopConfig
) -> None:
    """Two ways of comparing give one verdict on right, wrong and broken solutions."""
    right = answers_in(task)
    said = [*right, *(answer.upper() for answer in right), task.payload["start"], "", "the", "."]
    said += [step.end for step in steps[:-1]] + [f"{right[0]} or {steps[0].end}", right[0][:-1]]
    attempts = [(f"Well.\nAnswer: {answer}",) for answer in said]
    attempts += [task.oracle, (), *(random_replies(task, rng, world.base) for _ in range(2))]
    for attempt in attempts:
        if check(task, attempt, settings).success != _same(task, attempt, settings):
            explanation = f"Two ways of comparing answers disagree on {attempt[-1:]}."
            raise Refused(RejectReason.CHECKS_DISAGREE, explanation)


def _same(task: Task, replies: Sequence[str], settings: MultihopConfig) -> bool:
    """The second way: the letters and digits of an answer, word by word."""
    reply = final_reply(task, replies, settings)
    words = _words(answer_of(reply)) if reply is not None else []
    return bool(words) and any(words == _words(answer) for answer in answers_in(task))


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(PLAIN)
    plain = re.sub(r"(?<!\w)[-\u2010-\u2015\u2212](?=\d)", "minus", plain)
    letters = "".join(char for char in plain if char.isalnum() or char.isspace())
    return [word for word in letters.split() if word not in ("a", "an", "the")] or plain.split()
