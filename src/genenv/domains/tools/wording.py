"""What a user says to ask for calls: words of the bundle with blanks, which are filled with the values.

Nothing is read back from English: a wording belongs to one tool, or to two of which the second uses what the
first one finds (`find_customer>open_ticket`), and a value that is stated stands in its blank. `{name}` is a
value as it is, `{due:words}` one in words (see `sayings`), `{on=true}` nothing: the wording is for that value
alone, and its other words say it. What ends in `.`, `?` or `!` is a whole utterance, anything else an order
that can follow "please".
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.domains.tools.leaves import words_of
from genenv.domains.tools.words import VERBS
from genenv.domains.tools.world import Tool
from genenv.types import Json

ARGUMENTS = "arguments"
"""The blank for all values that have no blank of their own."""
_BLANK = re.compile(r"\{([A-Za-z_][\w.-]*)(?::([a-z]+)|=([^{}]*))?\}")
_ENDS = (".", "?", "!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How all is said: with or without quotation marks, and what stands between the parts."""

    quoted: bool = True
    """Texts stand in quotation marks; without, a wording has them where it wants them."""
    openings: Sequence[str] = ("", "", "Please ", "Could you do this: ", "I need this: ", "Would you please ")
    next: Sequence[str] = (". Then ", ". After that, ", "; then ")
    also: Sequence[str] = ("Also, ", "Then ", "Please ")
    """Before an order that comes after a whole utterance."""

    def text(self, value: Json) -> str:
        """A value as it stands in an instruction."""
        return value if isinstance(value, str) and not self.quoted else value_text(value)


OTHER_MANNER: Mapping[str, Sequence[str]] = {
    "openings": ("", "", "I would like you to ", "Kindly ", "Here is what I want: "),
    "next": (". Next, ", ". Once that is done, ", "; next, "),
    "also": ("Besides, ", "One more thing: ", "In addition, "),
}
"""What stands between the parts of tasks for measuring, where these have wordings of their own."""


def _no_words(_name: str, _form: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A call, as a user would ask for it."""

    tool: Tool
    args: Mapping[str, Json]
    found: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arguments that the call before finds: parameter, and how that is named."""
    manner: Manner = field(default_factory=Manner)
    in_words: Callable[[str, str], Sequence[str]] = _no_words
    """Ways to say an argument in words, by its name and the form."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One call in words, which begin with a small letter where they are an order."""

    text: str
    implied: frozenset[str] = frozenset()
    """Arguments that fixed words say."""


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
    return [match[1] for match in _BLANK.finditer(wording)]


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


def clause(said: Said, wordings: Sequence[str], rng: random.Random) -> Clause:
    """One call in words: a wording that fits, or what the tool's documentation says."""
    fitting = [one for one in wordings if _fits(one, said)]
    return _filled(rng.choice(fitting or list(first_wordings(said.tool))), said, rng)


def only_fitting(said: Said, wordings: Sequence[str], rng: random.Random) -> Clause | None:
    """A call, or what two calls take together, in a wording that fits; None where none does."""
    fitting = [one for one in wordings if _fits(one, said)]
    return _filled(rng.choice(fitting), said, rng) if fitting else None


def _filled(chosen: str, said: Said, rng: random.Random) -> Clause:
    given = {**{name: said.manner.text(value) for name, value in said.args.items()}, **said.found}
    blanks = set(blanks_of(chosen))
    rest = [_named(name, text, said.found) for name, text in given.items() if name not in blanks]
    rng.shuffle(rest)
    listed = ", ".join(rest[:-1]) + " and " * (len(rest) > 1) + rest[-1] if rest else ""

    def fill(match: re.Match[str]) -> str:
        name, form, fixed = match.groups()
        if fixed is not None:
            return ""
        return rng.choice(said.in_words(name, form)) if form else given.get(name, listed)

    filled = _BLANK.sub(fill, chosen)
    text = filled if listed or ARGUMENTS not in blanks else filled.rstrip().rstrip(":,")
    return Clause(text, frozenset(match[1] for match in _BLANK.finditer(chosen) if match[3] is not None))


def _named(name: str, text: str, found: Mapping[str, str]) -> str:
    return text if name in found and f" {label(name)} " in text else f"{label(name)} {text}"


def _fits(wording: str, said: Said) -> bool:
    given, blanks = {*said.args, *said.found}, set(blanks_of(wording))
    if not (blanks - {ARGUMENTS} <= given and (ARGUMENTS in blanks or given <= blanks)):
        return False
    for match in _BLANK.finditer(wording):
        name, form, fixed = match.groups()
        if fixed is not None and (name not in said.args or not _is(said.args[name], fixed)):
            return False
        if form and not said.in_words(name, form):
            return False
    return True


def _is(value: Json, fixed: str) -> bool:
    wanted: Json = json.loads(fixed)
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def instruction(
    clauses: Sequence[str], questions: Sequence[str], rng: random.Random, manner: Manner | None = None
) -> str:
    """Clauses and questions as what a user says."""
    manner, asked = manner or Manner(), [*clauses]
    if questions:
        asked.append(f"tell me {' and '.join(questions)}")
    text = asked[0]
    if not text.endswith(_ENDS):
        opening = rng.choice(manner.openings)
        text = opening + text if opening else text[:1].upper() + text[1:]
    for one in asked[1:]:
        if one.endswith(_ENDS):
            text = f"{text}{'' if text.endswith(_ENDS) else '.'} {one}"
            continue
        joined = f" {rng.choice(manner.also)}" if text.endswith(_ENDS) else rng.choice(manner.next)
        text += joined + one
    return text if text.endswith(_ENDS) or text.endswith(tuple(f'{end}"' for end in _ENDS)) else text + "."


def found_text(path: Sequence[str | int], otherwise: str) -> str:
    """How a value in the result of the call before is named: by its field."""
    named = next((str(part) for part in reversed(path) if isinstance(part, str)), otherwise)
    return f"the {label(named)} that this gives"


def same_words(one: str, other: str) -> bool:
    """Whether two wordings differ in their blanks alone."""
    return words_of(_BLANK.sub("", one)) == words_of(_BLANK.sub("", other))
