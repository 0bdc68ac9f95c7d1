"""Notes and to-dos."""

from __future__ import annotations

from typing import Any

from genenv.tools.tool_calling.apps.common import existing, first_and_others, keep, matches, named, require
from genenv.tools.tool_calling.apps.kinds import Date, Found, State, Text


def _hits(state: State, query: str) -> list[Found]:
    return [
        {"title": title, "text": text}
        for title, text in sorted(state["notes"].items())
        if matches(query, title, text)
    ]


def _open_todos(state: State, item: str) -> list[dict[str, Any]]:
    """The open to-dos of that name, the most urgent first."""
    same = (
        todo for todo in state["todos"] if todo["item"].casefold() == item.casefold() and not todo["done"]
    )
    return sorted(same, key=lambda todo: todo["due"])


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
        hits = _hits(self.notes, query)
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
        todos = _open_todos(self.notes, item)
        if not todos:
            raise ValueError(f"There is no open to-do {item!r}.")
        todos[0]["done"] = True
        return {"item": todos[0]["item"], "status": "done"}
