"""Tool calling in eleven small apps: a bundle of tools that is included in the package.

The apps are plain Python (`apps/`). All other parts are data (`bundle/`): wordings, values that users state,
initial states, and the programs of the base data and of the held-out tasks. Base data and held-out tasks
share no wording, no initial state, no value except closed choices, and no pair of tools in one task.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal, cast, get_args

from pydantic import BaseModel, Field, ValidationError

from genenv.environments.common import caseless, held_out_tasks
from genenv.tools.bundle import Bundle
from genenv.tools.calls import format_calls, read_reply
from genenv.tools.check import calls_of, refusal
from genenv.tools.discover.recipes import Graph
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import LimitedWorld, Outcome, World
from genenv.tools.worlds.differences import changed
from genenv.tools.worlds.python import CALL_S
from genenv.types import Json, Task

App = Literal[
    "bank", "calendar", "contacts", "convert", "email", "files", "home", "music", "notes", "shop", "trips"
]


class ToolCallingConfig(ToolsConfig, frozen=True):
    """Settings of the tool-calling environment."""

    apps: tuple[App, ...] = Field(default=get_args(App), min_length=3, strict=False)
    """Apps whose tools are available, at least three. No task asks for or shows a tool of another app."""


BUNDLE = Path(__file__).parent / "bundle"
_MOST_CALLS, _MOST_CHANGES = 40, 20
"""Calls that are executed again, and changes of one that are shown."""
N_MAIN = 200
"""Number of held-out tasks in the main set, which an evaluation uses by default."""


class ToolCalling(Tools):
    """The tool-calling environment, with its settings."""

    name: ClassVar[str] = "tool_calling"
    config: ClassVar[type[BaseModel]] = ToolCallingConfig
    counts_calls: ClassVar[bool] = True
    """Otherwise calling `get_balance` for every account would answer a question about any of them."""

    def __init__(self, settings: ToolCallingConfig | None = None) -> None:
        self.settings = settings or ToolCallingConfig()
        self.bundle = _opened()

    @cached_property
    def _others(self) -> frozenset[str]:
        """The tools of apps that the settings leave out."""
        apps = self.settings.apps
        return frozenset(
            name for app, tools in self.bundle.about.groups.items() if app not in apps for name in tools
        )

    @cached_property
    def world(self) -> World:
        """The tools of the selected apps, ready to be called."""
        return LimitedWorld(_world(), self._others) if self._others else _world()

    @cached_property
    def graph(self) -> Graph:
        """The recipes and links of the selected apps' tools."""
        whole, others = self.bundle.graph, self._others
        return replace(
            whole,
            recipes={name: one for name, one in whole.recipes.items() if name not in others},
            links=tuple(one for one in whole.links if one.reader not in others and one.user not in others),
        )

    def comparable(self, state: Json) -> Json:
        """Return a state in which texts ignore case, spacing and a final full stop or exclamation mark."""
        return _loose(super().comparable(state))

    def held_out(self) -> Sequence[Task]:
        """Held-out tasks: 1,000, without tasks of other apps; in single mode without several-turn tasks."""
        return list(_held_out(self.settings))

    @property
    def main_held_out(self) -> int:
        """Number of held-out tasks in the main set (the first 200, if the settings allow them all)."""
        first = dict(list(self.bundle.held_out.items())[:N_MAIN])
        return len(self.playable(first))


def _loose(value: Json) -> Json:
    if isinstance(value, str):
        return caseless(value).rstrip(".!")
    if isinstance(value, list):
        return [_loose(one) for one in value]
    return {key: _loose(one) for key, one in value.items()} if isinstance(value, dict) else value


@functools.cache
def _opened() -> Bundle:
    """Return the bundle, which all environments share, as it is immutable."""
    return Bundle.open(BUNDLE)


@functools.cache
def _world() -> World:
    """Return the world, which all environments share, as it has no state between programs."""
    return _opened().world(CALL_S)


@functools.lru_cache(maxsize=4)
def _held_out(settings: ToolCallingConfig) -> tuple[Task, ...]:
    """Return the held-out tasks, cached because building them takes a second."""
    env = ToolCalling(settings)
    return tuple(held_out_tasks(env, env.playable(env.bundle.held_out)))


def replayed(
    settings: Mapping[str, object], payload: Json, replies: Sequence[str]
) -> list[tuple[str, str, list[tuple[str, str, str]]]] | None:
    """Execute the calls of a trajectory again, and return what each changed in the apps.

    Only apps of this package are executed, in this process; they have no effect outside of their own state.

    Args:
        settings: of a run, by dotted name.
        payload: of the task.
        replies: of the agent.

    Returns:
        Each call as text, its result, and the places that it changed, as `differences.changed` gives them.
        None if the run has another environment, or the payload is of another version.
    """
    if settings.get("environment.name") != ToolCalling.name:
        return None
    known = ToolCallingConfig.model_fields
    own = {name.removeprefix("environment."): value for name, value in settings.items()}
    try:
        env = ToolCalling(
            ToolCallingConfig.model_validate({name: own[name] for name in known if name in own})
        )
        given = cast("Mapping[str, Json]", payload)
        before, shown = calls_of(given, "before"), [str(name) for name in cast("list[Json]", given["tools"])]
    except (ValidationError, LookupError, TypeError):
        return None
    tools, starts = [*env.world.tools], env.bundle.about.starts
    drawn = [call for call in before if starts is None or call.tool != starts.tool]
    if not set(shown) <= set(tools) or any(refusal(env.world, tools, call) for call in drawn):
        return None
    read = [read_reply(reply, env.settings.style, env.known) for reply in replies]
    calls = [call for one in read if not one.malformed for call in one.calls]
    found, made = list[tuple[str, str, list[tuple[str, str, str]]]](), list(before)
    state = env.world.play(made).state
    for call in calls[:_MOST_CALLS]:
        outcome, after = Outcome(error=refusal(env.world, shown, call)), state
        if outcome.error is None:
            made.append(call)
            played = env.world.play(made)
            outcome, after = played.outcomes[-1], played.state
        places = islice(changed(state, after), _MOST_CHANGES)
        text = format_calls([call], env.settings.style)
        found.append((text, outcome.text, list(places)))
        state = after
    return found
