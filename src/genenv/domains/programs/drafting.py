"""Programs drawn by rules: base data, held-out ones, and variations of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from genenv.domains.programs.operations import DIGITS, steps
from genenv.domains.programs.spec import (
    LETTERS,
    LONGEST_PROGRAM,
    LONGEST_TEXT,
    SHORTEST_TEXT,
    ProgramSpec,
    is_held_out,
    of,
)

SEEDS, HELD_OUT = 2000, 500
_KEPT = 0.5
"""Chance that a variation keeps an operation of its seed."""


def seed_specs() -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs of the base data, all different, every difficulty alike."""
    return _different("seed", SEEDS, held_out=False)


def held_out_specs() -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs for measuring, all different, every difficulty alike, on texts of their own."""
    return _different("held-out", HELD_OUT, held_out=True)


def _different(name: str, number: int, *, held_out: bool) -> Iterator[tuple[str, ProgramSpec]]:
    rng = random.Random(name)
    seen: set[ProgramSpec] = set()
    while len(seen) < number:
        depth, length = rng.randint(1, LONGEST_PROGRAM), rng.randint(SHORTEST_TEXT, LONGEST_TEXT)
        spec = _drawn(partial(_letters, rng, depth), length, rng, held_out=held_out)
        if spec not in seen:
            yield f"{name}-{len(seen):04d}", spec
            seen.add(spec)


def variation(seed: ProgramSpec, rng: random.Random) -> ProgramSpec:
    """A program a little like another: up to one operation more or less, up to two digits, another text."""
    depth = min(LONGEST_PROGRAM, max(1, seed.depth + rng.randint(-1, 1)))
    length = min(LONGEST_TEXT, max(SHORTEST_TEXT, seed.length + rng.randint(-2, 2)))

    def ops() -> str:
        kept = seed.ops.ljust(depth, "?")[:depth]
        fresh = _letters(rng, depth)
        return "".join(
            old if old != "?" and rng.random() < _KEPT else new for old, new in zip(kept, fresh, strict=True)
        )

    return _drawn(ops, length, rng, held_out=False)


def _letters(rng: random.Random, depth: int) -> str:
    return "".join(rng.choices(LETTERS, k=depth))


def _drawn(ops: Callable[[], str], length: int, rng: random.Random, *, held_out: bool) -> ProgramSpec:
    """A program and a text on the side that is asked for, of which every operation changes something."""
    while True:
        letters, text = ops(), "".join(rng.choices(DIGITS, k=length))
        found = steps(letters, text)
        idle = any(old == new for old, new in pairwise(found)) or found[-1] == text
        if is_held_out(text) is held_out and not idle:
            return of(letters, text)
