"""Grades an attempt from its replies: by the calls of one reply, or by what calls did over several turns.

Everything here is pure: worlds are made afresh from the payload, and the same replies always get the same
verdict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from genenv.domains.tool_calling.calls import ParsedCall, Reply, read_reply
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.toolbox import (
    TOOLS,
    Parameter,
    ToolError,
    World,
    difference,
    execute,
    validate,
)
from genenv.domains.tool_calling.truth import start_world
from genenv.types import Json, JsonObject, Task, Verdict

if TYPE_CHECKING:
    from genenv.domains.tool_calling.domain import ToolCalling

NAME_CREDIT = 0.2
"""Share of a call's soft credit that the right tool earns; the rest is for its arguments."""
EXTRA_CALL_COST = 0.2
MAX_PARTIAL = 0.95
"""Soft credit of an attempt that is not right stays below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one call did."""

    call: ParsedCall
    """With validated arguments, where they are valid."""
    result: JsonObject | None
    error: str | None = None

    @property
    def text(self) -> str:
        """What the agent is told: the result, or the error, as compact JSON."""
        value = {"error": self.error} if self.result is None else self.result
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check(domain: ToolCalling, task: Task, replies: Sequence[str]) -> Verdict:
    """Grade an attempt, GenEnv eq. (1). Exact: 1 if all calls are right, else 0. Soft: partial credit too.

    A task with a gap is solved by calling nothing and saying so, in English: that it cannot be done or, where
    a value is missing, by asking for it. Any call or unreadable reply there earns 0.
    """
    settings, payload = domain.settings, task.payload
    read = [read_reply(reply, settings.style) for reply in replies]
    if payload["gap"] != "none":
        return _gap_verdict(read, str(payload["gap"]))
    if payload["mode"] == "multi":
        return check_effects(task, read, settings)
    return check_calls(task, read, settings)


def perform(world: World, shown: Iterable[str], calls: Sequence[ParsedCall]) -> list[Outcome]:
    """Carry out an agent's calls in order, with the tools shown. Changes `world`; errors are outcomes."""
    allowed = set(shown)
    outcomes: list[Outcome] = []
    for call in calls:
        try:
            if call.tool not in allowed:
                raise ToolError(f"There is no tool {call.tool!r}.")
            valid = ParsedCall(tool=call.tool, args=validate(TOOLS[call.tool], call.args))
            outcomes.append(Outcome(call=valid, result=execute(world, call.tool, valid.args)))
        except ToolError as err:
            outcomes.append(Outcome(call=call, result=None, error=str(err)))
    return outcomes


def expected_calls(payload: JsonObject) -> list[ParsedCall]:
    """The calls that solve a task, as the runtime found them."""
    calls = cast("Sequence[Mapping[str, Any]]", payload["calls"])
    return [ParsedCall(tool=call["tool"], args=call["args"]) for call in calls]


def shown_tools(payload: JsonObject) -> list[str]:
    """The names of the tools the agent is shown, in the prompt's order."""
    return list(cast("Sequence[str]", payload["tools"]))


# --- tasks with a gap ---


_DECLINES = re.compile(
    r"\b(?:can\s?not|can['’]?t|could(?: not|n['’]t)|unable|impossible|unavailable|sorry"
    r"|not (?:able|possible|available|supported|something i can)"
    r"|(?:do not|don['’]t) (?:have|know|see)"
    r"|(?:no|none of) (?:[\w ]{0,20})?(?:tools?|functions?|way|option))\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\?|\b(?:need|missing|please|specify|provide|tell me|let me know|unclear|not (?:given|clear|sure))\b",
    re.IGNORECASE,
)


def _gap_verdict(read: Sequence[Reply], gap: str) -> Verdict:
    called = [call.tool for reply in read for call in reply.calls]
    if called:
        return _failed(f"called {called[0]}, but the task cannot be done and calls for nothing")
    malformed = next((reply.malformed for reply in read if reply.malformed), None)
    if malformed:
        return _unread(f"the reply is malformed: {malformed}")
    words = "\n".join(reply.words for reply in read)
    if not words:
        return _unread("the reply is empty; it should say that the task cannot be done")
    if _DECLINES.search(words) or (gap == "missing_info" and _ASKS.search(words)):
        return _right("rightly called nothing and said so")
    wanted = "ask for what is missing" if gap == "missing_info" else "say that no tool fits"
    return _failed(f"the reply calls nothing, but it does not {wanted}")


# --- one reply: the calls themselves ---


def check_calls(task: Task, read: Sequence[Reply], settings: ToolCallingConfig) -> Verdict:
    """Compare the calls of the first reply with the expected ones, in any order."""
    reply = read[0] if read else Reply()
    if reply.malformed:
        return _unread(f"the reply is malformed: {reply.malformed}")
    if not reply.calls:
        return _unread("the reply calls nothing")
    expected = expected_calls(task.payload)
    actual = [_validated(call, shown_tools(task.payload)) for call in reply.calls]
    pairs = _paired(expected, actual)
    problem = _first_problem(expected, actual, pairs)
    if problem is None:
        return _right("every call is right")
    extra = len(actual) - len(expected)
    ran = all(isinstance(call, ParsedCall) for call in actual)
    return replace(_partly(problem, _credit(expected, actual, pairs, extra=extra), settings), readable=ran)


def _validated(call: ParsedCall, shown: Sequence[str]) -> ParsedCall | str:
    """The call in canonical form, or what is wrong with it."""
    if call.tool not in shown:
        return f"called {call.tool}, which is not among the tools shown"
    try:
        return ParsedCall(tool=call.tool, args=validate(TOOLS[call.tool], call.args))
    except ToolError as err:
        return f"{call.tool}: {err}"


def _same_value(parameter: Parameter, expected: Json, actual: Json) -> bool:
    if parameter.kind == "text" and isinstance(expected, str) and isinstance(actual, str):
        return _loose(expected) == _loose(actual)
    return expected == actual and isinstance(expected, bool) == isinstance(actual, bool)


def _loose(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?… ")


def _wrong_arguments(expected: ParsedCall, actual: ParsedCall) -> list[str]:
    """One phrase for each parameter whose values differ."""
    return [
        f"argument `{p.name}` of {expected.tool} is {_shown_value(actual.args.get(p.name))}, "
        f"expected {_shown_value(expected.args.get(p.name))}"
        for p in TOOLS[expected.tool].parameters
        if not _same_value(p, expected.args.get(p.name), actual.args.get(p.name))
    ]


def _shown_value(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _call_credit(expected: ParsedCall, actual: ParsedCall | str) -> float:
    """1 for the same call; else 0.2 for the name + 0.8 x the share of right arguments; 0 for another tool.

    Optional arguments count only where the two differ, or where the expected value is not the default:
    leaving them alone is no merit.
    """
    if isinstance(actual, str) or actual.tool != expected.tool:
        return 0.0
    wrong = len(_wrong_arguments(expected, actual))
    counted = [
        p
        for p in TOOLS[expected.tool].parameters
        if p.required
        or not _same_value(p, expected.args.get(p.name), p.default)
        or not _same_value(p, expected.args.get(p.name), actual.args.get(p.name))
    ]
    return NAME_CREDIT + (1 - NAME_CREDIT) * (1 - wrong / len(counted) if counted else 1.0)


def _paired(expected: Sequence[ParsedCall], actual: Sequence[ParsedCall | str]) -> dict[int, int]:
    """Expected index -> actual index, the best matches first; each call is used once."""
    scored = sorted(
        ((-_call_credit(e, a), i, j) for i, e in enumerate(expected) for j, a in enumerate(actual)),
    )
    pairs: dict[int, int] = {}
    for score, i, j in scored:
        if score < 0 and i not in pairs and j not in pairs.values():
            pairs[i] = j
    return pairs


def _first_problem(
    expected: Sequence[ParsedCall], actual: Sequence[ParsedCall | str], pairs: Mapping[int, int]
) -> str | None:
    for call in actual:
        if isinstance(call, str):
            return call
    for index, call in enumerate(expected):
        match = actual[pairs[index]] if index in pairs else None
        if not isinstance(match, ParsedCall):
            names = ", ".join(item.tool for item in actual if isinstance(item, ParsedCall))
            return f"{call.tool} is not called; called instead: {names or 'nothing'}"
        if wrong := _wrong_arguments(call, match):
            return wrong[0]
    if len(actual) > len(expected):
        extra = next(a for j, a in enumerate(actual) if j not in pairs.values())
        return f"calls {extra.tool if isinstance(extra, ParsedCall) else extra} once too often"
    return None


def _credit(
    expected: Sequence[ParsedCall],
    actual: Sequence[ParsedCall | str],
    pairs: Mapping[int, int],
    *,
    extra: int,
) -> float:
    """Mean credit of the expected calls, less the cost of extra calls; in [0, MAX_PARTIAL]."""
    earned = sum(_call_credit(expected[i], actual[j]) for i, j in pairs.items()) / len(expected)
    return min(MAX_PARTIAL, max(0.0, earned - EXTRA_CALL_COST * max(0, extra)))


# --- several turns: what the calls did ---


def check_effects(task: Task, read: Sequence[Reply], settings: ToolCallingConfig) -> Verdict:
    """Replay on a fresh world: the oracle's final state must be reached, and what it read must be read.

    Further reads and failed calls are allowed, further writes are not, even those that change nothing in the
    end.
    """
    turns = live_turns(read)[: settings.max_turns]
    malformed = next((reply.malformed for reply in turns if reply.malformed), None)
    if malformed:
        return _unread(f"a reply is malformed: {malformed}")
    calls = [call for reply in turns for call in reply.calls]
    if not calls:
        return _unread("nothing is called")
    shown, expected = shown_tools(task.payload), expected_calls(task.payload)
    world, wanted_world = start_world(task.payload), start_world(task.payload)
    outcomes, wanted = perform(world, shown, calls), perform(wanted_world, shown, expected)
    problem = _effect_problem(outcomes, wanted, difference(wanted_world, world))
    if problem is None:
        return _right("the final state and the results are right")
    actual: list[ParsedCall | str] = [o.call if o.error is None else o.error for o in outcomes]
    extra = sum(_wrote(o) for o in outcomes) - sum(_wrote(o) for o in wanted)
    credit = _credit(expected, actual, _paired(expected, actual), extra=extra)
    ran = any(outcome.error is None for outcome in outcomes)
    return replace(_partly(problem, credit, settings), readable=ran)


def live_turns(read: Sequence[Reply]) -> list[Reply]:
    """The replies up to the first that calls nothing: there the episode ends."""
    turns: list[Reply] = []
    for reply in read:
        turns.append(reply)
        if not reply.calls:
            break
    return turns


def _effect_problem(outcomes: Sequence[Outcome], wanted: Sequence[Outcome], state: str) -> str | None:
    broken = next((o for o in wanted if o.error), None)
    if broken:
        return f"the expected {_described(broken.call)} does not run in the task's world: {broken.error}"
    found = {_canonical(o.result) for o in outcomes if o.result is not None}
    for outcome in wanted:
        if not _wrote(outcome) and outcome.result is not None and _canonical(outcome.result) not in found:
            return f"the result of {_described(outcome.call)} was never obtained" + _first_error(outcomes)
    if state:
        return f"the final state differs: {state.rstrip('.')}" + _first_error(outcomes)
    if sum(map(_wrote, outcomes)) > sum(map(_wrote, wanted)):
        return "more calls that write than needed"
    return None


def _first_error(outcomes: Sequence[Outcome]) -> str:
    error = next((o.error for o in outcomes if o.error), None)
    return f" (a call failed: {error.rstrip('.')})" if error else ""


def _wrote(outcome: Outcome) -> bool:
    return outcome.result is not None and TOOLS[outcome.call.tool].writes


def _described(call: ParsedCall) -> str:
    values = ", ".join(f"{name}={_shown_value(value)}" for name, value in call.args.items())
    return f"{call.tool}({values})"


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


# --- verdicts ---


def _right(explanation: str) -> Verdict:
    return Verdict(reward=1.0, success=True, explanation=_sentence(explanation))


def _failed(explanation: str) -> Verdict:
    return Verdict(reward=0.0, success=False, explanation=_sentence(explanation))


def _unread(explanation: str) -> Verdict:
    """There is no call, or no sentence, to grade."""
    return replace(_failed(explanation), readable=False)


def _partly(explanation: str, credit: float, settings: ToolCallingConfig) -> Verdict:
    """Not exactly right: nothing under the exact reward, the credit under the soft one."""
    if settings.reward == "exact":
        return _failed(explanation)
    success = credit >= settings.success_threshold
    return Verdict(reward=credit, success=success, explanation=_sentence(explanation))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
