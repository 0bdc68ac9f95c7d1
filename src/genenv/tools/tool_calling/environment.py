"""Tool calling in eleven small apps: a bundle of tools like any other, which comes along.

The apps are plain Python (`apps/`), all else is data (`bundle/`): how they are asked for, what people say, in
which states a day begins, and the programs of the base data and of the held-out tasks, which share no value
but closed choices, no wording, no state and no two tools that come together in one task.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import BaseModel, Field

from genenv.environments.common import caseless, held_out_tasks
from genenv.tools.bundle import Bundle
from genenv.tools.discover.recipes import Graph
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import LimitedWorld, World
from genenv.tools.worlds.python import CALL_S
from genenv.types import Json, Task

App = Literal[
    "bank", "calendar", "contacts", "convert", "email", "files", "home", "music", "notes", "shop", "trips"
]


class ToolCallingConfig(ToolsConfig, frozen=True):
    """Settings of the tool-calling environment."""

    apps: tuple[App, ...] = Field(default=get_args(App), min_length=3, strict=False)
    """The apps whose tools there are, three at least: no task asks for, or shows, a tool of another one."""


BUNDLE = Path(__file__).parent / "bundle"
N_MAIN = 200
"""Held-out tasks of a lot."""


class ToolCalling(Tools):
    """The tool-calling environment, with its settings."""

    name: ClassVar[str] = "tool_calling"
    config: ClassVar[type[BaseModel]] = ToolCallingConfig
    counts_calls: ClassVar[bool] = True
    """Else to call `get_balance` for every account there is would answer whichever was asked for."""

    def __init__(self, settings: ToolCallingConfig | None = None) -> None:
        self.settings = settings or ToolCallingConfig()
        self.bundle = _opened()

    @cached_property
    def _others(self) -> frozenset[str]:
        """The tools of apps that are not there."""
        apps = self.settings.apps
        return frozenset(
            name for app, tools in self.bundle.about.groups.items() if app not in apps for name in tools
        )

    @cached_property
    def world(self) -> World:
        """The tools of the apps there are, ready to be called."""
        return LimitedWorld(_world(), self._others) if self._others else _world()

    @cached_property
    def graph(self) -> Graph:
        """How they can be called."""
        whole, others = self.bundle.graph, self._others
        return replace(
            whole,
            recipes={name: one for name, one in whole.recipes.items() if name not in others},
            links=tuple(one for one in whole.links if one.reader not in others and one.user not in others),
        )

    def comparable(self, state: Json) -> Json:
        """A state in which texts are the same whatever their case, spaces and last full stop."""
        return _loose(super().comparable(state))

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only: 1,000, less those of other apps; in single mode without chained ones."""
        return list(_held_out(self.settings))

    @property
    def main_held_out(self) -> int:
        """The first lot of held-out tasks, 200 of them: what a measurement takes unasked."""
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
    """One for all: it is not changed."""
    return Bundle.open(BUNDLE)


@functools.cache
def _world() -> World:
    """One for all: it has no state of its own."""
    return _opened().world(CALL_S)


@functools.lru_cache(maxsize=4)
def _held_out(settings: ToolCallingConfig) -> tuple[Task, ...]:
    """Making them takes a second; a process may open many runs."""
    env = ToolCalling(settings)
    return tuple(held_out_tasks(env, env.playable(env.bundle.held_out)))
