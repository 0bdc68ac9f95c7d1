"""Draw texts that people would give for a parameter, by its name, or that look like a document's example."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
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
    PEOPLE,
    QUALITIES,
    STATUSES,
    TEXT_WORDS,
    THINGS,
)

_FIRST_DAY = Day(2026, 1, 5)
_CREATE = frozenset(
    {"add", "create", "edit", "insert", "new", "register", "rename", "save", "store", "update"}
)
"""Verbs of tools whose other words say what the new record is."""
_QUALIFIERS = frozenset(
    {"end", "from", "high", "low", "max", "maximum", "min", "minimum", "new", "old", "start", "to", "updated"}
)
"""Words of parameters that do not say what the value is: `price_max`, `new_status`."""
_ALPHANUMERIC = string.ascii_lowercase + string.digits


def _lists(text: str) -> dict[str, tuple[str, ...]]:
    """Return the values of each noun, from lines such as `color colour: red; green`."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.strip().splitlines():
        nouns, _, values = line.partition(":")
        found |= dict.fromkeys(map(singular, nouns.split()), tuple(one.strip() for one in values.split(";")))
    return found


_VALUES: Mapping[str, tuple[str, ...]] = _lists("""
category subcategory: groceries; travel; books; clothing; electronics; health; garden; music; sports
color colour: red; green; blue; orange; purple; teal; gray; white
company organization organisation employer vendor supplier brand publisher manufacturer merchant: \
Harbor Supplies; Northwind Books; Lindgren and Sons; Blue Ridge Foods; Castor Labs; Tidewater Travel
country nationality: Germany; Kenya; Japan; Brazil; Canada; Norway; Portugal; India; Chile; Morocco
cuisine: Italian; Thai; Mexican; Lebanese; Indian; Greek
currency: USD; EUR; GBP; JPY; CHF; CAD
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
role position job occupation profession: manager; engineer; analyst; designer; accountant; nurse; teacher
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
_CURRENCIES: Mapping[str, tuple[str, ...]] = {
    "name": ("euro", "US dollar", "pound sterling", "yen", "Swiss franc", "Canadian dollar"),
    "symbol": ("€", "$", "£", "¥"),
}
"""Names and symbols of currencies."""
_TITLES: Mapping[str, tuple[str, ...]] = _lists("""
task todo chore reminder errand: water the plants; call the plumber; renew the passport; book the dentist; \
clean the garage; pay the rent; order printer paper; prepare the slides; fix the bicycle; buy birthday candles
book novel movie film song album: The Glass Orchard; A Winter in Bergen; Salt and Copper; The Last Ferry; \
Paper Lanterns; The Quiet Harbor; Seven Bridges; Letters from Oslo; The Clockmaker; North of Here
meeting event appointment: budget review; weekly planning; design workshop; team lunch; project kickoff
""")
"""Titles by the noun of the record that has them."""
_FORMS: tuple[tuple[str, ...], ...] = (*_VALUES.values(), *_CODES.values(), STATUSES, CITIES)


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


def _person(rng: random.Random) -> str:
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
_PLACED = {"ip": "ip", "postal": "zip", "zip": "zip"}
"""What draws an address or a code, by the word before."""
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
    nouns = [word for word in record if word not in _CREATE]
    before = (of or nouns)[-1:]
    if last in _CURRENCIES and before == ["currency"]:
        return rng.choice(_CURRENCIES[last])
    if last in ("code", "abbreviation") and before and before[0] in _CODES:
        return rng.choice(_CODES[before[0]])
    if last in ("name", "title", "label", "value") and before and before[0] in _VALUES:
        return rng.choice(_VALUES[before[0]])
    titled = [one for one in of or nouns if one in _TITLES]
    if titled and last in ("name", "title", "summary", "subject"):
        return rng.choice(_TITLES[titled[-1]])
    if not of and last in _TITLES:
        return rng.choice(_TITLES[last])
    if last in ("address", "code") and of[-1:] and of[-1] in _PLACED:
        return _DRAWN[_PLACED[of[-1]]](rng)
    if last == "key" and _KEYS & {*of}:
        return _secret(rng)
    if last in _VALUES:
        return rng.choice(_VALUES[last])
    if last in _DRAWN:
        return _DRAWN[last](rng)
    return _identifying(of, last, nouns, {*record}, rng)


def _identifying(
    of: Sequence[str], last: str, nouns: Sequence[str], tool: set[str], rng: random.Random
) -> str | None:
    """Return a text that identifies a record: an id, a number, a name; None for other parameters."""
    match last:
        case "id" | "sku" | "ref" | "reference" if of or nouns:
            return f"{(of or nouns)[-1][0].upper()}-{rng.randrange(100, 1000)}"
        case "number" if NUMBERED & {*of}:
            return f"{of[-1][0].upper()}-{rng.randrange(100, 1000)}"
        case "code" if {*of} <= {"access", "coupon", "discount", "invite", "promo", "voucher"}:
            return f"{rng.choice(QUALITIES).upper()}{rng.randrange(10, 100)}"
        case "name" if not of and nouns[-1:] == ["domain"]:
            return f"{rng.choice(QUALITIES)}-{rng.choice(THINGS)}.example.com"
        case "name" if {"first", "given"} & {*of}:
            return rng.choice(FIRST_NAMES)
        case "name" if {"last", "family"} & {*of}:
            return rng.choice(LAST_NAMES)
        case "name" if PEOPLE & {*of} or (not of and PEOPLE & tool):
            return _person(rng)
        case "name" if not of and _CREATE & tool:
            return _thing(rng)
        case "domain" | "hostname" | "subdomain":
            return f"{rng.choice(QUALITIES)}-{rng.choice(THINGS)}" + ".example.com" * (last != "subdomain")
        case "status":
            return rng.choice(STATUSES)
        case "seat":
            return f"{rng.randrange(1, 31)}{rng.choice('ABCDEF')}"
        case _ if not of and last in PEOPLE:
            return _person(rng)
        case _:
            return None


def other_text(words: set[str], person: str, rng: random.Random) -> str:
    """Return a text for a parameter of which no more is known: a remark, a place, a person, a thing.

    Args:
        words: the words of the parameter's name.
        person: the name of a person, which names that consist of several parts share.
        rng: draws the text.
    """
    if words & TEXT_WORDS:
        return rng.choice(NOTES)
    if words & {"city", "town", "location", "place", "destination", "origin", "venue"}:
        return rng.choice(CITIES)
    if words & {"address", "street"}:
        return _address(rng)
    if words & {"username", "login", "handle"}:
        return person.lower().replace(" ", ".")
    if words & PEOPLE or (words & {"name"} and words & {"first", "last", "full"}):
        return person
    if words == {"name"}:
        return person if rng.random() < 0.5 else _thing(rng)
    if words & {"query", "keyword", "search", "term", "word"}:
        return rng.choice(THINGS)
    return _thing(rng).replace(" ", "-") if words & IDENTIFIER_WORDS else _thing(rng)


_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d\d:\d\d")
_IP = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_CODE = re.compile(r"(?=\D*\d)[#+-]?[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")


def alike(example: str, rng: random.Random) -> str | None:
    """Return another text of the form of an example (a code, an amount, a date, a color), or None for words.

    Args:
        example: the only example that a document gives of a text.
        rng: draws the other text.
    """
    for values in _FORMS:
        if example in values:
            return rng.choice(values)
    if _DAY.match(example):
        return f"{_FIRST_DAY + timedelta(days=rng.randrange(330))}{example[10:]}"
    if _TIME.fullmatch(example):
        return f"{rng.randrange(7, 20):02d}:{rng.choice((0, 15, 30, 45)):02d}"
    if _IP.fullmatch(example):
        return _ip(rng)
    if not example.isascii() and len(example) <= 2:
        return rng.choice(_VALUES["emoji"])
    if _CODE.fullmatch(example):
        return "".join(str(rng.randrange(1, 10)) if sign.isdigit() else sign for sign in example)
    return None
