"""Draw new argument values from a parameter's JSON schema, examples and name."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time
from typing import cast

from genenv.tools.discover.descriptions import (
    BASE64,
    IDENTIFIER,
    examples,
    has_examples,
    is_prohibition,
    listed,
    quoted,
    text_format,
)
from genenv.tools.discover.state_values import PATHS, PLACES, parts_of, words_of
from genenv.tools.generate.named_texts import (
    CATEGORIES,
    DAY,
    isbn,
    of_one_currency,
    of_one_person,
    other_text,
    person,
    random_day,
    random_second,
    usual_text,
)
from genenv.tools.generate.scales import range_of, usual_range
from genenv.tools.language.words import NOTES, PEOPLE, QUALITIES, THINGS
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject
from genenv.untrusted import patterns
from genenv.untrusted.patterns import BadPattern, TookTooLong

_DEEPEST = 4
_MOST_ITEMS, _MOST_CHARS, _MOST_NUMBER = 100, 4000, 10**15
"""Maximum list length, text length and absolute number that are drawn; tasks with more are impractical."""
_HUNDREDTH = 0.01
"""Numbers with a step of at least this much are rounded to two decimals."""
_AS_QUOTED = 3 / 4
"""Probability of drawing a value that the parameter's description quotes as an example."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SHAPES = frozenset({"format", "pattern", "minLength", "maxLength"})
"""What a schema says of a text."""
_FORMATS = frozenset({"date-time", "time", "date", "email", "uri", "url"})
"""Text formats that are drawn by format even if there is a pattern; else the pattern decides."""
_NUMERIC = frozenset({"int32", "int64", "integer", "number", "float", "double", "decimal"})
"""Formats of texts that are numbers."""
FORMATS = _FORMATS | _NUMERIC | {"uuid", BASE64, IDENTIFIER}
"""All formats that texts are drawn by; others say nothing here."""
_ONE_OF = frozenset({"anyOf", "oneOf"})
_GIDS = re.compile(r"\b(?:gids?|IDs)\b")
"""What a description says of ids of records that are not known."""
_COUNTED = frozenset({"quantity", "qty", "amount", "count", "price", "cost", "total", "age"})
"""Last words of parameters that are numbers where no schema says what they are."""
_RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("lat", "latitude"), (-60, 60)),
    **dict.fromkeys(("lng", "lon", "longitude"), (-180, 180)),
    **dict.fromkeys(("percent", "percentage"), (1, 100)),
    **dict.fromkeys(("rating", "ratings", "stars"), (1, 5)),
    **{"age": (18, 80), "guests": (1, 4)},
    **{"hour": (0, 23), "minute": (0, 59), "month": (1, 12), "port": (1024, 9999), "year": (1990, 2026)},
}
"""Bounds of numbers by the noun that a parameter is called, where no schema and no description has any. A
plural such as `years` is a duration, and is not bounded."""
_PAIRS: tuple[tuple[str, str], ...] = (
    *(("after", "before"), ("begin", "end"), ("departure", "return"), ("from", "to"), ("low", "high")),
    *(("min", "max"), ("since", "until"), ("start", "end"), ("issue", "expiry"), ("issued", "expires")),
    *(("check_in", "check_out"), ("checkin", "checkout")),
)
"""Words by which two parameters name the bounds of a range."""
_WHOLE = frozenset({"age", "count", "id", "limit", "page", "qty", "quantity"})
"""Last words of parameters that are whole numbers, also where their schema says number."""
_DOCUMENTED = re.compile(r"\(?(int|integer|float|number|bool|boolean)\b(?! (?:of|that|to)\b)", re.IGNORECASE)
"""The type at the beginning of a description, for a parameter whose schema has none."""
_FILES = re.compile(r"\b(?:files?|director(?:y|ies)|folders?)\b", re.IGNORECASE)
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})?T?(\d{2}:\d{2}(:\d{2})?)?")
_ANY_DIGITS = re.compile(r"\\d[+*]")
"""An unbounded run of digits in a pattern; three digits are drawn for it."""
_DIGITS = re.compile(
    r"(?<!at least )(?<!up to )(?<!last )(?<!first )(?<!and )"
    r"\b([1-9]|1\d)(?: (?:or|to) ([1-9]|1\d))?[- ]digits?\b(?! years?\b)",
    re.IGNORECASE,
)
"""The length of a number in a description, as in `10 or 13 digits`."""
_ISBN = 13
_RANGE = re.compile(r"(?<![\d.-])(-?\d+)\s*(?:to|and|through|-|–|\.{2,3})\s*(-?\d+)(?!\d|[.-]\d)")
"""The bounds of a number in a description, as in `from 1 to 10` and `0..5`."""
_TEXT_ENDINGS = ("txt", "md")
_PERSONAL, _PERSON = frozenset({"age", "birthday", "gender", "guests", "salary"}), "person"
"""Words of parameters beside which a mere `name` is that of a person."""
_ENDING = re.compile(r"(?<![\w.])\.([a-z][a-z0-9]{1,4})\b")
"""The ending of a file in a description, as in `a .csv or .tsv file`."""


Like = Callable[[str], Sequence[float]]
"""Returns the known numbers of the field that a parameter is called like."""


def fresh(tool: Tool, parameter: str, rng: random.Random, like: Like = lambda _: ()) -> Json:
    """Return a random value that the schema allows, usually one that people would say.

    Args:
        tool: the tool.
        parameter: its parameter.
        rng: random numbers.
        like: returns known numbers; made-up ones are of their scale.
    """
    return _value(tool, tool.properties[parameter], parameter, rng, 0, like)


def other_values(tool: Tool, parameter: str, value: Json, rng: random.Random) -> list[Json]:
    """Return a few values to try in place of one: allowed ones, or the next integer, 1, and made-up ones."""
    if is_closed(tool, parameter):
        schema = tool.resolved(tool.properties[parameter])
        return [*cast("Sequence[Json]", schema.get("enum", (True, False)))][:_MOST_ALLOWED]
    near: list[Json] = [value + 1, 1] if type(value) is int else []
    return [*near, *(fresh(tool, parameter, rng) for _ in range(2))]


_MOST_ALLOWED = 8
"""Number of allowed values that are tried in place of one."""


def consistent(args: Mapping[str, Json]) -> dict[str, Json]:
    """Return made-up arguments that agree: addresses with names, signs with currencies, and bounds in order.

    A range is what two arguments such as `start` and `end` name. Of two days, the first one is the earlier
    one, unless their names say otherwise.
    """
    found = of_one_currency(of_one_person(args))
    days = [name for name, one in found.items() if isinstance(one, str) and DAY.fullmatch(one)]
    if len(days) == 2:
        found |= dict(zip(days, sorted(str(found[name]) for name in days), strict=True))
    for first, last in _PAIRS:
        for name in args:
            words = name.lower().split(first)
            other = next((one for one in args if len(words) == 2 and one.lower() == last.join(words)), name)
            low, high = found[name], found[other]
            numbers = isinstance(low, int | float) and isinstance(high, int | float) and low > high
            if numbers or (isinstance(low, str) and isinstance(high, str) and _is_later(low, high)):
                found[name], found[other] = high, low
    return found


def _is_later(one: str, other: str) -> bool:
    """Whether two texts are a day or a time of one form, and the first is later."""
    return _TIME.fullmatch(one) is not None and _TIME.fullmatch(other) is not None and one > other


_STAY = frozenset({("check", "in"), ("check", "out"), ("checkin",), ("checkout",)})


def names_day(name: str) -> bool:
    """Whether a parameter is a date by its name: no other text suits it, though a tool may take any."""
    words = words_of(name)
    return words in _STAY or not {"date", "deadline", "birthday"}.isdisjoint(words)


def is_closed(tool: Tool, parameter: str) -> bool:
    """Whether the schema lists all allowed values."""
    schema = tool.resolved(tool.properties[parameter])
    return "enum" in schema or "const" in schema or schema.get("type") == "boolean"


def told_values(tool: Tool, parameter: str) -> str:
    """Return where the schema of a parameter says which values it takes; empty if values are made up."""
    schema = tool.properties[parameter]
    if is_closed(tool, parameter):
        return "its list of values"
    if schema.get("examples") or tool.resolved(schema).get("examples"):
        return "its examples"
    told = str(schema.get("description", ""))
    if tool.resolved(schema).get("type") in ("integer", "number"):
        is_told = _RANGE.search(told) is not None
    else:
        is_told = len(_mentioned(tool, parameter, told)[0]) > 1 or bool(listed(told))
    return "its description" if is_told else ""


def _value(tool: Tool, schema: JsonObject, name: str, rng: random.Random, depth: int, like: Like) -> Json:
    told, beside = str(schema.get("description", "")), schema.get("examples")
    schema = tool.resolved(schema)
    if "const" in schema:
        return schema["const"]
    for values in (schema.get("enum"), beside, schema.get("examples")):
        if isinstance(values, list) and values:
            return rng.choice(values)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in cast("list[str]", kind) if one != "null"), "null")
    match kind:
        case "boolean":
            return rng.random() < 0.5
        case "integer" | "number":
            whole = kind == "integer" or bool(_WHOLE & {*words_of(name)[-1:]})
            return _number(_scaled(_bounded(schema, told), name, like, whole=whole), name, rng, whole=whole)
        case "array":
            return _array(tool, {"description": told, **schema}, name, rng, depth, like)
        case "object":
            return _object(tool, schema, name, rng, depth, like)
        case "null":
            return None
        case None if not schema.keys() & _ONE_OF and (said := _DOCUMENTED.match(told)):
            if said[1].lower().startswith("bool"):
                return rng.random() < 0.5
            bounded, whole = {"minimum": 1, **_bounded(schema, told)}, said[1].lower() != "float"
            return _number(_scaled(bounded, name, like, whole=whole), name, rng, whole=whole)
        case None if not schema.keys() & _ONE_OF and _COUNTED & {*words_of(name)[-1:]}:
            bounded = {"minimum": 1, **_bounded(schema, told)}
            return _number(_scaled(bounded, name, like, whole=True), name, rng, whole=True)
        case _:
            if allowed := listed(told):
                return rng.choice(allowed)
            values, are_examples = _mentioned(tool, name, told)
            if len(values) > 1 and (not are_examples or rng.random() < _AS_QUOTED):
                return rng.choice(values)
            form = text_format(told) or (
                "email" if "email" in told and PEOPLE & {*words_of(name)[-1:]} else ""
            )
            if form and "format" not in schema and "pattern" not in schema:
                schema = {**schema, "format": form}
            elif _GIDS.search(told) and not schema.keys() & _SHAPES:
                return f"{words_of(name)[-1:][0][:1].upper()}-{rng.randrange(100, 1000)}"
            endings = _ENDING.findall(told) or list(_TEXT_ENDINGS)
            if (digits := _DIGITS.search(told)) and not schema.keys() & _SHAPES:
                return _digits(int(rng.choice([one for one in digits.groups() if one])), name, rng)
            usual = usual_text(words_of(name), words_of(tool.name), rng)
            if usual is not None and not _allows(schema, usual):
                usual = None
            about = {"file"} if _FILES.search(tool.description) else set[str]()
            if any(not _PERSONAL.isdisjoint(words_of(one)) for one in tool.properties):
                about.add(_PERSON)
            return usual or _string(schema, name, rng, about.union(words_of(tool.name)), endings)


def _allows(schema: JsonObject, text: str) -> bool:
    """Whether a schema of texts has no form of its own, and allows texts of that length."""
    least, most = (cast(int, schema.get(key, len(text))) for key in ("minLength", "maxLength"))
    form = schema.get("format")
    is_free = "pattern" not in schema and form not in FORMATS and not str(form).startswith("%")
    return is_free and least <= len(text) <= most


def _digits(count: int, name: str, rng: random.Random) -> str:
    """Return a number in digits; one of a book has its check digit."""
    if count == _ISBN and "isbn" in words_of(name):
        return isbn(rng)
    return str(rng.randrange(10 ** (count - 1), 10**count))


_NO_VALUES = frozenset({"null", "none", "nil", "true", "false", "undefined"})


def _mentioned(tool: Tool, name: str, told: str) -> tuple[list[str], bool]:
    """Return the values that descriptions mention for a text, and whether they are only examples.

    They are in quotation marks in the parameter's description. If that mentions none, those of the tool's
    description count where only one parameter can mean them: the only text, which takes one of a few words.
    """
    is_category = bool(CATEGORIES & {*words_of(name)[-1:]})
    allowed = " ".join(one for one in re.split(r"(?<=[.!?])\s", told) if not is_prohibition(one))
    found = dict.fromkeys((*quoted(allowed), *examples(told, unquoted=is_category)))
    values = [one for one in found if one not in _NO_VALUES.union(tool.properties)]
    texts = [one for one, schema in tool.properties.items() if tool.resolved(schema).get("type") == "string"]
    if not values and is_category and texts == [name]:
        return examples(tool.description), True
    return values, has_examples(told)


def _bounded(schema: JsonObject, description: str) -> JsonObject:
    """Return the schema of a number with the bounds that its description states, unless it has some."""
    match = _RANGE.search(description)
    if match is None or int(match[1]) >= int(match[2]) or not schema.keys().isdisjoint(_BOUNDS):
        return schema
    return {**schema, "minimum": int(match[1]), "maximum": int(match[2])}


_WIDE = 2
"""How much more than the numbers of its scale the bounds of a number must allow to be narrowed to these."""


def _scaled(schema: JsonObject, name: str, like: Like, *, whole: bool) -> JsonObject:
    """Return the schema of a number with the bounds of known ones, unless it has narrow bounds of its own."""
    least, _ = _bound(schema, "minimum", "exclusiveMinimum", max)
    most, _ = _bound(schema, "maximum", "exclusiveMaximum", min)
    width = None if least is None or most is None else most - least
    last = (parts_of(name) or [""])[-1]
    span = range_of(like(name), whole=whole)
    if span is None and last not in _RANGES:
        span = usual_range(name, schema.get("default") if width is None else None, whole=whole)
    if span is None or "multipleOf" in schema or _RANGES.get(last, (0, 0))[0] < 0:
        return schema
    low, high, step = span
    if natural := _RANGES.get(last):
        low, high = max(low, natural[0]), min(high, natural[1])
    if width is not None and width < _WIDE * high:
        return schema
    low, high = max(low, low if least is None else least), min(high, high if most is None else most)
    return (
        schema if high - low < 2 * step else {**schema, "minimum": low, "maximum": high, "multipleOf": step}
    )


def _array(tool: Tool, schema: JsonObject, name: str, rng: random.Random, depth: int, like: Like) -> Json:
    least = min(max(1, int(cast(int, schema.get("minItems", 1)))), _MOST_ITEMS)
    most = max(least, min(least + 1, int(cast(int, schema.get("maxItems", least + 1)))))
    if depth >= _DEEPEST:
        return []
    if places := cast("Sequence[JsonObject]", schema.get("prefixItems", ())):
        return [_value(tool, one, name, rng, depth + 1, like) for one in places]
    items = cast(JsonObject, schema.get("items", {"type": "string"}))
    if items.get("type") == "number" and items.keys().isdisjoint(_BOUNDS):
        items = {**items, "type": "integer"}  # a list of numbers is mostly one of ids
    if items.get("type") == "string":
        items = {"description": schema.get("description", ""), **items}
    drawn = [_value(tool, items, name, rng, depth + 1, like) for _ in range(rng.randint(least, most))]
    return list({repr(one): one for one in drawn}.values()) if least <= 1 else drawn


def _object(tool: Tool, schema: JsonObject, name: str, rng: random.Random, depth: int, like: Like) -> Json:
    if depth >= _DEEPEST:
        return {}
    required = set(cast("Sequence[str]", schema.get("required", ())))
    properties = cast("Mapping[str, JsonObject]", schema.get("properties", {}))
    if (noun := record_noun(tool, schema, name)) != tool.name:
        tool = replace(tool, name=noun)
    drawn = {
        field: _value(tool, inner, field, rng, depth + 1, like)
        for field, inner in properties.items()
        if field in required or "const" in inner  # it may tell which alternative it is
    }
    return consistent(drawn)


def record_noun(tool: Tool, schema: JsonObject, name: str) -> str:
    """Return what the fields of a record are about: a person, by the record's name or title, or the tool.

    Args:
        tool: the tool.
        schema: the schema of the record.
        name: the parameter that holds it.
    """
    return min(PEOPLE & {*words_of(name), *words_of(str(schema.get("title", "")))}, default=tool.name)


def _number(schema: JsonObject, name: str, rng: random.Random, *, whole: bool) -> Json:
    least, above = _bound(schema, "minimum", "exclusiveMinimum", max)
    most, below = _bound(schema, "maximum", "exclusiveMaximum", min)
    if least is None and most is None and {"timestamp", "epoch"} & set(words_of(name)):
        return random_second(rng)
    if least is None and most is None:
        least, most = _RANGES.get((parts_of(name) or [""])[-1], (None, None))
    if least is None and most is None:
        least, most = (1, rng.choice((5, 20, 100)))
    elif most is None:
        least = cast(float, least)
        most = least + rng.choice((5, 20, 100))
    elif least is None:
        least = min(0.0, most - 10)
    least, most = cast(float, least), cast(float, most)
    multiple = float(cast(float, schema.get("multipleOf", 0)))
    step = multiple or (1.0 if whole or rng.random() < 0.5 else 0.5)
    if not multiple and not whole and 0 < most - least < step * (1 + above + below):
        step = (most - least) / 8
    aligned = multiple and abs(least / step) <= _MOST_NUMBER
    first = math.ceil(least / step) * step if aligned else least
    if above and first <= least:
        first += step
    steps = (math.ceil if below else math.floor)(min((most - first) / step, _MOST_NUMBER)) - below
    drawn = first + step * rng.randint(0, max(0, steps))
    if whole or float(drawn).is_integer():
        return int(drawn)
    return round(drawn, 2 if step >= _HUNDREDTH else 12)


def _bound(
    schema: JsonObject, closed: str, opened: str, tighter: Callable[[float, float], float]
) -> tuple[float | None, bool]:
    """Return the bound that two keywords set together, clipped to exact floats, and whether it is exclusive.

    Args:
        schema: a JSON schema of numbers.
        closed: the keyword of an inclusive bound.
        opened: the keyword of an exclusive bound.
        tighter: `max` or `min`: which of two bounds applies.
    """
    given = {
        key: float(min(max(cast(float, schema[key]), -_MOST_NUMBER), _MOST_NUMBER))
        for key in (closed, opened)
        if key in schema
    }
    if not given:
        return None, False
    bound = functools.reduce(tighter, given.values())
    return bound, given.get(opened) == bound


def _string(
    schema: JsonObject,
    name: str,
    rng: random.Random,
    tool: set[str],
    endings: Sequence[str] = _TEXT_ENDINGS,
) -> str:
    words = set(words_of(name))
    form = schema.get("format")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and form not in _FORMATS:
        return _of_pattern(pattern, schema, name, rng, tool)
    if form == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if form == BASE64:
        return base64.b64encode(rng.choice(NOTES).encode()).decode()
    if form == IDENTIFIER:
        return f"{rng.choice(QUALITIES)}_{rng.choice(THINGS)}"
    whose = person(rng)
    day = random_day(rng)
    if form in _NUMERIC:
        return str(rng.randint(1, 90))
    if form == "date-time" or str(form).startswith("%"):
        at = time(rng.randrange(8, 19), rng.choice((0, 15, 30, 45)))
        written = "%Y-%m-%dT%H:%M:%S" if form == "date-time" else str(form)
        return datetime.combine(day, at).strftime(written)
    if form == "time" or (words & {"time"} and form is None):
        return f"{rng.randrange(7, 20):02d}:{rng.choice((0, 15, 30, 45)):02d}" + (
            ":00" if form == "time" else ""
        )
    if form == "date" or names_day(name) or words & {"day", "due"}:
        return day.isoformat()
    if form == "email" or words & {"email", "mail"}:
        return f"{whose.replace(' ', '.')}@example.com".lower()
    if form in ("uri", "url") or words & {"url", "uri", "link", "website"}:
        return f"https://example.com/{rng.choice(THINGS)}"
    if words & {"phone", "mobile", "telephone", "fax"}:
        return f"+1-555-{rng.randrange(1000, 10000)}"
    of_person = {"full"} if words == {"name"} and _PERSON in tool else set[str]()
    text = (
        _path(words, tool, rng, endings)
        if _is_path(words, tool)
        else other_text(words | of_person, whose, rng)
    )
    least = min(int(cast(int, schema.get("minLength", 0))), _MOST_CHARS)
    most = int(cast(int, schema.get("maxLength", 10_000)))
    while len(text) < least:
        text += f" {rng.choice(THINGS)}"
    return text[:most].strip() or "x" * max(1, least)


def _of_pattern(pattern: str, schema: JsonObject, name: str, rng: random.Random, tool: set[str]) -> str:
    """Return a natural value if it matches the pattern, else a random match of the pattern."""
    said = _string({key: one for key, one in schema.items() if key != "pattern"}, name, rng, tool)
    with contextlib.suppress(BadPattern, TookTooLong):
        if patterns.engine(pattern)(said):
            return said
        return patterns.draw(_ANY_DIGITS.sub(r"\\d{3}", pattern), rng)
    return said


def _is_path(words: set[str], tool: set[str]) -> bool:
    """Whether a parameter names a file or a folder; `source` and `destination` need a tool about files."""
    return bool(words & (PATHS - {"source", "destination"})) or bool(
        words & (PATHS | PLACES) and tool & (PATHS | PLACES)
    )


def _path(words: set[str], tool: set[str], rng: random.Random, endings: Sequence[str]) -> str:
    name = f"{rng.choice(QUALITIES)}-{rng.choice(THINGS)}"
    is_place = words & PLACES or (tool & PLACES and not words & {"file", "filename"})
    return name if is_place else f"{name}.{rng.choice(endings)}"
