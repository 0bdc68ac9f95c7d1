"""The README of an exported agent: what it is, how to serve it, what to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genenv.exporting.serving import Way
from genenv.texts import inert


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the README says."""

    title: str
    facts: Sequence[tuple[str, str]]
    ways: Sequence[Way]
    notes: Sequence[str]


def readme(card: Card) -> str:
    """The text, Markdown."""
    lines = [f"# {card.title}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in card.facts]
    lines += ["", "## Serve it, ask it", ""]
    for way in card.ways:
        lines += [f"{way.words}:", "", "```sh", *way.commands, "```", ""]
    lines += ["## What to know", "", *(f"- {note}" for note in card.notes)]
    return inert("\n".join(lines)) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
