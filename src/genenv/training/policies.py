"""The two policies of a run, agent and simulator, with warm-up, checks and connections."""

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
    """Prepares the policies for co-evolution in round 0. `SupervisedWarmup` implements it."""

    async def __call__(
        self, seeds: Sequence[Seed], tasks: Sequence[Task], reporter: Reporter
    ) -> Mapping[str, float]:
        """Train both policies on base data; return the metrics of round 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The two policies of a run and the properties of their backend."""

    agent: Agent
    simulator: TaskSource
    warmup: Warmup | None = None
    backend: Backend = field(default_factory=Backend)
    """What they run on."""

    async def check_samples(self) -> None:
        """Refuse samples of wrong weights before they are trained on.

        Raises:
            GenenvError: a sample is from wrong weights. The message names the server and the version.
        """
        if self.backend.check is not None:
            await self.backend.check()

    async def publish(self) -> None:
        """Use the updated weights of both policies for sampling."""
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
    """Run coroutines concurrently and return their results; the first error cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in wanted]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
