"""English vocabulary: words for new values, verbs of tool names, dates and times in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from typing import Any, Self, cast

from pydantic import BaseModel, JsonValue, model_validator

from genenv.types import Json


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _listed("""
Ada Ben Cleo Dario Edith Farid Greta Hugo Iris Jonas Kira Leo Mina Noor Omar Petra Quinn Rosa Sami Tara
""")
LAST_NAMES = _listed("""
Abbott Bauer Castro Dunn Egan Falk Greene Hoang Ito Jansen Keller Lund Moreno Nash Okafor Pratt Rossi Sato
Trent Weber
""")
CITIES = _listed("""
Athens Bergen Cairo Denver Edinburgh Florence Geneva Hanoi Izmir Jakarta Kyoto Lisbon Madrid Nairobi Oslo
Porto
""")
THINGS = _listed("""
kettle lamp desk chair blender backpack charger notebook umbrella monitor bicycle jacket camera printer
toaster headset
""")
QUALITIES = _listed("""
blue small wooden second spare annual early broken northern new old heavy silver quiet weekly open
""")
NOTES = tuple(
    line.strip()
    for line in """
arrived damaged; wrong size; no longer needed; asked for by phone; please call back; checked twice
late by a week; handle with care; agreed with the team; see the attached list; to be confirmed
second reminder; customer was not at home; leave at the door; part is missing; paid in advance
""".replace("\n", ";").split(";")
    if line.strip()
)
"""Short remarks, for text arguments."""
TEXT_WORDS = frozenset(
    _listed("""
note message text body reason comment description content detail resolution summary answer reply memo
observation instruction feedback
""")
)
"""Words of parameters that take a remark."""
PEOPLE = frozenset(
    _listed("""
approver artist assignee attendee author buyer client collaborator colleague contact creator customer doctor
driver employee follower friend guest holder instructor lead manager member nurse organizer owner
participant passenger patient person pupil receiver recipient requester reviewer seller sender speaker student
subscriber teacher tenant traveler user visitor watcher
""")
)
"""Nouns of what has a person's name."""
NUMBERED = frozenset(
    _listed("""
account booking case claim confirmation flight invoice order part policy product reservation serial ticket
tracking
""")
)
"""Nouns whose `number` is an id."""
STATUSES = _listed("pending active paused completed archived")
IDENTIFIER_WORDS = frozenset(_listed("alias branch bucket channel container label slug tag topic"))
"""Words of parameters that take a name without spaces."""
VERBS = frozenset(
    _listed("""
add adjust answer append apply archive assign book buy calculate cancel change check clear close compute
confirm convert copy count create decrease delete deliver describe diff disable display edit enable end
fetch file fill find finish format get give increase insert issue list load log look make mark merge modify
move notify open order pay pick place play post print produce provide pull put query read record refund
register release remove rename reopen replace reply report request reserve reset resolve restart restore
retrieve return run save schedule search send set ship show start stop store submit subtract summarize swap
switch tag take tell transfer turn undo unlock update upload validate view withdraw write
""")
)
"""Verbs for what tools do. Paths of OpenAPI documents that end in one are actions: with more verbs, bundles
would change. Others are in `ORDERS`."""

ORDERS = VERBS | frozenset(
    _listed("""
allow approve attach ban block clone combine compare complete compress connect decode decrypt detach
disconnect download draw duplicate encode encrypt estimate evaluate execute export extract filter generate
handle hash hide import infer invite join leave manage match park parse pause perform pin preview process
publish rank rate reject render reorder replay resume retry revoke rotate scan select share sign skip
solve sort split subscribe suggest sum sync test toggle track translate trigger trim unpublish unsubscribe
upgrade verify visit vote wait warn zip work roll opt
""")
)
"""Verbs with which a sentence about a tool may begin."""
ALSO_NOUNS = frozenset(
    _listed("""
book change close end issue open order post record request schedule ship start stop store transfer update
""")
)
"""Those of them that are nouns where a tool only reads: `Order details.`."""
PLURALS = ALSO_NOUNS | frozenset(
    _listed("""
answer block check copy count display download draw export file filter hash import invite join log mark match
note park place plan play price print query rank rate refund register reply report return search seat share
sign split stay tag test train transform trigger upload view visit vote work zip
""")
)
"""Verbs that in the third person are spelled as the plural of a noun: `prices`, `files`."""
CLAUSE_VERBS = frozenset(
    _listed("""
assert assume check confirm decide determine ensure explain guarantee identify indicate note notify prove
record report say show state tell verify suggest test warn
""")
)
"""Verbs before a whole clause, as in `notes that a payment arrived`."""
PHRASES_OF_VERBS = frozenset(
    line.strip()
    for line in """
answer for; answer to; check for; check in; file for; log in; look for; park in; pay for; plan for; play on
query for; register for; register with; reply to; report to; search for; search in; sign in; stay in; test for
vote for; wait for; work on; work with
""".replace("\n", ";").split(";")
)
"""Verbs with the preposition that often follows them; the plural of a noun is seldom meant."""
PREPOSITIONS = frozenset(
    _listed("""
above across after against among around as at before behind below between beyond by during for from in inside
into like near of on onto outside over per since through to toward towards under until up via with within
without
""")
)
"""Words behind the plural that is the subject of a documentation: `Orders of a customer.`"""
AUXILIARIES = frozenset(
    _listed("""
are can cannot could did do does had has have is may might must shall should was were will would
""")
)
"""Verbs that follow the subject of a clause, and no other verb."""
RELATIVES = frozenset(_listed("that which who whom whose where"))
"""Words with which a clause about a noun begins."""
CLAUSE_WORDS = RELATIVES | frozenset(_listed("because how if unless until what when whether while why"))
"""Words with which a clause begins that has a verb of its own."""
ADVERBS_BEHIND = frozenset(_listed("already also almost currently just never not now only soon still yet"))
"""Adverbs that stand behind a noun, before what is said of it: `seats still free`."""
QUALITIES_BEHIND = frozenset(_listed("close due free left nearby open ready"))
"""Adjectives that stand behind a noun, too: `seats free in a row`; others end in -able or -ible."""
PARTICIPLES = frozenset(
    _listed("""
begun bought broken built chosen done drawn driven found given held hidden kept known left lent lost made met
paid seen sent shown sold spent split stolen taken thrown torn worn written
""")
)
"""Participles that do not end in -ed."""
PRONOUNS = frozenset(
    _listed("""
anybody anyone anything everybody everyone everything he her him his it me my our she somebody someone
something them they us we you your
""")
)
"""Words that are an object, or begin one."""
SPANS = frozenset(
    _listed("day evening hour minute month morning night quarter season time week weekend year")
)
"""Nouns behind `this` or `each` that say when: `orders this week`."""
PARTICLES_OF_VERBS = frozenset(_listed("out up off"))
"""Words that follow a verb, as in `work out`."""
SURE_VERBS = ORDERS - frozenset(
    _listed("""
block draw export hash import match park pause pin process rank rate roll scan share sign split sum test vote
work zip
""")
)
"""Those of them that seldom begin the name of a thing, as in `share_price`."""
AFTER_VERBS = frozenset(_listed("how whether what which all each every back one two up with to if"))
"""Words after which a word that ends in s, such as `demonstrates how`, is taken for a verb."""
AFTER_NOUNS = frozenset(_listed("with to if"))
"""Those of them that follow nouns too: `items with fewer pieces`."""
UNITS = {
    **{unit: unit for unit in _listed("cm dm ft g h kg km lb lbs m mg ml mm ms nm oz s")},
    **{"eur": "EUR", "usd": "USD", "gbp": "GBP", "chf": "CHF", "jpy": "JPY", "kwh": "kWh", "kw": "kW"},
    **{"kb": "kB", "mb": "MB", "gb": "GB", "kmh": "km/h", "mph": "mph", "pct": "percent", "mins": "minutes"},
    **{unit: unit for unit in _listed("cents centimeters dollars euros grams kilograms kilometers liters")},
    **{unit: unit for unit in _listed("meters milliseconds percent")},
    **{"secs": "seconds", "hrs": "hours"},
}
"""Units in the last word of a field, and how these are said."""
TIME_UNITS = {
    **{unit: unit for unit in _listed("minutes seconds hours days weeks months years")},
    **{"min": "minutes", "sec": "seconds", "hr": "hours"},
}
"""Words that are units behind one of `DURATIONS`, and otherwise may not be: `price_min`, `opening_hours`."""
DURATIONS = frozenset(
    _listed("""
age delay duration eta flight interval lead length notice prep preparation process remaining response ride
runtime stay time timeout total transfer transit travel trip wait walk walking warranty
""")
)
"""Words for how long something takes."""
INEXACT = frozenset(
    _listed("""
about and any billion double dozen except fewer half hundred less maybe million minus more never none not over
perhaps plus than thousand trillion under without
""")
)
"""Words that make another number of one, or leave it open: `5 million`."""
MEASURES = frozenset(
    _listed("""
altitude beam clearance depth diameter distance draft draught elevation height length mass perimeter radius
range temp temperature thickness volume weight width
""")
)
"""Words for what is measured, behind which one letter is a unit: `length_m`."""
CONDITIONS = frozenset(
    _listed("""
if when whenever unless use call this note only before after given deprecated warning internal async alias
wrapper args arguments parameters
""")
)
"""Words that begin a sentence about a tool's use or a list of its parameters, which is no order."""
ARTICLES = frozenset(
    _listed("""
a all an another any both each every its no one several some that the their these this those two
""")
)
"""Words before a noun; at the start of a sentence, a word before one of them is usually a verb."""
NO_VERBS = ARTICLES | frozenset(
    _listed("""
about and are as at by for from given how if in is it not of on or per to what when where whether which who
whom whose why with without
""")
)
"""Words that are not verbs; a sentence that begins with one of them is not an order."""


def _sides(text: str) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    lines = (line.split("|") for line in text.strip().splitlines())
    return tuple((frozenset(one.split()), frozenset(other.split())) for one, other in lines)


OPPOSITES = _sides("""
add append book create insert issue place post register reserve save store submit write | cancel \
clear delete destroy discard drop erase remove withdraw
open reopen | close shut resolve
send forward publish | read receive
start begin launch resume run | stop end halt pause
enable activate | disable deactivate
lock | unlock
increase raise add | decrease lower reduce subtract
deposit | withdraw
load | unload
mount | unmount
show display | hide
import | export
upload | download
push | pull
accept approve confirm allow | reject decline deny refuse cancel
archive | restore
block | unblock
buy purchase | sell
lend | borrow
borrow rent | return
charge bill | refund
connect attach join | disconnect detach leave
assign | release
refund | charge
cancel | restore reopen confirm
delete remove | restore recover keep
encode encrypt compress | decode decrypt decompress
""")
"""Verbs, and verbs that undo them; each side is the opposite of the other."""
CHANGING = frozenset(
    _listed("""
add append archive assign book buy cancel change create delete edit erase insert modify overwrite pay refund
remove rename replace reserve send set submit update upload withdraw write
""")
)
"""Verbs that do not ask for a tool that only reads."""
READING = frozenset(_listed("describe display fetch find list look read search see show tell view"))
"""Verbs that do not ask for a change."""
PARTICLES = (("on", "off"), ("in", "out"), ("up", "down"))
"""Opposite particles, as in turn on and turn off, check in and check out."""
DENIALS = frozenset(
    _listed("avoid cannot except instead never no nor not nothing revert undo unless without")
)
"""Words that negate a request, in addition to words that end in n't."""
NO_REQUEST = frozenset(
    _listed("""
a an the this that these those there here it its he she they them his her their i me my mine we us our you
your what which who whose whom when where why how is are am was were be been do does did has have had can
could would will shall should may might must if and or but because since so then thus sure certainly okay ok
yes no hi hello hey dear thanks thank sorry example user assistant tool first
second third fourth fifth sixth last next finally option another
""")
)
"""Words with which no order begins: they cannot follow `please`."""


_NUMBERS = _listed("""
zero one two three four five six seven eight nine ten eleven twelve thirteen
""")
_SUNDAY = 6


def day_names(today: Day, days: int) -> tuple[str, ...]:
    """Return names of a day that can follow "for" or "until", such as "tomorrow"; empty for most days."""
    weekday = f"{today + timedelta(days=days):%A}"
    near = {0: ("today",), 1: ("tomorrow",), 2: ("the day after tomorrow",)}.get(days, ())
    if 2 <= days <= 6:
        return (*near, f"this coming {weekday}", *_next_weekday(today, days))
    if 9 <= days <= 13:
        return (f"a week from {weekday}",)
    later = {7: ("a week from today",), 8: ("a week from tomorrow",), 14: ("two weeks from today",)}
    return near or later.get(days, ())


def day_phrases(today: Day, days: int) -> tuple[str, ...]:
    """Return unambiguous ways to say when a day is, a number of days after today.

    "Next Friday" is used only for a day of next week, and "on Friday" only for the next six days.
    """
    if days == 0:
        return ("today",)
    weekday = f"{today + timedelta(days=days):%A}"
    phrases = day_names(today, days)
    if 2 <= days <= 6:
        phrases += (f"on {weekday}",)
    if 3 <= days <= 13 and days != 7:
        phrases += (f"in {days} days", f"in {_NUMBERS[days]} days")
    return phrases + {7: ("in a week",), 14: ("in two weeks",), 21: ("in three weeks",)}.get(days, ())


def _next_weekday(today: Day, days: int) -> tuple[str, ...]:
    """Return "next" and the weekday if that weekday of this week is over; else it would be ambiguous."""
    day = today + timedelta(days=days)
    if today.weekday() != _SUNDAY and day.weekday() < today.weekday():
        return (f"next {day:%A}",)
    return ()


def time_phrases(time: str) -> tuple[str, ...]:
    """Return a time HH:MM in words that can follow "at" or "for"; empty if not a daytime quarter hour."""
    hour, minute = map(int, time.split(":"))
    if not 5 <= hour <= 21 or minute % 15:
        return ()
    if time == "12:00":
        return ("noon",)
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 17 else "in the evening"
    this, following = _NUMBERS[(hour - 1) % 12 + 1], _NUMBERS[hour % 12 + 1]
    words = {0: this, 15: f"quarter past {this}", 30: f"half past {this}", 45: f"quarter to {following}"}
    return (f"{words[minute]} {part}",)


SAID = "said."
"""Prefix of kinds of values that users state, which are not in the state."""
FORMS = ("words", "day")
"""Forms of a value in words."""
COLUMN = re.compile(r"(.+)\[(\d+)\]")
_DATE, _TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")


def day_of(value: Json) -> Day | None:
    """Return the date that a text `2025-03-14` is; None if a value is no date."""
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        return None
    try:
        return Day.fromisoformat(value)
    except ValueError:  # no month has this day
        return None


class Dates(BaseModel, frozen=True, extra="forbid"):
    """Dates in a number of days after today."""

    days: tuple[int | tuple[int, ...], ...]


class SpokenValues(BaseModel, frozen=True, extra="forbid"):
    """Values that users mention, and ways to say values in words: `values.toml` of a bundle.

        [values]
        person = ["Nora Lind", "Omar Haddad"]
        mail = [["Lunch plans", "Shall we try the new place?"], ["Keys", "They are with the neighbor"]]
        date = { days = [2, 4, 6] }    # numbers of days after today

        [words.minutes]
        30 = "half an hour"

    Each list is a kind of values that a recipe can name, `said.person`. For a list of rows, each column is a
    kind, `said.mail[0]`, and all columns that one call takes come from the same row. Dates and times have
    built-in words.
    """

    values: Mapping[str, Dates | tuple[JsonValue, ...]] = {}
    words: Mapping[str, Mapping[str, str]] = {}

    @model_validator(mode="after")
    def _rows_of_one_length(self) -> Self:
        for name, rows in self.values.items():
            lengths = (
                {len(row) if isinstance(row, list) else 0 for row in rows} if isinstance(rows, tuple) else {0}
            )
            if len(lengths) > 1:
                raise ValueError(f"the rows of {name} are not of one length")
        return self

    def kinds(self, today: Day | None) -> dict[str, list[Json]]:
        """Return the values by kind.

        Args:
            today: the current date; None: omit kinds of dates.
        """
        found: dict[str, list[Json]] = {}
        for name, listed in self.values.items():
            rows = listed if isinstance(listed, tuple) else _dates(listed, today)
            if rows and isinstance(rows[0], Sequence) and not isinstance(rows[0], str):
                columns = zip(*cast("Sequence[Sequence[Json]]", rows), strict=True)
                found |= {f"{SAID}{name}[{number}]": list(one) for number, one in enumerate(columns)}
            else:
                found[f"{SAID}{name}"] = cast("list[Json]", list(rows))
        return found

    def in_words(self, kind: str, value: Json, form: str, today: Day | None) -> tuple[str, ...]:
        """Return ways to say a value in words.

        Args:
            kind: the kind of the value.
            value: the value.
            form: `words`, or for a date also `day`, which can follow "for" or "until".
            today: the current date, to which dates are relative.
        """
        if day := day_of(value):
            say = {"day": day_names, "words": day_phrases}.get(form)
            return say(today, (day - today).days) if say and today else ()
        if form != "words":
            return ()
        if isinstance(value, str) and _TIME.fullmatch(value):
            return time_phrases(value)
        match = COLUMN.fullmatch(kind)
        table = self.words.get((match[1] if match else kind).removeprefix(SAID), {})
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return (table[text],) if text in table else ()


def with_words_of(one: SpokenValues, other: SpokenValues) -> SpokenValues:
    """Return the values of the first, with the words of both."""
    kinds = {**one.words, **other.words}
    words = {kind: {**one.words.get(kind, {}), **other.words.get(kind, {})} for kind in kinds}
    return SpokenValues(values=one.values, words=words)


def _dates(dates: Dates, today: Day | None) -> Sequence[Any]:
    if today is None:
        return ()

    def after(days: int) -> str:
        return (today + timedelta(days=days)).isoformat()

    return [after(one) if isinstance(one, int) else tuple(map(after, one)) for one in dates.days]
