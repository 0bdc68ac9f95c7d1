"""Contacts and messages: an address book, what was sent, what came in."""

from __future__ import annotations

from genenv.tools.tool_calling.apps.common import existing, keep, named, phone_digits, require
from genenv.tools.tool_calling.apps.kinds import Found, State, Text


def _recipient(state: State, to: str) -> str:
    """The contact that a name or phone stands for, else the text itself."""
    if known := named(state["contacts"], to):
        return known
    digits = phone_digits(to)
    owners = (
        name for name, card in state["contacts"].items() if digits and phone_digits(card["phone"]) == digits
    )
    return next(owners, to)


class Contacts:
    """Contacts and messages: an address book, what was sent, what came in."""

    contacts: State

    def add_contact(self, name: Text, phone: Text) -> Found:
        """Add a contact.

        Args:
            name: full name.
            phone: phone number.
        """
        require(
            named(self.contacts["contacts"], name) is None, f"There is already a contact called {name!r}."
        )
        require(phone_digits(phone) is not None, f"{phone!r} is not a phone number.")
        self.contacts["contacts"][name] = {"phone": phone, "email": "", "blocked": False}
        return {"name": name, "phone": phone}

    def find_contact(self, name: Text) -> Found:
        """Look up a contact's phone and email.

        Args:
            name: full name.
        """
        known = existing(self.contacts["contacts"], name, "contact")
        card = self.contacts["contacts"][known]
        return {"name": known, "phone": card["phone"], "email": card["email"]}

    def send_message(self, to: Text, text: Text) -> Found:
        """Send a text message.

        Args:
            to: a contact's name or a phone number.
            text: what to write.
        """
        known = _recipient(self.contacts, to)
        if known in self.contacts["contacts"]:
            require(not self.contacts["contacts"][known]["blocked"], f"{known} is blocked.")
        elif phone_digits(to) is None:
            raise ValueError(f"There is no contact called {to!r}, and it is not a phone number.")
        keep(self.contacts["sent"], {"to": known, "text": text})
        return {"to": known, "status": "sent"}

    def block_contact(self, name: Text) -> Found:
        """Block a contact.

        Args:
            name: full name.
        """
        known = existing(self.contacts["contacts"], name, "contact")
        require(not self.contacts["contacts"][known]["blocked"], f"{known} is already blocked.")
        self.contacts["contacts"][known]["blocked"] = True
        return {"name": known, "status": "blocked"}

    def read_messages(self, sender: Text) -> Found:
        """Read the messages from a sender.

        Args:
            sender: who wrote them.
        """
        texts = [
            item["text"] for item in self.contacts["inbox"] if item["sender"].casefold() == sender.casefold()
        ]
        require(bool(texts), f"There are no messages from {sender!r}.")
        return {"text": texts[-1], "messages": texts}
