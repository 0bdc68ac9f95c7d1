"""Build a task from a program: execute the program, choose the tools to show, write the user's request."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date as Day
from typing import cast

from genenv.environments.common import Refused
from genenv.tools.calls import format_calls
from genenv.tools.discover.recipes import is_refused, is_said_refusal, parsed_result
from genenv.tools.discover.rows import found_at
from genenv.tools.discover.slots import arguments
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.declining import known_answer
from genenv.tools.language.wording import absent, alike, label
from genenv.tools.settings import Style, ToolsConfig
from genenv.tools.spec import UNSOLVABLE, Program, Step
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Call, Outcome, Tool, World
from genenv.types import Json, Lineage, Message, Origin, Rejection, RejectReason, Task

_COMPLETIONS = 12
"""Maximum number of values that are tried for the argument that a request omits."""
_BLOCK = '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'
_HOW: Mapping[Style, str] = {
    "python": ", one a line, like tool(name=value)",
    "json": f", each as {_BLOCK}",
    "native": "",
}
"""How calls are written in each style."""
_ANSWERS = "give each value that was asked for, in order, in its own line, as a tool gave it: Answer: VALUE"
"""How what is asked for is given; `check` reads these lines."""


def skills_of(program: Program, groups: Mapping[str, Sequence[str]] | None = None) -> tuple[str, ...]:
    """Return the skills of a program: its tools or their groups, its number of calls, special features."""
    group_of = {tool: name for name, tools in (groups or {}).items() for tool in tools}
    tools = dict.fromkeys(group_of.get(step.tool, step.tool)[:64] for step in program.calls)
    special = [
        *(["chained"] if program.chained else []),
        *(["answer"] if program.answer else []),
        *([program.gap] if program.gap != "none" else []),
    ]
    return (*tools, f"calls:{program.n_calls}", *special)


def build(
    toolbox: Toolbox, program: Program, *, task_id: str, lineage: Lineage, rng: random.Random
) -> Task | Rejection:
    """Execute a program and write its request; equal programs, ids and random states give equal tasks."""
    settings = toolbox.settings
    measuring = lineage.origin is Origin.HELD_OUT
    try:
        if toolbox.is_for_measuring(program) != measuring:
            raise Refused(RejectReason.HELD_OUT, "these calls are kept for measuring, or for training")
        _meet(toolbox, program, measuring=measuring)
        given = {value for step in program.calls for value in step.args.values() if isinstance(value, str)}
        if not measuring and not given.isdisjoint(toolbox.kept_texts):
            raise Refused(RejectReason.HELD_OUT, "a text of it is kept for measuring")
        calls, answers = _played(toolbox, program, settings)
        request = toolbox.said(program, rng, measuring=measuring)
        shown = _shown(toolbox, program, rng)
    except Refused as refused:
        return refused.rejection
    several = toolbox.user_answers or toolbox.refusals
    multi = settings.mode == "multi" or several or program.chained or program.answer
    payload: dict[str, Json] = {
        "before": [cast(Json, call.json) for call in _literal(program.before)],
        "calls": [cast(Json, call.json) for call in calls],
        "answers": list(answers),
        "mode": "multi" if multi else "single",
        "gap": program.gap,
        "tools": list(shown),
        "implied": [list(names) for names in request.implied],
    }
    if program.omits:
        value = toolbox.speech(program).manner.text(program.calls[0].args[program.omits])
        payload["user_answer"] = f"The {label(program.omits)} is {value}."
    return Task(
        id=task_id,
        environment=toolbox.name,
        skills=skills_of(program, toolbox.bundle.about.groups),
        messages=opening(toolbox, request.text, shown, multi=multi, today=toolbox.today(program)),
        spec=toolbox.dumped(program),
        payload=json.loads(json.dumps(payload)),
        oracle=_oracle(toolbox, program, calls, answers, multi=multi),
        lineage=lineage,
    )


def _meet(toolbox: Toolbox, program: Program, *, measuring: bool) -> None:
    """Refuse a program whose tools may not occur together in a training or held-out task (`measuring`)."""
    together = toolbox.bundle.about.together
    tools = {step.tool for step in program.calls}
    if together is not None and not together.allows(tools, measuring=measuring):
        listed = " and ".join(sorted(tools))
        side = "training" if measuring else "measuring"
        raise Refused(RejectReason.HELD_OUT, f"{listed} meet in tasks for {side} alone")


def _played(toolbox: Toolbox, program: Program, settings: ToolsConfig) -> tuple[list[Call], list[Json]]:
    """Return the program's calls with the values that they use, and the answers to its questions.

    Raises:
        Refused: the program contradicts its difficulty fields, or a call fails.
    """
    world = toolbox.world
    _consistent(toolbox, program, settings)
    before = _literal(program.before)
    if program.gap == "missing_info" or program.omits:
        _successes(world, before)
        _incomplete(toolbox, program)
    if program.gap == "missing_info":
        return _literal(program.calls), []
    if program.gap == "refused":
        return _refused(world, before, _literal(program.calls)), []
    calls: list[Call] = []
    outcomes: Sequence[Outcome] = ()
    for number, step in enumerate(program.calls, start=1):
        args = cast("dict[str, Json]", dict(step.args))
        for use in step.uses:
            args[use.parameter] = _value(outcomes[use.call].result, use.path)
        calls.append(Call(tool=step.tool, args=args))
        if problem := world.tools[step.tool].problem(args):
            raise Refused(RejectReason.SCHEMA, problem.rstrip("."))
        if number == len(program.calls) or program.calls[number].uses:
            outcomes = _successes(world, [*before, *calls])[len(before) :]
    return calls, [_value(outcomes[question.call].result, question.path) for question in program.questions]


def _refused(world: World, before: Sequence[Call], calls: Sequence[Call]) -> list[Call]:
    """Return the one call of a task, which must be refused in words, and change nothing."""
    (call,) = calls
    _successes(world, before)
    if problem := world.tools[call.tool].problem(call.args):
        raise Refused(RejectReason.SCHEMA, problem.rstrip("."))
    outcome = world.play([*before, call], watch=True).outcomes[-1]
    if outcome.changed or not is_said_refusal(outcome, call.args):
        said = f"gap is refused, and {call.tool} does not refuse it in words"
        raise Refused(RejectReason.INCONSISTENT, said)
    return [call]


def _successes(world: World, calls: Sequence[Call]) -> Sequence[Outcome]:
    """Return the outcomes of calls, none of which may fail."""
    outcomes = world.play(calls).outcomes
    for call, outcome in zip(calls, outcomes, strict=True):
        if is_refused(outcome, call.args):
            said = (outcome.error or outcome.text)[:200].rstrip(".")
            raise Refused(RejectReason.EXECUTION, f"{call.tool} fails: {said}")
    return outcomes


def _incomplete(toolbox: Toolbox, program: Program) -> None:
    """Refuse a program unless its request omits exactly one value that its first call requires.

    The call must succeed with a value in its place: other than the one that the user gives, if the user does.
    Else the agent could find the value by trying.
    """
    step, tool = program.requested.calls[0], toolbox.world.tools[program.calls[0].tool]
    if len(absent(tool, step)) != 1:
        raise Refused(RejectReason.INCONSISTENT, f"gap is {program.gap}, and {step.tool} lacks not one value")
    if problem := replace(tool, parameters={**tool.parameters, "required": []}).problem(step.args):
        raise Refused(RejectReason.SCHEMA, problem.rstrip("."))
    (missing,), rng, before = absent(tool, step), random.Random(0), _literal(program.before)
    way = toolbox.graph.recipes[tool.name].ways.get(missing, "")
    known = arguments(tool, missing, toolbox.values(program).get(way, ()))
    known = [value for value in known if value != program.calls[0].args.get(missing)]
    values = rng.sample(known, min(_COMPLETIONS, len(known))) or [
        fresh(tool, missing, rng) for _ in range(_COMPLETIONS)
    ]
    calls = [Call(tool=step.tool, args={**step.args, missing: value}) for value in values]
    if all(is_refused(toolbox.world.play([*before, call]).outcomes[-1], call.args) for call in calls):
        other = " else" if program.omits else ""
        raise Refused(RejectReason.EXECUTION, f"{step.tool} fails whatever{other} {missing} is")


def _consistent(toolbox: Toolbox, program: Program, settings: ToolsConfig) -> None:
    world, starts = toolbox.world, toolbox.bundle.about.starts
    if starts is not None and starts.state_of(program) is None:
        raise Refused(RejectReason.INCONSISTENT, f"a task begins with {starts.tool} and a state there is")
    before = program.before[1:] if starts else program.before
    unknown = [step.tool for step in (*before, *program.calls) if step.tool not in world.tools]
    if unknown:
        raise Refused(RejectReason.SCHEMA, f"there is no tool {unknown[0]!r}")
    if (program.gap == "user_answers") != bool(program.omits) or (program.omits and not toolbox.user_answers):
        raise Refused(RejectReason.INCONSISTENT, f"gap is {program.gap}, and the user gives no value later")
    if program.omits and not all(step.uses for step in program.calls[1:]):
        raise Refused(RejectReason.INCONSISTENT, "a call can be made before the user gives a value")
    if program.gap == "refused" and not toolbox.refusals:
        raise Refused(RejectReason.INCONSISTENT, "gap is refused, and the bundle has no such tasks")
    if program.gap in (*UNSOLVABLE, "refused") and (program.n_calls > 1 or program.chained or program.answer):
        raise Refused(
            RejectReason.INCONSISTENT, f"gap is {program.gap}, and there is more than one plain call"
        )
    if len(program.calls) != program.n_calls or program.n_calls > settings.most_calls:
        raise Refused(
            RejectReason.INCONSISTENT, f"n_calls is {program.n_calls}, there are {len(program.calls)} calls"
        )
    if program.n_tools not in toolbox.bundle.about.shown:
        raise Refused(RejectReason.INCONSISTENT, f"n_tools is {program.n_tools}, which no task shows")
    if program.chained != any(step.uses for step in program.calls):
        raise Refused(RejectReason.INCONSISTENT, f"chained is {program.chained}, and the calls say otherwise")
    if program.answer != bool(program.questions):
        raise Refused(
            RejectReason.INCONSISTENT, f"answer is {program.answer}, and the questions say otherwise"
        )
    if any(question.call != len(program.calls) - 1 for question in program.questions):
        raise Refused(RejectReason.INCONSISTENT, "a question is of another call than the last")
    if any(use.call != number - 1 for number, step in enumerate(program.calls) for use in step.uses):
        raise Refused(RejectReason.INCONSISTENT, "a call uses what another one finds than the one before it")
    if settings.mode == "single" and (program.chained or program.answer):
        raise Refused(RejectReason.INCONSISTENT, "this takes several turns, and the mode is single")


def _value(result: Json, path: Sequence[str | int]) -> Json:
    try:
        value = found_at(parsed_result(result), path)
    except LookupError:
        raise Refused(RejectReason.EXECUTION, f"a result has nothing at {'.'.join(map(str, path))}") from None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise Refused(RejectReason.EXECUTION, f"at {'.'.join(map(str, path))} there is no single value")
    return value


def _literal(steps: Sequence[Step]) -> list[Call]:
    return [Call(tool=step.tool, args=dict(step.args)) for step in steps]


def _shown(toolbox: Toolbox, program: Program, rng: random.Random) -> list[str]:
    """Return the needed tools and others, shuffled; two thirds of the others share a group with them."""
    about = toolbox.bundle.about
    named = list(dict.fromkeys(step.tool for step in program.calls))
    needed = [] if program.gap == "no_tool" else named
    excluded = {*named, *(alike(named, about.alike) if program.gap == "no_tool" else ())}
    others = [name for name in toolbox.world.tools if name not in excluded]
    count = program.n_tools - len(needed)
    if not 0 <= count <= len(others):
        raise Refused(
            RejectReason.INCONSISTENT,
            f"n_tools is {program.n_tools}; {len(needed)} are needed, {len(toolbox.world.tools)} there",
        )
    near = {one for tools in about.groups.values() if not set(tools).isdisjoint(named) for one in tools}
    same = [name for name in others if name in near]
    first = rng.sample(same, min(len(same), -(-2 * count // 3))) if same else []
    rest = [name for name in others if name not in first]
    shown = [*needed, *first, *rng.sample(rest, count - len(first))]
    rng.shuffle(shown)
    return shown


def opening(
    toolbox: Toolbox, request: str, shown: Sequence[str], *, multi: bool, today: Day | None = None
) -> tuple[Message, ...]:
    """Return the first messages of an episode: system prompt and user request.

    Args:
        toolbox: the tools, and the format of calls.
        request: the user's request.
        shown: the names of the tools that are shown.
        multi: whether the agent gets the results of its calls.
        today: the current date, if there is one.
    """
    settings, notes = toolbox.settings, ""
    if toolbox.user_answers:
        notes += " If no tool fits, say so. If a value is missing, ask for it."
    elif toolbox.lacks:
        notes += " If no tool fits or a value is missing, say so instead."
    if toolbox.refusals:
        notes += (
            " If a tool refuses what is asked for, change nothing, and end with a line `Refused: REASON`."
        )
    if today is not None:
        notes += f" Today is {today:%A}, {today.isoformat()}."
    tools = [toolbox.world.tools[name] for name in shown]
    style, described = settings.style, settings.descriptions
    system = how_to_call(tools, style, notes, multi=multi, described=described, answers=toolbox.asks)
    return Message(role="system", content=system), Message(role="user", content=request)


def how_to_call(
    tools: Sequence[Tool],
    style: Style,
    notes: str = "",
    *,
    multi: bool = True,
    described: bool = True,
    answers: bool = False,
) -> str:
    """Return the system message about tools; it lists them unless the model's chat template does.

    Args:
        tools: the tools.
        style: the format of calls.
        notes: further sentences, after a space.
        multi: whether the agent gets the results of its calls.
        described: whether each tool is described in a sentence.
        answers: whether what is asked for has to be given in lines of its own.
    """
    if style == "python" and not any(tool.is_plain for tool in tools):
        style = "json"
    if multi:
        system = f"Call tools{_HOW[style]}; you get their results. When all is done, say so, and "
        system += _ANSWERS if answers else "what was asked."
    else:
        system = f"Answer with tool calls only, all in one reply{_HOW[style]}{'' if style == 'json' else '.'}"
    if style == "python" and not all(tool.is_plain for tool in tools):
        system += f" Write a call with a name in quotation marks as {_BLOCK}."
    system += notes
    if style == "native":
        return system
    lines = [
        f"{tool.heading}  # {tool.description}" if described and tool.description else tool.heading
        for tool in tools
    ]
    return "\n".join([f"{system} Tools:", *lines])


def _oracle(
    toolbox: Toolbox, program: Program, calls: Sequence[Call], answers: Sequence[Json], *, multi: bool
) -> tuple[str, ...]:
    style = toolbox.settings.style
    first: tuple[str, ...] = ()
    if program.gap == "refused":
        return (format_calls(calls, style), "Refused: the tool does not do that.")
    if program.gap != "none":
        step = program.requested.calls[0]
        first = (known_answer(program.gap, toolbox.world.tools[step.tool], step),)
    if program.gap in UNSOLVABLE:
        return first
    if not multi:
        return (format_calls(calls, style),)
    said = "\n".join(f"Answer: {' '.join(str(answer).split())}" for answer in answers) or "Done."
    return (*first, *(format_calls([call], style) for call in calls), said)
