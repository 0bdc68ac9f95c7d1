"""Whether words state a value: numbers and quantities in any notation, other text as whole words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal

from genenv.environments.common import caseless
from genenv.types import Json

_DIGITS = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
_NAMES = {
    **{"%": "percent", "°": "", "°C": "c celsius centigrade", "°F": "f fahrenheit"},
    **{"$": "dollar dollars usd", "€": "euro euros eur", "£": "pound pounds gbp", "¥": "yen jpy"},
    **{"USD": "dollar dollars", "EUR": "euro euros", "GBP": "pound pounds", "JPY": "yen"},
    **{"mm": "millimeters millimetres", "cm": "centimeters centimetres", "m": "meter meters metre metres"},
    **{"km": "kilometer kilometers kilometre kilometres", "km/h": "kph kmh", "mph": "miles"},
    **{"mg": "milligrams", "g": "gram grams", "kg": "kilogram kilograms kilo kilos"},
    **{"ml": "milliliters millilitres", "l": "liter liters litre litres"},
    **{"kB": "kilobytes", "MB": "megabytes", "GB": "gigabytes", "TB": "terabytes"},
    **{"W": "watt watts", "kW": "kilowatts", "Wh": "watt-hours", "kWh": "kilowatt-hours"},
    **{"ms": "milliseconds", "s": "second seconds sec secs", "min": "minute minutes mins"},
    **{"h": "hour hours hr hrs", "hr": "hour hours h", "hrs": "hour hours h", "px": "pixel pixels"},
    **{"pt": "point points", "pts": "points", "pcs": "piece pieces"},
}
"""The names by which units and currencies are said, too."""
_SIGNS = {"$": ("$", "USD"), "€": ("€", "EUR"), "£": ("£", "GBP"), "¥": ("¥", "JPY"), "%": ("%",)}
"""For each sign at a number the units that it stands for."""
_UNITS = "|".join(re.escape(one) for one in sorted(_NAMES, key=len, reverse=True))
_NUMBER = re.compile(rf"(?<![\w.-]){_DIGITS}(?:[eE][+-]?\d+)?(?=(?:{_UNITS}|[BdCFVA])?(?!\w|\.\d))")
"""A number, perhaps with its unit behind it without a space: `5km`."""
_EMPHASIS = re.compile(r"(?<![^\W_])_{1,3}(?=\S)|(?<=\S)_{1,3}(?![^\W_])")
"""Marks of Markdown around a word that would be taken for a part of it."""
_MINUS = str.maketrans("−", "-")
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
_ANY, _WHOLE = re.compile(r"\d+(?:\.\d+)?"), re.compile(_DIGITS)
_LINE_NUMBER = re.compile(r"^\s*\d{1,3}[.)](?=\s)", re.MULTILINE)
_SHORT_DIGITS = 2
"""From so many decimals on, a number that is said may be rounded."""
_MOST_OF_FIELD, _LONGEST_VALUE = 200, 60
"""Maximum number of values of a field that are looked for beside an answer, and of characters of one."""
_LONGEST_CODE, _LONGEST_SENTENCE = 3, 300
_MARKS = re.compile(r"[*`\"“”„]|(?<!\w)['‘’]|['‘’](?!\w)")
"""Marks around a word; an apostrophe stays."""
_NOT = re.compile(r"(?:\b(?P<no>not|never|neither|nor|no longer)|n['’]t) (?:(?:the|an?|at|in|on) )?[$€£¥]?$")
_CONDITION = re.compile(r"\b(?:if|whether|unless)\b")


def says(words: str, answer: Json) -> bool:
    """Whether words state a value: a number as a number, text as whole words, ignoring case and spaces.

    A day (`2025-03-17`) may be stated with the name of its month: `17 March 2025`, `Mar 17, 2025`; a time of
    day (`16:45`) without its first 0 or with twelve hours: `4:45 pm`.

    A text that is a number with a unit (`82 °C`, `$1,250.00`) may be stated otherwise too: the number, with
    the unit before it or elsewhere, or behind it no word, or a name that begins as the unit does (`82 degrees
    Celsius`). A text with one or two decimals counts as a number: `$8` says `8.00`.
    """
    plain = _EMPHASIS.sub("", words).translate(_MINUS)
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
    if _AMOUNT.fullmatch(text):
        said = (found[0] for found in _numbers(plain))
        short = len(text.partition(".")[2]) == 1
        return any(_is_number(one, float(text)) for one in said if short or len(one.partition(".")[2]) != 1)
    quantity = _QUANTITY.fullmatch(str(answer).strip())
    return quantity is not None and _says_quantity(plain, quantity)


def claims(
    words: str, answer: Json, answers: Collection[Json] = (), fields: Iterable[Collection[str]] = ()
) -> bool:
    """Whether words state a value as what is so: not what is not (`not Minka`), or may be (`Minka or Bello`).

    Numbers may stand in alternatives: `It costs 20, or 25 with tax.`

    Args:
        words: the words.
        answer: the value.
        answers: all values that the words are to state.
        fields: the values that each field with the answer, a text, has.
    """
    if not says(words, answer):
        return False
    plain = caseless(_MARKS.sub("", _EMPHASIS.sub("", words).translate(_MINUS)))
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        places = [one.start() for one in _numbers(plain) if _is_number(one[0], answer)]
        return any(not _is_denied(plain, place) for place in places)
    text, wanted = caseless(str(answer)), {caseless(str(one)) for one in answers}
    known = {caseless(one) for field in fields if len(field) <= _MOST_OF_FIELD for one in field}
    values = {one for one in known | {text} if len(one) <= _LONGEST_VALUE}
    found = re.finditer(rf"(?<![\w-]){re.escape(text)}(?![\w-])", plain)
    spans = {one.span() for one in found if _is_denied(plain, one.start(), text, known)}
    spans |= {*_alternatives(plain, text, values, wanted)} if known else set()
    for start, end in sorted(spans, reverse=True):
        plain = f"{plain[:start]} ... {plain[end:]}"
    return not spans or says(plain, text)


def lists(words: str, text: str) -> bool:
    """Whether words say a text; short codes in capitals only in such: `It is` lists neither `IT` nor `IS`."""
    is_code = text.isupper() and len(text) <= _LONGEST_CODE
    return states(_EMPHASIS.sub("", words), text) if is_code else says(words, text)


def _is_denied(words: str, place: int, text: str = "", known: Collection[str] = ()) -> bool:
    """Whether what stands at a place is denied: it is behind `not`, `neither` and the like, and no `if`.

    Args:
        words: in lower case.
        place: where it begins.
        text: it, if it is a text; `not` may belong to a longer name.
        known: all names.
    """
    if (before := _NOT.search(words[max(0, place - 20) : place])) is None:
        return False
    is_name = any(f"{before['no']} {text}" in one for one in known)
    sentence = re.split(r"[.!?\n]", words[max(0, place - _LONGEST_SENTENCE) : place])[-1]
    return not is_name and _CONDITION.search(sentence) is None


def _alternatives(
    words: str, text: str, values: Collection[str], answers: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Yield the places of lists such as `x, y or z` of a text and of values that are no answers."""
    by_length = sorted(values, key=len, reverse=True)
    for found in re.finditer(r"\bor (?:the |an? )?", words):
        right = next((one for one in by_length if _starts(words, found.end(), one)), None)
        listed, start = [] if right is None else [right], found.start()
        while listed:
            end = start - len(behind := words[max(0, start - 2) : start]) + len(behind.rstrip(" ,"))
            left = next((one for one in by_length if _ends(words, end, one)), None)
            if left is None or (len(listed) > 1 and "," not in behind):
                break
            listed.append(left)
            start = end - len(left)
        if right is not None and len(listed) > 1 and text in listed and not {*listed} <= {*answers}:
            yield start, found.end() + len(right)


def _starts(words: str, place: int, text: str) -> bool:
    """Whether a text is at a place as whole words."""
    end = place + len(text)
    return words.startswith(text, place) and not words[end : end + 1].isalnum()


def _ends(words: str, place: int, text: str) -> bool:
    """Whether a text ends at a place as whole words."""
    start = place - len(text)
    return start >= 0 and words.startswith(text, start) and not words[max(0, start - 1) : start].isalnum()


def unfounded(words: str, given: str) -> list[str]:
    """Return the different numbers in words that a text does not have, without the numbers of list items."""
    known = {abs(float(one.replace(",", ""))) for found in (_ANY, _WHOLE) for one in found.findall(given)}
    said = (found[0].replace(",", "") for found in _NUMBER.finditer(_LINE_NUMBER.sub("", words)))
    strange = [one for one in dict.fromkeys(said) if abs(float(one)) not in known]
    return [one for one in strange if not any(_is_number(one.removeprefix("-"), number) for number in known)]


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
    number = int(day["month"])
    if not 1 <= number <= len(_MONTHS):
        return False
    name = _MONTHS[number - 1]
    month, one = rf"{name[:3]}(?:t|{name[3:]})?\.?", rf"0?{int(day['day'])}(?:st|nd|rd|th|\.)?"
    ways = rf"{one}(?: of)? {month},? {day['year']}|{month} {one}(?:,| of)? {day['year']}"
    plain = " ".join(words.replace("*", "").split())
    return re.search(rf"(?<!\w)(?:{ways})(?!\w)", plain, re.IGNORECASE) is not None


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
    sign = next((one for one in (before[-1:], behind["sign"] if behind else None) if one in _SIGNS), None)
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


_SAID = {word for unit, names in _NAMES.items() for word in (unit.casefold(), *names.split())}
"""All words that may be a unit."""


def _is_number(said: str, answer: float) -> bool:
    """Whether a number that is said is the answer, or the answer rounded to the decimals that are said."""
    said = said.replace(",", "")
    if isinstance(answer, int):
        return Decimal(said) == answer
    decimals = 0 if "e" in said.lower() else len(said.partition(".")[2])
    rounded = round(answer, decimals) if decimals >= _SHORT_DIGITS else answer
    return abs(float(said) - rounded) < 1e-9
