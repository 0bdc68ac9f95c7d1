"""Find a recipe for one tool by experiment: which sources of argument values make its calls succeed.

First the sources that the names of its parameters suggest are tried, and new values. If no call succeeds, or
what succeeds says nothing about the arguments, all other values that have a fitting type are tried.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from genenv.tools.discover.answers import shown_by
from genenv.tools.discover.descriptions import says_id
from genenv.tools.discover.recipes import FRESH, Patience, Recipe, succeeded
from genenv.tools.discover.slots import alone, arguments, filters, is_free, is_number, items
from genenv.tools.discover.state_values import leaves, names_files, names_records, refers
from genenv.tools.discover.trials import (
    IDLE,
    MORE_TRIES,
    MOST_TRIES,
    NO_TIME,
    SURE,
    TRIES,
    Trials,
    Tried,
    pairs_of,
    why_unused,
)
from genenv.tools.generate.fresh_values import told_values

_WRITES, _FILTERS = 0.75, 0.3
"""Least success with an optional argument over that without it; a filter may leave nothing to read."""
_MOST_COMBINATIONS = 24
_HALF = 2
"""Success rates are rounded to halves before they are compared: a few tries are no more precise."""
_STARTS, _PAIRED = 2, 12
"""Maximum number of combinations that pairs of likely sources replace, and of kinds of both parameters."""


@dataclass(eq=False)
class Probe(Trials):
    """Finds a recipe for one tool by calling it in a given state; the arguments are those of `Trials`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found: list[Tried] = []
        self._starts: list[dict[str, str]] = []
        self._unused: dict[str, str] = {}

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
            self._try({slot: self._ways(slot)[0] for slot in self._needed}, tries=MORE_TRIES)
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
            for _ in range(MORE_TRIES):
                if (args := self._drawn(best.ways, together=False)) is None:
                    break
                args |= {slot: self._rng.choice(more)} if more else {}
                good += succeeded(self._done(args, ways), writes=best.writes, args=args)
            tried = self._tried(ways, MORE_TRIES) if good >= MORE_TRIES * best.rate / _HALF else None
            if tried is not None and tried.rate and tried.writes == best.writes:
                best, self._found = tried, [tried]

    def _without_chance(self) -> None:
        """Try made-up values where calls succeeded with values that no name suggests, maybe by chance."""
        if (best := max(self._found, key=self._rank, default=None)) is None or not best.writes:
            return
        strange = [slot for slot, way in best.ways.items() if way not in self._ways(slot)]
        rate = min(best.rate, self._tried(best.ways, MOST_TRIES).rate) if strange else best.rate
        for slot in strange:
            if self.is_late():
                return
            tried = self._tried({**best.ways, slot: FRESH}, MOST_TRIES)
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
            self._found.append(self._tried(ways, MOST_TRIES))
        elif self._tried(ways, TRIES).writes:
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
                if self.is_late() or not self._tried(ways, TRIES).rate:
                    continue
                self._found = [self._tried(ways, MORE_TRIES)]
                if self._found[0].rate < SURE / _HALF or (made := self.recipe()) is None:
                    continue
                if made.writes and (sound := self._soundness(made, others)) > score and not self.is_late():
                    best, score = made, sound
        return best

    def makes(self, recipe: Recipe, slot: str, ways: Collection[str]) -> bool:
        """Whether a made-up value becomes the id of a new record, of one of some kinds, as `add` makes it."""
        for _ in range(TRIES):
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

    def _try(self, ways: Mapping[str, str], always: Collection[str] = (), tries: int = TRIES) -> bool:
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
            tried = self._tried(ways, MORE_TRIES, always)
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

    def _rank(self, tried: Tried) -> tuple[bool, int, bool, float, int]:
        """Return what combinations are compared by: evidence, how natural the sources are, wrong values.

        That wrong values of a source are avoided later counts only for a source that a name suggests.
        """
        named = all(way in self._ways(slot) for slot, way in tried.ways.items())
        less = any(self._fits_less(one, tried) for one in self._needed if one in self._tool.properties)
        rate = round(_HALF * (tried.rate if named else len(tried.good) / MORE_TRIES)) - less
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
                tried = self._tried(with_it, 2 * TRIES, (outer, slot))
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
