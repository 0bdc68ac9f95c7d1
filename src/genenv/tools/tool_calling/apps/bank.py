"""Bank: balances, transfers, bills and spending limits. Amounts are kept in cents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from genenv.tools.tool_calling.apps.common import cents, keep, money, named, require
from genenv.tools.tool_calling.apps.kinds import Found, State, Text

Account = Literal["checking", "savings"]


def _book(state: State, account: str, party: str, change: int) -> None:
    """Change a balance and write the transaction down."""
    state["balances"][account] += change
    keep(state["transactions"][account], {"date": state["today"], "party": party, "cents": change})


class Bank:
    """Bank: balances, transfers, bills and spending limits. Amounts are kept in cents."""

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
