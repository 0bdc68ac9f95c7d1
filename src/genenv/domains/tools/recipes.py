"""How each tool can be called with success: where the values of its arguments come from.

A value is new (`fresh`), or one of a kind that the state holds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.domains.tools.fresh import fresh
from genenv.domains.tools.world import Outcome, Tool
from genenv.types import Json

FRESH = "new"
"""A value that is drawn by schema and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to call a tool."""

    tool: str
    writes: bool
    """Whether a successful call changes the state."""
    ways: Mapping[str, str]
    """For each argument `FRESH` or a kind of value; optional ones that do not spoil it are among them."""
    success: float
    """Share of tries that succeeded, in [0, 1]."""
    shows: tuple[str, ...] = ()
    """Kinds of single values in its results."""
    told: tuple[str, ...] = ()
    """Those of them that are worth asking for: they are not the same every time."""
    unseen: tuple[str, ...] = ()
    """Arguments of a tool that writes that leave no trace in the state: no check sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one tool finds another one can use."""

    reader: str
    user: str
    parameter: str
    kind: str
    """Of the value in the reader's result."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What is known of a world's tools."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict[str, Recipe])
    links: tuple[Link, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools that never succeeded, and what they said last."""


def succeeded(outcome: Outcome, *, writes: bool) -> bool:
    """Whether a call did something: changed the state, or found something."""
    if outcome.error is not None:
        return False
    return outcome.changed if writes else outcome.result not in (None, "", [], {}, False)


def drawn(
    tool: Tool, ways: Mapping[str, str], values: Mapping[str, Sequence[Json]], rng: random.Random
) -> dict[str, Json] | None:
    """Arguments by their ways; of the optional ones each with one chance in two. None: no such value there.

    Args:
        tool: whose arguments they are.
        ways: see `Recipe`.
        values: of the state, by kind.
        rng: draws.
    """
    args: dict[str, Json] = {}
    for name, way in ways.items():
        if name not in tool.required and rng.random() < 0.5:
            continue
        if way == FRESH:
            args[name] = fresh(tool, name, rng)
            if name not in tool.required and args[name] == tool.properties[name].get("default"):
                del args[name]
        elif values.get(way):
            one = rng.choice(values[way])
            args[name] = [one] if tool.resolved(tool.properties[name]).get("type") == "array" else one
        else:
            return None
    return args if tool.problem(args) is None else None
