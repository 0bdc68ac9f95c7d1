"""Finds the ground truth of a spec by executing it, and makes the same world again later from a few numbers.

Where a call cannot succeed in the seeded world (the event to cancel does not exist), the world is arranged
first; those steps are kept, so that a payload of a few lines stands for a whole world.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Day
from typing import cast

from genenv.domains.common import Refused
from genenv.domains.tool_calling.apps.kit import plain_copy
from genenv.domains.tool_calling.calls import ParsedCall
from genenv.domains.tool_calling.spec import Call, ToolSpec
from genenv.domains.tool_calling.toolbox import (
    TOOLS,
    Parameter,
    Result,
    ToolError,
    World,
    arrange,
    execute,
    initial_world,
    validate,
)
from genenv.types import Json, JsonObject, RejectReason

REFERENCE = re.compile(r"\$([1-9])\.([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)")
"""`$1.flight_id`, `$1.0.id`: a field of an earlier call's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the runtime found by executing a spec."""

    calls: tuple[ParsedCall, ...]
    """References resolved, defaults filled in."""
    arranged: tuple[JsonObject, ...]
    """The calls that the world was arranged for, in order."""


def is_reference(value: Json) -> bool:
    """Whether an argument stands for a field of an earlier result."""
    return isinstance(value, str) and REFERENCE.fullmatch(value.strip()) is not None


def start_world(payload: JsonObject) -> World:
    """A fresh copy of the world a task starts in."""
    return plain_copy(_start(int(cast(int, payload["world_seed"])), json.dumps(payload["arrange"])))


@functools.lru_cache(maxsize=256)
def _start(seed: int, steps: str) -> World:
    world = dict(_initial(seed))  # calls put new states in the place of old ones
    for index, step in enumerate(json.loads(steps)):
        arrange(world, step["tool"], step["args"], _arrange_rng(seed, index))
    return world


@functools.lru_cache(maxsize=256)
def _initial(seed: int) -> World:
    return initial_world(seed)


def today_of_world(seed: int) -> Day:
    """Today, by the clock of the world with this seed."""
    return Day.fromisoformat(_initial(seed)["clock"]["today"])


def _arrange_rng(seed: int, index: int) -> random.Random:
    return random.Random(f"{seed}/arrange/{index}")


def find_truth(spec: ToolSpec, seed: int) -> Truth:
    """Execute the calls in order, arranging the start for each call that cannot succeed or changes nothing.

    A call whose preconditions an earlier call provides needs no arrangement, so it is first tried without.
    One that fails even so, because earlier calls have spent what it needs, is arranged for with theirs.
    """
    if spec.gap == "missing_info":
        return Truth(calls=_validated_with_gap(spec), arranged=())
    start = dict(_initial(seed))
    arranged: list[JsonObject] = []
    tries: Counter[int] = Counter()
    while True:
        played, failure = _play(spec.calls, dict(start))
        if failure is None:
            return Truth(calls=tuple(played), arranged=tuple(arranged))
        index = len(played) - 1
        tries[index] += 1
        step = _needed(played) if tries[index] == 2 else played[index]
        if step is None or tries[index] > 2:
            raise Refused(RejectReason.EXECUTION, failure)
        try:
            arrange(start, step.tool, step.args, _arrange_rng(seed, len(arranged)))
        except ToolError as err:
            raise Refused(RejectReason.EXECUTION, f"{step.tool}: {err}") from None
        arranged.append({"tool": step.tool, "args": dict(step.args)})


def _needed(played: Sequence[ParsedCall]) -> ParsedCall | None:
    """The last call with what all calls up to it spend together; None if earlier ones spend nothing."""
    last = played[-1]
    tool = TOOLS[last.tool]
    spending = [call for call in played if TOOLS[call.tool].arrange == tool.arrange]
    if not tool.spends or len(spending) == 1:
        return None
    total = sum(cast(float, call.args[tool.spends]) for call in spending)
    return ParsedCall(tool=last.tool, args={**last.args, tool.spends: total})


def _play(calls: Sequence[Call], world: World) -> tuple[list[ParsedCall], str | None]:
    """Resolve and execute calls until one fails. That one comes last, and why it fails comes with it."""
    played: list[ParsedCall] = []
    results: list[Result] = []
    for call in calls:
        tool = TOOLS[call.tool]
        try:
            args = validate(tool, {name: _resolve(value, results) for name, value in call.args.items()})
        except ToolError as err:
            raise Refused(RejectReason.SCHEMA, f"{call.tool}: {err}") from None
        played.append(ParsedCall(tool=call.tool, args=args))
        before = world[tool.app]
        try:
            results.append(execute(world, call.tool, args))
        except ToolError as err:
            return played, f"{call.tool} fails: {err}"
        if tool.writes and world[tool.app] == before:
            return played, f"{call.tool} changes nothing"
    return played, None


def _resolve(value: Json, results: Sequence[Result]) -> Json:
    match = REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    here: Json = results[int(match[1]) - 1]
    for part in match[2].split("."):
        try:
            here = _member(here, part)
        except (LookupError, TypeError):
            explanation = f"the reference {value} finds no {part!r} in the result of call {match[1]}"
            raise Refused(RejectReason.EXECUTION, explanation) from None
    if not isinstance(here, str | int | float):
        raise Refused(RejectReason.EXECUTION, f"the reference {value} does not stand for a single value")
    return here


def _member(value: Json, part: str) -> Json:
    """A field of an object, or an item of a list by its number."""
    if isinstance(value, Mapping):
        return value[part]
    if isinstance(value, str | int | float | None) or not part.isdigit():
        raise TypeError(part)
    return value[int(part)]


_PLACEHOLDERS: Mapping[str, Json] = {
    "date": "2025-01-01", "time": "12:00", "name": "x", "text": "x", "number": 1, "flag": True,
}  # fmt: skip


def _validated_with_gap(spec: ToolSpec) -> tuple[ParsedCall, ...]:
    """The calls of a task with a missing argument: the other arguments are validated."""
    calls: list[ParsedCall] = []
    for call in spec.calls:
        tool = TOOLS[call.tool]
        stand_ins = {
            p.name: _placeholder(p) for p in tool.parameters if p.name not in call.args and p.required
        }
        stand_ins |= {p.name: _placeholder(p) for p in tool.parameters if is_reference(call.args.get(p.name))}
        try:
            args = validate(tool, {**call.args, **stand_ins})
        except ToolError as err:
            raise Refused(RejectReason.SCHEMA, f"{call.tool}: {err}") from None
        calls.append(ParsedCall(tool=call.tool, args={k: v for k, v in args.items() if k not in stand_ins}))
    return tuple(calls)


def _placeholder(parameter: Parameter) -> Json:
    return parameter.choices[0] if parameter.choices else _PLACEHOLDERS[parameter.kind]
