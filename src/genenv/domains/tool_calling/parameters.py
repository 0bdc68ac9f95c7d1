"""Tool-calling tasks by their parameters: how many calls, tools shown, phrasing, gap, and which tools.

The seed gives the app: the tools of a task are of it, or meet one of it in the training split. Values and
words are drawn as those of the base data are (`drafting`), from training phrasings, which say what their
calls do.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from genenv.domains.parameters import Options, asked_for
from genenv.domains.tool_calling.drafting import SIZES, TRAINING_SPLIT, Drafter, Plan, Size
from genenv.domains.tool_calling.phrasings.template import Style
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, tools_of
from genenv.domains.tool_calling.worlds import today_of
from genenv.types import Json, Message, Profile, Rejection, RejectReason, Seed

_AND, _THEN = "+", ">"
"""Between tools of a task; `>`: the second one uses what the first one found."""


class ToolParameters(BaseModel, frozen=True, extra="forbid"):
    """What a tool-calling task is to be like. The fields are those of `ToolSpec`."""

    n_calls: Literal[1, 2, 3]
    n_tools: Size
    phrasing: Style
    gap: Literal["none", "missing_info", "no_tool"]
    tools: str
    """Names, with `+` between them; `a>b` where b uses what a found."""

    @property
    def plan(self) -> Plan:
        """What is drafted.

        Raises:
            ValueError: there is no such chain of tools.
        """
        chained = _THEN in self.tools
        tools = tuple(self.tools.replace(_THEN, _AND).split(_AND))
        known = TRAINING_SPLIT.combinations.chains
        chain = next((one for one in known if one.tools == tools[:2]), None) if chained else None
        if chained and chain is None:
            raise ValueError(f"nothing that {tools[0]} finds goes into {tools[1]}")
        return Plan(tools=tools, chain=chain, n_tools=self.n_tools, phrasing=self.phrasing, gap=self.gap)


def options(seed: Seed, apps: frozenset[str], *, chains: bool) -> Options:
    """All parameters that go with a seed.

    Args:
        seed: gives the app.
        apps: those there are.
        chains: whether a call may use what another one found.
    """
    return _options(_app_of(seed), apps, chains)


def drawn(parameters: ToolParameters, seed: Seed, rng: random.Random) -> ToolSpec | Rejection:
    """A spec that has these parameters, in the words of the training split."""
    try:
        return Drafter(TRAINING_SPLIT).draft(parameters.plan, rng, today_of(seed.id)).spec
    except (ValueError, KeyError) as error:
        return Rejection(RejectReason.INCONSISTENT, f"{parameters.tools} cannot be asked for so: {error}.")


def messages(seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The job, the app and its tools, and how the agent does. Arguments as of `Domain.simulator_messages`."""
    app = _app_of(seed)
    names = ", ".join(tool.name for tool in tools_of(app))
    system = (
        "Set up a task for an assistant with tools, as JSON: n_calls, n_tools (how many are shown), phrasing "
        "(explicit, relative, indirect), gap (none, missing_info, no_tool), tools. "
        f"It should solve {target:.0%}. Tools of {app}: {names}."
    )
    return asked_for(system, profile, seed.skills, thing="task")


def _app_of(seed: Seed) -> str:
    return TOOLS[ToolSpec.model_validate(seed.spec).calls[0].tool].app


@functools.cache
def _options(app: str, apps: frozenset[str], chains: bool) -> Options:
    known = {
        1: [(tool.name,) for tool in tools_of(app)],
        **{n: [g for g in TRAINING_SPLIT.combinations.groups(n) if _has(g, app, apps)] for n in (2, 3)},
    }
    linked = [c.tools for c in TRAINING_SPLIT.combinations.chains if chains and _has(c.tools, app, apps)]
    found: list[dict[str, Sequence[Json]]] = []
    for n, groups in known.items():
        chained = [_THEN.join(pair) for pair in linked if n == len(pair)]
        found += _ways(n, [*map(_AND.join, groups), *chained])
    return tuple(found)


def _ways(n: int, written: Sequence[str]) -> list[dict[str, Sequence[Json]]]:
    """The alternatives with so many calls."""
    drafter = Drafter(TRAINING_SPLIT)
    relative = [name for name in written if _can_be_relative(name, drafter)]
    shown = [size for size in SIZES if size >= n]
    gaps = ["none", "no_tool"] if n == 1 else ["none"]
    ways = [
        {"phrasing": ["explicit", "indirect"], "gap": gaps, "tools": written},
        {"phrasing": ["relative"], "gap": gaps, "tools": relative},
    ]
    if n == 1:
        incomplete = [name for name in written if TRAINING_SPLIT.phrases[name].missing]
        ways.append({"phrasing": ["explicit"], "gap": ["missing_info"], "tools": incomplete})
    return [{"n_calls": (n,), "n_tools": shown, **way} for way in ways if way["tools"]]


def _can_be_relative(tools: str, drafter: Drafter) -> bool:
    parameters = ToolParameters(n_calls=1, n_tools=2, phrasing="relative", gap="none", tools=tools)
    return any(drafter.can_be_relative(part) for part in parameters.plan.parts)


def _has(group: Sequence[str], app: str, apps: frozenset[str]) -> bool:
    own = {TOOLS[name].app for name in group}
    return app in own and own <= apps
