"""Specs drawn at random from a grammar: what a simulator that knows nothing would write."""

from __future__ import annotations

import random
import re
import re._constants as op  # pyright: ignore[reportMissingImports] - the parser that the standard library uses
import re._parser as parser  # pyright: ignore[reportMissingImports]
from typing import Any


def drawn(schema: Any, rng: random.Random) -> Any:
    """A value that a schema of this domain allows."""
    if "anyOf" in schema:
        return drawn(rng.choice(schema["anyOf"]), rng)
    if "const" in schema:
        return schema["const"]
    if schema["type"] == "object":
        return {name: drawn(inner, rng) for name, inner in schema["properties"].items()}
    if schema["type"] == "array":
        return [drawn(inner, rng) for inner in schema["prefixItems"]]
    return _text(parser.parse(schema["pattern"]), rng)


def allows(schema: Any, value: Any) -> bool:
    """Whether a schema of this domain allows a value."""
    if "anyOf" in schema:
        return any(allows(inner, value) for inner in schema["anyOf"])
    if "const" in schema:
        return value == schema["const"] and type(value) is type(schema["const"])
    if schema["type"] == "object":
        inner = schema["properties"]
        return list(value) == list(inner) and all(allows(inner[name], value[name]) for name in inner)
    if schema["type"] == "array":
        items = schema["prefixItems"]
        return len(value) == len(items) and all(map(allows, items, value))
    return re.search(schema["pattern"], value) is not None


def _text(tree: Any, rng: random.Random) -> str:
    return "".join(_part(kind, value, rng) for kind, value in tree)


def _part(kind: Any, value: Any, rng: random.Random) -> str:
    if kind is op.LITERAL:
        return chr(value)
    if kind is op.AT:
        return ""
    if kind is op.SUBPATTERN:
        return _text(value[3], rng)
    if kind is op.BRANCH:
        return _text(rng.choice(value[1]), rng)
    if kind is op.IN:
        return _part(*rng.choice(value), rng)
    if kind is op.MAX_REPEAT:
        least, most, inner = value
        return "".join(_text(inner, rng) for _ in range(rng.randint(least, most)))
    raise ValueError(f"the grammar has something new: {kind}")
