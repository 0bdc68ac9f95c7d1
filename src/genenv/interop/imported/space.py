"""The space of the tasks of another library: lists of values to choose from, and numbers (seeds or rows)."""

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
from genenv.environments.base import Options
from genenv.environments.common import at_random, closed_object, schema_of
from genenv.errors import UsageError
from genenv.types import Json, JsonObject

_NO_SKILL = re.compile(r"[^A-Za-z0-9_.:+=-]+")
_LONGEST_SKILL = 64
_FEW = 1000
"""The most numbers to list as options if the number is the only thing that can be set."""


class Chosen(BaseModel, frozen=True, extra="allow"):
    """A task's parameters: a value for each name of `vary`, and the number (seed or row)."""

    @property
    def values(self) -> JsonObject:
        """Return the values by name."""
        return cast(JsonObject, self.model_dump(mode="json"))


class Space:
    """The space of all tasks: the lists of values in the setting `vary`, times the numbers (seeds or rows).

    Args:
        vary: lists of values by name, in tables that may be nested.
        number: the name of the number, `seed` or `row`.
        numbers: how many numbers are for training; 0: tasks have no number.

    Raises:
        UsageError: `vary` contains a value that is neither a table nor a non-empty list.
    """

    def __init__(self, vary: Mapping[str, JsonValue], number: str, numbers: int) -> None:
        paths = dict(_leaves(vary, ()))
        if numbers and (number,) in paths:
            raise UsageError(
                f"environment.vary lists values of {number!r}, but tasks have a {number} of their own; leave "
                "it out of environment.vary"
            )
        last = [path[-1] for path in paths]
        self._paths = {
            path[-1] if last.count(path[-1]) == 1 and path[-1] != number else ".".join(path): path
            for path in paths
        }
        self.number, self.numbers = number, numbers
        self.values: dict[str, Sequence[Json]] = {name: paths[path] for name, path in self._paths.items()}
        """The possible values, by name."""

    def options(self) -> Options:
        """Return the options that a simulator chooses from; the number is one only if nothing else varies."""
        if self.values or not self.numbers:
            return (dict(self.values),)
        return ({self.number: range(min(_FEW, self.numbers))},)

    def schema(self) -> JsonObject:
        """Return the JSON schema of a task's parameters, including the number."""
        if not self.numbers:
            return schema_of(self.options())
        number: JsonObject = {"type": "integer", "minimum": 0, "maximum": self.numbers - 1}
        fields = {name: {"enum": list(values)} for name, values in self.values.items()}
        return closed_object({**fields, self.number: number})

    def drawn(self, rng: random.Random) -> dict[str, Json]:
        """Return parameters drawn at random."""
        return self.numbered(at_random(self.options(), rng), rng)

    def numbered(self, chosen: JsonObject, rng: random.Random) -> dict[str, Json]:
        """Return the chosen parameters, with a number drawn at random if they have none."""
        if not self.numbers or self.number in chosen:
            return dict(chosen)
        return {**chosen, self.number: rng.randrange(self.numbers)}

    def spread(self, count: int, first: int) -> list[dict[str, Json]]:
        """Return up to `count` different sets of parameters, spread evenly over the values.

        Args:
            count: the number to return; fewer if there are fewer combinations and no number.
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
        """Return the values at one place: by enumeration if all combinations fit, else at random."""
        if self.numbers and ways > count:
            rng = random.Random(place)
            return {name: rng.choice(values) for name, values in self.values.items()}
        found: dict[str, Json] = {}
        for name, values in self.values.items():
            place, which = divmod(place, len(values))
            found[name] = values[which]
        return found

    def problem(self, chosen: JsonObject) -> str:
        """Return an error sentence about the chosen parameters, or "" if they are valid."""
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
        """Return the arguments that the environment gets, without the number.

        Args:
            chosen: the task's parameters.
            beneath: further arguments, which the parameters override.
        """
        found = dict(beneath)
        for name, path in self._paths.items():
            value: Json = chosen[name]
            for part in reversed(path):
                value = {part: value}
            found = merged(found, cast(JsonObject, value))
        return found

    def shared(self, given: Mapping[str, JsonValue]) -> str:
        """Return the name of a parameter that arguments set, too; "" if they set none."""
        return next((name for name, path in self._paths.items() if _sets(given, path)), "")

    def skills(self, chosen: JsonObject, otherwise: str) -> tuple[str, ...]:
        """Return the task's skills, one per parameter and value; `otherwise` if it has no parameters."""
        return skills_of({k: v for k, v in chosen.items() if k != self.number}) or (otherwise,)


def skills_of(values: JsonObject) -> tuple[str, ...]:
    """Return a skill for each name and value; a text that a skill cannot hold ends with a hash."""
    found: list[str] = []
    for text in (f"{name}={value}" for name, value in values.items()):
        short = _NO_SKILL.sub("_", text)
        whole = short == text.replace(" ", "_") and len(short) <= _LONGEST_SKILL
        found.append(short if whole else f"{short[: _LONGEST_SKILL - 9]}.{digest(text)[:8]}")
    return tuple(found)


def digest(value: Json) -> str:
    """Return a hash of a JSON value as 24 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _sets(given: object, path: Sequence[str]) -> bool:
    """Return whether arguments set the value at a path, or a table around it."""
    for part in path:
        if not isinstance(given, Mapping):
            return True
        if part not in given:
            return False
        given = cast("Mapping[str, object]", given)[part]
    return True


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
