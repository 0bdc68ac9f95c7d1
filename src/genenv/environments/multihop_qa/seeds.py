"""Base data, and what is offered for a seed: the chains that a simulator can choose from, as a grammar.

Each alternative fixes the difficulty fields, the start and the hops of a chain that executes, and gives a
pattern for its question. So what is written has one answer, names its start, and names no bridge.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping

from genenv.environments.common import closed_object
from genenv.environments.multihop_qa.spec import QuestionSpec, draw_question, question_pattern
from genenv.environments.multihop_qa.world import Chain, World
from genenv.types import Json, JsonObject, Seed

SEEDS, HELD_OUT = 400, 160
_KINDS = {
    "country": 24,
    "city": 22,
    "airport": 16,
    "element": 16,
    "state": 8,
    "language": 6,
    "currency": 4,
    "code": 4,
    "thing": 100,
}
"""Per hundred: what questions start from; a kind that has fewer chains leaves its place to the others."""
_LENGTHS = (2, 3, 2, 3, 2, 4)
"""Hops, in turn."""


def training_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Up to 400 specs by id, with blanks, always the same ones for a knowledge base."""
    return _specs(world, "mq-seed", SEEDS, held_out=False)


def held_out_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Up to 160 held-out specs by id, with blanks, always the same ones for a knowledge base."""
    return _specs(world, "mq-held", HELD_OUT, held_out=True)


def spec_of(chain: Chain, rng: random.Random) -> QuestionSpec:
    """A chain as a spec, in words drawn from those that the grammar offers."""
    return QuestionSpec(
        hops=len(chain.hops),
        answer=chain.kind,
        start=chain.start,
        relations=[hop.name for hop in chain.hops],
        question=draw_question(chain.hops, rng),
    )


def _specs(world: World, prefix: str, wanted: int, *, held_out: bool) -> Iterator[tuple[str, QuestionSpec]]:
    rng = random.Random(prefix)
    asked: Counter[str] = Counter()
    waiting = {kind: _chains(world, kind, asked, held_out=held_out, rng=rng) for kind in _KINDS}
    number = 0
    while waiting and number < wanted:
        kind = rng.choices(list(waiting), [_KINDS[kind] for kind in waiting])[0]
        chain = next(waiting[kind], None)
        if chain is None:
            del waiting[kind]
            continue
        number += 1
        asked[chain.hops[-1].name] += 1
        yield f"{prefix}-{number:03d}", spec_of(chain, rng)


def _chains(
    world: World, kind: str, asked: Mapping[str, int], *, held_out: bool, rng: random.Random
) -> Iterator[Chain]:
    """Chains from all starts of a kind: one from each, then another from each, and so on.

    Of those of the length whose turn it is, one that asks for what has been asked for least.
    """
    names = [name for name in world.base.by_kind.get(kind, ()) if world.chains.is_held_out(name) == held_out]
    starts = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    used: set[Chain] = set()
    turn = 0
    while starts:
        left: list[str] = []
        for start in starts:
            chains = [c for c in world.chains.on_side(start, held_out=held_out) if c not in used]
            fitting = [chain for chain in chains if len(chain.hops) == _LENGTHS[turn % len(_LENGTHS)]]
            if chains:
                rng.shuffle(chains := fitting or chains)
                chain = min(chains, key=lambda chain: asked[chain.hops[-1].name])
                used.add(chain)
                left.append(start)
                turn += 1
                yield chain
        starts = left


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
    return closed_object(fields)
