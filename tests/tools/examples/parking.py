"""State that is callable, or that a copy may lose: a connection to SQLite and more, as ordinary files hold them."""

import functools
import sqlite3
from dataclasses import dataclass

DB = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES)
DB.row_factory = sqlite3.Row
DB.execute("PRAGMA foreign_keys = ON")
DB.execute("create table bays (id text primary key, state text, plate text, since date)")
DB.execute("create table passes (bay text references bays (id))")
DB.executemany("insert into bays values (?, 'free', null, '2026-01-05')", [("A1",), ("A2",), ("B1",)])
DB.commit()
cursor = DB.cursor()


@dataclass
class Counter:
    """Counts what passes the gate."""

    seen: int = 0

    def __call__(self):
        self.seen += 1
        return self.seen


gate = Counter()


@functools.lru_cache
def tariff() -> dict:
    return {"hour": 2}


def list_free() -> list[str]:
    """List the free bays."""
    cursor.execute("select id from bays where state = 'free'")
    return [row["id"] for row in cursor.fetchall()]


def park(bay: str, plate: str) -> dict:
    """Park a vehicle in a free bay."""
    done = DB.execute("update bays set state='taken', plate=? where id=? and state='free'", (plate, bay))
    if not done.rowcount:
        raise ValueError(f"{bay} is not free")
    DB.commit()
    return {"bay": bay, "number": gate()}


def reserve(bay: str, plate: str) -> str:
    """Reserve a bay; the last step of it is forgotten."""
    DB.execute("update bays set state='reserved', plate=? where id=?", (plate, bay))
    return bay


def cancel() -> str:
    """Take back what is not committed."""
    DB.rollback()
    return "ok"


def add_pass(bay: str) -> str:
    """Add a pass for a bay."""
    DB.execute("insert into passes values (?)", (bay,))
    DB.commit()
    return bay


def since(bay: str) -> str:
    """Show the type of a bay's date."""
    return type(DB.execute("select since from bays where id=?", (bay,)).fetchone()[0]).__name__


def raise_tariff(by: int) -> int:
    """Raise the tariff."""
    tariff()["hour"] += by
    return tariff()["hour"]
