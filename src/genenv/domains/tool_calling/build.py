"""From a spec to a task: check its difficulty fields, run its calls, choose the tools, write the prompt.

The ground truth is what the runtime finds when it executes the calls on a copy of a seeded world. Where a
call cannot succeed there (the event to cancel does not exist), the world is arranged first; the payload keeps
those steps, so that the same world can be made again from a few numbers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date as Day
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from genenv.domains.common import Refused
from genenv.domains.tool_calling.blanks import filled
from genenv.domains.tool_calling.calls import ParsedCall, format_calls
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import Call, ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS, Parameter, Tool
from genenv.domains.tool_calling.truth import REFERENCE, find_truth, today_of_world
from genenv.domains.tool_calling.worlds import world_seed
from genenv.domains.tools.settings import Style
from genenv.types import Json, Lineage, Message, Rejection, RejectReason, Task

if TYPE_CHECKING:
    from genenv.domains.tool_calling.domain import ToolCalling


TWINS: tuple[frozenset[str], ...] = (
    frozenset({"move_event", "create_event"}),
    frozenset({"list_events", "find_free_slot"}),
    frozenset({"create_event", "add_todo"}),
    frozenset({"send_message", "send_email"}),
    frozenset({"read_messages", "search_email"}),
    frozenset({"add_note", "append_note", "create_file", "add_todo"}),
    frozenset({"search_notes", "read_file"}),
    frozenset({"add_to_cart", "place_order"}),
)
"""Tools that could pass for each other: where one is withheld, the others are not shown either."""

_NEAR: Mapping[str, tuple[str, ...]] = {
    "bank": ("shop", "convert"),
    "calendar": ("notes", "trips"),
    "contacts": ("email", "calendar"),
    "convert": ("bank", "trips"),
    "email": ("contacts", "files"),
    "files": ("notes", "email"),
    "home": ("music", "calendar"),
    "music": ("home", "files"),
    "notes": ("files", "calendar"),
    "shop": ("bank", "home"),
    "trips": ("calendar", "bank"),
}
"""Apps whose tools could be confused with an app's."""


def build(
    domain: ToolCalling, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
) -> Task | Rejection:
    """Execute a spec: fill its blanks, derive the ground truth and the messages the agent sees.

    The world is that of `lineage.seed_id` (of the task itself without one), so that a simulator can be told
    its date before it writes. The same spec, ids, random state and settings always give the same task.
    """
    spec, settings = cast(ToolSpec, spec), domain.settings
    seed = world_seed(lineage.seed_id or task_id)
    multi = settings.mode == "multi" or (settings.mode == "auto" and spec.dependent)
    try:
        _consistent(spec, settings)
        truth = find_truth(spec, seed)
        shown = _shown(spec, settings.apps, rng)
        spec = filled(spec, today_of_world(seed), rng)  # last: blanks do not change which tools are shown
    except Refused as refused:
        return refused.rejection
    payload: dict[str, Json] = {
        "world_seed": seed,
        "arrange": truth.arranged,
        "mode": "multi" if multi else "single",
        "gap": spec.gap,
        "tools": shown,
        "calls": [{"tool": call.tool, "args": dict(call.args)} for call in truth.calls],
    }
    payload = json.loads(json.dumps(payload))  # lists, not tuples: a stored task equals a fresh one
    system = system_message(shown, today=today_of_world(seed), multi=multi, settings=settings)
    return Task(
        id=task_id,
        domain=domain.name,
        skills=skills_of(spec),
        messages=(
            Message(role="system", content=system),
            Message(role="user", content=spec.instruction.strip()),
        ),
        spec=spec.model_dump(mode="json"),
        payload=payload,
        oracle=_oracle(spec, truth.calls, multi=multi, style=settings.style),
        lineage=lineage,
    )


def skills_of(spec: ToolSpec) -> tuple[str, ...]:
    """What a spec exercises: its apps, the number of calls, the phrasing, and what makes it special."""
    apps = dict.fromkeys(TOOLS[call.tool].app for call in spec.calls if call.tool in TOOLS)
    special = [*(["dependent"] if spec.dependent else []), *([spec.gap] if spec.gap != "none" else [])]
    return (*apps, f"calls:{spec.n_calls}", spec.phrasing, *special)


def absent_parameters(call: Call) -> list[Parameter]:
    """The required parameters that a call leaves out."""
    return [p for p in TOOLS[call.tool].parameters if p.required and p.name not in call.args]


# --- are the difficulty fields true? ---


def _consistent(spec: ToolSpec, settings: ToolCallingConfig) -> None:
    def refuse(explanation: str) -> Refused:
        return Refused(RejectReason.INCONSISTENT, explanation)

    for call in spec.calls:
        if call.tool not in TOOLS:
            raise Refused(RejectReason.SCHEMA, f"there is no tool {call.tool!r}")
        if TOOLS[call.tool].app not in settings.apps:
            raise Refused(RejectReason.SCHEMA, f"there is no app {TOOLS[call.tool].app!r} in this world")
    if len(spec.calls) != spec.n_calls:
        raise refuse(f"n_calls is {spec.n_calls}, but there are {len(spec.calls)} calls")
    references = _references(spec)
    if spec.dependent != bool(references):
        raise refuse(
            "dependent is " + ("true, but no call uses a result" if spec.dependent else "false, but one does")
        )
    if spec.dependent and settings.mode == "single":
        raise refuse("dependent tasks need several turns, and the mode is single")
    for index, number in references:
        if number > index:
            raise refuse(
                f"call {index + 1} refers to the result of call {number}, which is not an earlier one"
            )
    _consistent_gap(spec)
    if len({json.dumps([c.tool, c.args], sort_keys=True, default=str) for c in spec.calls}) < len(spec.calls):
        raise refuse("two calls are the same")
    needed = {call.tool for call in spec.calls if spec.gap != "no_tool"}
    if len(needed) > spec.n_tools:
        raise refuse(f"n_tools is {spec.n_tools}, but the calls use {len(needed)} tools")


def _consistent_gap(spec: ToolSpec) -> None:
    absent = [(index, p.name) for index, call in enumerate(spec.calls) for p in absent_parameters(call)]
    if spec.gap != "missing_info" and absent:
        index, name = absent[0]
        raise Refused(
            RejectReason.SCHEMA, f"{spec.calls[index].tool} needs a value for {name!r}, and gap is {spec.gap}"
        )
    if spec.gap == "missing_info" and [index for index, _ in absent] != [len(spec.calls) - 1]:
        explanation = (
            f"gap is missing_info, but {len(absent)} required arguments are absent, not one of the last call"
        )
        raise Refused(RejectReason.INCONSISTENT, explanation)


def _references(spec: ToolSpec) -> list[tuple[int, int]]:
    """(index of the call, number of the call it refers to), for each reference."""
    found: list[tuple[int, int]] = []
    for index, call in enumerate(spec.calls):
        for name, value in call.args.items():
            if not isinstance(value, str):
                continue
            if match := REFERENCE.fullmatch(value.strip()):
                found.append((index, int(match[1])))
            elif re.search(r"\$[1-9]\.\w", value) and not re.search(r"\$[1-9]\.\d", value):
                raise Refused(
                    RejectReason.INCONSISTENT,
                    f"argument `{name}` of {call.tool} mixes a reference with other text",
                )
    return found


# --- what the agent sees ---


def twins_of(names: Iterable[str]) -> set[str]:
    """Tools that could do the job of one of these."""
    chosen = set(names)
    return {twin for group in TWINS if group & chosen for twin in group} - chosen


def _shown(spec: ToolSpec, there: Collection[str], rng: random.Random) -> list[str]:
    """The needed tools, unless withheld, and distractors: two in three of the same apps, then near ones."""
    named = {call.tool for call in spec.calls}
    withheld = spec.gap == "no_tool"
    shown = set(named if not withheld else ())
    excluded = named | twins_of(named if withheld else ())
    apps = sorted({TOOLS[name].app for name in named})
    near = {app for own in apps for app in _NEAR.get(own, ())} - set(apps)
    rest = [tool for tool in TOOLS.values() if tool.name not in excluded and tool.app in there]
    same = _shuffled((tool for tool in rest if tool.app in apps), rng)
    others = _shuffled((tool for tool in rest if tool.app in near), rng)
    others += _shuffled((tool for tool in rest if tool.app not in near and tool.app not in apps), rng)
    wanted = spec.n_tools - len(shown)
    from_same = same[: -(-2 * wanted // 3)]
    shown.update((from_same + others + same[len(from_same) :])[:wanted])
    return _shuffled((TOOLS[name] for name in sorted(shown)), rng)


def _shuffled(tools: Iterable[Tool], rng: random.Random) -> list[str]:
    names = [tool.name for tool in tools]
    rng.shuffle(names)
    return names


_JSON_CALL = '<tool_call>\n{"name": "tool", "arguments": {...}}\n</tool_call>'
_TURNS = "wait for its result, and say when you are done"
_HOW: Mapping[tuple[bool, Style], str] = {
    (False, "python"): 'Reply with calls, one a line: tool(name="x").',
    (True, "python"): f'Reply with one call, tool(name="x"), {_TURNS}.',
    (False, "json"): f"Reply with calls: {_JSON_CALL}.",
    (True, "json"): f"Reply with one call, {_JSON_CALL}, {_TURNS}.",
    (False, "native"): "Call all the tools that are needed in one reply.",
    (True, "native"): f"Call one tool, {_TURNS}.",
}


def system_message(tools: Sequence[str], *, today: Day, multi: bool, settings: ToolCallingConfig) -> str:
    """What the agent is told first; short, because on small machines each token costs.

    What all tasks share comes first: prompts that begin alike go through the model together up to there.
    """
    told = (
        f"{_HOW[multi, settings.style]} If no tool fits or a value is missing, say so instead."
        f" Dates are YYYY-MM-DD, times HH:MM.\nToday is {today:%A}, {today.isoformat()}."
    )
    if settings.style == "native":
        return told
    shown = [TOOLS[name] for name in tools]
    lines = "\n".join(tool.signature if settings.descriptions else tool.heading for tool in shown)
    return f"{told} Tools:\n{lines}"


def _oracle(spec: ToolSpec, calls: Sequence[ParsedCall], *, multi: bool, style: Style) -> tuple[str, ...]:
    if spec.gap == "no_tool":
        return ("I cannot do that: none of my tools fits.",)
    if spec.gap == "missing_info":
        missing = absent_parameters(spec.calls[-1])[0].name.replace("_", " ")
        return (f"I cannot do that yet: what is the {missing}?",)
    short = [_without_defaults(call) for call in calls]
    if not multi:
        return (format_calls(short, style),)
    return (*(format_calls([call], style) for call in short), "Done.")


def _without_defaults(call: ParsedCall) -> ParsedCall:
    """The shortest call that means the same."""
    parameters = {p.name: p for p in TOOLS[call.tool].parameters}
    args = {k: v for k, v in call.args.items() if parameters[k].required or v != parameters[k].default}
    return ParsedCall(tool=call.tool, args=args)
