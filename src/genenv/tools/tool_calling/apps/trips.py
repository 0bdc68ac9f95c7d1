"""Trips: flights between any two cities of the world, hotels, bookings and the weather.

Few flights are stored: the id of any other spells its route and day, and its price and time follow from the
id. So searching changes nothing, and what was found can be booked.
"""

from __future__ import annotations

import re
from datetime import date as Day
from typing import Annotated, Any

from pydantic import Field

from genenv.tools.tool_calling.apps.common import (
    digest,
    existing,
    first_and_others,
    fresh_id,
    money,
    require,
    time_of,
)
from genenv.tools.tool_calling.apps.kinds import Date, Found, State, Text

_CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
_FIRST_DAY = Day(2025, 1, 1).toordinal()
_DAYS = 3 * 365
_FLIGHTS_A_DAY = 3


def _save(state: State, prefix: str, booking: dict[str, Any]) -> str:
    """Write a booking down; its id."""
    booking_id = fresh_id(state["bookings"], *booking.values(), prefix=prefix)
    state["bookings"][booking_id] = {**booking, "status": "booked"}
    return booking_id


def _is_flight(state: State, key: str) -> bool:
    """Whether an id is stored, or such as HAPO0412: two cities, the day, the number on that day."""
    if key in state["flights"]:
        return True
    match = re.fullmatch(r"([A-Z]{2})([A-Z]{2})([0-9]{3,4})([1-9])", key)
    if match is None or int(match[3]) >= _DAYS or int(match[4]) > _FLIGHTS_A_DAY:
        return False
    codes = set(state["cities"].values())
    return match[1] != match[2] and {match[1], match[2]} <= codes


def _price(state: State, key: str) -> float:
    return money(6000 + digest(state["salt"], key) // 192 % 900 * 50)


class Trips:
    """Flights, hotels, bookings, the weather."""

    trips: State

    def search_flights(self, origin: Text, destination: Text, date: Date) -> Found:
        """Find flights, the cheapest first.

        Args:
            origin: city to leave from.
            destination: city to go to.
            date: day of the flight.
        """
        cities = self.trips["cities"]
        start = cities[existing(cities, origin, "city")]
        goal = cities[existing(cities, destination, "city")]
        require(start != goal, "Origin and destination are the same city.")
        day = Day.fromisoformat(date).toordinal() - _FIRST_DAY
        require(0 <= day < _DAYS, f"No flights are on sale for {date}.")
        ids = [f"{start}{goal}{day:03d}{number + 1}" for number in range(_FLIGHTS_A_DAY)]
        found = sorted((_price(self.trips, key), key) for key in ids)
        departs = {key: time_of(360 + digest(self.trips["salt"], key) % 192 * 5) for key in ids}
        return first_and_others(
            [{"flight_id": key, "price": price, "departs": departs[key]} for price, key in found]
        )

    def book_flight(self, flight_id: Text, passengers: Annotated[int, Field(ge=1, le=9)]) -> Found:
        """Book a flight.

        Args:
            flight_id: id of the flight.
            passengers: how many people, 1 to 9.
        """
        key = flight_id.upper()
        require(_is_flight(self.trips, key), f"There is no flight {flight_id!r}.")
        booking = {"kind": "flight", "flight_id": key, "passengers": passengers}
        total = round(_price(self.trips, key) * passengers, 2)
        return {"booking_id": _save(self.trips, "F", booking), "total": total}

    def book_hotel(self, city: Text, checkin: Date, nights: Annotated[int, Field(ge=1, le=60)]) -> Found:
        """Book a hotel room.

        Args:
            city: which city.
            checkin: first night.
            nights: how many nights, 1 to 60.
        """
        known = existing(self.trips["cities"], city, "city")
        booking = {"kind": "hotel", "city": known, "checkin": checkin, "nights": nights}
        return {"booking_id": _save(self.trips, "H", booking)}

    def cancel_booking(self, booking_id: Text) -> Found:
        """Cancel a flight or hotel booking.

        Args:
            booking_id: id of the booking.
        """
        booking = self.trips["bookings"].get(booking_id.upper())
        if booking is None:
            raise ValueError(f"There is no booking {booking_id!r}.")
        require(booking["status"] != "cancelled", f"The booking {booking_id} is already cancelled.")
        booking["status"] = "cancelled"
        return {"booking_id": booking_id.upper(), "status": "cancelled"}

    def get_weather(self, city: Text, date: Date) -> Found:
        """Get the weather forecast.

        Args:
            city: which city.
            date: which day.
        """
        number = digest(self.trips["salt"], existing(self.trips["cities"], city, "city"), date)
        return {"condition": _CONDITIONS[number % len(_CONDITIONS)], "celsius": number // 7 % 36 - 4}
