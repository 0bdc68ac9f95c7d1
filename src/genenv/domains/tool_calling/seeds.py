"""The base data of the tool-calling domain: 544 training specs and 1,000 held-out ones, by the same rules.

The mix, in both splits: 60% one call, 28% two, 12% three (gaps included, which are all single calls: with
several, a person would do what can be done); 12% with a gap, half missing_info and half no_tool; 8%
dependent; 55% explicit, 25% relative, 20% indirect; the number of tools shown spread evenly over 2, 3, 4, 6
and 8 as far as the calls allow. Every tool occurs alone in both splits.

Held-out specs share with the seeds no phrasing, no joiner, no value but closed choices, and no two tools that
come together in one task. They come in lots of 200, each with the whole mix: a measurement takes the first
unasked, and the others make the same measurement finer.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from datetime import date as Day
from typing import Final, TypeVar

from genenv.domains.tool_calling.drafting import (
    HELD_OUT_SPLIT,
    SIZES,
    TRAINING_SPLIT,
    Drafted,
    Drafter,
    Plan,
    Size,
    Split,
)
from genenv.domains.tool_calling.phrasings.template import Style
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, tools_of
from genenv.domains.tool_calling.worlds import today_of

N_TRAINING: Final = 544
"""As many as the base samples of the paper."""
N_MAIN: Final = 200
"""Held-out specs of a lot."""
N_LOTS: Final = 5
N_HELD_OUT: Final = N_LOTS * N_MAIN

_TWO_CALLS, _THREE_CALLS = 0.28, 0.12
_GAPS, _DEPENDENT = 0.12, 0.08
_DEPENDENT_OF_THREE = 0.2
"""Share of the dependent specs that have an independent third call."""
_RELATIVE, _INDIRECT = 0.25, 0.20

_Item = TypeVar("_Item")


def training_specs() -> list[tuple[str, ToolSpec]]:
    """The seeds, by id: always the same."""
    return [(seed_id, drafted.spec) for seed_id, drafted in training_drafts()]


def held_out_specs() -> list[tuple[str, ToolSpec]]:
    """The specs for measuring, by id: always the same."""
    return [(spec_id, drafted.spec) for spec_id, drafted in held_out_drafts()]


@functools.cache
def training_drafts() -> tuple[tuple[str, Drafted], ...]:
    """The seeds with the templates they were made of."""
    return tuple(_drafts(TRAINING_SPLIT, "seed", N_TRAINING, lots=1))


@functools.cache
def held_out_drafts() -> tuple[tuple[str, Drafted], ...]:
    """The held-out specs with the templates they were made of."""
    return tuple(_drafts(HELD_OUT_SPLIT, "held", N_MAIN, lots=N_LOTS))


def variation(spec: ToolSpec, rng: random.Random, *, today: Day, tools: Container[str] = TOOLS) -> ToolSpec:
    """A new spec like the given one, of training phrasings and values.

    It uses the same tools, or a sibling from the same app in place of one; every other time one difficulty
    field moves by a step.

    Args:
        spec: a training spec.
        rng: the only source of chance.
        today: today in the world that the new spec will be played in.
        tools: those it may use beside its own.
    """
    drafter = Drafter(TRAINING_SPLIT, written={spec.instruction})
    plan = _plan_of(spec, rng)
    changed = _with_sibling(plan, rng)
    if rng.random() < 0.5:
        changed = rng.choice((_other_phrasing, _other_size, _other_length, _other_gap))(changed, rng)
    if all(tool in tools for tool in changed.tools):
        plan = changed
    return drafter.draft(_fitting(plan, drafter), rng, today).spec


# --- a whole split ---


def _drafts(split: Split, prefix: str, n: int, *, lots: int) -> Iterator[tuple[str, Drafted]]:
    """So many lots of n specs each; nothing is said twice in all of them. All of them pass the gate."""
    drafter = Drafter(split)
    for lot in range(lots):
        rng = random.Random(f"genenv/{f'{prefix}-lot-{lot}' if lot else prefix}")
        for number, plan in enumerate(_plans(drafter, n, rng), start=lot * n):
            spec_id = f"{prefix}-{number:03d}"
            yield spec_id, _drafted(plan, drafter, spec_id)


def _drafted(plan: Plan, drafter: Drafter, spec_id: str) -> Drafted:
    """A spec for a plan. Where all has been asked that lacks something of a tool, it is another tool's.

    Raises:
        ValueError: there is no spec for it.
    """
    rng, today = random.Random(f"genenv/{spec_id}"), today_of(spec_id)
    try:
        return drafter.draft(plan, rng, today)
    except ValueError:
        if plan.gap != "missing_info":
            raise
    for tool in rng.sample(list(TOOLS), len(TOOLS)):
        with contextlib.suppress(ValueError):
            return drafter.draft(replace(plan, tools=(tool,)), rng, today)
    raise ValueError(f"no tool is left for {plan}")


def _plans(drafter: Drafter, n: int, rng: random.Random) -> list[Plan]:
    """The plans of a split, in a random order that is always the same."""
    combinations = drafter.split.combinations
    twos, threes, gaps, chained = (
        round(n * share) for share in (_TWO_CALLS, _THREE_CALLS, _GAPS, _DEPENDENT)
    )
    chained_threes = round(chained * _DEPENDENT_OF_THREE)
    singles = _cycle(list(TOOLS), rng)
    pairs, triples = _cycle(combinations.groups(2), rng), _cycle(combinations.groups(3), rng)
    chains = _cycle(combinations.chains, rng)
    long_chains = _cycle([(c, tool) for c in combinations.chains for tool in combinations.companions(c)], rng)

    alone = [Plan(tools=(tool,)) for tool in itertools.islice(singles, n - twos - threes - gaps)]
    several = [Plan(tools=_shuffled(next(pairs), rng)) for _ in range(twos - chained + chained_threes)]
    several += [Plan(tools=_shuffled(next(triples), rng)) for _ in range(threes - chained_threes)]
    for _ in range(chained - chained_threes):
        chain = next(chains)
        several.append(Plan(tools=chain.tools, chain=chain))
    for chain, third in itertools.islice(long_chains, chained_threes):
        several.append(Plan(tools=(*chain.tools, third), chain=chain))
    withheld = [Plan(tools=(tool,), gap="no_tool") for tool in itertools.islice(singles, gaps - gaps // 2)]
    incomplete = [Plan(tools=(tool,), gap="missing_info") for tool in itertools.islice(singles, gaps // 2)]

    phrased = _phrased(
        [*alone, *several, *withheld], round(n * _RELATIVE), round(n * _INDIRECT), drafter, rng
    )
    return _sized(rng.sample([*phrased, *incomplete], n), rng)


def _phrased(
    plans: Sequence[Plan], relative: int, indirect: int, drafter: Drafter, rng: random.Random
) -> list[Plan]:
    """So many plans made relative, of those that can be, and so many of the others indirect."""
    order = rng.sample(range(len(plans)), len(plans))
    able = [i for i in order if any(drafter.can_be_relative(part) for part in plans[i].parts)]
    styles: dict[int, Style] = dict.fromkeys(able[:relative], "relative")
    styles |= dict.fromkeys([i for i in order if i not in styles][:indirect], "indirect")
    return [replace(plan, phrasing=styles.get(i, "explicit")) for i, plan in enumerate(plans)]


def _sized(plans: Sequence[Plan], rng: random.Random) -> list[Plan]:
    """The plans with a number of tools each: the one used least so far that has room for the calls."""
    used: Counter[Size] = Counter()
    sized: list[Plan] = []
    for plan in plans:
        size = min(_sizes(plan), key=lambda size: (used[size], rng.random()))
        used[size] += 1
        sized.append(replace(plan, n_tools=size))
    return sized


def _sizes(plan: Plan) -> list[Size]:
    return [size for size in SIZES if size >= len(set(plan.tools))]


def _cycle(items: Sequence[_Item], rng: random.Random) -> Iterator[_Item]:
    """The items in random order, all of them before any comes again."""
    while True:
        yield from rng.sample(items, len(items))


def _shuffled(tools: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.sample(tools, len(tools)))


# --- one variation ---


def _plan_of(spec: ToolSpec, rng: random.Random) -> Plan:
    """The plan a training spec could come from; a chain that we have no words for becomes one we have."""
    tools = tuple(call.tool for call in spec.calls)
    plan = Plan(tools=tools, n_tools=spec.n_tools, phrasing=spec.phrasing, gap=spec.gap)
    if not spec.dependent:
        return plan
    known = TRAINING_SPLIT.combinations.chains
    chain = next((chain for chain in known if chain.tools == tools[:2]), None)
    if chain is None:
        chain = rng.choice(known)
        return replace(plan, tools=chain.tools, chain=chain)
    return replace(plan, chain=chain)


def _with_sibling(plan: Plan, rng: random.Random) -> Plan:
    """In one case of three, another tool of the same app in the place of one; never in a chain."""
    if plan.chain is not None or rng.random() >= 1 / 3:
        return plan
    index = rng.randrange(len(plan.tools))
    old = plan.tools[index]
    groups = ((*plan.tools[:index], t.name, *plan.tools[index + 1 :]) for t in tools_of(TOOLS[old].app))
    siblings = [group for group in groups if group != plan.tools and _may_meet(group)]
    return replace(plan, tools=rng.choice(siblings)) if siblings else plan


def _may_meet(tools: tuple[str, ...]) -> bool:
    return len(set(tools)) == len(tools) and TRAINING_SPLIT.combinations.allows(tools)


def _other_phrasing(plan: Plan, rng: random.Random) -> Plan:
    styles: tuple[Style, ...] = ("explicit", "relative", "indirect")
    return replace(plan, phrasing=rng.choice([style for style in styles if style != plan.phrasing]))


def _other_size(plan: Plan, rng: random.Random) -> Plan:
    """One step up or down."""
    here = SIZES.index(plan.n_tools)
    steps = [SIZES[i] for i in (here - 1, here + 1) if 0 <= i < len(SIZES) and SIZES[i] in _sizes(plan)]
    return replace(plan, n_tools=rng.choice(steps))


def _other_length(plan: Plan, rng: random.Random) -> Plan:
    """One call more or less. A gap stays with a single call, and a chain keeps its two."""
    if plan.gap != "none":
        return plan
    shortest = 1 if plan.chain is None else 2
    options = [plan.tools[:-1]] if len(plan.tools) > shortest else []
    if len(plan.tools) < 3:
        combinations = TRAINING_SPLIT.combinations
        if plan.chain is not None:
            options += [(*plan.tools, tool) for tool in combinations.companions(plan.chain)]
        else:
            groups = [g for g in combinations.groups(len(plan.tools) + 1) if set(plan.tools) < set(g)]
            options += [
                (*plan.tools, *(tool for tool in group if tool not in plan.tools)) for group in groups
            ]
    return replace(plan, tools=rng.choice(options)) if options else plan


def _other_gap(plan: Plan, rng: random.Random) -> Plan:
    if plan.gap != "none":
        return replace(plan, gap="none")
    return replace(plan, gap=rng.choice(("missing_info", "no_tool"))) if len(plan.tools) == 1 else plan


def _fitting(plan: Plan, drafter: Drafter) -> Plan:
    """The plan with fields that agree: room for its tools, and a phrasing that its tools have words for."""
    if plan.n_tools not in _sizes(plan):
        plan = replace(plan, n_tools=_sizes(plan)[0])
    relative = any(drafter.can_be_relative(part) for part in plan.parts)
    if plan.gap == "missing_info" or (plan.phrasing == "relative" and not relative):
        plan = replace(plan, phrasing="explicit")
    return plan
