"""The domain's own gate: is a task what it claims, can it be read, is nothing given away, do checks agree?

No model takes part. Each check is a function of the task that gives a rejection or nothing; `audit` runs them
in order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import date as Day
from datetime import timedelta
from typing import TYPE_CHECKING

from genenv.domains.tool_calling.build import twins_of
from genenv.domains.tool_calling.calls import ParsedCall, format_calls, read_reply
from genenv.domains.tool_calling.check import check_calls, check_effects, expected_calls, shown_tools
from genenv.domains.tool_calling.reader import InstructionReader
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, ToolError, validate
from genenv.domains.tool_calling.truth import today_of_world
from genenv.types import Json, Rejection, RejectReason, Task

if TYPE_CHECKING:
    from genenv.domains.tool_calling.domain import ToolCalling


_MORE = 4
"""Random attempts beside those of the gate."""


def audit(domain: ToolCalling, task: Task, rng: random.Random) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    spec = ToolSpec.model_validate(task.spec)
    text = InstructionReader(task, spec)
    return (
        _takes_no_words_for_deeds(domain, task, rng)
        or _checks_agree(task, domain.settings)
        or _leaks_nothing(spec)
        or _shows_what_it_claims(task, spec)
        or text.asks_for_the_calls()
        or text.states_every_value()
        or text.keeps_directions()
        or text.keeps_roles()
        or text.lacks_what_is_missing()
        or text.has_nothing_unused()
        or text.phrasing_is_true()
    )


def random_replies(domain: ToolCalling, task: Task, rng: random.Random) -> tuple[str, ...]:
    """Well-formed calls of shown tools with arguments drawn blindly; never by chance the right ones.

    A call that equals an expected one is drawn again, so that an attempt that passes shows a flaw of the
    checker and not luck with a tool of two choices.
    """
    right = expected_calls(task.payload)
    shown, style = shown_tools(task.payload), domain.settings.style
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


def _takes_no_words_for_deeds(domain: ToolCalling, task: Task, rng: random.Random) -> Rejection | None:
    """An assurance may not pass, nor a refusal that is no answer, nor more blind calls than the gate's."""
    words = ["Done.", "Sure, I took care of it."]
    if task.payload["gap"] == "none":
        words.append("I cannot do that.")
    attempts = [*((reply,) for reply in words), *(random_replies(domain, task, rng) for _ in range(_MORE))]
    passing = next((replies for replies in attempts if domain.check(task, replies).success), None)
    if passing is None:
        return None
    return Rejection(RejectReason.TRIVIAL, f"an uninformed attempt passes: {' / '.join(passing)[:200]!r}")


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
        return Rejection(
            RejectReason.CHECKS_DISAGREE, "the oracle's calls match, but its final state does not"
        )
    broken = _broken(calls)
    if broken is None:
        return None
    reply = [read_reply(format_calls(broken, settings.style), settings.style)]
    if check_calls(task, reply, settings).success or check_effects(task, reply, settings).success:
        return Rejection(RejectReason.CHECKS_DISAGREE, "a broken solution passes one of the two checks")
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
        return Rejection(RejectReason.LEAK, f"the instruction names the tool {named[0]}")
    if re.search(r"\$[1-9]\.(?:\d\.)?[A-Za-z_]", text):
        return Rejection(RejectReason.LEAK, "the instruction contains a reference to a result")
    if re.search(r"[{}]|<tool_call|\b[a-z]\w*\(\w*=", text):
        return Rejection(RejectReason.LEAK, "the instruction contains a piece of code")
    parameters = {p.name for call in spec.calls for p in TOOLS[call.tool].parameters if "_" in p.name}
    if shown := [name for name in sorted(parameters) if name in text]:
        return Rejection(RejectReason.LEAK, f"the instruction names the parameter {shown[0]}")
    return None


def _shows_what_it_claims(task: Task, spec: ToolSpec) -> Rejection | None:
    """The prompt shows the number of tools it claims, and in no_tool tasks none that could do the job."""
    shown = shown_tools(task.payload)
    if len(set(shown)) != spec.n_tools:
        return Rejection(
            RejectReason.INCONSISTENT, f"{len(set(shown))} tools are shown, n_tools is {spec.n_tools}"
        )
    needed = {call.tool for call in spec.calls}
    if spec.gap != "no_tool":
        return None
    fitting = sorted((needed | twins_of(needed)) & set(shown))
    return Rejection(RejectReason.INCONSISTENT, f"{fitting[0]} is shown and fits") if fitting else None
