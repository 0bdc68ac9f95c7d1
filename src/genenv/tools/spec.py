"""The spec of a tool-use task: its difficulty, the calls that solve it, and the questions to answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, JsonValue

Size = Literal[1, 2, 3, 4, 6, 8, 12, 16]
SIZES: tuple[Size, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
"""Allowed numbers of tools that a task shows to the agent."""

AND, THEN = "+", ">"
"""Separators between the tools of a plan. After `>`, a tool uses a value that the tool before it returned."""

Gap = Literal["none", "missing_info", "no_tool", "user_answers", "refused"]
UNSOLVABLE: tuple[Gap, ...] = ("missing_info", "no_tool")
"""The gaps of tasks that have no solution."""


class Use(BaseModel, frozen=True, extra="forbid"):
    """A reference to a value in the result of an earlier call, which a later call takes as an argument."""

    parameter: str
    """The parameter of the later call that takes the value."""
    call: int = Field(ge=0)
    """Index of the earlier call in the program, from 0 on."""
    path: tuple[str | int, ...] = Field(max_length=16)
    """Path of the value in the result of the earlier call."""


class Step(BaseModel, frozen=True, extra="forbid"):
    """One tool call of a program, with literal arguments and references to earlier results (`uses`)."""

    tool: str
    args: dict[str, JsonValue]
    """Literal arguments by parameter name."""
    uses: tuple[Use, ...] = ()


class Question(BaseModel, frozen=True, extra="forbid"):
    """A value in the result of a call that the agent has to state in its last reply."""

    call: int = Field(ge=0)
    path: tuple[str | int, ...] = Field(max_length=16)


class Program(BaseModel, frozen=True, extra="forbid"):
    """The spec of a task: the calls that solve it. Rules write the user's request, unless it has one."""

    n_calls: int = Field(ge=1, le=8)
    chained: bool
    """Whether a later call uses the result of an earlier one."""
    answer: bool
    """Whether the user asks for an answer."""
    n_tools: Size
    """Number of tools that the agent is shown."""
    gap: Gap = "none"
    """What the task lacks. none: nothing. missing_info: the user omits a value that the call needs. no_tool:
    the called tool is not shown. Such a task has no solution: the right reply changes nothing and says so.
    user_answers: the user omits a value at first, and gives it when the agent asks for it. refused: the tool
    refuses the call in this state. The right rollout makes the call, changes nothing, and says so."""
    omits: str = Field(default="", max_length=200)
    """With user_answers: the argument of the first call that the request omits; else empty."""
    calls: tuple[Step, ...] = Field(min_length=1, max_length=8)
    questions: tuple[Question, ...] = Field(default=(), max_length=4)
    before: tuple[Step, ...] = Field(default=(), max_length=8)
    """Calls that set up the initial state of the task; the agent does not see them."""
    request: str = Field(default="", max_length=2000)
    """The user's request, if a model wrote it; empty: it is made of the wordings of the tools."""

    @property
    def requested(self) -> Program:
        """The program as the request states it: without the value that the user gives later."""
        if not self.omits:
            return self
        first = self.calls[0]
        args = {name: value for name, value in first.args.items() if name != self.omits}
        return self.model_copy(update={"calls": (first.model_copy(update={"args": args}), *self.calls[1:])})


class ToolsParameters(BaseModel, frozen=True, extra="forbid"):
    """Difficulty parameters of a task; a program that fits them is sampled at random."""

    n_calls: int = Field(ge=1, le=8)
    chained: bool
    answer: bool
    n_tools: Size
    gap: Gap = "none"
    tools: str
    """Tool names joined by `+`, or by `>` if the second tool uses a value that the first one returns."""
