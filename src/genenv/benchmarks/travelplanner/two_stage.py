"""TravelPlanner's two-stage mode: an agent searches with tools and takes notes, and a planner uses the notes.

The loop and its limits are those of the authors' ReAct agent (`agents/tool_agents.py` of
OSU-NLP-Group/TravelPlanner). A step is a thought, an action and an observation; thought and action are each
the first line of a reply. The agent ends without a plan after 30 steps, when the same action comes a third
time in a row, when a kind of action is wrong for a fourth time without a right action in between, or when
its context window is full. `Planner` ends the rollout with a plan: the same model gets the notebook, as in
sole planning. Two things differ: the window is the model's own, instead of a limit in GPT-3.5's tokens, and
the wording of answers to invalid actions.

The tools have the arguments and results of the authors' tools (`tools/*/apis.py`). Tables are formatted as by
pandas, a city must be in the database, a date has the form YYYY-MM-DD. Refusals are worded by genenv.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from genenv.chat.assistant import Talk
from genenv.environments.travel.database import Database, Road
from genenv.environments.travel.query import before_parenthesis
from genenv.errors import ContextOverflow
from genenv.types import Json

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ROOMS = (
    *("NAME", "price", "room type", "house_rules", "minimum nights", "maximum occupancy"),
    *("review rate number", "city"),
)
_MEALS = ("Name", "Average Cost", "Cuisines", "Aggregate Rating", "City")
_SIGHTS = ("Name", "Latitude", "Longitude", "Address", "Phone", "Website", "City")
_FLIGHTS = (
    *("Flight Number", "Price", "DepTime", "ArrTime", "ActualElapsedTime", "FlightDate"),
    *("OriginCityName", "DestCityName", "Distance"),
)
SEARCHES: Final = (
    *("FlightSearch", "GoogleDistanceMatrix", "AccommodationSearch", "RestaurantSearch", "AttractionSearch"),
    "CitySearch",
)


class Refused(Exception):
    """Raised if a search has invalid arguments; the message is the observation."""


class Searches:
    """The search tools over one database."""

    def __init__(self, database: Database, cities: Sequence[str]) -> None:
        """Index the roads by origin and destination.

        Args:
            database: the tables, with all flights.
            cities: the valid cities, in the order in which a refusal lists them.
        """
        self._database, self._cities = database, list(cities)
        self._known = frozenset(cities)
        self._roads: dict[tuple[str, str], Road] = {}
        for road in database.tables.roads:
            self._roads.setdefault((road.origin, road.destination), road)

    def answer(self, name: str, argument: str) -> str:
        """Return the result of a search.

        Args:
            name: one of `SEARCHES`.
            argument: the text between the brackets.

        Raises:
            Refused: the argument is invalid.
        """
        parts = argument.split(", ")
        if name == "FlightSearch":
            return self._flights(parts)
        if name == "GoogleDistanceMatrix":
            return self._distance(parts)
        if name == "CitySearch":
            cities = self._database.cities_of(argument)
            return str(list(cities)) if cities else "Invalid State"
        self._check_city(argument)
        if name == "AccommodationSearch":
            return self._rooms(argument)
        return self._meals(argument) if name == "RestaurantSearch" else self._sights(argument)

    def _check_city(self, city: str) -> None:
        if city not in self._known:
            raise Refused(f"There is no city {city!r}; the cities are {', '.join(self._cities)}.")

    def _flights(self, parts: Sequence[str]) -> str:
        if len(parts) < 3:
            raise Refused("FlightSearch takes a city, a city and a date: FlightSearch[A, B, 2022-03-01].")
        origin, destination, date = parts[:3]
        if _DATE.fullmatch(date) is None:
            raise Refused(f"{date!r} is no date of the form YYYY-MM-DD.")
        self._check_city(origin)
        self._check_city(destination)
        found = self._database.flights(origin, destination, date)
        if not found:
            return f"There is no flight from {origin} to {destination} on {date}."
        return table(_FLIGHTS, [flight._replace(price=_amount(flight.price)) for flight in found])

    def _distance(self, parts: Sequence[str]) -> str:
        if len(parts) < 3:
            raise Refused("GoogleDistanceMatrix takes two cities and a mode.")
        origin, destination, mode = before_parenthesis(parts[0]), before_parenthesis(parts[1]), parts[2]
        road = self._roads.get((origin, destination))
        if road is None:
            return f"{mode}, from {origin} to {destination}, no valid information."
        if not road.duration or not road.distance or "day" in road.duration:
            return "No valid information."
        cost = int(road.distance_km * 0.05) if "driving" in mode else None
        cost = int(road.distance_km) if mode == "taxi" else cost
        way = f"{mode}, from {origin} to {destination}"
        return f"{way}, duration: {road.duration}, distance: {road.distance}, cost: {cost}"

    def _rooms(self, city: str) -> str:
        rows = [
            (
                *(r.name, r.price, r.room_type, r.house_rules, r.minimum_nights, r.maximum_occupancy),
                *(r.review_rate, r.city),
            )
            for r in self._database.accommodations(city)
        ]
        return table(_ROOMS, rows) if rows else "There is no attraction in this city."

    def _meals(self, city: str) -> str:
        rows = [
            (r.name, _amount(r.average_cost), r.cuisines, r.rating, r.city)
            for r in self._database.restaurants(city)
        ]
        return table(_MEALS, rows) if rows else "There is no restaurant in this city."

    def _sights(self, city: str) -> str:
        rows = self._database.attractions(city)
        return table(_SIGHTS, rows) if rows else "There is no attraction in this city."


def _amount(value: float) -> float:
    """Return an int if the value is integral, as in integer columns."""
    return int(value) if value == int(value) else value


def table(names: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Format rows as pandas' `DataFrame.to_string(index=False)`: columns are right-aligned."""
    columns = [_column(name, [row[at] for row in rows]) for at, name in enumerate(names)]
    return "\n".join(" ".join(cells) for cells in zip(*columns, strict=True))


def _column(name: str, values: Sequence[str | float]) -> list[str]:
    if any(isinstance(value, str) for value in values):
        cells = [name, *(_escaped(str(value)) for value in values)]
    elif all(isinstance(value, int) for value in values):
        cells = [f" {name}", *map(str, values)]
    else:
        written = [f"{float(value):.6f}" for value in values]
        while all(text.endswith("0") and text[-2] != "." for text in written):
            written = [text[:-1] for text in written]
        cells = [f" {name}", *written]
    width = max(map(len, cells))
    return [cell.rjust(width) for cell in cells]


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


MAX_STEPS: Final = 30
_STEP_TOKENS = 256
_RETRIES = 3
_SAME = 3
_ACTION = re.compile(r"^(\w+)\[(.+)\]$")
_INVALID = "invalid"
_MASKED = "(Left out for want of room: what was found should be in the notebook.)"
_NO_ACTION = "There was no action: write one call on one line."
_VALID = (
    "That is no valid action. Valid are FlightSearch[Departure City, Destination City, Date], "
    "GoogleDistanceMatrix[Origin, Destination, Mode], AccommodationSearch[City], RestaurantSearch[City], "
    "AttractionSearch[City], CitySearch[State], NotebookWrite[Short Description] and Planner[Query]."
)
INSTRUCTION = (
    "Collect the information that a travel plan for the query at the end needs: transportation, restaurants, "
    "attractions and accommodations. Take turns of 'Thought', 'Action' and 'Observation'. A thought reasons "
    "about what is known; an action is one of these calls and nothing else, on one line:\n"
    "FlightSearch[Departure City, Destination City, Date]: flights on a day, written YYYY-MM-DD.\n"
    "GoogleDistanceMatrix[Origin, Destination, Mode]: distance, time and cost between two cities; the mode "
    "is self-driving or taxi.\n"
    "AccommodationSearch[City], RestaurantSearch[City], AttractionSearch[City]: what there is in a city.\n"
    "CitySearch[State]: the cities of a state.\n"
    "NotebookWrite[Short Description]: writes what the last search found into the notebook, under a label. "
    "Do so after every search: the planner sees the notebook only.\n"
    "Planner[Query]: makes the plan out of the notebook and the query, and ends your work. Collect all that "
    "it needs first.\n\n"
    "Query: "
)
"""genenv's prompt for a step, up to the query and the steps so far."""


@dataclass(kw_only=True)
class Agent:
    """One rollout of the two-stage agent: its state, and the loop of steps."""

    query: str
    searches: Searches
    prompt: Callable[[str, str], str]
    """Maps the query and the steps so far to the prompt for the next line."""
    planning: Callable[[str, str], str]
    """Maps the notebook and the query to the planner's prompt."""
    done: str = ""
    """The thoughts, actions and observations so far."""
    notebook: list[Json] = field(default_factory=list[Json])
    actions: list[str] = field(default_factory=list[str])
    _data: str | None = None
    """The result of the last search."""
    _wrong: Counter[str] = field(default_factory=Counter[str])

    async def run(self, talk: Talk) -> Json:
        """Roll out: search, take notes, plan.

        Returns:
            `reply`: the planner's reply, or ""; `ended`: the reason of the end; `steps`; `actions`.

        Raises:
            ContextOverflow: not even the first thought fits into the context window.
        """
        reply, ended = "", f"no plan within {MAX_STEPS} steps"
        try:
            for number in range(1, MAX_STEPS + 1):
                argument, stopped = await self._step(number, talk)
                if argument is not None:
                    planned = await self._ask(talk, self.planning(str(self.notebook), argument), None)
                    reply, ended = planned, "planned"
                if argument is not None or stopped:
                    ended = stopped or ended
                    break
        except ContextOverflow:
            if not self.actions:
                raise
            ended = "the window is full"
        return {
            "reply": reply,
            "ended": ended,
            "steps": len(self.actions),
            "actions": list[Json](self.actions),
        }

    async def _ask(self, talk: Talk, content: str, max_tokens: int | None) -> str:
        return (await talk([{"role": "user", "content": content}], max_tokens=max_tokens)).text

    async def _line(self, talk: Talk) -> str:
        text = (await self._ask(talk, self.prompt(self.query, self.done), _STEP_TOKENS)).strip()
        return text.splitlines()[0].strip() if text else ""

    async def _step(self, number: int, talk: Talk) -> tuple[str | None, str]:
        """Run one step; return the planner's query if the planner is called, and the reason of a stop."""
        self.done += f"\nThought {number}:"
        self.done += f" {await self._line(talk)}"
        self.done += f"\nAction {number}:"
        action = await self._line(talk)
        self.done += f" {action}"
        self.actions.append(action)
        if self.actions[-_SAME:] == [action] * _SAME:
            return None, f"the same action {_SAME} times in a row"
        self.done += f"\nObservation {number}: "
        if not action:
            self.done += _NO_ACTION
            return None, ""
        called = _ACTION.match(action)
        name, argument = called.groups() if called else ("", "")
        if name == "Planner":
            return argument, ""
        if self._wrong[_limited(name)] >= _RETRIES:
            return (
                None,
                f"{name if _limited(name) != _INVALID else 'an invalid action'}: {_RETRIES} wrong before",
            )
        observed = self._observed(name, argument)  # may shorten `done`
        self.done += observed
        return None, ""

    def _observed(self, name: str, argument: str) -> str:
        """Return the observation of an action; a valid action resets all counts of errors."""
        if name == "NotebookWrite":
            self._mask()
            self.notebook.append(
                {"index": len(self.notebook), "Short Description": argument, "Content": self._data}
            )
            answer = (
                f"The information has been recorded in Notebook, and its index is {len(self.notebook) - 1}."
            )
        elif name in SEARCHES:
            try:
                answer = self.searches.answer(name, argument)
            except Refused as refused:
                self._wrong[name] += 1
                return str(refused)
            self._mask()
            if name != "CitySearch":
                self._data = answer
        else:
            self._wrong[_INVALID] += 1
            return _VALID
        self._wrong.clear()
        return answer.strip()

    def _mask(self) -> None:
        """Remove the last search's result from the prompt, since it should be in the notebook."""
        if self._data:
            self.done = self.done.replace(self._data.strip(), _MASKED)


def _limited(name: str) -> str:
    """Return the error counter of an action; `AccommodationSearch` shares that of invalid actions."""
    return name if name in (*SEARCHES, "NotebookWrite") and name != "AccommodationSearch" else _INVALID
