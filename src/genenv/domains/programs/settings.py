"""Settings of the domain of short programs: which operations there are, and what they are called."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from genenv.config.base import Settings

Change = Literal["reverse", "sort", "up", "down", "turn", "complement"]
Pick = Literal["first", "last", "largest"]

CHANGES, PICKS = frozenset(get_args(Change)), frozenset(get_args(Pick))


class ProgramsConfig(Settings, frozen=True):
    """Settings of the domain of short programs."""

    operations: tuple[Change | Pick, ...] = Field(
        default=("reverse", "sort", "up", "first", "last"), strict=False
    )
    """The operations there are: some that change the text, and some that end a program."""
    renamed: bool = False
    """Operations go by other letters: the same programs in another writing."""

    @model_validator(mode="after")
    def _both_kinds(self) -> ProgramsConfig:
        if CHANGES.isdisjoint(self.operations) or PICKS.isdisjoint(self.operations):
            raise ValueError(
                f"operations must name at least one of {', '.join(get_args(Change))}, and at least one of "
                f"{', '.join(get_args(Pick))}"
            )
        return self
