"""The two policies of a run, agent and simulator, with what opens, checks and closes them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from genenv.agent.policy import Agent
from genenv.backends.base import Backend
from genenv.progress import Reporter
from genenv.simulator.source import TaskSource
from genenv.types import Seed, Task

T = TypeVar("T")


class Warmup(Protocol):
    """What brings the policies to where co-evolution can start."""

    async def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both policies on base data; returns metrics of round 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The two policies, and what happens to them before the first round."""

    agent: Agent
    simulator: TaskSource
    warmup: Warmup | None = None
    backend: Backend = field(default_factory=Backend)
    """What they run on."""

    async def check_samples(self) -> None:
        """Refuse what was sampled by other weights than it should be, before anybody learns from it.

        Raises:
            GenenvError: there is such; names the server and the version.
        """
        if self.backend.check is not None:
            await self.backend.check()

    async def publish(self) -> None:
        """Let both sample with what they have learned."""
        if self.agent.config.train:
            await self.agent.trainer.publish()
        if self.simulator.learns:
            await self.simulator.publish()

    async def save(self, folder: Path) -> None:
        """Write both policies into a checkpoint."""
        await self.agent.trainer.save(folder / "agent")
        await self.simulator.save(folder / "simulator")

    async def load(self, folder: Path) -> None:
        """Restore both policies."""
        await self.agent.trainer.load(folder / "agent")
        await self.simulator.load(folder / "simulator")


async def together(*wanted: Coroutine[Any, Any, T]) -> list[T]:
    """The results of coroutines that run at the same time; the first error ends the others, and is raised."""
    tasks = [asyncio.ensure_future(one) for one in wanted]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
