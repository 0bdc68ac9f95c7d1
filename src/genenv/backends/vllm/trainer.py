# pyright: standard
"""A player that learns here, and whose weights servers are told of: each version is a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from genenv.algorithms.datum import Datum, Objective, Trainer
from genenv.algorithms.settings import Moments
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.vllm.fleet import Fleet
from genenv.backends.vllm.sampler import VllmSampler
from genenv.threads import WorkerThread as Beside

T = TypeVar("T")


class PublishingTrainer:
    """The local trainer; what it publishes is written out, and loaded by every server."""

    def __init__(
        self,
        own: LocalTrainer,
        fleet: Fleet,
        sampler: VllmSampler,
        beside: Beside | None,
        *,
        name: str,
        folder: Path,
    ) -> None:
        """A trainer.

        Args:
            own: learns.
            fleet: samples.
            sampler: is told what to ask for.
            beside: a thread in which it learns while others sample, one for all whose weights are of one
                model; None where nobody does. On a CPU a second thread makes those of its products wait.
            name: of the player's adapters, unlike those of other runs.
            folder: for them, on a disk that the servers see too.
        """
        self._own, self._fleet, self._sampler, self._beside = own, fleet, sampler, beside
        self._name, self._folder = name, folder
        self._shown: list[str] = []
        """Those that servers have."""
        self._written: dict[str, int] = {}
        """Versions by name that are still on the disk: the first one, and the newest."""
        self._count = 0

    async def _run(self, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (made() if self._beside is None else self._beside.run(made))

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.forward_backward(data, objective))

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.step(learning_rate))

    async def watch(self, data: Sequence[Datum]) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.watch(data))

    async def moved(self) -> float:
        """See `Trainer`."""
        return await self._run(lambda: self._own.moved())

    async def shorten(self, fraction: float) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.shorten(fraction))

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """See `Trainer`."""
        return await self._run(lambda: self._own.logprobs(data, reference=reference))

    async def anchor(self, moments: Moments) -> None:
        """See `Trainer`."""
        await self._run(lambda: self._own.anchor(moments))

    async def publish(self) -> int:
        """Write the weights out as one more version and have every server load it. See `Trainer`."""
        version = await self._own.publish()
        await self.show()
        return version

    async def save(self, folder: Path) -> None:
        """See `Trainer`."""
        await self._own.save(folder)

    async def load(self, folder: Path) -> None:
        """See `Trainer`."""
        await self._own.load(folder)
        await self.show()

    async def show(self) -> None:
        """Have every server load the weights as they are; those before the last one are given up."""
        version = self._own.weights.version
        name = f"{self._name}-{self._count}-v{version}"  # a version that is shown again may be another's
        self._count += 1
        folder = self._folder / name
        self._own.weights.write_adapter(folder)
        self._written[name] = version
        gone = self._shown.pop(0) if len(self._shown) >= self._fleet.config.kept else None
        self._shown.append(name)
        await self._fleet.show(name, folder.resolve(), instead_of=gone)
        self._sampler.adapter, self._sampler.version = name, version
        for old in list(self._written)[1 : -max(2, len(self._shown))]:
            del self._written[old]
            shutil.rmtree(self._folder / old, ignore_errors=True)

    def has_written(self, name: str) -> bool:
        """Whether weights that were shown by this name are still on the disk."""
        return name in self._written

    def version_of(self, name: str) -> int:
        """The version of weights that were shown by this name."""
        return self._written[name]

    def older(self, name: str) -> list[str]:
        """Names of weights before these: the first that were shown, and those just before."""
        before = list(self._written)[: list(self._written).index(name)]
        return list(dict.fromkeys((*before[:1], *before[-1:])))

    async def logprobs_as_written(self, data: Sequence[Datum], name: str) -> list[tuple[float, ...]]:
        """[T] of each datum: log-probabilities by the weights that were shown by this name. Nats."""
        folder = self._folder / name
        return await self._run(lambda: self._own.logprobs(data, written=folder))


_: type[Trainer] = PublishingTrainer
