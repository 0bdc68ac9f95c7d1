"""Office apps: a calendar, contacts with messages, e-mail, and notes with to-dos.

In the calendar, a title identifies the earliest event of that title.
"""

from __future__ import annotations

import json
from datetime import date as Day
from typing import Annotated, Any, Literal

from pydantic import Field

from genenv.tools.tool_calling.apps.common import (
    MINUTES_PER_DAY,
    Date,
    Found,
    State,
    Text,
    Time,
    existing,
    first_and_others,
    keep,
    matches,
    minutes_of,
    named,
    phone_digits,
    require,
    time_of,
)

_OPENS, _CLOSES = minutes_of("08:00"), minutes_of("20:00")


def _event(state: State, title: str) -> dict[str, Any]:
    """Return the earliest event with a title, ignoring case."""
    same = [event for event in state["events"] if event["title"].casefold() == title.casefold()]
    require(bool(same), f"There is no event called {title!r}.")
    return min(same, key=lambda event: (event["date"], event["start"], event["minutes"]))


def _span(event: dict[str, Any], date: str) -> tuple[int, int]:
    """Return the start and end of an event in minutes after the midnight that begins `date`."""
    days = Day.fromisoformat(event["date"]).toordinal() - Day.fromisoformat(date).toordinal()
    start = days * MINUTES_PER_DAY + minutes_of(event["start"])
    return start, start + event["minutes"]


def _free_start(state: State, date: str, minutes: int) -> int | None:
    """Return the first minute of a day, in opening hours, from which a number of minutes is free, or None."""
    free = _OPENS
    for start, end in sorted(_span(event, date) for event in state["events"]):
        if end <= free:
            continue
        if start - free >= minutes:
            break
        free = end
    return free if free + minutes <= _CLOSES else None


class Calendar:
    """Calendar: events with a title, a day, a start and a length. A title identifies its earliest event."""

    calendar: State

    def create_event(
        self,
        title: Text,
        date: Date,
        start: Time,
        minutes: Annotated[int, Field(ge=1, le=MINUTES_PER_DAY)] = 60,
    ) -> Found:
        """Create an event.

        Args:
            title: title of the event.
            date: day of the event.
            start: when it starts.
            minutes: how long it takes, 1 to 1440.
        """
        keep(self.calendar["events"], {"title": title, "date": date, "start": start, "minutes": minutes})
        return {"title": title, "date": date, "start": start, "end": time_of(minutes_of(start) + minutes)}

    def move_event(self, title: Text, date: Date, start: Time) -> Found:
        """Move an event.

        Args:
            title: title of the event.
            date: new day.
            start: new start.
        """
        event = _event(self.calendar, title)
        event |= {"date": date, "start": start}
        self.calendar["events"].sort(key=json.dumps)
        return {"title": event["title"], "date": date, "start": start}

    def cancel_event(self, title: Text) -> Found:
        """Cancel an event.

        Args:
            title: title of the event.
        """
        event = _event(self.calendar, title)
        self.calendar["events"].remove(event)
        return {"title": event["title"], "date": event["date"], "status": "cancelled"}

    def list_events(self, date: Date) -> Found:
        """List the events of a day.

        Args:
            date: which day.
        """
        events = sorted(
            (
                {key: event[key] for key in ("title", "start", "minutes")}
                for event in self.calendar["events"]
                if event["date"] == date
            ),
            key=lambda event: (event["start"], event["title"], event["minutes"]),
        )
        require(bool(events), f"There are no events on {date}.")
        return {"title": events[0]["title"], "start": events[0]["start"], "events": events}

    def find_free_slot(self, date: Date, minutes: Annotated[int, Field(ge=1, le=_CLOSES - _OPENS)]) -> Found:
        """Find the first free time between 08:00 and 20:00.

        Args:
            date: which day.
            minutes: how long it must be, 1 to 720.
        """
        require(1 <= minutes <= _CLOSES - _OPENS, "A slot takes between 1 and 720 minutes.")
        start = _free_start(self.calendar, date, minutes)
        if start is None:
            raise ValueError(f"There is no free slot of {minutes} minutes on {date}.")
        return {"start": time_of(start), "end": time_of(start + minutes)}


def _recipient(state: State, to: str) -> str:
    """Return the name of the contact with a name or phone number, else the text itself."""
    if known := named(state["contacts"], to):
        return known
    digits = phone_digits(to)
    owners = (
        name for name, card in state["contacts"].items() if digits and phone_digits(card["phone"]) == digits
    )
    return next(owners, to)


class Contacts:
    """Contacts and messages: an address book, sent messages and received messages."""

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


Color = Literal["red", "yellow", "green"]


def _mail(state: State, email_id: int) -> dict[str, Any]:
    mail = state["inbox"].get(str(email_id))
    if mail is None:
        raise ValueError(f"There is no email with the id {email_id}.")
    return mail


class Email:
    """Email: a mailbox with numbered messages, and sent messages."""

    email: State

    def send_email(self, to: Text, subject: Text, body: Text) -> Found:
        """Send an email.

        Args:
            to: name or address of the recipient.
            subject: subject line.
            body: what to write.
        """
        keep(self.email["sent"], {"to": to, "subject": subject, "body": body})
        return {"to": to, "status": "sent"}

    def search_email(self, query: Text) -> Found:
        """Search the inbox.

        Args:
            query: words that the email contains.
        """
        hits = [
            {"email_id": int(number), **{field: mail[field] for field in ("sender", "subject", "body")}}
            for number, mail in sorted(self.email["inbox"].items(), key=lambda item: int(item[0]))
            if not mail["archived"] and matches(query, mail["sender"], mail["subject"], mail["body"])
        ]
        require(bool(hits), f"No email matches {query!r}.")
        return first_and_others(hits)

    def archive_email(self, email_id: int) -> Found:
        """Archive an email.

        Args:
            email_id: number of the email.
        """
        mail = _mail(self.email, email_id)
        require(not mail["archived"], f"The email {email_id} is already archived.")
        mail["archived"] = True
        return {"email_id": email_id, "status": "archived"}

    def flag_email(self, email_id: int, color: Color) -> Found:
        """Flag an email with a color.

        Args:
            email_id: number of the email.
            color: color of the flag.
        """
        _mail(self.email, email_id)["flag"] = color
        return {"email_id": email_id, "flag": color}


class Notes:
    """Notes and to-dos."""

    notes: State

    def add_note(self, title: Text, text: Text) -> Found:
        """Write a new note.

        Args:
            title: title of the note.
            text: what it says.
        """
        require(named(self.notes["notes"], title) is None, f"There is already a note called {title!r}.")
        self.notes["notes"][title] = text
        return {"title": title, "status": "added"}

    def append_note(self, title: Text, text: Text) -> Found:
        """Add text to a note.

        Args:
            title: title of the note.
            text: what to add, on a line of its own.
        """
        known = existing(self.notes["notes"], title, "note")
        self.notes["notes"][known] += f"\n{text}"
        return {"title": known, "text": self.notes["notes"][known]}

    def delete_note(self, title: Text) -> Found:
        """Delete a note.

        Args:
            title: title of the note.
        """
        known = existing(self.notes["notes"], title, "note")
        del self.notes["notes"][known]
        return {"title": known, "status": "deleted"}

    def search_notes(self, query: Text) -> Found:
        """Search the notes.

        Args:
            query: words that the note contains.
        """
        notes = sorted(self.notes["notes"].items())
        hits = [{"title": title, "text": text} for title, text in notes if matches(query, title, text)]
        require(bool(hits), f"No note matches {query!r}.")
        return first_and_others(hits)

    def add_todo(self, item: Text, due: Date) -> Found:
        """Add a to-do.

        Args:
            item: what to do.
            due: by when.
        """
        keep(self.notes["todos"], {"item": item, "due": due, "done": False})
        return {"item": item, "due": due}

    def complete_todo(self, item: Text) -> Found:
        """Tick off a to-do.

        Args:
            item: what was to do.
        """
        is_open = [todo for todo in self.notes["todos"] if not todo["done"]]
        same = [todo for todo in is_open if todo["item"].casefold() == item.casefold()]
        require(bool(same), f"There is no open to-do {item!r}.")
        todo = min(same, key=lambda todo: todo["due"])
        todo["done"] = True
        return {"item": todo["item"], "status": "done"}
