"""The domain's own gate: is a task what it claims, can it be read, is nothing given away, do checks agree?

No model takes part. Each check is a function of the task that gives a rejection or nothing; `audit` runs them
in order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from datetime import date as Day
from datetime import timedelta

from genenv.domains.tool_calling.build import ToolCallingConfig, absent_parameters, twins_of
from genenv.domains.tool_calling.calls import ParsedCall, Style, format_calls, read_reply
from genenv.domains.tool_calling.check import check, check_calls, check_effects, expected_calls, shown_tools
from genenv.domains.tool_calling.expressions import Manner
from genenv.domains.tool_calling.literals import follows, mentions_of, reading, spans, stated
from genenv.domains.tool_calling.mentions import mentions
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Kind, Parameter, ToolError, validate
from genenv.domains.tool_calling.truth import is_reference, start_world, today_of_world
from genenv.types import Json, Rejection, RejectReason, Task

_RANDOM_ATTEMPTS = 4
_QUOTES = tuple("\"'“”‘’")
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
_NO_NAMES = re.compile(
    r"I(?:['’]\w+)?|OK|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?|January|February|March|April|May|June|July|August|"
    r"September|October|November|December"
)
"""Words with a capital that name nobody."""


def audit(task: Task, rng: random.Random, settings: ToolCallingConfig) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    spec = ToolSpec.model_validate(task.spec)
    text = _Reader(task, spec)
    return (
        _oracle_passes(task, settings)
        or _is_not_trivial(task, rng, settings)
        or _checks_agree(task, settings)
        or _leaks_nothing(spec)
        or _shows_what_it_claims(task, spec)
        or text.states_every_value()
        or text.keeps_directions()
        or text.lacks_what_is_missing()
        or text.has_nothing_unused()
        or text.phrasing_is_true()
    )


def random_attempt(task: Task, rng: random.Random, style: Style) -> tuple[str, ...]:
    """Well-formed calls of shown tools with arguments drawn blindly; never by chance the right ones.

    A call that equals an expected one is drawn again, so that an attempt that passes shows a flaw of the
    checker and not luck with a tool of two choices.
    """
    right = expected_calls(task.payload)
    shown = shown_tools(task.payload)
    today = today_of_world(int(str(task.payload["world_seed"])))
    calls: list[ParsedCall] = []
    for _ in range(rng.randint(1, 3)):
        draws = (_random_call(rng.choice(shown), today, rng) for _ in range(20))
        calls += [next(call for call in draws if call not in right)][:1]
    if task.payload["mode"] == "single":
        return (format_calls(calls, style),)
    return (*(format_calls([call], style) for call in calls), "Done.")


def _random_call(name: str, today: Day, rng: random.Random) -> ParsedCall:
    drawn: dict[str, Json] = {p.name: _random_value(p, today, rng) for p in TOOLS[name].parameters}
    try:
        return ParsedCall(tool=name, args=validate(TOOLS[name], drawn))
    except ToolError:  # a blind draw may be invalid; then it is a wrong attempt as it is
        return ParsedCall(tool=name, args=drawn)


_RANDOM_WORDS = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "grove", "harbor", "indigo", "kelp")


def _random_value(parameter: Parameter, today: Day, rng: random.Random) -> Json:
    if parameter.choices:
        return rng.choice(parameter.choices)
    match parameter.kind:
        case "date":
            return (today + timedelta(days=rng.randrange(60, 300))).isoformat()
        case "time":
            return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        case "number":
            return rng.randrange(1, 1000)
        case "flag":
            return rng.random() < 0.5
        case _:
            return " ".join(rng.sample(_RANDOM_WORDS, 2))


# --- the solution and the checkers ---


def _oracle_passes(task: Task, settings: ToolCallingConfig) -> Rejection | None:
    verdict = check(task, task.oracle, settings)
    if verdict.success:
        return None
    return _rejection(RejectReason.ORACLE_FAILS, f"the oracle fails: {verdict.explanation}")


def _is_not_trivial(task: Task, rng: random.Random, settings: ToolCallingConfig) -> Rejection | None:
    """Neither silence nor blind words or calls may pass, and a refusal only where it is the answer."""
    attempts: list[tuple[str, ...]] = [(), ("",), ("Done.",), ("Sure, I took care of it.",)]
    if task.payload["gap"] == "none":
        attempts.append(("I cannot do that.",))
    attempts += [random_attempt(task, rng, settings.style) for _ in range(_RANDOM_ATTEMPTS)]
    for replies in attempts:
        if check(task, replies, settings).success:
            return _rejection(
                RejectReason.TRIVIAL, f"an uninformed attempt passes: {' / '.join(replies)[:200]!r}"
            )
    return None


def _checks_agree(task: Task, settings: ToolCallingConfig) -> Rejection | None:
    """For calls that write, comparing calls and comparing states must agree, on right and on broken calls."""
    payload = task.payload
    calls = expected_calls(payload)
    if (
        payload["gap"] != "none"
        or payload["mode"] != "single"
        or not any(TOOLS[c.tool].writes for c in calls)
    ):
        return None
    oracle = [read_reply(task.oracle[0], settings.style)]
    if not check_effects(task, oracle, settings).success:
        return _rejection(
            RejectReason.CHECKS_DISAGREE, "the oracle's calls match, but its final state does not"
        )
    broken = _broken(calls)
    if broken is None:
        return None
    reply = [read_reply(format_calls(broken, settings.style), settings.style)]
    if check_calls(task, reply, settings).success or check_effects(task, reply, settings).success:
        return _rejection(RejectReason.CHECKS_DISAGREE, "a broken solution passes one of the two checks")
    return None


def _broken(calls: Sequence[ParsedCall]) -> list[ParsedCall] | None:
    """The calls without one that writes, or a single call with another value; None without one."""
    index = next(i for i, call in enumerate(calls) if TOOLS[call.tool].writes)
    if len(calls) > 1:
        return [call for i, call in enumerate(calls) if i != index]
    call = calls[index]
    for parameter in TOOLS[call.tool].parameters:
        value = _other_value(parameter, call.args.get(parameter.name))
        if value is not None:
            return [ParsedCall(tool=call.tool, args={**call.args, parameter.name: value})]
    return None


def _other_value(parameter: Parameter, value: Json) -> Json:
    if parameter.choices:
        return next((choice for choice in parameter.choices if choice != value), None)
    match parameter.kind:
        case "date":
            return (Day.fromisoformat(str(value)) + timedelta(days=1)).isoformat()
        case "time":
            return "00:00" if value != "00:00" else "00:01"
        case "number":
            return value + 1 if isinstance(value, int | float) else None
        case "flag":
            return not value
        case _:
            return f"{value} x"


# --- what the task shows ---


def _leaks_nothing(spec: ToolSpec) -> Rejection | None:
    text = spec.instruction
    named = [name for name in TOOLS if "_" in name and name in text.lower()]
    if named:
        return _rejection(RejectReason.LEAK, f"the instruction names the tool {named[0]}")
    if re.search(r"\$[1-9]\.(?:\d\.)?[A-Za-z_]", text):
        return _rejection(RejectReason.LEAK, "the instruction contains a reference to a result")
    if re.search(r"[{}]|<tool_call|\b[a-z]\w*\(\w*=", text):
        return _rejection(RejectReason.LEAK, "the instruction contains a piece of code")
    parameters = {p.name for call in spec.calls for p in TOOLS[call.tool].parameters if "_" in p.name}
    if shown := [name for name in sorted(parameters) if name in text]:
        return _rejection(RejectReason.LEAK, f"the instruction names the parameter {shown[0]}")
    return None


def _shows_what_it_claims(task: Task, spec: ToolSpec) -> Rejection | None:
    """The prompt shows the number of tools it claims, and in no_tool tasks none that could do the job."""
    shown = shown_tools(task.payload)
    if len(set(shown)) != spec.n_tools:
        return _rejection(
            RejectReason.INCONSISTENT, f"{len(set(shown))} tools are shown, n_tools is {spec.n_tools}"
        )
    needed = {call.tool for call in spec.calls}
    if spec.gap != "no_tool":
        return None
    fitting = sorted((needed | twins_of(needed)) & set(shown))
    return _rejection(RejectReason.INCONSISTENT, f"{fitting[0]} is shown and fits") if fitting else None


class _Reader:
    """Reads a task's instruction against its calls."""

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
        for parameter, value in self._arguments:
            if parameter.kind in ("name", "text"):
                for start, end in spans(parameter.kind, str(value), self._text):
                    quoted = self._text[start - 1 : start] in _QUOTES and self._text[end : end + 1] in _QUOTES
                    begin, stop = (start - 1, end + 1) if quoted and start else (start, end)
                    chars[begin:stop] = "\0" * (stop - begin)
        return "".join(chars)

    def _words_for(self, parameter: Parameter) -> str:
        return self._own_words if parameter.kind in (*_MEASURED, "flag") else self._text

    def states_every_value(self) -> Rejection | None:
        for parameter, value in self._arguments:
            if not parameter.required and value == parameter.default:
                continue
            if not stated(parameter.kind, value, self._words_for(parameter), self._today, parameter.name):
                explanation = f"the instruction does not state {parameter.name} = {value!r}"
                return _rejection(RejectReason.UNSTATED, explanation)
        return None

    def keeps_directions(self) -> Rejection | None:
        """No call goes from a thing to itself, or in another direction than the instruction says."""
        for call in self._spec.calls:
            for one, other in _PAIRS:
                if one in call.args and call.args[one] == call.args.get(other):
                    return _rejection(
                        RejectReason.INCONSISTENT, f"{one} and {other} of {call.tool} are the same"
                    )
        for parameter, value in self._arguments:
            if parameter.kind not in ("name", "choice") or parameter.name not in _DIRECTIONS:
                continue
            right, wrong = _DIRECTIONS[parameter.name]
            if follows(str(value), wrong, self._text) and not follows(str(value), right, self._text):
                explanation = (
                    f"{parameter.name} = {value!r} stands after {wrong.split('|')[0]!r} in the instruction"
                )
                return _rejection(RejectReason.UNSTATED, explanation)
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
        return _rejection(RejectReason.INCONSISTENT, explanation)

    def _could_be(self, absent: Parameter) -> str | None:
        """A piece of the instruction that could be the absent argument and that no other one accounts for."""
        if absent.kind in _MEASURED:
            return next(iter(self._left_over(absent.kind, absent.name)), None)
        if absent.choices or absent.kind == "flag":
            taken = [value for parameter, value in self._arguments if parameter.choices == absent.choices]
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
        used = [span for parameter, value in self._arguments for span in self._used(parameter, value)]
        if kind == "number":
            used += [
                (m.start, m.end) for other in ("date", "time") for m in mentions(other, words, self._today)
            ]
        found = mentions(kind, words, self._today, name)
        free = [m for m in found if not any(m.start < end and start < m.end for start, end in used)]
        if kind == "number":
            free = [m for m in free if m.manner is Manner.LITERAL or (not digits_only and m.values != (1.0,))]
        return [words[m.start : m.end] for m in free]

    def _used(self, parameter: Parameter, value: Json) -> list[tuple[int, int]]:
        if parameter.kind not in _MEASURED:
            return []
        found = mentions_of(parameter.kind, value, self._own_words, self._today, parameter.name)
        return [(m.start, m.end) for m in found]

    def has_nothing_unused(self) -> Rejection | None:
        """A number in digits that no argument accounts for contradicts the calls or leads astray."""
        if free := self._left_over("number", "", digits_only=True):
            return _rejection(
                RejectReason.INCONSISTENT, f"no argument accounts for {free[0].strip()!r} in the instruction"
            )
        return None

    def phrasing_is_true(self) -> Rejection | None:
        """Explicit: nothing stands only relatively. Relative: something does not stand as it is."""
        manners = [
            manner
            for parameter, value in self._arguments
            if parameter.kind in _MEASURED
            and (manner := reading(parameter.kind, value, self._own_words, self._today, parameter.name))
            is not None
        ]
        if self._spec.phrasing == "explicit" and Manner.RELATIVE in manners:
            return _rejection(
                RejectReason.INCONSISTENT, "phrasing is explicit, but a value is given relatively"
            )
        if self._spec.phrasing == "relative" and all(manner is Manner.LITERAL for manner in manners):
            return _rejection(
                RejectReason.INCONSISTENT, "phrasing is relative, but every value stands literally"
            )
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
        parts = [part for part in match[0].split() if not _NO_NAMES.fullmatch(part)]
        starts = re.search(r"(?:^|[.!?:;]['\"”]?\s+|\0\W*)$", words[: match.start()]) is not None
        if len(parts) > starts or any(char.isdigit() for char in "".join(parts)):
            return match[0]
    return None


def _literal_arguments(spec: ToolSpec, expected: Sequence[ParsedCall]) -> list[tuple[Parameter, Json]]:
    """The validated arguments that the simulator wrote as literals, with their parameters."""
    return [
        (parameter, truth.args[parameter.name])
        for call, truth in zip(spec.calls, expected, strict=True)
        for parameter in TOOLS[call.tool].parameters
        if parameter.name in truth.args and not is_reference(call.args.get(parameter.name))
    ]


def _rejection(reason: RejectReason, explanation: str) -> Rejection:
    return Rejection(reason=reason, explanation=explanation)
