"""Whether words state a value: numbers and quantities in any notation, other text as whole words."""

from __future__ import annotations

import re
from decimal import Decimal

from genenv.environments.common import caseless
from genenv.types import Json

_DIGITS = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
_ATTACHED = (
    r"(?:[kcm]?m|km/h|[km]?g|m?l|[kMGT]?B|m?s|min|hrs?|[hdCFVA]|k?Wh?|pcs|px|pts?)?(?!\w)"  # as in `5km`
)
_NUMBER = re.compile(rf"(?<![\w.-]){_DIGITS}(?={_ATTACHED})")
_UNIT = r"%|°[CF]?|[kcm]?m|km/h|mph|[km]?g|m?l|[kMGT]B|[kM]?Wh?|m?s|min|h|hrs?|px|pts?|pcs|USD|EUR|GBP|JPY"
_QUANTITY = re.compile(rf"(?P<before>[$€£¥]?) ?(?P<number>{_DIGITS}) ?(?P<unit>{_UNIT})?")
"""A text that is a number with a unit, or with the symbol of a currency."""
_BEHIND = re.compile(r"\s*(?:degrees?\b|°)?\s*([^\W\d_]*)", re.IGNORECASE)
"""What stands behind a number: the word that may be its unit."""
_INITIALS = {
    "$": "du",
    "€": "e",
    "£": "pbg",
    "¥": "yj",
    "USD": "ud",
    "GBP": "gpb",
    "JPY": "jy",
    "%": "p",
    "°": "cf",
}
"""How the names of symbols begin: dollars or USD."""
_ANY = re.compile(r"\d+(?:\.\d+)?")
_LINE_NUMBER = re.compile(r"^\s*\d{1,3}[.)](?=\s)", re.MULTILINE)
_SHORT_DIGITS = 2
"""From so many decimals on, a number that is said may be rounded."""


def says(words: str, answer: Json) -> bool:
    """Whether words state a value: a number as a number, text as whole words, ignoring case and spaces.

    A text that is a number with a unit (`82 °C`, `$1,250.00`) may be stated otherwise too: the number, with
    the unit before it or elsewhere, or behind it no word, or a name that begins as the unit does (`82 degrees
    Celsius`).
    """
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return any(_is_number(found[0], answer) for found in _NUMBER.finditer(words))
    text = caseless(str(answer))
    if text and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", caseless(words)) is not None:
        return True
    quantity = _QUANTITY.fullmatch(str(answer).strip())
    return quantity is not None and _says_quantity(words, quantity)


def unfounded(words: str, given: str) -> list[str]:
    """Return the different numbers in words that a text does not have, without the numbers of list items."""
    known = {float(one) for one in _ANY.findall(given)}
    said = (found[0].replace(",", "") for found in _NUMBER.finditer(_LINE_NUMBER.sub("", words)))
    return [one for one in dict.fromkeys(said) if abs(float(one)) not in known]


def states(request: str, value: Json) -> bool:
    """Whether a request states a value as it stands: a number as a number, a text letter for letter."""
    if isinstance(value, str):
        return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request) is not None
    return not isinstance(value, bool) and isinstance(value, int | float) and says(request, value)


def _says_quantity(words: str, quantity: re.Match[str]) -> bool:
    unit = quantity["before"] or quantity["unit"]
    if not unit:
        return False
    initials = _INITIALS.get(unit, unit.removeprefix("°")[:1].casefold())
    elsewhere = re.search(rf"(?<![^\W_])(?<!\d ){re.escape(unit)}(?![^\W_])", words, re.IGNORECASE)
    number = quantity["number"].replace(",", "")
    value = float(number) if "." in number else int(number)
    for found in _NUMBER.finditer(words):
        behind = _BEHIND.match(words, found.end())
        word = behind[1] if behind else ""
        is_name = word[:1].casefold() in initials and not re.fullmatch(_UNIT, word)
        named = elsewhere or words[: found.start()].rstrip().endswith(unit) or is_name
        if _is_number(found[0], value) and (named or word in ("", unit)):
            return True
    return False


def _is_number(said: str, answer: float) -> bool:
    """Whether a number that is said is the answer, or the answer rounded to the decimals that are said."""
    said = said.replace(",", "")
    if isinstance(answer, int):
        return Decimal(said) == answer
    decimals = len(said.partition(".")[2])
    rounded = round(answer, decimals) if decimals >= _SHORT_DIGITS else answer
    return abs(float(said) - rounded) < 1e-9
