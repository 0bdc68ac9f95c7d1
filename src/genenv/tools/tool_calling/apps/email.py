"""Email: a mailbox with numbered messages, and what was sent."""

from __future__ import annotations

from typing import Any, Literal

from genenv.tools.tool_calling.apps.common import first_and_others, keep, matches, require
from genenv.tools.tool_calling.apps.kinds import Found, State, Text

Color = Literal["red", "yellow", "green"]


def _hits(state: State, query: str) -> list[Found]:
    """The messages that match, oldest number first."""
    return [
        {"email_id": int(number), "sender": mail["sender"], "subject": mail["subject"], "body": mail["body"]}
        for number, mail in sorted(state["inbox"].items(), key=lambda item: int(item[0]))
        if not mail["archived"] and matches(query, mail["sender"], mail["subject"], mail["body"])
    ]


def _mail(state: State, email_id: int) -> dict[str, Any]:
    mail = state["inbox"].get(str(email_id))
    if mail is None:
        raise ValueError(f"There is no email with the id {email_id}.")
    return mail


class Email:
    """Email: a mailbox with numbered messages, and what was sent."""

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
        hits = _hits(self.email, query)
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
