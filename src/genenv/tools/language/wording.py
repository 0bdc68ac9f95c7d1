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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.tools.discover.state_values import singular, words_of
from genenv.tools.language.words import ARTICLES, NO_VERBS, VERBS
from genenv.tools.worlds.base import Tool
from genenv.types import Json

ARGUMENTS = "arguments"
"""The blank for all values that have no blank of their own."""
_BLANK = re.compile(r"\{([A-Za-z_][\w.-]*)(?::([a-z]+)|=([^{}]*))?\}")
_ENDS = (".", "?", "!")
_IDENTIFIER = re.compile(r"[\W\d_]|[a-z][A-Z]")
"""In a tool's name: what makes it no plain word."""
_LONGEST_TOLD = 120
"""So many characters of documentation at most are taken into a task's text."""


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


def first_wordings(tool: Tool, *, writes: bool | None = None) -> tuple[str, ...]:
    """Wordings to begin with: what a tool's documentation says, else the words of its name.

    A wording does not quote the tool's identifier: which tool is meant is for the agent to find out.

    Args:
        tool: to be asked for.
        writes: whether a successful call changes the state; None: as its author says.
    """
    writes = tool.writes is True if writes is None else writes
    order = _from_documentation(tool, writes=writes) or _from_name(tool, writes=writes)
    return (f"{order}: {{{ARGUMENTS}}}",)


def beginnings(tools: Mapping[str, Tool], writing: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
    """Wordings to begin with for each of several tools; no two have the same words, and none names a tool.

    Args:
        tools: all of them.
        writing: those to be asked for, and whether each changes the state.
    """
    made = {name: first_wordings(tools[name], writes=writes) for name, writes in writing.items()}
    times = Counter(words_of(one) for wordings in made.values() for one in wordings)
    return {
        name: (f"{_from_name(tools[name], writes=writing[name])}: {{{ARGUMENTS}}}",)
        if any(times[words_of(one)] > 1 or any(names_tool(one, other) for other in tools) for one in wordings)
        else wordings
        for name, wordings in made.items()
    }


def is_documented(tool: Tool) -> bool:
    """Whether its documentation says in a sentence what it does; else its name alone is there to ask by."""
    return _from_documentation(tool, writes=False) is not None


def names_tool(text: str, name: str) -> bool:
    """Whether a text has a tool's identifier in it: one that no plain text has, or a plain word in quotes."""
    if _IDENTIFIER.search(name):
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
    return re.search(rf"""(['"`]){re.escape(name)}\1""", text) is not None


def _from_documentation(tool: Tool, *, writes: bool) -> str | None:
    """An order made of the first sentence of a tool's documentation; None: there is none that can be used."""
    told = first_sentence(tool)
    if not told or len(told) > _LONGEST_TOLD or _BLANK.search(told) or names_tool(told, tool.name):
        return None
    first, _, rest = told.partition(" ")
    verb = _imperative(first.lower(), rest, label(tool.name).split()[0])
    if verb is not None:
        return f"{verb} {rest}".strip()
    said = told if first[1:2].isupper() else told[:1].lower() + told[1:]
    return f"do the following: {said}" if writes else f"tell me {said}"


def _from_name(tool: Tool, *, writes: bool) -> str:
    """An order made of the words of a tool's name."""
    name = label(tool.name)
    return name if writes or name.split()[0] in VERBS else f"tell me the {name}"


def _imperative(word: str, rest: str, name: str) -> str | None:
    """A verb as one says it to somebody: `returns` is return. None: the word is no verb, as far as is known.

    Args:
        word: with which a sentence begins.
        rest: of the sentence: what comes before an article is a verb.
        name: the first word of the tool's name, which is a verb where the sentence begins with it, too.
    """
    ways = (word, word[:-1], word[:-2], f"{word[:-3]}y" if word.endswith("ies") else word)
    known = next((way for way in ways if way in VERBS), None)
    if known is not None or word in NO_VERBS or not word.isalpha():
        return known
    if name in ways:
        return name
    follows = rest.partition(" ")[0].lower()
    return singular(word) if follows in ARTICLES and not word.endswith("ing") else None


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
