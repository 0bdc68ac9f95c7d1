"""Trips: flights between any two cities of the world, hotels, bookings and the weather.

Flights are not stored: a flight's id spells its route and day, and its price and time follow from the id. So
searching changes nothing, and what was found can be booked.
"""

from __future__ import annotations

import itertools
import random
import string
from datetime import date as Day
from typing import Annotated, Any

from genenv.domains.tool_calling.apps.common import (
    digest,
    existing,
    first_and_others,
    fresh_id,
    money,
    named,
    require,
    time_of,
)
from genenv.domains.tool_calling.apps.kit import Between, Date, Name, Result, State, ToolError, tool

_CITIES = (
    "Berlin",
    "Lisbon",
    "Tokyo",
    "New York",
    "Oslo",
    "Madrid",
    "Toronto",
    "Sydney",
    "Paris",
    "Rome",
    "Vienna",
    "Chicago",
    "Cairo",
    "Denver",
)
_CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
_SYMBOLS = string.digits + string.ascii_uppercase
_FIRST_DAY = Day(2025, 1, 1).toordinal()
_DAYS = 3 * 365
_FLIGHTS_A_DAY = 3


def initial(rng: random.Random, today: Day) -> State:
    """Cities with an airport, and one hotel booking."""
    state: State = {"salt": rng.randrange(10**6), "cities": {}, "flights": {}, "bookings": {}}
    for city in _CITIES:
        state["cities"][_code(state, city)] = city
    checkin = Day.fromordinal(today.toordinal() + rng.randrange(5, 40)).isoformat()
    _save(state, "H", {"kind": "hotel", "city": rng.choice(_CITIES), "checkin": checkin, "nights": 2})
    return state


def _code(state: State, city: str) -> str:
    """Two letters for a city that no other city has, from its name where possible."""
    letters = [letter for letter in city.upper() if letter in string.ascii_uppercase] or ["X"]
    ends = [*letters[1:], *_SYMBOLS]
    likely = (letters[0] + end for end in ends)
    others = (start + end for start in string.ascii_uppercase for end in _SYMBOLS)
    return next(code for code in itertools.chain(likely, others) if code not in state["cities"])


def _city(state: State, name: str) -> str:
    return existing(state["cities"].values(), name, "city")


def _save(state: State, prefix: str, booking: dict[str, Any]) -> str:
    """Write a booking down; its id."""
    booking_id = fresh_id(state["bookings"], *booking.values(), prefix=prefix)
    state["bookings"][booking_id] = {**booking, "status": "booked"}
    return booking_id


def _add_cities(state: State, *names: str) -> None:
    for name in names:
        if named(state["cities"].values(), name) is None:
            state["cities"][_code(state, name)] = name


def _route_exists(state: State, rng: random.Random, origin: str, destination: str, **_: object) -> None:
    """Both cities have an airport."""
    _add_cities(state, origin, destination)


def _city_exists(state: State, rng: random.Random, city: str, **_: object) -> None:
    """The city is known."""
    _add_cities(state, city)


def _flight_exists(state: State, rng: random.Random, flight_id: str, **_: object) -> None:
    """A flight of that number is on sale."""
    if _flight(state, flight_id) is None:
        origin, destination = rng.sample(_CITIES, 2)
        date = Day.fromordinal(_FIRST_DAY + rng.randrange(_DAYS)).isoformat()
        state["flights"][flight_id.upper()] = {"origin": origin, "destination": destination, "date": date}


def _booking_exists(state: State, rng: random.Random, booking_id: str) -> None:
    """The booking exists and is not cancelled."""
    key = booking_id.upper()
    if key not in state["bookings"]:
        city = rng.choice(_CITIES)
        state["bookings"][key] = {"kind": "hotel", "city": city, "checkin": "2025-09-01", "nights": 2}
    state["bookings"][key]["status"] = "booked"


def _flight(state: State, flight_id: str) -> dict[str, Any] | None:
    """Route, day, time and price of a flight, read off its id; None if there is no such flight."""
    key = flight_id.upper()
    route = state["flights"].get(key) or _decoded(state, key)
    if route is None:
        return None
    number = digest(state["salt"], key)
    return {
        **route,
        "departs": time_of(360 + number % 192 * 5),
        "price": money(6000 + number // 192 % 900 * 50),
    }


def _decoded(state: State, key: str) -> dict[str, str] | None:
    """Route and day out of an id such as BELI2F1: two cities, the day in base 36, the number on that day."""
    if len(key) != 7 or any(symbol not in _SYMBOLS for symbol in key):
        return None
    origin, destination = state["cities"].get(key[:2]), state["cities"].get(key[2:4])
    day = _SYMBOLS.index(key[4]) * len(_SYMBOLS) + _SYMBOLS.index(key[5])
    if not origin or not destination or origin == destination or day >= _DAYS:
        return None
    if _SYMBOLS.index(key[6]) not in range(1, _FLIGHTS_A_DAY + 1):
        return None
    return {
        "origin": origin,
        "destination": destination,
        "date": Day.fromordinal(_FIRST_DAY + day).isoformat(),
    }


@tool("trips", arrange=_route_exists, returns=("flight_id", "price", "departs"))
def search_flights(state: State, origin: Name, destination: Name, date: Date) -> Result:
    """Find flights, the cheapest first.

    Args:
        state: the app's state.
        origin: city to leave from.
        destination: city to go to.
        date: day of the flight.
    """
    codes = {city: code for code, city in state["cities"].items()}
    start, goal = codes[_city(state, origin)], codes[_city(state, destination)]
    require(start != goal, "Origin and destination are the same city.")
    day = Day.fromisoformat(date).toordinal() - _FIRST_DAY
    require(0 <= day < _DAYS, f"No flights are on sale for {date}.")
    high, low = divmod(day, len(_SYMBOLS))
    ids = [f"{start}{goal}{_SYMBOLS[high]}{_SYMBOLS[low]}{number + 1}" for number in range(_FLIGHTS_A_DAY)]
    found = [(flight["price"], key, flight["departs"]) for key in ids if (flight := _flight(state, key))]
    return first_and_others(
        [{"flight_id": key, "price": price, "departs": departs} for price, key, departs in sorted(found)]
    )


@tool("trips", writes=True, arrange=_flight_exists, returns=("booking_id", "total"))
def book_flight(state: State, flight_id: Name, passengers: Annotated[int, Between(1, 9)]) -> Result:
    """Book a flight.

    Args:
        state: the app's state.
        flight_id: id of the flight.
        passengers: how many people, 1 to 9.
    """
    require(1 <= passengers <= 9, "A booking is for 1 to 9 passengers.")
    flight = _flight(state, flight_id)
    if flight is None:
        raise ToolError(f"There is no flight {flight_id!r}.")
    key = flight_id.upper()
    booking_id = _save(state, "F", {"kind": "flight", "flight_id": key, "passengers": passengers})
    return {"booking_id": booking_id, "total": round(flight["price"] * passengers, 2)}


@tool("trips", writes=True, arrange=_city_exists, returns=("booking_id",))
def book_hotel(state: State, city: Name, checkin: Date, nights: Annotated[int, Between(1, 60)]) -> Result:
    """Book a hotel room.

    Args:
        state: the app's state.
        city: which city.
        checkin: first night.
        nights: how many nights, 1 to 60.
    """
    require(1 <= nights <= 60, "A stay takes 1 to 60 nights.")
    known = _city(state, city)
    return {
        "booking_id": _save(
            state, "H", {"kind": "hotel", "city": known, "checkin": checkin, "nights": nights}
        )
    }


@tool("trips", writes=True, arrange=_booking_exists, returns=("booking_id",))
def cancel_booking(state: State, booking_id: Name) -> Result:
    """Cancel a flight or hotel booking.

    Args:
        state: the app's state.
        booking_id: id of the booking.
    """
    booking = state["bookings"].get(booking_id.upper())
    if booking is None:
        raise ToolError(f"There is no booking {booking_id!r}.")
    require(booking["status"] != "cancelled", f"The booking {booking_id} is already cancelled.")
    booking["status"] = "cancelled"
    return {"booking_id": booking_id.upper(), "status": "cancelled"}


@tool("trips", arrange=_city_exists, returns=("condition", "celsius"))
def get_weather(state: State, city: Name, date: Date) -> Result:
    """Get the weather forecast.

    Args:
        state: the app's state.
        city: which city.
        date: which day.
    """
    number = digest(state["salt"], _city(state, city), date)
    return {"condition": _CONDITIONS[number % len(_CONDITIONS)], "celsius": number // 7 % 36 - 4}
