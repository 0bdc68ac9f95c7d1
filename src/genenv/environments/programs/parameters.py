"""Programs by their parameters: depth, length, the operations they begin and end with; the rest is drawn."""

from __future__ import annotations

import random

from pydantic import BaseModel, Field

from genenv.environments.parameters import Options
from genenv.environments.programs.drafting import text_of
from genenv.environments.programs.operations import Language
from genenv.environments.programs.settings import LEAST_LENGTH, MOST_DEPTH, MOST_LENGTH, Sizes
from genenv.environments.programs.spec import ProgramSpec, of
from genenv.types import Rejection, RejectReason


class ProgramParameters(BaseModel, frozen=True, extra="forbid"):
    """What a program is to be like. Names are short, as in `ProgramSpec`."""

    d: int = Field(ge=1, le=MOST_DEPTH)
    """Depth."""
    n: int = Field(ge=LEAST_LENGTH, le=MOST_LENGTH)
    """Length."""
    o: str = Field(min_length=1, max_length=2)
    """The letters of its first and its last operation, or of the only one."""


def options(language: Language, sizes: Sizes) -> Options:
    """All of them, whatever the seed."""
    (shallow, deep), (short, long) = sizes
    lengths, single = list(range(short, long + 1)), list(language.picks)
    several = [first + last for first in language.changes for last in language.picks]
    return [
        {"d": [depth], "n": lengths, "o": single if depth == 1 else several}
        for depth in range(shallow, deep + 1)
    ]


def drawn(
    parameters: ProgramParameters, language: Language, sizes: Sizes, rng: random.Random
) -> ProgramSpec | Rejection:
    """A program with these ends, on a text of its own."""
    depth, length, ends = parameters.d, parameters.n, parameters.o
    if len(ends) != min(depth, 2) or not language.knows(ends) or not sizes.has(depth, length):
        sentence = f"There is no program of depth {depth} and length {length} with the ends {ends}."
        return Rejection(RejectReason.INCONSISTENT, sentence)
    between = "".join(rng.choices(language.changes, k=max(0, depth - 2)))
    ops = ends if depth == 1 else ends[0] + between + ends[1]
    return of(ops, text_of(rng, length, held_out=False))
