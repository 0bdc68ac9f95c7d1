"""Which operations of a large document become tools: those that people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.tools.worlds.openapi.resources import Action, Does, Table

MOST_TOOLS = 48
"""More operations than this are too many for one agent's prompt."""
_USUAL = (Does.LIST, Does.READ, Does.CREATE, Does.UPDATE, Does.DELETE)
"""What can be done to most resources."""
_MOST_LINKS = 4
DEPRECATED = "it is deprecated; --only with its whole path takes it all the same"


def chosen(
    actions: Sequence[Action], tables: Mapping[str, Table], only: Sequence[str] = ()
) -> tuple[list[Action], dict[str, str]]:
    """The actions that become tools, in the order of the document, and why others do not.

    What is deprecated comes last. Of more than fit, first the usual ones (list, read, create, update, delete)
    of the tables that most can be done to and that most others refer to, each by its shortest path; then the
    rest in that order.

    Args:
        actions: all that are understood.
        tables: what they are about.
        only: paths that were asked for.
    """
    left_out = {
        one.operation.name: DEPRECATED
        for one in actions
        if one.operation.deprecated and one.operation.path not in only
    }
    if len(left_out) == len(actions):
        left_out = {}
    current = [one for one in actions if one.operation.name not in left_out]
    if len(current) <= MOST_TOOLS:
        return current, left_out
    own: dict[str, list[Action]] = {}
    for one in current:
        own.setdefault(one.table, []).append(one)
    ordered = sorted(own, key=lambda name: -_weight(name, own, tables))
    first = [_usual(own[name]) for name in ordered]
    rest = [
        [one for one in own[name] if one not in usual] for name, usual in zip(ordered, first, strict=True)
    ]
    kept: set[str] = set()
    for group in (*first, *rest):
        if len(kept) + len(group) <= MOST_TOOLS:
            kept |= {one.operation.name for one in group}
    for one in (one for group in (*first, *rest) for one in group):
        if len(kept) < MOST_TOOLS:
            kept.add(one.operation.name)
    left_out |= {
        one.operation.name: f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
        for one in current
        if one.operation.name not in kept
    }
    return [one for one in current if one.operation.name in kept], left_out


def _usual(actions: Sequence[Action]) -> list[Action]:
    """Of each usual action the one with the shortest path."""
    listed = [[one for one in actions if one.does is does] for does in _USUAL]
    return [min(some, key=lambda one: len(one.operation.segments)) for some in listed if some]


def _weight(name: str, own: Mapping[str, Sequence[Action]], tables: Mapping[str, Table]) -> float:
    """How much a table is used: by what can be done to it, what belongs or refers to it, and its path."""
    usual = {one.does for one in own[name]} & {*_USUAL}
    links = sum(name in tables[other].links.values() for other in own if other != name)
    depth = min(len(one.operation.segments) for one in own[name])
    alone = Does.LIST not in usual and Does.READ not in usual
    return len(usual) + min(links, _MOST_LINKS) - depth - 2 * alone
