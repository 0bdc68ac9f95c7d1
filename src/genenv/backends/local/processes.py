# pyright: standard
"""Several processes, each with its own device, that train the same adapters; torchrun starts them.

The process of rank 0 runs the training loop and sends what it does to the weights to the others, its
followers, which do the same. Each holds a part of the frozen base (`shard_base`), all adapters and their
optimizers, and takes its share of the micro-batches. Gradients are summed before a step, and equal steps of
equal weights leave them equal.

Messages are JSON of plain values and the few classes named here. Whoever reaches the port of a process group
can write into it, so nothing that is read from it is code, as a pickle would be.

The base is sharded with FSDP2 (`torch.distributed.fsdp`): the weights of a layer are gathered where it runs,
forwards and backwards, and released after it. Embeddings and output layer stay whole, as log-probabilities
are computed from them a piece at a time (`token_logprobs`). So do adapters, which are attached afterwards.
The backward pass keeps only the inputs of a layer, which is computed twice.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.utils.checkpoint import checkpoint

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends import torchrun
from genenv.backends.base import Role
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError
from genenv.types import Choices

_TAG = "is"


@dataclass(frozen=True, slots=True)
class Opening:
    """The policies that rank 0 opens, and the followers open too."""

    config: PolicyConfig
    roles: Sequence[Role]
    seed: int


@dataclass(frozen=True, slots=True)
class Call:
    """A method that rank 0 calls on the trainer of a policy, and the followers call too."""

    policy: str
    method: str
    arguments: Sequence[Any]
    options: Mapping[str, Any]


_CLASSES = {one.__name__: one for one in (Opening, Call, Datum, Choices, Objective, Role)}
_SETTINGS: Mapping[str, type[BaseModel]] = {one.__name__: one for one in (PolicyConfig, OptimizerConfig)}


def encoded(value: object) -> bytes:
    """A value as JSON.

    Raises:
        TypeError: it holds something of another class.
    """
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decoded(data: bytes) -> Any:  # noqa: ANN401 - what was encoded
    """What `encoded` wrote.

    Raises:
        ValueError: it did not write this.
    """
    try:
        return _value(json.loads(data))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"this is no message of processes that train together: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A value of JSON's own types; what is none of them is an object with a tag."""
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
    for name, settings in _SETTINGS.items():  # of what builds on them, such as the agent's, their own part
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
            store: what their messages go through; None for a single one.
        """
        self.rank, self.size, self._store = rank, size, store
        self._sent = 0

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

    def broadcast(self, what: object) -> None:
        """Send a message to the followers, in order; does nothing without followers, or in one of them."""
        if self.size > 1 and self.rank == 0 and self._store is not None:
            self._store.set(f"told/{self._sent}", cast(str, encoded(what)))  # bytes as well
            self._sent += 1

    def receive(self) -> object:
        """The next message of rank 0; waits for it as long as it takes."""
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


METHODS_ON_ALL_RANKS: set[str] = set()
"""Names of the trainer methods that run on all torchrun."""


class _OnAllRanks(Protocol):
    processes: Processes
    name: str


S = TypeVar("S", bound=_OnAllRanks)


def on_all_ranks(
    method: Callable[Concatenate[S, P], CoroutineType[Any, Any, T]],
) -> Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]:
    """Decorator of a trainer method that the followers call too."""
    METHODS_ON_ALL_RANKS.add(method.__name__)

    @functools.wraps(method)
    async def led(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        self.processes.broadcast(Call(self.name, method.__name__, arguments, options))
        return await method(self, *arguments, **options)

    return led


def check_can_shard(config: PolicyConfig) -> None:
    """Hold the settings to what several processes can do.

    Raises:
        UsageError: they ask for more; names the setting.
    """
    if config.tuning == "full":
        raise UsageError("policy.tuning is 'full', and several processes train adapters alone; take 'lora'")
    if config.decoder == "fused" or config.packed_weights is True:
        name = "decoder" if config.decoder == "fused" else "packed_weights"
        raise UsageError(
            f"policy.{name} needs the whole base in one process; take one, or begin a run with "
            "policy.decoder=transformers"
        )


def shard_base(causal: Any, device: torch.device, size: int) -> None:  # noqa: ANN401
    """Share the layers of a model out among so many processes, in place.

    Args:
        causal: frozen, in the memory of the CPU, equal in all processes.
        device: where this process's part goes, a layer at a time, and all that stays whole.
        size: how many processes.

    Raises:
        UsageError: it has no list of layers.
    """
    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise UsageError(
            f"a {type(causal).__name__} is not trained by several processes: its layers are not where they "
            "are looked for; take one process"
        )
    mesh = init_device_mesh(device.type, (size,))
    for layer in layers:
        own = layer.forward
        fully_shard(layer, mesh=mesh)
        layer.forward = functools.partial(_twice, own)
    whole = {parameter for name, parameter in decoder.named_parameters() if not name.startswith("layers.")}
    fully_shard(decoder, mesh=mesh, ignored_params=whole)
    for module in causal.modules():
        for own in (module._parameters, module._buffers):
            for name, value in own.items():
                if value is not None and value.device.type != device.type:
                    own[name] = _moved(value, device)


def _twice(forward: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    if torch.is_grad_enabled():
        return checkpoint(forward, *arguments, use_reentrant=False, **options)
    return forward(*arguments, **options)


def _moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.nn.Parameter):
        value.data = value.data.to(device)
        return value
    return value.to(device)
