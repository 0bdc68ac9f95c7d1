"""A support desk: a class of plain Python, as a user would have it."""

from __future__ import annotations

from typing import Literal


class SupportDesk:
    """Customers, their orders, their tickets."""

    def __init__(self) -> None:
        self.customers = {
            "C-101": {"name": "Ada Wong", "email": "ada@example.com"},
            "C-102": {"name": "Ben Ruiz", "email": "ben@example.com"},
            "C-103": {"name": "Cleo Park", "email": "cleo@example.com"},
        }
        self.orders = {
            "O-5001": {
                "customer_id": "C-101",
                "item": "kettle",
                "price": 39.0,
                "status": "delivered",
                "refunded": 0,
            },
            "O-5002": {
                "customer_id": "C-102",
                "item": "lamp",
                "price": 25.5,
                "status": "shipped",
                "refunded": 0,
            },
            "O-5003": {
                "customer_id": "C-103",
                "item": "desk",
                "price": 189.0,
                "status": "paid",
                "refunded": 0,
            },
            "O-5004": {
                "customer_id": "C-101",
                "item": "chair",
                "price": 75.0,
                "status": "paid",
                "refunded": 0,
            },
        }
        self.tickets: dict[str, dict[str, str]] = {}
        self._opened = 0

    def find_customer(self, name: str) -> dict[str, str]:
        """Find a customer by name.

        Args:
            name: the full name.
        """
        for customer_id, customer in self.customers.items():
            if customer["name"].casefold() == name.casefold():
                return {"customer_id": customer_id, **customer}
        raise ValueError(f"no customer is called {name}")

    def list_orders(self, customer_id: str) -> list[dict[str, object]]:
        """List the orders of a customer."""
        self.customers[customer_id]
        return [
            {"order_id": key, **one} for key, one in self.orders.items() if one["customer_id"] == customer_id
        ]

    def get_order(self, order_id: str) -> dict[str, object]:
        """Show an order."""
        return {"order_id": order_id, **self.orders[order_id]}

    def refund_order(self, order_id: str, amount: float, reason: str = "none given") -> dict[str, object]:
        """Refund part or all of an order.

        Args:
            order_id: which order.
            amount: in dollars.
            reason: why.
        """
        order = self.orders[order_id]
        if amount <= 0 or order["refunded"] + amount > order["price"]:
            raise ValueError("the amount must be positive, and at most what was paid")
        order["refunded"] += amount
        return {"order_id": order_id, "refunded": order["refunded"], "reason": reason}

    def cancel_order(self, order_id: str) -> dict[str, str]:
        """Cancel an order that is not delivered yet."""
        if self.orders[order_id]["status"] not in ("paid", "shipped"):
            raise ValueError("it is too late for that")
        self.orders[order_id]["status"] = "cancelled"
        return {"order_id": order_id, "status": "cancelled"}

    def open_ticket(
        self, customer_id: str, subject: str, priority: Literal["low", "normal", "high"] = "normal"
    ) -> dict[str, str]:
        """Open a ticket for a customer.

        Args:
            customer_id: whose ticket it is.
            subject: what it is about.
            priority: how urgent it is.
        """
        self.customers[customer_id]
        self._opened += 1
        ticket_id = f"T-{self._opened}"
        self.tickets[ticket_id] = {
            "customer_id": customer_id,
            "subject": subject,
            "priority": priority,
            "status": "open",
        }
        return {"ticket_id": ticket_id}

    def close_ticket(self, ticket_id: str, resolution: str) -> dict[str, str]:
        """Close a ticket."""
        if self.tickets[ticket_id]["status"] == "closed":
            raise ValueError("it is closed already")
        self.tickets[ticket_id] |= {"status": "closed", "resolution": resolution}
        return {"ticket_id": ticket_id, "status": "closed"}

    def update_email(self, customer_id: str, email: str) -> dict[str, str]:
        """Change the email address of a customer."""
        self.customers[customer_id]["email"] = email
        return {"customer_id": customer_id, "email": email}
