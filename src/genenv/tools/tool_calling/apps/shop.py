"""Shop: a catalog, a cart and orders. Prices are kept in cents."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from genenv.tools.tool_calling.apps.common import (
    cents,
    digest,
    existing,
    first_and_others,
    fresh_id,
    matches,
    money,
    require,
)
from genenv.tools.tool_calling.apps.kinds import Found, State, Text

_MOST = 1000


def _hits(state: State, query: str, max_price: float) -> list[Found]:
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
        raise ValueError(f"There is no order with the id {order_id}.")
    return order


class Shop:
    """Shop: a catalog, a cart and orders. Prices are kept in cents."""

    shop: State

    def search_products(self, query: Text, max_price: float) -> Found:
        """Find products, the cheapest first.

        Args:
            query: words of the product's name.
            max_price: highest price, in dollars.
        """
        cents(max_price)
        hits = _hits(self.shop, query, max_price)
        require(bool(hits), f"No product matches {query!r} for at most {max_price:g} dollars.")
        return first_and_others(hits)

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
