"""Contacts and messages: an address book, what was sent, what came in."""

from __future__ import annotations

import random
import re
from datetime import date as Day

from genenv.domains.tool_calling.apps.common import digest, existing, named, phone_digits, require
from genenv.domains.tool_calling.apps.kit import Name, Result, State, Text, ToolError, tool

_NAMES = (
    "Maya Lopez",
    "Tom Becker",
    "Priya Nair",
    "Sam Carter",
    "Elena Rossi",
    "Jonas Weber",
    "Aisha Khan",
    "Leo Park",
)
_TEXTS = (
    "Are you free on Friday?",
    "The keys are under the mat.",
    "Call me when you are home.",
    "Running ten minutes late.",
)


def initial(rng: random.Random, today: Day) -> State:
    """Six contacts, three of whom have written."""
    names = rng.sample(_NAMES, 6)
    return {
        "contacts": {name: _card(name, rng) for name in names},
        "inbox": [{"sender": name, "text": rng.choice(_TEXTS)} for name in names[:3]],
        "sent": [],
    }


def _card(name: str, rng: random.Random) -> dict[str, str | bool]:
    """Phone and address of a person."""
    slug = re.sub(r"[^a-z0-9]+", ".", name.lower()).strip(".") or f"friend{digest(name) % 1000}"
    return {"phone": f"555-{rng.randrange(10_000):04d}", "email": f"{slug}@example.com", "blocked": False}


def _contact_exists(state: State, rng: random.Random, name: str) -> None:
    """The contact exists and is not blocked."""
    known = named(state["contacts"], name) or name
    state["contacts"].setdefault(known, _card(known, rng))["blocked"] = False


def _reachable(state: State, rng: random.Random, to: str, **_: object) -> None:
    """A message to that name or phone arrives."""
    known = _recipient(state, to)
    if known in state["contacts"] or phone_digits(to) is None:
        _contact_exists(state, rng, known)


def _has_written(state: State, rng: random.Random, sender: str) -> None:
    """There is a message from the sender."""
    if not any(message["sender"].casefold() == sender.casefold() for message in state["inbox"]):
        state["inbox"].append(
            {"sender": named(state["contacts"], sender) or sender, "text": rng.choice(_TEXTS)}
        )


def _recipient(state: State, to: str) -> str:
    """The contact that a name or phone stands for, else the text itself."""
    if known := named(state["contacts"], to):
        return known
    digits = phone_digits(to)
    owners = (
        name for name, card in state["contacts"].items() if digits and phone_digits(card["phone"]) == digits
    )
    return next(owners, to)


@tool("contacts", writes=True, returns=("name", "phone"))
def add_contact(state: State, name: Name, phone: Name) -> Result:
    """Add a contact.

    Args:
        state: the app's state.
        name: full name.
        phone: phone number.
    """
    require(named(state["contacts"], name) is None, f"There is already a contact called {name!r}.")
    require(phone_digits(phone) is not None, f"{phone!r} is not a phone number.")
    state["contacts"][name] = {"phone": phone, "email": "", "blocked": False}
    return {"name": name, "phone": phone}


@tool("contacts", arrange=_contact_exists, returns=("name", "phone", "email"))
def find_contact(state: State, name: Name) -> Result:
    """Look up a contact's phone and email.

    Args:
        state: the app's state.
        name: full name.
    """
    known = existing(state["contacts"], name, "contact")
    card = state["contacts"][known]
    return {"name": known, "phone": card["phone"], "email": card["email"]}


@tool("contacts", writes=True, arrange=_reachable, returns=("to",))
def send_message(state: State, to: Name, text: Text) -> Result:
    """Send a text message.

    Args:
        state: the app's state.
        to: a contact's name or a phone number.
        text: what to write.
    """
    known = _recipient(state, to)
    if known in state["contacts"]:
        require(not state["contacts"][known]["blocked"], f"{known} is blocked.")
    elif phone_digits(to) is None:
        raise ToolError(f"There is no contact called {to!r}, and it is not a phone number.")
    state["sent"].append({"to": known, "text": text})
    return {"to": known, "status": "sent"}


@tool("contacts", writes=True, arrange=_contact_exists, returns=("name",))
def block_contact(state: State, name: Name) -> Result:
    """Block a contact.

    Args:
        state: the app's state.
        name: full name.
    """
    known = existing(state["contacts"], name, "contact")
    require(not state["contacts"][known]["blocked"], f"{known} is already blocked.")
    state["contacts"][known]["blocked"] = True
    return {"name": known, "status": "blocked"}


@tool("contacts", arrange=_has_written, returns=("text",))
def read_messages(state: State, sender: Name) -> Result:
    """Read the messages from a sender.

    Args:
        state: the app's state.
        sender: who wrote them.
    """
    texts = [item["text"] for item in state["inbox"] if item["sender"].casefold() == sender.casefold()]
    require(bool(texts), f"There are no messages from {sender!r}.")
    return {"text": texts[-1], "messages": texts}
