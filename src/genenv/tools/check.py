"""Grade a rollout by its end state and answers.

The agent's calls are executed in the session of the episode, or again in a fresh session. All sessions start
from the same state, so equal replies get equal verdicts. Other calls that lead to the same end state are
right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from genenv.environments.common import caseless
from genenv.tools.calls import Reply, format_calls, read_reply
from genenv.tools.discover.answers import has_items
from genenv.tools.discover.recipes import FRESH, is_refused, parsed_result
from genenv.tools.discover.rows import field_of, is_of_rows
from genenv.tools.discover.state_values import refers
from genenv.tools.language.declining import (
    asks,
    asks_for,
    failed_verdict,
    premature,
    reports_refusal,
    unsolvable_verdict,
)
from genenv.tools.language.said import answers_in, answers_named, distinct, gives
from genenv.tools.language.wording import label
from genenv.tools.spec import UNSOLVABLE, Program
from genenv.tools.toolbox import Toolbox
from genenv.tools.worlds.base import Call, Outcome, Played, Tool, World
from genenv.tools.worlds.differences import changed, is_equal
from genenv.types import Json, Task, Verdict

NAME_CREDIT = 0.2
"""Share of a call's credit that the right tool earns; the arguments earn the other share."""
EXTRA_CALL_COST = 0.2
MAX_PARTIAL = 0.95
"""Maximum credit of a rollout that is not right."""


def calls_of(payload: Mapping[str, Json], key: str) -> list[Call]:
    """Return the calls that a task's payload stores under a key."""
    listed = cast("Sequence[Mapping[str, Any]]", payload[key])
    return [Call(tool=call["tool"], args=call["args"]) for call in listed]


def is_solvable(task: Task) -> bool:
    """Whether a task has a solution; in any other, the right reply changes nothing and says so."""
    return task.payload.get("gap", "none") not in UNSOLVABLE


def execute(world: World, shown: Sequence[str], before: Sequence[Call], calls: Sequence[Call]) -> Played:
    """Execute an agent's calls. A call that `refusal` refuses gives an error and reaches no tool."""
    errors = [refusal(world, shown, call) for call in calls]
    valid = [call for call, error in zip(calls, errors, strict=True) if error is None]
    played = world.play([*before, *valid])
    outcomes = iter(played.outcomes[len(before) :])
    shown_outcomes = tuple(next(outcomes) if error is None else Outcome(error=error) for error in errors)
    return Played(outcomes=shown_outcomes, state=played.state)


def refusal(world: World, shown: Sequence[str], call: Call) -> str | None:
    """Return why a call must not reach a tool, as a sentence, or None if the call is valid.

    Args:
        world: the world that has the tools.
        shown: the names of the tools that the task shows.
        call: the agent's call.
    """
    if call.tool not in shown:
        return f"There is no tool {call.tool!r}."
    return world.tools[call.tool].problem(call.args)


def check(toolbox: Toolbox, task: Task, replies: Sequence[str], executed: Played | None = None) -> Verdict:
    """Grade a rollout, GenEnv eq. (1). Exact: 1 for the solution's end state and all answers, else 0.

    Soft: a rollout that is not right gets the partial credit of its calls (`credit`).

    Args:
        toolbox: the tools of the environment.
        task: the task of the rollout.
        replies: the agent's replies, in order.
        executed: the outcomes of its calls in the episode's session; None: execute the calls again.
    """
    read = [read_reply(reply, toolbox.settings.style, toolbox.known) for reply in replies]
    single = task.payload["mode"] == "single"
    user, turns, unanswered = User(toolbox, task), list[Reply](), list[Reply]()
    for reply in islice(_until_end(read, user), 1 if single else toolbox.settings.max_turns):
        turns.append(reply)
        if not user.given:
            unanswered.append(reply)
    before, oracle = calls_of(task.payload, "before"), calls_of(task.payload, "calls")
    gap = str(task.payload.get("gap"))
    writes = {name: recipe.writes for name, recipe in toolbox.graph.recipes.items()}
    if not is_solvable(task):
        lacking = {call.tool for call in oracle} if gap == "missing_info" else ()
        return unsolvable_verdict(gap, turns, writes, single=single, lacking=lacking)
    malformed = next((reply.malformed for reply in turns if reply.malformed), None)
    if malformed:
        return failed_verdict(f"A reply is malformed: {malformed}.", readable=False)
    if gap == "user_answers":
        if early := premature(unanswered, writes, {oracle[0].tool}):
            return failed_verdict(f"It calls {early} before the user has given the {user.omitted}.")
        if not user.given:
            return failed_verdict(f"It does not ask for the {user.omitted}.")
    if not any(reply.calls for reply in turns):
        return failed_verdict("Nothing is called.", readable=user.given)
    calls = tuple(call for reply in turns for call in reply.calls)
    shown = cast("Sequence[str]", task.payload["tools"])
    executed = executed or execute(toolbox.world, shown, before, calls)
    wanted = toolbox.world.play([*before, *oracle])
    made = list(zip(calls, executed.outcomes, strict=False))
    extra = single and toolbox.counts_calls and len(calls) > len(oracle)
    place = difference(toolbox.comparable(wanted.state), toolbox.comparable(executed.state))
    problem = (
        (f"It calls more than it was asked to: {len(calls)} calls, not {len(oracle)}." if extra else None)
        or (f"The state differs at {place}." if place else None)
        or (
            _unreported(toolbox, oracle[0], wanted.outcomes[-1], made, turns[-1])
            if gap == "refused"
            else _unread(toolbox, wanted.outcomes[len(before) :], calls, executed.outcomes, task)
            or untraced(toolbox, oracle, calls, executed.outcomes)
            or _unanswered(task, turns[-1])
            or (_IS_REFUSED if toolbox.refusals and reports_refusal(turns[-1].words) else None)
        )
    )
    if problem is None:
        return Verdict(
            reward=1.0, success=True, explanation="The state is right, and all that was asked is there."
        )
    failed = next((o.error for o in executed.outcomes if o.error), None)
    verdict = failed_verdict(
        problem + (f" A call failed: {failed.rstrip('.')}." if failed else ""),
        readable=any(outcome.error is None for outcome in executed.outcomes),
    )
    if toolbox.settings.reward == "exact":
        return verdict
    valid = [call for call in calls if refusal(toolbox.world, shown, call) is None]
    earned = credit(oracle, valid, toolbox.world.tools)
    return replace(verdict, reward=earned, success=earned >= toolbox.settings.success_threshold)


def credit(wanted: Sequence[Call], made: Sequence[Call], tools: Mapping[str, Tool]) -> float:
    """Return the mean credit of the solution's calls, minus a cost per extra call, in [0, MAX_PARTIAL].

    Args:
        wanted: the calls of the solution.
        made: the valid calls of the rollout; each is matched with at most one call of the solution.
        tools: the tools by name.
    """
    scored = sorted(
        (-_of_call(tools[one.tool], one, other), i, j)
        for i, one in enumerate(wanted)
        for j, other in enumerate(made)
    )
    paired: dict[int, int] = {}
    earned = 0.0
    for score, i, j in scored:
        if score < 0 and i not in paired and j not in paired.values():
            paired[i] = j
            earned -= score
    extra = max(0, len(made) - len(wanted))
    return min(MAX_PARTIAL, max(0.0, earned / len(wanted) - EXTRA_CALL_COST * extra))


def _of_call(tool: Tool, wanted: Call, made: Call) -> float:
    """Return 1 for the same call, 0 for another tool, else 0.2 + 0.8 x the share of right arguments.

    An optional argument counts only if the two calls differ in it, or if the wanted value is not the default:
    omitting it earns nothing.
    """
    if made.tool != wanted.tool:
        return 0.0
    defaults = _defaults(tool)
    asked, given = {**defaults, **wanted.args}, {**defaults, **made.args}
    right = {name: _same(asked[name], given.get(name)) for name in tool.properties}
    counted = [
        name
        for name in tool.properties
        if name in tool.required or not right[name] or not _same(asked[name], defaults[name])
    ]
    share = sum(right[name] for name in counted) / len(counted) if counted else 1.0
    return NAME_CREDIT + (1 - NAME_CREDIT) * share


def _defaults(tool: Tool) -> dict[str, Json]:
    return {name: schema.get("default") for name, schema in tool.properties.items()}


def _same(one: Json, other: Json) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return caseless(one) == caseless(other)
    return is_equal(one, other)


def _until_end(read: Sequence[Reply], user: User) -> Iterator[Reply]:
    """Yield the replies up to the first one that is malformed, or has no calls and no answer of the user."""
    for reply in read:
        yield reply
        if not reply.calls and user.answer(reply) is None:
            return


def difference(wanted: Json, found: Json) -> str | None:
    """Return the first difference of two states in a few words, or None if they are equal."""
    for place, one, other in changed(wanted, found):
        if not other:
            return f"{place}, which is missing"
        said = f"is {_cut(other)}, not {_cut(one)}" if one else "should not be there"
        return f"{place or 'its value'}, which {said}"
    return None


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _unread(
    toolbox: Toolbox,
    wanted: Sequence[Outcome],
    calls: Sequence[Call],
    outcomes: Sequence[Outcome],
    task: Task,
) -> str | None:
    """Return a complaint if the rollout never obtained a result that the user asks to look up, else None.

    Results that a later call of the solution uses are not required: the end state shows that they were found.
    Where nothing of a result stays the same from one time to the next, the same call has to be made. Where an
    answer shows which item of a list was found, a call without some of the arguments does, too.
    """
    made = list(zip(calls, outcomes, strict=False))
    asked = calls_of(task.payload, "calls")
    for number in lookups(toolbox, task):
        call, outcome = asked[number], wanted[number]
        if not (
            is_obtained(toolbox, task, call, outcome, made)
            or (_asks_for_item(task, number) and _is_among(toolbox, task, call, outcome, made))
        ):
            return f"The result of {_cut(format_calls([call], 'python'))} was never obtained."
    return None


def _asks_for_item(task: Task, number: int) -> bool:
    """Whether a question of a task is about an item of a list in the result of a call."""
    questions = Program.model_validate(task.spec).questions
    return any(one.call == number and is_of_rows(one.path) for one in questions)


def _is_among(
    toolbox: Toolbox, task: Task, call: Call, wanted: Outcome, made: Iterable[tuple[Call, Outcome]]
) -> bool:
    """Whether a call of the same tool, about no other record, gave all items of the result of a call."""
    if toolbox.bundle.is_unsteady(call.tool):
        return False
    wider = (
        one.result
        for other, one in made
        if one.error is None and other.tool == call.tool and not _of_another(toolbox, task, call, other)
    )
    items, found = parsed_result(wanted.result), toolbox.bundle.found
    return any(has_items(found(call.tool, parsed_result(one)), found(call.tool, items)) for one in wider)


def untraced(
    toolbox: Toolbox, oracle: Iterable[Call], calls: Sequence[Call], outcomes: Sequence[Outcome]
) -> str | None:
    """Return a complaint if an argument that leaves no trace in any state has another value, else None.

    Each call of the solution with such an argument needs a call of its own, on the same records.
    """
    left = [one for one, outcome in zip(calls, outcomes, strict=False) if not is_refused(outcome, one.args)]
    for call in oracle:
        recipe = toolbox.graph.recipes.get(call.tool)
        if recipe is None or not recipe.writes or not recipe.unseen:
            continue
        fixed = [name for name in call.args if name in recipe.unseen or recipe.ways.get(name) != FRESH]
        alike = (
            one
            for one in left
            if one.tool == call.tool
            and all(name in one.args and _same(call.args[name], one.args[name]) for name in fixed)
        )
        if (made := next(alike, None)) is None:
            named = " and the ".join(name for name in recipe.unseen if name in call.args)
            return f"No call of {call.tool} has the {named} that was asked for."
        left.remove(made)
    return None


def lookups(toolbox: Toolbox, task: Task) -> list[int]:
    """Return the calls that only read, and whose results no later call of the solution uses, by number."""
    program = Program.model_validate(task.spec)
    means = {use.call for step in program.calls for use in step.uses}
    asked = enumerate(calls_of(task.payload, "calls"))
    return [n for n, one in asked if n not in means and not toolbox.graph.recipes[one.tool].writes]


def is_obtained(
    toolbox: Toolbox, task: Task, call: Call, wanted: Outcome, made: Iterable[tuple[Call, Outcome]]
) -> bool:
    """Return whether calls have given the result of one: calls of other tools, or of its own for the same.

    With further arguments, a call of its own may give more items.
    """
    good = [(one, outcome.result) for one, outcome in made if outcome.error is None]
    if toolbox.bundle.is_unsteady(call.tool):
        return any((one.tool, one.args) == (call.tool, call.args) for one, _ in good)
    wants = toolbox.bundle.found(call.tool, wanted.result)
    found = ((one, toolbox.bundle.found(call.tool, result)) for one, result in good)
    return any(
        (_adds_to(call, one) and has_items(result, wants))
        or (is_equal(result, wants) and not _of_another(toolbox, task, call, one))
        for one, result in found
    )


def _adds_to(call: Call, other: Call) -> bool:
    """Whether another call is the same with further arguments."""
    return call.tool == other.tool and call.args != other.args == {**other.args, **call.args}


def _of_another(toolbox: Toolbox, task: Task, call: Call, made: Call) -> bool:
    """Whether a call names another record, whose result may be the same by chance."""
    ways = toolbox.graph.recipes[call.tool].ways
    if made.tool != call.tool:
        recipe = toolbox.graph.recipes.get(made.tool)
        asked, named = _ids(call, ways), _ids(made, recipe.ways if recipe else {})
        held = toolbox.values(Program.model_validate(task.spec))
        return any(
            kind in named
            and ids.isdisjoint(named[kind])
            and not named[kind].isdisjoint(map(str, held.get(kind, ())))
            for kind, ids in asked.items()
        )
    if made.args == call.args:
        return False
    named = [name for name in call.args if name in made.args and (refers(name) or refers(ways.get(name, "")))]
    others = {name: str(made.args[name]) for name in named if str(made.args[name]) != str(call.args[name])}
    if not others:
        return False
    held = toolbox.values(Program.model_validate(task.spec))
    return any(text in map(str, held.get(ways.get(name, ""), ())) for name, text in others.items())


def _ids(call: Call, ways: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the ids that a call names, by the kind of record."""
    found: dict[str, set[str]] = {}
    for name, value in call.args.items():
        if (kind := ways.get(name, "")) and (refers(name) or refers(kind)):
            found.setdefault(kind, set()).add(str(value))
    return found


_IS_REFUSED = "It says that it was refused."


def _unreported(
    toolbox: Toolbox, asked: Call, refused: Outcome, made: Sequence[tuple[Call, Outcome]], last: Reply
) -> str | None:
    """Return a complaint if a call was not tried that the tool refuses, or the last reply does not say so.

    Other spellings of the arguments count if the tool refuses them in the same words.

    Args:
        toolbox: has the tools.
        asked: the call that the task asks for.
        refused: its outcome.
        made: the rollout's calls with their outcomes.
        last: the rollout's last reply.
    """
    defaults = _defaults(toolbox.world.tools[asked.tool])

    def is_it(call: Call, outcome: Outcome) -> bool:
        if call.tool != asked.tool or not is_refused(outcome, call.args):
            return False
        wanted, own = ({**defaults, **one.args} for one in (asked, call))
        is_same = all(_same(wanted.get(name), own[name]) for name in own)
        return own == wanted or (is_same and outcome.text == refused.text)

    if not any(is_it(call, outcome) for call, outcome in made):
        return f"What was asked for was not tried: {_cut(format_calls([asked], 'python'))}."
    is_said = not last.calls and reports_refusal(last.words)
    return None if is_said else "The last reply has no line `Refused: REASON`."


def _unanswered(task: Task, reply: Reply) -> str | None:
    """Return a complaint if the last reply lacks the line `Answer: VALUE` of an answer, or has others."""
    answers = cast("Sequence[Json]", task.payload["answers"])
    given = [] if reply.calls else answers_in(reply.words)
    is_other = answers_named(reply.words) > len(given)
    if len(given) > len(answers):
        given = distinct(given)
    if answers and (len(given) != len(answers) or is_other):
        return f"The last reply's number of lines `Answer: VALUE` is {len(given)}, not {len(answers)}."
    request = " ".join(one.content for one in task.messages if one.role == "user")
    questions = Program.model_validate(task.spec).questions
    for answer, line, asked in zip(answers, given, questions, strict=False):
        if not gives(line, answer, field_of(asked.path), request):
            return f"The answer is {_cut(json.dumps(answer, ensure_ascii=False))}, not {_cut(line)!r}."
    return None


UNKNOWN = "I cannot tell you that. Please ask for what you need."
"""The answer to a question that is not about the omitted value; the user gives it once."""


class User:
    """The user of one rollout. In most tasks the user says nothing after the request.

    Args:
        toolbox: the tools of the environment.
        task: the task of the rollout.
    """

    def __init__(self, toolbox: Toolbox, task: Task) -> None:
        self._answer = str(task.payload.get("user_answer", ""))
        self.given = False
        """Whether the user has given the omitted value."""
        self._puzzled = False
        if self._answer:
            program = Program.model_validate(task.spec)
            self._omits, self._tool = program.omits, toolbox.world.tools[program.calls[0].tool]

    @property
    def omitted(self) -> str:
        """The omitted value in words, such as `order id`."""
        return label(self._omits)

    def answer(self, reply: Reply) -> str | None:
        """Return what the user says after a reply without calls; None if the episode ends with the reply."""
        if not self._answer or self.given or reply.malformed:
            return None
        if asks_for(reply.words, self._tool, self._omits):
            self.given = True
            return self._answer
        if self._puzzled or not asks(reply.words):
            return None
        self._puzzled = True
        return UNKNOWN
