"""Tool calling in eleven small apps: a bundle of tools that is included in the package.

The apps are plain Python (`apps/`). All other parts are data (`bundle/`): wordings, values that users state,
initial states, and the programs of the base data and of the held-out tasks. Base data and held-out tasks
share no wording, no initial state, no value except closed choices, and no pair of tools in one task.
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
    """Apps whose tools are available, at least three. No task asks for or shows a tool of another app."""


BUNDLE = Path(__file__).parent / "bundle"
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
