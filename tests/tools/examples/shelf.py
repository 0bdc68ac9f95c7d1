"""Functions with global variables, one of which is bound anew; an unlucky one is no tool."""

import datetime
import uuid
from dataclasses import dataclass

LIMIT = 3
_books = {"B1": {"title": "Middlemarch", "copies": 2}, "B2": {"title": "Emma", "copies": 1}}
loans = []
count = 0


@dataclass
class Loan:
    loan_id: str
    book_id: str
    reader: str
    since: datetime.datetime


def search_books(title: str) -> list[dict]:
    """Searches the shelf for a title."""
    return [
        {"book_id": key, **book} for key, book in _books.items() if title.lower() in book["title"].lower()
    ]


def lend(book_id: str, reader: str) -> dict:
    """Lends a book to a reader.

    :param book_id: which book.
    :param reader: to whom.
    """
    global count, loans
    if _books[book_id]["copies"] == 0:
        raise RuntimeError("all copies are lent")
    _books[book_id]["copies"] -= 1
    count += 1
    loans = [*loans, Loan(uuid.uuid4().hex, book_id, reader, datetime.datetime.now())]
    return {"loans": len(loans)}


async def copies_left(book_id: str) -> int:
    """Tells how many copies of a book are left."""
    return _books[book_id]["copies"]


def anything(*things: str) -> None:
    """Takes whatever it is given."""
