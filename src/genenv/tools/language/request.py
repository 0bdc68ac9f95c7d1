"""A whole program in words: what the user says who wants it done."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from genenv.environments.common import Refused
from genenv.tools.generate.missing_values import absent, without
from genenv.tools.generate.plans import THEN
from genenv.tools.language.wording import (
    Clause,
    Manner,
    Said,
    clause,
    found_text,
    instruction,
    only_fitting,
)
from genenv.tools.spec import Program, Step, Use
from genenv.tools.worlds.base import Tool
from genenv.types import Json, RejectReason


@dataclass(frozen=True, slots=True)
class Request:
    """What a user says who wants a program done."""

    text: str
    implied: tuple[tuple[str, ...], ...]
    """Of each call the arguments that fixed words say, not their values."""


def _any_use(_reader: str, _user: str, _use: Use) -> bool:
    return True


def _no_words(_tool: str, _name: str, _value: Json, _form: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """How tools are asked for."""

    wordings: Mapping[str, Sequence[str]]
    """Of tools, and of two of which one uses what the other finds; one without any is asked for by its
    documentation and name."""
    manner: Manner
    in_words: Callable[[str, str, Json, str], Sequence[str]] = _no_words
    """Ways to say a value in words: by tool, parameter, value and form."""
    usual: Callable[[str, str, Use], bool] = _any_use
    """Whether wordings for two tools are meant for what the second one uses of the first one's result."""


def said(tools: Mapping[str, Tool], program: Program, speech: Speech, rng: random.Random) -> Request:
    """What a user says who wants a program done.

    Args:
        tools: those that it calls.
        program: which.
        speech: how.
        rng: chooses among wordings.
    """
    steps, clauses, implied = program.calls, list[str](), list[tuple[str, ...]]()
    number = 0
    while number < len(steps):
        some = steps[number : number + 2]
        both = _both(tools, some, speech, rng) if len(some) > 1 and some[1].uses else None
        if both is None:
            some = some[:1]
            both = _one(tools, steps[number], program.gap, speech, rng)
        clauses.append(both.text)
        implied += [tuple(sorted(both.implied & step.args.keys())) for step in some]
        number += len(some)
    questions = [found_text(one.path, "result") for one in program.questions]
    return Request(instruction(clauses, questions, rng, speech.manner), tuple(implied))


def _one(tools: Mapping[str, Tool], step: Step, gap: str, speech: Speech, rng: random.Random) -> Clause:
    call = _said(
        tools, [step], speech, {use.parameter: found_text(use.path, use.parameter) for use in step.uses}
    )
    if gap != "missing_info":
        return clause(call, speech.wordings.get(step.tool, ()), rng)
    missing = absent(tools[step.tool], step)[0]
    found = only_fitting(call, speech.wordings.get(without(step.tool, missing), ()), rng)
    if found is None:
        raise Refused(RejectReason.UNSTATED, f"no wording of {step.tool} leaves out {missing}")
    return found


def _both(
    tools: Mapping[str, Tool], steps: Sequence[Step], speech: Speech, rng: random.Random
) -> Clause | None:
    """Two calls in words for both; None where there are none.

    Raises:
        Refused: there are some, and they would say something else: an argument is another one in each, or
            what is used is not what they are meant for.
    """
    first, second = steps
    wordings = speech.wordings.get(f"{first.tool}{THEN}{second.tool}", ())
    if not wordings:
        return None
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


def _said(tools: Mapping[str, Tool], steps: Sequence[Step], speech: Speech, found: Mapping[str, str]) -> Said:
    args: dict[str, Json] = {name: value for step in steps for name, value in step.args.items()}

    def in_words(name: str, form: str) -> Sequence[str]:
        tool = next((step.tool for step in steps if name in step.args), None)
        return speech.in_words(tool, name, args[name], form) if tool else ()

    return Said(tool=tools[steps[0].tool], args=args, found=found, manner=speech.manner, in_words=in_words)
