"""Tools over an SQLite file, which each of them opens by its name; and settings in a file beside it."""

import json
import sqlite3
from contextlib import closing

from ledger_money import rounded

CURRENCY = json.load(open("settings.json"))["currency"]


def _open():
    return closing(sqlite3.connect("ledger.db", isolation_level=None))


def balance(account: str) -> dict:
    """Get the balance of an account."""
    with _open() as database:
        row = database.execute("SELECT amount FROM accounts WHERE name = ?", (account,)).fetchone()
    return {"amount": row[0], "currency": CURRENCY}


def transfer(source_account: str, target_account: str, amount: float) -> dict:
    """Transfer money from one account to another."""
    amount = rounded(amount)
    with _open() as database:
        have = database.execute("SELECT amount FROM accounts WHERE name = ?", (source_account,)).fetchone()[0]
        if source_account == target_account or have < amount:
            raise ValueError("not enough money")
        database.execute("UPDATE accounts SET amount = amount - ? WHERE name = ?", (amount, source_account))
        changed = database.execute(
            "UPDATE accounts SET amount = amount + ? WHERE name = ?", (amount, target_account)
        ).rowcount
        if not changed:
            raise ValueError("there is no such account")
    return {"amount": amount}
