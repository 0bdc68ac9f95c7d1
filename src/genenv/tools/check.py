"""Grades an attempt from its replies: what its calls did to the state, and whether it says what was asked.

Both sides are played afresh, so equal replies get equal verdicts. Other calls to the same end count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from genenv.environments.common import caseless
from genenv.tools.calls import Reply, read_reply
from genenv.tools.credit import credit
from genenv.tools.language.wording import unsolvable_verdict
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call, Outcome, Played, World
from genenv.types import Json, Task, Verdict

if TYPE_CHECKING:
    from genenv.tools.environment import Tools

_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an agent did."""

    calls: tuple[Call, ...]
    outcomes: tuple[Outcome, ...]
    state: Json
    words: str
    """Of its last reply, without calls."""


def calls_of(payload: Mapping[str, Json], key: str) -> list[Call]:
    """Calls that a task keeps."""
    listed = cast("Sequence[Mapping[str, Any]]", payload[key])
    return [Call(tool=call["tool"], args=call["args"]) for call in listed]


def carried_out(world: World, shown: Sequence[str], before: Sequence[Call], calls: Sequence[Call]) -> Played:
    """Play an agent's calls. What is not shown, or has wrong arguments, is an error and reaches no tool."""
    errors = [_refusal(world, shown, call) for call in calls]
    valid = [call for call, error in zip(calls, errors, strict=True) if error is None]
    played = world.play([*before, *valid])
    outcomes = iter(played.outcomes[len(before) :])
    told = tuple(next(outcomes) if error is None else Outcome(error=error) for error in errors)
    return Played(outcomes=told, state=played.state)


def _refusal(world: World, shown: Sequence[str], call: Call) -> str | None:
    if call.tool not in shown:
        return f"There is no tool {call.tool!r}."
    return world.tools[call.tool].problem(call.args)


def check(env: Tools, task: Task, replies: Sequence[str]) -> Verdict:
    """Grade an attempt, GenEnv eq. (1). Exact: 1 for the solution's end and all answers, else 0.

    Soft: an attempt that is not right has the credit of its calls (`credit`).
    """
    read = [read_reply(reply, env.settings.style, env.known) for reply in replies]
    single = task.payload["mode"] == "single"
    turns = read[:1] if single else list(_heard(read))[: env.settings.max_turns]
    if (gap := str(task.payload.get("gap", "none"))) != "none":
        writes = {name: recipe.writes for name, recipe in env.graph.recipes.items()}
        lacking = {call.tool for call in calls_of(task.payload, "calls")} if gap == "missing_info" else ()
        return unsolvable_verdict(gap, turns, writes, single=single, lacking=lacking)
    malformed = next((reply.malformed for reply in turns if reply.malformed), None)
    if malformed:
        return _failed(f"A reply is malformed: {malformed}.", readable=False)
    if not any(reply.calls for reply in turns):
        return _failed("Nothing is called.", readable=False)
    before, oracle = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    calls = tuple(call for reply in turns for call in reply.calls)
    played = carried_out(env.world, cast("Sequence[str]", task.payload["tools"]), before, calls)
    attempt = Attempt(calls, played.outcomes, played.state, turns[-1].words)
    wanted = env.world.play([*before, *oracle])
    extra = single and env.counts_calls and len(calls) > len(oracle)
    problem = (
        (f"It calls more than it was asked to: {len(calls)} calls, not {len(oracle)}." if extra else None)
        or _unlike(env.comparable(wanted.state), env.comparable(attempt.state))
        or _unread(env, wanted.outcomes[len(before) :], oracle, attempt, task)
        or _unsaid(cast("Sequence[Json]", task.payload["answers"]), attempt.words)
    )
    if problem is None:
        return Verdict(
            reward=1.0, success=True, explanation="The state is right, and all that was asked is there."
        )
    failed = next((o.error for o in attempt.outcomes if o.error), None)
    return _partly(
        env,
        _failed(
            problem + (f" A call failed: {failed.rstrip('.')}." if failed else ""),
            readable=any(outcome.error is None for outcome in attempt.outcomes),
        ),
        credit(oracle, _taken(env, task, calls), env.world.tools),
    )


def _taken(env: Tools, task: Task, calls: Sequence[Call]) -> list[Call]:
    """The calls that the tools shown take."""
    shown = cast("Sequence[str]", task.payload["tools"])
    return [call for call in calls if _refusal(env.world, shown, call) is None]


def _partly(env: Tools, failed: Verdict, earned: float) -> Verdict:
    """A verdict with the partial credit that the soft reward gives."""
    settings = env.settings
    if settings.reward == "exact":
        return failed
    return replace(failed, reward=earned, success=earned >= settings.success_threshold)


def _heard(read: Sequence[Reply]) -> Iterator[Reply]:
    """The replies up to the first one that calls nothing, which ends an attempt."""
    for reply in read:
        yield reply
        if reply.malformed or not reply.calls:
            return


def _unlike(wanted: Json, found: Json) -> str | None:
    place = difference(wanted, found)
    return None if place is None else f"The state differs at {place}."


def difference(wanted: Json, found: Json, place: str = "") -> str | None:
    """Where two states differ first, in a few words; None if they are equal."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            inner = f"{place}.{key}" if place else str(key)
            if key not in found:
                return f"{inner}, which is missing"
            if key not in wanted:
                return f"{inner}, which should not be there"
            if deeper := difference(wanted[key], found[key], inner):
                return deeper
        return None
    if isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            return f"{place or 'the list'}, which has {len(found)} items, not {len(wanted)}"
        pairs = enumerate(zip(wanted, found, strict=True))
        return next((d for n, (a, b) in pairs if (d := difference(a, b, f"{place}.{n}"))), None)
    if wanted == found and isinstance(wanted, bool) == isinstance(found, bool):
        return None
    return f"{place or 'its value'}, which is {_short(found)}, not {_short(wanted)}"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _unread(
    env: Tools, wanted: Sequence[Outcome], oracle: Sequence[Call], attempt: Attempt, task: Task
) -> str | None:
    """What the user asks to be looked up has to be, unless it is a mere means: then the end tells."""
    program = Program.model_validate(task.spec)
    means = {use.call for step in program.calls for use in step.uses}
    obtained = [outcome.result for outcome in attempt.outcomes if outcome.error is None]
    for number, (call, outcome) in enumerate(zip(oracle, wanted, strict=True)):
        reads = number not in means and not env.graph.recipes[call.tool].writes
        wants = _canonical(env.bundle.found(call.tool, outcome.result))
        if reads and all(_canonical(env.bundle.found(call.tool, one)) != wants for one in obtained):
            return f"The result of {call.tool} was never obtained."
    return None


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _unsaid(answers: Sequence[Json], words: str) -> str | None:
    missing = next((answer for answer in answers if not says(words, answer)), None)
    return None if missing is None else f"The last reply does not say {_short(missing)}."


def says(words: str, answer: Json) -> bool:
    """Whether words state a value: a number as a number, a text as whole words, capitals and spaces aside."""
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return any(abs(float(one.replace(",", "")) - answer) < 1e-9 for one in _NUMBER.findall(words))
    text = caseless(str(answer))
    return bool(text) and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", caseless(words)) is not None


def _failed(explanation: str, *, readable: bool = True) -> Verdict:
    return Verdict(reward=0.0, success=False, explanation=explanation, readable=readable)
