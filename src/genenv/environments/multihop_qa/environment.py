"""The multi-hop environment: a chain of facts fixes the answer, and the simulator words the question.

Its modules: `kb` (facts and passages), `world` (a knowledge base or a user's corpus, with its chains), `spec`
(questions and their parser), `seeds` (base data and grammar), `build`, `search`, and `check` (verdicts and
the audit).
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import BaseModel, Field

from genenv.environments.base import Episode, Options
from genenv.environments.common import OneQuestion, asked_for, held_out_tasks, request, seeds_of
from genenv.environments.multihop_qa.build import NAME, build, skills_of
from genenv.environments.multihop_qa.check import SearchEpisode, audit, check, random_replies
from genenv.environments.multihop_qa.search import require_search
from genenv.environments.multihop_qa.seeds import (
    held_out_specs,
    offered,
    spec_of,
    spec_schema,
    training_specs,
)
from genenv.environments.multihop_qa.spec import MultihopConfig, Name, QuestionSpec
from genenv.environments.multihop_qa.world import MAX_HOPS, MIN_HOPS, Chain, load_world
from genenv.errors import UsageError
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, RejectReason, Seed, Task, Verdict

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
        if self.world.base.written and not (self._seeds and self._held_out):
            raise UsageError(
                f"{self.settings.corpus}: its facts make {len(self._seeds)} questions to train on and "
                f"{len(self._held_out)} held-out ones, one each is needed; add facts that share names"
            )

    @functools.cached_property
    def _seeds(self) -> list[Seed]:
        hops = self.world.base.hops
        return seeds_of(
            self,
            training_specs(self.world),
            lambda spec: skills_of(spec, [hops[name] for name in spec.relations]),
        )

    @functools.cached_property
    def _held_out(self) -> list[Task]:
        tasks = held_out_tasks(self, held_out_specs(self.world))
        sound = [task for task in tasks if self.audit(task, random.Random(task.id)) is None]
        if len(sound) < len(tasks):
            _log.warning(
                "%d of %d held-out questions cannot be answered with these settings and are left out",
                len(tasks) - len(sound),
                len(tasks),
            )
        return sound

    def seeds(self) -> Sequence[Seed]:
        """Return the base data in a fixed order: 400 seeds, or fewer if a user's corpus has fewer facts."""
        return self._seeds

    def held_out(self) -> Sequence[Task]:
        """Return up to 160 tasks for evaluation only.

        Tasks that the audit rejects under these settings are left out, for example if a search does not show
        a needed fact; a warning logs their number. No start or answer of a held-out task is the start or the
        answer of a seed, of a variation or of anything that the grammar can write
        (`genenv.environments.multihop_qa.world`).
        """
        return self._held_out

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
        """Execute a spec; the end of its chain is the answer."""
        return build(
            cast(QuestionSpec, spec), self.world, self.settings, task_id=task_id, lineage=lineage, rng=rng
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the question states the chain, reveals no answer, and has exactly one answer."""
        return audit(task, rng, self.world, self.settings)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a rollout: success is an exact match; the soft reward is the F1 of the answer's words."""
        return check(task, replies, self.settings)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a wrong answer: something to which the last relation leads from other subjects."""
        return random_replies(task, rng, self.world.base)

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
        return SearchEpisode(task, self.world, self.settings)

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
