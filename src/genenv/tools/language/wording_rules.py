"""Wordings by a model: the prompts that ask for them, parsing of the replies, and checks by code.

The checks examine form, blanks and verbs, not meaning. They are strict: they refuse some good wordings in
order to let few wrong ones pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import cast

from genenv.environments.common import stem
from genenv.tools.discover.recipes import Graph
from genenv.tools.discover.state_values import leaves, words_of
from genenv.tools.language.wording import (
    ARGUMENTS,
    blanks_of,
    first_sentence,
    label,
    same_words,
    without_blanks,
)
from genenv.tools.language.words import CHANGING, DENIALS, NO_REQUEST, OPPOSITES, PARTICLES, READING, VERBS
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject

_BEFORE_VERBS = frozenset({"and", "to", "then", "or"})
_UNDOING = ("un", "dis", "de")


def _stems(words: Iterable[str]) -> frozenset[str]:
    return frozenset(map(stem, words))


_SIDES = tuple((_stems(one), _stems(other)) for one, other in OPPOSITES)
_KNOWN = _stems(VERBS).union(*(one | other for one, other in _SIDES))
_CHANGING, _READING = _stems(CHANGING), _stems(READING)


def verbs_of(tool: Tool) -> frozenset[str]:
    """Return the stems of a tool's verbs, from its name and the start of its documentation."""
    named, told = label(tool.name).split(), first_sentence(tool).split()
    known = [word for word in named if stem(word) in _KNOWN]
    own = known[:1] if known and known[0] == named[0] else known
    return _stems([*own, *(word for word in told[:1] if stem(word) in _KNOWN)])


def otherwise(tool: Tool, words: Sequence[str], *, writes: bool) -> str | None:
    """Return the word of a wording that asks for something else than the tool does, or None.

    Args:
        tool: the tool of the wording.
        words: the words of the wording in lower case, without its blanks.
        writes: whether a successful call changes the state.
    """
    verbs, named = verbs_of(tool), label(tool.name).split()
    own = _stems([*named, *re.findall(r"[a-z]+", first_sentence(tool).lower())])
    undone = frozenset[str]().union(
        *(other for one, other in _SIDES if one & verbs), *(one for one, other in _SIDES if other & verbs)
    )
    for place, word in enumerate(words):
        form, leads = stem(word), place == 0 or words[place - 1] in _BEFORE_VERBS
        if form in verbs:
            continue
        if form in undone and (leads or form not in own):
            return word
        if any(form == f"{prefix}{verb}" for prefix in _UNDOING for verb in verbs):
            return word
        if form in _KNOWN and any(verb == f"{prefix}{form}" for prefix in _UNDOING for verb in verbs):
            return word
        stops = word == "stop" and words[place + 1 : place + 2] and words[place + 1].endswith("ing")
        if (word in DENIALS or word.endswith(("n't", "n’t")) or stops) and form not in own:
            return word
        if leads and form not in own and form in (frozenset() if writes else _CHANGING):
            return word
    if writes and words and stem(words[0]) in _READING - own and not verbs & _stems(words):
        return words[0]
    return _other_particle(named, words)


def _other_particle(named: Sequence[str], words: Sequence[str]) -> str | None:
    """Return `off` if the tool's name has `on` and the wording has `off` instead, and so for other pairs."""
    for pair in PARTICLES:
        for own, other in (pair, pair[::-1]):
            if own in named and other not in named and other in words and own not in words:
                return other
    return None


SHORTEST, LONGEST = 8, 160
_SIGNS = re.compile(r"[{}\[\]<>|\"“”„«»`*_\\=~^]|(?<![\w])['’‘]\w|https?:|[.?!;…](?:\s|$)")
"""Signs that are not allowed outside of blanks: braces, markup, quotation marks, code, sentence ends."""
_GLUED = re.compile(r"[^\s($€£#]\{|\}[^\s,:)%'’]")
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_EMPTY_LAST = re.compile(rf"[:,] ?\{{{ARGUMENTS}\}}$")
_LONGEST_VALUE, _MOST_VALUES = 80, 20_000
_LONGEST_PHRASE = 8
_FEWEST_WORDS = 2


class Reason(StrEnum):
    """Why a wording is refused."""

    FORM = "form"
    SAME = "same words"
    OPPOSITE = "other verb"
    GATE = "gate"
    ROUND_TRIP = "round trip"
    MORE = "more than needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The refusal of a wording, with its reason."""

    reason: Reason
    why: str
    """The end of a sentence."""


class Rules:
    """Checks of new wordings for the tools of a world.

    Args:
        tools: all tools by name.
        graph: the recipes of the tools.
        state: the initial state; wordings must not contain its values.
    """

    def __init__(self, tools: Mapping[str, Tool], graph: Graph, state: Json) -> None:
        self._tools, self._graph = tools, graph
        self._phrases, self._names = _values(state)

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the parameters of a tool that tasks can give."""
        tool, ways = self._tools[name], self._graph.recipes[name].ways
        return tuple(one for one in tool.properties if one in ways or one in tool.required)

    def problem(self, name: str, wording: str, known: Mapping[str, Sequence[str]]) -> Refusal | None:
        """Return the refusal of a wording, or None if code finds no problem.

        Args:
            name: the tool of the wording.
            wording: the wording with its blanks.
            known: all existing wordings by tool.
        """
        if why := self._form(name, wording) or self._foreign(name, wording):
            return Refusal(reason=Reason.FORM, why=why)
        for tool, listed in known.items():
            for other in listed:
                if same_words(wording, other):
                    return Refusal(reason=Reason.SAME, why=f"{tool} has the same words already")
        words = [word.lower() for word in _WORD.findall(without_blanks(wording))]
        verb = otherwise(self._tools[name], words, writes=self._graph.recipes[name].writes)
        return None if verb is None else Refusal(reason=Reason.OPPOSITE, why=f"{name} does not {verb}")

    def _form(self, name: str, wording: str) -> str | None:
        """Return the problem of a wording's signs and blanks, or None."""
        tool, blanks, rest = self._tools[name], blanks_of(wording), without_blanks(wording)
        named = set(blanks) - {ARGUMENTS}
        if not SHORTEST <= len(wording) <= LONGEST:
            return f"it has {len(wording)} characters"
        if not wording.isprintable() or wording != " ".join(wording.split()):
            return "it is not one line of plain text"
        if found := self._names_a_tool(name, wording):
            return f"it names the tool {found}"
        if found := _SIGNS.search(rest):
            return f"it has {found[0].strip()!r} in it"
        if unknown := named - set(self.parameters(name)):
            return f"no task gives {min(unknown)}"
        if len(blanks) > len(set(blanks)):
            return "a blank stands in it twice"
        if ARGUMENTS not in blanks and (lacking := tool.required - named):
            return f"it lacks {{{min(lacking)}}}"
        if ARGUMENTS in blanks and tool.required <= named and not _EMPTY_LAST.search(wording):
            return f"{{{ARGUMENTS}}} may be nothing, and stands at the end only, after a colon"
        if _GLUED.search(wording):
            return "a blank touches a word"
        first = re.match(r"[^\W\d_]+", wording)
        if first is None or first[0].lower() in NO_REQUEST:
            return "it does not begin with a verb"
        if len(_WORD.findall(rest)) < _FEWEST_WORDS:
            return "one word tells no tool from others"
        return None

    def _names_a_tool(self, name: str, wording: str) -> str | None:
        rest = without_blanks(wording)
        told, own = _own_words(self._tools[name]), label(name)
        for other in self._tools:
            plain = other.isalpha() and other.islower()
            if plain and (other == name or stem(other) in set(map(stem, told))):
                continue
            if re.search(rf"(?<!\w){re.escape(other)}(?!\w)", rest):
                return other
            said = label(other).split()
            if len(said) > 1 and other != name and f" {' '.join(said)} " not in f" {own} {' '.join(told)} ":
                words = [word.lower() for word in _WORD.findall(rest)]
                if any(words[n : n + len(said)] == said for n in range(len(words))):
                    return other
        return None

    def _foreign(self, name: str, wording: str) -> str | None:
        """Return a complaint about a value in a wording (of the state, a schema, or invented), or None."""
        tool = self._tools[name]
        told = _own_words(tool)
        listed, named = _values(_listed(tool))[0], label(tool.name).split()
        words = re.findall(r"\w+", without_blanks(wording))
        lower = [word.lower() for word in words]
        for start in range(len(lower)):
            for end in range(start + 1, min(start + _LONGEST_PHRASE, len(lower)) + 1):
                phrase = tuple(lower[start:end])
                if (phrase in self._phrases and not _within(phrase, told)) or (
                    phrase in listed and not _within(phrase, named)
                ):
                    return f"{' '.join(words[start:end])!r} is a value"
        for place, word in enumerate(words):
            numbered, is_name = any(map(str.isdigit, word)), place > 0 and word[0].isupper() and word != "I"
            own = lower[place] in self._bundle_words
            if (numbered or is_name or lower[place] in self._names) and not own:
                return f"{word!r} looks like a value"
        return None

    @cached_property
    def _bundle_words(self) -> frozenset[str]:
        """All words in names and documentation of the tools."""
        return frozenset(word for tool in self._tools.values() for word in _own_words(tool))


def _own_words(tool: Tool) -> list[str]:
    """Return the words of a tool's name, its parameters and the first sentence of its documentation."""
    spoken = f"{label(tool.name)} {' '.join(map(label, tool.properties))} {first_sentence(tool)}"
    return re.findall(r"\w+", spoken.lower())


def _within(phrase: tuple[str, ...], told: Sequence[str]) -> bool:
    return any(tuple(told[n : n + len(phrase)]) == phrase for n in range(len(told)))


def _listed(tool: Tool) -> Json:
    """Return the values in a tool's schema; a wording must not state one of these."""
    found: list[Json] = []
    for one in tool.properties.values():
        schema: JsonObject = {**one, **tool.resolved(one)}
        found += [
            *cast("Sequence[Json]", schema.get("enum") or ()),
            schema.get("const"),
            schema.get("default"),
        ]
        found += cast("Sequence[Json]", schema.get("examples") or ())
    return found


def _values(state: Json) -> tuple[frozenset[tuple[str, ...]], frozenset[str]]:
    """Return the texts in a state as tuples of words, and the capitalized words of short texts."""
    phrases, names = set[tuple[str, ...]](), set[str]()
    texts = (value for values in leaves(state).values() for value in values if isinstance(value, str))
    for number, text in enumerate(texts):
        words = re.findall(r"\w+", text)
        if number >= _MOST_VALUES or len(text) > _LONGEST_VALUE or not words:
            continue
        if len(words) > 1 or len(words[0]) > 2:
            phrases.add(tuple(word.lower() for word in words[:_LONGEST_PHRASE]))
        if len(words) <= 3:
            names |= {word.lower() for word in words if len(word) > 2 and word[0].isupper()}
    return frozenset(phrases), frozenset(names)


_LONGEST_SCHEMA = 4_000
_LONGEST_LINE = 200


def writing(tool: Tool, parameters: Sequence[str], examples: Sequence[str], number: int) -> str:
    """Return the prompt that asks for wordings of a tool.

    Args:
        tool: the tool.
        parameters: the parameters that may have a blank, in order.
        examples: existing wordings.
        number: the number of wordings to write.
    """
    properties = {name: tool.properties[name] for name in parameters}
    schema = {**tool.parameters, "properties": properties}
    told = {"name": tool.name, "description": tool.description, "parameters": schema}
    needed = [f"{{{name}}}" for name in parameters if name in tool.required]
    others = [f"{{{name}}}" for name in parameters if name not in tool.required]
    lines = [
        "Users ask an assistant for things. It has this tool:",
        json.dumps(told, ensure_ascii=False)[:_LONGEST_SCHEMA],
        "",
        f"Write {number} ways in which a user would ask for it, one a line, each in other words. A way is a "
        "short order that begins with a verb. Values are blanks in braces, which are filled in later.",
    ]
    if needed:
        lines.append(f"Each has these blanks, once: {' '.join(needed)}")
    if others:
        lines.append(f"It may also have: {' '.join(others)}")
    if parameters:
        lines.append(f"Or it ends with a colon and {{{ARGUMENTS}}}, which stands for all values together.")
    lines.append(
        "No values, no names of tools or parameters outside blanks, no quotation marks, nothing else."
    )
    if examples:
        lines += ["These are there already:", *examples]
    return "\n".join(lines)


def naming(request: str, tools: Sequence[Tool]) -> str:
    """Return the prompt that asks which tool a request is for.

    Args:
        request: the user's request.
        tools: the tools in the order in which they are listed.
    """
    listed = [f"{tool.name}: {' '.join(tool.description.split())[:_LONGEST_LINE]}" for tool in tools]
    return "\n".join(
        [
            "These are the tools of an assistant:",
            *listed,
            "",
            f"A user says: {request}",
            "",
            "Which one tool does this ask for? Answer with its name.",
        ]
    )


def named(reply: str, tools: Mapping[str, Tool]) -> str | None:
    """Return the tool that a reply names; None if it names no tool or several.

    Args:
        reply: the model's reply.
        tools: the tools by name.
    """
    bare = reply.strip().strip("`\"'*_.: \n").removesuffix("()")
    if bare in tools:
        return bare
    pattern = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
    found = set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", reply)) if tools else set[str]()
    return found.pop() if len(found) == 1 else None


_LONGEST_REPLY = 100_000
_LONGEST_ANSWER_LINE = 1_000
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_MARK = re.compile(r"\s*(?:>\s*)*(?:[-*+•–—·]|\(?\d{1,4}[.):]|\(?[A-Za-z][.)])\s+")
_BLANK = re.compile(
    r"[\"'`“”‘’*_]*\$?(?:\{\{? ?([A-Za-z_][\w. -]{0,63}?) ?\}?\}|<([A-Za-z_][\w.-]{0,63})>"
    r"|\[([A-Za-z_][\w.-]{0,63})\])[\"'`“”‘’*_]*"
)
_POLITE = re.compile(
    r"(?:please|kindly|(?:can|could|would|will) you(?: please| kindly)?"
    r"|i(?: would|'d|’d) like(?: you)? to|i (?:want|need)(?: you)? to|help me(?: to)?)[\s,:]+(?=\S)",
    re.IGNORECASE,
)
_PAIRS = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’", "«": "»", "*": "*", "_": "_"}


def proposed(reply: str, parameters: Iterable[str]) -> list[str]:
    """Return the wordings in a reply, in order, without duplicates.

    Args:
        reply: any text that the model wrote.
        parameters: the parameters of the tool; text that looks like a blank for one becomes a blank.
    """
    names = {words_of(name): name for name in (*parameters, ARGUMENTS)}
    text = reply[:_LONGEST_REPLY]
    found = (_tidy(one[:_LONGEST_ANSWER_LINE], names) for one in _items(text))
    return list(dict.fromkeys(one for one in found if one))


def _items(text: str) -> list[str]:
    lines = text.splitlines()
    if fenced := _fenced(lines):
        lines = fenced
    listed = _json("\n".join(lines))
    if listed:
        return listed
    marked = [line[match.end() :] for line in lines if (match := _MARK.match(line))]
    if len(marked) > 1:
        return marked
    return [line for line in lines if not _FENCE.match(line) and not line.rstrip().endswith(":")]


def _fenced(lines: list[str]) -> list[str]:
    """Return the lines within code fences; none if there are no fences."""
    inside, found = False, list[str]()
    for line in lines:
        if _FENCE.match(line):
            inside = not inside
        elif inside:
            found.append(line)
    return found


def _json(text: str) -> list[str]:
    """Return the texts of a JSON value that is the whole text or a list in it; none if there is no JSON."""
    start, end = text.find("["), text.rfind("]")
    for part in (text, text[start : end + 1] if 0 <= start < end else ""):
        try:
            value: object = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list | dict):
            return list(_texts(cast(object, value)))
    return []


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < 4 and isinstance(value, list | Mapping):
        held = cast("list[object] | Mapping[str, object]", value)
        for one in held.values() if isinstance(held, Mapping) else held:
            yield from _texts(one, depth + 1)


def _tidy(line: str, names: Mapping[tuple[str, ...], str]) -> str:
    """Return a line without enclosing quotes, polite phrases and full stop, with blanks in our format."""
    text = _BLANK.sub(lambda match: _blank(match, names), _bare(" ".join(line.split())))
    text = _bare(text)
    first = re.match(r"[^\W\d_]+", text)
    return text[0].lower() + text[1:] if first and first[0][1:].islower() else text


def _bare(text: str) -> str:
    while True:
        before = text
        text = text.strip().rstrip(",").removesuffix(".").removesuffix("!").removesuffix("?").rstrip()
        if len(text) > 1 and _PAIRS.get(text[0]) == text[-1]:
            text = text[1:-1]
        if match := _POLITE.match(text):
            text = text[match.end() :]
        if text == before:
            return text


def _blank(match: re.Match[str], names: Mapping[tuple[str, ...], str]) -> str:
    """Return a blank for a parameter in our format, and any other match unchanged."""
    inner = next(part for part in match.groups() if part)
    name = inner if inner in names.values() else names.get(words_of(inner))
    return match[0] if name is None else f"{{{name}}}"
