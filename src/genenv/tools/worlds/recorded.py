"""Remote services: responses are recorded while a bundle is made and replayed in training.

The service's state is not visible. The set of writing calls represents it: two episodes that wrote the same
end in the same state. Calls that read are recorded before any write; after a write in an episode they return
an error.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel, JsonValue

from genenv.files import read_model
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import FRESH, Graph, Recipe, succeeded
from genenv.tools.generate.fresh_values import is_closed
from genenv.tools.worlds.base import (
    Call,
    LimitedWorld,
    LoadedWorld,
    Outcome,
    Played,
    Tool,
    World,
    usable,
)
from genenv.types import Json, JsonObject

FILE = "recorded.json"
"""File name of the recording in a bundle's folder `files`."""
_NOT_RECORDED = "This call was not recorded when the bundle was made, and the service is not asked now."
_AFTER = "What the service finds after something was written was not recorded; look before you write."
MOST_SENT, MOST_WRITTEN = 2000, 200
"""Maximum number of different calls that are sent, in total and to tools that may write."""
_EACH, _IN_VAIN = 60, 20
"""Target number of successful calls per tool, and calls in a row without a new one that end the search."""
_EXAMPLES = 64

_SILENT, _SILENT_IN_A_ROW = 3, 6
"""Unanswered calls of one tool, or in a row of any tools, after which the tool or the service is given up."""

Send = Callable[[Call], Outcome]
"""Sends a call to the service and returns the outcome; raises `NoAnswer` if there is no answer."""


class NoAnswer(Exception):
    """A service did not answer a call. The message is a sentence's end: `it took too long`."""


class Ended(NoAnswer):
    """The service will not answer any further call."""


class RecordedTool(BaseModel, frozen=True, extra="forbid"):
    """A tool as the service listed it, for storage."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue]
    writes: bool | None = None


class Answer(BaseModel, frozen=True, extra="forbid"):
    """A recorded call with its result or error."""

    tool: str
    args: dict[str, JsonValue]
    result: JsonValue = None
    error: str | None = None


class Recording(BaseModel, frozen=True, extra="forbid"):
    """The tools of a service and its recorded answers, as a bundle stores them."""

    tools: tuple[RecordedTool, ...]
    left_out: dict[str, str] = {}
    """Operations that cannot be tools, with the reasons."""
    answers: tuple[Answer, ...] = ()
    ended: str = ""
    """Why recording ended before all calls were sent; empty if it was complete."""

    def save(self, files: Path) -> None:
        """Write the recording into a bundle's folder."""
        files.mkdir(parents=True)
        (files / FILE).write_text(self.model_dump_json(indent=1, exclude_defaults=True), encoding="utf-8")

    @classmethod
    def load(cls, files: Path) -> Recording:
        """Read a recording from a bundle's folder.

        Raises:
            DataError: the file is missing or not valid.
        """
        return read_model(files / FILE, cls)


class RecordedWorld(LoadedWorld):
    """A world that replays recorded responses.

    Args:
        recording: the tools and answers.
    """

    def __init__(self, recording: Recording) -> None:
        self.ended = recording.ended
        """See `Recording.ended`."""
        self._answers = {
            _key(Call(tool=one.tool, args=one.args)): Outcome(result=one.result, error=one.error)
            for one in recording.answers
        }
        self.tools, left_out = usable({one.name: partial(Tool, **dict(one)) for one in recording.tools})
        self.left_out = {**recording.left_out, **left_out}

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        del watch
        return _played(calls, self.tools, self._answer)

    def _answer(self, call: Call) -> Outcome:
        return self._answers.get(_key(call)) or Outcome(error=_NOT_RECORDED)


class Recorder(World):
    """A world that sends calls to the service, each different call once, and keeps the answers.

    Args:
        tools: the tools by name.
        send: sends a call to the service.
        most: maximum number of calls that are sent.
    """

    def __init__(self, tools: Mapping[str, Tool], send: Send, most: int = MOST_SENT) -> None:
        self.tools = tools
        self._send, self._most = send, most
        self.sent: dict[str, tuple[Call, Outcome]] = {}
        """The calls that were answered, with their outcomes."""
        self.share = most // max(1, len(tools))
        """Maximum number of calls of each tool that are sent."""
        self.ended = ""
        """Why no more calls are sent; empty while calls are sent."""
        self.silent: dict[str, str] = {}
        """Tools with unanswered calls, and the reason."""
        self._written = 0
        self._unsure: set[str] = set()
        """Keys of unanswered calls that may have written; these are not sent again."""
        self._asked, self._unanswered = Counter[str](), Counter[str]()
        self._in_a_row = 0

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`."""
        del watch
        return _played(calls, self.tools, self._answer)

    def _answer(self, call: Call) -> Outcome:
        key = _key(call)
        if key in self.sent:
            return self.sent[key][1]
        writes = may_write(self.tools[call.tool])
        too_late = self._written >= MOST_WRITTEN if writes else self._written > 0
        given_up = self._unanswered[call.tool] >= _SILENT or key in self._unsure
        if self._left <= 0:
            self.ended = self.ended or f"{self._most} requests were sent, as many as are allowed"
        if too_late or given_up or self.ended or self._asked[call.tool] >= self.share:
            return Outcome(error=_NOT_RECORDED)
        self._written += writes
        self._asked[call.tool] += 1
        try:
            outcome = self._send(call)
        except Ended as error:
            self.ended = str(error)
            return Outcome(error=_NOT_RECORDED)
        except NoAnswer as error:
            self._unsure |= {key} if writes else set()
            return self._no_answer(call.tool, str(error))
        self._in_a_row = self._unanswered[call.tool] = 0
        self.sent[key] = call, outcome
        return outcome

    def _no_answer(self, tool: str, why: str) -> Outcome:
        self._in_a_row += 1
        self._unanswered[tool] += 1
        self.silent[tool] = why
        if self._in_a_row >= _SILENT_IN_A_ROW:
            self.ended = f"it did not answer {self._in_a_row} calls in a row: {why}"
        return Outcome(error=f"The service does not answer: {why}.")

    @property
    def _left(self) -> int:
        return self._most - self._asked.total()

    def share_the_rest(self) -> None:
        """Give tools that read and used up their share the calls that other tools do not need."""
        hungry = sum(asked >= self.share for asked in self._asked.values())
        kept = min(MOST_WRITTEN, self.share * sum(map(may_write, self.tools.values())))
        self.share += max(0, self._left - kept) // max(1, hungry)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers in the form that is stored."""
        return tuple(
            Answer.model_validate({**call.json, "result": outcome.result, "error": outcome.error})
            for call, outcome in self.sent.values()
        )


def record(
    tools: Mapping[str, Tool],
    send: Send,
    left_out: Mapping[str, str],
    rng: random.Random,
    most: int = MOST_SENT,
) -> Recording:
    """Explore how a service's tools can be called, and record their answers.

    Args:
        tools: the tools that may be called.
        send: sends a call to the service.
        left_out: operations that cannot be tools, with the reasons.
        rng: draws calls.
        most: maximum number of calls that are sent.
    """
    recorder = Recorder(tools, send, most)
    writers = [name for name, one in tools.items() if may_write(one)]
    graph = Graph()
    if len(writers) < len(tools):
        graph = _try_all(LimitedWorld(recorder, writers), rng)
        # explore again as in replay: with the recorded values as examples, and new values from the answers
        recorder.tools = _as_recorded(tools, graph, recorder.answers)
        recorder.share_the_rest()
        graph = _try_all(LimitedWorld(recorder, writers), rng)
    if writers:
        graph = _try_all(recorder, rng)
    answers = recorder.answers
    answered = {one.tool for one in answers}
    silent = {name: recorder.silent.get(name) or recorder.ended for name in tools if name not in answered}
    silent = {name: f"the service did not answer its calls: {why}" for name, why in silent.items() if why}
    kept = {name: one for name, one in tools.items() if name not in silent}
    stored = _as_recorded(kept, graph, answers).values()
    return Recording(
        tools=tuple(RecordedTool.model_validate(one, from_attributes=True) for one in stored),
        left_out={**left_out, **silent},
        answers=answers,
        ended=recorder.ended,
    )


def _try_all(world: World, rng: random.Random) -> Graph:
    """Explore the tools, and call each with as many different values as tasks may need."""
    explorer = Explorer(world, rng)
    explorer.prefers_records = False
    graph = explorer.explore()
    for recipe in graph.recipes.values():
        found: set[str] = set()
        in_vain = 0
        while len(found) < _EACH and in_vain < _IN_VAIN:
            call = explorer.attempt(recipe, (), rng)
            new = call is not None and _key(call) not in found
            in_vain = 0 if new else in_vain + 1
            found |= {_key(call)} if call is not None else set()
    for link in graph.links:
        for _ in range(_IN_VAIN):
            explorer.linked(link, (), rng)
    return graph


def may_write(tool: Tool) -> bool:
    """Whether a tool counts as one that writes: it is not declared read-only."""
    return tool.writes is not False


def _played(calls: Sequence[Call], tools: Mapping[str, Tool], answer: Send) -> Played:
    outcomes: list[Outcome] = []
    written: list[str] = []
    for call in calls:
        writes = may_write(tools[call.tool])
        outcome = answer(call) if writes or not written else Outcome(error=_AFTER)
        if writes and outcome.error is None:
            written.append(_key(call))
            outcome = Outcome(result=outcome.result, changed=True)
        outcomes.append(outcome)
    state: JsonObject = {"written": sorted(written)} if written else {}
    return Played(outcomes=tuple(outcomes), state=state)


def _key(call: Call) -> str:
    return json.dumps([call.tool, dict(call.args)], sort_keys=True, ensure_ascii=False)


def _as_recorded(tools: Mapping[str, Tool], graph: Graph, answers: Sequence[Answer]) -> dict[str, Tool]:
    """Return the tools with recorded values as examples of fresh arguments; others have no answer."""
    return {
        name: _with_examples(one, graph.recipes.get(name), [made for made in answers if made.tool == name])
        for name, one in tools.items()
    }


def _with_examples(tool: Tool, recipe: Recipe | None, answers: Sequence[Answer]) -> Tool:
    mine = [
        one.args for one in answers if succeeded(Outcome(result=one.result, error=one.error), writes=False)
    ]
    shown: dict[str, Json] = {}
    for name, schema in tool.properties.items():
        values = {repr(args[name]): args[name] for args in mine if name in args}
        drawn = recipe is not None and recipe.ways.get(name) == FRESH and not is_closed(tool, name)
        shown[name] = {**schema, "examples": [*values.values()][:_EXAMPLES]} if values and drawn else schema
    return replace(tool, parameters={**tool.parameters, "properties": shown})
