"""What the simulator writes: how hard a program is, then the program and the text that it works on."""

from __future__ import annotations

from pydantic import BaseModel, Field

from genenv.domains.programs.operations import CHANGES, PICKS
from genenv.types import Json, JsonObject

LONGEST_PROGRAM = 3
SHORTEST_TEXT, LONGEST_TEXT = 2, 6
HELD_OUT_MULTIPLE = 7
"""Texts that are a multiple of this are for measuring only."""

_CHANGES, _PICKS = f"[{''.join(CHANGES)}]", f"[{''.join(PICKS)}]"


class ProgramSpec(BaseModel, frozen=True, extra="forbid"):
    """A program."""

    depth: int = Field(ge=1, le=LONGEST_PROGRAM)
    """How many operations it has."""
    length: int = Field(ge=SHORTEST_TEXT, le=LONGEST_TEXT)
    """How many digits its text has."""
    ops: str = Field(pattern=rf"^{_CHANGES}{{0,{LONGEST_PROGRAM - 1}}}{_PICKS}$")
    """Its operations, a letter each, in the order in which they are applied."""
    text: str = Field(pattern=rf"^[0-9]{{{SHORTEST_TEXT},{LONGEST_TEXT}}}$")
    """What it works on."""


def of(ops: str, text: str) -> ProgramSpec:
    """The spec of a program, its difficulty counted."""
    return ProgramSpec(depth=len(ops), length=len(text), ops=ops, text=text)


def is_held_out(text: str) -> bool:
    """Whether a text is on the side of the held-out tasks: a seventh of the texts of any length is."""
    return int(text) % HELD_OUT_MULTIPLE == 0


def schema() -> JsonObject:
    """The grammar of specs: an alternative for each difficulty, which holds what follows to it."""
    return {
        "anyOf": [
            _alternative(depth, length)
            for depth in range(1, LONGEST_PROGRAM + 1)
            for length in range(SHORTEST_TEXT, LONGEST_TEXT + 1)
        ]
    }


def _alternative(depth: int, length: int) -> JsonObject:
    changes = f"{_CHANGES}{{{depth - 1}}}" if depth > 1 else ""
    fields: dict[str, Json] = {
        "depth": {"const": depth},
        "length": {"const": length},
        "ops": {"type": "string", "pattern": f"^{changes}{_PICKS}$"},
        "text": {"type": "string", "pattern": f"^[0-9]{{{length}}}$"},
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
