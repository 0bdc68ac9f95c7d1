"""Apps around money: a shop, a bank, and trips. Amounts are stored in cents.

For trips, only some flights are stored. The id of any other flight contains its route and day, and determines
its price and time. So a search changes nothing, and its results can be booked.
"""

from __future__ import annotations

import re
from datetime import date as Day
from typing import Annotated, Any, Literal

from pydantic import Field

from genenv.tools.tool_calling.apps.common import (
    Date,
    Found,
    State,
    Text,
    cents,
    digest,
    existing,
    first_and_others,
    fresh_id,
    keep,
    matches,
    money,
    named,
    require,
    time_of,
)

_MOST = 1000


def _existing_order(state: State, order_id: int) -> dict[str, Any]:
    order = state["orders"].get(str(order_id))
    if order is None:
        raise ValueError(f"There is no order with the id {order_id}.")
    return order


class Shop:
    """Shop: a catalog, a cart and orders. Prices are stored in cents."""

    shop: State

    def search_products(self, query: Text, max_price: float) -> Found:
        """Find products, the cheapest first.

        Args:
            query: words of the product's name.
            max_price: highest price, in dollars.
        """
        cents(max_price)
        found = sorted(
            (price, product)
            for product, price in self.shop["catalog"].items()
            if price <= max_price * 100 and matches(query, product)
        )
        require(bool(found), f"No product matches {query!r} for at most {max_price:g} dollars.")
        return first_and_others([{"product": product, "price": money(price)} for price, product in found])

    def add_to_cart(self, product: Text, quantity: Annotated[int, Field(ge=1, le=_MOST)]) -> Found:
        """Put a product into the cart.

        Args:
            product: name of the product.
            quantity: how many.
        """
        known = existing(self.shop["catalog"], product, "product")
        self.shop["cart"][known] = self.shop["cart"].get(known, 0) + quantity
        return {"product": known, "in_cart": self.shop["cart"][known]}

    def place_order(
        self, product: Text, quantity: Annotated[int, Field(ge=1, le=_MOST)], address: Text
    ) -> Found:
        """Order a product.

        Args:
            product: name of the product.
            quantity: how many.
            address: where to deliver it.
        """
        known = existing(self.shop["catalog"], product, "product")
        number = fresh_id(self.shop["orders"], known, quantity, address)
        order = {"product": known, "quantity": quantity, "address": address, "status": "processing"}
        self.shop["orders"][number] = {"order_id": int(number), **order}
        return {"order_id": int(number), "total": money(self.shop["catalog"][known] * quantity)}

    def cancel_order(self, order_id: int) -> Found:
        """Cancel an order.

        Args:
            order_id: number of the order.
        """
        order = _existing_order(self.shop, order_id)
        require(order["status"] != "cancelled", f"The order {order_id} is already cancelled.")
        order["status"] = "cancelled"
        return {"order_id": order_id, "status": "cancelled"}

    def track_order(self, order_id: int) -> Found:
        """Track an order.

        Args:
            order_id: number of the order.
        """
        order = _existing_order(self.shop, order_id)
        days = 0 if order["status"] == "cancelled" else 1 + digest("days", order_id) % 6
        return {"status": order["status"], "product": order["product"], "days_left": days}


Account = Literal["checking", "savings"]


def _book(state: State, account: str, party: str, change: int) -> None:
    """Change a balance and record the transaction."""
    state["balances"][account] += change
    keep(state["transactions"][account], {"date": state["today"], "party": party, "cents": change})


class Bank:
    """Bank: balances, transfers, bills and spending limits. Amounts are stored in cents."""

    bank: State

    def get_balance(self, account: Account) -> Found:
        """Get the balance of an account.

        Args:
            account: which account.
        """
        return {"balance": money(self.bank["balances"][account])}

    def transfer(self, source: Account, target: Account, amount: float) -> Found:
        """Move money between your accounts.

        Args:
            source: account the money comes from.
            target: account the money goes to.
            amount: how much, in dollars.
        """
        require(source != target, "Source and target are the same account.")
        moved = cents(amount)
        require(self.bank["balances"][source] >= moved, f"There is not enough money in {source}.")
        _book(self.bank, source, target, -moved)
        _book(self.bank, target, source, moved)
        return {"balance": money(self.bank["balances"][source])}

    def pay_bill(self, payee: Text, amount: float) -> Found:
        """Pay a bill from checking.

        Args:
            payee: who gets the money.
            amount: how much, in dollars.
        """
        paid = cents(amount)
        require(self.bank["balances"]["checking"] >= paid, "There is not enough money in checking.")
        _book(self.bank, "checking", payee, -paid)
        return {"balance": money(self.bank["balances"]["checking"])}

    def list_transactions(self, account: Account, limit: Annotated[int, Field(ge=1, le=50)]) -> Found:
        """List the latest transactions.

        Args:
            account: which account.
            limit: how many, 1 to 50.
        """
        latest = [
            {"party": item["party"], "amount": money(item["cents"]), "date": item["date"]}
            for item in reversed(self.bank["transactions"][account][-limit:])
        ]
        return {"party": latest[0]["party"], "amount": latest[0]["amount"], "transactions": latest}

    def set_spending_limit(self, category: Text, amount: float) -> Found:
        """Set a monthly spending limit.

        Args:
            category: what the money is spent on, e.g. groceries.
            amount: dollars a month.
        """
        known = named(self.bank["limits"], category) or category
        self.bank["limits"][known] = cents(amount)
        return {"category": known, "limit": amount}


_CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
_FIRST_DAY = Day(2025, 1, 1).toordinal()
_DAYS = 3 * 365
_FLIGHTS_A_DAY = 3


def _save(state: State, prefix: str, booking: dict[str, Any]) -> str:
    """Store a booking and return its id."""
    booking_id = fresh_id(state["bookings"], *booking.values(), prefix=prefix)
    state["bookings"][booking_id] = {**booking, "status": "booked"}
    return booking_id


def _is_flight(state: State, key: str) -> bool:
    """Whether an id is stored, or has the form HAPO0412: two cities, the day, a number on that day."""
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
    """Trips: flights, hotels, bookings and the weather."""

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
