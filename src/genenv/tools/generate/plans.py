"""Plans: which tools a program calls, in which order, and which of them use what the one before found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from genenv.tools.bundle import Together, companions
from genenv.tools.discover.recipes import Graph, Recipe
from genenv.tools.spec import SIZES

AND, THEN = "+", ">"
"""Between tools of a plan; `>`: the second one uses what the first one finds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tools a program calls, in order, and which links it follows."""

    tools: tuple[str, ...]
    links: frozenset[int]
    """Numbers of calls that use what the call before them found."""

    @classmethod
    def read(cls, text: str) -> Plan:
        """A plan as it is written in parameters: `find_customer>list_orders+close_ticket`."""
        tools: list[str] = []
        links: set[int] = set()
        for part in text.split(AND):
            chain = part.split(THEN)
            links |= {len(tools) + number for number in range(1, len(chain))}
            tools += chain
        return cls(tuple(tools), frozenset(links))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which plans there are."""

    most_calls: int
    each: int = 12
    """So many at most of each number of calls, chained or not."""
    together: Together | None = None
    """Which tools may meet; None: any."""
    measuring: bool = False
    """Whether they are for measuring."""


def plans(graph: Graph, subject: str, rng: random.Random, rules: Rules) -> dict[tuple[int, bool], list[str]]:
    """Plans that call a tool, by their number of calls and whether they chain.

    Args:
        graph: what is known of the tools.
        subject: the tool.
        rng: picks some where there are many.
        rules: which there are.
    """
    if rules.together is not None:
        return _plans_of(graph, subject, rng, rules, rules.together)
    each = rules.each
    others = [name for name in graph.recipes if name != subject]
    linked = sorted({(link.reader, link.user) for link in graph.links})
    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    chains = [THEN.join(pair) for pair in linked if subject in pair]
    for n in range(2, rules.most_calls + 1):
        flat = [
            AND.join(_shuffled([subject, *rng.sample(others, n - 1)], rng))
            for _ in range(each * (len(others) >= n - 1))
        ]
        joined = (
            chains
            if n == 2
            else [
                AND.join([chain, *rng.sample(rest, n - 2)])
                for chain in chains
                for rest in [[name for name in others if name not in chain.split(THEN)]]
                if len(rest) >= n - 2
            ]
        )
        found[n, False] = list(dict.fromkeys(flat))
        found[n, True] = rng.sample(joined, min(each, len(joined)))
    return {size: sorted(listed) for size, listed in found.items() if listed}


def _plans_of(
    graph: Graph, subject: str, rng: random.Random, rules: Rules, together: Together
) -> dict[tuple[int, bool], list[str]]:
    """Plans of tools that may meet; those that a chain could join do not meet without it."""
    linked = sorted({(link.reader, link.user) for link in graph.links})
    chains = [pair for pair in linked if together.allows(pair, measuring=rules.measuring)]
    known = {frozenset(pair) for pair in linked}

    def apart(group: Sequence[str]) -> bool:
        pairs = map(frozenset, itertools.combinations(group, 2))
        return set(group) <= graph.recipes.keys() and known.isdisjoint(pairs)

    found: dict[tuple[int, bool], list[str]] = {(1, False): [subject]}
    for n in range(2, rules.most_calls + 1):
        groups = together.groups(subject, n, rng, most=rules.each, measuring=rules.measuring)
        found[n, False] = [AND.join(group) for group in groups if apart(group)]
    found[2, True] = [THEN.join(pair) for pair in chains if subject in pair]
    longer = [
        AND.join([THEN.join(pair), third])
        for pair in chains
        for third in companions(together, pair, measuring=rules.measuring)
        if subject in (*pair, third) and all(apart((one, third)) for one in pair)
    ]
    found[3, True] = rng.sample(longer, min(rules.each, len(longer)))
    return {size: sorted(listed) for size, listed in found.items() if listed and size[0] <= rules.most_calls}


def _shuffled(names: list[str], rng: random.Random) -> list[str]:
    rng.shuffle(names)
    return names


def reads_last(graph: Graph, plan: str) -> bool:
    """Whether the last call of a plan finds something that could be asked for."""
    last: Recipe = graph.recipes[Plan.read(plan).tools[-1]]
    return bool(last.told)


def sizes_shown(n_tools: int, least: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """How many tools can be shown: enough for the calls, and no more than there are."""
    return [size for size in sizes if least <= size <= n_tools] or [
        max(size for size in SIZES if size <= n_tools)
    ]
