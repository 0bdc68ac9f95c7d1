"""Values drawn uniformly from JSON schemas of the kind that environments give.

Not a general generator: it knows what the grammars of genenv use (anyOf, const, enum, $ref, objects with all
properties required, arrays with prefixItems, integers with bounds, booleans, strings with a pattern).
"""

from __future__ import annotations

import random
import re
import string
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sre_constants
    import sre_parse

_PRINTABLE = [c for c in string.printable if c.isprintable()]
_MOST_REPEATS = 8
"""Of a star: beyond the least number of repeats."""


def draw(schema: Mapping[str, Any], rng: random.Random, root: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
    """A value that the schema allows."""
    root = schema if root is None else root
    if "$ref" in schema:
        return draw(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], rng, root)
    if "anyOf" in schema:
        return draw(rng.choice(schema["anyOf"]), rng, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return {name: draw(part, rng, root) for name, part in schema["properties"].items()}
        case "array":
            return _array(schema, rng, root)
        case "integer" | "number":
            return rng.randint(schema.get("minimum", 0), schema.get("maximum", 100))
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return _text(schema, rng)
        case kind:
            raise ValueError(f"this generator knows no schema of type {kind!r}")


def _array(schema: Mapping[str, Any], rng: random.Random, root: Mapping[str, Any]) -> list[Any]:
    first = schema.get("prefixItems", [])
    least = max(schema.get("minItems", 0), len(first))
    more = schema.get("items", False)
    most = least if more is False else schema.get("maxItems", least + 4)
    n = rng.randint(least, max(least, most))
    parts: list[Any] = [*first[:n], *[more] * (n - len(first))]
    return [draw(part, rng, root) for part in parts]


def _text(schema: Mapping[str, Any], rng: random.Random) -> str:
    if "pattern" in schema:
        return "".join(_matching(sre_parse.parse(schema["pattern"]).data, rng))
    n = rng.randint(schema.get("minLength", 0), schema.get("maxLength", 40))
    return "".join(rng.choice(_PRINTABLE) for _ in range(n))


def _matching(parts: Sequence[tuple[Any, Any]], rng: random.Random) -> list[str]:
    """A text that matches a parsed regular expression, in pieces."""
    found: list[str] = []
    for kind, value in parts:
        match kind:
            case sre_constants.LITERAL:
                found.append(chr(value))
            case sre_constants.NOT_LITERAL:
                found.append(rng.choice([c for c in _PRINTABLE if ord(c) != value]))
            case sre_constants.ANY:
                found.append(rng.choice(_PRINTABLE))
            case sre_constants.IN:
                pattern = re.compile(_class(value))
                found.append(rng.choice([c for c in _PRINTABLE if pattern.match(c)]))
            case sre_constants.BRANCH:
                found += _matching(rng.choice(value[1]), rng)
            case sre_constants.SUBPATTERN:
                found += _matching(value[3], rng)
            case sre_constants.MAX_REPEAT | sre_constants.MIN_REPEAT:
                least, most, part = value
                for _ in range(rng.randint(least, min(most, least + _MOST_REPEATS))):
                    found += _matching(part, rng)
            case sre_constants.AT:
                pass
            case _:
                raise ValueError(f"this generator knows no {kind} in a pattern")
    return found


def _class(items: Sequence[tuple[Any, Any]]) -> str:
    written = ""
    for kind, value in items:
        match kind:
            case sre_constants.NEGATE:
                written += "^"
            case sre_constants.LITERAL:
                written += re.escape(chr(value))
            case sre_constants.RANGE:
                written += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
            case sre_constants.CATEGORY:
                written += {"CATEGORY_DIGIT": r"\d", "CATEGORY_WORD": r"\w", "CATEGORY_SPACE": r"\s"}[
                    str(value)
                ]
            case _:
                raise ValueError(f"this generator knows no {kind} in a class")
    return f"[{written}]"
