# pyright: standard
"""Several processes, each with a device of its own, that train the same adapters: started by torchrun.

That of rank 0 plays the run. What it does to the weights is told to the others, its followers, which do the
same: each holds a part of the frozen base (`sharding`), all of the adapters and their optimizers, and takes
its share of the micro-batches. Gradients are added up before a step, and equal steps of equal weights leave
them equal.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented there
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from genenv.backends import torchrun
from genenv.backends.local.messages import Call, decoded, encoded

P = ParamSpec("P")
T = TypeVar("T")

_LISTENS = timedelta(seconds=60)
_LOOPBACK, _PORT = "127.0.0.1", "genenv/port"
_EXCHANGES = timedelta(minutes=30)
"""How long processes wait for each other within one call; between calls there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One micro-batch in each process, at the same time."""

    own: int
    """Which is this process's."""
    counts: bool
    """False where there are fewer than processes: it is another's, gone through for company, as a layer's
    weights come together only where all ask for them."""
    all: range
    """Those of the turn."""


class Processes:
    """This process and those that train with it."""

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        """One of several, or the only one.

        Args:
            rank: of this process.
            size: how many there are.
            store: what they tell each other through; None for a single one.
        """
        self.rank, self.size, self._store = rank, size, store
        self._told = 0

    def turns(self, batches: int) -> Iterator[Turn]:
        """Share micro-batches out, so that every process has as many."""
        for first in range(0, batches, self.size):
            last = min(first + self.size, batches) - 1
            own = first + self.rank
            yield Turn(own=min(own, last), counts=own <= last, all=range(first, last + 1))

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums of all processes, added up."""
        if self.size == 1:
            return dict(sums)
        found: dict[str, float] = {}
        for own in self.gathered(dict(sums)):
            for name, value in own.items():
                found[name] = found.get(name, 0.0) + value
        return found

    def gathered(self, value: T) -> list[T]:
        """A value of each process, in order."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(encoded(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]))
        longest = max(int(size) for size in sizes)
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, torch.nn.functional.pad(own, (0, longest - len(own))))
        return [decoded(part[: int(size)].numpy().tobytes()) for part, size in zip(found, sizes, strict=True)]

    @torch.no_grad()
    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every process the sum of all gradients, the same to the last digit."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten().float() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def tell(self, what: object) -> None:
        """Have the followers hear something, in order; nothing where there are none, or this is one."""
        if self.size > 1 and self.rank == 0 and self._store is not None:
            self._store.set(f"told/{self._told}", cast(str, encoded(what)))  # bytes as well
            self._told += 1

    def heard(self) -> object:
        """What rank 0 tells next, however long that takes."""
        if self._store is None:
            raise RuntimeError("a single process hears of nobody")
        name, read = f"told/{self._told}", f"read/{self._told}"
        while True:  # rounds are attempted meanwhile
            try:
                self._store.wait([name], _LISTENS)
                break
            except dist.DistStoreError:
                continue
        said = self._store.get(name)
        self._told += 1
        if self._store.add(read, 1) == self.size - 1:
            self._store.delete_key(name)
            self._store.delete_key(read)
        return decoded(said)


ALONE = Processes()


@functools.cache
def connected() -> Processes:
    """This process and those that torchrun has started with it; `ALONE` where it started none."""
    if torchrun.size() == 1:
        return ALONE
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, rank, size = _rendezvous()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=PrefixStore("exchange", store),
        rank=rank,
        world_size=size,
        timeout=_EXCHANGES,
    )
    return Processes(rank, size, PrefixStore("led", store))


def _rendezvous() -> tuple[Store, int, int]:
    """A store that all processes share, the rank of this one, and how many there are.

    Where all of them are on one machine the store listens on loopback alone, and so do Gloo and NCCL unless
    the environment names an interface. That of torchrun itself listens everywhere: there it holds nothing but
    the number of the port.
    """
    here, rank, size = int(os.environ.get("LOCAL_WORLD_SIZE", "0")), torchrun.rank(), torchrun.size()
    if here != size:
        return next(rendezvous("env://", timeout=_EXCHANGES))
    if sys.platform == "linux":
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    agent = next(rendezvous("env://", timeout=_EXCHANGES))[0] if shared else None
    port = 0 if agent is not None else int(os.environ["MASTER_PORT"])
    if rank == 0:
        listening = socket.create_server((_LOOPBACK, port))
        port = listening.getsockname()[1]
        store = TCPStore(
            _LOOPBACK,
            port,
            size,
            is_master=True,
            timeout=_EXCHANGES,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        if agent is not None:
            agent.set(_PORT, str(port))
        return store, rank, size
    if agent is not None:
        port = int(agent.get(_PORT))
    return TCPStore(_LOOPBACK, port, size, is_master=False, timeout=_EXCHANGES), rank, size


LED: set[str] = set()
"""Names of the methods that followers do, too."""


class _Led(Protocol):
    processes: Processes
    name: str


S = TypeVar("S", bound=_Led)


def together(
    method: Callable[Concatenate[S, P], CoroutineType[Any, Any, T]],
) -> Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]:
    """Have the followers do it too: the method of a player's trainer."""
    LED.add(method.__name__)

    @functools.wraps(method)
    async def led(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        self.processes.tell(Call(self.name, method.__name__, arguments, options))
        return await method(self, *arguments, **options)

    return led
