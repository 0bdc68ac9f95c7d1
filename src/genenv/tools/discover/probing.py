"""Find a recipe for one tool by experiment: which sources of argument values make its calls succeed.

First the sources that the names of its parameters suggest are tried, and new values. If no call succeeds, or
what succeeds says nothing about the arguments, all other values that have a fitting type are tried.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from genenv.tools.discover.answers import form_of, is_one_refusal, shown_by
from genenv.tools.discover.descriptions import says_id
from genenv.tools.discover.recipes import (
    FRESH,
    CallStats,
    Held,
    Patience,
    Recipe,
    draw_arguments,
    is_refused,
    source_of,
    succeeded,
)
from genenv.tools.discover.slots import (
    allowed_values,
    alone,
    are_days,
    arguments,
    filters,
    is_free,
    is_number,
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
    names_files,
    names_records,
    refers,
    untold,
    wanted,
)
from genenv.tools.discover.tries import NO_TIME, SURE, Tried, pairs_of, suits, why_unused
from genenv.tools.generate.fresh_values import is_closed, told_values
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.types import Json

_TRIES, _MORE_TRIES, _MOST_TRIES = 3, 9, 27
"""Tries of one combination of sources: at first, if any of these succeeded, and to compare two rates."""
_WRITES, _FILTERS = 0.75, 0.3
"""Least success with an optional argument over that without it; a filter may leave nothing to read."""
_MOST_COMBINATIONS = 24
_MOST_KINDS, _LOOKED_AT = 48, 3
"""Maximum number of kinds that are tried for a parameter, and of their values that must fit its schema."""
_OF_DAYS = re.compile(r"\b(?:date|isoformat|iso|yyyy)\b", re.IGNORECASE)
"""A word of an error, or of a documentation, that says that a text is a day."""
_HALF = 2
"""Success rates are rounded to halves before they are compared: a few tries are no more precise."""
_STARTS, _PAIRED = 2, 12
"""Maximum number of combinations that pairs of likely sources replace, and of kinds of both parameters."""
IDLE = "it is said to write, and nothing that can be seen changed"
"""Failure message of a tool that is declared to write, but whose calls change nothing visible."""
NOTHING = "it answers {}, and nothing that can be seen changed"
"""Failure message of a tool whose answers say nothing."""


class Probe:
    """Finds a recipe for one tool by calling it in a given state.

    Args:
        world: the world that has the tool.
        tool: the tool to explore.
        before: calls that set up the state in which the tool is tried.
        held: the values in that state.
        rng: draws arguments.
        call_stats: success statistics of argument values so far.
    """

    def __init__(
        self,
        world: World,
        tool: Tool,
        before: Sequence[Call],
        held: Held,
        rng: random.Random,
        call_stats: CallStats,
    ) -> None:
        self._world, self._tool, self._rng, self._luck = world, tool, rng, call_stats
        self._before, self._held, self._slots = before, held, slots(tool)
        self._needed = [slot for slot, needed in self._slots.items() if needed]
        self._fitting, self._named = functools.cache(self._find_fitting), functools.cache(self._find_named)
        self._found: list[Tried] = []
        self._starts: list[dict[str, str]] = []
        self._forms: set[str] = set()
        self._plays = 0
        self._calls: list[tuple[Mapping[str, Json], Outcome]] = []
        self._unused: dict[str, str] = {}
        self.is_late: Callable[[], bool] = lambda: False
        """Whether there is no time to try anything else."""
        self.comparable: Callable[[Json], Json] = lambda state: state
        """Returns a state without the values that checks ignore."""
        self.said = "it was given no value that there is"
        """The last error of a call, or another reason why the tool has no recipe."""

    @property
    def is_sure(self) -> bool:
        """Whether calls succeeded, and showed that they do what they are for."""
        return any(one.is_sure for one in self._found)

    def try_named(self) -> None:
        """Try the sources that the names of the parameters suggest, and new values."""
        choices = [[(slot, way) for way in self._ways(slot)] for slot in self._needed]
        for combination in itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS):
            if self._try(dict(combination)):
                self._starts.append(dict(combination))
        if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
            self._try({slot: self._suited(slot)[0] for slot in self._needed})
        first = {slot: self._ways(slot)[0] for slot in self._needed}
        for slot, needed in self._slots.items():  # a change of nothing may be refused
            for way in () if needed else self._suited(slot):
                if not self._found:
                    outer = slot if slot in self._tool.properties else slot.partition(".")[0]
                    self._try({outer: FRESH, **first, slot: way}, (outer, slot))

    def try_ways(self, ways: Mapping[str, str]) -> None:
        """Try sources that are known from elsewhere; a text that no name suggests may be all there was."""
        if all(slot in self._slots for slot in ways):
            self._try({slot: way for slot, way in ways.items() if self._slots[slot]})
            doubtful = {way for way in ways.values() if not names_records(way) or names_files(way)}
            if any(way in doubtful and way not in self._ways(slot) for slot, way in ways.items()):
                self.try_named()

    def try_all(self, patience: Patience) -> None:
        """Try all values of a fitting type, until calls surely succeed or half of the patience is spent."""
        start, plays = patience.clock(), self._plays
        for is_whole in self._search() if not self.is_sure else ():
            spent = self._plays - plays
            is_late = patience.clock() - start > patience.seconds / 2
            if is_late or spent > patience.calls // 2 or (self.is_sure and is_whole):
                break
        if not self._found and self._plays - plays <= patience.calls // 2:  # of numbers few may do
            self._try({slot: self._ways(slot)[0] for slot in self._needed}, tries=_MORE_TRIES)
        self._with_all()
        self._without_chance()
        patience.calls -= self._plays - plays
        patience.seconds -= patience.clock() - start

    @property
    def _best(self) -> Tried | None:
        writing = [one for one in self._found if one.writes]  # then a call that changed nothing failed
        return max(writing or self._found, key=self._rank, default=None)

    def _with_all(self) -> None:
        """Take sources that have all values of those that were found and others, if these succeed, too."""
        if (best := self._best) is None:
            return
        held, plain = self._held.values, [one for one in self._needed if one in self._tool.properties]
        for slot, way in [(one, way) for one in plain for way in self._named(one)]:
            known, own = best.ways[slot], {*map(str, held.get(best.ways[slot], ()))}
            more = arguments(self._tool, slot, [one for one in held[way] if str(one) not in own])
            is_new = more or way in [*self._named(slot), known][: [*self._named(slot), known].index(known)]
            if not own or not is_new or not own <= {*map(str, held[way])} or self.is_late():
                continue
            ways, good = {**best.ways, slot: way}, 0
            for _ in range(_MORE_TRIES):
                if (args := self._drawn(best.ways, together=False)) is None:
                    break
                args |= {slot: self._rng.choice(more)} if more else {}
                good += succeeded(self._done(args, ways), writes=best.writes, args=args)
            tried = self._tried(ways, _MORE_TRIES) if good >= _MORE_TRIES * best.rate / _HALF else None
            if tried is not None and tried.rate and tried.writes == best.writes:
                best, self._found = tried, [tried]

    def _without_chance(self) -> None:
        """Try made-up values where calls succeeded with values that no name suggests, maybe by chance."""
        if (best := max(self._found, key=self._rank, default=None)) is None or not best.writes:
            return
        strange = [slot for slot, way in best.ways.items() if way not in self._ways(slot)]
        rate = min(best.rate, self._tried(best.ways, _MOST_TRIES).rate) if strange else best.rate
        for slot in strange:
            if self.is_late():
                return
            tried = self._tried({**best.ways, slot: FRESH}, _MOST_TRIES)
            if tried.rate >= rate / _HALF and tried.writes:
                best, self._found = tried, [tried]

    def _search(self) -> Iterator[bool]:
        """Try other sources for one parameter after the other; yield whether all of a parameter were tried.

        An answer unlike all before it shows that a call went further: the source is then kept while other
        parameters are tried. Sources of two parameters at once are tried too: the likeliest first of all.
        """
        ways, further = {slot: self._ways(slot)[0] for slot in self._needed}, True
        starts = [ways, *(one for one in self._starts if one != ways)][:_STARTS]
        for likely in ({**one, **pair} for one in starts for pair in self._pairs(one, 2)):
            if not self._found:
                self._try(likely)
        while further:
            further = False
            for slot in self._needed:
                found = len(self._found)
                ways = dict(max(self._found, key=self._rank).ways) if found else ways
                for way in self._others(slot, ways[slot]):
                    if self._try({**ways, slot: way}) and not self._found:
                        ways, further = {**ways, slot: way}, True
                        break
                    yield False
                further = further or len(self._found) > found
                yield True
        for pair in self._pairs(ways, _PAIRED) if not self._found else ():
            self._try({**ways, **pair})
            yield True

    def _pairs(self, ways: Mapping[str, str], most: int) -> list[dict[str, str]]:
        """Return sources of two parameters at once: some answers do not say which of them is wrong."""
        return pairs_of({slot: self._others(slot, ways[slot])[:most] for slot in self._needed})

    def try_again(self, ways: Mapping[str, str], *, is_sure: bool = False) -> bool:
        """Try sources that are known to succeed, more often if they surely write; return whether they do."""
        if is_sure:  # the state may show more values than before
            self.try_named()
            self._found.append(self._tried(ways, _MOST_TRIES))
        elif self._tried(ways, _TRIES).writes:
            self._try(ways)
        return any(one.writes for one in self._found)

    def of_records(self, recipe: Recipe, others: Mapping[str, Collection[str]]) -> Recipe | None:
        """Return a recipe with ids of records in place of made-up ones, which succeed too; None: no better.

        `release(product_id, quantity)` may take any product, but only of one with a reservation does it
        matter how many are released.

        Args:
            recipe: the known recipe.
            others: sources that other tools need, by the name of the parameter.
        """
        best, score = None, self._soundness(recipe, others)
        if score >= (0, len(self._needed), 0) and not others:
            return None
        for slot in (slot for slot in self._needed if recipe.ways.get(slot) == FRESH):
            new: list[dict[str, str]] = []
            for way in self._records(slot, others.get(slot, ())):
                known = {one: source for one, source in recipe.ways.items() if one in self._needed}
                plain = {
                    one: one_of if one_of in self._named(one) else FRESH for one, one_of in known.items()
                }
                new += [one for one in ({**known, slot: way}, {**plain, slot: way}) if one not in new]
            for ways in new:
                if self.is_late() or not self._tried(ways, _TRIES).rate:
                    continue
                self._found = [self._tried(ways, _MORE_TRIES)]
                if self._found[0].rate < SURE / _HALF or (made := self.recipe()) is None:
                    continue
                if made.writes and (sound := self._soundness(made, others)) > score and not self.is_late():
                    best, score = made, sound
        return best

    def makes(self, recipe: Recipe, slot: str, ways: Collection[str]) -> bool:
        """Whether a made-up value becomes the id of a new record, of one of some kinds, as `add` makes it."""
        for _ in range(_TRIES):
            args = self._drawn(recipe.ways, together=False)
            if args is not None and isinstance(value := args.get(slot), str | int):
                after = leaves(self._play(args).state)
                if any(str(value) in map(str, after.get(way, ())) for way in ways):
                    return True
        return False

    def _soundness(self, recipe: Recipe, others: Mapping[str, Collection[str]]) -> tuple[int, int, int]:
        """Return a score to compare recipes that succeed: most arguments that change the state come first.

        Then come sources that fit by name, and sources that other tools need.
        """
        ways = [(slot, way) for slot, way in recipe.ways.items() if slot in self._needed]
        natural = sum(way == FRESH or way in self._named(slot) or names_records(way) for slot, way in ways)
        return -len(recipe.unseen), natural, sum(way in others.get(slot, ()) for slot, way in ways)

    def _records(self, slot: str, others: Collection[str]) -> list[str]:
        """Return the sources of a slot's values that name records: what others need, or calls were given."""
        fitting = self._fitting(slot)
        given = {repr(one) for kind, held in fitting.items() if kind.endswith(f"({slot})") for one in held}
        found = [way for way in fitting if way in others and names_records(way)]
        if refers(slot) or says_id(*alone(self._tool, slot)):
            known = [way for way, held in fitting.items() if not given.isdisjoint(map(repr, held))]
            found += [way for way in [*self._named(slot), *known] if names_records(way)]
        return list(dict.fromkeys(found))

    def _try(self, ways: Mapping[str, str], always: Collection[str] = (), tries: int = _TRIES) -> bool:
        """Try a combination of sources; return whether an answer is unlike all before it.

        Args:
            ways: the sources.
            always: optional arguments that are given each time.
            tries: how often it is tried at first.
        """
        before = len(self._forms)
        if self._plays and self.is_late():
            return False
        if self._tried(ways, tries, always).rate > 0:
            tried = self._tried(ways, _MORE_TRIES, always)
            if self._tool.writes and not tried.writes:
                self.said = IDLE
            elif tried.rate > 0:
                self._found.append(tried)
        return len(self._forms) > before

    def recipe(self) -> Recipe | None:
        """Return the tool's recipe, or None if no call succeeded."""
        if (tried := self._best) is None:
            return None
        if tried.constant and not any(
            way in self._named(slot) or (way == FRESH and told_values(*alone(self._tool, slot)))
            for slot, way in tried.ways.items()
        ):
            self.said = f"whatever it is given, it answers {tried.good[0][1].text[:60]}"
            return None
        if free := [slot for slot, way in tried.ways.items() if way == FRESH and is_free(self._tool, slot)]:
            self.said = f"no schema says what {' and '.join(free)} holds"
            return None
        optional, changed = self._optional(tried)
        shows, told = shown_by(tried.good)
        ways, writes = {**tried.ways, **optional}, tried.writes or changed
        plain = self._tool.properties.keys() - {*self._tool.required, *ways}
        return Recipe(
            tool=self._tool.name,
            writes=writes,
            ways=ways,
            success=tried.rate,
            shows=shows,
            told=told,
            unseen=tuple(one for one in tried.ways if tried.writes and not self._is_seen(one, tried)),
            together=tried.together,
            unused={one: why for one, why in self._unused.items() if one in plain},
            related=tuple(
                pair for pair in self._relations(ways) if self._is_bound(pair, ways, writes=writes)
            ),
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
        for number in range(_MORE_TRIES + _TRIES):
            if self.is_late():
                return False
            related = (pair,) if number < _MORE_TRIES else ()
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

    def _rank(self, tried: Tried) -> tuple[bool, int, bool, float, int]:
        """Return what combinations are compared by: evidence, how natural the sources are, wrong values.

        That wrong values of a source are avoided later counts only for a source that a name suggests.
        """
        named = all(way in self._ways(slot) for slot, way in tried.ways.items())
        less = any(self._fits_less(one, tried) for one in self._needed if one in self._tool.properties)
        rate = round(_HALF * (tried.rate if named else len(tried.good) / _MORE_TRIES)) - less
        suits = sum(self._suits(slot, way, writes=tried.writes) for slot, way in tried.ways.items())
        evidence = rate * (1 + (tried.tells and not tried.writes))
        varied = not tried.constant and len({outcome.text for _, outcome in tried.good}) > 1
        return varied or tried.writes, evidence, not less, suits, len(tried.good)

    def _fits_less(self, slot: str, tried: Tried) -> bool:
        """Whether calls succeed with ids that a foreign key lacks, or with no others of a table."""
        alike = [one for one in self._found if one.writes == tried.writes]
        good = {str(one) for of in alike for args, _ in of.good for one in items(args.get(slot))}
        ways = {one.ways.get(slot) for one in alike}
        held = {one: {*map(str, self._held.values[one])} for one in self._named(slot) if one in ways}
        own = held.get(tried.ways.get(slot, FRESH), set())
        return any(own and (good <= one < own or (own < one and not good <= own)) for one in held.values())

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
        for _ in range(tries // _TRIES if related else 0):
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

    def _done(self, args: dict[str, Json], ways: Mapping[str, str]) -> Outcome:
        """Call the tool, and note how it went."""
        outcome = self._play(args).outcomes[-1]
        self._calls.append((args, outcome))
        if (form := form_of(outcome, args)).partition(":")[0] not in self._tool.properties:  # of a wrong type
            self._forms.add(form)
        good = succeeded(outcome, writes=outcome.changed or self._tool.writes is True, args=args)
        self._luck.note(Call(tool=self._tool.name, args=args), ways, good=good)
        if not good and self.said != IDLE:
            self.said = outcome.error or NOTHING.format(outcome.text[:60])
        return outcome

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

    def _suits(self, slot: str, way: str, *, writes: bool) -> float:
        held = self._held.values.get(way, ())
        return suits(self._tool, slot, way, self._named(slot), held, writes=writes)

    def _optional(self, without: Tried) -> tuple[dict[str, str], bool]:
        """Return the sources of optional arguments that make a difference and do not make calls fail.

        Also return whether the tool writes if one of them is given: an update without values changes nothing.
        """
        found, writes = dict[str, str](), False
        suits = functools.partial(self._suits, writes=without.writes or self._tool.writes is True)
        for slot, needed in self._slots.items():
            outer = slot if slot in self._tool.properties else slot.partition(".")[0]
            is_over, is_idle = needed or self.is_late(), False
            ways = [] if is_over else sorted(self._ways(slot), key=lambda way: -suits(slot, way))
            if ways and not without.writes:  # new ones find nothing
                others = {one: self._held.values.get(one, [None])[0] for one in self._others(slot, FRESH)}
                ways += [one for one in filters(self._tool, slot, others) if one not in ways]
            self._calls.clear()
            for way in ways:
                with_it = {outer: FRESH, **without.ways, slot: way}
                tried = self._tried(with_it, 2 * _TRIES, (outer, slot))
                # a note's own title changes nothing, and some numbers may be too large
                changes = not is_idle or way == FRESH or not tried.writes
                least = _FILTERS * (without.writes or not tried.writes)
                if without.writes and not (way == FRESH and is_number(self._tool, slot)):
                    least = _WRITES
                if not changes or tried.rate < without.rate * least:
                    continue
                given = replace(without, ways=with_it, writes=without.writes or tried.writes)
                if self._matters(slot, given, (outer, slot)):
                    found |= {one: with_it[one] for one in (outer, slot) if one not in without.ways}
                    writes = writes or tried.writes
                    break
                is_idle = True
            self._unused[slot] = why_unused(slot, self._calls) if ways else NO_TIME
        return found, writes

    def _matters(self, slot: str, tried: Tried, always: Collection[str] = ()) -> bool:
        """Whether another value of an argument changes the end state, or the result of a tool that reads.

        Return True if no other value can be compared.
        """
        compared = False
        for number in range(_MORE_TRIES):
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

    def _play(self, args: Mapping[str, Json]) -> Played:
        self._plays += 1
        return self._world.play([*self._before, Call(tool=self._tool.name, args=args)], watch=True)
