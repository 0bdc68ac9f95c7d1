"""The base data: chains of the training side as seeds, chains of the held-out side as tasks for measuring."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping

from genenv.environments.multihop_qa.chains import Chain
from genenv.environments.multihop_qa.spec import QuestionSpec
from genenv.environments.multihop_qa.wording import draw_question
from genenv.environments.multihop_qa.world import World

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
