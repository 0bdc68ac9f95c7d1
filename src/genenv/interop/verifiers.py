# pyright: basic, reportMissingImports=false
"""Exported tasks as a verifiers taskset, and the harness that runs the environment's episodes turn by turn.

Needs the package `verifiers` (0.4 or later). It requires another version of `mcp` than genenv's extra `mcp`,
so install it with genenv without extras.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

from genenv.interop.exported import Exported
from genenv.types import JsonObject


class TaskData(vf.TaskData):
    """A task's data: a row of the exported environment."""

    task: str


class TaskState(vf.State):
    """The result of a rollout, from which `GenenvTask` takes reward and metric."""

    reward: float = 0.0
    success: bool = False
    replies: int = 0


class TaskConfig(vf.TaskConfig):
    """The task has no settings."""


class GenenvTask(vf.Task[TaskData, TaskState, TaskConfig]):
    """A task, graded by the environment's check."""

    @property
    def key(self) -> str:
        """Return the task's id."""
        return str(self.data.id)

    @vf.reward(weight=1.0)
    async def verdict(self, trace: vf.Trace) -> float:
        """Return the verdict's reward, in [0, 1]."""
        return float(trace.state.reward)

    @vf.metric
    async def success(self, trace: vf.Trace) -> float:
        """Return 1.0 if the task was solved, else 0.0."""
        return float(trace.state.success)


class TasksetConfig(vf.TasksetConfig):
    """Settings of the taskset: its split."""

    split: str = "train"
    """train or held_out."""
    task: TaskConfig = TaskConfig()


class HarnessConfig(vf.HarnessConfig):
    """The harness has no settings."""


def data_of(row: JsonObject) -> TaskData:
    """Return a row as verifiers' task data. Rollouts use the episode's messages, not this prompt."""
    said: Any = row["prompt"]
    system = next((one["content"] for one in said if one["role"] == "system"), None)
    asked = "\n\n".join(str(one["content"]) for one in said if one["role"] != "system")
    prompt = [vf.UserMessage(content=asked)]
    return TaskData(id=str(row["id"]), prompt=prompt, system_prompt=system, task=str(row["task"]))


def classes(folder: str | Path) -> tuple[type[Any], type[Any]]:
    """Return the taskset and harness classes of an environment, for a module that verifiers loads.

    Args:
        folder: the folder of an exported environment.
    """
    exported = Exported(Path(folder))

    class GenenvTaskset(vf.Taskset[GenenvTask, TasksetConfig]):
        """The tasks of an exported environment."""

        def load(self) -> Iterator[GenenvTask]:
            """Yield one task per row."""
            for row in exported.rows(self.config.split):
                yield GenenvTask(data_of(row), self.config.task)

    class GenenvHarness(vf.Harness[HarnessConfig]):
        """Runs the environment's episode with the model under test."""

        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(  # noqa: PLR0913 - as the base class has it
            self,
            ctx: Any,  # noqa: ANN401
            trace: Any,  # noqa: ANN401
            runtime: Any,  # noqa: ANN401
            endpoint: str,
            secret: str,
            mcp_urls: Any,  # noqa: ANN401
            data: Any,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            """Request replies from the model until the rollout ends."""
            del runtime, mcp_urls
            session, messages = exported.session(data.task), list[Any]()
            offered: dict[str, Any] = {"tools": list(session.tools)} if session.tools else {}
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
                while not session.done:
                    messages += session.chat
                    asked = client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                    reply = (await asked).choices[0].message.model_dump(exclude_none=True)
                    messages.append(reply)
                    said = (reply.get("content") or "", reply.get("tool_calls") or ())
                    await asyncio.to_thread(session.send, *said)
            verdict = await asyncio.to_thread(session.verdict)
            trace.state.reward, trace.state.success = verdict.reward, verdict.success
            trace.state.replies = len(session.replies)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    return GenenvTaskset, GenenvHarness
