"""Notes and to-dos."""

from __future__ import annotations

import random
from datetime import date as Day
from typing import Any

from genenv.domains.tool_calling.apps.common import existing, first_and_others, matches, named, require
from genenv.domains.tool_calling.apps.kit import Date, Name, Result, State, Text, ToolError, tool

_NOTES = (
    ("Packing list", "Charger, passport, socks."),
    ("Gift ideas", "A scarf for Elena."),
    ("Wifi", "The router is in the hall."),
    ("Recipes", "Lentil soup with lemon."),
    ("Car", "Tires were changed in March."),
)
_TODOS = ("water the plants", "renew the passport", "return the library books", "buy stamps")


def initial(rng: random.Random, today: Day) -> State:
    """Three notes and two open to-dos."""
    return {
        "notes": dict(rng.sample(_NOTES, 3)),
        "todos": [
            {
                "item": item,
                "due": Day.fromordinal(today.toordinal() + rng.randrange(1, 10)).isoformat(),
                "done": False,
            }
            for item in rng.sample(_TODOS, 2)
        ],
    }


def _note_exists(state: State, rng: random.Random, title: str, **_: object) -> None:
    """A note of that title exists."""
    if named(state["notes"], title) is None:
        state["notes"][title] = rng.choice(_NOTES)[1]


def _query_hits(state: State, rng: random.Random, query: str) -> None:
    """A note matches the query."""
    if not _hits(state, query):
        title = query if named(state["notes"], query) is None else f"More on {query}"
        state["notes"][title] = f"Something about {query}."


def _todo_is_open(state: State, rng: random.Random, item: str) -> None:
    """The to-do is there and not done."""
    if not _open_todos(state, item):
        due = max((todo["due"] for todo in state["todos"]), default="2025-06-02")
        state["todos"].append({"item": item, "due": due, "done": False})


def _hits(state: State, query: str) -> list[Result]:
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


@tool("notes", writes=True, returns=("title",))
def add_note(state: State, title: Name, text: Text) -> Result:
    """Write a new note.

    Args:
        state: the app's state.
        title: title of the note.
        text: what it says.
    """
    require(named(state["notes"], title) is None, f"There is already a note called {title!r}.")
    state["notes"][title] = text
    return {"title": title, "status": "added"}


@tool("notes", writes=True, arrange=_note_exists, returns=("title",))
def append_note(state: State, title: Name, text: Text) -> Result:
    """Add text to a note.

    Args:
        state: the app's state.
        title: title of the note.
        text: what to add, on a line of its own.
    """
    known = existing(state["notes"], title, "note")
    state["notes"][known] += f"\n{text}"
    return {"title": known, "text": state["notes"][known]}


@tool("notes", writes=True, arrange=_note_exists, returns=("title",))
def delete_note(state: State, title: Name) -> Result:
    """Delete a note.

    Args:
        state: the app's state.
        title: title of the note.
    """
    known = existing(state["notes"], title, "note")
    del state["notes"][known]
    return {"title": known, "status": "deleted"}


@tool("notes", arrange=_query_hits, returns=("title", "text"))
def search_notes(state: State, query: Text) -> Result:
    """Search the notes.

    Args:
        state: the app's state.
        query: words that the note contains.
    """
    hits = _hits(state, query)
    require(bool(hits), f"No note matches {query!r}.")
    return first_and_others(hits)


@tool("notes", writes=True, returns=("item",))
def add_todo(state: State, item: Text, due: Date) -> Result:
    """Add a to-do.

    Args:
        state: the app's state.
        item: what to do.
        due: by when.
    """
    state["todos"].append({"item": item, "due": due, "done": False})
    return {"item": item, "due": due}


@tool("notes", writes=True, arrange=_todo_is_open, returns=("item",))
def complete_todo(state: State, item: Text) -> Result:
    """Tick off a to-do.

    Args:
        state: the app's state.
        item: what was to do.
    """
    todos = _open_todos(state, item)
    if not todos:
        raise ToolError(f"There is no open to-do {item!r}.")
    todos[0]["done"] = True
    return {"item": todos[0]["item"], "status": "done"}
