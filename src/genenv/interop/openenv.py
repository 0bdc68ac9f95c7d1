# pyright: basic, reportMissingImports=false
"""Exported tasks behind an OpenEnv server: each client has a session, which runs one rollout at a time.

Needs the package `openenv` (or `openenv-core` 0.3). It requires another version of `mcp` than genenv's extra
`mcp`, so install it in a separate environment with genenv without extras.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State
from pydantic import Field

from genenv.errors import UsageError
from genenv.http.guard import Access, Guard
from genenv.interop.exported import Exported, Session
from genenv.interop.imported.environment import HELD_OUT_SEED

if TYPE_CHECKING:
    from fastapi import FastAPI


class ChatAction(Action):
    """One reply of the agent, which a client sends to `step`: text and tool calls in OpenAI's format."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatObservation(Observation):
    """The environment's messages in OpenAI's format; after `reset` also the tools that the agent may call."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    choices: list[str] = Field(default_factory=list)
    """The allowed next replies; empty if any text is allowed."""
    task_id: str = ""
    explanation: str = ""
    """The verdict's explanation, when the rollout has ended."""


class TaskEnvironment(Environment[ChatAction, ChatObservation, State]):
    """An OpenEnv environment whose episodes are rollouts of the tasks of an exported environment.

    Args:
        exported: the environment, shared by all sessions.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        self._exported = exported
        self._session: Session | None = None
        self._name = ""
        self._state = State(step_count=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        task_id: str | None = None,
        task: str | None = None,
        **others: Any,  # noqa: ANN401 - as the base class has it
    ) -> ChatObservation:
        """Start a rollout of `task`, of the row `task_id`, of the row number `seed`, or of a random row.

        If no split is named, seeds from 10^9 on are of held-out rows, as genenv's own clients take them.
        """
        del others
        self._name = ""
        if task is None:
            held_out = seed is not None and seed >= HELD_OUT_SEED and bool(self._exported.rows("held_out"))
            named = split or ("held_out" if held_out else "train")
            row = self._exported.row(
                named, task_id, lambda count: random.randrange(count) if seed is None else seed % count
            )
            task, self._name = str(row["task"]), str(row["id"])
        self._session = self._exported.session(task)
        self._state = State(episode_id=episode_id, step_count=0)
        return self._observed(tools=list(self._session.tools))

    def step(
        self,
        action: ChatAction,
        timeout_s: float | None = None,
        **others: Any,  # noqa: ANN401 - as above
    ) -> ChatObservation:
        """Send a reply and return the environment's answer, at the end with the verdict's reward."""
        del timeout_s, others
        self._running().send(action.content, action.tool_calls)
        self._state.step_count += 1
        return self._observed()

    @property
    def state(self) -> State:
        """Return the state, which counts the replies."""
        return self._state

    def _running(self) -> Session:
        if self._session is None:
            raise UsageError("no attempt has begun; reset comes before step")
        return self._session

    def _observed(self, tools: list[Any] | None = None) -> ChatObservation:
        session = self._running()
        verdict = session.verdict() if session.done else None
        return ChatObservation(
            messages=session.chat,
            tools=tools or [],
            choices=session.choices,
            task_id=self._name,
            done=session.done,
            reward=None if verdict is None else verdict.reward,
            explanation="" if verdict is None else verdict.explanation,
        )


def app(
    folder: str | Path,
    *,
    sessions: int = 64,
    timeout_s: float | None = 3600.0,
    access: Access = Access(),  # noqa: B008 - frozen
) -> FastAPI:
    """Return the server's ASGI application, for `uvicorn MODULE:app`.

    Args:
        folder: the folder of an exported environment.
        sessions: the most clients at a time.
        timeout_s: seconds without a step after which a session ends; None: never.
        access: the key that clients need, and the host names by which they may address the server in addition
            to loopback and the address they have reached.
    """
    made = partial(TaskEnvironment, Exported(Path(folder)))
    limits = ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=timeout_s)
    application = create_fastapi_app(made, ChatAction, ChatObservation, concurrency_config=limits)
    application.add_middleware(Guard, access=access)
    return application
