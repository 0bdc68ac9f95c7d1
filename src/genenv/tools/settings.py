"""Settings of an environment that is a bundle of tools."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from genenv.settings import Settings

Style = Literal["python", "json", "native"]


class ToolsConfig(Settings, frozen=True):
    """Settings of an environment made of your own tools: `[environment] name = "path/to/bundle"`."""

    mode: Literal["auto", "single", "multi"] = "auto"
    """auto: tasks whose calls use no earlier result and that ask for no answer take one reply; all other
    tasks take several turns. single: only the one-reply tasks. multi: all tasks take several turns."""
    style: Style = "python"
    """Format of tool calls. `python` is compact (small models); `json` is the Hermes and Qwen form; the
    prompt explains both. `native` is the model's own format, and its chat template lists the tools."""
    user_answers: bool = True
    """Include the tasks in which the user omits a value and gives it when asked, if the bundle has such
    tasks. All of its tasks then take several turns."""
    refusals: bool = True
    """Include the tasks whose call the tool refuses, if the bundle has such tasks. All of its tasks then take
    several turns."""
    reward: Literal["exact", "soft"] = "exact"
    """exact: 1 or 0. soft: partial credit below 1 for calls that are similar to those of the solution."""
    success_threshold: float = Field(default=1.0, ge=0.01, le=1)
    """With the soft reward, a rollout is a success if its reward is at least this value, in (0, 1]."""
    max_turns: int = Field(default=6, ge=2, le=32)
    """Maximum number of agent replies in a task that takes several turns."""
    descriptions: bool = True
    """Describe each tool in one sentence; if off, the agent sees only names and parameters."""
    most_calls: int = Field(default=3, ge=1, le=8)
    """Maximum number of calls in the solution of a task."""
    call_s: float = Field(default=5.0, ge=0.01, le=600)
    """Time limit of one tool call in seconds; a call that exceeds it fails."""
