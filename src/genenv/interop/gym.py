# pyright: basic, reportMissingImports=false
"""Exported tasks as a Gymnasium environment with text actions and observations. Needs `gymnasium`.

An action is the agent's reply as text. It writes tool calls as `<tool_call>{"name": ..., "arguments":
{...}}</tool_call>`, which the first observation explains. An observation is the text of the environment's
messages, which are also in `info`.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.spaces import Space

from genenv.errors import UsageError
from genenv.interop.exported import CALLS, Exported, Session

LONGEST = 1_000_000
"""The most characters of an observation or an action."""


class AnyText(Space[str]):
    """A space of texts of any characters; samples are printable.

    Gymnasium's own `Text` knows its characters and reserves shared memory for the longest text. With this one
    `make_vec(..., vectorization_mode="async")` asks for `vector_kwargs={"shared_memory": False}`.
    """

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def __eq__(self, other: object) -> bool:
        """Two spaces of texts are the same."""
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def contains(self, x: object) -> bool:
        """Return whether `x` is a text of at most `LONGEST` characters."""
        return isinstance(x, str) and len(x) <= LONGEST

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ANN401 - as the base class
        """Return a line of random printable characters."""
        places = self.np_random.integers(0, len(string.printable), size=self.np_random.integers(0, 80))
        return "".join(string.printable[place] for place in places)


class TaskEnvironment(gymnasium.Env[str, str]):
    """A Gymnasium environment whose episodes are rollouts of the tasks of an exported environment.

    Args:
        folder: the folder of the exported environment.
        split: `train` or `held_out`.
        render_mode: stored only; there are no render modes.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, folder: str | Path, split: str = "train", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = AnyText(), AnyText()
        self._exported = Exported(Path(folder))
        self._split = split
        self._exported.rows(split)  # which refuses a split that there is not
        self._session: Session | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a rollout of the task `options["task_id"]`, or else of a task drawn with the seed."""
        super().reset(seed=seed)
        wanted = (options or {}).get("task_id")
        row = self._exported.row(self._split, wanted, lambda count: int(self.np_random.integers(count)))
        self._session = self._exported.session(str(row["task"]))
        return self._observed(row["id"])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send a reply; the reward is 0 until the rollout ends, then the verdict's reward."""
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
        """End the processes that run the environment's tools."""
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
    """Register an environment for `gymnasium.make("genenv/NAME-v0")` and return that id.

    A name that is registered already stands for the new folder from then on.

    Args:
        name: the NAME in the id.
        folder: the folder of the exported environment.
    """
    known = f"genenv/{name}-v0"
    kwargs = {"folder": str(folder)}
    if known not in gymnasium.registry or gymnasium.registry[known].kwargs != kwargs:
        gymnasium.registry.pop(known, None)  # `register` warns of an id that it has
        gymnasium.register(id=known, entry_point=f"{__name__}:TaskEnvironment", kwargs=kwargs)
    return known
