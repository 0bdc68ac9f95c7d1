"""Tasks that a model writes for a bundle's tools: the calls that solve a task, and what a user says.

Nothing that the model says is believed, and nothing of it is run but calls of the tools. Each program is
executed, each request goes through the gate, and in a new conversation the model must solve the task from the
request alone (the round trip).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from pydantic import BaseModel, Field, JsonValue, ValidationError

from genenv.environments.common import Refused
from genenv.errors import RolloutError
from genenv.evaluation.held_out import Conversation, Limits
from genenv.progress import Stage
from genenv.seeding import generator, stream
from genenv.texts import tallied
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import is_refused, parsed_result, succeeded
from genenv.tools.discover.state_values import single_paths
from genenv.tools.environment import Tools
from genenv.tools.generate.plans import can_be_told, sizes_shown, step_of
from genenv.tools.language.model_wordings import Model
from genenv.tools.language.said import states
from genenv.tools.language.wording import is_documented
from genenv.tools.language.words import SpokenValues
from genenv.tools.spec import Program, Question, Size, Use
from genenv.tools.worlds.base import Call, Outcome, World
from genenv.tools.worlds.differences import changed
from genenv.types import Json, RejectReason, Task

ROUND_TRIP = "round_trip"
"""The reason for refusing a task that the model does not solve from its request."""
NOT_NEEDED = "not needed"
"""The reason for leaving out a task of a side that has enough."""
_EACH = 8
"""Tasks that one prompt asks for."""
_MOST_BARREN = 4
"""Prompts in a row of which no task passes, after which the writing ends."""
_STATE_CHARS, _RECORDS, _TEXT_CHARS = 6000, 5, 200
"""Of the excerpt of the state in a prompt: all of it, the items of a list or table, and a text."""
_SCHEMA_CHARS = 2000
_SETUPS = 8
"""Start states in which an example of a tool is looked for."""
_MOST_CHANGES = 3
"""Changes of a call that a prompt shows."""
_TOOLS_EACH = 3
"""Tools that a prompt asks to use above all: those that were named least so far."""
_SHOWN_REQUESTS = 8
"""Requests that passed before, which a prompt shows so that others are written."""
_TOKENS_EACH = 320
_LIMITS = Limits(max_new_tokens=1024, context_tokens=1 << 20, timeout_s=3600.0)
"""Of a round trip. Each request of it ends after `endpoint.timeout_s`, too."""
_MOST_CHARS, _MOST_ERRORS = 200_000, 1000
"""Of a reply that is read."""


async def _proposed(model: Model, prompt: str, number: int) -> list[Proposal]:
    """Return the tasks in a model's answer to the prompt with a number, which seeds its sampling.

    Raises:
        RolloutError: it gives no answer.
    """
    return proposals(await model.answer(prompt, _TOKENS_EACH * _EACH, "tasks", number))[: 2 * _EACH]


def written_values(world: World, names: Sequence[str], model: Model) -> SpokenValues:
    """Return argument values with which tools succeed that no rule finds a way to call.

    Args:
        world: the tools.
        names: those that never succeeded.
        model: writes programs of calls; they are executed.

    Returns:
        Texts and numbers by parameter.

    Raises:
        RolloutError: the model gives no answer.
    """
    found: dict[str, list[JsonValue]] = {}
    prompt = writing_prompt(world, (), names, most_calls=3)
    for proposal in model.runner.run(_proposed(model, prompt, 0)):
        calls = [
            Call(tool=one.tool, args=cast("dict[str, Json]", one.args))
            for one in proposal.calls
            if (tool := world.tools.get(one.tool)) is not None and tool.problem(one.args) is None
        ]
        for call, outcome in zip(calls, world.play(calls, watch=True).outcomes, strict=True):
            if call.tool in names and succeeded(outcome, writes=outcome.changed, args=call.args):
                for name, value in call.args.items():
                    if isinstance(value, str | int | float) and value not in found.setdefault(name, []):
                        found[name].append(value)
    return SpokenValues(values={name: tuple(values) for name, values in found.items()})


class ProposedCall(BaseModel, frozen=True):
    """A call as the model writes it."""

    tool: str
    args: dict[str, JsonValue] = {}


class Proposal(BaseModel, frozen=True):
    """A task as the model writes it."""

    request: str = Field(min_length=1, max_length=2000)
    calls: tuple[ProposedCall, ...] = Field(min_length=1, max_length=8)
    asks: str | None = None
    """The field of the last result that the user asks for."""


def proposals(reply: str) -> list[Proposal]:
    """Return the tasks in a reply: JSON objects, one a line or in a list, whatever stands between them."""
    text, decoder = reply[:_MOST_CHARS], json.JSONDecoder()
    found: list[Proposal] = []
    place, errors = text.find("{"), 0
    while place >= 0 and errors < _MOST_ERRORS:
        try:
            value, end = decoder.raw_decode(text, place)
            found.append(Proposal.model_validate(value))
            place = text.find("{", end)
        except (ValidationError, ValueError, RecursionError):  # an object around the tasks, or no JSON
            place, errors = text.find("{", place + 1), errors + 1
    return found


def writing_prompt(
    world: World,
    before: Sequence[Call],
    tools: Sequence[str],
    most_calls: int,
    passed: Sequence[str] = (),
    examples: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the prompt that asks for tasks.

    Args:
        world: the tools, all of which it describes.
        before: calls that set up the state in which each task begins.
        tools: names of the tools that the tasks should call.
        most_calls: maximum number of calls of a task.
        passed: requests of earlier tasks.
        examples: what a call of a tool did, by tool.
    """
    described = list[str]()
    for tool in world.tools.values():
        shown = {"tool": tool.name, "description": tool.description, "args": tool.properties}
        described.append(json.dumps(shown, ensure_ascii=False)[:_SCHEMA_CHARS])
        if tool.name in examples:
            described.append(f"  For example: {examples[tool.name]}")
    state = json.dumps(_excerpt(world.play(before).state), ensure_ascii=False)[:_STATE_CHARS]
    return "\n".join(
        [
            "Users ask an assistant for things. It has these tools:",
            *described,
            "",
            "An excerpt of the records, as they are before each task:",
            state,
            "",
            f"Write {_EACH} tasks, each as one line of JSON:",
            '{"request": "...", "calls": [{"tool": "...", "args": {...}}], "asks": null}',
            "request: what a user says, in plain words, in a sentence or two. It has each value that the "
            "calls need, written exactly as in args, except a value that the call just before finds. It has "
            "no name of a tool or a parameter.",
            f"calls: 1 to {most_calls} calls that do exactly what the request says, no call more. They "
            "succeed on the records as they are.",
            "asks: if the user wants to be told a value, the name of its field in the last call's result; "
            "the request asks for it, and for no other value, without saying it. Otherwise null, and the "
            "request does not ask to be told anything: something is done, or looked up.",
            f"Use above all: {', '.join(tools)}.",
            *(["Write others than these:", *passed] if passed else []),
        ]
    )


def example_calls(env: Tools, explorer: Explorer, rng: random.Random) -> dict[str, str]:
    """Return a call of each tool with its result and what it changed, in words, as names may mislead."""
    found = dict[str, str]()
    for name, recipe in env.graph.recipes.items():
        for number in range(_SETUPS):
            before = (*env.beginning, *(explorer.setup() if number else ()))
            call = explorer.attempt(recipe, before, rng)
            if call is not None:
                old, played = env.world.play(before).state, env.world.play([*before, call])
                result = _cut(json.dumps(played.outcomes[-1].result, ensure_ascii=False))
                changes = [
                    f"{place} from {_cut(one) or 'nothing'} to {_cut(other) or 'nothing'}"
                    for place, one, other in itertools.islice(changed(old, played.state), _MOST_CHANGES)
                ]
                effect = f"; it changes {', '.join(changes)}" if changes else ""
                found[name] = (
                    f"{_cut(json.dumps(dict(call.args), ensure_ascii=False))} gives {result}{effect}"
                )
                break
    return found


def with_examples(task: Task, world: World, examples: Mapping[str, str]) -> Task:
    """Return a task that shows what a call did of each of its tools whose documentation says nothing.

    Without it, whoever solves the task knows less of such a tool than the model that wrote the task.
    """
    shown = [name for name in cast("Sequence[str]", task.payload["tools"]) if name in examples]
    lines = [f"{name}: {examples[name]}" for name in shown if not is_documented(world.tools[name])]
    if not lines:
        return task
    system, *others = task.messages
    told = "\n".join([system.content, "", "Calls of before, for example:", *lines])
    return replace(task, messages=(replace(system, content=told), *others))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}..."


def _excerpt(value: Json) -> Json:
    """The beginning of each table, list and text of a state."""
    if isinstance(value, Mapping):
        return {
            name: _excerpt(one)
            for name, one in list(value.items())[: max(_RECORDS, 24 // max(1, len(value)))]
        }
    if isinstance(value, list):
        return [_excerpt(one) for one in value[:_RECORDS]]
    return value[:_TEXT_CHARS] if isinstance(value, str) else value


def program_of(env: Tools, before: Sequence[Call], proposal: Proposal, rng: random.Random) -> Program:
    """Return the program of a proposed task. What its request does not state, earlier calls must find.

    Args:
        env: the environment.
        before: calls that set up the state in which the task begins.
        proposal: what the model wrote.
        rng: draws how many tools the task shows.

    Raises:
        Refused: a call cannot be made or fails, or an argument comes from nowhere.
    """
    calls = [Call(tool=one.tool, args=cast("dict[str, Json]", one.args)) for one in proposal.calls]
    for call in calls:
        tool = env.world.tools.get(call.tool)
        if tool is None or call.tool not in env.graph.recipes:
            raise Refused(RejectReason.SCHEMA, f"there is no tool {call.tool!r} that can be called")
        if problem := tool.problem(call.args):
            raise Refused(RejectReason.SCHEMA, problem.rstrip("."))
    outcomes = env.world.play([*before, *calls]).outcomes[len(before) :]
    for call, outcome in zip(calls, outcomes, strict=True):
        if is_refused(outcome, call.args):
            said = outcome.error or outcome.text
            raise Refused(RejectReason.EXECUTION, f"{call.tool} fails: {said[:200].rstrip('.')}")
    steps = [
        step_of(call, *_uses(proposal.request, call, number, outcomes)) for number, call in enumerate(calls)
    ]
    questions = _question(proposal.asks, outcomes) if proposal.asks else ()
    return Program(
        n_calls=len(calls),
        chained=any(step.uses for step in steps),
        answer=bool(questions),
        n_tools=cast(Size, rng.choice(sizes_shown(len(env.world.tools), len(calls), env.bundle.about.shown))),
        calls=tuple(steps),
        questions=questions,
        before=tuple(step_of(call) for call in before),
        request=proposal.request,
    )


def _uses(request: str, call: Call, number: int, outcomes: Sequence[Outcome]) -> Iterator[Use]:
    """Yield the arguments that a request does not state and the call before finds."""
    if number == 0:
        return
    paths = single_paths(parsed_result(outcomes[number - 1].result)).values()
    for name, value in call.args.items():
        if isinstance(value, str | int | float) and not states(request, value):
            for path, found in paths:
                if found == value and isinstance(found, type(value)):
                    yield Use(parameter=name, call=number - 1, path=path)
                    break


def _question(field: str, outcomes: Sequence[Outcome]) -> tuple[Question, ...]:
    found = single_paths(parsed_result(outcomes[-1].result)).values()
    paths = [path for path, value in found if can_be_told(value, set()) and (not path or path[-1] == field)]
    if len(paths) != 1:
        raise Refused(RejectReason.INCONSISTENT, f"the last result has not one value {field!r} to ask for")
    return (Question(call=len(outcomes) - 1, path=paths[0]),)


Judge = Callable[[Program], Task | str]
"""Builds the task of a program and runs the gate: the task, or the reason for refusing it."""


class TaskWriting:
    """Has a model write tasks for the tools of a bundle.

    Args:
        env: the bundle's environment. Its style of calls is the one of the round trip.
        model: writes the tasks, and solves them in the round trip.
        judge: builds the task of a program and runs the gate.
        is_over: returns whether the time is over.
    """

    def __init__(self, env: Tools, model: Model, judge: Judge, is_over: Callable[[], bool]) -> None:
        self._env, self._model, self._seed = env, model, model.seed
        self._judge, self._is_over = judge, is_over
        self._free = asyncio.Semaphore(model.assistant.concurrency(many_turns=True))
        self._passed: list[str] = []
        self._prompts = 0
        self._explorer = Explorer.of(env.world, env.graph, generator(self._seed, "start states"))
        self._examples = example_calls(env, self._explorer, generator(self._seed, "examples"))
        self.read = 0
        """Tasks that the model wrote."""
        self.refused = Counter[str]()
        """Tasks that were refused, by reason."""
        self.problem: str | None = None
        """Why the model stopped answering, if it did."""

    @property
    def said(self) -> str:
        """What came of it, in a sentence."""
        refused = f"; left out: {tallied(self.refused)}" if self.refused else ""
        ended = f"; the model stopped answering: {self.problem}" if self.problem else ""
        kept = f"{len(self._passed)} of {self.read} tasks that {self._model.name} wrote were kept"
        return f"{kept}{refused}{ended}."

    def write(self, wanted: Mapping[bool, int], kept: Mapping[bool, list[Program]], stage: Stage) -> None:
        """Add programs with requests that pass, for training (False) and for held-out tasks (True).

        Ends when there are enough, when nothing passes several times in a row, when the model stops, or when
        the time is over. What passed is kept also if the user interrupts it.
        """
        self._model.runner.run(self._write(wanted, kept, stage))

    async def _write(
        self, wanted: Mapping[bool, int], kept: Mapping[bool, list[Program]], stage: Stage
    ) -> None:
        used = Counter[str]()
        barren = 0
        while any(len(kept[side]) < number for side, number in wanted.items()):
            if barren >= _MOST_BARREN or self._is_over():
                break
            names = sorted(self._env.graph.recipes, key=lambda name: (used[name], name))[:_TOOLS_EACH]
            used.update(names)
            try:
                tasks = self._needed(await self._judged(names), wanted, kept)
                solved = await asyncio.gather(*(self._is_solved(task) for _, task in tasks))
            except RolloutError as error:
                self.problem = str(error)
                break
            barren += 1
            for (program, _), good in zip(tasks, solved, strict=True):
                if not good:
                    self.refused[ROUND_TRIP] += 1
                    continue
                kept[self._env.is_for_measuring(program)].append(program)
                self._passed.append(program.request)
                barren = 0
                stage(0, 1)

    def _needed(
        self,
        tasks: Sequence[tuple[Program, Task]],
        wanted: Mapping[bool, int],
        kept: Mapping[bool, Sequence[Program]],
    ) -> list[tuple[Program, Task]]:
        """Return the tasks of the sides that have too few, as many as each lacks."""
        room = {side: number - len(kept[side]) for side, number in wanted.items()}
        found: list[tuple[Program, Task]] = []
        for program, task in tasks:
            side = self._env.is_for_measuring(program)
            room[side] -= 1
            if room[side] >= 0:
                found.append((program, task))
            else:
                self.refused[NOT_NEEDED] += 1
        return found

    async def _judged(self, names: Sequence[str]) -> list[tuple[Program, Task]]:
        found: list[tuple[Program, Task]] = []
        before = self._beginning()
        for proposal in await self._proposed(names, before):
            self.read += 1
            try:
                rng = generator(self._seed, "tools shown", self.read)
                program = program_of(self._env, before, proposal, rng)
            except Refused as error:
                self.refused[error.rejection.reason] += 1
                continue
            task = self._judge(program)
            if isinstance(task, Task):
                found.append((program, task))
            else:
                self.refused[task] += 1
        return found

    def _beginning(self) -> tuple[Call, ...]:
        """Return calls that set up a start state: by turns the bundle's own, and one with more records."""
        more = self._explorer.setup() if self._prompts % 2 else ()
        return (*self._env.beginning, *more)

    async def _proposed(self, names: Sequence[str], before: Sequence[Call]) -> list[Proposal]:
        """Return the tasks that the model writes for some tools, in the state after some calls.

        Raises:
            RolloutError: it gives no answer.
        """
        self._prompts += 1
        env, passed = self._env, self._passed[-_SHOWN_REQUESTS:]
        prompt = writing_prompt(env.world, before, names, env.settings.most_calls, passed, self._examples)
        async with self._free:
            return await _proposed(self._model, prompt, self._prompts)

    async def _is_solved(self, task: Task) -> bool:
        """Whether the model solves a task in a new conversation.

        Raises:
            RolloutError: it gives no answer.
        """
        async with self._free:
            talk = self._model.assistant.talk(stream(self._seed, ROUND_TRIP, task.id), many_turns=True)
            conversation = Conversation(talk, _LIMITS)
            await conversation.run(self._env.episode(with_examples(task, self._env.world, self._examples)))
        return not conversation.cut and self._env.check(task, conversation.replies).success
