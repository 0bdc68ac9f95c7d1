"""Programs drawn by rules: base data, held-out ones, and variations of a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from genenv.environments.programs.operations import DIGITS, Language
from genenv.environments.programs.settings import ProgramsConfig, Range, Sizes
from genenv.environments.programs.spec import ProgramSpec, is_held_out, of

SEEDS, HELD_OUT = 4000, 500
_ENOUGH = 1000
"""So many draws in a row without a new program: there are no more of them, or hardly any."""
_KEPT = 0.5
"""Chance that a variation keeps an operation of its seed."""


def writable(settings: ProgramsConfig) -> Sizes:
    """How long what can be written is."""
    return Sizes(settings.depths, settings.lengths)


def of_base(settings: ProgramsConfig) -> Sizes:
    """How long base tasks and held-out ones are."""
    return Sizes(settings.base_depths or settings.depths, settings.base_lengths or settings.lengths)


def seed_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs of the base data, all different, every difficulty alike, as far as there are so many."""
    return _different("seed", SEEDS, language, sizes, held_out=False)


def held_out_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs for measuring, in the same way, on texts of their own."""
    return _different("held-out", HELD_OUT, language, sizes, held_out=True)


def _different(
    name: str, number: int, language: Language, sizes: Sizes, *, held_out: bool
) -> Iterator[tuple[str, ProgramSpec]]:
    rng = random.Random(name)
    seen: set[tuple[str, str]] = set()
    vain = 0
    while len(seen) < number and vain < _ENOUGH:
        vain += 1
        depth, length = rng.randint(*sizes.depths), rng.randint(*sizes.lengths)
        ops, text = _ops(rng, depth, language), text_of(rng, length, held_out=held_out)
        if (ops, text) not in seen:
            yield f"{name}-{len(seen):04d}", of(ops, text)
            seen.add((ops, text))
            vain = 0


def varied(seed: ProgramSpec, rng: random.Random, language: Language, sizes: Sizes) -> ProgramSpec:
    """A program a little like another: up to one operation more or less, up to two digits, another text.

    An operation of the seed that the language lacks is never kept.
    """
    depth = _within(sizes.depths, seed.d + rng.randint(-1, 1))
    length = _within(sizes.lengths, seed.n + rng.randint(-2, 2))
    old, fresh = seed.ops[-depth:].rjust(depth, "?"), _ops(rng, depth, language)
    ops = (a if language.knows(a) and rng.random() < _KEPT else b for a, b in zip(old, fresh, strict=True))
    return of("".join(ops), text_of(rng, length, held_out=False))


def _within(bounds: Range, size: int) -> int:
    least, most = bounds
    return min(most, max(least, size))


def _ops(rng: random.Random, depth: int, language: Language) -> str:
    return "".join(rng.choices(language.changes, k=depth - 1)) + rng.choice(language.picks)


def text_of(rng: random.Random, length: int, *, held_out: bool) -> str:
    """A random text of so many digits, on the side of the held-out tasks or not."""
    while is_held_out(text := "".join(rng.choices(DIGITS, k=length))) is not held_out:
        pass
    return text
