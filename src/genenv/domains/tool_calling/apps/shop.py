"""Shop: a catalog, a cart and orders. Prices are kept in cents."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Annotated, Any

from genenv.domains.tool_calling.apps.common import (
    cents,
    digest,
    existing,
    first_and_others,
    fresh_id,
    matches,
    money,
    named,
    require,
)
from genenv.domains.tool_calling.apps.kit import Between, Name, Result, State, ToolError, tool

_PRODUCTS = (
    "desk lamp",
    "running shoes",
    "coffee grinder",
    "wireless mouse",
    "yoga mat",
    "rain jacket",
    "cast iron pan",
    "travel mug",
    "phone charger",
    "bookshelf",
    "blue towel",
    "garden hose",
)
_STREETS = ("12 Oak Street", "7 Mill Lane", "48 Harbor Road")
_MOST = 1000


def initial(rng: random.Random, today: Day) -> State:
    """A catalog, an empty cart and two orders on their way."""
    catalog = {product: rng.randrange(8, 160) * 50 for product in _PRODUCTS}
    state: State = {"catalog": catalog, "cart": {}, "orders": {}}
    for product in rng.sample(_PRODUCTS, 2):
        _order(state, product, 1, rng.choice(_STREETS))
    return state


def _order(state: State, product: str, quantity: int, address: str, order_id: str = "") -> str:
    """Write an order down; its id."""
    number = order_id or fresh_id(state["orders"], product, quantity, address)
    state["orders"][number] = {
        "product": product,
        "quantity": quantity,
        "address": address,
        "status": "processing",
    }
    return number


def _in_catalog(state: State, rng: random.Random, product: str, **_: object) -> None:
    """The product is on sale."""
    if named(state["catalog"], product) is None:
        state["catalog"][product] = rng.randrange(8, 160) * 50


def _query_hits(state: State, rng: random.Random, query: str, max_price: float) -> None:
    """A product matches the query and costs no more than asked for."""
    if max_price >= 0.01 and not _hits(state, query, max_price):
        known = named(state["catalog"], query) or query
        state["catalog"][known] = max(1, int(max_price * 100 * rng.uniform(0.5, 0.95)))


def _order_is_open(state: State, rng: random.Random, order_id: int) -> None:
    """The order exists and can still be cancelled."""
    if order_id > 0:
        if str(order_id) not in state["orders"]:
            _order(state, rng.choice(_PRODUCTS), 1, rng.choice(_STREETS), str(order_id))
        state["orders"][str(order_id)]["status"] = "processing"


def _hits(state: State, query: str, max_price: float) -> list[Result]:
    """The matching products, the cheapest first."""
    found = [
        (price, product)
        for product, price in state["catalog"].items()
        if price <= max_price * 100 and matches(query, product)
    ]
    return [{"product": product, "price": money(price)} for price, product in sorted(found)]


def _existing_order(state: State, order_id: int) -> dict[str, Any]:
    order = state["orders"].get(str(order_id))
    if order is None:
        raise ToolError(f"There is no order with the id {order_id}.")
    return order


def _check_quantity(quantity: int) -> None:
    require(1 <= quantity <= _MOST, f"The quantity must be between 1 and {_MOST}.")


@tool("shop", arrange=_query_hits, returns=("product", "price"))
def search_products(state: State, query: Name, max_price: float) -> Result:
    """Find products, the cheapest first.

    Args:
        state: the app's state.
        query: words of the product's name.
        max_price: highest price, in dollars.
    """
    cents(max_price)
    hits = _hits(state, query, max_price)
    require(bool(hits), f"No product matches {query!r} for at most {max_price:g} dollars.")
    return first_and_others(hits)


@tool("shop", writes=True, arrange=_in_catalog, returns=("product",))
def add_to_cart(state: State, product: Name, quantity: Annotated[int, Between(1, _MOST)]) -> Result:
    """Put a product into the cart.

    Args:
        state: the app's state.
        product: name of the product.
        quantity: how many.
    """
    _check_quantity(quantity)
    known = existing(state["catalog"], product, "product")
    state["cart"][known] = state["cart"].get(known, 0) + quantity
    return {"product": known, "in_cart": state["cart"][known]}


@tool("shop", writes=True, arrange=_in_catalog, returns=("order_id", "total"))
def place_order(
    state: State, product: Name, quantity: Annotated[int, Between(1, _MOST)], address: Name
) -> Result:
    """Order a product.

    Args:
        state: the app's state.
        product: name of the product.
        quantity: how many.
        address: where to deliver it.
    """
    _check_quantity(quantity)
    known = existing(state["catalog"], product, "product")
    order_id = int(_order(state, known, quantity, address))
    return {"order_id": order_id, "total": money(state["catalog"][known] * quantity)}


@tool("shop", writes=True, arrange=_order_is_open, returns=("order_id",))
def cancel_order(state: State, order_id: int) -> Result:
    """Cancel an order.

    Args:
        state: the app's state.
        order_id: number of the order.
    """
    order = _existing_order(state, order_id)
    require(order["status"] != "cancelled", f"The order {order_id} is already cancelled.")
    order["status"] = "cancelled"
    return {"order_id": order_id, "status": "cancelled"}


@tool("shop", arrange=_order_is_open, returns=("status", "product", "days_left"))
def track_order(state: State, order_id: int) -> Result:
    """Track an order.

    Args:
        state: the app's state.
        order_id: number of the order.
    """
    order = _existing_order(state, order_id)
    days = 0 if order["status"] == "cancelled" else 1 + digest("days", order_id) % 6
    return {"status": order["status"], "product": order["product"], "days_left": days}
