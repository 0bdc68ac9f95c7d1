"""How the agent does on held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence

from genenv.agent.policy import Agent
from genenv.environments.base import Environment
from genenv.runs.metrics import Stages
from genenv.runs.store.records import Evaluation
from genenv.types import Task


async def evaluate(
    agent: Agent, env: Environment, held_out: Sequence[Task], stage: Stages
) -> list[Evaluation]:
    """One greedy attempt at each held-out task."""
    with stage("eval", "held-out tasks", items=len(held_out), unit="tasks"):
        groups = await agent.solve(env, held_out)
    return [
        Evaluation(
            task_id=group.task.id,
            success=trace.success,
            reward=trace.reward,
            replies=trace.replies,
            explanation=trace.explanation,
        )
        for group in groups
        for trace in group.traces
    ]
