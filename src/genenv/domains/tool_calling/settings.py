"""Settings of the tool-calling domain."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from genenv.config.base import Settings

Style = Literal["python", "json", "native"]
App = Literal[
    "bank", "calendar", "contacts", "convert", "email", "files", "home", "music", "notes", "shop", "trips"
]


class ToolCallingConfig(Settings, frozen=True):
    """Settings of the tool-calling domain."""

    apps: tuple[App, ...] = Field(default=get_args(App), min_length=3, strict=False)
    """The apps whose tools there are, three at least: no task asks for, or shows, a tool of another one."""
    mode: Literal["auto", "single", "multi"] = "auto"
    """auto: dependent tasks are played over several turns, others in one reply. single: no dependent tasks,
    not even among held-out ones. multi: all are played over several turns and checked by the final state."""
    style: Style = "python"
    """How calls are written: `python` is compact (small models), `json` is the Hermes and Qwen form, both as
    the prompt says; `native` is the model's own form, and its chat template describes the tools."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: partial credit below 1 for right names and arguments."""
    success_threshold: float = Field(default=1.0, ge=0.01, le=1)
    """With the soft reward, an attempt counts as a success from this reward on, in (0, 1]."""
    max_turns: int = Field(default=6, ge=3, le=32)
    """Replies the agent gets in a task over several turns, which may need three."""
    descriptions: bool = True
    """Describe each tool in a few words; off, the agent sees names and parameters only. Native tools always
    come with their descriptions."""
