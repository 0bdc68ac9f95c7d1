"""Which tasks an environment of others has: what it is given, and a number, its seed or its row."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel, JsonValue

from genenv.config.tables import merged
from genenv.environments.parameters import Options, at_random, schema_of
from genenv.errors import UsageError
from genenv.types import Json, JsonObject

_NO_SKILL = re.compile(r"[^A-Za-z0-9_.:+=-]+")
_FEW = 64
"""So many numbers stand one by one where nothing but a number can be set."""


class Chosen(BaseModel, frozen=True, extra="allow"):
    """What is set of a task: a value for each name of `vary`, and the number."""

    @property
    def values(self) -> JsonObject:
        """By name."""
        return cast(JsonObject, self.model_dump(mode="json"))


class Space:
    """All tasks that can be set.

    Args:
        vary: lists of values, in tables that may be deep.
        number: what the number is called, `seed` or `row`.
        numbers: how many there are for training; 0: none is given.

    Raises:
        UsageError: `vary` holds something else than lists.
    """

    def __init__(self, vary: Mapping[str, JsonValue], number: str, numbers: int) -> None:
        paths = dict(_leaves(vary, ()))
        last = [path[-1] for path in paths]
        self._paths = {
            path[-1] if last.count(path[-1]) == 1 and path[-1] != number else ".".join(path): path
            for path in paths
        }
        self.number, self.numbers = number, numbers
        self.values: dict[str, Sequence[Json]] = {name: paths[path] for name, path in self._paths.items()}
        """The possible values, by name."""

    def options(self) -> Options:
        """What a simulator sets; the number is drawn, unless there is nothing else."""
        if self.values or not self.numbers:
            return (dict(self.values),)
        return ({self.number: range(min(_FEW, self.numbers))},)

    def schema(self) -> JsonObject:
        """The schema of all that can be set, the number included."""
        if not self.numbers:
            return schema_of(self.options())
        number: JsonObject = {"type": "integer", "minimum": 0, "maximum": self.numbers - 1}
        fields = {name: {"enum": list(values)} for name, values in self.values.items()}
        return {
            "type": "object",
            "properties": {**fields, self.number: number},
            "required": [*fields, self.number],
            "additionalProperties": False,
        }

    def drawn(self, rng: random.Random) -> dict[str, Json]:
        """Anything that can be set, at random."""
        return self.numbered(at_random(self.options(), rng), rng)

    def numbered(self, chosen: JsonObject, rng: random.Random) -> dict[str, Json]:
        """What was chosen, with a number drawn where it has none."""
        if not self.numbers or self.number in chosen:
            return dict(chosen)
        return {**chosen, self.number: rng.randrange(self.numbers)}

    def spread(self, count: int, first: int) -> list[dict[str, Json]]:
        """So many that differ, as different as they can be.

        Args:
            count: how many.
            first: the first number.
        """
        ways = math.prod(len(values) for values in self.values.values())
        if not self.numbers:
            count = min(count, ways)
        return [
            self._way(place, ways, count) | ({self.number: first + place} if self.numbers else {})
            for place in range(count)
        ]

    def _way(self, place: int, ways: int, count: int) -> dict[str, Json]:
        """The values of one of them: in turn where all have room, else at random."""
        if self.numbers and ways > count:
            rng = random.Random(place)
            return {name: rng.choice(values) for name, values in self.values.items()}
        found: dict[str, Json] = {}
        for name, values in self.values.items():
            place, which = divmod(place, len(values))
            found[name] = values[which]
        return found

    def problem(self, chosen: JsonObject) -> str:
        """What is wrong with what was set; nothing if it is empty."""
        wanted = {*self.values, *([self.number] if self.numbers else [])}
        if odd := sorted(wanted ^ set(chosen)):
            return f"{odd[0]!r} is {'missing' if odd[0] in wanted else 'nothing that can be set'}"
        for name, values in self.values.items():
            if chosen[name] not in values:
                return f"{name} is {chosen[name]!r}, which is none of its values"
        number = chosen.get(self.number, 0)
        if self.numbers and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            return f"{self.number} is {number!r}, not a whole number from 0 on"
        return ""

    def given(self, chosen: JsonObject, beneath: JsonObject) -> dict[str, Json]:
        """What the environment is given, without the number.

        Args:
            chosen: what was set.
            beneath: what it is given beside.
        """
        found = dict(beneath)
        for name, path in self._paths.items():
            value: Json = chosen[name]
            for part in reversed(path):
                value = {part: value}
            found = merged(found, cast(JsonObject, value))
        return found

    def skills(self, chosen: JsonObject, otherwise: str) -> tuple[str, ...]:
        """What a task exercises: the values that were set."""
        named = [f"{name}={value}" for name, value in chosen.items() if name != self.number]
        return tuple(_NO_SKILL.sub("_", one)[:64] for one in named) or (otherwise,)


def digest(value: Json) -> str:
    """A word for a value: equal values have the same."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _leaves(
    table: Mapping[str, JsonValue], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Sequence[Json]]]:
    for name, value in table.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif isinstance(value, list) and value:
            yield here, value
        else:
            raise UsageError(
                f"environment.vary: {'.'.join(here)} must be a list of values, such as [1, 2, 3]"
            )
