"""What calls of one tool in one state show, if their argument values come from given sources."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from genenv.tools.discover.answers import form_of, is_one_refusal
from genenv.tools.discover.descriptions import says_id
from genenv.tools.discover.recipes import (
    FRESH,
    CallStats,
    Held,
    Recipe,
    draw_arguments,
    is_refused,
    source_of,
    succeeded,
)
from genenv.tools.discover.slots import (
    allowed_values,
    alone,
    are_categories,
    are_days,
    items,
    meant,
    other_than,
    slots,
    taken,
    takes_day,
)
from genenv.tools.discover.state_values import (
    INDEX,
    Records,
    leaves,
    names_records,
    refers,
    untold,
    wanted,
    words_of,
)
from genenv.tools.generate.fresh_values import is_closed
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.types import Json

TRIES, MORE_TRIES, MOST_TRIES = 3, 9, 27
"""Tries of one combination of sources: at first, if any of these succeeded, and to compare two rates."""
_MOST_KINDS, _LOOKED_AT = 48, 3
"""Maximum number of kinds that are tried for a parameter, and of their values that must fit its schema."""
_OF_DAYS = re.compile(r"\b(?:date|isoformat|iso|yyyy)\b", re.IGNORECASE)
"""A word of an error, or of a documentation, that says that a text is a day."""
IDLE = "it is said to write, and nothing that can be seen changed"
"""Failure message of a tool that is declared to write, but whose calls change nothing visible."""
_NOTHING = "it answers {}, and nothing that can be seen changed"
"""Failure message of a tool whose answers say nothing."""
SURE = 0.5
"""Success rate from which on no other sources are tried."""
_MOST_NAMED, _LONGEST = 6, 120
"""Maximum number of values that a reason names, and its maximum length of an error in characters."""
NO_TIME = "there was no time to try it"
"""The reason why what was not tried is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The outcome of some tries of one combination of argument sources."""

    ways: Mapping[str, str]
    rate: float
    """Share of tries that succeeded, without failed tries that used a value known to fail."""
    writes: bool
    good: tuple[tuple[Mapping[str, Json], Outcome], ...]
    """The arguments and outcomes of the calls that succeeded."""
    tells: bool = True
    """Whether answers to other arguments differ, other than by repeating these."""
    constant: bool = False
    """Whether all answers are the same, or one refusal in prose that repeats the arguments."""
    together: bool
    """Whether calls succeed more often if their arguments come from one record."""

    @property
    def is_sure(self) -> bool:
        """Whether the calls are known to do what they are for, so that no other sources need to be tried."""
        return self.rate >= SURE and (self.writes or self.tells)


@dataclass(eq=False)
class Trials:
    """Calls one tool in a given state, with argument values of given sources.

    Args:
        world: the world that has the tool.
        tool: the tool to call.
        before: calls that set up the state in which the tool is called.
        held: the values in that state.
        rng: draws arguments.
        call_stats: success statistics of argument values so far.
    """

    _world: World
    _tool: Tool
    _before: Sequence[Call]
    _held: Held
    _rng: random.Random
    _luck: CallStats

    def __post_init__(self) -> None:
        self._slots = slots(self._tool)
        self._needed = [slot for slot, needed in self._slots.items() if needed]
        self._fitting, self._named = functools.cache(self._find_fitting), functools.cache(self._find_named)
        self._forms: set[str] = set()
        self._plays = 0
        self._calls: list[tuple[Mapping[str, Json], Outcome]] = []
        self.is_late: Callable[[], bool] = lambda: False
        """Whether there is no time to try anything else."""
        self.comparable: Callable[[Json], Json] = lambda state: state
        """Returns a state without the values that checks ignore."""
        self.said = "it was given no value that there is"
        """The last error of a call, or another reason why the tool has no recipe."""

    def _find_fitting(self, slot: str) -> dict[str, Sequence[Json]]:
        """Return the kinds of values that a slot can take; none if its schema lists its values."""
        of, name = alone(self._tool, slot)
        found: dict[str, Sequence[Json]] = {}
        made = {call.tool for call in self._before}
        is_of_days = takes_day(self._tool, slot)
        for kind, held in self._held.values.items() if not is_closed(of, name) else ():
            if source_of(kind) in made and not refers(slot):
                continue  # what an earlier call has made is named by an id
            if kind.startswith(f"{self._tool.name}("):
                continue  # what the tool itself was given is no source of the first call's values
            some = held[:_LOOKED_AT]
            values = some if kind.endswith(INDEX) else taken(of, name, some)  # an index is no text
            if is_of_days and not are_days(values):
                continue
            if any(of.fits(name, one) for one in values):
                found[kind] = held
        return found

    def _find_named(self, slot: str) -> list[str]:
        """Return the sources that the name of a slot suggests."""
        tool, name = self._tool.name, meant(slot)
        held = [kind for kind in self._fitting(slot) if source_of(kind) is None]
        told = [kind for kind in self._fitting(slot) if source_of(kind) not in (None, tool)]
        return [*wanted(name, tool, held), *wanted(name, tool, told)]

    def _ways(self, slot: str) -> list[str]:
        """Return the sources that are tried first: those that the name suggests, and `FRESH`."""
        return [*self._named(slot), FRESH]

    def _suited(self, slot: str) -> list[str]:
        """Return the sources that are tried first, those first that suit a tool that writes."""
        return sorted(self._ways(slot), key=lambda way: -self._suits(slot, way, writes=True))

    def _others(self, slot: str, way: str) -> list[str]:
        """Return all sources of a slot but one."""
        fitting = self._fitting(slot).items()
        kinds = untold({kind: one for kind, one in fitting if source_of(kind) != self._tool.name})
        if _OF_DAYS.search(f"{self.said} {self._tool.description}"):
            kinds.sort(key=lambda kind: not are_days(self._held.values[kind][:_LOOKED_AT]))
        return [one for one in dict.fromkeys([*self._ways(slot), *kinds[:_MOST_KINDS]]) if one != way]

    def _suits(self, slot: str, way: str, *, writes: bool) -> float:
        held = self._held.values.get(way, ())
        return suits(self._tool, slot, way, self._named(slot), held, writes=writes)

    def _drawn(
        self,
        ways: Mapping[str, str],
        *,
        together: bool,
        always: Collection[str] = (),
        related: Collection[tuple[str, str]] = (),
    ) -> dict[str, Json] | None:
        recipe = Recipe(
            tool=self._tool.name,
            writes=False,
            ways=ways,
            success=0,
            fails=cast("dict[str, tuple[JsonValue, ...]]", self._luck.fails(self._tool.name, ways)),
            together=together,
            related=tuple(related),
        )
        return draw_arguments(self._tool, recipe, self._held, self._rng, always)

    def _play(self, args: Mapping[str, Json]) -> Played:
        self._plays += 1
        return self._world.play([*self._before, Call(tool=self._tool.name, args=args)], watch=True)

    def _done(self, args: dict[str, Json], ways: Mapping[str, str]) -> Outcome:
        """Call the tool, and note how it went."""
        outcome = self._play(args).outcomes[-1]
        self._calls.append((args, outcome))
        if (form := form_of(outcome, args)).partition(":")[0] not in self._tool.properties:  # of a wrong type
            self._forms.add(form)
        good = succeeded(outcome, writes=outcome.changed or self._tool.writes is True, args=args)
        self._luck.note(Call(tool=self._tool.name, args=args), ways, good=good)
        if not good and self.said != IDLE:
            self.said = outcome.error or _NOTHING.format(outcome.text[:60])
        return outcome

    def _tried(self, ways: Mapping[str, str], tries: int, always: Collection[str] = ()) -> Tried:
        outcomes = list[tuple[dict[str, Json], Outcome]]()
        for number in range(tries):
            args = self._drawn(ways, together=number % 2 == 0, always=always)
            if args is None:
                break
            if number and self.is_late():
                tries = number
                break
            outcomes.append((args, self._done(args, ways)))
        plain, related = len(outcomes), self._relations(ways)
        for _ in range(tries // TRIES if related else 0):
            if (args := self._drawn(ways, together=False, always=always, related=related)) is not None:
                outcomes.append((args, self._done(args, ways)))
        writes = any(outcome.changed and not is_refused(outcome, args) for args, outcome in outcomes)
        good = [(args, outcome) for args, outcome in outcomes if succeeded(outcome, writes=writes, args=args)]
        succeeds = [one in good for one in outcomes]
        together, bound = succeeds[:plain], succeeds[plain:]
        fails = self._luck.fails(self._tool.name, ways)
        avoided = sum(
            any(one in values for name, values in fails.items() for one in items(args.get(name)))
            for args, outcome in outcomes[:plain]
            if (args, outcome) not in good
        )
        differ = len({repr(args) for args, _ in good}) > 1
        forms = {form_of(outcome, args) for args, outcome in good}
        refused = is_one_refusal([outcome for _, outcome in good], forms)
        return Tried(
            ways=ways,
            rate=max(sum(together) / max(1, tries - avoided), sum(bound) / max(1, len(bound))),
            writes=writes,
            good=tuple(good),
            tells=not self._needed or len(forms) > 1,
            constant=differ and not writes and (refused or len({outcome.text for _, outcome in good}) == 1),
            together=sum(together[::2]) * len(together[1::2]) > sum(together[1::2]) * len(together[::2]),
        )

    def _relations(self, ways: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the pairs of arguments whose values are ids of related records."""
        named = [(slot, way) for slot, way in ways.items() if way != FRESH and slot in self._tool.properties]
        related, values = self._held.records.related, self._held.values
        pairs = itertools.combinations(named, 2)
        return [(one[0], other[0]) for one, other in pairs if related(one, other, values)]

    def _is_bound(self, pair: tuple[str, str], ways: Mapping[str, str], *, writes: bool) -> bool:
        """Whether calls succeed with ids of related records, and relate no others, as `assign` does."""
        one, other = ((slot, ways[slot]) for slot in pair)
        is_bound, known = False, self._held.records.related(one, other, self._held.values)
        for number in range(MORE_TRIES + TRIES):
            if self.is_late():
                return False
            related = (pair,) if number < MORE_TRIES else ()
            if related and is_bound:
                continue
            args = self._drawn(ways, together=False, always=pair, related=related)
            ids = {} if args is None else {slot: items(args.get(slot)) for slot in pair}
            drawn = {(str(a), str(b)) for a, b in itertools.product(*ids.values())}
            if args is None or (not related and not drawn.isdisjoint((str(a), str(b)) for a, b in known)):
                continue
            played = self._play(args)
            if not succeeded(played.outcomes[-1], writes=writes, args=args):
                continue
            is_bound = is_bound or bool(related)
            after = Records(played.state).related(one, other, {**self._held.values, **leaves(played.state)})
            if not related and not drawn.isdisjoint((str(a), str(b)) for a, b in after):
                return False
        return is_bound

    def _matters(self, slot: str, tried: Tried, always: Collection[str] = ()) -> bool:
        """Whether another value of an argument changes the end state, or the result of a tool that reads.

        Return True if no other value can be compared.
        """
        compared = False
        for number in range(MORE_TRIES):
            if self.is_late():
                break
            args, again = (self._drawn(tried.ways, together=tried.together, always=always) for _ in range(2))
            other = other_than(self._tool, slot, args, again) if args and again else args
            if args is None or other is None or other == args:
                continue
            if number % 2 and all(type(one.get(slot)) is int for one in (args, other)):
                small = [{**args, slot: count} for count in (1, 2)]  # of 3 that there are, 40 is as 50
                args, other = small if not any(map(self._tool.problem, small)) else (args, other)
            both = self._play(args), self._play(other)
            if is_refused(both[0].outcomes[-1], args) or is_refused(both[1].outcomes[-1], other):
                continue
            compared = True
            seen = [self.comparable(it.state) if tried.writes else it.outcomes[-1].result for it in both]
            if seen[0] != seen[1]:
                return True
        return not compared

    def _is_seen(self, slot: str, tried: Tried) -> bool:
        """Whether the end state shows an argument: each of its allowed values, if these are listed."""
        allowed = allowed_values(self._tool, slot)
        drawn = self._drawn(tried.ways, together=tried.together) if len(allowed) > 2 else None
        ends: list[Json] = []
        for one in allowed if drawn else ():
            args: dict[str, Json] = {**(drawn or {}), slot: one}
            played = self._play(args)
            if not is_refused(played.outcomes[-1], args):
                ends.append(self.comparable(played.state))
        are_seen = all(one != other for one, other in itertools.combinations(ends, 2))
        return are_seen and self._matters(slot, tried)

    def untraced(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the arguments whose values leave no trace in a comparable state, but are not known to."""
        ways = {slot: way for slot, way in recipe.ways.items() if slot in self._needed}
        tried = Tried(ways=ways, rate=recipe.success, writes=True, good=(), together=recipe.together)
        return tuple(one for one in ways if one not in recipe.unseen and not self._matters(one, tried))


def pairs_of(options: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all choices of sources for two parameters, those first that are first for both.

    Args:
        options: the sources of each parameter.
    """
    pairs = [
        (number + place, {one: way, other: another})
        for one, other in itertools.combinations(options, 2)
        for number, way in enumerate(options[one])
        for place, another in enumerate(options[other])
    ]
    return [pair for _, pair in sorted(pairs, key=lambda pair: pair[0])]


def why_unused(parameter: str, calls: Iterable[tuple[Mapping[str, Json], Outcome]]) -> str:
    """Return why an optional parameter is not used: the values that it was given, and the last refusal.

    Args:
        parameter: the parameter.
        calls: the arguments and outcomes of the calls that tried it.
    """
    given = [(args, outcome) for args, outcome in calls if parameter in args]
    if not given:
        return "no value was found for it"
    texts = dict.fromkeys(json.dumps(args[parameter], ensure_ascii=False) for args, _ in given)
    named = ", ".join(one[:_LONGEST] for one in [*texts][:_MOST_NAMED])
    refused: Sequence[Outcome] = [outcome for args, outcome in given if is_refused(outcome, args)]
    if not refused:
        return f"tried {named}; it made no difference, or nothing was found"
    last = " ".join((refused[-1].error or refused[-1].text).split())
    return f"tried {named}; last refusal: {last[:_LONGEST]}"


def suits(
    tool: Tool, slot: str, way: str, named: Sequence[str], held: Sequence[Json], *, writes: bool
) -> float:
    """Return a score that ranks sources of equal success rate.

    Tools that read prefer existing values. Tools that write prefer existing ids and categories, and fresh
    other values.

    Args:
        tool: the tool.
        slot: the argument.
        way: the source.
        named: the sources that the argument's name suggests, likeliest first.
        held: the values of the source.
        writes: whether the tool writes.
    """
    if way == FRESH:
        return 0.5 if writes else 0.0
    if way not in named:
        return -0.1 if names_records(way) else -0.2 + 0.05 * way.endswith(INDEX)
    rank = 1 - 0.1 * named.index(way)
    if not writes or "id" in words_of(slot) or says_id(*alone(tool, slot)):
        return rank
    is_same = words_of(way.rsplit(".", 1)[-1]) == words_of(slot.rpartition(".")[2])
    return rank if are_categories(held) and is_same else 0.0
