"""Draw texts that people would give for a parameter, by its name, or that look like a document's example."""

from __future__ import annotations

import calendar
import contextlib
import random
import re
import string
import unicodedata
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from datetime import date as Day
from datetime import timedelta

from genenv.tools.discover.state_values import singular
from genenv.tools.language.words import (
    CITIES,
    FIRST_NAMES,
    IDENTIFIER_WORDS,
    LAST_NAMES,
    NOTES,
    NUMBERED,
    ORDERS,
    PEOPLE,
    QUALITIES,
    STATUSES,
    TEXT_WORDS,
    THINGS,
)
from genenv.types import Json

_AT = "@example.com"
_NAME = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+")
_FIRST_DAY = ContextVar("_FIRST_DAY", default=Day(2026, 1, 5))
_DAYS = 330
"""Number of days of which made-up dates are."""
_MAKING = frozenset(
    {"add", "create", "edit", "insert", "new", "register", "rename", "save", "store", "update"}
)
"""First words of tools that give a record its name."""
_QUALIFIERS = frozenset(
    {"end", "from", "high", "low", "max", "maximum", "min", "minimum", "new", "old", "start", "to", "updated"}
)
"""Words of parameters that do not say what the value is: `price_max`, `new_status`."""
_ALPHANUMERIC = string.ascii_lowercase + string.digits


@contextlib.contextmanager
def dates_from(first: Day | None) -> Generator[None]:
    """Have made-up dates begin with a day, in this context; None: with the usual one."""
    token = _FIRST_DAY.set(first) if first is not None else None
    try:
        yield
    finally:
        if token is not None:
            _FIRST_DAY.reset(token)


def random_day(rng: random.Random) -> Day:
    """Return a made-up day."""
    return _FIRST_DAY.get() + timedelta(days=rng.randrange(_DAYS))


def random_second(rng: random.Random) -> int:
    """Return a quarter of an hour of a made-up day, in seconds since 1970."""
    return calendar.timegm(_FIRST_DAY.get().timetuple()) + 900 * rng.randrange(_DAYS * 96)


def _lists(text: str) -> dict[str, tuple[str, ...]]:
    """Return the values of each noun, from lines such as `color colour: red; green`."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.strip().splitlines():
        nouns, _, values = line.partition(":")
        found |= dict.fromkeys(map(singular, nouns.split()), tuple(one.strip() for one in values.split(";")))
    return found


_VALUES: Mapping[str, tuple[str, ...]] = _lists("""
category: groceries; travel; books; clothing; electronics; health; garden; music; sports; tools; toys; \
household; pets; gifts; education; insurance
color colour: red; green; blue; orange; purple; teal; gray; white
company organization organisation employer vendor supplier brand publisher manufacturer merchant: \
Harbor Supplies; Northwind Books; Lindgren and Sons; Blue Ridge Foods; Castor Labs; Tidewater Travel
country nationality: Germany; Kenya; Japan; Brazil; Canada; Norway; Portugal; India; Chile; Morocco
cuisine: Italian; Thai; Mexican; Lebanese; Indian; Greek
currency: USD; EUR; GBP; JPY; CHF; CAD; AUD; NZD; SEK; NOK; DKK; PLN; CZK; HUF; BRL; INR; ZAR; KES
department division: sales; support; finance; engineering; logistics; marketing
dish recipe meal: lentil soup; pumpkin curry; potato salad; apple pie; fried rice; bean stew; plum cake
emoji: 🎉; 🚀; 📌; 🌱; 📚; 🔔; 🍀; 🎨
gender sex: female; male
genre: drama; comedy; fantasy; history; mystery; adventure; biography
icon: star; bell; heart; folder; flag; clock
language lang locale: en; de; fr; es; ja; pt
month: January; March; April; June; August; October; November
plan tier: free; basic; plus; enterprise
priority severity urgency: low; medium; high; urgent
occupation profession job: manager; engineer; analyst; designer; accountant; nurse; teacher
role: admin; editor; viewer; member
subcategory: lunch; fuel; hotel; shoes; repairs; tickets; medicine; magazines
season: spring; summer; autumn; winter
size: small; medium; large
stage phase: new; planned; in review; approved; finished
ticker: AAPL; MSFT; NVDA; SAP; TSM
timezone tz: Europe/Berlin; America/New_York; Asia/Tokyo; UTC
weekday: Monday; Tuesday; Wednesday; Thursday; Friday; Saturday
""")
"""Texts by the noun that a parameter is called."""
_CODES: Mapping[str, tuple[str, ...]] = {
    "currency": _VALUES["currency"],
    "language": _VALUES["language"],
    "country": ("DE", "KE", "JP", "BR", "CA", "NO", "PT", "IN", "CL", "MA"),
}
"""Codes by what they are codes of."""
_CURRENCIES = (
    *(("EUR", "euro", "€"), ("USD", "US dollar", "$"), ("GBP", "pound sterling", "£")),
    *(("JPY", "yen", "¥"), ("CHF", "Swiss franc", "Fr."), ("CAD", "Canadian dollar", "CA$")),
)
"""Code, name and sign of currencies."""
_OWN = frozenset({"default", "from", "native", "preferred", "source", "target", "to", "user"})
"""Words before `language` that do not say which kind of language it is."""
TITLES: Mapping[str, tuple[str, ...]] = _lists("""
task todo chore reminder errand: water the plants; call the plumber; renew the passport; book the dentist; \
clean the garage; pay the rent; order printer paper; prepare the slides; fix the bicycle; buy birthday candles
book novel movie film song album: The Glass Orchard; A Winter in Bergen; Salt and Copper; The Last Ferry; \
Paper Lanterns; The Quiet Harbor; Seven Bridges; Letters from Oslo; The Clockmaker; North of Here
meeting event appointment: budget review; weekly planning; design workshop; team lunch; project kickoff
""")
"""Titles by the noun of the record that has them."""
CATEGORIES = frozenset(_VALUES) | {"kind", "method", "mode", "reason", "status", "style", "topic", "type"}
"""Nouns of parameters that take one of a few words."""
_FORMS: tuple[tuple[str, ...], ...] = (
    *_VALUES.values(),
    *_CODES.values(),
    tuple(sign for *_, sign in _CURRENCIES if len(sign) == 1),
    STATUSES,
    CITIES,
)


def _decimal(rng: random.Random) -> str:
    return f"{rng.randrange(5, 900)}.{rng.randrange(100):02d}"


def _iban(rng: random.Random) -> str:
    """Return a German IBAN, with the check digits of ISO 7064 (mod 97-10)."""
    account = "".join(rng.choices(string.digits, k=18))
    return f"DE{98 - int(f'{account}131400') % 97:02d}{account}"


def isbn(rng: random.Random) -> str:
    """Return the number of a book, with its check digit (ISO 2108)."""
    drawn = [9, 7, 8, *(rng.randrange(10) for _ in range(9))]
    return "".join(map(str, [*drawn, -sum(drawn[::2] + 3 * drawn[1::2]) % 10]))


def _secret(rng: random.Random) -> str:
    return "".join(rng.choices(_ALPHANUMERIC, k=12))


def _address(rng: random.Random) -> str:
    return f"{rng.randrange(1, 200)} {rng.choice(LAST_NAMES)} Street"


def _ip(rng: random.Random) -> str:
    return f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"


def _thing(rng: random.Random) -> str:
    return f"{rng.choice(QUALITIES)} {rng.choice(THINGS)}"


def person(rng: random.Random) -> str:
    """Return the name of a person."""
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


_DRAWN: Mapping[str, Callable[[random.Random], str]] = {
    **dict.fromkeys(("amount", "balance", "cost", "fare", "fee", "price", "salary", "tax", "wage"), _decimal),
    **dict.fromkeys(("checksum", "digest", "hash", "sha"), lambda rng: f"{rng.getrandbits(64):016x}"),
    "iban": _iban,
    "isbn": isbn,
    **dict.fromkeys(("bic", "swift"), lambda rng: f"{''.join(rng.choices('ABCDEFGHKLMNPRST', k=4))}DEFF"),
    **dict.fromkeys(
        ("passcode", "passphrase", "password"), lambda rng: f"{rng.choice(LAST_NAMES)}-{rng.randrange(10**4)}"
    ),
    **dict.fromkeys(("secret", "token"), _secret),
    **dict.fromkeys(("postcode", "zip", "zipcode"), lambda rng: f"{rng.randrange(10_000, 99_999)}"),
    "version": lambda rng: ".".join(str(rng.randrange(1, 10)) for _ in range(3)),
    "ip": _ip,
    "latitude": lambda rng: f"{rng.uniform(-60, 60):.4f}",
    "longitude": lambda rng: f"{rng.uniform(-180, 180):.4f}",
}
"""What draws a text with a form of its own, by the noun that a parameter is called."""
_KEYS = frozenset({"access", "api", "license", "private", "public", "secret"})
"""Words before `key` in names of secrets."""


def usual_text(words: Sequence[str], record: Sequence[str], rng: random.Random) -> str | None:
    """Return a text for an id, a name, a status, or what has a form of its own; None for other parameters.

    Args:
        words: the words of the parameter's name.
        record: the words of the tool's name, or of the name of the record that has the field.
        rng: draws the text.
    """
    core = [word for word in words if word not in _QUALIFIERS] or words
    *of, last = core or ("",)
    verb, nouns = ("", [*record])
    if len(record) > 1 and record[0] in ORDERS | _MAKING:
        verb, nouns = record[0], [*record[1:]]
    noun = (of or nouns or [""])[-1]
    if last in _NAMES_OF and PEOPLE.isdisjoint((*of, *nouns)) and (named := _named(last, noun, rng)):
        return named
    if not of and last in TITLES:
        return rng.choice(TITLES[last])
    match last:
        case "code" | "abbreviation" if noun in _CODES:
            return rng.choice(_CODES[noun])
        case "symbol" if noun == "currency":
            return rng.choice(_CURRENCIES)[2]
        case "code" if of[-1:] in (["postal"], ["zip"]):
            return _DRAWN["zip"](rng)
        case "address" if of[-1:] == ["ip"]:
            return _ip(rng)
        case "zone" if of[-1:] == ["time"]:
            return rng.choice(_VALUES["timezone"])
        case "key" if _KEYS & {*of}:
            return _secret(rng)
        case "language" if of and _OWN.isdisjoint(of):
            return None  # a programming language, for example
        case _ if last in _VALUES:
            return rng.choice(_VALUES[last])
        case _ if last in _DRAWN:
            return _DRAWN[last](rng)
        case _:
            return _identifying(of, last, nouns, verb, rng)


_NAMES_OF = frozenset({"name", "title", "summary", "subject", "label"})
"""Last words of parameters that name what the word before, or the tool, is about."""
_NAMED = frozenset(
    {"category", "company", "country", "department", "genre", "dish", "recipe", "meal", "vendor"}
)
"""Nouns of records whose names are listed in `_VALUES`."""


def _named(last: str, noun: str, rng: random.Random) -> str | None:
    """Return the name or the title of a record by its noun, if such names are listed."""
    if last in ("name", "label") and noun == "currency":
        return rng.choice(_CURRENCIES)[1]
    if last != "label" and noun in TITLES:
        return rng.choice(TITLES[noun])
    return rng.choice(_VALUES[noun]) if last in ("name", "label") and noun in _NAMED else None


def _identifying(
    of: Sequence[str], last: str, nouns: Sequence[str], verb: str, rng: random.Random
) -> str | None:
    """Return a text that identifies a record: an id, a number, a name; None for other parameters."""
    match last:
        case "id" | "sku" | "ref" | "reference" if of or nouns:
            return f"{(of or nouns)[-1][0].upper()}-{rng.randrange(100, 1000)}"
        case "number" if NUMBERED & {*of}:
            return f"{of[-1][0].upper()}-{rng.randrange(100, 1000)}"
        case "code" if {"access", "coupon", "discount", "invite", "promo", "voucher"} & {*of}:
            return f"{rng.choice(QUALITIES).upper()}{rng.randrange(10, 100)}"
        case "name" if not of and nouns[-1:] == ["domain"]:
            return f"{rng.choice(QUALITIES)}-{rng.choice(THINGS)}.example.com"
        case "name" if {"first", "given"} & {*of}:
            return rng.choice(FIRST_NAMES)
        case "name" if {"last", "family"} & {*of}:
            return rng.choice(LAST_NAMES)
        case "name" if PEOPLE & {*of} or (not of and PEOPLE & {*nouns}):
            return person(rng)
        case "name" if not of and verb in _MAKING:
            return _thing(rng)
        case "domain" | "hostname" | "subdomain":
            return f"{rng.choice(QUALITIES)}-{rng.choice(THINGS)}" + ".example.com" * (last != "subdomain")
        case "status":
            return rng.choice(STATUSES)
        case "seat":
            return f"{rng.randrange(1, 31)}{rng.choice('ABCDEF')}"
        case _ if not of and last in PEOPLE:
            return person(rng)
        case _:
            return None


def of_one_person(args: Mapping[str, Json]) -> dict[str, Json]:
    """Return made-up arguments with the email address of the only person whose name is among them."""
    texts = {name: value for name, value in args.items() if isinstance(value, str)}
    people = [one for one in texts.values() if _NAME.fullmatch(one) and one.split()[0] in FIRST_NAMES]
    addresses = [name for name, one in texts.items() if one.endswith(_AT)]
    found = dict(args)
    if len(people) == len(addresses) == 1:
        found[addresses[0]] = f"{people[0].replace(' ', '.').lower()}{_AT}"
    return found


def of_one_currency(args: Mapping[str, Json]) -> dict[str, Json]:
    """Return made-up arguments in which the name, the sign and the code of a currency agree."""
    codes, names, signs = zip(*_CURRENCIES, strict=True)
    places: dict[str, int] = {}
    for known, place in ((names, 1), (signs, 2), ({*codes, *_VALUES["currency"]}, 0)):
        places |= {name: place for name, value in args.items() if isinstance(value, str) and value in known}
    if len(places) != len({*places.values()}) or len(places) < len(_CURRENCIES[0]) - 1:
        return dict(args)
    first = next(iter(places))
    row = next(one for one in _CURRENCIES if one[places[first]] == args[first])
    return {**args, **{name: row[place] for name, place in places.items()}}


def other_text(words: set[str], whose: str, rng: random.Random) -> str:
    """Return a text for a parameter of which no more is known: a remark, a place, a person, a thing.

    Args:
        words: the words of the parameter's name.
        whose: the name of a person, which names that consist of several parts share.
        rng: draws the text.
    """
    if words & TEXT_WORDS:
        return rng.choice(NOTES)
    if words & {"city", "town", "location", "place", "destination", "origin", "venue"}:
        return rng.choice(CITIES)
    if words & {"address", "street"}:
        return _address(rng)
    if words & {"currency"}:
        return rng.choice(_VALUES["currency"])
    if words & {"username", "login", "handle"}:
        return whose.lower().replace(" ", ".")
    if words & PEOPLE or (words & {"name"} and words & {"first", "last", "full"}):
        return whose
    if words == {"name"}:
        return whose if rng.random() < 0.5 else _thing(rng)
    if words & {"query", "keyword", "search", "term", "word"}:
        return rng.choice(THINGS)
    return _thing(rng).replace(" ", "-") if words & IDENTIFIER_WORDS else _thing(rng)


DAY = re.compile(r"\d{4}-\d\d-\d\d")
_OTHER_DAYS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?:19|20)\d\d-\d\d"), "%Y-%m"),
    (re.compile(r"(?:19|20)\d\d(?:0\d|1[0-2])(?:[0-2]\d|3[01])"), "%Y%m%d"),
    (re.compile(r"\d\d\.\d\d\.\d{4}"), "%d.%m.%Y"),
    (re.compile(r"\d\d/\d\d/\d{4}"), "%m/%d/%Y"),
)
"""Forms of a day or a month, and how one of them is written."""
_TIME = re.compile(r"\d\d:\d\d")
_IP = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_CODE = re.compile(r"(?=\D*\d)[#+-]?[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
_FEW_DIGITS = 2
"""A code with fewer digits and without `_` is a name: `UTF-8`, `us-east-1`, `Q3`."""


def alike(example: str, rng: random.Random) -> str | None:
    """Return another text of the form of an example (a code, an amount, a date, a color), or None for words.

    Args:
        example: the only example that a document gives of a text.
        rng: draws the other text.
    """
    for values in _FORMS:
        if example in values:
            return rng.choice(values)
    day = random_day(rng)
    if DAY.match(example):
        return f"{day}{example[10:]}"
    for form, written in _OTHER_DAYS:
        if form.fullmatch(example):
            return day.strftime(written)
    if _TIME.fullmatch(example):
        return f"{rng.randrange(7, 20):02d}:{rng.choice((0, 15, 30, 45)):02d}"
    if _IP.fullmatch(example):
        return _ip(rng)
    if 0 < len(example) <= 2 and unicodedata.category(example[0]) == "So":
        return rng.choice(_VALUES["emoji"])
    digits = sum(sign.isdigit() for sign in example)
    if _CODE.fullmatch(example) and (digits >= _FEW_DIGITS or "_" in example):
        return "".join(str(rng.randrange(1, 10)) if sign.isdigit() else sign for sign in example)
    return None
