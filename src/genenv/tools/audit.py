"""Audit a task before it is used: its solution is stated, needed in all its parts, and not given away."""

from __future__ import annotations

import json
import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import cast

from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of, check, difference, is_obtained, is_solvable, lookups
from genenv.tools.discover.answers import has_list
from genenv.tools.discover.recipes import FRESH
from genenv.tools.discover.slots import alone, arguments, filled, replaced
from genenv.tools.discover.state_values import wanted
from genenv.tools.generate.fresh_values import fresh, other_values
from genenv.tools.language.said import says, states
from genenv.tools.language.wording import names_tool
from genenv.tools.language.words import FORMS
from genenv.tools.spec import Program
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Call, Outcome, Tool
from genenv.tools.worlds.differences import is_equal
from genenv.types import Json, Rejection, RejectReason, Task

_MOST_OTHERS = 8
"""Number of known values of a kind that are tried in place of a task's."""
_DRAWS = 20
"""Maximum number of tries per random call to draw a call that is not in the solution."""


def audit(toolbox: Toolbox, task: Task) -> Rejection | None:
    """Return the first problem of a task as a rejection, or None if the task is fine."""
    problem = _plays_twice_alike(toolbox, task) or misstated(toolbox, task)
    if problem is not None or not is_solvable(task):
        return problem
    if task.payload["gap"] == "refused":
        return _takes_no_words_for_deeds(toolbox, task)
    return (
        _needs_every_call(toolbox, task)
        or _needs_every_value(toolbox, task)
        or _needs_every_lookup(toolbox, task)
        or _takes_no_words_for_deeds(toolbox, task)
    )


def misstated(toolbox: Toolbox, task: Task) -> Rejection | None:
    """Return the problem of a task's text, or None: it lacks a needed value, or it gives away an answer."""
    return _states_every_value(toolbox, task) or _gives_nothing_away(task)


def random_replies(toolbox: Toolbox, task: Task, rng: random.Random) -> tuple[str, ...]:
    """Return replies with valid calls of shown tools and random values, none of which solves the task."""
    right = calls_of(task.payload, "calls")
    shown = [toolbox.world.tools[name] for name in cast("Sequence[str]", task.payload["tools"])]
    calls: list[Call] = []
    for _ in range(rng.randint(1, 3)):
        for _ in range(_DRAWS):
            tool = rng.choice(shown)
            call = Call(tool=tool.name, args={name: fresh(tool, name, rng) for name in tool.properties})
            if call not in right:
                calls.append(call)
                break
    style = toolbox.settings.style
    if task.payload["mode"] == "single":
        return (format_calls(calls, style),)
    return (*(format_calls([call], style) for call in calls), "Done.")


def _plays_twice_alike(toolbox: Toolbox, task: Task) -> Rejection | None:
    calls = [] if task.payload.get("gap") == "missing_info" else calls_of(task.payload, "calls")
    program = [*calls_of(task.payload, "before"), *calls]
    first, again = toolbox.world.play(program), toolbox.world.play_uncached(program)
    place = difference(toolbox.comparable(first.state), toolbox.comparable(again.state))
    if place is not None:
        return Rejection(RejectReason.CHECKS_DISAGREE, f"Played twice, the states differ at {place}.")
    is_refused = task.payload.get("gap") == "refused"
    if any(one.error for one in first.outcomes[: -1 if is_refused else None]):
        return Rejection(RejectReason.ORACLE_FAILS, "A call of its solution fails.")
    recipes, bundle = toolbox.graph.recipes, toolbox.bundle
    for call, one, other in zip(program, first.outcomes, again.outcomes, strict=True):
        if (recipe := recipes.get(call.tool)) is None or recipe.writes or bundle.is_unsteady(call.tool):
            continue
        if not is_equal(bundle.found(call.tool, one.result), bundle.found(call.tool, other.result)):
            return Rejection(RejectReason.CHECKS_DISAGREE, f"Played twice, {call.tool} finds something else.")
    return None


def _end(toolbox: Toolbox, calls: Sequence[Call]) -> Json:
    """Return the comparable part of the state after calls."""
    return toolbox.comparable(toolbox.world.play(calls).state)


def _needs_every_call(toolbox: Toolbox, task: Task) -> Rejection | None:
    """Reject a task that ends in the same state without some of its writing calls, or one of its list items.

    For calls that only read see `_needs_every_lookup`.
    """
    before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    end = _end(toolbox, [*before, *calls])
    for number, call in enumerate(calls):
        if not toolbox.graph.recipes[call.tool].writes:
            continue
        for what, fewer in _with_fewer(call, toolbox.graph.recipes[call.tool].unseen):
            if _end(toolbox, [*before, *calls[:number], *fewer, *calls[number + 1 :]]) == end:
                return Rejection(RejectReason.TRIVIAL, f"Without {what} the end is the same.")
    writing = [one for one, call in enumerate(calls) if toolbox.graph.recipes[call.tool].writes]
    for count in sorted({2, len(writing)}) if len(writing) > 1 else ():  # what one does another may undo
        for left_out in combinations(writing, count):
            fewer = [call for one, call in enumerate(calls) if one not in left_out]
            if _end(toolbox, [*before, *fewer]) == end:
                return Rejection(RejectReason.TRIVIAL, f"Without {count} of its calls the end is the same.")
    return None


def _needs_every_value(toolbox: Toolbox, task: Task) -> Rejection | None:
    """Reject a task whose end state stays the same with other values of an argument that is stated.

    Arguments that leave no trace in any state are compared as they stand (`untraced`).
    """
    values = toolbox.values(Program.model_validate(task.spec))
    before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    end = _end(toolbox, [*before, *calls])
    for number, call in enumerate(calls):
        recipe, tool = toolbox.graph.recipes[call.tool], toolbox.world.tools[call.tool]
        rng = random.Random(f"{json.dumps(task.spec)} {number}")
        for name in filled(tool, recipe.ways, call.args) if recipe.writes else ():
            way = recipe.ways.get(name, "")
            if name in recipe.unseen or (name not in call.args and way == FRESH):
                continue
            if way == FRESH:
                others = other_values(tool, name, call.args[name], rng)
            else:
                others = arguments(*alone(tool, name), values.get(way, ()))
            for other in islice(_with_others(tool, call, name, others), _MOST_OTHERS):
                played = toolbox.world.play([*before, *calls[:number], other, *calls[number + 1 :]])
                if any(one.error for one in played.outcomes):
                    continue
                if toolbox.comparable(played.state) == end:
                    said = f"With another {name} of {call.tool} the end is the same."
                    return Rejection(RejectReason.TRIVIAL, said)
                break
    return None


def _with_others(tool: Tool, call: Call, name: str, others: Iterable[Json]) -> Iterator[Call]:
    """Yield a call with each of some other values of an argument that can be given."""
    for other in others:
        made = Call(tool=call.tool, args=replaced(call.args, name, other))
        if made != call and tool.problem(made.args) is None:
            yield made


def _needs_every_lookup(toolbox: Toolbox, task: Task) -> Rejection | None:
    """Reject a task with a lookup whose result another call gives, or other values of what is stated.

    Of a search each stated argument has to matter; of another lookup one, as any day may begin at eight.
    """
    before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    made = list(zip(calls, toolbox.world.play([*before, *calls]).outcomes[len(before) :], strict=True))
    steps = Program.model_validate(task.spec).calls
    for number in lookups(toolbox, task):
        (call, outcome), others = made[number], [*made[:number], *made[number + 1 :]]
        if is_obtained(toolbox, task, call, outcome, others):
            return Rejection(RejectReason.TRIVIAL, f"Another call gives the result of {call.tool}.")
        needless = [] if toolbox.bundle.is_unsteady(call.tool) else _needless(toolbox, task, number, outcome)
        if needless and (has_list(outcome.result) or len(needless) == len(steps[number].args)):
            said = f"With another {needless[0]} of {call.tool} the result is the same."
            return Rejection(RejectReason.TRIVIAL, said)
    return None


def _needless(toolbox: Toolbox, task: Task, number: int, outcome: Outcome) -> list[str]:
    """Return the stated arguments of a lookup of which other values, each alone, lead to the same outcome."""
    program, found = Program.model_validate(task.spec), list[str]()
    *start, call = (*calls_of(task.payload, "before"), *calls_of(task.payload, "calls")[: number + 1])
    tool, ways = toolbox.world.tools[call.tool], toolbox.graph.recipes[call.tool].ways
    rng, values = random.Random(f"{json.dumps(task.spec)} {number}"), toolbox.values(program)
    for name in program.calls[number].args:
        kinds = (ways.get(name, ""), *wanted(name, call.tool, [*values]))
        known = [one for kind in kinds for one in arguments(tool, name, values.get(kind, ())[:_MOST_OTHERS])]
        others = _with_others(tool, call, name, [*other_values(tool, name, call.args[name], rng), *known])
        ends = (toolbox.world.play([*start, other]).outcomes[-1] for other in others)
        same = (is_obtained(toolbox, task, call, outcome, [(call, one)]) for one in ends)
        if next(same, False) and all(same):
            found.append(name)
    return found


def _with_fewer(call: Call, unseen: Container[str]) -> Iterator[tuple[str, list[Call]]]:
    """Yield each removable part of a call (all or a list item), and the calls that remain without it."""
    yield call.tool, []
    for name, value in call.args.items():
        for less in _with_less(value) if name not in unseen else ():
            yield f"one of the {name} of {call.tool}", [Call(tool=call.tool, args={**call.args, name: less})]


def _with_less(value: Json) -> Iterator[Json]:
    if isinstance(value, list):
        if len(value) > 1:
            yield from ([*value[:place], *value[place + 1 :]] for place in range(len(value)))
        for place, one in enumerate(value):
            yield from ([*value[:place], less, *value[place + 1 :]] for less in _with_less(one))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from ({**value, key: less} for less in _with_less(one))


def _states_every_value(toolbox: Toolbox, task: Task) -> Rejection | None:
    text, program = task.messages[-1].content, Program.model_validate(task.spec).requested
    speech = toolbox.speech(program)
    implied = cast("Sequence[Sequence[str]]", task.payload.get("implied", ()))
    for number, step in enumerate(program.calls):
        said = implied[number] if number < len(implied) else ()
        for name, value in ((name, value) for name, value in step.args.items() if name not in said):
            ways = [one for form in FORMS for one in speech.in_words(step.tool, name, value, form)]
            plain = [speech.manner.text(value), *ways]
            if not (_is_stated(text, value, ways) if program.request else any(one in text for one in plain)):
                return Rejection(RejectReason.UNSTATED, f"The {name} of {step.tool} is not in the text.")
    return None


def _is_stated(text: str, value: Json, ways: Sequence[str] = ()) -> bool:
    """Whether a request that a model wrote states a value, or says it in one of some ways.

    It may state a truth value in any words, so only the round trip judges that.
    """
    if isinstance(value, bool):
        return True
    if isinstance(value, Mapping | list):
        held = [*value.values()] if isinstance(value, Mapping) else value
        return bool(held) and all(_is_stated(text, one) for one in held)
    return any(states(text, one) for one in (value, *ways))


def _gives_nothing_away(task: Task) -> Rejection | None:
    text, program = task.messages[-1].content, Program.model_validate(task.spec)
    given = {value for step in program.calls for value in step.args.values() if isinstance(value, str)}
    tools = (step.tool for step in program.calls if not (step.tool.isalpha() and step.tool in given))
    named = [tool for tool in tools if names_tool(text, tool)]
    if named:
        return Rejection(RejectReason.LEAK, f"The text names the tool {named[0]}.")
    answers = cast("Sequence[Json]", task.payload["answers"])
    if any(says(text, answer) for answer in answers):
        return Rejection(RejectReason.LEAK, "The text says what it asks for.")
    if program.omits and says(text, program.calls[0].args[program.omits]):
        return Rejection(RejectReason.LEAK, f"The text says the {program.omits} that it should leave out.")
    for call, step in zip(calls_of(task.payload, "calls"), program.calls, strict=True):
        if any(says(text, call.args[use.parameter]) for use in step.uses):
            return Rejection(RejectReason.LEAK, f"The text says what {call.tool} is to use of another call.")
    return None


def _takes_no_words_for_deeds(toolbox: Toolbox, task: Task) -> Rejection | None:
    passing = [words for words in ("Done.", "I cannot do that.") if check(toolbox, task, (words,)).success]
    return Rejection(RejectReason.TRIVIAL, f"The words {passing[0]!r} pass.") if passing else None
