"""The multi-hop environment: a chain of facts fixes the answer, and the simulator words the question.

Its modules: `kb` (facts and passages), `world` (a knowledge base or a user's corpus, with its chains, base
data and grammar), `spec` (questions and their parser) and `search` (comparison of answers, and an index of
passages). This module builds tasks, holds episodes, grades answers, and audits questions.

The audit uses no model. It parses the question, derives the answer again by a join over all facts, and again
from only the passages that the agent sees. Two comparisons of answers must agree.
"""

from __future__ import annotations

import logging
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, cast

from pydantic import BaseModel, Field

from genenv.environments.base import Ask, Episode, Options, OutOfTurns, failed
from genenv.environments.common import (
    OneQuestion,
    Refused,
    asked_for,
    held_out_tasks,
    once,
    request,
    seeds_of,
)
from genenv.environments.multihop_qa.kb import (
    THINGS,
    BrokenChain,
    Fact,
    Hop,
    Step,
    distracting,
    facts_in,
    joined,
    line_of,
    supporting,
)
from genenv.environments.multihop_qa.search import (
    MAX_REPLY_CHARS,
    PLAIN,
    accepted,
    answer_of,
    exact,
    last_line,
    normalized,
    require_search,
    token_f1,
    words_of,
)
from genenv.environments.multihop_qa.spec import (
    MAX_QUESTION,
    MIN_QUESTION,
    START,
    Misread,
    MultihopConfig,
    Name,
    QuestionSpec,
    Reading,
    named,
    strange_word,
)
from genenv.environments.multihop_qa.world import (
    MAX_HOPS,
    MIN_HOPS,
    Chain,
    World,
    held_out_specs,
    load_world,
    offered,
    spec_of,
    spec_schema,
    training_specs,
)
from genenv.errors import UsageError
from genenv.types import (
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

NAME = "multihop_qa"
"""The environment's name."""
_ALONE = "with the answer alone on the last line: a name or a value, no sentence"
_HOW = {
    "closed_book": f"Reply {_ALONE}.",
    "passages": f"Answer from the passages. Reply {_ALONE}.",
    "search": f"Look facts up with a line `search: words`, one a reply. Then reply {_ALONE}.",
}


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


class SearchEpisode:
    """One rollout with a search tool."""

    def __init__(self, task: Task, look_up: Callable[[str], str], max_turns: int) -> None:
        self._task, self._look_up, self.max_turns = task, look_up, max_turns

    async def run(self, ask: Ask) -> None:
        """Answer searches with passages until the agent gives an answer or the turns are used."""
        messages: Sequence[Message] = self._task.messages
        for _ in range(self.max_turns):
            words = searched(await ask(messages))
            if words is None:
                return
            messages = [Message(role="tool", content=self._look_up(words))]
        raise OutOfTurns


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


def _said(line: str, steps: Sequence[Step], world: World) -> Iterable[Fact]:
    """Return the facts in a shown passage; for a user's passage, the chain's facts whose names it has."""
    if not world.base.written:
        return facts_in(world.base, line)
    return [step.fact for step in steps if step.fact.subject in line and step.fact.object in line]


def _same(task: Task, replies: Sequence[str], settings: MultihopConfig) -> bool:
    """Grade by the second comparison: the letters and digits of an answer, word by word."""
    reply = final_reply(task, replies, settings)
    words = _words(answer_of(reply)) if reply is not None else []
    return bool(words) and any(words == _words(answer) for answer in answers_in(task))


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold().translate(PLAIN)
    plain = re.sub(r"(?<!\w)[-\u2010-\u2015\u2212](?=\d)", "minus", plain)
    for char, word in ((".", "point"), (":", "colon")):
        plain = re.sub(rf"(?<=[0-9])\{char}(?=[0-9])", word, plain)
    plain = re.sub(r"(?<=\w)[+#]+(?!\w)", lambda found: "".join(f"u{ord(one)}" for one in found[0]), plain)
    letters = "".join(char for char in plain if char.isalnum() or char.isspace())
    return [word for word in letters.split() if word not in ("a", "an", "the")] or plain.split()


_log = logging.getLogger(__name__)


class QuestionParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a question; a subset of the fields of `QuestionSpec`."""

    hops: int = Field(ge=MIN_HOPS, le=MAX_HOPS)
    answer: Name
    relations: str
    """The hops from the start on, separated by `, `."""


class MultihopQA:
    """The multi-hop environment; implements `Environment` and `HasParameters`.

    Raises:
        UsageError: the user's corpus cannot be used, or the package for search is not installed.
    """

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = QuestionSpec
    config: ClassVar[type[BaseModel]] = MultihopConfig
    parameters: ClassVar[type[BaseModel]] = QuestionParameters

    def __init__(self, settings: MultihopConfig | None = None) -> None:
        self.settings = settings or MultihopConfig()
        if self.settings.mode == "search":
            require_search()
        self.world = load_world(self.settings.corpus)
        if self.world.base.written and not (self.seeds() and self.held_out()):
            raise UsageError(
                f"{self.settings.corpus}: its facts make {len(self.seeds())} questions to train on and "
                f"{len(self.held_out())} held-out ones, one each is needed; add facts that share names"
            )

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the base data in a fixed order: 400 seeds, or fewer if a user's corpus has fewer facts."""
        hops = self.world.base.hops
        return seeds_of(
            self,
            training_specs(self.world),
            lambda spec: skills_of(spec, [hops[name] for name in spec.relations]),
        )

    @once
    def held_out(self) -> Sequence[Task]:
        """Return up to 160 tasks for evaluation only.

        Tasks that the audit rejects under these settings are left out, for example if a search does not show
        a needed fact; a warning logs their number. No start or answer of a held-out task is the start or the
        answer of a seed, of a variation or of anything that the grammar can write
        (`genenv.environments.multihop_qa.world`).
        """
        tasks = held_out_tasks(self, held_out_specs(self.world))
        sound = [task for task in tasks if self.audit(task, random.Random(task.id)) is None]
        if len(sound) < len(tasks):
            _log.warning(
                "%d of %d held-out questions cannot be answered with these settings and are left out",
                len(tasks) - len(sound),
                len(tasks),
            )
        return sound

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return the spec of a random chain among those offered for a seed, with a random question."""
        return spec_of(rng.choice(offered(self.world, seed)), rng).model_dump(mode="json")

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return a schema with one alternative for each chain that is offered for a seed."""
        return spec_schema(self.world, seed)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt that asks the simulator for a variation of a seed."""
        base, chains = self.world.base, offered(self.world, seed)
        starts = dict.fromkeys(chain.start for chain in chains)
        hops = dict.fromkeys(hop.name for chain in chains for hop in chain.hops)
        system = (
            "Write quiz questions over several facts, as JSON: number of hops, kind of answer, start, "
            "relations from the start on, then a question that asks for the last one first and has <start> "
            "for the start. "
            f"More hops are harder. It should be solved {target:.0%} of the time.\n"
            f"Starts, each a {base.kind(next(iter(starts)))}: {', '.join(starts)}.\n"
            f"Relations: {', '.join(hops)}."
        )
        return request(system, seed.spec, profile, seed.skills, thing="question")

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Execute a spec; the end of its chain is the answer. Equal random states give equal tasks."""
        spec, world, settings = cast(QuestionSpec, spec), self.world, self.settings
        try:
            steps = executed(spec, world)
            path = [spec.start, *(step.end for step in steps)]
            held_out = world.chains.reserved(path) if lineage.origin is Origin.GENERATED else None
            if held_out is not None:
                explanation = f"{held_out} is reserved for the ends of held-out questions."
                raise Refused(RejectReason.HELD_OUT, explanation)
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

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the question states the chain, reveals no answer, and has exactly one answer."""
        spec = QuestionSpec.model_validate(task.spec)
        try:
            steps = executed(spec, self.world)
            reading = _read(spec, steps, self.world)
            _gives_nothing_away(spec, steps, reading, self.world)
            _has_one_answer(spec, steps, self.world)
            self._can_be_answered(task, spec, steps)
            self._checks_agree(task, steps, rng)
        except Refused as refused:
            return refused.rejection
        return None

    def _can_be_answered(self, task: Task, spec: QuestionSpec, steps: Sequence[Step]) -> None:
        """Refuse a task unless the text that the agent can read states the chain and implies the answer."""
        if self.settings.mode == "closed_book":
            return
        if self.settings.mode == "search":
            queries = [words for reply in task.oracle if (words := searched(reply)) is not None]
            lines = [line for words in queries for line in self._look_up(words).splitlines()]
        else:
            lines = [line.removeprefix("- ") for line in task.messages[-1].content.splitlines()[:-1]]
        facts = {fact for line in lines for fact in _said(line, steps, self.world)}
        lacking = next((step.fact for step in steps if step.fact not in facts), None)
        if lacking is not None:
            explanation = f"No passage says the {lacking.relation} of {lacking.subject}."
            raise Refused(RejectReason.UNSTATED, explanation)
        if joined(facts, spec.start, [step.hop for step in steps]) != {steps[-1].end}:
            explanation = "The passages alone do not lead to the answer."
            raise Refused(RejectReason.CHECKS_DISAGREE, explanation)

    def _checks_agree(self, task: Task, steps: Sequence[Step], rng: random.Random) -> None:
        """Refuse a task unless two comparisons give equal verdicts on right, wrong and broken replies."""
        right = answers_in(task)
        said = [*right, *(answer.upper() for answer in right), task.payload["start"], "", "the", "."]
        said += [step.end for step in steps[:-1]] + [f"{right[0]} or {steps[0].end}", right[0][:-1]]
        attempts = [(f"Well.\nAnswer: {answer}",) for answer in said]
        attempts += [task.oracle, (), *(self.random_replies(task, rng) for _ in range(2))]
        for attempt in attempts:
            if self.check(task, attempt).success != _same(task, attempt, self.settings):
                explanation = f"Two ways of comparing answers disagree on {attempt[-1:]}."
                raise Refused(RejectReason.CHECKS_DISAGREE, explanation)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a rollout: success is an exact match; the soft reward is the F1 of the answer's words."""
        reply = final_reply(task, replies, self.settings)
        if reply is None:
            searches = min(len(replies), self.settings.max_turns)
            return failed(f"It never answered in {searches} replies." if replies else "It did not reply.")
        if len(reply) > MAX_REPLY_CHARS:
            return failed(f"The reply has more than {MAX_REPLY_CHARS} characters, too many to read.")
        given, right = answer_of(reply), answers_in(task)
        shown = repr(given if len(given) <= 60 else given[:60] + "...")[:80]
        if not normalized(given):
            return failed("The last line has no answer.")
        if exact(given, right):
            return Verdict(reward=1.0, success=True, explanation=f"{shown} is right.")
        reward = token_f1(given, right) if self.settings.reward == "soft" else 0.0
        explanation = f"{shown} is not {right[0]!r}" + (f"; word F1 {reward:.2f}." if reward else ".")
        return Verdict(reward=min(reward, 0.99), success=False, explanation=explanation)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a wrong answer: something to which the last relation leads from other subjects."""
        hops, right = task.payload["hops"], answers_in(task)
        last = self.world.base.hops[str(hops[-1])] if isinstance(hops, list | tuple) else None
        pool = self.world.base.ends(last) if last else ()
        draws = (rng.choice(pool) for _ in range(20) if pool)
        reply = next((name for name in draws if not exact(name, right)), "I do not know")
        return (f"search: {task.payload['start']}", reply) if task.payload["mode"] == "search" else (reply,)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters that suit a seed: one alternative for each sequence of relations."""
        chains = dict.fromkeys(map(_as_parameters, offered(self.world, seed)))
        return [{"hops": [hops], "answer": [answer], "relations": [names]} for hops, answer, names in chains]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the instruction with the kind of start, and the agent's success rates."""
        chains = offered(self.world, seed)
        system = (
            "Set up a quiz question over several facts, as JSON: hops (how many), answer (of what kind), "
            f"relations. More hops are harder. It should be solved {target:.0%} of the time. "
            f"It starts from a {self.world.base.kind(chains[0].start)}."
        )
        return asked_for(system, profile, seed.skills, thing="question")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with these relations, from one of the starts offered for the seed."""
        wanted = cast(QuestionParameters, parameters)
        key = wanted.hops, wanted.answer, wanted.relations
        fitting = [chain for chain in offered(self.world, seed) if _as_parameters(chain) == key]
        if not fitting:
            sentence = f"No start has the relations {wanted.relations}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        return spec_of(rng.choice(fitting), rng)

    def episode(self, task: Task) -> Episode:
        """Return a new episode of a task."""
        if task.payload["mode"] != "search":
            return OneQuestion(task)
        return SearchEpisode(task, self._look_up, self.settings.max_turns)

    def _look_up(self, words: str) -> str:
        """Return the text of a search's results for the agent."""
        settings = self.settings
        return self.world.index.search(words, results=settings.results, chars=settings.result_chars)

    def steps(self, task: Task) -> int:
        """Return the number of hops."""
        return int(str(task.spec["hops"]))

    def surface(self, task: Task) -> str:
        """Return the things and relations on the chain, for comparisons of novelty; each becomes one word.

        The wording does not count: new words for the same facts are not a new task.
        """
        spec = QuestionSpec.model_validate(task.spec)
        steps = self.world.base.follow(spec.start, [self.world.base.hops[name] for name in spec.relations])
        path = [spec.start, *(part for step in steps for part in (step.hop.name, step.end))]
        return " ".join("".join(char for char in part if char.isalnum()) or "sign" for part in path)


def _as_parameters(chain: Chain) -> tuple[int, str, str]:
    return len(chain.hops), chain.kind, ", ".join(hop.name for hop in chain.hops)
