"""What the descriptions of parameters say about values: lists, formats, and which arguments go together.

Schemas often leave this to a sentence, which a careful agent follows: arguments that contradict it make tasks
that are doubtful.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import cast

from genenv.tools.discover.state_values import singular, words_of
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject

_IN_QUOTES = re.compile(r"""(?<!\w)(['"`])([^\s'"`]{1,40})\1""")
_PIPES = re.compile(r"[`'\"]?\w[\w./-]*[`'\"]?(?:\s*\|\s*[`'\"]?\w[\w./-]*[`'\"]?)+")
"""Values with bars between them, as in `enforced | opportunistic`."""
_LIST = re.compile(
    r"\b(?:one of|(?:allowed|possible|valid|accepted|supported) (?:values|options)(?: are| is)?)\s*:?\s*"
    r"(\w[\w-]*(?:\s*,\s*\w[\w-]*)*(?:,?\s+(?:or|and)\s+\w[\w-]*|\s*,\s*\w[\w-]*))",
    re.IGNORECASE,
)
"""Words with commas between them that a sentence calls the allowed values."""
_SLASHES = re.compile(r"\(((?![A-Z/]+\))[^\W_]\w+(?:/\w{2,})+)\)")
"""Values with slashes between them in parentheses, as in `(email/sms)`; not `(km/h)` and `(TCP/IP)`."""
_EXAMPLES = re.compile(r"\b(?:e\.?g\.?|for example|for instance|such as|like|examples?)\b", re.IGNORECASE)
_PHRASE = re.compile(r"""(?<!\w)(['"`])([^'"`\n]{1,40}?)\1(?!\w)""")
"""A quoted text, which may have several words."""
_EXEMPLIFIED = re.compile(
    rf"{_EXAMPLES.pattern}[.,:]*\s*((?:[^().;\n]|(?<=etc)\.|\.(?=\w))+)(\)?)", re.IGNORECASE
)
"""What a description gives as examples, up to a parenthesis or the end of the sentence."""
_ITEM = re.compile(r"\w[\w-]*(?: \w[\w-]*){0,2}")
"""An example without quotation marks: up to three words."""
_FIXED = re.compile(
    r"""\b(?:set to|must be|should be|always|has to be)\s+(['"`])([^\s'"`]{1,40})\1""", re.IGNORECASE
)
BASE64, IDENTIFIER = "described: base64", "described: identifier"
"""Formats of texts that no schema has."""
_FORMATS = (
    (
        "date",
        re.compile(r"\A(?!.*(?:\btime|\b8601)).*\b(?:date|day)\b.*\bISO\b|\AISO (?:date|day)\b(?!.*\btime)"),
    ),
    ("date-time", re.compile(r"\b(?:ISO[ -]?8601|RFC[ -]?3339)\b", re.IGNORECASE)),
    (BASE64, re.compile(r"\bbase[ -]?64\b", re.IGNORECASE)),
    ("uuid", re.compile(r"\bUUID\b", re.IGNORECASE)),
    ("email", re.compile(r"\A(?:[\w-]+ ){0,3}e-?mail address(?:es)?\b", re.IGNORECASE)),
    (
        "uri",
        re.compile(
            r"\A(?:[\w-]+ ){0,2}URLs?\b(?![- ](?:slug|path|friendly|encoded|safe|param))", re.IGNORECASE
        ),
    ),
    (IDENTIFIER, re.compile(r"\balphanumeric|\bunderscores?\b|\bno spaces\b|\bslug\b", re.IGNORECASE)),
)
_PARTS = {"yyyy": "%Y", "yy": "%y", "mm": "%m", "dd": "%d", "hh": "%H", "ss": "%S"}
"""The letters with which people write the form of a date, and what `strftime` calls them."""
_PART = "|".join(_PARTS)
_DATE = re.compile(rf"(?<!\w)'?((?:{_PART})(?:(?:[-/.: ]|'?T'?)(?:{_PART}))+)'?(Z?)(?!\w)", re.IGNORECASE)
"""The form of a date or a time in letters, as in `YYYY-MM`, `DD/MM/YYYY` and `HH:MM`."""
_DIRECTIVES = re.compile(r"%[YymdHMS](?:[-/.:, T]*%[YymdHMS])+Z?")
"""The same as `strftime` takes it."""
_ID = re.compile(r"\A(?:[\w-]+ ){0,5}IDs?\b")
_APART = re.compile(
    r"mutually exclusive|not both|(?:cannot|can't|may not|must not|should not) (?:both )?be "
    r"(?:used|combined|set|given|provided|specified|passed)",
    re.IGNORECASE,
)
_INSTEAD = re.compile("instead of", re.IGNORECASE)
"""One of two optional arguments. "Shown instead of the name", which has to be given, excludes nothing."""
_TOGETHER = re.compile(r"together with|along with|in combination with|requires|is required if", re.IGNORECASE)
_ONLY = re.compile(r"\bonly (?:for|if|when|with|used|valid|applies|relevant)\b[^.;)]*", re.IGNORECASE)
_REQUIRED = re.compile(r"\brequired,? (?:unless|except)\b", re.IGNORECASE)
_OF_ITEM = re.compile(r"\b(\w+)[`'\"]? of (?:the|an?|another) (?:\w+ )?(\w+)")
"""What a field says that names an item of another list: `The key of the source step`."""
_PROHIBITED = re.compile(
    r"\b(?:cannot|can't|not allowed|may not|must not|should not|prohibit|forbidden|reserved|except|invalid)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]+")


def quoted(description: str) -> list[str]:
    """Return the quoted words of a description, which often lists the allowed values: 'local', 'remote'."""
    words = dict.fromkeys(match[2] for match in _IN_QUOTES.finditer(description))
    return [word for word in words if not _date_form(word)]


def examples(description: str, *, unquoted: bool = False) -> list[str]:
    """Return the texts that a description gives as examples, of several words too.

    Args:
        description: of a parameter or a tool.
        unquoted: whether to read lists without quotation marks in parentheses too: `(e.g. food, travel)`.
    """
    found: list[str] = []
    for match in _EXEMPLIFIED.finditer(" ".join(_allowing(description))):
        phrases = [phrase[2] for phrase in _PHRASE.finditer(match[1])]
        items = re.split(r",\s*(?:or |and )?|\s+(?:or|and)\s+", match[1].strip()) if match[2] else []
        listed = [one for one in items if one.lower().rstrip(".") not in ("", "etc")]
        if unquoted and not phrases and len(listed) > 1 and all(map(_ITEM.fullmatch, listed)):
            phrases = listed
        found += phrases
    return list(dict.fromkeys(found))


def _allowing(description: str) -> list[str]:
    """Return the sentences of a description but those that say which values are not allowed."""
    return [one for one in re.split(r"(?<=[.!?])\s(?=[A-Z])", description) if not is_prohibition(one)]


def has_examples(description: str) -> bool:
    """Whether a description says that the values it quotes are examples."""
    return _EXAMPLES.search(description) is not None


def listed(description: str) -> list[str]:
    """Return the values that a description says are allowed; empty if it does not list them."""
    if match := _PIPES.search(description):
        return list(dict.fromkeys(one.strip("`'\" \n.") for one in match[0].split("|")))
    if (match := _SLASHES.search(description)) and not _date_form(match[1]):
        return list(dict.fromkeys(match[1].split("/")))
    if match := _LIST.search(description):
        words = re.split(r"\s*,\s*(?:or\s+|and\s+)?|\s+or\s+|\s+and\s+", match[1])
        return list(dict.fromkeys(word for word in words if word))
    fixed = _FIXED.search(description)
    return [fixed[2]] if fixed is not None and len(quoted(description)) == 1 else []


def text_format(description: str) -> str:
    """Return the format of a text that a description names; empty if it names none.

    It is a JSON schema's, `BASE64`, `IDENTIFIER`, or what `strftime` takes: `%Y-%m` for `YYYY-MM`.
    """
    if form := _date_form(description):
        return "date" if form == "%Y-%m-%d" else form
    return next((name for name, pattern in _FORMATS if pattern.search(description)), "")


def _date_form(text: str) -> str:
    """Return the form of a date or a time that a text has, as `strftime` takes it; empty if it has none."""
    if match := _DATE.search(text):
        letters = match[1].replace("'", "")
        form = re.sub(_PART, lambda part: _PARTS[part[0].lower()], letters, flags=re.IGNORECASE)
        return re.sub("(?<=%H.)%m|%m(?=.%S)", "%M", form) + match[2]  # minutes have the letters of months
    match = _DIRECTIVES.search(text)
    return match[0] if match else ""


def restrictions(description: str) -> list[str]:
    """Return the sentences of a description that say which arguments exclude each other, or a text's form."""
    sentences = _SENTENCE.findall(description)
    return [one.strip() for one in sentences if _APART.search(one) or text_format(one.strip())]


def is_prohibition(sentence: str) -> bool:
    """Whether a sentence says which values are not allowed: `Cannot begin with "PD"`."""
    return _PROHIBITED.search(sentence) is not None


def says_id(tool: Tool, parameter: str) -> bool:
    """Whether the description of a parameter says that it takes ids: `Array of segment IDs`."""
    return _ID.search(str(tool.properties[parameter].get("description", ""))) is not None


def is_said_required(tool: Tool, name: str) -> bool:
    """Whether the description of an optional argument says that it is required, but for an exception."""
    return _REQUIRED.search(str(tool.properties.get(name, {}).get("description", ""))) is not None


_ACTIONS = frozenset({"action", "command", "method", "mode", "op", "operation"})
"""Parameters that choose what a tool does."""


def is_wanted(tool: Tool, name: str) -> bool:
    """Whether a request made of the tool's first sentence says too little without a value for a parameter.

    So it is if the parameter is required, chooses what the tool does, or is named by that sentence, as in
    `Find files under a path`, or is the number that it has a bound of, as in `Return up to ten links`, or the
    truth value that decides, as in `Block or unblock a customer`.
    """
    if name not in tool.properties or name in tool.required or name in _ACTIONS:
        return name in tool.properties
    sentence = tool.description.split(". ", 1)[0].lower()
    kind = tool.resolved(tool.properties[name]).get("type")
    if "up to" in sentence and kind in ("integer", "number"):
        return True
    if kind == "boolean" and any(
        word[:_STEM] in (one[:_STEM], other[:_STEM])
        for one, other in _EITHER.findall(sentence)
        for word in words_of(name)
    ):
        return True
    return "optional" not in sentence and _nouns(sentence).issuperset(words_of(name))


_EITHER = re.compile(r"(\w+)(?: or |/)(\w+)")
_STEM = 4
"""Letters in which words of one verb agree, such as `block` and `blocked`."""


@lru_cache(maxsize=4096)
def _nouns(sentence: str) -> frozenset[str]:
    """Return the words of a sentence in the singular; it is asked for with each draw of arguments."""
    return frozenset(map(singular, re.findall(r"\w+", sentence)))


def agreeing(tool: Tool, given: Collection[str]) -> list[str]:
    """Return these arguments with those that they need, and without optional ones that others exclude.

    Args:
        tool: its descriptions say which arguments need, and which exclude each other.
        given: names of arguments.
    """
    kept = [name for name in tool.properties if name in given]
    excluded: dict[str, list[str]] = {}
    for name in kept:  # which grows by what is needed
        excluded[name] = _meant(tool, name, _APART)  # "cannot be given together with" is no need
        excluded[name] += [one for one in _meant(tool, name, _INSTEAD) if one not in tool.required]
        known = {*kept, *excluded[name]}
        kept += [one for one in _meant(tool, name, _TOGETHER) if one not in known]
    for name in [one for one in kept if one not in tool.required]:
        if any(one in excluded[name] or name in excluded[one] for one in kept if one != name):
            kept.remove(name)
    return kept


def _meant(tool: Tool, name: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the other parameters in sentences of a parameter's description that match a pattern."""
    described = str(tool.properties[name].get("description", ""))
    said = [sentence for sentence in _SENTENCE.findall(described) if pattern.search(sentence)]
    return [
        one for one in tool.properties if one != name and any(_is_meant(sentence, one) for sentence in said)
    ]


def misplaced(tool: Tool, args: Mapping[str, Json]) -> set[str]:
    """Return optional arguments that a description allows only with another value of a closed argument."""
    found: set[str] = set()
    for name in args:
        for clause in _ONLY.findall(str(tool.properties[name].get("description", ""))):
            for other, schema in tool.properties.items():
                values = cast("list[Json]", tool.resolved(schema).get("enum") or [])
                named = [value for value in values if isinstance(value, str) and _names(clause, value)]
                if other != name and named and args.get(other, named[0]) not in named:
                    found.add(name)
    return found - tool.required


def referring(tool: Tool, args: Mapping[str, Json], rng: random.Random) -> dict[str, Json]:
    """Return arguments in which records of a list name records of another list where descriptions say so.

    If there are too few of those, the list is left out, or empty if the tool requires it.
    """
    found = dict(args)
    for name, rows in args.items():
        fields: dict[str, list[Json]] = {}
        for field, schema in _fields(tool, name).items() if isinstance(rows, list) else ():
            told = _OF_ITEM.search(str(schema.get("description", "")))
            key, noun = told.groups() if told is not None else ("", "")
            for other in tool.properties:
                if other != name and noun in words_of(other)[-1:] and key in _fields(tool, other):
                    held = cast("Sequence[Mapping[str, Json]]", args.get(other, ()))
                    fields[field] = [one[key] for one in held if key in one]
        keys = min(fields.values(), key=len) if fields else list[Json]()
        if fields and len(keys) < len(fields):
            found |= {name: []}
            if name not in tool.required:
                del found[name]
        elif fields:
            found[name] = [
                {**row, **dict(zip(fields, rng.sample(keys, len(fields)), strict=True))}
                for row in cast("Sequence[Mapping[str, Json]]", rows)
            ]
    return found


def _fields(tool: Tool, name: str) -> Mapping[str, JsonObject]:
    """Return the fields of the records in a list."""
    items = tool.resolved(cast(JsonObject, tool.resolved(tool.properties[name]).get("items", {})))
    return cast("Mapping[str, JsonObject]", items.get("properties", {}))


def _is_meant(text: str, parameter: str) -> bool:
    """Whether a text means a parameter: in quotation marks, or with a name that is no common word."""
    return parameter in quoted(text) or (
        (not parameter.islower() or "_" in parameter) and _names(text, parameter)
    )


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
