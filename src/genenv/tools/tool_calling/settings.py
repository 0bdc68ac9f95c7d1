"""Settings of the built-in apps."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from genenv.tools.settings import ToolsConfig

App = Literal[
    "bank", "calendar", "contacts", "convert", "email", "files", "home", "music", "notes", "shop", "trips"
]


class ToolCallingConfig(ToolsConfig, frozen=True):
    """Settings of the tool-calling environment."""

    apps: tuple[App, ...] = Field(default=get_args(App), min_length=3, strict=False)
    """The apps whose tools there are, three at least: no task asks for, or shows, a tool of another one."""
