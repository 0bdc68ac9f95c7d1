"""The gate's own checks of a task of tools: the same twice, each call needed, each value stated."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of, difference, says
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.wording import names_tool
from genenv.tools.language.words import FORMS
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call
from genenv.types import Json, Rejection, RejectReason, Task

if TYPE_CHECKING:
    from genenv.tools.environment import Tools

_DRAWS = 20


def audit(env: Tools, task: Task, rng: random.Random) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    del rng
    return (
        _plays_twice_alike(env, task)
        or _needs_every_call(env, task)
        or misstated(env, task)
        or _takes_no_words_for_deeds(env, task)
    )


def misstated(env: Tools, task: Task) -> Rejection | None:
    """What is wrong with a task's text: a value that is not in it, or an answer that is."""
    return _states_every_value(env, task) or _gives_nothing_away(task)


def random_replies(env: Tools, task: Task, rng: random.Random) -> tuple[str, ...]:
    """Well-formed calls of shown tools with values drawn blindly; never by chance those of the solution."""
    right = calls_of(task.payload, "calls")
    shown = [env.world.tools[name] for name in cast("Sequence[str]", task.payload["tools"])]
    calls: list[Call] = []
    for _ in range(rng.randint(1, 3)):
        for _ in range(_DRAWS):
            tool = rng.choice(shown)
            call = Call(tool=tool.name, args={name: fresh(tool, name, rng) for name in tool.properties})
            if call not in right:
                calls.append(call)
                break
    style = env.settings.style
    if task.payload["mode"] == "single":
        return (format_calls(calls, style),)
    return (*(format_calls([call], style) for call in calls), "Done.")


def _plays_twice_alike(env: Tools, task: Task) -> Rejection | None:
    calls = [] if task.payload.get("gap") == "missing_info" else calls_of(task.payload, "calls")
    program = [*calls_of(task.payload, "before"), *calls]
    first, again = env.world.play(program), env.world.play(program)
    place = difference(env.comparable(first.state), env.comparable(again.state))
    if place is not None:
        return Rejection(RejectReason.CHECKS_DISAGREE, f"Played twice, the states differ at {place}.")
    if any(one.error for one in first.outcomes):
        return Rejection(RejectReason.ORACLE_FAILS, "A call of its solution fails.")
    return None


def _needs_every_call(env: Tools, task: Task) -> Rejection | None:
    """Without any call that writes, or any item of a list in it, the end is another one.

    What is read is looked for by the check.
    """
    if task.payload.get("gap", "none") != "none":
        return None
    before, calls = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    end = env.comparable(env.world.play([*before, *calls]).state)
    for number, call in enumerate(calls):
        if not env.graph.recipes[call.tool].writes:
            continue
        for what, fewer in _with_fewer(call, env.graph.recipes[call.tool].unseen):
            played = env.world.play([*before, *calls[:number], *fewer, *calls[number + 1 :]])
            if env.comparable(played.state) == end:
                return Rejection(RejectReason.TRIVIAL, f"Without {what} the end is the same.")
    return None


def _with_fewer(call: Call, unseen: Container[str]) -> Iterator[tuple[str, list[Call]]]:
    """What may be idle, and what is called without it: the call, an item of a list in it that has several."""
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


def _states_every_value(env: Tools, task: Task) -> Rejection | None:
    text, program = task.messages[-1].content, Program.model_validate(task.spec)
    speech, implied = env.speech(program), cast("Sequence[Sequence[str]]", task.payload.get("implied", ()))
    for number, step in enumerate(program.calls):
        said = implied[number] if number < len(implied) else ()
        for name, value in ((name, value) for name, value in step.args.items() if name not in said):
            ways = [speech.manner.text(value)]
            ways += [one for form in FORMS for one in speech.in_words(step.tool, name, value, form)]
            if not any(one in text for one in ways):
                return Rejection(RejectReason.UNSTATED, f"The {name} of {step.tool} is not in the text.")
    return None


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
    calls, literal = calls_of(task.payload, "calls"), program.calls
    for call, step in zip(calls, literal, strict=True):
        if any(says(text, call.args[use.parameter]) for use in step.uses):
            return Rejection(RejectReason.LEAK, f"The text says what {call.tool} is to use of another call.")
    return None


def _takes_no_words_for_deeds(env: Tools, task: Task) -> Rejection | None:
    if task.payload.get("gap", "none") != "none":
        return None
    passing = [words for words in ("Done.", "I cannot do that.") if env.check(task, (words,)).success]
    return Rejection(RejectReason.TRIVIAL, f"The words {passing[0]!r} pass.") if passing else None
