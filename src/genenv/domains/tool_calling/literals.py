"""Whether a value that a call needs can be read in an instruction, and how plainly it stands there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date as Day

from genenv.domains.tool_calling.expressions import Manner, Mention
from genenv.domains.tool_calling.mentions import anchors, mentions
from genenv.domains.tool_calling.toolbox import Kind
from genenv.types import Json

_UNIT_WORDS: Mapping[str, str] = {
    "m": r"met(?:er|re)s?",
    "km": r"kilomet(?:er|re)s?|kms",
    "cm": r"centimet(?:er|re)s?",
    "mi": r"miles?",
    "ft": r"feet|foot",
    "in": r"inch(?:es)?",
    "kg": r"kilo(?:gram(?:me)?)?s?|kgs",
    "g": r"gram(?:me)?s?",
    "lb": r"pounds?|lbs",
    "oz": r"ounces?",
    "l": r"lit(?:er|re)s?",
    "ml": r"millilit(?:er|re)s?",
    "gal": r"gallons?",
}
"""Units whose symbols are too short to be looked for just anywhere ("in")."""

_CHOICE_WORDS: Mapping[str, str] = {
    "celsius": r"centigrade|°\s?c|degrees\s+c|c",
    "fahrenheit": r"°\s?f|degrees\s+f|f",
    "cup": r"cups",
    "USD": r"(?:us\s+|american\s+)?(?<!canadian\s)dollars?|us\$|\$|bucks?",
    "EUR": r"euros?|€",
    "GBP": r"(?:british\s+)?pounds?(?:\s+sterling)?|sterling|£|quid",
    "JPY": r"(?:japanese\s+)?yen|¥",
    "CHF": r"(?:swiss\s+)?francs?",
    "CAD": r"canadian\s+dollars?|canadian",
    "INR": r"(?:indian\s+)?rupees?|₹",
    "checking": r"current\s+account",
}

_FLAG_WORDS: Mapping[tuple[str, bool], tuple[str, str]] = {
    ("on", True): (
        r"(?:turn|switch|flip)\b(?:(?!\boff\b)[^.?!])*\bon|put\s+on\s+the\b[^.?!]*\b(?:lights?|lamps?)"
        r"|(?:put|leave|keep|have|want|need|get)\b(?:(?!\boff\b)[^.?!])*\b(?:lights?|lamps?)\b[^.?!]*\bon"
        r"|lights?\s+(?:go\s+)?on|light\s+up",
        r"lit|illuminate|brighten|(?<!be\s)(?<!go\s)(?<!stay\s)dark|see\s+(?:anything|nothing|a\s+thing)|some\s+light",
    ),
    ("on", False): (
        r"(?:turn|switch|flip|shut|put|light|lamp)\w*\b(?:(?!\b(?:on|and)\b)[^.?!;,])*\boff|lights?\s+out|off\s+with\s+the\s+light",
        r"(?:be|go|stay)\s+dark|extinguish|kill|burning|waste|wasting|still\s+on|sleep|bright",
    ),
    ("locked", True): (r"lock(?:ed|ing)?", r"secure|bolt(?:ed)?|shut|nobody|burglars?|get\s+in"),
    ("locked", False): (r"unlock(?:ed|ing)?|unbolt", r"open(?:ed)?|let\b[^.?!]*\bin|get\s+in|come\s+in"),
}
"""The words that say a switch's position, and those that only hint at it."""

_ONE_WORDS: Mapping[str, str] = {
    "quantity": r"an?|single",
    "passengers": r"(?:just|only|for)\s+me|for\s+myself|alone|a\s+(?:single\s+)?(?:seat|ticket|passenger)",
    "nights": r"a\s+(?:single\s+)?night|overnight",
    "people": r"just\s+me|alone",
}
"""How the number 1 is said of some parameters."""


def stated(
    kind: Kind, value: Json, instruction: str, today: Day, parameter: str, adds: float | None = None
) -> bool:
    """Whether the words alone tell this value of this parameter.

    Args:
        kind: how the parameter is read.
        value: the validated argument.
        instruction: what the user says.
        today: what relative dates are relative to.
        parameter: the parameter's name; `minutes`, `nights` and the like give numbers a unit, `on` a flag its
        words.
        adds: the days that the call itself adds to a date; None for calls that add none.
    """
    return reading(kind, value, instruction, today, parameter, adds) is not None


def reading(
    kind: Kind, value: Json, instruction: str, today: Day, parameter: str, adds: float | None = None
) -> Manner | None:
    """The plainest manner in which an instruction states a value; None if it does not."""
    if kind in ("name", "text"):
        return Manner.LITERAL if spans(kind, str(value), instruction) else None
    if kind == "choice":
        return _choice(str(value), instruction)
    if kind == "flag":
        return _flag(parameter, value is True, instruction)
    manners = [m.manner for m in mentions_of(kind, value, instruction, today, parameter, adds)]
    if not manners and value == 1 and parameter in _ONE_WORDS:
        return Manner.WRITTEN if _word(_ONE_WORDS[parameter], instruction) else None
    return min(manners, default=None)


def mentions_of(
    kind: Kind, value: Json, instruction: str, today: Day, parameter: str, adds: float | None = None
) -> list[Mention]:
    """The expressions of a date, time or number that can stand for this value."""
    wanted = float(value) if isinstance(value, int | float) else value
    found = mentions(kind, instruction, today, parameter)
    if kind == "date" and adds is not None:
        found += anchors(instruction, today, adds)
    return [m for m in found if wanted in m.values]


def choice_spans(value: str, instruction: str) -> list[tuple[int, int]]:
    """Where a choice stands as it is or in words of its own; signs such as $ do not count."""
    plain = [rf"(?:(?<=\d\s)|(?<=to\s)){value}"] if value in _UNIT_WORDS else [_as_is(value)]
    words = [*plain, *(table[value] for table in (_UNIT_WORDS, _CHOICE_WORDS) if value in table)]
    found = re.finditer(rf"(?<!\w)(?=[a-z])(?:{'|'.join(words)})(?!\w)", instruction, re.IGNORECASE)
    return [match.span() for match in found]


def spans(kind: Kind, value: str, instruction: str) -> list[tuple[int, int]]:
    """Where a name or text stands: names as they are, texts as their words, whatever the case and spaces."""
    if kind == "text":
        words = re.findall(r"[^\W_]+", value)
        pattern = r"[\W_]+".join(map(re.escape, words))
    else:
        pattern = r"\s+".join(re.escape(_straight(part)) for part in value.split())
    if not pattern:
        return []
    text = _straight(instruction)
    found = (match.span() for match in re.finditer(_BEFORE + pattern + _AFTER, text, re.IGNORECASE))
    return [span for span in found if _is_whole(kind, span, text)]


_BEFORE, _AFTER = r"(?<!\w)(?<!\w[-./@+'])", r"(?!\w)(?![-./@+]\w)(?!'(?!s\b)\w)"
"""Where a name ends: neither "Ann-Marie" nor mary.ann@post.net says Ann, and old/plan.txt is not plan.txt."""
_NEXT_NAME = r"[A-Z][a-z]+"


def _is_whole(kind: Kind, span: tuple[int, int], text: str) -> bool:
    """Whether a value is all of what is said: not a part of a quotation, nor of a longer name."""
    start, end = span
    for quoted in re.finditer(r'"([^"]*)"', text):
        if quoted.start(1) <= start and end <= quoted.end(1):
            return not re.search(r"\w", text[quoted.start(1) : start] + text[end : quoted.end(1)])
    if kind != "name" or not text[start].isupper():
        return True
    before = re.search(rf"[\w,]\s+({_NEXT_NAME})\s$", text[:start])
    after = re.match(rf"\s({_NEXT_NAME})", text[end:])
    return not any(found and not NO_NAMES.fullmatch(found[1]) for found in (before, after))


NO_NAMES = re.compile(
    r"I(?:['’]\w+)?|OK|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?|January|February|March|April|May|June|July|August|"
    r"September|October|November|December"
)
"""Words with a capital that name nobody."""


def only_denied(kind: Kind, value: str, instruction: str) -> bool:
    """Whether a name or choice stands in the instruction only as what is not meant: "not of checking"."""
    found = choice_spans(value, instruction) if kind == "choice" else spans(kind, value, instruction)
    return bool(found) and all(_DENIED.search(instruction[:start]) for start, _ in found)


_DENIED = re.compile(
    r"\b(?:not|instead\s+of|rather\s+than|except)\s+(?:(?:of|in|to|from|for|at|the|my)\s+){0,2}[\"“'‘]?$",
    re.IGNORECASE,
)


def _straight(text: str) -> str:
    """Typographic quotes and dashes as typed ones; the length stays."""
    return text.translate(str.maketrans("‘’“”–‑", "''\"\"--"))


def _word(pattern: str, instruction: str) -> bool:
    return re.search(rf"(?<!\w)(?:{pattern})(?!\w)", instruction, re.IGNORECASE) is not None


def _choice(value: str, instruction: str) -> Manner | None:
    if value in _UNIT_WORDS:
        symbol = rf"(?:(?<=\d)|(?<=\d\s)|(?<=to\s)|(?<=into\s)|(?<=from\s)){value}(?!\w)"
        if re.search(symbol, instruction, re.IGNORECASE):
            return Manner.LITERAL
        words = rf"(?<![^\W\d])(?:{_UNIT_WORDS[value]})(?!\w)"
        return Manner.WRITTEN if re.search(words, instruction, re.IGNORECASE) else None
    if _word(_as_is(value), instruction):
        return Manner.LITERAL
    words = _CHOICE_WORDS.get(value)
    if words is None:
        return None
    return (
        Manner.WRITTEN
        if re.search(rf"(?<![^\W\d])(?:{words})(?![^\W\d])", instruction, re.IGNORECASE)
        else None
    )


def _as_is(value: str) -> str:
    return r"[\s_-]+".join(map(re.escape, re.split(r"[\s_]+", value)))


def follows(value: str, words: str, instruction: str) -> bool:
    """Whether a name or choice, however it is said, comes right after one of some words ("to|into")."""
    plain = rf"{value}(?=\s*(?:[.,;?!]|$))" if value in _UNIT_WORDS else _as_is(value)
    said = "|".join(filter(None, (plain, _UNIT_WORDS.get(value), _CHOICE_WORDS.get(value))))
    return _word(rf"(?:{words})\s+(?:(?:my|the|our)\s+)?[\"'“‘]?(?:{said})", _straight(instruction))


def _flag(parameter: str, value: bool, instruction: str) -> Manner | None:
    """A hint counts only where the opposite is not said."""
    unknown = (parameter if value else rf"(?:not|no|un)[\s-]?{parameter}", "")
    said, hint = _FLAG_WORDS.get((parameter, value), unknown)
    opposite, _ = _FLAG_WORDS.get((parameter, not value), ("", ""))
    if _word(said, instruction):
        return Manner.WRITTEN
    hinted = bool(hint) and _word(hint, instruction) and not (opposite and _word(opposite, instruction))
    return Manner.WRITTEN if hinted else None
