"""Settings of an environment that is a bundle of tools."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import Settings

Style = Literal["python", "json", "native"]


class ToolsConfig(Settings, frozen=True):
    """Settings of your own tools: `[environment] name = "path/to/bundle"`."""

    mode: Literal["auto", "single", "multi"] = "auto"
    """auto: tasks whose calls use no result and that ask for no answer are played in one reply, others over
    several turns. single: the former alone. multi: all are played over several turns."""
    style: Style = "python"
    """How calls are written: `python` is compact (small models), `json` is the Hermes and Qwen form, both as
    the prompt says; `native` is the model's own form, and its chat template describes the tools."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: partial credit below 1 for calls that are near those of the solution."""
    success_threshold: float = Field(default=1.0, ge=0.01, le=1)
    """With the soft reward, an attempt counts as a success from this reward on, in (0, 1]."""
    max_turns: int = Field(default=6, ge=2, le=32)
    """Replies the agent gets in a task over several turns."""
    descriptions: bool = True
    """Describe each tool in a sentence; off, the agent sees names and parameters only."""
    most_calls: int = Field(default=3, ge=1, le=8)
    """So many calls at most solve a task."""
    call_s: float = Field(default=5.0, ge=0.01, le=600)
    """How long one call may take, in seconds; after that it fails."""
