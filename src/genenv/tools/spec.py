"""The spec of a tool-use task: difficulty, the calls that solve it, and the questions to answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, JsonValue

Size = Literal[1, 2, 3, 4, 6, 8, 12, 16]
SIZES: tuple[Size, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many tools can be shown."""

AND, THEN = "+", ">"
"""Between the tools of a plan; `>`: the second one uses a value that the first one returned."""

Gap = Literal["none", "missing_info", "no_tool"]


class Use(BaseModel, frozen=True, extra="forbid"):
    """A value that an earlier call finds."""

    parameter: str
    """Of this call."""
    call: int = Field(ge=0)
    """Number of the earlier call, from 0 on."""
    path: tuple[str | int, ...] = Field(max_length=16)
    """Where it stands in its result."""


class Step(BaseModel, frozen=True, extra="forbid"):
    """One call."""

    tool: str
    args: dict[str, JsonValue]
    """Literal ones."""
    uses: tuple[Use, ...] = ()


class Question(BaseModel, frozen=True, extra="forbid"):
    """A value that the user wants to be told."""

    call: int = Field(ge=0)
    path: tuple[str | int, ...] = Field(max_length=16)


class Program(BaseModel, frozen=True, extra="forbid"):
    """A task before it is played. There are no words in it: the runtime writes them."""

    n_calls: int = Field(ge=1, le=8)
    chained: bool
    """A later call uses the result of an earlier one."""
    answer: bool
    """The user wants to be told something."""
    n_tools: Size
    """How many tools the agent is shown."""
    gap: Gap = "none"
    """Nothing solves it. missing_info: the user leaves out a value that the call needs. no_tool: the tool
    that is called is not shown. The right answer is to change nothing, and to say so."""
    calls: tuple[Step, ...] = Field(min_length=1, max_length=8)
    questions: tuple[Question, ...] = Field(default=(), max_length=4)
    before: tuple[Step, ...] = Field(default=(), max_length=8)
    """Calls that make the state in which the task begins; the agent does not see them."""


class ToolsParameters(BaseModel, frozen=True, extra="forbid"):
    """What a task is to be like; the rest is drawn."""

    n_calls: int = Field(ge=1, le=8)
    chained: bool
    answer: bool
    n_tools: Size
    gap: Gap = "none"
    tools: str
    """Names with `+` between them; `a>b` where b uses what a finds."""
