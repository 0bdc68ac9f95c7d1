"""Whether words state a value, or a line is one: numbers and amounts in any notation, other text as words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from genenv.environments.common import caseless
from genenv.tools.discover.state_values import parts_of, singular, words_of
from genenv.tools.language.words import DURATIONS, INEXACT, TIME_UNITS, UNITS
from genenv.types import Json

_DIGITS = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
_NAMES = {
    **{"%": "percent pct", "°": "", "°C": "c celsius centigrade", "°F": "f fahrenheit"},
    **{"$": "dollar dollars usd", "€": "euro euros eur", "£": "pound pounds gbp", "¥": "yen jpy"},
    **{"USD": "dollar dollars", "EUR": "euro euros", "GBP": "pound pounds", "JPY": "yen"},
    **{"mm": "millimeters millimetres", "cm": "centimeters centimetres", "m": "meter meters metre metres"},
    **{"km": "kilometer kilometers kilometre kilometres", "km/h": "kph kmh", "mph": "", "mi": "mile miles"},
    **{"mg": "milligrams", "g": "gram grams", "kg": "kilogram kilograms kilo kilos"},
    **{"ml": "milliliters millilitres", "l": "liter liters litre litres"},
    **{"kB": "kilobytes", "MB": "megabytes", "GB": "gigabytes", "TB": "terabytes"},
    **{"W": "watt watts", "kW": "kilowatts", "Wh": "watt-hours", "kWh": "kilowatt-hours"},
    **{"ms": "milliseconds", "s": "second seconds sec secs", "min": "minute minutes mins"},
    **{"h": "hour hours hr hrs", "hr": "hour hours h", "hrs": "hour hours h", "px": "pixel pixels"},
    **{"ft": "foot feet", "lb": "lbs", "oz": "ounce ounces", "CHF": "francs"},
    **{"pt": "point points", "pts": "points", "pcs": "piece pieces"},
}
"""The names by which units and currencies are said, too."""
_SIGNS = {"$": ("$", "USD"), "€": ("€", "EUR"), "£": ("£", "GBP"), "¥": ("¥", "JPY"), "%": ("%",)}
"""For each sign at a number the units that it stands for."""
_UNITS = "|".join(re.escape(one) for one in sorted(_NAMES, key=len, reverse=True))
_EXPONENT = r"(?:[eE][+-]?\d{1,3})?"
_NUMBER = re.compile(rf"(?<![\w.-]){_DIGITS}{_EXPONENT}(?=(?:{_UNITS}|[BdCFVA])?(?!\w|\.\d))")
"""A number, perhaps with its unit behind it without a space: `5km`."""
_EMPHASIS = re.compile(r"(?<![^\W_])_{1,3}(?=\S)|(?<=\S)_{1,3}(?![^\W_])")
"""Marks of Markdown around a word that would be taken for a part of it."""
_PLAIN = str.maketrans("−‑‐–’‘“”", "----''\"\"")
"""Characters for which people also type others."""
_AMOUNT = re.compile(r"-?(?:0|[1-9]\d*)\.\d\d?")
"""A text that is a number with up to two decimals, as amounts often are, and versions seldom."""
_DAY = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_CLOCK = re.compile(
    r"(?<![\d:])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
    r"(?:\s*(?P<half>[ap])\.?m\b)?",
    re.IGNORECASE,
)
"""A time of day that is said, perhaps with its half of the day."""
_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d")
_QUANTITY = re.compile(rf"(?P<before>[$€£¥]?) ?(?P<number>{_DIGITS}) ?(?P<unit>{_UNITS})?")
"""A text that is a number with a unit, or with the sign of a currency."""
_BEHIND = re.compile(
    r"\s*(?P<sign>[$€£¥%])?\s*(?P<degrees>degrees?\b|°)?\s*(?P<word>[^\W\d_]*(?:/h)?)", re.IGNORECASE
)
"""What stands behind a number: a sign, degrees, and a word that may be its unit."""
_SHORT_DIGITS, _MOST_ROUNDED = 2, 0.02
"""From so many decimals on, a number may be rounded, if it differs by no more than this share."""
_MARKS = re.compile(r"[*`\"“”„]|(?<!\w)['‘’]|['‘’](?!\w)")
"""Marks around a word; an apostrophe stays."""
_ANSWER = re.compile(
    r"(?:^|(?<=[.!?] ))(?:[^\w\n]|[\d_]){0,12}(?:(?:the|my|final) ){0,2}answers?(?: is)?[*_]*[ \t]*[:：]"
    r"[*_]*(?:[ \t\r]*\n){0,2}[ \t]*(?P<value>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that gives an answer: `Answer: VALUE`, or with the value in the next line."""
_NAMED = re.compile(r"\banswers?\b[^:\n]{0,8}[:：]", re.IGNORECASE)
_CURRENCY = r"(?:US)?[$\u20a0-\u20cf£¥]|USD|EUR|GBP|JPY|CHF"
_SAID = {
    *("degree", "degrees"),
    *(word for unit, names in _NAMES.items() for word in (unit.casefold(), *names.split())),
}
"""All words that may be a unit."""


def _unit_names() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for unit, names in _NAMES.items():
        degrees = {"°", "degree", "degrees"} if unit[0] == "°" else set[str]()
        ways = {unit.casefold(), *names.split()} - {"°"}
        for way in ways:
            found.setdefault(way, set()).update(ways | degrees)
    return found


_UNIT_NAMES = _unit_names()
"""For each way to write a unit all ways."""
_VALUE = re.compile(
    rf"(?P<currency>(?:{_CURRENCY}) ?)?(?P<number>{_DIGITS}{_EXPONENT}) ?(?P<behind>[^\W\d_%°$€£¥]?[^\d]*)",
    re.IGNORECASE,
)
"""A line that is a number, perhaps with a currency before it, and with words or signs behind it."""
_TOKEN = re.compile(r"[^\W\d_]+(?:/h)?|[^\w\s]")
_MOST_BEHIND, _SHORTEST = 4, 3
"""Maximum number of words behind a number, and minimum length of those that only the request has."""
_JOINT = re.compile(r"(?<=[^\W_])_+(?=[^\W_])")
_WEEKDAY = r"(?:(?P<weekday>\w+day),? )?"
_HOUR = re.compile(r"^(\d{1,2}) ?([ap])\.?m\b", re.IGNORECASE)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")


def says(words: str, answer: Json) -> bool:
    """Whether words state a value: a number as a number, text as whole words, ignoring case and spaces.

    A day (`2025-03-17`) may be stated with the name of its month: `17 March 2025`, `Mar 17, 2025`; a time of
    day (`16:45`) without its first 0 or with twelve hours: `4:45 pm`.

    A text that is a number with a unit (`82 °C`, `$1,250.00`) may be stated otherwise too: the number, with
    the unit before it or elsewhere, or behind it no word, or a name that begins as the unit does (`82 degrees
    Celsius`). A text with one or two decimals counts as a number: `$8` says `8.00`.
    """
    plain = _EMPHASIS.sub("", words).translate(_PLAIN)
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return any(_is_number(found[0], answer) for found in _numbers(plain))
    text = caseless(str(answer))
    if _TIME.fullmatch(text):
        return any(_hour(found) == text for found in _CLOCK.finditer(plain))
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    if text and any(whole.search(caseless(one)) for one in (words, plain)):
        return True
    if day := _DAY.fullmatch(text):
        return _says_day(plain, day)
    return _says_amount(plain, str(answer))


def answers_in(words: str) -> list[str]:
    """Return what stands in the lines `Answer: VALUE` of a reply, in order."""
    return [found["value"] for found in _ANSWER.finditer(words)]


def answers_named(words: str) -> int:
    """Return how often a reply says that it answers, also outside of such lines: `Alternative answer: 6`."""
    return len(_NAMED.findall(words))


def distinct(lines: Iterable[str]) -> list[str]:
    """Return lines without those that say the same again."""
    return [*{_alike(_bare(line)): line for line in lines}.values()]


def gives(line: str, answer: Json, field: str = "", request: str = "") -> bool:
    """Whether a line is a value and nothing else, but for Markdown, quotation marks and a full stop.

    Notations of numbers, amounts, days and times of day are those of `says`; a moment is the same in any
    form of ISO 8601. The field may be named before the value (`balance due: 20`). Behind a number there may
    be words of field and request (`8 nights`), and a currency or a unit: the field's, if its name has one.

    Args:
        line: the line.
        answer: the value.
        field: the name of its field in the result; empty if it has none.
        request: what the user said.
    """
    plain, text = _bare(line), str(answer)
    if text in line and _alike(plain) == _alike(_bare(text)) != "":
        return True
    return any(_is_value(one, answer, field, request) for one in (line, plain, _without_name(plain, field)))


def _is_value(line: str, answer: Json, field: str, request: str) -> bool:
    text = str(answer)
    number = _VALUE.fullmatch(re.sub(rf"^-\s?({_CURRENCY})", r"\1-", line.removeprefix("+")))
    if number is not None and not _fits_field(number, field, request):
        number = None
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return number is not None and _is_number(number["number"], answer)
    if _alike(text) == _alike(line) != "":
        return True
    if _TIME.fullmatch(text):
        return _time_of(line) == text
    if day := _DAY.fullmatch(text):
        said = re.fullmatch(rf"{_WEEKDAY}(?:the )?(?:{_in_words(day)})", line, re.IGNORECASE)
        weekday = said["weekday"] if said else None
        moment = _moment(text)
        return said is not None and (not weekday or moment is None or f"{moment:%A}" == weekday.title())
    if _MOMENT.fullmatch(text):
        return None is not _moment(text) == _moment(line) or _is_moment_in_words(line, text)
    return number is not None and _says_amount(line, text)


def _without_name(line: str, field: str) -> str:
    """A line without the name of a field, or a part of it, at its beginning: `Berth C2`, `#12`."""
    named = {"the", "in", field.casefold(), *words_of(field or "result")}
    rest = _JOINT.sub(" ", line.removeprefix("#"))
    while (word := re.match(r"([^\W\d_]+):? (?=\S)", rest)) and singular(word[1].casefold()) in named:
        rest = rest[word.end() :]
    return rest


def _fits_field(number: re.Match[str], field: str, request: str) -> bool:
    """Whether what stands around a number belongs to it: a currency, a unit, or words for what it counts."""
    behind = _TOKEN.findall(number["behind"].casefold())
    is_rate = "per" in parts_of(field)  # price_per_kg
    if len(behind) > _MOST_BEHIND or sum(not one.isalpha() for one in behind) > 1 + is_rate:
        return False
    units, known = _units_of(field), {*words_of(field), *(["/"] if is_rate else [])}
    words = {singular(one.casefold()) for one in _TOKEN.findall(request) if len(one) >= _SHORTEST} - INEXACT
    before = re.sub(r"^us(?=\W)", "", (number["currency"] or "").strip().casefold())
    if units and before and before not in units:
        return False
    return all(
        one in units or (not units and one in _SAID | {*_SIGNS}) or singular(one) in known | words
        for one in behind
    )


def _units_of(field: str) -> set[str]:
    """The names of the unit with which the name of a field ends: `length_m`, `minutes`, not `price_min`."""
    *parts, last = parts_of(field) or [""]
    is_unit = len(last) >= _SHORTEST if not parts else "per" not in parts
    is_time = TIME_UNITS.get(last, last) == last or bool(parts and parts[-1] in DURATIONS)
    if not (is_unit and is_time):
        return set()
    said = (UNITS | TIME_UNITS).get(last, "").casefold().split()
    return _UNIT_NAMES.get(last) or ({last, *said} if said else set())


def _bare(line: str) -> str:
    """A line without Markdown, quotation marks, and the punctuation at its end, in plain characters."""
    plain = _MARKS.sub("", _EMPHASIS.sub("", unicodedata.normalize("NFC", line)))
    plain = re.sub(r"^<(.+)>$", r"\1", plain)
    return " ".join(plain.translate(_PLAIN).split()).rstrip(" .!,;|")


def _alike(text: str) -> str:
    """A text without what may differ in a line that gives it: capitals, spaces, punctuation at its end."""
    plain = unicodedata.normalize("NFC", text).translate(_PLAIN)
    return caseless(_JOINT.sub(" ", plain)).rstrip(" .!,;")


def _is_moment_in_words(line: str, text: str) -> bool:
    """Whether a line is a moment to the minute, such as `14 May 2025, 7:00 AM`."""
    day = _DAY.fullmatch(text[:10])
    found = (
        re.fullmatch(rf"(?:{_in_words(day)}),?(?: at)? (?P<time>.+)", line, re.IGNORECASE) if day else None
    )
    return found is not None and _time_of(found["time"]) == text[11:16] and text[16:] in ("", ":00")


def _time_of(text: str) -> str:
    """A time of day that is a whole text, `16:45` or `7 pm`, as `HH:MM`; empty if it is none."""
    time = _CLOCK.fullmatch(_HOUR.sub(r"\1:00 \2m", text))
    return _hour(time) if time else ""


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def states(request: str, value: Json) -> bool:
    """Whether a request states a value as it stands: a number as a number, a text letter for letter."""
    if isinstance(value, str):
        return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request) is not None
    return not isinstance(value, bool) and isinstance(value, int | float) and says(request, value)


def _numbers(words: str) -> Iterator[re.Match[str]]:
    """Yield the numbers in words that are no part of a time such as `10:30`."""
    times = list(_CLOCK.finditer(words))
    for found in _NUMBER.finditer(words):
        if not any(time.start() <= found.start() < time.end() for time in times):
            yield found


def _hour(found: re.Match[str]) -> str:
    """A time of day that is said, as `HH:MM`; empty if there is none such, or it has seconds."""
    hour, half = int(found["hour"]), (found["half"] or "").lower()
    if (half and not 1 <= hour <= 12) or found["second"] not in (None, "00"):
        return ""
    return f"{hour % 12 + 12 * (half == 'p') if half else hour:02}:{found['minute']}"


def _says_day(words: str, day: re.Match[str]) -> bool:
    """Whether words state a day with the name of its month, and its year."""
    plain = " ".join(words.replace("*", "").split())
    return re.search(rf"(?<!\w)(?:{_in_words(day)})(?!\w)", plain, re.IGNORECASE) is not None


def _in_words(day: re.Match[str]) -> str:
    """A pattern of a day with the name of its month; it matches nothing if there is no such month."""
    number = int(day["month"])
    if not 1 <= number <= len(_MONTHS):
        return r"(?!)"
    name = _MONTHS[number - 1]
    month, one = rf"{name[:3]}(?:t|{name[3:]})?\.?", rf"0?{int(day['day'])}(?:st|nd|rd|th|\.)?"
    year, of_day, of_month = day["year"], rf"0?{int(day['day'])}", rf"0?{number}"
    digits = rf"{of_day}\.{of_month}\.{year}|{year}/{day['month']}/{day['day']}"
    if int(day["day"]) > len(_MONTHS) or int(day["day"]) == number:  # the order does not matter
        digits += f"|{of_day}/{of_month}/{year}|{of_month}/{of_day}/{year}"
    return rf"{one}(?: of|-)?[ -]?{month},?[ -]{year}|{month} {one}(?:,| of)? {year}|{digits}"


def _says_amount(words: str, text: str) -> bool:
    """Whether words state a text that is a number with decimals, or with a unit."""
    if _AMOUNT.fullmatch(text):
        said = (found[0] for found in _numbers(words))
        short = len(text.partition(".")[2]) == 1
        return any(_is_number(one, float(text)) for one in said if short or len(one.partition(".")[2]) != 1)
    quantity = _QUANTITY.fullmatch(text.strip())
    return quantity is not None and _says_quantity(words, quantity)


def _says_quantity(words: str, quantity: re.Match[str]) -> bool:
    unit = quantity["before"] or quantity["unit"]
    if not unit:
        return False
    number = quantity["number"].replace(",", "")
    value = float(number) if "." in number else int(number)
    return any(_is_number(found[0], value) and _fits(words, found, unit) for found in _numbers(words))


def _fits(words: str, number: re.Match[str], unit: str) -> bool:
    """Whether what stands around a number is its unit, or nothing is said of one."""
    before, behind = words[: number.start()].rstrip(), _BEHIND.match(words, number.end())
    behind_it = behind["sign"] if behind else None
    sign = next((one for one, names in _SIGNS.items() if behind_it == one or before.endswith(names)), None)
    if sign is not None:
        return unit in _SIGNS[sign]
    if re.search(rf"(?<![\w'’]){re.escape(unit)}$", before):
        return True
    word = behind["word"].casefold() if behind else ""
    if behind and behind["degrees"] and not unit.startswith("°"):
        return False
    if word in {"", unit.casefold().removeprefix("°"), *_NAMES[unit].split()}:
        return True
    elsewhere = rf"(?<![\w'’])(?<!\d ){re.escape(unit)}(?![^\W_])"
    return len(unit) > 1 and word not in _SAID and re.search(elsewhere, words) is not None


def _is_number(said: str, answer: float) -> bool:
    """Whether a number that is said is the answer, or the answer rounded to the decimals that are said."""
    said = said.replace(",", "")
    if isinstance(answer, int):
        return Decimal(said) == answer
    decimals = 0 if "e" in said.lower() else len(said.partition(".")[2])
    if decimals >= _SHORT_DIGITS and abs(float(said) - answer) <= _MOST_ROUNDED * abs(answer):
        return abs(float(said) - answer) <= 0.5 * 10**-decimals * (1 + 1e-9)
    return math.isclose(float(said), answer, rel_tol=1e-9)
