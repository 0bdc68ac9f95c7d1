"""Grading of answers, the search episode, and the audit of a question.

The audit uses no model. It parses the question, derives the answer again by a join over all facts, and again
from only the passages that the agent sees. Two comparisons of answers must agree.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Sequence

from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.common import Refused
from genenv.environments.multihop_qa.build import executed
from genenv.environments.multihop_qa.kb import Fact, KnowledgeBase, Step, facts_in, joined
from genenv.environments.multihop_qa.search import (
    MAX_REPLY_CHARS,
    PLAIN,
    accepted,
    answer_of,
    exact,
    last_line,
    normalized,
    token_f1,
)
from genenv.environments.multihop_qa.spec import (
    Misread,
    MultihopConfig,
    QuestionSpec,
    Reading,
    named,
    strange_word,
)
from genenv.environments.multihop_qa.world import World
from genenv.types import Message, Rejection, RejectReason, Task, Verdict

_SEARCH = re.compile(r"search\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)


def searched(reply: str) -> str | None:
    """Return the query on the last line of a reply; None if the reply is an answer or too long to read."""
    if len(reply) > MAX_REPLY_CHARS:
        return None
    match = _SEARCH.fullmatch(last_line(reply))
    return match[1].strip() if match else None


def answers_in(task: Task) -> list[str]:
    """Return the accepted answers of a task."""
    right = task.payload["answers"]
    return [str(each) for each in right] if isinstance(right, list | tuple) else []


def final_reply(task: Task, replies: Sequence[str], settings: MultihopConfig) -> str | None:
    """Return the reply that ends the episode, by the episode's rule; None if there is none."""
    if task.payload["mode"] != "search":
        return replies[0] if replies else None
    return next((reply for reply in replies[: settings.max_turns] if searched(reply) is None), None)


def check(task: Task, replies: Sequence[str], settings: MultihopConfig) -> Verdict:
    """Grade a rollout. Success is an exact match; the soft reward is the F1 of the answer's words."""
    reply = final_reply(task, replies, settings)
    if reply is None:
        searches = min(len(replies), settings.max_turns)
        return _failed(f"It never answered in {searches} replies." if replies else "It did not reply.")
    if len(reply) > MAX_REPLY_CHARS:
        return _failed(f"The reply has more than {MAX_REPLY_CHARS} characters, too many to read.")
    given, right = answer_of(reply), answers_in(task)
    shown = repr(given if len(given) <= 60 else given[:60] + "...")[:80]
    if not normalized(given):
        return _failed("The last line has no answer.")
    if exact(given, right):
        return Verdict(reward=1.0, success=True, explanation=f"{shown} is right.")
    reward = token_f1(given, right) if settings.reward == "soft" else 0.0
    explanation = f"{shown} is not {right[0]!r}" + (f"; word F1 {reward:.2f}." if reward else ".")
    return Verdict(reward=min(reward, 0.99), success=False, explanation=explanation)


def _failed(explanation: str) -> Verdict:
    """Return the verdict on a rollout without an answer that can be compared."""
    return Verdict(reward=0.0, success=False, explanation=explanation, readable=False)


def random_replies(task: Task, rng: random.Random, base: KnowledgeBase) -> tuple[str, ...]:
    """Return a wrong answer: something to which the last relation leads from other subjects."""
    hops, right = task.payload["hops"], answers_in(task)
    last = base.hops[str(hops[-1])] if isinstance(hops, list | tuple) else None
    pool = base.ends(last) if last else ()
    draws = (rng.choice(pool) for _ in range(20) if pool)
    reply = next((name for name in draws if not exact(name, right)), "I do not know")
    return (f"search: {task.payload['start']}", reply) if task.payload["mode"] == "search" else (reply,)


class SearchEpisode:
    """One rollout with a search tool."""

    def __init__(self, task: Task, world: World, settings: MultihopConfig) -> None:
        self._task, self._world, self._settings = task, world, settings
        self.max_turns = settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Answer searches with passages until the agent gives an answer or the turns are used."""
        messages: Sequence[Message] = self._task.messages
        for _ in range(self.max_turns):
            words = searched(await ask(messages))
            if words is None:
                return
            messages = [Message(role="tool", content=look_up(self._world, words, self._settings))]
        raise OutOfTurns


def look_up(world: World, words: str, settings: MultihopConfig) -> str:
    """Return the text of a search's results for the agent."""
    return world.index.search(words, results=settings.results, chars=settings.result_chars)


def audit(task: Task, rng: random.Random, world: World, settings: MultihopConfig) -> Rejection | None:
    """Return the first fault of a task, or None."""
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
    """Parse the question; refuse it unless it names the start and states exactly the chain's relations."""
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
    """Refuse a question that names a later thing of the chain, has strange words, or asks for more."""
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
    """Refuse a chain unless a join over the list of facts finds the same single thing after each hop."""
    for number in range(1, len(steps) + 1):
        hops = [step.hop for step in steps[:number]]
        found = joined(world.base.facts, spec.start, hops)
        if found != {steps[number - 1].end}:
            explanation = f"A join over all facts gives {len(found)} things after hop {number}."
            raise Refused(RejectReason.CHECKS_DISAGREE, explanation)


def _can_be_answered(
    task: Task, spec: QuestionSpec, steps: Sequence[Step], world: World, settings: MultihopConfig
) -> None:
    """Refuse a task unless the text that the agent can read states the chain and implies the answer."""
    if settings.mode == "closed_book":
        return
    if settings.mode == "search":
        lines = [line for text in _search_results(task, world, settings) for line in text.splitlines()]
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


def _search_results(task: Task, world: World, settings: MultihopConfig) -> Iterable[str]:
    """Yield the results of the searches in the demonstration."""
    for reply in task.oracle:
        words = searched(reply)
        if words is not None:
            yield look_up(world, words, settings)


def _said(line: str, steps: Sequence[Step], world: World) -> Iterable[Fact]:
    """Return the facts in a shown passage; for a user's passage, the chain's facts whose names it has."""
    if not world.base.written:
        return facts_in(world.base, line)
    return [step.fact for step in steps if step.fact.subject in line and step.fact.object in line]


def _checks_agree(
    task: Task, steps: Sequence[Step], rng: random.Random, world: World, settings: MultihopConfig
) -> None:
    """Refuse a task unless two comparisons give equal verdicts on right, wrong and broken replies."""
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
    """Grade by the second comparison: the letters and digits of an answer, word by word."""
    reply = final_reply(task, replies, settings)
    words = _words(answer_of(reply)) if reply is not None else []
    return bool(words) and any(words == _words(answer) for answer in answers_in(task))


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(PLAIN)
    plain = re.sub(r"(?<!\w)[-\u2010-\u2015\u2212](?=\d)", "minus", plain)
    letters = "".join(char for char in plain if char.isalnum() or char.isspace())
    return [word for word in letters.split() if word not in ("a", "an", "the")] or plain.split()
