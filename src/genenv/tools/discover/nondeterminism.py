"""Find the values that checks must ignore, as they differ between equal executions of programs of calls.

Also find the values that lookups change, which checks may have to ignore: logs and caches.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast

from genenv.progress import advance
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import FRESH, Graph, is_refused, parsed_result
from genenv.tools.discover.state_values import ANY, FILES, HIDDEN, KEY, leaves, records, words_of
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.words import READING
from genenv.tools.worlds.base import Call, World
from genenv.tools.worlds.differences import is_equal
from genenv.tools.worlds.jsonable import TABLES
from genenv.types import Json

_PLAYED_TWICE = 8
_EACH_TWICE, _MOST_PROGRAMS = 3, 8
"""Programs per tool that end with a call of the tool, and the maximum number of tries to find them."""
_FORMS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"),
    *("%B %d, %Y", "%d %B %Y", "%b %d, %Y", "%d %b %Y"),
)
"""How programs write the day."""
_FEW_FILES = 12
"""Maximum number of differing files that are listed by name; if more differ, all files are ignored."""


@dataclass(frozen=True, slots=True)
class Nondeterminism:
    """Values that differ between equal executions, which checks must ignore."""

    state: tuple[str, ...]
    """Kinds of values in the state."""
    results: tuple[str, ...]
    """Kinds of values in results, as `TOOL.KIND`; `TOOL.` without a kind means the whole result."""
    steady: frozenset[str] = frozenset()
    """Tools of whose results something did not differ."""


def find_nondeterminism(explorer: Explorer, again: World, graph: Graph, rng: random.Random) -> Nondeterminism:
    """Find nondeterministic values: execute programs in two copies of the tools, a second apart.

    Texts that hold the present day count as different, too: a minute may be the same in both copies.

    Args:
        explorer: the explorer of the first world.
        again: the second world, newly opened.
        graph: the recipes of the tools.
        rng: draws the programs.
    """
    found = _Comparison(explorer.world, again)
    found.add([*(explorer.setup() for _ in range(_PLAYED_TWICE)), *_each(explorer, graph, rng)])
    found.add([*_read_after(explorer, graph, found.unlike[:_PLAYED_TWICE], rng)])
    return found.found()


class _Comparison:
    """Compares executions of programs in two copies of the tools.

    Args:
        world: the first copy.
        again: the second one.
    """

    def __init__(self, world: World, again: World) -> None:
        self._world, self._again = world, again
        self._start = world.play(()).state
        self._held = [*_texts(self._start)]
        self._state: dict[str, None] = {}
        self._results: dict[str, None] = {}
        self._hidden: set[str] = set()
        self._in_folders: set[str] = set()
        self._steady_files: set[str] = set()
        self._steady: set[str] = set()
        self.unlike: list[tuple[Call, ...]] = []
        """The programs that led to states that differ, each in a kind of value that did not differ before."""

    def add(self, programs: Sequence[tuple[Call, ...]]) -> None:
        """Execute programs in both copies, a second apart, and record the kinds of values that differ."""
        began = datetime.now(UTC)
        first = [self._world.play(program) for program in programs]
        days = [one for one in _days(began, datetime.now(UTC)) if not any(one in text for text in self._held)]
        if programs:
            time.sleep(1.1)
        begin = _hidden_files(self._start)
        for program, one in zip(programs, first, strict=True):
            other = self._again.play(program)
            advance(items=1)
            given = [*_texts([dict(call.args) for call in program])]
            today = [one for one in days if not any(one in text for text in given)]
            left, right = _hidden_files(one.state), _hidden_files(other.state)
            self._hidden |= {*left, *right}
            if isinstance(one.state, Mapping):
                self._in_folders |= {key for key in one.state if "/" in key}
            self._steady_files |= {
                name for name in left if left[name] != begin.get(name) and left[name] == right.get(name)
            }
            later = _later(other.state, today)
            if later != one.state:
                kinds = differing(one.state, later)
                if not self._state.keys() >= {*kinds}:
                    self.unlike.append(program)
                self._state |= dict.fromkeys(kinds)
            for call, here, there in zip(program, one.outcomes, other.outcomes, strict=True):
                told, again_told = parsed_result(here.result), parsed_result(there.result)
                kinds = differing(told, _later(again_told, today))
                self._results |= dict.fromkeys(f"{call.tool}.{kind}" for kind in kinds)
                if set(leaves(told)) - set(kinds):
                    self._steady.add(call.tool)

    def found(self) -> Nondeterminism:
        """Return the values that differed."""
        kinds = (_by_folder(kind, self._hidden, self._steady_files) for kind in _without_inner(self._state))
        named = dict.fromkeys(_of_any_file(kind, self._in_folders) for kind in kinds)
        return Nondeterminism(tuple(named), tuple(self._results), frozenset(self._steady))


def _days(*moments: datetime) -> list[str]:
    """Return the days of moments as programs write them, here and in UTC."""
    local = [moment.astimezone(zone) for moment in moments for zone in (None, UTC)]
    return [*dict.fromkeys(one.strftime(form) for one in local for form in _FORMS)]


def _later(value: Json, today: Sequence[str]) -> Json:
    """Return a value as it may be on another day: texts that hold the present one differ."""
    if isinstance(value, Mapping):
        return {str(_later(key, today)): _later(one, today) for key, one in value.items()}
    if isinstance(value, list):
        return [_later(one, today) for one in value]
    return f"{value} later" if isinstance(value, str) and any(one in value for one in today) else value


def _texts(value: Json) -> Iterator[str]:
    """Yield all texts in a value, those of keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        yield from itertools.chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_texts, value))


def _of_any_file(kind: str, files: Collection[str]) -> str:
    """Return the kind of a field of a file in a folder, for all files in it: calls may make others."""
    for file in files:
        if kind.startswith(f"{file}."):
            return f"{file.rpartition('/')[0]}/{ANY}{kind.removeprefix(file)}"
    return kind


def _hidden_files(state: Json) -> Mapping[str, Json]:
    """Return the hidden files of a folder's state."""
    held = cast("Mapping[str, Json]", state).get(HIDDEN) if isinstance(state, Mapping) else None
    return cast("Mapping[str, Json]", held) if isinstance(held, Mapping) else {}


def _by_folder(kind: str, hidden: Collection[str], steady_ones: Iterable[str]) -> str:
    """Return the folder of a hidden file that differs as a whole, unless a file in it changes equally.

    Files that do not exist yet, such as the log of a new branch, are covered by their folder. Of a file with
    fields, as of JSON, those that differ are ignored alone.
    """
    file = kind.removeprefix(f"{HIDDEN}.")
    folder, slash, _ = file.rpartition("/")
    if file in hidden and slash and not any(one.startswith(f"{folder}/") for one in steady_ones):
        return f"{HIDDEN}.{folder}/"
    return kind


def _each(explorer: Explorer, graph: Graph, rng: random.Random) -> Iterator[tuple[Call, ...]]:
    """Yield programs that end with a call of each tool; some begin with random writes.

    If there is little time, yield one for each tool: tasks are played twice as well.
    """
    for recipe in graph.recipes.values():
        found = 0
        for number in range(_MOST_PROGRAMS):
            before = explorer.setup() if number else ()
            call = explorer.attempt(recipe, before, rng)
            if call is not None:
                yield (*before, call)
                found += 1
            if found >= (1 if explorer.is_late() else _EACH_TWICE):
                break


def _read_after(
    explorer: Explorer, graph: Graph, programs: Iterable[tuple[Call, ...]], rng: random.Random
) -> Iterator[tuple[Call, ...]]:
    """Yield programs followed by a call of each tool that reads: it may show what differs in the state."""
    readers = [one for one in graph.recipes.values() if not one.writes]
    for program, reader in itertools.product(programs, readers):
        if explorer.is_late():
            return
        if (call := explorer.attempt(reader, program, rng)) is not None:
            yield (*program, call)


def _without_inner(kinds: Iterable[str]) -> Iterator[str]:
    """Yield the kinds without the contents of files whose names differ."""
    keys = [one for one in kinds if one in (f"{FILES}.{KEY}", f"{HIDDEN}.{KEY}")]
    yield from (
        kind for kind in kinds if not any(kind.startswith(f"{one.removesuffix(KEY)}{ANY}") for one in keys)
    )


def differing(one: Json, other: Json) -> list[str]:
    """Return the kinds of values that differ between two states; files are listed by name."""
    left, right = leaves(one, by_file=True), leaves(other, by_file=True)
    keys = [kind for kind in left | right if kind.endswith(KEY) and left.get(kind) != right.get(kind)]
    renamed = tuple(f"{kind.removesuffix(KEY)}{ANY}" for kind in keys)
    found: list[str] = []
    for kind in left | right:
        if left.get(kind) == right.get(kind) or (
            kind.startswith(renamed)
            and set(map(repr, left.get(kind, ()))) == set(map(repr, right.get(kind, ())))
        ):
            continue  # values of records whose keys differ have no order
        table = kind.removesuffix(f".{ANY}")
        named = _files(one, other, table) if table in (FILES, HIDDEN) and table != kind else []
        found += [f"{table}.{name}" for name in named] or [kind]
    return found


def _files(one: Json, other: Json, table: str) -> list[str]:
    """Return the files that differ in content; none if there are many or the sets of files differ."""
    left, right = (cast("Mapping[str, Mapping[str, Json]]", state).get(table, {}) for state in (one, other))
    named = [name for name in left if name in right and left[name] != right[name]]
    return named if len(named) <= _FEW_FILES and set(left) == set(right) else []


def without_nondeterminism(graph: Graph, found: Nondeterminism) -> Graph:
    """Return the graph without nondeterministic values, and without tools that read nothing else."""
    shifting: dict[str, set[str]] = {}
    for one in found.results:
        tool = max((name for name in graph.recipes if one.startswith(f"{name}.")), key=len)
        shifting.setdefault(tool, set()).add(one.removeprefix(f"{tool}."))
    lost = {
        tool
        for tool, kinds in shifting.items()
        if not graph.recipes[tool].writes
        and tool not in found.steady
        and set(graph.recipes[tool].shows) <= kinds
    }
    recipes = {
        name: replace(recipe, told=tuple(kind for kind in recipe.told if kind not in shifting.get(name, ())))
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


_LOOKING = READING | {"count", "get", "query"}
"""First words of the names of tools that are called to learn something."""
_NAMED = frozenset({FILES, HIDDEN, TABLES})
"""Mappings whose values each have a content of their own: files, and tables of databases."""
_LOOKS = 3
"""Number of calls of such a tool."""


def traces(explorer: Explorer, graph: Graph, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Return what tools change that look things up by their names, as kinds of values in the state.

    Of a list or a mapping whose entries differ, it is the whole: a log, a cache.

    Args:
        explorer: knows how the tools are called.
        graph: the recipes of the tools.
        rng: draws calls.
    """
    found: dict[str, tuple[str, ...]] = {}
    begin = explorer.world.play(()).state
    for name, recipe in graph.recipes.items():
        is_lookup = bool(_LOOKING & {*words_of(name)[:1]}) and not explorer.world.tools[name].writes
        if not (recipe.writes and is_lookup) or explorer.is_late():
            continue
        calls = [explorer.attempt(recipe, (), rng) for _ in range(_LOOKS)]
        ends = [explorer.world.play([call]).state for call in calls if call is not None]
        if kinds := dict.fromkeys(kind for end in ends for kind in _changing(begin, end, [*records(end)])):
            found[name] = tuple(kinds)
    return found


def _changing(one: Json, other: Json, tables: Collection[str], kind: str = "") -> Iterator[str]:
    if is_equal(one, other):
        return
    start = f"{kind}." if kind else ""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and (not kind or one.keys() == other.keys()):
        for key in {**one, **other}:
            is_record = f"{start}{ANY}" in tables and kind.rpartition(".")[2] not in _NAMED
            inner = f"{start}{ANY if is_record else key}"
            yield from _changing(one.get(key), other.get(key), tables, inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for before, after in zip(one, other, strict=True):
            yield from _changing(before, after, tables, f"{start}{ANY}")
    else:
        yield kind


_YEAR = re.compile(r"\d{4}(?=-\d\d-\d\d)")


def refusing_past(explorer: Explorer, graph: Graph, rng: random.Random) -> list[str]:
    """Return the tools of which calls with a made-up date succeed, and fail with the same date long ago."""
    found: dict[str, None] = {}
    for name, recipe in graph.recipes.items():
        tool = explorer.world.tools[name]
        made_up = [one for one in tool.properties if recipe.ways.get(one) == FRESH]
        days = [one for one in made_up if _YEAR.match(str(fresh(tool, one, rng)))]
        for _ in range(_LOOKS if days and not explorer.is_late() else 0):
            call = explorer.attempt(recipe, (), rng)
            past = {one: _YEAR.sub("2000", str(call.args[one])) for one in days if call and one in call.args}
            if call and past:
                ago = Call(tool=name, args={**call.args, **past})
                if is_refused(explorer.world.play([ago]).outcomes[0], ago.args):
                    found[name] = None
    return list(found)
