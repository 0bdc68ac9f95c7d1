"""Tool calling: the simulator writes calls and words, the runtime executes them, the agent must find them.

This module joins the parts: `build` (spec to task), `check` (replies to verdict), `audit` (the gate's own
checks), `prompting` (what the simulator is told), `grammar` (what it can write), `blanks` (what the runtime
fills in) and `seeds` (the base data).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.domains.base import Ask, Episode, OutOfTurns
from genenv.domains.common import OneQuestion, held_out_tasks, seeds_of
from genenv.domains.parameters import Options
from genenv.domains.tool_calling import parameters as by_parameters
from genenv.domains.tool_calling import seeds as base_data
from genenv.domains.tool_calling.audit import audit, random_replies
from genenv.domains.tool_calling.blanks import with_blanks
from genenv.domains.tool_calling.build import build, skills_of
from genenv.domains.tool_calling.calls import read_reply
from genenv.domains.tool_calling.check import check, perform, shown_tools
from genenv.domains.tool_calling.grammar import spec_schema
from genenv.domains.tool_calling.prompting import offered, simulator_messages
from genenv.domains.tool_calling.settings import ToolCallingConfig
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS
from genenv.domains.tool_calling.truth import start_world
from genenv.domains.tool_calling.worlds import today_of
from genenv.types import JsonObject, Message, Rejection, Seed, Task


class ToolCalling:
    """The tool-calling domain, with its settings."""

    name: ClassVar[str] = "tool_calling"
    spec: ClassVar[type[BaseModel]] = ToolSpec
    config: ClassVar[type[BaseModel]] = ToolCallingConfig
    parameters: ClassVar[type[BaseModel]] = by_parameters.ToolParameters

    # longer methods, each in a module of its own; their first argument is the domain
    simulator_messages = staticmethod(simulator_messages)
    build = build
    audit = audit
    check = check
    random_replies = random_replies

    def __init__(self, settings: ToolCallingConfig | None = None) -> None:
        self.settings = settings or ToolCallingConfig()

    def seeds(self) -> Sequence[Seed]:
        """The base data: 544 specs in a fixed order, less those of other apps.

        When the mode is single they come without dependent ones (44).
        """
        return seeds_of(self, self.playable(base_data.training_specs()), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only; they share no template and no value with the seeds.

        1,000 tasks, less those of other apps; without dependent ones when the mode is single.

        Raises:
            ValueError: a held-out spec is not a task; the base data is broken.
        """
        return list(_held_out(self.settings))

    @property
    def main_held_out(self) -> int:
        """The first lot of held-out tasks, 200 of them: what a measurement takes unasked."""
        return sum(1 for _ in self.playable(base_data.held_out_specs()[: base_data.N_MAIN]))

    def playable(self, specs: Iterable[tuple[str, ToolSpec]]) -> Iterator[tuple[str, ToolSpec]]:
        """Those of the apps there are; without dependent ones when the mode is single."""
        single, apps = self.settings.mode == "single", self.settings.apps
        return (
            (name, spec)
            for name, spec in specs
            if not (single and spec.dependent) and all(TOOLS[call.tool].app in apps for call in spec.calls)
        )

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The JSON schema under whose grammar the simulator varies a seed, with the tools it is told of."""
        return spec_schema([tool.name for tool in offered(seed)], chains=self.settings.mode != "single")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """A hand-written-quality spec that varies the seed, with blanks for its values in the instruction."""
        spec, today = ToolSpec.model_validate(seed.spec), today_of(seed.id)
        tools = {tool.name for tool in offered(seed)}
        varied = base_data.variation(spec, rng, today=today, tools=tools)
        return with_blanks(varied, today).model_dump(mode="json")

    # by parameters

    parameter_messages = staticmethod(by_parameters.messages)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`."""
        return by_parameters.options(
            seed, frozenset(self.settings.apps), chains=self.settings.mode != "single"
        )

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        return by_parameters.drawn(cast(by_parameters.ToolParameters, parameters), seed, rng)

    def episode(self, task: Task) -> Episode:
        """A fresh attempt."""
        tools = offered_tools(task) if self.settings.style == "native" else ()
        if task.payload["mode"] == "single":
            return OneQuestion(task, tools)
        return ToolEpisode(task, self.settings, tools)

    def steps(self, task: Task) -> int:
        """Calls that solve it, or that would if nothing were missing."""
        return int(str(task.spec["n_calls"]))

    def surface(self, task: Task) -> str:
        """The text by which tasks are compared for novelty: the instruction and the calls' skeleton."""
        spec = ToolSpec.model_validate(task.spec)
        skeleton = "; ".join(f"{call.tool}({', '.join(sorted(call.args))})" for call in spec.calls)
        return f"{spec.instruction}\n{skeleton}"


@functools.lru_cache(maxsize=4)
def _held_out(settings: ToolCallingConfig) -> tuple[Task, ...]:
    """Making them takes most of a second; a process may open many runs."""
    domain = ToolCalling(settings)
    return tuple(held_out_tasks(domain, domain.playable(base_data.held_out_specs())))


def offered_tools(task: Task) -> Sequence[JsonObject]:
    """The tools of a task in the form of the OpenAI chat API."""
    return [TOOLS[name].schema for name in shown_tools(task.payload)]


class ToolEpisode:
    """One attempt: a conversation with a world of its own."""

    def __init__(self, task: Task, settings: ToolCallingConfig, tools: Sequence[JsonObject] = ()) -> None:
        self._task, self.tools = task, tools
        self._settings = settings
        self.max_turns = settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the episode ends: at a reply without calls, or after `max_turns`."""
        messages: Sequence[Message] = self._task.messages
        world, shown = start_world(self._task.payload), shown_tools(self._task.payload)
        for _ in range(self.max_turns):
            reply = read_reply(await ask(messages), self._settings.style)
            if reply.malformed or not reply.calls:
                return
            outcomes = perform(world, shown, reply.calls)
            messages = [Message(role="tool", content=outcome.text) for outcome in outcomes]
        raise OutOfTurns
