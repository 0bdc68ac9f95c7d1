# pyright: standard
"""Data-parallel training of the same weights in several processes, each with its own device.

Torchrun starts the processes. Rank 0 runs the training loop. It broadcasts every trainer call to the other
ranks (followers), which repeat it. Each process runs its share of the micro-batches, and gradients are summed
before each step. With adapters, each process holds a shard of the frozen base, and all adapters with their
optimizers, which stay equal. With full tuning it holds a shard of everything (`sharding`).

Messages are JSON of plain values and of the few classes named in this module. Anyone who reaches the port of
a process group can write to it. So messages never contain code, as a pickle could.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented there
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Role, process_count, process_rank
from genenv.backends.settings import PolicyConfig
from genenv.types import Choices

_TAG = "is"


@dataclass(frozen=True, slots=True)
class Opening:
    """Message of rank 0: open these policies."""

    config: PolicyConfig
    roles: Sequence[Role]
    seed: int


@dataclass(frozen=True, slots=True)
class Call:
    """Message of rank 0: call this method on the trainer of a policy."""

    policy: str
    method: str
    arguments: Sequence[Any]
    options: Mapping[str, Any]


_CLASSES = {one.__name__: one for one in (Opening, Call, Datum, Choices, Objective, Role)}
_SETTINGS: Mapping[str, type[BaseModel]] = {one.__name__: one for one in (PolicyConfig, OptimizerConfig)}


def encoded(value: object) -> bytes:
    """Encode a message as JSON.

    Raises:
        TypeError: the message holds a value of an unsupported class.
    """
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decoded(data: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """Decode a message of `encoded`.

    Raises:
        ValueError: the data are not such a message.
    """
    try:
        return _value(json.loads(data))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"this is no message of processes that train together: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Convert a value to JSON types; other supported types become an object with a tag."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "of": [_plain(one) for one in value]}
    if isinstance(value, dict):
        return {_TAG: "dict", "of": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, Path):
        return {_TAG: "Path", "of": str(value)}
    for name, settings in _SETTINGS.items():  # a subclass keeps only these fields
        if isinstance(value, settings):
            return {_TAG: name, "of": value.model_dump_json(include=set(settings.model_fields))}
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {_TAG: name, "of": fields}
    raise TypeError(f"{name} is nothing that processes tell each other")


def _value(plain: Any) -> Any:  # noqa: ANN401
    if isinstance(plain, list):
        return [_value(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    kind, of = plain[_TAG], plain["of"]
    if kind == "tuple":
        return tuple(_value(one) for one in of)
    if kind == "dict":
        return {_value(key): _value(one) for key, one in of}
    if kind == "Path":
        return Path(of)
    if kind in _SETTINGS:
        return _SETTINGS[kind].model_validate_json(of)
    return _CLASSES[kind](**{name: _value(one) for name, one in of.items()})


P = ParamSpec("P")
T = TypeVar("T")

_LISTENS = timedelta(seconds=60)
_LOOPBACK, _PORT = "127.0.0.1", "genenv/port"
_EXCHANGES = timedelta(minutes=30)
"""How long processes wait for each other within one trainer call; between calls there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The micro-batches that all processes run at the same time, one each."""

    own: int
    """Index of this process's micro-batch."""
    counts: bool
    """False if there are fewer micro-batches than processes: this one belongs to another process. It must run
    anyway, because a layer's weights are only gathered if all processes take part, but its gradient is
    zeroed."""
    all: range
    """Indices of all micro-batches of the turn."""


class Processes:
    """The group of processes that train together, as seen by one of them; `ALONE` is a group of one."""

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        """Create the view of one process.

        Args:
            rank: of this process.
            size: number of processes.
            store: carries the messages of rank 0; None if there is only one process.
        """
        self.rank, self.size, self._store = rank, size, store
        self._sent = 0

    def turns(self, batches: int) -> Iterator[Turn]:
        """Yield this process's micro-batches, equally many for every process."""
        for first in range(0, batches, self.size):
            last = min(first + self.size, batches) - 1
            own = first + self.rank
            yield Turn(own=min(own, last), counts=own <= last, all=range(first, last + 1))

    def total(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return each sum added up over all processes."""
        if self.size == 1:
            return dict(sums)
        found: dict[str, float] = {}
        for own in self.gathered(dict(sums)):
            for name, value in own.items():
                found[name] = found.get(name, 0.0) + value
        return found

    def gathered(self, value: T) -> list[T]:
        """Return the values of all processes, in order of rank."""
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
        """Replace each gradient by its sum over all processes, with bitwise equal results in all of them.

        Gradients of sharded parameters are sums already, each process has a part of them.
        """
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor)]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten().float() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, what: object) -> None:
        """Send a message to the followers, in order; do nothing in a follower or a single process."""
        if self.size > 1 and self.rank == 0 and self._store is not None:
            self._store.set(f"told/{self._sent}", cast(str, encoded(what)))  # bytes as well
            self._sent += 1

    def receive(self) -> object:
        """Wait for the next message of rank 0, without a time limit, and return it."""
        if self._store is None:
            raise RuntimeError("a single process hears of nobody")
        name, read = f"told/{self._sent}", f"read/{self._sent}"
        while True:  # rollouts are sampled meanwhile
            try:
                self._store.wait([name], _LISTENS)
                break
            except dist.DistStoreError:
                continue
        said = self._store.get(name)
        self._sent += 1
        if self._store.add(read, 1) == self.size - 1:
            self._store.delete_key(name)
            self._store.delete_key(read)
        return decoded(said)

    def ends(self) -> bool:
        """Return whether the next message of rank 0 ends the followers; False if none comes for a while."""
        try:
            self._store.wait([f"told/{self._sent}"], _LISTENS)  # pyright: ignore[reportOptionalMemberAccess]
        except dist.DistStoreError:
            return False
        return self.receive() is None


ALONE = Processes()


@functools.cache
def connected() -> Processes:
    """Connect the processes that torchrun started with this one; return `ALONE` if there are none."""
    if process_count() == 1:
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
    """Return a store that all processes share, the rank of this process, and the number of processes.

    If all processes are on one machine, the store listens only on loopback. So do Gloo and NCCL, unless the
    environment names an interface. Torchrun's own store listens on all interfaces, and holds only the port
    number.
    """
    here, rank, size = int(os.environ.get("LOCAL_WORLD_SIZE", "0")), process_rank(), process_count()
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


METHODS_ON_ALL_RANKS: set[str] = set()
"""Names of the trainer methods that followers repeat."""


class _OnAllRanks(Protocol):
    processes: Processes
    name: str


S = TypeVar("S", bound=_OnAllRanks)


def on_all_ranks(
    method: Callable[Concatenate[S, P], CoroutineType[Any, Any, T]],
) -> Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]:
    """Decorator of a trainer method: rank 0 broadcasts each call, so that the followers repeat it."""
    METHODS_ON_ALL_RANKS.add(method.__name__)

    @functools.wraps(method)
    async def led(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        self.processes.broadcast(Call(self.name, method.__name__, arguments, options))
        return await method(self, *arguments, **options)

    return led
