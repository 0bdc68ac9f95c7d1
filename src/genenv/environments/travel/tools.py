"""The agent's tools: one call a turn, in a python-like form that is parsed and never run.

Results are short lines, cheapest first, cut to a length. What cannot be read, or is not known, ends in one
line that says so, and costs a turn like everything else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from genenv.environments.travel.database import Database
from genenv.environments.travel.query import Query
from genenv.environments.travel.reference import flight_line, restaurant_line, road_lines, room_line
from genenv.environments.travel.trips import Trip

_MAX_CALL_CHARS = 300
_NONE = "Nothing found."


class Call(NamedTuple):
    """A call that could be read."""

    tool: str
    arguments: tuple[str, ...]


def _flights(data: Database, origin: str, destination: str, date: str) -> list[str]:
    rows = sorted(data.flights(origin, destination, date), key=lambda row: (row.price, row.number))
    return [flight_line(row) for row in rows]


def _distance(data: Database, origin: str, destination: str, mode: str) -> list[str]:
    return [line for line in road_lines(origin, destination, data) if line.lower().startswith(mode.lower())]


def _accommodations(data: Database, city: str) -> list[str]:
    return [
        room_line(row) for row in sorted(data.accommodations(city), key=lambda row: (row.price, row.name))
    ]


def _restaurants(data: Database, city: str) -> list[str]:
    rows = sorted(data.restaurants(city), key=lambda row: (row.average_cost, row.name))
    return [restaurant_line(row) for row in rows]


def _attractions(data: Database, city: str) -> list[str]:
    return [row.name for row in data.attractions(city)]


TOOLS: Mapping[str, tuple[Callable[..., list[str]], tuple[str, ...]]] = {
    "flights": (_flights, ("origin", "destination", "date")),
    "distance": (_distance, ("origin", "destination", "mode")),
    "accommodations": (_accommodations, ("city",)),
    "restaurants": (_restaurants, ("city",)),
    "attractions": (_attractions, ("city",)),
}
"""Tool -> what answers, and its parameters; all are texts."""


def answer(reply: str, data: Database, *, chars: int) -> str:
    """What the agent is told after a call.

    Args:
        reply: should be one call of a tool.
        data: where it is looked up.
        chars: the most that is said.
    """
    call = read_call(reply)
    if isinstance(call, str):
        return call
    find, _ = TOOLS[call.tool]
    return _cut(find(data, *call.arguments), chars)


def read_call(reply: str) -> Call | str:
    """The call of a reply, or a sentence on why there is none."""
    if len(reply) > _MAX_CALL_CHARS:
        return f"Error: a call has at most {_MAX_CALL_CHARS} characters."
    try:
        node = ast.parse(reply.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "Error: write one call of a tool, or the plan as JSON."
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return "Error: write one call of a tool, or the plan as JSON."
    if node.func.id not in TOOLS:
        return f"Error: there is no tool {node.func.id[:40]!r}; there are {', '.join(TOOLS)}."
    _, names = TOOLS[node.func.id]
    values = {**dict(zip(names, node.args, strict=False)), **{word.arg: word.value for word in node.keywords}}
    texts = [value.value for name in names if isinstance(value := values.get(name), ast.Constant)]
    strings = tuple(text for text in texts if isinstance(text, str))
    if len(node.args) + len(node.keywords) != len(names) or len(strings) != len(names):
        return f"Error: {node.func.id} takes {', '.join(names)}, as texts."
    return Call(node.func.id, strings)


def lookups(trip: Trip, query: Query) -> Iterator[str]:
    """The calls that find everything a trip uses."""
    for day, way in trip.ways:
        if way.flight is not None:
            yield _call("flights", way.origin, way.destination, query.dates[day])
        else:
            yield _call("distance", way.origin, way.destination, way.car or "taxi")
    for city in trip.cities:
        for tool in ("accommodations", "restaurants", "attractions"):
            yield _call(tool, city)


def _call(tool: str, *arguments: str) -> str:
    quoted = (f'"{argument}"' for argument in arguments)
    return f"{tool}({','.join(quoted)})"


def _cut(lines: Sequence[str], chars: int) -> str:
    """The first lines that fit, and how many are left out."""
    if not lines:
        return _NONE
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > chars:
            kept.append(f"and {len(lines) - len(kept)} more")
            break
        kept.append(line)
    return "\n".join(kept)
