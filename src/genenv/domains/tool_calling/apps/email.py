"""Email: a mailbox with numbered messages, and what was sent."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Any, Literal

from genenv.domains.tool_calling.apps.common import first_and_others, fresh_id, matches, require
from genenv.domains.tool_calling.apps.kit import Name, Result, State, Text, ToolError, tool

Color = Literal["red", "yellow", "green"]

_SENDERS = ("Priya Nair", "Tom Becker", "City Library", "Northwind Air", "Elena Rossi", "Harbor Clinic")
_MAILS = (
    ("Invoice for May", "Please find the invoice attached."),
    ("Team lunch", "Shall we meet at noon on Thursday?"),
    ("Your appointment", "We look forward to seeing you next week."),
    ("Book overdue", "Please return your book by Friday."),
    ("Itinerary", "Your trip is confirmed."),
    ("Quarterly report", "The draft is ready for your comments."),
)


def initial(rng: random.Random, today: Day) -> State:
    """Five messages in the inbox."""
    state: State = {"inbox": {}, "sent": []}
    for subject, body in rng.sample(_MAILS, 5):
        _receive(state, rng.choice(_SENDERS), subject, body)
    return state


def _receive(state: State, sender: str, subject: str, body: str, email_id: str = "") -> None:
    """Put a message into the inbox."""
    number = email_id or fresh_id(state["inbox"], sender, subject, body)
    state["inbox"][number] = {
        "sender": sender,
        "subject": subject,
        "body": body,
        "archived": False,
        "flag": "",
    }


def _query_hits(state: State, rng: random.Random, query: str) -> None:
    """A message in the inbox matches the query."""
    if not _hits(state, query):
        _receive(state, rng.choice(_SENDERS), query, f"A short note about {query}.")


def _email_exists(state: State, rng: random.Random, email_id: int, color: str = "") -> None:
    """The message is in the inbox, and does not carry the flag asked for."""
    if email_id <= 0:
        return
    if str(email_id) not in state["inbox"]:
        _receive(state, rng.choice(_SENDERS), *rng.choice(_MAILS), email_id=str(email_id))
    mail = state["inbox"][str(email_id)]
    mail["archived"] = False
    if mail["flag"] == color:
        mail["flag"] = ""


def _hits(state: State, query: str) -> list[Result]:
    """The messages that match, oldest number first."""
    return [
        {"email_id": int(number), "sender": mail["sender"], "subject": mail["subject"], "body": mail["body"]}
        for number, mail in sorted(state["inbox"].items(), key=lambda item: int(item[0]))
        if not mail["archived"] and matches(query, mail["sender"], mail["subject"], mail["body"])
    ]


def _mail(state: State, email_id: int) -> dict[str, Any]:
    mail = state["inbox"].get(str(email_id))
    if mail is None:
        raise ToolError(f"There is no email with the id {email_id}.")
    return mail


@tool("email", writes=True, returns=("to",))
def send_email(state: State, to: Name, subject: Text, body: Text) -> Result:
    """Send an email.

    Args:
        state: the app's state.
        to: name or address of the recipient.
        subject: subject line.
        body: what to write.
    """
    state["sent"].append({"to": to, "subject": subject, "body": body})
    return {"to": to, "status": "sent"}


@tool("email", arrange=_query_hits, returns=("email_id", "sender", "subject", "body"))
def search_email(state: State, query: Text) -> Result:
    """Search the inbox.

    Args:
        state: the app's state.
        query: words that the email contains.
    """
    hits = _hits(state, query)
    require(bool(hits), f"No email matches {query!r}.")
    return first_and_others(hits)


@tool("email", writes=True, arrange=_email_exists, returns=("email_id",))
def archive_email(state: State, email_id: int) -> Result:
    """Archive an email.

    Args:
        state: the app's state.
        email_id: number of the email.
    """
    mail = _mail(state, email_id)
    require(not mail["archived"], f"The email {email_id} is already archived.")
    mail["archived"] = True
    return {"email_id": email_id, "status": "archived"}


@tool("email", writes=True, arrange=_email_exists, returns=("email_id",))
def flag_email(state: State, email_id: int, color: Color) -> Result:
    """Flag an email with a color.

    Args:
        state: the app's state.
        email_id: number of the email.
        color: color of the flag.
    """
    _mail(state, email_id)["flag"] = color
    return {"email_id": email_id, "flag": color}
