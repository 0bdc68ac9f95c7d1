"""What differs from one time to the next: in states, and in what tools that only read find."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from genenv.progress import advance
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph
from genenv.tools.discover.result_values import read
from genenv.tools.discover.state_values import ANY, FILES, HIDDEN, KEY, leaves
from genenv.tools.worlds.base import Call, Played, World
from genenv.types import Json

_PLAYED_TWICE = 8
_EACH_TWICE, _TRIES = 3, 8
"""So many programs that end with a call of each tool, in so many tries."""
_FEW = 12
"""So many files that differ are named one by one; where there are more, none of them counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unsteady:
    """What does not count."""

    state: tuple[str, ...]
    """Kinds of values of states."""
    results: tuple[str, ...]
    """`TOOL.KIND`, of what tools find; `TOOL.` alone: all of it."""


def unsteady(explorer: Explorer, again: World, graph: Graph, rng: random.Random) -> Unsteady:
    """Play programs in two worlds, a second apart.

    Args:
        explorer: of the one world.
        again: the other one, opened anew.
        graph: what is known of the tools.
        rng: draws the programs.
    """
    programs = [explorer.setup() for _ in range(_PLAYED_TWICE)]
    programs += _each(explorer, graph, rng)
    first = [explorer.world.play(program) for program in programs]
    time.sleep(1.1)
    state: dict[str, None] = {}
    results: dict[str, None] = {}
    steady_ones: set[str] = set()
    begin = _hidden_files(explorer.world.play(()).state)
    for program, one in zip(programs, first, strict=True):
        other = again.play(program)
        advance(items=1)
        left, right = _hidden_files(one.state), _hidden_files(other.state)
        steady_ones |= {
            name for name in left if left[name] != begin.get(name) and left[name] == right.get(name)
        }
        if other.state != one.state:
            state |= dict.fromkeys(differing(one.state, other.state))
        results |= dict.fromkeys(_results(program, one, other, graph))
    named = dict.fromkeys(_by_folder(kind, steady_ones) for kind in _without_inner(state))
    return Unsteady(tuple(named), tuple(results))


def _hidden_files(state: Json) -> Mapping[str, Json]:
    """The hidden files of a folder's state."""
    held = cast("Mapping[str, Json]", state).get(HIDDEN) if isinstance(state, Mapping) else None
    return cast("Mapping[str, Json]", held) if isinstance(held, Mapping) else {}


def _by_folder(kind: str, steady_ones: Iterable[str]) -> str:
    """The folder of a hidden file that differs, where nothing below it changes alike both times.

    Files that are not there yet, such as the log of a new branch, differ as those beside them do.
    """
    folder, slash, _ = kind.rpartition("/")
    inside = f"{folder.removeprefix(f'{HIDDEN}.')}/"
    if kind.startswith(f"{HIDDEN}.") and slash and not any(one.startswith(inside) for one in steady_ones):
        return f"{folder}/"
    return kind


def _each(explorer: Explorer, graph: Graph, rng: random.Random) -> Iterator[tuple[Call, ...]]:
    """Programs that end with a call of each tool, after others that write."""
    for recipe in graph.recipes.values():
        found = 0
        for number in range(_TRIES):
            before = explorer.setup() if number else ()
            call = explorer.attempt(recipe, before, rng)
            if call is not None:
                yield (*before, call)
                found += 1
            if found == _EACH_TWICE:
                break


def _results(program: Sequence[Call], one: Played, other: Played, graph: Graph) -> Iterator[str]:
    for call, left, right in zip(program, one.outcomes, other.outcomes, strict=True):
        if not graph.recipes[call.tool].writes and left.result != right.result:
            yield from (f"{call.tool}.{kind}" for kind in differing(read(left.result), read(right.result)))


def _without_inner(kinds: Iterable[str]) -> Iterator[str]:
    """Kinds without those of records whose names differ already."""
    keys = [one for one in kinds if one.endswith(KEY)]
    yield from (
        kind for kind in kinds if not any(kind.startswith(f"{one.removesuffix(KEY)}{ANY}") for one in keys)
    )


def differing(one: Json, other: Json) -> list[str]:
    """Kinds of values that differ; files, of which each is a kind of its own, by their names."""
    left, right = leaves(one), leaves(other)
    found: list[str] = []
    for kind in left | right:
        if left.get(kind) == right.get(kind):
            continue
        table = kind.removesuffix(f".{ANY}")
        named = _files(one, other, table) if table in (FILES, HIDDEN) and table != kind else []
        found += [f"{table}.{name}" for name in named] or [kind]
    return found


def _files(one: Json, other: Json, table: str) -> list[str]:
    """Files that both have, and that hold something else; none if there are many."""
    left, right = (cast("Mapping[str, Mapping[str, Json]]", state).get(table, {}) for state in (one, other))
    named = [name for name in left if name in right and left[name] != right[name]]
    return named if len(named) <= _FEW and set(left) == set(right) else []


def steady(graph: Graph, found: Unsteady) -> Graph:
    """What is known of tools, without what they find that differs, or tools that find nothing else."""
    shifting: dict[str, set[str]] = {}
    for one in found.results:
        tool = next(name for name in graph.recipes if one.startswith(f"{name}."))
        shifting.setdefault(tool, set()).add(one.removeprefix(f"{tool}."))
    lost = {
        tool
        for tool, kinds in shifting.items()
        if not graph.recipes[tool].writes and set(graph.recipes[tool].shows) <= kinds
    }
    recipes = {
        name: dataclasses.replace(
            recipe, told=tuple(kind for kind in recipe.told if kind not in shifting.get(name, ()))
        )
        for name, recipe in graph.recipes.items()
        if name not in lost
    }
    links = tuple(
        link
        for link in graph.links
        if lost.isdisjoint((link.reader, link.user)) and link.kind not in shifting.get(link.reader, ())
    )
    said = dict.fromkeys(sorted(lost), "what it finds differs from one time to the next")
    return Graph(recipes, links, {**graph.failures, **said})
