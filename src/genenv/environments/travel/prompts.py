"""The agent's instructions, information and tool results, and the simulator's prompt."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genenv.environments.common import request
from genenv.environments.travel.database import Accommodation, Database, Flight, Restaurant
from genenv.environments.travel.query import Query
from genenv.environments.travel.seeds import Choices, bare
from genenv.environments.travel.spec import TravelConfig, TravelSpec
from genenv.environments.travel.trips import Trip, cities_to_visit
from genenv.types import Message, Profile, Seed

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the information in the prompt."""

    title: str
    text: str
    used: bool
    """Whether the oracle's plan uses this entry."""


def reference(
    query: Query,
    trip: Trip,
    database: Database,
    *,
    tokens: int,
    city: str | None,
    left_out: Collection[str] = (),
) -> str:
    """Return the information for a query in the prompt of mode sole.

    Args:
        query: the structured query.
        trip: the oracle's trip; its entries are always included.
        database: the source of the lines.
        tokens: the target length, at 4 characters a token. The oracle's entries may exceed it.
        city: include only this city; None for the whole trip.
        left_out: cities that must not be added as distractors.
    """
    cities = [city] if city is not None else cities_to_visit(query, database)
    lines = [line for place in cities for line in _city_lines(place, trip, database)]
    if city is None:
        lines += _way_lines(query, trip, cities, database)
    rng = random.Random(f"{query.origin}/{query.destination}/{query.dates}/{query.people}/{query.budget}")
    others = sorted(set(database.tables.states) - {*cities, query.origin, *left_out})
    while others and _size(lines) < tokens * CHARS_PER_TOKEN:
        lines += _city_lines(others.pop(rng.randrange(len(others))), trip, database)
    kept = _cut(lines, tokens * CHARS_PER_TOKEN, rng)
    titles = list(dict.fromkeys(line.title for line in kept))
    return "\n".join(
        "\n".join([f"{title}:", *(line.text for line in kept if line.title == title)]) for title in titles
    )


def _size(lines: Sequence[Line]) -> int:
    """Return the number of characters of lines and their titles."""
    titles = {line.title for line in lines}
    return sum(len(line.text) + 1 for line in lines) + sum(len(title) + 2 for title in titles)


def _cut(lines: Sequence[Line], most: int, rng: random.Random) -> list[Line]:
    """Return the lines that fit into `most` characters: those of the oracle, then others at random."""
    keep = {index for index, line in enumerate(lines) if line.used}
    titles = {lines[index].title for index in keep}
    size = _size([lines[index] for index in keep])
    for index in rng.sample(range(len(lines)), len(lines)):
        line = lines[index]
        more = len(line.text) + 1 + (0 if line.title in titles else len(line.title) + 2)
        if index not in keep and size + more <= most:
            keep.add(index)
            titles.add(line.title)
            size += more
    return [line for index, line in enumerate(lines) if index in keep]


def _city_lines(city: str, trip: Trip, database: Database) -> Iterator[Line]:
    rooms = {day.accommodation for day in trip.days}
    eaten = set(trip.restaurants)
    seen = {row for day in trip.days for row in day.attractions}
    for room in database.accommodations(city):
        yield Line(title=f"Rooms in {city}", text=room_line(room), used=room in rooms)
    for restaurant in database.restaurants(city):
        yield Line(title=f"Restaurants in {city}", text=restaurant_line(restaurant), used=restaurant in eaten)
    for row in database.attractions(city):
        yield Line(title=f"Attractions in {city}", text=row.name, used=row in seen)


def _way_lines(query: Query, trip: Trip, cities: Sequence[str], database: Database) -> Iterator[Line]:
    """Yield the flights and roads of the oracle's legs, and others on the first and the last day."""
    taken = {(way.origin, way.destination, query.dates[day]): way for day, way in trip.ways}
    ends = [(query.origin, city, query.dates[0]) for city in cities]
    ends += [(city, query.origin, query.dates[-1]) for city in cities]
    between = [(one, other, "") for one in cities for other in cities if one != other]
    known = {(one, other) for one, other, _ in taken}
    legs = [*taken, *(leg for leg in ends + between if leg[:2] not in known)]
    for origin, destination, date in legs:
        title = f"From {origin} to {destination}"
        way = taken.get((origin, destination, date))
        for text in road_lines(origin, destination, database):
            used = way is not None and way.car is not None and text.lower().startswith(way.car)
            yield Line(title=title, text=text, used=used)
        for flight in database.flights(origin, destination, date):
            yield Line(title=title, text=flight_line(flight), used=way is not None and way.flight == flight)


def road_lines(origin: str, destination: str, database: Database) -> list[str]:
    """Return the cost lines of a road for a private car and a taxi; empty if there is no road."""
    costs = {
        "Self-driving": database.road_cost(origin, destination, "self-driving"),
        "Taxi": database.road_cost(origin, destination, "taxi"),
    }
    return [f"{name}, cost {cost}" for name, cost in costs.items() if cost is not None]


def flight_line(row: Flight) -> str:
    """Return the line of a flight."""
    return f"Flight Number: {row.number}, {row.date}, {row.departure}-{row.arrival}, cost {row.price:g}"


def room_line(row: Accommodation) -> str:
    """Return the line of a room."""
    nights, people = f"{row.minimum_nights:g}+ nights", f"{row.maximum_occupancy} people"
    return f"{row.name}, {row.room_type}, cost {row.price:g}, {nights}, {people}, {row.house_rules}"


def restaurant_line(row: Restaurant) -> str:
    """Return the line of a restaurant."""
    return f"{row.name}, cost {row.average_cost:g}, {row.cuisines}"


_MAX_CALL_CHARS = 300
_NONE = "Nothing found."


class Call(NamedTuple):
    """A parsed tool call."""

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
"""Tool -> the function that answers it, and the names of its parameters; all are strings."""


def answer(reply: str, data: Database, *, chars: int) -> str:
    """Return the result of a call for the agent, or an error sentence.

    Args:
        reply: the agent's reply, expected to be one call of a tool.
        data: the database.
        chars: maximum length of the result.
    """
    call = read_call(reply)
    if isinstance(call, str):
        return call
    find, _ = TOOLS[call.tool]
    return _cut_lines(find(data, *call.arguments), chars)


def read_call(reply: str) -> Call | str:
    """Parse the call in a reply; return an error sentence if there is none."""
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
    """Yield the calls that find everything that a trip uses."""
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


def _cut_lines(lines: Sequence[str], chars: int) -> str:
    """Return the first lines that fit, and a note on the number of omitted ones."""
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


_RULES = (
    "No restaurant or attraction twice. Either drive the own car on every leg or never. Stay at least a "
    "room's minimum nights. Everything for all people must fit the budget: flights and meals are a person, "
    "rooms a night, as many of one as all need, cars seat 5, taxis 4. An entire room is an Entire home/apt; "
    "a room allows what it does not forbid."
)
_ROUTE = (
    "Start in the origin and return to it on the last day; come to no city again once it was left. "
    "Who drives writes Self-driving, from A to B, and who takes a taxi Taxi, from A to B. "
)
_DAY_FORM = (
    '{"days":1,"current_city":"from A to B","transportation":"Flight Number: F1, from A to B",'
    '"breakfast":"-","attraction":"-","lunch":"-","dinner":"Name, B","accommodation":"Name, B"}'
)
_MISSING_FORM = (
    '{"breakfast":"Name","attraction":"Name","lunch":"Name","dinner":"Name","accommodation":"Name"}'
)
_TOOLS = (
    'flights("origin","destination","2022-03-01")',
    'distance("origin","destination","taxi")',
    'accommodations("city")',
    'restaurants("city")',
    'attractions("city")',
)


def simulator_messages(seed: Seed, choices: Choices, profile: Profile, target: float) -> tuple[Message, ...]:
    """Return the prompt that asks the simulator for a variation of a seed.

    Args:
        seed: the item to vary, shown with blanks in its query.
        choices: the values that the simulator may choose.
        profile: the agent's success rate per skill.
        target: the success rate that the new task should have, in (0, 1).
    """
    spec = TravelSpec.model_validate(seed.spec)
    rules = [rule for rule in choices.rooms if rule]
    rooms = [room for room in choices.rooms[None] if room]
    system = (
        "Write travel requests as JSON: difficulty, the trip, then a query with a <blank> for each value. "
        f"A planner should solve {target:.0%}.\n"
        f"From: {', '.join(choices.origins)}. To: {', '.join(choices.destinations)}. In March 2022.\n"
        f"Limits, if any: room_rule {'/'.join(rules)}; room_type {'/'.join(rooms)}; "
        f"cuisines {'/'.join(choices.cuisines)}; transport {'/'.join(choices.transports)}."
    )
    return request(system, bare(spec), profile, seed.skills, thing="request")


def agent_system(query: Query, settings: TravelConfig) -> str:
    """Return the agent's instructions."""
    known = "the information" if settings.mode == "sole" else "the results of the tools"
    if settings.form == "day":
        task = (
            f"Fill in the missing day of a travel plan, with names from {known}. {_RULES}\n"
            f"Answer with one line: {_MISSING_FORM}"
        )
    else:
        task = (
            f"Plan the trip day by day, with names from {known}. Days of travel say where from and where to; "
            "days in a city need three meals, an attraction and, but for the last, a room. Write - for none. "
            f"{_ROUTE}{_RULES}\nAnswer with a JSON list of {query.days} days such as\n{_DAY_FORM}"
        )
    if settings.mode == "sole":
        return task
    return f"{task}\nFirst look things up, one call a turn: {', '.join(_TOOLS)}"
