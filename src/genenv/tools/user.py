"""The user of a rollout, who gives the value that a request omits when the agent asks for it."""

from __future__ import annotations

from genenv.tools.calls import Reply
from genenv.tools.language.wording import asks, asks_for, label
from genenv.tools.spec import Program
from genenv.tools.toolbox import Toolbox
from genenv.types import Task

UNKNOWN = "I cannot tell you that. Please ask for what you need."
"""The answer to a question that is not about the omitted value; the user gives it once."""


class User:
    """The user of one rollout. In most tasks the user says nothing after the request.

    Args:
        toolbox: the tools of the environment.
        task: the task of the rollout.
    """

    def __init__(self, toolbox: Toolbox, task: Task) -> None:
        self._answer = str(task.payload.get("user_answer", ""))
        self.given = False
        """Whether the user has given the omitted value."""
        self._puzzled = False
        if self._answer:
            program = Program.model_validate(task.spec)
            self._omits, self._tool = program.omits, toolbox.world.tools[program.calls[0].tool]

    @property
    def omitted(self) -> str:
        """The omitted value in words, such as `order id`."""
        return label(self._omits)

    def answer(self, reply: Reply) -> str | None:
        """Return what the user says after a reply without calls; None if the episode ends with the reply."""
        if not self._answer or self.given or reply.malformed:
            return None
        if asks_for(reply.words, self._tool, self._omits):
            self.given = True
            return self._answer
        if self._puzzled or not asks(reply.words):
            return None
        self._puzzled = True
        return UNKNOWN
