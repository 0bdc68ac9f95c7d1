"""Blanks: `<title>` in an instruction stands for the value of a call's argument `title`.

A simulator may write values out or leave blanks for the runtime to fill. A small model that has to write
every value twice, in the call and in the words, forgets or changes one in many of its specs; a blank cannot
be wrong, and what is left to learn is the sentence around it. `<title>` is the first call's argument of that
name, `<2.title>` the second call's. Where the phrasing is `relative`, dates, times and numbers are filled in
in such words ("next Friday"), which take arithmetic that is no test of a simulator.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from datetime import date as Day
from typing import NamedTuple

from pydantic import ValidationError

from genenv.domains.common import Refused
from genenv.domains.tool_calling.expressions import Manner
from genenv.domains.tool_calling.literals import choice_spans, mentions_of, spans
from genenv.domains.tool_calling.mentions import unit_of
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter
from genenv.domains.tool_calling.truth import is_reference
from genenv.domains.tool_calling.value_wording import plainly, relatively
from genenv.types import Json, JsonObject, RejectReason

_NAMES = sorted({p.name for tool in TOOLS.values() for p in tool.parameters if p.kind != "flag"})
_BLANK = re.compile(rf"<(?:(?P<call>[1-9])\.)?(?P<name>{'|'.join(_NAMES)})>")
_BLANK_ON = re.compile(rf"(?P<on>\bon\s+)?{_BLANK.pattern}", re.IGNORECASE)
_QUOTED = re.compile(rf"'({_BLANK.pattern})'")


class _Place(NamedTuple):
    start: int
    end: int
    blank: str
    unit: str = ""
    """What stays of the words that the blank replaces: "half an hour" becomes "<minutes> minutes"."""


def filled(spec: ToolSpec, today: Day, rng: random.Random) -> ToolSpec:
    """The spec with the calls' values in the blanks of its instruction.

    Args:
        spec: with or without blanks.
        today: what dates are relative to.
        rng: chooses words where the phrasing is relative.

    Raises:
        Refused: an argument is a blank itself, a blank of the instruction has no value that can be said, or
            with its values the instruction is too long or too short.
    """
    for call in spec.calls:
        for name, value in call.args.items():
            if isinstance(value, str) and (blank := _BLANK.search(value)):
                raise Refused(
                    RejectReason.INCONSISTENT, f"{name} of {call.tool} is the blank {blank[0]}, not a value"
                )
    words = _BLANK_ON.sub(
        lambda match: _said(match, spec, today, rng), _QUOTED.sub(r'"\1"', spec.instruction)
    )
    if words == spec.instruction:
        return spec
    try:
        return ToolSpec.model_validate({**spec.model_dump(), "instruction": words})
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        explanation = f"the instruction with its {len(words)} characters, blanks filled in: {problem}"
        raise Refused(RejectReason.SCHEMA, explanation) from None


def with_blanks(spec: ToolSpec, today: Day) -> ToolSpec:
    """The spec with a blank in its instruction for every value that `filled` could put there."""
    words, _ = _taken_out(spec, today)
    return spec.model_copy(update={"instruction": words})


def as_example(spec: ToolSpec, today: Day) -> JsonObject:
    """The spec with blanks in instruction and calls: an example that shows the form and gives no value away.

    Flags and references to results stay.
    """
    words, blanks = _taken_out(spec, today)
    calls: list[Json] = [
        {"tool": call.tool, "args": {name: blanks.get((i, name), value) for name, value in call.args.items()}}
        for i, call in enumerate(spec.calls)
    ]
    return {**spec.model_dump(mode="json"), "calls": calls, "instruction": words}


def _said(match: re.Match[str], spec: ToolSpec, today: Day, rng: random.Random) -> str:
    """What is said in the place of a blank, and of "on" before it."""
    name, number, on = match["name"], match["call"], match["on"] or ""
    numbered = spec.calls[int(number) - 1 :][:1] if number else spec.calls
    call = next((call for call in numbered if name in call.args and call.tool in TOOLS), None)
    parameter = call and next((p for p in TOOLS[call.tool].parameters if p.name == name), None)
    value = call and call.args[name]
    if parameter is None or value is None or isinstance(value, bool) or is_reference(value):
        blank = match[0].removeprefix(on)
        raise Refused(RejectReason.INCONSISTENT, f"no call has a value for the blank {blank}")
    marked = match.string[: match.start()].endswith(_MARKS) or match.string[match.end() :].startswith("%")
    if spec.phrasing == "relative" and not marked:
        words = relatively(parameter, value, today, rng, on=bool(on))
        if words is not None:
            words = words if parameter.kind == "date" else on + words
            return words[0].upper() + words[1:] if on[:1].isupper() else words
    return on + plainly(parameter, value)


_MARKS = ("$", "€", "£", "#", "-")
"""After these only digits can follow."""


def _taken_out(spec: ToolSpec, today: Day) -> tuple[str, Mapping[tuple[int, str], str]]:
    """The instruction with blanks, and the blank of each (index of the call, argument) that has one there."""
    blanks: dict[tuple[int, str], str] = {}
    known: dict[str, list[Json]] = {}
    places: list[_Place] = []
    for i, call in enumerate(spec.calls):
        for parameter in TOOLS[call.tool].parameters:
            if parameter.name not in call.args:
                continue
            value, values = call.args[parameter.name], known.setdefault(parameter.name, [])
            blank = f"<{i + 1}.{parameter.name}>" if values and value != values[0] else f"<{parameter.name}>"
            values.append(value)
            blanks[i, parameter.name] = blank
            places += _places(parameter, value, blank, spec, today)
    kept = _longest_apart(places)
    words = spec.instruction
    for start, end, blank, unit in sorted(kept, reverse=True):
        words = words[:start] + blank + unit + words[end:]
    used = {place.blank for place in kept}
    words = words.replace('"<', "'<").replace('>"', ">'")  # a " takes a backslash in JSON
    return words, {key: blank for key, blank in blanks.items() if blank in used}


def _places(parameter: Parameter, value: Json, blank: str, spec: ToolSpec, today: Day) -> list[_Place]:
    """Where the instruction says a value in a way that `filled` could say another one; none for flags.

    As it goes into the call; and in `relative` specs also in words that need reading.
    """
    text = spec.instruction
    if parameter.kind == "choice":
        return [_Place(start, end, blank) for start, end in choice_spans(str(value), text)]
    if parameter.kind in ("name", "text"):
        mark = _FINAL_MARK.search(str(value))
        more = mark[0] if mark and parameter.kind == "text" else ""
        found = spans(parameter.kind, str(value), text)
        return [_Place(start, end + len(more) * text.startswith(more, end), blank) for start, end in found]
    places: list[_Place] = []
    for mention in mentions_of(parameter.kind, value, text, today, parameter.name):
        said, unit = text[mention.start : mention.end], unit_of(parameter.name)
        if mention.manner is Manner.LITERAL:
            part = _DIGITS.search(said)
        elif spec.phrasing == "relative":
            part = _AFTER_ON_OR_AT.search(said)
        else:
            continue
        if part is not None:
            timed = mention.manner is not Manner.LITERAL and unit and unit_of(said)
            start, end = mention.start + part.start(), mention.start + part.end()
            places.append(_Place(start, end, blank, f" {unit}s" if timed else ""))
    return places


_FINAL_MARK = re.compile(r"[.?!]+$")
_DIGITS = re.compile(r"-?\d(?:[\d:,.-]*\d)?")
_AFTER_ON_OR_AT = re.compile(r"(?:(?<=^on\s)|(?<=^at\s)|^(?!(?:on|at)\s)).+", re.IGNORECASE | re.DOTALL)


def _longest_apart(places: Sequence[_Place]) -> list[_Place]:
    """The places without those that overlap a longer one."""
    kept: list[_Place] = []
    for place in sorted(places, key=lambda place: place.start - place.end):
        if all(place.end <= other.start or other.end <= place.start for other in kept):
            kept.append(place)
    return kept
