"""What a user says to ask for calls: words of the bundle with blanks, which are filled with the values.

Nothing is read back from English: a wording belongs to one tool, a value that is stated stands in its blank.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.domains.tools.leaves import words_of
from genenv.domains.tools.words import VERBS
from genenv.domains.tools.world import Tool
from genenv.types import Json

ARGUMENTS = "arguments"
"""The blank for all values that have no blank of their own."""
_BLANK = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
_OPENINGS = ("", "", "Please ", "Could you do this: ", "I need this: ", "Would you please ")
_NEXT = (". Then ", ". After that, ", "; then ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A call, as a user would ask for it."""

    tool: Tool
    args: Mapping[str, Json]
    found: Mapping[str, str]
    """Arguments that the call before finds: parameter, and how that is named."""


def label(name: str) -> str:
    """An identifier as words: `orderId` is `order id`."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)).lower() or name


def value_text(value: Json) -> str:
    """A value as it stands in an instruction; a text stands in quotation marks."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and all(isinstance(one, str | int | float) for one in value):
        return " and ".join(value_text(one) for one in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def first_sentence(tool: Tool) -> str:
    """The first sentence of a tool's documentation."""
    return re.split(r"(?<=[a-z)])[.;](?:\s|$)", tool.description.strip(), maxsplit=1)[0].strip().rstrip(".")


def blanks_of(wording: str) -> list[str]:
    """The names in its blanks, in order."""
    return _BLANK.findall(wording)


def without_blanks(wording: str) -> str:
    """A wording's own words."""
    return _BLANK.sub(" ", wording)


def first_wordings(tool: Tool) -> tuple[str, ...]:
    """Wordings made of a tool's documentation and name, to begin with."""
    told, name = first_sentence(tool), label(tool.name)
    made: list[str] = []
    if told and len(told) <= 120 and not _BLANK.search(told):
        first, _, rest = told.partition(" ")
        verb = _imperative(first.lower())
        if verb is not None:
            made.append(f"{verb} {rest}".strip() + f": {{{ARGUMENTS}}}")
    if not made or name.split()[0] in VERBS:
        made.append(
            f"{name}: {{{ARGUMENTS}}}" if name.split()[0] in VERBS else f"use {name!r}: {{{ARGUMENTS}}}"
        )
    return tuple(dict.fromkeys(made))


def _imperative(word: str) -> str | None:
    """A verb as one says it to somebody: `returns` is return. None: no verb that is known."""
    ways = (word, word[:-1], word[:-2], f"{word[:-3]}y" if word.endswith("ies") else word)
    return next((way for way in ways if way in VERBS), None)


def clause(said: Said, wordings: Sequence[str], rng: random.Random) -> str:
    """One call in words, which begin with a small letter."""
    given = {**{name: value_text(value) for name, value in said.args.items()}, **said.found}
    fitting = [one for one in wordings if _fits(one, set(given))]
    chosen = rng.choice(fitting or list(first_wordings(said.tool)))
    blanks = set(_BLANK.findall(chosen))
    rest = [_named(name, text, said.found) for name, text in given.items() if name not in blanks]
    rng.shuffle(rest)
    listed = ", ".join(rest[:-1]) + " and " * (len(rest) > 1) + rest[-1] if rest else ""
    filled = _BLANK.sub(lambda match: given.get(match[1], listed), chosen)
    return filled if listed or ARGUMENTS not in blanks else filled.rstrip().rstrip(":,")


def _named(name: str, text: str, found: Mapping[str, str]) -> str:
    return text if name in found and f" {label(name)} " in text else f"{label(name)} {text}"


def _fits(wording: str, given: set[str]) -> bool:
    blanks = set(_BLANK.findall(wording))
    return blanks - {ARGUMENTS} <= given and (ARGUMENTS in blanks or given <= blanks)


def instruction(clauses: Sequence[str], questions: Sequence[str], rng: random.Random) -> str:
    """Clauses and questions as what a user says."""
    asked = [*clauses]
    if questions:
        asked.append(f"tell me {' and '.join(questions)}")
    opening = rng.choice(_OPENINGS)
    text = asked[0]
    for one in asked[1:]:
        joined = rng.choice(_NEXT)
        text += joined + one
    text = opening + text if opening else text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def found_text(path: Sequence[str | int], otherwise: str) -> str:
    """How a value in the result of the call before is named: by its field."""
    named = next((str(part) for part in reversed(path) if isinstance(part, str)), otherwise)
    return f"the {label(named)} that this gives"


def same_words(one: str, other: str) -> bool:
    """Whether two wordings differ in their blanks alone."""
    return words_of(_BLANK.sub("", one)) == words_of(_BLANK.sub("", other))
