"""What a bundle may say beside where its tools come from: how attempts start, which tools belong together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from pydantic import BaseModel, Field

from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call


class Starts(BaseModel, frozen=True, extra="forbid"):
    """Several states in which attempts start: a tool that nobody is shown makes the one of a number.

    The first ones are for training, the others for measuring. So what a program may be is told by its state.
    """

    tool: str
    argument: str = "state"
    training: int = Field(ge=1)
    measuring: int = Field(ge=1)

    def call(self, state: int) -> Call:
        """The call that starts in a state."""
        return Call(tool=self.tool, args={self.argument: state})

    def states(self, *, measuring: bool = False) -> range:
        """The numbers of the states of one side."""
        return range(self.training, self.training + self.measuring) if measuring else range(self.training)

    def state_of(self, program: Program) -> int | None:
        """In which state a program starts; None: it does not say so."""
        first = program.before[0] if program.before else None
        if first is None or first.tool != self.tool:
            return None
        state = first.args.get(self.argument)
        known = isinstance(state, int) and 0 <= state < self.training + self.measuring
        return state if isinstance(state, int) and known else None


class Together(BaseModel, frozen=True, extra="forbid"):
    """Circles of tools that one person could need in one breath: tasks of several calls are of one circle.

    Two tools of a circle for measuring never meet in a task for training, not even with a third.
    """

    training: tuple[str, ...] = ()
    """Names with a space between them."""
    measuring: tuple[str, ...] = ()

    @cached_property
    def _kept(self) -> frozenset[frozenset[str]]:
        return frozenset(
            frozenset(pair) for circle in self.measuring for pair in itertools.combinations(circle.split(), 2)
        )

    def allows(self, tools: Collection[str], *, measuring: bool = False) -> bool:
        """Whether tools may meet in a task of one side."""
        pairs = [frozenset(pair) for pair in itertools.combinations(sorted(set(tools)), 2)]
        return all((pair in self._kept) is measuring for pair in pairs)

    def groups(
        self, subject: str, n: int, rng: random.Random, *, most: int, measuring: bool = False
    ) -> list[list[str]]:
        """So many tools that may meet, with one of them given, in any order.

        Args:
            subject: that one.
            n: of how many tools.
            rng: picks some where there are many, and orders them.
            most: groups.
            measuring: of which side.
        """
        found = list(dict.fromkeys(self._groups(subject, n, measuring=measuring)))
        picked = rng.sample(found, min(most, len(found)))
        return [rng.sample(group, n) for group in picked]

    def _groups(self, subject: str, n: int, *, measuring: bool) -> Iterator[tuple[str, ...]]:
        for circle in self.measuring if measuring else self.training:
            names = circle.split()
            if subject in names:
                rest = [name for name in names if name != subject]
                for others in itertools.combinations(rest, n - 1):
                    group = tuple(sorted((subject, *others)))
                    if self.allows(group, measuring=measuring):
                        yield group


def companions(together: Together, chain: Sequence[str], *, measuring: bool = False) -> list[str]:
    """Tools that may meet both of a chain, of circles with one of them."""
    circles = [one.split() for one in (together.measuring if measuring else together.training)]
    names = dict.fromkeys(one for circle in circles if not set(chain).isdisjoint(circle) for one in circle)
    return [
        name for name in names if name not in chain and together.allows((*chain, name), measuring=measuring)
    ]
