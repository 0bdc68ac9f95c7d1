"""Settings of the environment of short programs: operations, depths and lengths."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from genenv.settings import Settings

Change = Literal["reverse", "sort", "up", "down", "turn", "complement"]
Pick = Literal["first", "last", "largest", "whole"]

Range = tuple[int, int]
"""The minimum and the maximum."""
MOST_DEPTH, LEAST_LENGTH, MOST_LENGTH = 16, 2, 32

_Depth = Annotated[int, Field(ge=1, le=MOST_DEPTH)]
_Length = Annotated[int, Field(ge=LEAST_LENGTH, le=MOST_LENGTH)]

CHANGES, PICKS = frozenset(get_args(Change)), frozenset(get_args(Pick))


class Sizes(NamedTuple):
    """The ranges of program depths and text lengths."""

    depths: Range
    lengths: Range

    def has(self, depth: int, length: int) -> bool:
        """Return whether a depth and a length are within the ranges."""
        (shallow, deep), (short, long) = self
        return shallow <= depth <= deep and short <= length <= long


class ProgramsConfig(Settings, frozen=True):
    """Settings of the environment of short programs."""

    operations: tuple[Change | Pick, ...] = Field(
        default=("reverse", "sort", "up", "first", "last"), strict=False
    )
    """The available operations: some change the text, others end a program. The value of a program that ends
    with `whole` is the entire changed text, which is hardly ever guessed."""
    renamed: bool = False
    """Name the operations by other letters: the same programs in another notation."""
    depths: tuple[_Depth, _Depth] = Field(default=(1, 3), strict=False)
    """The minimum and maximum number of operations in a program."""
    lengths: tuple[_Length, _Length] = Field(default=(2, 5), strict=False)
    """The minimum and maximum number of digits in a text."""
    base_depths: tuple[_Depth, _Depth] | None = Field(default=None, strict=False)
    """`depths` of base tasks and held-out tasks, if narrower than those of the programs that can be
    written."""
    base_lengths: tuple[_Length, _Length] | None = Field(default=None, strict=False)
    """`lengths` of base tasks and held-out tasks, if narrower than those of the texts that can be written."""
    vary_base: bool = True
    """Whether a simulator that writes whole specs is shown a base program to vary. Off: its prompt has only
    the agent's success rates, and its warm-up, as every random program, draws depth and length uniformly. It
    then knows the format of tasks, but not which of them suit the agent."""

    @model_validator(mode="after")
    def _both_kinds(self) -> ProgramsConfig:
        if CHANGES.isdisjoint(self.operations) or PICKS.isdisjoint(self.operations):
            raise ValueError(
                f"operations must name at least one of {', '.join(get_args(Change))}, and at least one of "
                f"{', '.join(get_args(Pick))}"
            )
        return self

    @model_validator(mode="after")
    def _ranges(self) -> ProgramsConfig:
        for name, inner, outer in (
            ("depths", self.depths, (1, MOST_DEPTH)),
            ("lengths", self.lengths, (LEAST_LENGTH, MOST_LENGTH)),
            ("base_depths", self.base_depths or self.depths, self.depths),
            ("base_lengths", self.base_lengths or self.lengths, self.lengths),
        ):
            if not outer[0] <= inner[0] <= inner[1] <= outer[1]:
                raise ValueError(f"{name} must be a least and a most within {list(outer)}, not {list(inner)}")
        return self
