# pyright: basic, reportMissingImports=false
"""Tasks as a Gymnasium environment: text in, text out. Needs the package `gymnasium`.

An action is a reply of the agent as text, calls in it written as `<tool_call>{"name": ..., "arguments":
{...}}</tool_call>`, as the first observation says; an observation is the text of what is said then. Both are
in `info` as messages.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from genenv.errors import UsageError
from genenv.interop.exported import CALLS, Exported, Session

LONGEST = 1_000_000
"""Characters of an observation or an action."""


class AnyText(Text):
    """Text of any characters; what is drawn at random is printable."""

    def __init__(self) -> None:
        super().__init__(max_length=LONGEST, min_length=0, charset=string.printable)

    def contains(self, x: object) -> bool:
        """Whether it is text that is not too long."""
        return isinstance(x, str) and len(x) <= LONGEST

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ANN401 - as the base class
        """A line of random characters."""
        length = int(self.np_random.integers(0, 80))
        return super().sample((length, None)) if length else ""


class TaskEnvironment(gymnasium.Env[str, str]):
    """Rollouts of the tasks of an exported environment.

    Args:
        folder: of the environment.
        split: `train` or `held_out`.
        render_mode: there is none.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, folder: str | Path, split: str = "train", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = AnyText(), AnyText()
        self._exported = Exported(Path(folder))
        self._rows = self._exported.rows(split)
        self._session: Session | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a rollout: at the task of `options["task_id"]`, else at one drawn by the seed."""
        super().reset(seed=seed)
        wanted = (options or {}).get("task_id")
        listed = self._rows if wanted is None else [row for row in self._rows if row["id"] == wanted]
        if not listed:
            raise UsageError(f"there is no task {wanted!r} in this split")
        row = listed[int(self.np_random.integers(len(listed)))]
        self._session = self._exported.session(str(row["task"]))
        return self._observed(row["id"])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send a reply; the reward comes at the end, and is the verdict's."""
        session = self._running()
        if session.done:
            raise UsageError("the attempt has ended; call reset")
        session.send(action)
        verdict = session.verdict() if session.done else None
        text, info = self._observed(None)
        if verdict is not None:
            info |= {"success": verdict.success, "explanation": verdict.explanation}
        return text, 0.0 if verdict is None else float(verdict.reward), session.done, False, info

    def close(self) -> None:
        """End the processes that hold its tools."""
        self._exported.close()

    def _running(self) -> Session:
        if self._session is None:
            raise UsageError("no attempt has begun; call reset")
        return self._session

    def _observed(self, name: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - JSON
        session = self._running()
        told = {"messages": session.chat, "tools": list(session.tools), "choices": session.choices}
        info = copy.deepcopy(told) | ({} if name is None else {"task_id": name})
        tools = [json.dumps(tool) for tool in session.tools] if name is not None else []
        offered = [CALLS, *tools] if tools else []
        return "\n\n".join([*(str(one["content"]) for one in session.chat), *offered]), info


def register(name: str, folder: str | Path) -> str:
    """Make `gymnasium.make("genenv/NAME-v0")` work; returns the id.

    Args:
        name: of the environment.
        folder: of the environment.
    """
    known = f"genenv/{name}-v0"
    if known not in gymnasium.registry:
        gymnasium.register(
            id=known, entry_point=f"{__name__}:TaskEnvironment", kwargs={"folder": str(folder)}
        )
    return known
