"""A bundle's tools with all that is known of them: recipes, wordings, and rules for comparing states.

Tasks are sampled, built, graded and audited with a `Toolbox`. Its subclass `Tools`, the environment, adds
base data and episodes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date as Day
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from genenv.environments.base import Options
from genenv.tools.bundle import Bundle
from genenv.tools.calls import Known
from genenv.tools.discover.recipes import Graph
from genenv.tools.discover.state_values import held_in, stands_at
from genenv.tools.generate.named_texts import dates_from
from genenv.tools.generate.plans import (
    Plan,
    ProgramSampler,
    Rules,
    plans,
    sizes_shown,
    today_in,
)
from genenv.tools.language.wording import (
    MEASURING_MANNERS,
    Manner,
    Request,
    RequestStyle,
    left_out,
    omittable,
    said,
)
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import UNSOLVABLE, Gap, Program, Use
from genenv.tools.worlds.base import Call, Played, Tool, World
from genenv.types import Json, JsonObject, Seed

_HELD_OUT_PARTS = 5
"""One program in this many, by a hash of its calls, is reserved for held-out tasks."""


class Toolbox:
    """A bundle's tools under one environment's settings; the base class of the environment `Tools`.

    Args:
        settings: see `ToolsConfig`.
        folder: the folder of the bundle.
    """

    name: ClassVar[str] = "tools"
    counts_calls: ClassVar[bool] = False
    """Whether a one-reply rollout fails if it makes more calls than the solution, even if they do no harm."""

    def __init__(self, settings: ToolsConfig | None = None, folder: Path | str = "") -> None:
        self.settings = settings or ToolsConfig()
        self.bundle = Bundle.open(Path(folder))

    @cached_property
    def world(self) -> World:
        """The tools, ready to be called."""
        return self.bundle.world(self.settings.call_s)

    @cached_property
    def graph(self) -> Graph:
        """The recipes and links of the tools, without the hidden tool that sets the initial state."""
        graph, starts = self.bundle.graph, self.bundle.about.starts
        if starts is None or starts.tool not in graph.recipes:
            return graph
        kept = {tool: one for tool, one in graph.recipes.items() if tool != starts.tool}
        links = tuple(one for one in graph.links if starts.tool not in (one.reader, one.user))
        return replace(graph, recipes=kept, links=links)

    @property
    def wordings(self) -> Mapping[str, Sequence[str]]:
        """The wordings of each tool in training tasks."""
        return self.bundle.wordings

    def wordings_of(self, *, measuring: bool) -> Mapping[str, Sequence[str]]:
        """Return the wordings of each tool; held-out tasks (`measuring`) may have separate wordings."""
        other = self.bundle.measuring_wordings if measuring else None
        return self.wordings if other is None else other

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are tasks that lack a tool or a value, or whose call is refused."""
        return self.user_answers or self.refusals or self.lacks

    @cached_property
    def lacks(self) -> bool:
        """Whether there are tasks that lack a tool, or a value that nobody gives later."""
        is_left_out = any(left_out(tool, self.wordings) for tool in self.world.tools.values())
        return bool(self.bundle.about.alike) or is_left_out

    @cached_property
    def asks(self) -> bool:
        """Whether there can be tasks that ask for values in results."""
        return self.settings.mode != "single" and any(one.told for one in self.graph.recipes.values())

    @property
    def user_answers(self) -> bool:
        """Whether there are tasks in which the user gives a value when the agent asks for it."""
        return (
            self.bundle.about.user_answers and self.settings.user_answers and self.settings.mode != "single"
        )

    @property
    def refusals(self) -> bool:
        """Whether there are tasks whose call the tool refuses."""
        return self.bundle.about.refusals and self.settings.refusals and self.settings.mode != "single"

    def is_for_measuring(self, program: Program) -> bool:
        """Whether a program is reserved for held-out tasks, by its initial state or by its calls."""
        starts = self.bundle.about.starts
        if starts is None:
            known = self._known_sides.get(_calls_of(program, in_order=True))
            return is_for_measuring(program) if known is None else known
        state = starts.state_of(program)
        return state is not None and state in starts.states(measuring=True)

    @cached_property
    def _known_sides(self) -> dict[str, bool]:
        """Whether a program of the bundle is a held-out task, by its calls: bundles keep their split."""
        base = {_calls_of(one, in_order=True): False for one in self.bundle.base.values()}
        return base | {_calls_of(one, in_order=True): True for one in self.bundle.held_out.values()}

    @cached_property
    def kept_texts(self) -> frozenset[str]:
        """Texts that users state only in held-out tasks."""
        measuring, training = (
            {text for texts in spoken_values.kinds(None).values() for text in texts if isinstance(text, str)}
            for spoken_values in (self.bundle.measuring_spoken_values, self.bundle.spoken_values)
        )
        return frozenset(measuring - training)

    @property
    def beginning(self) -> tuple[Call, ...]:
        """Calls that set a default initial state if no program selects one: the first state of the bundle."""
        starts = self.bundle.about.starts
        return (starts.call(0),) if starts else ()

    def dates(self) -> AbstractContextManager[None]:
        """Return a context in which made-up dates are the bundle's own."""
        return dates_from(self.bundle.about.first_day)

    def today(self, before: Program | Sequence[Call]) -> Day | None:
        """Return the date in the state at a program's start or after some calls; None if none is known."""
        name = self.bundle.about.today
        if not name:
            return None
        played = self.begun(before) if isinstance(before, Program) else self.world.play(before)
        return today_in(played.state, name)

    def begun(self, program: Program) -> Played:
        """Execute the calls that set up a program's initial state; return their outcomes and the state."""
        return self.world.play([Call(tool=one.tool, args=dict(one.args)) for one in program.before])

    def values(self, program: Program) -> Mapping[str, list[Json]]:
        """Return the values that arguments can take when a program begins, by kind (state and users)."""
        separate = bool(self.bundle.measuring_spoken_values.values)
        measuring = separate and self.is_for_measuring(program)
        return self.values_in(self.begun(program).state, measuring=measuring)

    def values_in(self, state: Json, *, measuring: bool = False) -> Mapping[str, list[Json]]:
        """Return the same in a state, with what users say in held-out tasks (`measuring`) or in training."""
        bundle = self.bundle
        spoken_values = bundle.measuring_spoken_values if measuring else bundle.spoken_values
        held = held_in(state, (one.ways for one in self.graph.recipes.values()))
        return {**held, **spoken_values.kinds(today_in(state, bundle.about.today))}

    def speech(self, program: Program, *, measuring: bool = False) -> RequestStyle:
        """Return how the request for a program is worded."""
        bundle, today, spoken_values = self.bundle, self.today(program), self.bundle.spoken_values
        wordings = self.wordings_of(measuring=measuring)
        manner = Manner(
            quoted=bundle.about.quoted and not program.request,
            **(MEASURING_MANNERS if wordings is not self.wordings else {}),
        )

        def in_words(tool: str, name: str, value: Json, form: str) -> Sequence[str]:
            return spoken_values.in_words(self.graph.recipes[tool].ways.get(name, ""), value, form, today)

        def usual(reader: str, user: str, use: Use) -> bool:
            return any(
                (link.reader, link.user, link.parameter) == (reader, user, use.parameter)
                and stands_at(use.path, link.kind)
                for link in self.graph.links
            )

        return RequestStyle(wordings=wordings, manner=manner, in_words=in_words, usual=usual)

    def said(self, program: Program, rng: random.Random, *, measuring: bool = False) -> Request:
        """Return the user's request for a program."""
        if program.request:
            return Request(text=program.request, implied=tuple(() for _ in program.calls))
        return said(self.world.tools, program.requested, self.speech(program, measuring=measuring), rng)

    @cached_property
    def known(self) -> Known:
        """The tools, with their parameter names in order."""
        return {name: list(tool.properties) for name, tool in self.world.tools.items()}

    def comparable(self, state: Json) -> Json:
        """Return a state without the values that the bundle declares volatile."""
        return self.bundle.comparable(state)

    def dumped(self, program: Program) -> JsonObject:
        """Return a program as a spec, without `gap` if no task has one, and without empty fields.

        Arguments are in the order of the tool's parameters, in which grammars have them.
        """
        unused = {"gap": not self.has_gaps, "omits": not program.omits, "request": not program.request}
        dumped = program.model_dump(mode="json", exclude={name for name, one in unused.items() if one})
        for step in (*dumped["before"], *dumped["calls"]):
            args, tool = step["args"], self.world.tools.get(step["tool"])
            step["args"] = {
                name: args[name] for name in (tool.properties if tool else ()) if name in args
            } | args
        return dumped

    def tools_in_prompt(self, seed: Seed) -> Mapping[str, Tool]:
        """Return the tools in a simulator's prompt: those of the seed's groups, or all tools."""
        groups = self.bundle.about.groups
        used = {step.tool for step in Program.model_validate(seed.spec).calls}
        near = {one for tools in groups.values() if not used.isdisjoint(tools) for one in tools}
        tools = self.world.tools
        return {name: tool for name, tool in tools.items() if name in near | used} if groups else tools

    def options(self, subject: str) -> Options:
        """Return all parameters of tasks that call a given tool, their subject."""
        if subject not in self._known_options:
            self._known_options[subject] = _options(self, subject)
        return self._known_options[subject]

    @cached_property
    def schemas_of_calls(self) -> dict[tuple[str, ...], JsonObject]:
        """Schemas of programs that were built already, by the tools that the programs may call."""
        return {}

    @cached_property
    def _known_options(self) -> dict[str, Options]:
        return {}

    def walker(self, *, measuring: bool = False, learning: random.Random | None = None) -> ProgramSampler:
        """Return a sampler of programs for training or for held-out tasks (`measuring`).

        With the random numbers of all programs (`learning`) it keeps what earlier ones showed.
        """
        wordings = self.wordings_of(measuring=measuring)
        return ProgramSampler(
            self.world, self.graph, self.bundle, wordings, measuring=measuring, learning=learning
        )


def _calls_of(program: Program, *, in_order: bool = False) -> str:
    """Return the calls of a program as text, the same in whatever order they are made unless `in_order`."""
    steps = (*program.before, *program.calls) if program.gap in UNSOLVABLE else program.calls
    dumped = [step.model_dump(mode="json") for step in steps]
    if not in_order:
        dumped.sort(key=lambda step: json.dumps(step, sort_keys=True))
    return json.dumps(dumped, sort_keys=True)


def is_for_measuring(program: Program) -> bool:
    """Whether a program is reserved for held-out tasks, by a hash of its calls, in whatever order.

    Tasks without a solution have few distinct calls, so their hash also covers the calls before the task.
    """
    text = _calls_of(program)
    return hashlib.sha256(text.encode()).digest()[0] % _HELD_OUT_PARTS == 0


def _options(toolbox: Toolbox, subject: str) -> Options:
    graph, settings, about = toolbox.graph, toolbox.settings, toolbox.bundle.about
    found: list[dict[str, Sequence[Json]]] = []
    single, n_tools = settings.mode == "single", len(toolbox.world.tools)
    rules = Rules(most_calls=settings.most_calls, together=about.together)
    for (n, chained), written in plans(graph, subject, random.Random(subject), rules).items():
        last = {plan: graph.recipes[Plan.read(plan).tools[-1]] for plan in written}
        tellers = [plan for plan in written if last[plan].told]
        # What a task looks up last it asks for; else a reply might say anything of it.
        silent = [plan for plan in written if last[plan].writes or plan not in tellers or single]
        for answer, fitting in ((False, silent), (True, tellers)):
            if single and (chained or answer):
                continue
            shape: dict[str, Sequence[Json]] = {
                "n_calls": (n,),
                "chained": (chained,),
                "answer": (answer,),
                "n_tools": sizes_shown(n_tools, n, about.shown),
            }
            gaps = _gaps(toolbox, subject) if n == 1 and not answer else ()
            if gaps and fitting != written:
                found.append({**shape, "gap": gaps, "tools": written})
                gaps = ()
            if toolbox.has_gaps:
                shape["gap"] = ("none", *gaps)
            if fitting:
                found.append({**shape, "tools": fitting})
            if n == 1 and not answer and toolbox.refusals and graph.recipes[subject].writes:
                found.append({**shape, "gap": ("refused",), "tools": written})
            if toolbox.user_answers and n == 1 + chained:  # nothing can be done before the answer
                first = {plan: toolbox.world.tools[Plan.read(plan).tools[0]] for plan in fitting}
                asking = [plan for plan, tool in first.items() if omittable(tool, toolbox.wordings)]
                found += [{**shape, "gap": ("user_answers",), "tools": asking}] if asking else []
    return tuple(found)


def _gaps(toolbox: Toolbox, subject: str) -> Sequence[Gap]:
    """Return the gaps that a task of one call of a tool can have."""
    withheld: Sequence[Gap] = ("no_tool",) if toolbox.bundle.about.alike else ()
    incomplete = left_out(toolbox.world.tools[subject], toolbox.wordings)
    return (*withheld, *(("missing_info",) if incomplete else ()))
