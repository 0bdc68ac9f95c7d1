"""Base data, and the grammar of the chains that a simulator can choose from for a seed.

Each alternative fixes the difficulty fields, the start and the hops of a chain that executes, and gives a
pattern for its question. So every spec has one answer, names its start, and names no intermediate thing.
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
"""Kind of thing at which questions start -> percentage of the base data; exhausted kinds are skipped."""
_LENGTHS = (2, 3, 2, 3, 2, 4)
"""Numbers of hops, used in rotation."""


def training_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Yield up to 400 specs by id, with blanks; always the same for a knowledge base."""
    return _specs(world, "mq-seed", SEEDS, held_out=False)


def held_out_specs(world: World) -> Iterator[tuple[str, QuestionSpec]]:
    """Yield up to 160 held-out specs by id, with blanks; always the same for a knowledge base."""
    return _specs(world, "mq-held", HELD_OUT, held_out=True)


def spec_of(chain: Chain, rng: random.Random) -> QuestionSpec:
    """Return the spec of a chain, with a question drawn from those that the grammar allows."""
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
    """Yield chains from all starts of a kind: one from each start, then a second from each, and so on.

    Chains of the length that is next in `_LENGTHS` are preferred, then those with the rarest last relation.
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
"""Numbers of chains with 2, 3 and 4 hops from each start."""


def offered(world: World, seed: Seed) -> list[Chain]:
    """Return the chains that a simulator can choose from: from the seed's start and from three other starts.

    All are training chains, always the same for a seed, without the seed's chain. If a small corpus has no
    other chain, the seed's is offered.
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
    """Return up to three other starts of the same kind that have chains."""
    same = [name for name in world.base.by_kind[world.base.kind(start)] if not world.chains.is_held_out(name)]
    rng.shuffle(same)
    others = (name for name in same if name != start and world.chains.on_side(name, held_out=False))
    return [name for name, _ in zip(others, range(_OTHER_STARTS), strict=False)]


def spec_schema(world: World, seed: Seed) -> JsonObject:
    """Return a schema with one alternative for each chain that is offered for a seed."""
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
