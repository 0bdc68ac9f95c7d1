"""Draws random JSON values that are valid for a JSON schema, with uniform choices.

Supported are the parts that schemas of specs use: `const`, `enum`, `anyOf`, `$ref`, objects, arrays and
numbers with bounds and steps, and strings with a regular expression. Alternatives are equally likely, and so
are all lengths and numbers between their bounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from genenv.errors import UsageError
from genenv.types import Json, JsonObject
from genenv.untrusted.patterns import BadPattern, draw

_MORE_ITEMS = 3
"""How many items an array without an upper bound may have beyond its minimum."""
_SPAN = 1000.0
"""Numbers without bounds are drawn from [-1000, 1000]."""
_MOST = 100_000
"""Maximum number of values and characters that one schema may require."""


def sample_json(schema: JsonObject, rng: random.Random) -> Json:
    """Return a random value that is valid for a schema.

    Args:
        schema: JSON schema; references point into its `$defs`.
        rng: source of randomness.

    Raises:
        UsageError: the schema uses an unsupported keyword, or requires too large a value.
    """
    try:
        return _Sampler(schema, rng).value(schema)
    except RecursionError as error:
        raise UsageError(_TOO_LARGE) from error
    except BadPattern as error:
        raise UsageError(
            f"no text can be drawn from a pattern of an environment's schema: {error}"
        ) from error


_NOTHING = (
    "simulator.source = 'grammar' cannot draw from a part of an environment's schema that allows nothing: {}"
)
_TOO_LARGE = (
    "simulator.source = 'grammar' cannot draw a value: an environment's schema asks for endless or huge ones"
)


class _Sampler:
    def __init__(self, root: JsonObject, rng: random.Random) -> None:
        self._root, self._rng = root, rng
        self._left = _MOST
        self._kinds: Mapping[str, Callable[[JsonObject], Json]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda schema: rng.random() < 0.5,
            "null": lambda schema: None,
        }

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise UsageError(_TOO_LARGE)

    def value(self, schema: JsonObject) -> Json:
        self._spend(1)
        if "$ref" in schema:
            return self.value(self._referred(str(schema["$ref"])))
        if "const" in schema:
            return schema["const"]
        for choice in ("enum", "anyOf", "oneOf"):
            if choice in schema:
                chosen = self._rng.choice(cast(Sequence[Json], schema[choice]))
                return chosen if choice == "enum" else self.value(cast(JsonObject, chosen))
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in self._kinds:
            raise UsageError(
                f"simulator.source = 'grammar' cannot draw from this part of an environment's schema: "
                f"{schema}"
            )
        return self._kinds[kind](schema)

    def _referred(self, path: str) -> JsonObject:
        found: Json = self._root
        for part in filter(None, path.removeprefix("#").split("/")):
            found = cast(JsonObject, found)[part]
        return cast(JsonObject, found)

    def _object(self, schema: JsonObject) -> Json:
        properties = cast(Mapping[str, JsonObject], schema.get("properties", {}))
        required = cast(Sequence[str], schema.get("required", ()))
        return {
            name: self.value(part)
            for name, part in properties.items()
            if name in required or self._rng.random() < 0.5
        }

    def _array(self, schema: JsonObject) -> Json:
        first = cast(Sequence[JsonObject], schema.get("prefixItems", ()))
        items = schema.get("items")
        least = int(cast(float, schema.get("minItems", 0)))
        most = int(cast(float, schema.get("maxItems", max(least, len(first)) + _MORE_ITEMS)))
        self._spend(least)
        most = min(most, max(least, _MOST))
        if items is False:
            most = len(first)
        parts = [*first, *([cast(JsonObject, items)] * most if isinstance(items, Mapping) else [])]
        length = self._rng.randint(least, max(least, min(most, len(parts))))
        return [self.value(part) for part in parts[:length]]

    def _string(self, schema: JsonObject) -> Json:
        if "pattern" in schema:
            return draw(str(schema["pattern"]), self._rng)
        least = int(cast(float, schema.get("minLength", 0)))
        most = int(cast(float, schema.get("maxLength", least + 20)))
        self._spend(least)
        return draw(f"[A-Za-z ]{{{least},{max(least, min(most, 100))}}}", self._rng)

    def _integer(self, schema: JsonObject) -> Json:
        return int(self._multiple(schema, cast(float, schema.get("multipleOf", 1))))

    def _number(self, schema: JsonObject) -> Json:
        if "multipleOf" in schema:
            return self._multiple(schema, cast(float, schema["multipleOf"]))
        low, high = self._bounds(schema)
        excluded = (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
        value = self._rng.uniform(low, high)
        for found in (round(value, 2), value, (low + high) / 2):
            if low <= found <= high and found not in excluded:
                return found
        raise UsageError(_NOTHING.format(schema))

    def _multiple(self, schema: JsonObject, step: float) -> float:
        """Return a random multiple of a step within the bounds."""
        low, high = self._bounds(schema)
        first, last = math.ceil(low / step), math.floor(high / step)
        first += first * step == schema.get("exclusiveMinimum")
        last -= last * step == schema.get("exclusiveMaximum")
        if first > last:
            raise UsageError(_NOTHING.format(schema))
        return self._rng.randint(first, last) * step

    def _bounds(self, schema: JsonObject) -> tuple[float, float]:
        """Return the closed interval of a number; an excluded end counts as inside."""
        lowest = [cast(float, schema[key]) for key in ("minimum", "exclusiveMinimum") if key in schema]
        highest = [cast(float, schema[key]) for key in ("maximum", "exclusiveMaximum") if key in schema]
        most = min(highest) if highest else None
        usual = -_SPAN if most is None else 0.0 if most >= 0 else most - _SPAN
        low = float(max(lowest)) if lowest else usual
        high = low + 2 * _SPAN if most is None else float(most)
        if low > high:
            raise UsageError(_NOTHING.format(schema))
        return low, high
