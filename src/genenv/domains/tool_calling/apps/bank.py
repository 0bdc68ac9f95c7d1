"""Bank: balances, transfers, bills and spending limits. Amounts are kept in cents."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Annotated, Literal

from genenv.domains.tool_calling.apps.common import cents, money, named, require
from genenv.domains.tool_calling.apps.kit import Between, Name, Result, State, tool

Account = Literal["checking", "savings"]

_PAYEES = ("Green Grocer", "City Power", "Metro Transit", "Corner Bakery", "Fitness Hub", "Book Nook")


def initial(rng: random.Random, today: Day) -> State:
    """Two accounts with a few weeks of transactions."""
    transactions = {
        account: [
            {
                "date": Day.fromordinal(today.toordinal() - 3 * back - rng.randrange(3)).isoformat(),
                "party": rng.choice(_PAYEES),
                "cents": -rng.randrange(300, 12_000),
            }
            for back in range(5, 0, -1)
        ]
        for account in ("checking", "savings")
    }
    return {
        "today": today.isoformat(),
        "balances": {
            "checking": rng.randrange(50_000, 400_000),
            "savings": rng.randrange(200_000, 2_000_000),
        },
        "transactions": transactions,
        "limits": {"groceries": rng.randrange(20, 60) * 1000},
    }


def _funds_suffice(
    state: State, rng: random.Random, amount: float, source: str = "checking", **_: object
) -> None:
    """The account that pays holds at least the amount."""
    if amount > 0 and state["balances"][source] < round(amount * 100):
        state["balances"][source] = round(amount * 100) + rng.randrange(1_000, 50_000)


def _limit_differs(state: State, rng: random.Random, category: str, amount: float) -> None:
    """The category's limit is not yet the one asked for."""
    known = named(state["limits"], category) or category
    if state["limits"].get(known) == round(amount * 100):
        state["limits"][known] += rng.randrange(1, 10) * 1000


def _book(state: State, account: str, party: str, change: int) -> None:
    """Change a balance and write the transaction down."""
    state["balances"][account] += change
    state["transactions"][account].append({"date": state["today"], "party": party, "cents": change})


@tool("bank", returns=("balance",))
def get_balance(state: State, account: Account) -> Result:
    """Get the balance of an account.

    Args:
        state: the app's state.
        account: which account.
    """
    return {"balance": money(state["balances"][account])}


@tool("bank", writes=True, arrange=_funds_suffice, spends="amount", returns=("balance",))
def transfer(state: State, source: Account, target: Account, amount: float) -> Result:
    """Move money between your accounts.

    Args:
        state: the app's state.
        source: account the money comes from.
        target: account the money goes to.
        amount: how much, in dollars.
    """
    require(source != target, "Source and target are the same account.")
    moved = cents(amount)
    require(state["balances"][source] >= moved, f"There is not enough money in {source}.")
    _book(state, source, target, -moved)
    _book(state, target, source, moved)
    return {"balance": money(state["balances"][source])}


@tool("bank", writes=True, arrange=_funds_suffice, spends="amount", returns=("balance",))
def pay_bill(state: State, payee: Name, amount: float) -> Result:
    """Pay a bill from checking.

    Args:
        state: the app's state.
        payee: who gets the money.
        amount: how much, in dollars.
    """
    paid = cents(amount)
    require(state["balances"]["checking"] >= paid, "There is not enough money in checking.")
    _book(state, "checking", payee, -paid)
    return {"balance": money(state["balances"]["checking"])}


@tool("bank", returns=("party", "amount"))
def list_transactions(state: State, account: Account, limit: Annotated[int, Between(1, 50)]) -> Result:
    """List the latest transactions.

    Args:
        state: the app's state.
        account: which account.
        limit: how many, 1 to 50.
    """
    require(1 <= limit <= 50, "The limit must be between 1 and 50.")
    latest = [
        {"party": item["party"], "amount": money(item["cents"]), "date": item["date"]}
        for item in reversed(state["transactions"][account][-limit:])
    ]
    return {"party": latest[0]["party"], "amount": latest[0]["amount"], "transactions": latest}


@tool("bank", writes=True, arrange=_limit_differs)
def set_spending_limit(state: State, category: Name, amount: float) -> Result:
    """Set a monthly spending limit.

    Args:
        state: the app's state.
        category: what the money is spent on, e.g. groceries.
        amount: dollars a month.
    """
    known = named(state["limits"], category) or category
    state["limits"][known] = cents(amount)
    return {"category": known, "limit": amount}
