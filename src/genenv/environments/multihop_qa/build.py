"""Build a task from a question spec: execute its chain, fill its blank, write the messages."""

from __future__ import annotations

import random
from collections.abc import Sequence

from genenv.environments.common import Refused
from genenv.environments.multihop_qa.kb import (
    THINGS,
    BrokenChain,
    Hop,
    Step,
    distracting,
    line_of,
    supporting,
)
from genenv.environments.multihop_qa.search import accepted, words_of
from genenv.environments.multihop_qa.spec import (
    MAX_QUESTION,
    MIN_QUESTION,
    START,
    MultihopConfig,
    QuestionSpec,
)
from genenv.environments.multihop_qa.world import World
from genenv.types import Json, Lineage, Message, Origin, Rejection, RejectReason, Task

NAME = "multihop_qa"
"""The environment's name."""
_ALONE = "with the answer alone on the last line: a name or a value, no sentence"
_HOW = {
    "closed_book": f"Reply {_ALONE}.",
    "passages": f"Answer from the passages. Reply {_ALONE}.",
    "search": f"Look facts up with a line `search: words`, one a reply. Then reply {_ALONE}.",
}


def build(
    spec: QuestionSpec,
    world: World,
    settings: MultihopConfig,
    *,
    task_id: str,
    lineage: Lineage,
    rng: random.Random,
) -> Task | Rejection:
    """Execute a spec; the end of its chain is the answer.

    The same spec, ids, random state and settings always give the same task.
    """
    try:
        steps = executed(spec, world)
        if lineage.origin is Origin.GENERATED:
            _on_training_side(spec, steps, world)
        question = _filled(spec)
    except Refused as refused:
        return refused.rejection
    spec = spec.model_copy(update={"question": question})
    answer = steps[-1].end
    payload: dict[str, Json] = {
        "mode": settings.mode,
        "start": spec.start,
        "hops": list(spec.relations),
        "answers": list(accepted(world.base, answer)),
    }
    return Task(
        id=task_id,
        environment=NAME,
        skills=skills_of(spec, [step.hop for step in steps]),
        messages=(
            Message(role="system", content=_HOW[settings.mode]),
            Message(role="user", content=_shown(world, settings, steps, rng) + question),
        ),
        spec=spec.model_dump(mode="json"),
        payload=payload,
        oracle=oracle(spec.start, steps, settings),
        lineage=lineage,
    )


def executed(spec: QuestionSpec, world: World) -> list[Step]:
    """Return the steps of a spec's chain.

    Raises:
        Refused: the difficulty fields are wrong, or the chain has no unique end.
    """
    if len(spec.relations) != spec.hops:
        explanation = f"hops is {spec.hops}, but there are {len(spec.relations)} relations."
        raise Refused(RejectReason.INCONSISTENT, explanation)
    if spec.start not in world.base:
        raise Refused(RejectReason.EXECUTION, f"The knowledge base has nothing called {spec.start!r}.")
    unknown = [name for name in spec.relations if name not in world.base.hops]
    if unknown:
        raise Refused(RejectReason.EXECUTION, f"There is no relation {unknown[0]!r}.")
    try:
        steps = world.base.follow(spec.start, [world.base.hops[name] for name in spec.relations])
    except BrokenChain as broken:
        raise Refused(RejectReason.EXECUTION, str(broken)) from None
    kind = world.base.kind(steps[-1].end)
    if spec.answer != kind:
        explanation = f"answer is {spec.answer!r}, but {steps[-1].end} is a {kind}."
        raise Refused(RejectReason.INCONSISTENT, explanation)
    return steps


def _on_training_side(spec: QuestionSpec, steps: Sequence[Step], world: World) -> None:
    name = world.chains.reserved([spec.start, *(step.end for step in steps)])
    if name is not None:
        explanation = f"{name} is reserved for the ends of held-out questions."
        raise Refused(RejectReason.HELD_OUT, explanation)


def _filled(spec: QuestionSpec) -> str:
    """Return the question with the start's name in its blank."""
    question = " ".join(spec.question.split()).replace(START, spec.start)
    if "<" in question.replace(spec.start, ""):
        raise Refused(RejectReason.INCONSISTENT, f"The question has a blank other than {START}.")
    if len(question) < MIN_QUESTION:
        explanation = f"The question has {len(question)} characters, fewer than {MIN_QUESTION}."
        raise Refused(RejectReason.SCHEMA, explanation)
    if len(question) > MAX_QUESTION:
        explanation = f"The question has {len(question)} characters, more than {MAX_QUESTION}."
        raise Refused(RejectReason.SCHEMA, explanation)
    return question


def skills_of(spec: QuestionSpec, hops: Sequence[Hop]) -> tuple[str, ...]:
    """Return the skills of a spec: number of hops, kind of answer, "backward" if a hop inverts a relation."""
    kind = spec.answer if spec.answer in THINGS else "value"
    back = ("backward",) if any(hop.backward for hop in hops) else ()
    return (f"hops:{spec.hops}", f"answer:{kind}", *back)


def _shown(world: World, settings: MultihopConfig, steps: Sequence[Step], rng: random.Random) -> str:
    """Return the passages before the question in mode passages, else an empty string."""
    if settings.mode != "passages":
        return ""
    most = settings.passage_facts
    passages = supporting(world.base, steps, most, rng)
    passages += distracting(world.base, steps, settings.distractors, most, rng)
    rng.shuffle(passages)
    return "".join(f"- {line_of(passage)}\n" for passage in passages)


def oracle(start: str, steps: Sequence[Step], settings: MultihopConfig) -> tuple[str, ...]:
    """Return the demonstration: in mode search one search per hop, then the answer."""
    answer = steps[-1].end
    if settings.mode != "search":
        return (answer,)
    places = [start, *(step.end for step in steps)]
    words = [" ".join(words_of(step.hop.relation.says.format(""))) for step in steps]
    return (*(f"search: {here} {said}" for here, said in zip(places, words, strict=False)), answer)
