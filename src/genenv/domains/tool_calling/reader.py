"""Reads a task's instruction against its calls: does it say all that they need, and nothing against them?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genenv.domains.tool_calling.asking import unasked, unmentioned
from genenv.domains.tool_calling.build import absent_parameters
from genenv.domains.tool_calling.calls import ParsedCall
from genenv.domains.tool_calling.check import expected_calls
from genenv.domains.tool_calling.expressions import Manner, Mention
from genenv.domains.tool_calling.literals import (
    NO_NAMES,
    choice_spans,
    follows,
    mentions_of,
    only_denied,
    reading,
    spans,
    stated,
)
from genenv.domains.tool_calling.mentions import mentions, unit_of
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Kind, Parameter
from genenv.domains.tool_calling.truth import is_reference, start_world, today_of_world
from genenv.types import Json, Rejection, RejectReason, Task

_QUOTES = tuple("\"'“”‘’")
_QUOTATION = re.compile(r"[\"“][^\"”]*[\"”]")
_MEASURED = ("date", "time", "number")
"""The kinds that can be given relatively."""
_FROM, _TO = "from|out of", "to|into"
_PAIRS = (
    ("source", "target"),
    ("source", "destination"),
    ("origin", "destination"),
    ("from_unit", "to_unit"),
)
_DIRECTIONS = {pair[0]: (_FROM, _TO) for pair in _PAIRS} | {pair[1]: (_TO, _FROM) for pair in _PAIRS}
"""Parameter -> the words its value may follow, and those it may not follow alone."""
_FEW_CHOICES = 6
"""Units and currencies are more, and are also said of other things."""
_NO_ROLES = ("to", "text", "name", "phone", "address", "label")
"""Parameters whose names are also verbs, prepositions or said of other things."""


class _Argument(NamedTuple):
    """A validated argument that the simulator wrote as a literal."""

    parameter: Parameter
    value: Json
    adds: float | None
    """The days that its call adds to a date."""


class InstructionReader:
    """One task's instruction, and what its calls take from it."""

    def __init__(self, task: Task, spec: ToolSpec) -> None:
        self._spec = spec
        self._text = spec.instruction
        self._today = today_of_world(int(str(task.payload["world_seed"])))
        self._world = start_world(task.payload)
        self._arguments = _literal_arguments(spec, expected_calls(task.payload))
        self._own_words = self._without_names()

    def _without_names(self) -> str:
        """The instruction with names and texts blanked: "Friday drinks" is no date of the task."""
        chars = list(self._text)
        for parameter, value, _ in self._arguments:
            if parameter.kind in ("name", "text"):
                for start, end in spans(parameter.kind, str(value), self._text):
                    quoted = self._text[start - 1 : start] in _QUOTES and self._text[end : end + 1] in _QUOTES
                    begin, stop = (start - 1, end + 1) if quoted and start else (start, end)
                    chars[begin:stop] = "\0" * (stop - begin)
        return "".join(chars)

    def _words_for(self, parameter: Parameter) -> str:
        return self._own_words if parameter.kind in (*_MEASURED, "flag") else self._text

    def asks_for_the_calls(self) -> Rejection | None:
        """The instruction does not ask for something else, or for nothing at all."""
        words = _QUOTATION.sub(lambda match: "\0" * len(match[0]), self._own_words)
        tools = [call.tool for call in self._spec.calls]
        why = unasked(words, tools) or unmentioned(words, tools, self._values()) or self._left_in_quotes()
        return Rejection(RejectReason.INCONSISTENT, why) if why else None

    def _values(self) -> list[set[str]]:
        """The literal values of each call, but flags."""
        return [
            {
                str(call.args[p.name])
                for p in TOOLS[call.tool].parameters
                if p.kind != "flag" and p.name in call.args and not is_reference(call.args[p.name])
            }
            for call in self._spec.calls
        ]

    def _left_in_quotes(self) -> str | None:
        found = (match[0] for match in _QUOTATION.finditer(self._own_words) if re.search(r"\w", match[0]))
        left = next(found, None)
        return f"no argument accounts for {left} in the instruction" if left else None

    def states_every_value(self) -> Rejection | None:
        """Every literal argument, unless it is the default, can be known from the words alone."""
        for parameter, value, adds in self._arguments:
            if not parameter.required and value == parameter.default:
                continue
            words = self._words_for(parameter)
            denied = parameter.kind in ("name", "choice") and only_denied(
                parameter.kind, str(value), self._text
            )
            if denied or not stated(parameter.kind, value, words, self._today, parameter.name, adds):
                explanation = f"the instruction does not state {parameter.name} = {value!r}"
                return Rejection(RejectReason.UNSTATED, explanation)
        return None

    def keeps_directions(self) -> Rejection | None:
        """No call goes from a thing to itself, or in another direction than the instruction says."""
        for call in self._spec.calls:
            for one, other in _PAIRS:
                if one in call.args and call.args[one] == call.args.get(other):
                    return Rejection(
                        RejectReason.INCONSISTENT, f"{one} and {other} of {call.tool} are the same"
                    )
        for parameter, value, _ in self._arguments:
            if parameter.kind not in ("name", "choice") or parameter.name not in _DIRECTIONS:
                continue
            right, wrong = _DIRECTIONS[parameter.name]
            if follows(str(value), wrong, self._text) and not follows(str(value), right, self._text):
                explanation = (
                    f"{parameter.name} = {value!r} stands after {wrong.split('|')[0]!r} in the instruction"
                )
                return Rejection(RejectReason.UNSTATED, explanation)
        return None

    def keeps_roles(self) -> Rejection | None:
        """No value stands after the name of another parameter: `subject "Paid"` where Paid is the body."""
        for call in self._spec.calls:
            if wrong := _miscounted(call.args, self._own_words):
                return Rejection(RejectReason.INCONSISTENT, wrong)
            own = {p.name: p for p in TOOLS[call.tool].parameters if p.kind in ("name", "text")}
            said = {name: str(call.args[name]) for name in own if name in call.args}
            for name in said.keys() - set(_NO_ROLES):
                for other, value in said.items():
                    if (
                        other != name
                        and value != said[name]
                        and _labelled(name, own[other].kind, value, self._text)
                    ):
                        explanation = f"{other} = {value!r} stands as the {name} in the instruction"
                        return Rejection(RejectReason.INCONSISTENT, explanation)
        return None

    def lacks_what_is_missing(self) -> Rejection | None:
        """In a missing_info task, nothing in the instruction could be the absent argument."""
        if self._spec.gap != "missing_info":
            return None
        absent = absent_parameters(self._spec.calls[-1])[0]
        found = self._could_be(absent)
        if found is None:
            return None
        explanation = f"{absent.name} should be missing, but the instruction says {found.strip()!r}"
        return Rejection(RejectReason.INCONSISTENT, explanation)

    def _could_be(self, absent: Parameter) -> str | None:
        """A piece of the instruction that could be the absent argument and that no other one accounts for."""
        if absent.kind in _MEASURED:
            return next(iter(self._left_over(absent.kind, absent.name)), None)
        if absent.choices or absent.kind == "flag":
            taken = [a.value for a in self._arguments if a.parameter.choices == absent.choices]
            values = [c for c in (absent.choices or (True, False)) if c not in taken]
            said = (v for v in values if stated(absent.kind, v, self._own_words, self._today, absent.name))
            return next((str(value) for value in said), None)
        return _first_name(self._own_words) or next(
            (
                name
                for name in self._world_names(TOOLS[self._spec.calls[-1].tool].app)
                if self._mentions(name)
            ),
            None,
        )

    def _world_names(self, app: str) -> list[str]:
        """The names and texts that an app knows; single lower-case words are too common to tell anything."""
        found: set[str] = set()
        open_values: list[Json] = [self._world[app]]
        while open_values:
            value = open_values.pop()
            if isinstance(value, str):
                found.add(value)
            elif isinstance(value, Mapping):
                open_values += [*value, *value.values()]
            elif isinstance(value, Sequence):
                open_values += value
        return sorted(name for name in found if len(name) > 2 and not re.fullmatch(r"[a-z_]+|[\d:.-]+", name))

    def _mentions(self, name: str) -> bool:
        return bool(spans("name", name, self._own_words))

    def _left_over(self, kind: Kind, name: str, *, digits_only: bool = False) -> list[str]:
        """Expressions of a measured kind that no argument accounts for."""
        words = self._own_words
        used = [(m.start, m.end) for argument in self._arguments for m in self._mentions_of(argument)]
        if kind == "number":
            used += [
                (m.start, m.end) for other in ("date", "time") for m in mentions(other, words, self._today)
            ]
        found = mentions(kind, words, self._today, name)
        free = [m for m in found if not any(m.start < end and start < m.end for start, end in used)]
        if kind == "number" or digits_only:
            free = [m for m in free if m.manner is Manner.LITERAL or (not digits_only and m.values != (1.0,))]
        return [words[m.start : m.end] for m in free]

    def _mentions_of(self, argument: _Argument) -> list[Mention]:
        """Where a measured argument is said; nothing for others."""
        parameter, value, adds = argument
        if parameter.kind not in _MEASURED:
            return []
        return mentions_of(parameter.kind, value, self._own_words, self._today, parameter.name, adds)

    def has_nothing_unused(self) -> Rejection | None:
        """Numbers and dates in digits, names and choices that no argument accounts for are too much."""
        free = self._left_over("number", "", digits_only=True) + self._left_over("date", "", digits_only=True)
        if self._spec.gap != "missing_info":
            free += self._other_choices()
            free += filter(None, [_first_name(self._without_choices())])
        if free:
            left = free[0].replace("\0", "").strip()
            return Rejection(
                RejectReason.INCONSISTENT, f"no argument accounts for {left!r} in the instruction"
            )
        return None

    def _without_choices(self) -> str:
        chars = list(self._own_words)
        for parameter, value, _ in self._arguments:
            if parameter.kind == "choice":
                for start, end in choice_spans(str(value), self._text):
                    chars[start:end] = "\0" * (end - start)
        return "".join(chars)

    def _other_choices(self) -> list[str]:
        """Rooms, doors and the like that are said and no argument: "lock the front and the back door"."""
        closed = {p.choices: p for p, _, _ in self._arguments if 0 < len(p.choices) <= _FEW_CHOICES}
        return [
            str(choice)
            for choices, parameter in closed.items()
            for choice in choices
            if choice not in [value for p, value, _ in self._arguments if p.choices == choices]
            and stated(parameter.kind, choice, self._own_words, self._today, parameter.name)
        ]

    def phrasing_is_true(self) -> Rejection | None:
        """Explicit: nothing stands only relatively. Relative: something does not stand as it is."""
        measured = [a for a in self._arguments if a.parameter.kind in _MEASURED]
        manners = [
            manner
            for parameter, value, adds in measured
            if (manner := reading(parameter.kind, value, self._own_words, self._today, parameter.name, adds))
            is not None
        ]
        if self._spec.phrasing == "explicit" and Manner.RELATIVE in manners:
            return Rejection(
                RejectReason.INCONSISTENT, "phrasing is explicit, but a value is given relatively"
            )
        if self._spec.phrasing == "relative" and all(manner is Manner.LITERAL for manner in manners):
            if self._is_said_twice(measured):
                return None
            return Rejection(
                RejectReason.INCONSISTENT, "phrasing is relative, but every value stands literally"
            )
        return None

    def _is_said_twice(self, measured: Sequence[_Argument]) -> bool:
        """Whether a value of two arguments stands literally for one of them only: "ten days, 10 nights"."""
        for value, names in _names_by_value(measured).items():
            said = [m for a in measured if a.value == value for m in self._mentions_of(a)]
            literal = {m.start for m in said if m.manner is Manner.LITERAL}
            other = {m.start for m in said if m.manner is not Manner.LITERAL} - literal
            if len(literal) < len(names) and other:
                return True
        return False


def _names_by_value(arguments: Sequence[_Argument]) -> dict[Json, set[str]]:
    """Which parameters have each value."""
    names: dict[Json, set[str]] = {}
    for parameter, value, _ in arguments:
        names.setdefault(value, set()).add(parameter.name)
    return names


def _labelled(name: str, kind: Kind, value: str, text: str) -> bool:
    """Whether a value stands right after the name of a parameter."""
    name = "by" if name == "artist" else name.replace("_", " ")
    label = rf"\b{name}\s*(?:is|line|called|named|titled|of|:|,)?\s*[\"“'‘]?$"
    return any(re.search(label, text[:start], re.IGNORECASE) for start, _ in spans(kind, value, text))


def _miscounted(args: Mapping[str, Json], words: str) -> str | None:
    """Whether a number stands before the name of another number: "20 percent" where 5 is the percentage."""
    numbers = {name: value for name, value in args.items() if isinstance(value, int | float)}
    for name, value in numbers.items():
        for said in re.findall(rf"(?<![\w.,])(\d+(?:\.\d+)?)\s*{name}\b", words, re.IGNORECASE):
            if float(said) != value and float(said) in numbers.values():
                return f"the instruction speaks of {said} {name}, not {value}"
    return None


def _first_name(words: str) -> str | None:
    """The first piece that is marked as a name: quoted, an address, a path, a code, or with a capital letter.

    A capital at the start of a sentence says nothing, unless another capitalized word follows.
    """
    marked = re.search(
        r"[\"“][^\"”\0]+[\"”]|\S+@\S+|\d{3,}-\d{3,}|(?<!\w)[/~]\w\S*|\b\w+(?:/\w+)*\.[a-z]{2,4}\b", words
    )
    if marked:
        return marked[0]
    for match in re.finditer(r"\b[A-Z][\w'’&-]*(?:\s+[A-Z][\w'’&-]*)*", words):
        parts = [part for part in match[0].split() if not NO_NAMES.fullmatch(part)]
        starts = re.search(r"(?:^|[.!?:;]['\"”]?\s+|\0\W*)$", words[: match.start()]) is not None
        if len(parts) > starts or any(char.isdigit() for char in "".join(parts)):
            return match[0]
    return None


def _literal_arguments(spec: ToolSpec, expected: Sequence[ParsedCall]) -> list[_Argument]:
    return [
        _Argument(parameter, truth.args[parameter.name], _days_added(truth))
        for call, truth in zip(spec.calls, expected, strict=True)
        for parameter in TOOLS[call.tool].parameters
        if parameter.name in truth.args and not is_reference(call.args.get(parameter.name))
    ]


def _days_added(call: ParsedCall) -> float | None:
    """The argument that counts days on from the date beside it."""
    kinds = {p.kind for p in TOOLS[call.tool].parameters}
    days = (p.name for p in TOOLS[call.tool].parameters if p.kind == "number" and unit_of(p.name) == "day")
    value = call.args.get(next(days, "")) if "date" in kinds else None
    return float(value) if isinstance(value, int | float) else None
