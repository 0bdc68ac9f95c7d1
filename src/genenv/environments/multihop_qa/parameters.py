"""Multi-hop questions by their parameters: how many hops, what kind of answer, which relations.

The seed gives the starts: which of them, and the words, are drawn as those of the base data are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import BaseModel, Field

from genenv.environments.multihop_qa.chains import MAX_HOPS, MIN_HOPS, Chain
from genenv.environments.multihop_qa.grammar import offered
from genenv.environments.multihop_qa.seeds import spec_of
from genenv.environments.multihop_qa.spec import Name, QuestionSpec
from genenv.environments.multihop_qa.world import World
from genenv.environments.parameters import Options, asked_for
from genenv.types import Message, Profile, Rejection, RejectReason, Seed


class QuestionParameters(BaseModel, frozen=True, extra="forbid"):
    """What a question is to be like. The fields are those of `QuestionSpec`."""

    hops: int = Field(ge=MIN_HOPS, le=MAX_HOPS)
    answer: Name
    relations: str
    """The hops from the start on, with `, ` between them."""


def options(world: World, seed: Seed) -> Options:
    """All parameters that go with a seed: an alternative for each chain of relations that is offered."""
    chains = dict.fromkeys(map(_told, offered(world, seed)))
    return [{"hops": [hops], "answer": [answer], "relations": [names]} for hops, answer, names in chains]


def drawn(
    world: World, parameters: QuestionParameters, seed: Seed, rng: random.Random
) -> QuestionSpec | Rejection:
    """A question over these relations, from one of the seed's starts."""
    wanted = parameters.hops, parameters.answer, parameters.relations
    fitting = [chain for chain in offered(world, seed) if _told(chain) == wanted]
    if not fitting:
        sentence = f"No start has the relations {parameters.relations}."
        return Rejection(RejectReason.INCONSISTENT, sentence)
    return spec_of(rng.choice(fitting), rng)


def messages(world: World, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The job, where questions start, and how they are answered. Arguments as of `Environment`."""
    chains: Sequence[Chain] = offered(world, seed)
    system = (
        "Set up a quiz question over several facts, as JSON: hops (how many), answer (of what kind), "
        f"relations. More hops are harder. It should be solved {target:.0%} of the time. "
        f"It starts from a {world.base.kind(chains[0].start)}."
    )
    return asked_for(system, profile, seed.skills, thing="question")


def _told(chain: Chain) -> tuple[int, str, str]:
    return len(chain.hops), chain.kind, ", ".join(hop.name for hop in chain.hops)
