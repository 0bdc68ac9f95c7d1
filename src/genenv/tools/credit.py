"""The soft reward: partial credit for a wrong rollout, by the similarity of its calls to the solution's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.environments.common import caseless
from genenv.tools.worlds.base import Call, Tool
from genenv.types import Json

NAME_CREDIT = 0.2
"""Share of a call's credit that the right tool earns; the arguments earn the other share."""
EXTRA_CALL_COST = 0.2
MAX_PARTIAL = 0.95
"""Maximum credit of a rollout that is not right."""


def credit(wanted: Sequence[Call], made: Sequence[Call], tools: Mapping[str, Tool]) -> float:
    """Return the mean credit of the solution's calls, minus a cost per extra call, in [0, MAX_PARTIAL].

    Args:
        wanted: the calls of the solution.
        made: the valid calls of the rollout; each is matched with at most one call of the solution.
        tools: the tools by name.
    """
    scored = sorted(
        (-_of_call(tools[one.tool], one, other), i, j)
        for i, one in enumerate(wanted)
        for j, other in enumerate(made)
    )
    paired: dict[int, int] = {}
    earned = 0.0
    for score, i, j in scored:
        if score < 0 and i not in paired and j not in paired.values():
            paired[i] = j
            earned -= score
    extra = max(0, len(made) - len(wanted))
    return min(MAX_PARTIAL, max(0.0, earned / len(wanted) - EXTRA_CALL_COST * extra))


def _of_call(tool: Tool, wanted: Call, made: Call) -> float:
    """Return 1 for the same call, 0 for another tool, else 0.2 + 0.8 x the share of right arguments.

    An optional argument counts only if the two calls differ in it, or if the wanted value is not the default:
    omitting it earns nothing.
    """
    if made.tool != wanted.tool:
        return 0.0
    defaults: dict[str, Json] = {name: schema.get("default") for name, schema in tool.properties.items()}
    asked, given = {**defaults, **wanted.args}, {**defaults, **made.args}
    right = {name: _same(asked[name], given.get(name)) for name in tool.properties}
    counted = [
        name
        for name in tool.properties
        if name in tool.required or not right[name] or not _same(asked[name], defaults[name])
    ]
    share = sum(right[name] for name in counted) / len(counted) if counted else 1.0
    return NAME_CREDIT + (1 - NAME_CREDIT) * share


def _same(one: Json, other: Json) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return caseless(one) == caseless(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)
