"""Untrusted JSON schemas: conversion to trees without references, and checks of values.

A schema is made plain once, on input. Each reference is replaced by the part of the same schema that it
names, and keywords with values that are invalid in JSON schema are dropped. So later code never looks up a
file or an address, never meets a cycle, and can rely on the keywords.
"""

from __future__ import annotations

import contextvars
import functools
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from genenv.errors import UsageError
from genenv.types import Json, JsonObject
from genenv.untrusted.documents import Unreadable, plain
from genenv.untrusted.patterns import BadPattern, TookTooLong, engine, is_pattern

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

MOST_PARTS = 5000
"""Maximum subschemas of a plain schema, with references expanded; the rest is replaced by {}, which allows
all."""
DEEPEST = 24
"""Maximum nesting of schemas."""
MOST_STEPS = 50_000
"""Maximum keywords evaluated to check one value: about a second."""

Check = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]
"""A keyword of a validator: called with the validator, the keyword's content, the value and the schema."""


class BadSchema(UsageError):
    """Raised if a schema cannot be used. The message is the end of a sentence: `it is no object`."""


# --- making a schema plain ---

_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")


def _is_type(value: Json) -> bool:
    return value in _TYPES or (
        isinstance(value, list) and bool(value) and all(one in _TYPES for one in value)
    )


def _is_count(value: Json) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)
    )


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


_VALUES: Mapping[str, Callable[[Json], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": lambda value: True,
    "default": lambda value: True,
    "example": lambda value: True,
    "examples": lambda value: isinstance(value, list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and cast(float, value) > 0,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties", "maxContains"), _is_count),
    "pattern": lambda value: isinstance(value, str) and is_pattern(value),
    "required": _is_names,
    "dependentRequired": lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
    **dict.fromkeys(("title", "description", "format"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), lambda value: isinstance(value, str)),
    **dict.fromkeys(
        ("uniqueItems", "readOnly", "writeOnly", "deprecated"), lambda value: isinstance(value, bool)
    ),
}
"""Keyword without subschemas -> a test of its content."""
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")
"""Keywords whose content is one schema (`_ONE`), a list of schemas, or schemas by name."""
_ABOUT = frozenset(
    ("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly")
)
"""Keywords that do not constrain values."""
_TOGETHER = (
    frozenset(("properties", "patternProperties", "additionalProperties")),
    frozenset(("items", "prefixItems")),
    frozenset(("if", "then", "else")),
    frozenset(("contains", "minContains", "maxContains")),
)
"""Keywords whose meaning depends on others of the same schema."""


def fits_keyword(keyword: str, value: Json) -> bool:
    """Return whether a value is valid content of a keyword without subschemas.

    Args:
        keyword: such as `type` or `minimum`; False for unknown keywords.
        value: plain JSON.
    """
    known = _VALUES.get(keyword)
    return known is not None and known(value)


def plain_schema(schema: object) -> JsonObject:
    """Return a schema as a tree without references; a plain schema is unchanged.

    A reference to an enclosing part is cut, and allows all values there.

    Args:
        schema: the untrusted schema.

    Raises:
        BadSchema: the schema is not an object, is too large, or refers to something outside itself.
    """
    if not isinstance(schema, Mapping):
        raise BadSchema("it is no object")
    try:
        root = cast(JsonObject, plain(cast(object, schema), "it"))
    except Unreadable as error:
        raise BadSchema(str(error)) from error
    return _Plain(root).of(root, ())


def part_at(root: Any, pointer: str) -> tuple[Any] | None:  # noqa: ANN401 - JSON
    """Return the part of plain JSON at a JSON pointer (RFC 6901) in a 1-tuple, or None if there is none.

    Args:
        root: the JSON value.
        pointer: without `#/`, percent-encoded as in a URL.
    """
    found = root
    for part in pointer.split("/"):
        key = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = cast("Mapping[str, Any]", found)[key]
        elif isinstance(found, list) and key.isdecimal() and int(key[:9]) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(key[:9])]
        else:
            return None
    return (found,)


class _Plain:
    """Makes the parts of one schema plain."""

    def __init__(self, root: JsonObject) -> None:
        self._root, self._left = root, MOST_PARTS
        base = root.get("$id", root.get("id"))
        self._base = base.removesuffix("#") if isinstance(base, str) else ""

    def of(self, schema: Json, inside: tuple[str, ...]) -> dict[str, Json]:
        """Return a part of the schema in plain form.

        Args:
            schema: the untrusted part.
            inside: the references followed so far, and "" for each other step.
        """
        self._left -= 1
        if schema is False:
            return {"not": {}}
        if self._left < 0 or len(inside) >= DEEPEST or not isinstance(schema, Mapping):
            return {}
        own = self._own(schema, (*inside, ""))
        reference = schema.get("$ref", schema.get("$dynamicRef", schema.get("$recursiveRef")))
        if not isinstance(reference, str):
            return own
        found = self._referred(reference)
        if reference in inside:
            return own
        other = self.of(found, (*inside, reference))
        meet = (own.keys() & group and other.keys() & group for group in _TOGETHER)
        if own.keys().isdisjoint(other.keys() - _ABOUT) and not any(meet):
            return {**other, **own}
        return {**own, "allOf": [*cast("Sequence[Json]", own.get("allOf", ())), other]}

    def _own(self, schema: JsonObject, inside: tuple[str, ...]) -> dict[str, Json]:
        """Return a part without its reference: only its other keywords."""
        kept: dict[str, Json] = {}
        for keyword, value in _modern(schema).items():
            if keyword == "additionalProperties" and isinstance(value, bool):
                kept[keyword] = value
            elif keyword in _ONE and isinstance(value, Mapping | bool):
                kept[keyword] = self.of(value, inside)
            elif keyword in _LIST and isinstance(value, list) and value:
                kept[keyword] = [self.of(one, inside) for one in cast("Sequence[Json]", value)]
            elif keyword in _NAMED and isinstance(value, Mapping):
                named = {
                    name: self.of(one, inside)
                    for name, one in value.items()
                    if keyword != "patternProperties" or is_pattern(name)
                }
                kept[keyword] = named
            elif fits_keyword(keyword, value):
                kept[keyword] = value
        return kept

    def _referred(self, reference: str) -> Json:
        """Return the part of the schema that a reference names.

        Raises:
            BadSchema: the reference leads to another file, or nowhere.
        """
        place = reference
        if self._base and place.startswith(self._base):
            place = place.removeprefix(self._base) or "#"
        if not place.startswith("#"):
            raise BadSchema(f"it refers to {reference[:200]!r}, and only what a schema holds itself is read")
        found: Json = self._root
        if place in ("#", "#/"):
            return found
        if not place.startswith("#/"):
            return self._anchored(place[1:], reference)
        part = part_at(found, place[2:])
        if part is None:
            raise BadSchema(f"it refers to {reference[:200]!r}, which it does not hold")
        return part[0]

    def _anchored(self, anchor: str, reference: str) -> Json:
        waiting: list[Json] = [self._root]
        while waiting:
            one = waiting.pop()
            if isinstance(one, Mapping):
                if anchor in (one.get("$anchor"), one.get("$dynamicAnchor")):
                    return one
                waiting += one.values()
            elif isinstance(one, list):
                waiting += one
        raise BadSchema(f"it refers to {reference[:200]!r}, which it does not hold")


def _modern(schema: JsonObject) -> JsonObject:
    """Translate keywords of earlier drafts to the newest draft."""
    told = dict(schema)
    items = told.get("items")
    if isinstance(items, list):
        told["prefixItems"] = items
        told["items"] = told.get("additionalItems", True)
    depending = told.pop("dependencies", None)
    for name, needed in depending.items() if isinstance(depending, Mapping) else ():
        keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        known = told.get(keyword, {})
        told[keyword] = {name: needed, **known} if isinstance(known, Mapping) else {name: needed}
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(told.get(bound), bool) and told.pop(bound) and limit in told:
            told[bound] = told.pop(limit)
    if told.pop("nullable", False) is True:
        if isinstance(told.get("type"), str):
            told["type"] = [cast(str, told["type"]), "null"]
        if isinstance(listed := told.get("enum"), list):
            told["enum"] = [*(one for one in listed if one is not None), None]
    return told


# --- checking a value ---


class Validator:
    """Checks values against one schema, in bounded time.

    Args:
        schema: a plain schema (`plain_schema`).
    """

    def __init__(self, schema: JsonObject) -> None:
        self._validator = _validator_class()(schema)

    def problem(self, value: Json) -> tuple[str, str] | None:
        """Return the place of a value's first fault and the end of a sentence about it; None if it is valid.

        A value whose check takes too long counts as invalid.
        """
        from jsonschema import exceptions  # takes a while to load

        left = _LEFT.set([MOST_STEPS])
        try:
            error = cast(
                "ValidationError | None", cast(Any, exceptions).best_match(self._validator.iter_errors(value))
            )
        except TookTooLong as late:
            return "", str(late)
        except (ArithmeticError, ValueError):  # of numbers that no float holds, that cannot be shown, or NaN
            return "", "it holds a number that is too large to be checked"
        finally:
            _LEFT.reset(left)
        if error is None:
            return None
        return ".".join(str(part) for part in error.absolute_path), error.message[:200]


_LEFT: contextvars.ContextVar[list[int]] = contextvars.ContextVar("steps left")


@functools.cache
def _validator_class() -> Any:  # noqa: ANN401 - jsonschema makes classes
    """Return the newest draft's validator, with bounded matching, a step budget and no lookups."""
    import jsonschema
    from jsonschema import validators
    from referencing import Registry

    known = dict(cast("Mapping[str, Check]", cast(Any, jsonschema.Draft202012Validator).VALIDATORS))
    for keyword in ("$ref", "$dynamicRef", "unevaluatedItems", "unevaluatedProperties"):
        del known[keyword]  # a plain schema has none
    known |= {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of,
    }
    counted = {keyword: _counted(check) for keyword, check in known.items()}
    made: Any = cast(Any, validators).extend(jsonschema.Draft202012Validator, counted)
    return functools.partial(made, registry=cast(Any, Registry)())


def _counted(check: Check) -> Check:
    """Wrap a keyword so that each evaluation takes a step of the budget; long lists take more steps."""

    def counting(validator: Any, says: Any, value: Any, schema: Any) -> Iterator[ValidationError] | None:  # noqa: ANN401
        _take(1 + (len(cast("list[object]", says)) if isinstance(says, list) else 0))
        for error in check(validator, says, value, schema) or ():
            # jsonschema writes the whole value into the message of each error
            _take(1 + len(cast("list[object]", value)) // 10 if isinstance(value, list | dict | str) else 1)
            yield error

    return counting


def _take(steps: int) -> None:
    """Take steps from the budget of the current check.

    Raises:
        TookTooLong: the budget is exhausted.
    """
    left = _LEFT.get()
    left[0] -= steps
    if left[0] < 0:
        raise TookTooLong("it is too large to be checked against what is asked for")


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


def _matches(pattern: str, text: str) -> bool:
    _take(1)
    try:
        return engine(pattern)(text)
    except BadPattern:  # an invalid pattern is not enforced
        return True


def _pattern(_: object, says: str, value: object, _schema: JsonObject) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _matches(says, value):
        yield _error(f"{value!r} does not match {says!r}")


def _pattern_properties(
    validator: Draft202012Validator, says: Mapping[str, JsonObject], value: object, _schema: JsonObject
) -> Iterator[ValidationError]:
    held = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
    for pattern, part in says.items():
        for name in held:
            if _matches(pattern, name):
                yield from cast(Any, validator).descend(held[name], part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Draft202012Validator, says: JsonObject | bool, value: object, schema: JsonObject
) -> Iterator[ValidationError]:
    known = cast(JsonObject, schema.get("properties", {}))
    patterns = cast(JsonObject, schema.get("patternProperties", {}))
    held = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
    others = [name for name in held if name not in known and not any(_matches(one, name) for one in patterns)]
    if says is False and others:
        yield _error(f"Additional properties are not allowed ({', '.join(map(repr, sorted(others)))})")
    for name in others if isinstance(says, dict) else ():
        yield from cast(Any, validator).descend(held[name], says, path=name)


def _multiple_of(_: object, says: float, value: object, _schema: JsonObject) -> Iterator[ValidationError]:
    if isinstance(value, int | float) and not isinstance(value, bool) and not _is_multiple(value, says):
        yield _error(f"{value!r} is not a multiple of {says!r}")


def _is_multiple(value: float, step: float) -> bool:
    """Return whether a number is a multiple of a step: as both are written, or as floats are multiplied."""
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    exact = Fraction(str(value)) / Fraction(str(step))  # of 19.99 and 0.01, whose floats leave a rest
    return exact.denominator == 1 or round(value / step) * step == value


def _unique_items(_: object, says: bool, value: object, _schema: JsonObject) -> Iterator[ValidationError]:
    listed = cast("list[Json]", value) if isinstance(value, list) else []
    if says and len({json.dumps(_canonical(one), sort_keys=True) for one in listed}) < len(listed):
        yield _error(f"{value!r} has non-unique elements")


def _canonical(value: Json) -> Json:
    """Return a value such that equal JSON values are identical: 1.0 becomes 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _canonical(one) for name, one in value.items()}
    return [_canonical(one) for one in value] if isinstance(value, list) else value
