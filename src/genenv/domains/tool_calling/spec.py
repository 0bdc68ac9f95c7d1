"""What the simulator writes for a tool-calling task: difficulty first, then the calls, then the words.

The order matters twice. The simulator decides how hard the task is before it writes it, so the reward can
move that choice; and the calls come before the instruction, so that the words describe an answer that
is already fixed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Call(BaseModel, frozen=True, extra="forbid"):
    """One tool call with literal arguments."""

    tool: str
    args: dict[str, str | int | float | bool]
    """By parameter name. A string `$1.flight_id` stands for a field of the first call's result, `$1.0.id` for
    an item of a list; only allowed in dependent specs."""


class ToolSpec(BaseModel, frozen=True, extra="forbid"):
    """A tool-calling task, before it is executed."""

    n_calls: Literal[1, 2, 3]
    """How many calls solve it (how many it would take, where `gap` is not `none`)."""
    dependent: bool
    """A later call uses the result of an earlier one: such a task is played over several turns."""
    n_tools: Literal[2, 3, 4, 6, 8]
    """How many tools the agent is shown."""
    phrasing: Literal["explicit", "relative", "indirect"]
    """explicit: values stand in the instruction as they go into the call. relative: dates, times or amounts
    are given relative to something ("tomorrow", "half an hour", "a dozen"). indirect: the wish is stated, not
    the action; that is a matter of style, which the gate does not check."""
    gap: Literal["none", "missing_info", "no_tool"]
    """missing_info: one required argument is not given (it is absent from `calls`). no_tool: the fitting
    tool (named in `calls`) is not among the tools shown. In both cases the right answer is to
    call nothing and say so."""
    calls: tuple[Call, ...] = Field(min_length=1, max_length=3)
    instruction: str = Field(min_length=8, max_length=400)
    """What the user says."""
