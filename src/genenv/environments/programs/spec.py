"""What the simulator writes: how hard a program is, then the program and the text that it works on."""

from __future__ import annotations

from pydantic import BaseModel, Field

from genenv.environments.programs.operations import CHANGES, OTHER_LETTERS, PICKS, Language
from genenv.environments.programs.settings import LEAST_LENGTH, MOST_DEPTH, MOST_LENGTH, Sizes
from genenv.types import Json, JsonObject

HELD_OUT_MULTIPLE = 7
"""Texts that are a multiple of this are for measuring only."""

_CHANGES, _PICKS = (
    f"[{''.join([*there, *(OTHER_LETTERS[letter] for letter in there)])}]" for there in (CHANGES, PICKS)
)
"""Letters of any world; which of them are of this one, `build` knows."""


class ProgramSpec(BaseModel, frozen=True, extra="forbid"):
    """A program. Names are short because a simulator that writes characters writes them too."""

    d: int = Field(ge=1, le=MOST_DEPTH)
    """Depth: how many operations it has."""
    n: int = Field(ge=LEAST_LENGTH, le=MOST_LENGTH)
    """Length: how many digits its text has."""
    p: str = Field(
        pattern=rf"^[0-9]{{{LEAST_LENGTH},{MOST_LENGTH}}}>{_CHANGES}{{0,{MOST_DEPTH - 1}}}{_PICKS}$"
    )
    """Text and program: the digits, `>`, and a letter for each operation, in the order of their use."""

    @property
    def text(self) -> str:
        """The digits."""
        return self.p.partition(">")[0]

    @property
    def ops(self) -> str:
        """The letters."""
        return self.p.partition(">")[2]


def of(ops: str, text: str) -> ProgramSpec:
    """The spec of a program, its difficulty counted."""
    return ProgramSpec(d=len(ops), n=len(text), p=f"{text}>{ops}")


def is_held_out(text: str) -> bool:
    """Whether a text is on the side of the held-out tasks: a seventh of the texts of any length is."""
    return int(text) % HELD_OUT_MULTIPLE == 0


def schema(language: Language, sizes: Sizes) -> JsonObject:
    """The grammar of specs: an alternative for each difficulty, which holds what follows to it."""
    (shallow, deep), (short, long) = sizes
    return {
        "anyOf": [
            _alternative(depth, length, language)
            for depth in range(shallow, deep + 1)
            for length in range(short, long + 1)
        ]
    }


def _alternative(depth: int, length: int, language: Language) -> JsonObject:
    changes = f"[{language.changes}]{{{depth - 1}}}" if depth > 1 else ""
    fields: dict[str, Json] = {
        "d": {"const": depth},
        "n": {"const": length},
        "p": {"type": "string", "pattern": f"^[0-9]{{{length}}}>{changes}[{language.picks}]$"},
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
