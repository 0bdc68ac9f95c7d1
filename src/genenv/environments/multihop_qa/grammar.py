"""What is offered for a seed, and the grammar that the simulator writes under: one alternative per chain.

Each alternative fixes the difficulty fields, the start and the hops of a chain that executes, and gives a
pattern for its question: the phrases of its hops in order, the blank for the start, and a choice of words
around them. So what is written has one answer, names its start, and names no bridge.
"""

from __future__ import annotations

import random

from genenv.environments.multihop_qa.chains import Chain
from genenv.environments.multihop_qa.spec import QuestionSpec
from genenv.environments.multihop_qa.wording import question_pattern
from genenv.environments.multihop_qa.world import World
from genenv.types import Json, JsonObject, Seed

_OTHER_STARTS = 3
_PER_LENGTH = (5, 4, 3)
"""Chains of 2, 3 and 4 hops from each start."""


def offered(world: World, seed: Seed) -> list[Chain]:
    """The chains that a simulator can choose from: others from the seed's start, and some from three more.

    All are on the training side, and always the same for a seed. Where a small corpus has no other chain, the
    seed's own is offered.
    """
    spec = QuestionSpec.model_validate(seed.spec)
    rng = random.Random(f"{seed.id}/offered")
    found: list[Chain] = []
    for start in (spec.start, *_others(world, spec.start, rng)):
        found += world.chains.some(start, _PER_LENGTH, held_out=False, rng=rng)
    own = (spec.start, spec.relations)
    others = [chain for chain in found if (chain.start, [hop.name for hop in chain.hops]) != own]
    return others or found


def _others(world: World, start: str, rng: random.Random) -> list[str]:
    """Starts of the same kind that have chains; of a scarce kind perhaps fewer."""
    same = [name for name in world.base.by_kind[world.base.kind(start)] if not world.chains.is_held_out(name)]
    rng.shuffle(same)
    others = (name for name in same if name != start and world.chains.on_side(name, held_out=False))
    return [name for name, _ in zip(others, range(_OTHER_STARTS), strict=False)]


def spec_schema(world: World, seed: Seed) -> JsonObject:
    """One alternative for each chain that is offered for a seed."""
    return {"anyOf": [_alternative(chain) for chain in offered(world, seed)]}


def _alternative(chain: Chain) -> JsonObject:
    hops: list[Json] = [{"const": hop.name} for hop in chain.hops]
    fields: dict[str, Json] = {
        "hops": {"const": len(hops)},
        "answer": {"const": chain.kind},
        "start": {"const": chain.start},
        "relations": {"type": "array", "prefixItems": hops, "items": False, "minItems": len(hops)},
        "question": {"type": "string", "pattern": f"^({question_pattern(chain.hops)})$"},
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
