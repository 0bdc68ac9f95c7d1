"""User requests for programs: wordings with blanks that are filled with argument values.

Nothing is parsed from English. A wording belongs to one tool, or to two of which the second uses a result of
the first (`find_customer>open_ticket`). `{name}` inserts a value, `{due:words}` a value in words (see
`spoken_values`). `{on=true}` inserts nothing: the wording is only for that value, stated by other words. A
wording that ends in `.`, `?` or `!` is a whole utterance; any other is an order that can follow "please".
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.environments.common import Refused
from genenv.tools.discover.rows import HOW_MANY, choice
from genenv.tools.discover.state_values import parts_of, singular, words_of
from genenv.tools.language.sentences import all_imperative, imperative, is_verbal
from genenv.tools.language.words import (
    CONDITIONS,
    DURATIONS,
    MEASURES,
    PREPOSITIONS,
    SURE_VERBS,
    TIME_UNITS,
    UNITS,
)
from genenv.tools.spec import THEN, Program, Step, Use
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.differences import is_equal
from genenv.types import Json, RejectReason

ARGUMENTS = "arguments"
"""The blank for all values without a separate blank."""
_BLANK = re.compile(r"\{([^\W\d][\w.-]*)(?::([a-z]+)|=([^{}]*))?\}")
_ENDS = (".", "?", "!")
_END = re.compile(
    r"(?:(?<=[^\W\d_A-Z])|(?<=\)))(?<!\bincl)(?<!\bapprox)(?<!\bvs)[.;](?:\s|$)|。"
    r"|,?\s+\(?(?:e\.g\.|i\.e\.|for example)"
)
"""The end of the first sentence of a documentation, or of what it says before an example."""
_TO_AGENT = re.compile(r",?\s+(?:after|before|once|when|whenever|if|as soon as)\s+you\b.*", re.IGNORECASE)
"""What a documentation tells the agent of when to call: "after you've completed it"."""
_OPTIONAL = re.compile(
    r"\s+\(optionally\b[^()]*\)|,\s+(?:and\s+)?optionally\b.*|,?\s+with optional\b.*"
    r"|,\s+or\s+(?:(?:just |only )?(?:all|the ones|those|one|some) )?"
    r"(?:at|by|for|from|in|of|on|with)\b[^,]*$",
    re.IGNORECASE,
)
"""What a documentation says of arguments that a call may not have: ", optionally filtered by status", or
", or of one day".
"""
_ALL = re.compile(r"^((?:look up|find out|\w+) )all (?:the )?(?!(?:at|but|by|from|in|of|that|those|who)\b)")
_LISTED = re.compile(r":\s+[\"'`“‘].*")
"""A list of values in a documentation: `: "north" or "south"`."""
_QUESTION_WORDS = frozenset({"whether", "if", "how", "what", "which", "who", "whose", "when", "where", "why"})
_IDENTIFIER = re.compile(r"[\W\d_]|[a-z][A-Z]")
"""Characters in a tool's name that a plain word does not have."""
_LONGEST_TOLD = 120
"""Maximum length in characters of a documentation sentence that becomes a wording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The style of a request: quotation marks or not, and the words between its parts."""

    quoted: bool = True
    """Whether texts are put in quotation marks; if not, wordings contain the marks."""
    openings: Sequence[str] = ("", "", "Please ", "Could you do this: ", "I need this: ", "Would you please ")
    next: Sequence[str] = (". Then ", ". After that, ", "; then ")
    also: Sequence[str] = ("Also, ", "Then ", "Please ")
    """Words between a whole utterance and an order that follows it."""

    def text(self, value: Json) -> str:
        """Return a value as text in a request."""
        return value if isinstance(value, str) and not self.quoted else value_text(value)


MEASURING_MANNERS: Mapping[str, Sequence[str]] = {
    "openings": ("", "", "I would like you to ", "Kindly ", "Here is what I want: "),
    "next": (". Next, ", ". Once that is done, ", "; next, "),
    "also": ("Besides, ", "One more thing: ", "In addition, "),
}
"""Words between the parts of held-out requests, if held-out tasks have separate wordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A call with the values that fill the blanks of its wording."""

    tool: Tool
    args: Mapping[str, Json]
    found: Mapping[str, str] = field(default_factory=dict[str, str])
    """For arguments from the result of the call before: the phrase that refers to the value."""
    manner: Manner = field(default_factory=Manner)
    in_words: Callable[[str, str], Sequence[str]] = lambda _name, _form: ()
    """Returns an argument in words, given its name and the form."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One call in words; an order begins in lower case."""

    text: str
    implied: frozenset[str] = frozenset()
    """Arguments that fixed words of the wording state."""


def label(name: str) -> str:
    """Return an identifier as words: `orderId` is `order id`."""
    return " ".join(parts_of(name)) or name


def measured(name: str) -> str:
    """Return the name of a field as words, with its unit, if it ends in one: `length_m` is `length in m`.

    Some words, such as `min` and `hours`, are taken for units only behind a word for a time.
    """
    *parts, unit = parts_of(name) or [name]
    is_said = parts and not parts[-1].endswith("ed") and parts[-1] not in PREPOSITIONS | UNITS.keys()
    is_said = is_said and (len(unit) > 1 or parts[-1] in DURATIONS | MEASURES)
    if is_said and (unit in UNITS or (unit in TIME_UNITS and parts[-1] in DURATIONS)):
        return f"{' '.join(parts)} in {UNITS.get(unit) or TIME_UNITS[unit]}"
    return label(name)


def enumerated(texts: Sequence[str]) -> str:
    """Return texts as a list in a sentence: `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def value_text(value: Json) -> str:
    """Return a value as text in a request; strings are in quotation marks."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and all(isinstance(one, str | int | float) for one in value):
        return enumerated([value_text(one) for one in value])
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def first_sentence(tool: Tool) -> str:
    """Return the first sentence of a documentation, up to an example, an option, or words to the agent."""
    told = _END.split(tool.description.strip(), maxsplit=1)[0]
    return _TO_AGENT.sub("", _LISTED.sub("", _OPTIONAL.sub("", told))).strip().rstrip(".,;: ")


def blanks_of(wording: str) -> list[str]:
    """Return the names in a wording's blanks, in order."""
    return [match[1] for match in _BLANK.finditer(wording)]


def without_blanks(wording: str) -> str:
    """Return a wording without its blanks."""
    return _BLANK.sub(" ", wording)


def first_wordings(tool: Tool, *, writes: bool | None = None) -> tuple[str, ...]:
    """Return default wordings of a tool from its documentation, or else from its name.

    A wording does not quote the tool's identifier: the agent has to find the tool.

    Args:
        tool: the tool.
        writes: whether a successful call changes the state; None: as its author declares.
    """
    writes = tool.writes is True if writes is None else writes
    order = _from_documentation(tool, writes=writes) or _from_name(tool, writes=writes)
    return (f"{order}: {{{ARGUMENTS}}}",)


def beginnings(tools: Mapping[str, Tool], writing: Mapping[str, bool]) -> dict[str, tuple[str, ...]]:
    """Return default wordings of several tools; no two have the same words, and none names a tool.

    Args:
        tools: all tools, whose names must not occur.
        writing: the tools that need wordings, and whether each changes the state.
    """
    made = {name: first_wordings(tools[name], writes=writes) for name, writes in writing.items()}
    times = Counter(words_of(one) for wordings in made.values() for one in wordings)

    def are_distinct(wordings: Iterable[str]) -> bool:
        return not any(
            times[words_of(one)] > 1 or any(names_tool(one, other) for other in tools) for one in wordings
        )

    def apart(name: str) -> tuple[str, ...]:
        """Return a wording of its own: by the name, after the sentence if the name begins with no verb."""
        order = _from_documentation(tools[name], writes=writing[name])
        both = f"{order} ({label(name)}): {{{ARGUMENTS}}}"
        if order is not None and label(name).split()[0] not in SURE_VERBS and are_distinct((both,)):
            return (both,)
        return (f"{_from_name(tools[name], writes=writing[name])}: {{{ARGUMENTS}}}",)

    return {name: wordings if are_distinct(wordings) else apart(name) for name, wordings in made.items()}


def is_documented(tool: Tool) -> bool:
    """Whether the tool's documentation has a usable first sentence; else wordings come from its name."""
    return _from_documentation(tool, writes=False) is not None


def names_tool(text: str, name: str) -> bool:
    """Whether a text contains a tool's identifier; a plain word counts only in quotes."""
    if _IDENTIFIER.search(name):
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
    return re.search(rf"""(['"`]){re.escape(name)}\1""", text) is not None


def _from_documentation(tool: Tool, *, writes: bool) -> str | None:
    """Return an order made of the first sentence of a tool's documentation; None if it is not usable."""
    told = first_sentence(tool)
    if not told or len(told) > _LONGEST_TOLD or _BLANK.search(told) or names_tool(told, tool.name):
        return None
    if told.lower().startswith("given ") and ", " in told:
        told = told.partition(", ")[2]
    first, *more = told.split(maxsplit=1)
    rest = "".join(more)
    if first.lower().rstrip(":,.") in CONDITIONS:
        return None
    word, comma, _ = first.lower().partition(",")
    rest = f"{comma} {rest}"
    verb = imperative(word, rest.lstrip(), label(tool.name).split()[0], writes=writes)
    if verb is not None:
        is_third = verb != word and word.endswith("s")
        return f"{verb}{all_imperative(rest, writes=writes) if is_third else rest}".strip()
    said = told if first[1:2].isupper() else told[:1].lower() + told[1:]
    if writes:
        return f"do the following: {said}"
    return f"{'find out' if first.lower() in _QUESTION_WORDS else 'look up'} {said}"


def _from_name(tool: Tool, *, writes: bool) -> str:
    """Return an order made of the words of a tool's name."""
    name = label(tool.name)
    first = name.split()[0]
    return name if writes or first in SURE_VERBS or is_verbal(first) else f"look up the {name}"


def clause(said: Said, wordings: Sequence[str], rng: random.Random) -> Clause:
    """Return a call in a random wording that fits its arguments, or in the default wording."""
    found = only_fitting(said, wordings, rng)
    return found or _filled(rng.choice(first_wordings(said.tool)), said, rng)


def only_fitting(said: Said, wordings: Sequence[str], rng: random.Random) -> Clause | None:
    """Return one or two calls in a random wording that fits their arguments; None if none fits."""
    fitting = [one for one in wordings if _fits(one, said)]
    return _filled(rng.choice(fitting), said, rng) if fitting else None


def _filled(chosen: str, said: Said, rng: random.Random) -> Clause:
    given = {**{name: said.manner.text(value) for name, value in said.args.items()}, **said.found}
    blanks = set(blanks_of(chosen))
    rest = [_named(name, text, said.found) for name, text in given.items() if name not in blanks]
    rng.shuffle(rest)
    listed = enumerated(rest)

    def fill(match: re.Match[str]) -> str:
        name, form, fixed = match.groups()
        if fixed is not None:
            return ""
        return rng.choice(said.in_words(name, form)) if form else given.get(name, listed)

    filled = _BLANK.sub(fill, chosen)
    if ARGUMENTS in blanks:  # what is stated may choose among all
        filled = _ALL.sub(r"\1", filled) if listed else filled.rstrip().rstrip(":,")
    return Clause(filled, frozenset(match[1] for match in _BLANK.finditer(chosen) if match[3] is not None))


def _named(name: str, text: str, found: Mapping[str, str]) -> str:
    if name not in found:
        return f"{label(name)} {text}"
    return text if f" {measured(name)} " in text else f"{text} as {label(name)}"


def _fits(wording: str, said: Said) -> bool:
    given, blanks = {*said.args, *said.found}, set(blanks_of(wording))
    if not (blanks - {ARGUMENTS} <= given and (ARGUMENTS in blanks or given <= blanks)):
        return False
    for match in _BLANK.finditer(wording):
        name, form, fixed = match.groups()
        if fixed is not None and (name not in said.args or not is_equal(said.args[name], json.loads(fixed))):
            return False
        if form and not said.in_words(name, form):
            return False
    return True


def instruction(
    clauses: Sequence[str], questions: Sequence[str], rng: random.Random, manner: Manner | None = None
) -> str:
    """Return a user request made of clauses and questions."""
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


def found_text(path: Sequence[str | int], otherwise: str, tool: str) -> str:
    """Return a phrase for a value in the result of the call before, by its field.

    Args:
        path: the path of the value.
        otherwise: the name of a value without a field.
        tool: the name of the called tool, whose last word may say what it lists.
    """
    if asked := _rows_text(path, tool):
        return f"{asked} that this gives"
    named = next((str(part) for part in reversed(path) if isinstance(part, str)), otherwise)
    return f"the {measured(named)} that this gives"


def _rows_text(path: Sequence[str | int], tool: str) -> str:
    """Return a phrase for what words of a path count or choose among the rows of a list; empty if none do."""
    if path and path[-1] == HOW_MANY:
        return f"the number of {_listed(path[:-1], tool)}"
    *before, part, field = path if len(path) > 1 else ("", "")
    word, compared = choice(part)
    if not word:
        return ""
    *words, last = _listed(before, tool).split()
    row = " ".join([*words, singular(last)])
    return f"the {measured(str(field))} of the {row} with the {word} {measured(compared)}"


def _listed(place: Sequence[str | int], tool: str) -> str:
    """Return what a list holds, in the plural: by its field, or by the last word of the tool's name."""
    of_tool = [*itertools.takewhile(lambda one: one not in PREPOSITIONS, parts_of(tool))]
    named = label(str(place[-1])) if place else (of_tool or [""])[-1]
    last = named.rpartition(" ")[-1]
    return named if singular(last) != last else f"{named if place else ''} entries".strip()


def same_words(one: str, other: str) -> bool:
    """Whether two wordings differ only in their blanks."""
    return words_of(_BLANK.sub("", one)) == words_of(_BLANK.sub("", other))


_WITHOUT = " without "


def without(tool: str, parameter: str) -> str:
    """Return the key in `wordings.toml` of wordings that omit a value that the tool needs."""
    return f"{tool}{_WITHOUT}{parameter}"


def left_out(tool: Tool, wordings: Iterable[str]) -> list[str]:
    """Return the parameters of a tool that some wordings omit, by the keys of the wordings."""
    return [name for name in tool.properties if without(tool.name, name) in wordings]


def omittable(tool: Tool, wordings: Iterable[str]) -> list[str]:
    """Return the required arguments that a user may give later: those that wordings omit, or else all."""
    return [name for name in left_out(tool, wordings) or tool.properties if name in tool.required]


def absent(tool: Tool, step: Step) -> list[str]:
    """Return the parameters that a call requires and does not give."""
    given = {*step.args, *(use.parameter for use in step.uses)}
    return [name for name in tool.properties if name in tool.required and name not in given]


def alike(names: Collection[str], groups: Iterable[Sequence[str]]) -> set[str]:
    """Return the tools that can replace one of the given tools, by groups of such tools."""
    return {one for group in groups if not set(names).isdisjoint(group) for one in group} - set(names)


@dataclass(frozen=True, slots=True)
class Request:
    """A user request for a program."""

    text: str
    implied: tuple[tuple[str, ...], ...]
    """For each call, the arguments that are stated by fixed words instead of their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStyle:
    """The wordings and the values in words with which requests are written."""

    wordings: Mapping[str, Sequence[str]]
    """By tool, or by two tools of which the second uses the first one's result. A tool without wordings is
    asked for by its documentation or name."""
    manner: Manner
    in_words: Callable[[str, str, Json, str], Sequence[str]]
    """Returns a value in words, given tool, parameter, value and form."""
    usual: Callable[[str, str, Use], bool]
    """Returns whether wordings for two tools fit how the second one uses the first one's result."""


def said(tools: Mapping[str, Tool], program: Program, speech: RequestStyle, rng: random.Random) -> Request:
    """Write the user request for a program.

    Args:
        tools: the tools that it calls.
        program: the program.
        speech: the wordings and the style.
        rng: samples wordings.
    """
    steps, clauses, implied = program.calls, list[str](), list[tuple[str, ...]]()
    number = 0
    while number < len(steps):
        some = steps[number : number + 2]
        both = _both(tools, some, speech, rng) if len(some) > 1 and some[1].uses else None
        if both is None:
            some = some[:1]
            both = _one(tools, steps, number, program.gap, speech, rng)
        clauses.append(both.text)
        implied += [tuple(sorted(both.implied & step.args.keys())) for step in some]
        number += len(some)
    questions = [found_text(one.path, "result", steps[one.call].tool) for one in program.questions]
    return Request(instruction(clauses, questions, rng, speech.manner), tuple(implied))


def _one(
    tools: Mapping[str, Tool],
    steps: Sequence[Step],
    number: int,
    gap: str,
    speech: RequestStyle,
    rng: random.Random,
) -> Clause:
    step = steps[number]
    found = {use.parameter: found_text(use.path, use.parameter, steps[use.call].tool) for use in step.uses}
    call = _said(tools, [step], speech, found)
    missing = next(iter(absent(tools[step.tool], step)), "")
    incomplete = speech.wordings.get(without(step.tool, missing), ())
    if gap != "missing_info":
        return clause(call, incomplete or speech.wordings.get(step.tool, ()), rng)
    found = only_fitting(call, incomplete, rng)
    if found is None:
        raise Refused(RejectReason.UNSTATED, f"no wording of {step.tool} leaves out {missing}")
    return found


def _both(
    tools: Mapping[str, Tool], steps: Sequence[Step], speech: RequestStyle, rng: random.Random
) -> Clause | None:
    """Return two calls in one wording for both; None if the two tools have no such wordings.

    Raises:
        Refused: no such wording states these calls: an argument differs between them, or the second call uses
            another value than the wordings are meant for.
    """
    first, second = steps
    wordings = speech.wordings.get(f"{first.tool}{THEN}{second.tool}", ())
    if not wordings or any(choice(part)[0] for use in second.uses for part in use.path):
        return None  # wordings of two tools name no row
    properties, found_out = tools[second.tool].properties, {use.parameter for use in second.uses}
    differ = [
        name
        for name, value in first.args.items()
        if name in properties.keys() - found_out
        and second.args.get(name, properties[name].get("default")) != value
    ]
    usual = all(speech.usual(first.tool, second.tool, use) for use in second.uses)
    found = None if differ or not usual else only_fitting(_said(tools, steps, speech, {}), wordings, rng)
    if found is None:
        raise Refused(RejectReason.UNSTATED, f"no wording of {first.tool} and {second.tool} says these calls")
    return found


def _said(
    tools: Mapping[str, Tool], steps: Sequence[Step], speech: RequestStyle, found: Mapping[str, str]
) -> Said:
    args: dict[str, Json] = {name: value for step in steps for name, value in step.args.items()}

    def in_words(name: str, form: str) -> Sequence[str]:
        tool = next((step.tool for step in steps if name in step.args), None)
        return speech.in_words(tool, name, args[name], form) if tool else ()

    return Said(tool=tools[steps[0].tool], args=args, found=found, manner=speech.manner, in_words=in_words)
