"""What a backend is: something that samples, something that learns, and how the two are opened by name.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import time
from collections.abc import Awaitable, Callable, Container, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, cast

from genenv.backends import ranks
from genenv.backends.settings import PolicyConfig
from genenv.domains.base import Domain
from genenv.errors import UsageError, unknown_name
from genenv.learning.settings import OptimizerConfig
from genenv.learning.trainer import Trainer
from genenv.types import JsonObject, Message


class Conversation:
    """Names a conversation of several turns by being there: a sampler may remember it as long as it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion wanted. What it draws depends on its own stream, not on the order of requests."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Draw among the most probable tokens alone that together have at least this probability."""
    stream: int = 0
    """Seed of this request's own random stream."""
    schema: JsonObject | None = None
    """A JSON schema: only tokens that keep the text a prefix of such a value are allowed."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Instead of a schema: the completion is one of these, end-of-turn token included; none: anything."""
    conversation: Conversation | None = field(default=None, compare=False, repr=False)
    """That this is a turn of; None where a prompt stands alone."""
    last: bool = False
    """Whether no further turn of the conversation follows."""
    survives_cut: bool = False
    """Whether one may also follow a reply that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the model answered."""

    token_ids: tuple[int, ...]  # [T] the end-of-turn token included when it was reached
    logprobs: tuple[float, ...]
    """[T] nats, at the sampling temperature: before the mask of a schema, but among the choices where there
    are some, for the policy that acts is then the one held to them."""
    text: str
    finished: bool
    """False when `max_tokens` came first."""
    forced: Container[int] = range(0)
    """Places of tokens that were not sampled, such as those that cut a thought short, or that all choices
    which are left have in common."""
    version: int = 0
    """Of the weights that wrote it, as `Trainer.publish` counts them."""


class Sampler(Protocol):
    """Something that samples, and knows a chat format."""

    context_tokens: int
    """The longest sequence it can handle."""

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends the thought that `render` begins; nothing where it begins none."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Token ids of messages, ready for the assistant's reply.

        Args:
            messages: what is new in the conversation.
            first: whether the conversation starts here; later turns continue the exact ids sampled so far.
            tools: offered in the model's own form; calls are then text as `backends.chat.tool_format` has it.
            after: with tools, the reply that the messages answer.

        Raises:
            UsageError: the model has no form of its own for tools.
        """
        ...

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Token ids of an assistant's reply, end-of-turn token included, as a demonstration to imitate."""
        ...

    def left_out(self, role: str, prompt: Sequence[int], reply: Sequence[int]) -> tuple[int, int, int]:
        """What the chat template drops of an earlier turn, its thought above all, when a message follows.

        Args:
            role: of the message that follows.
            prompt: ids that the turn's reply answered.
            reply: its ids.

        Returns:
            How many tokens at the end of the prompt, at the beginning of the reply, and at its end.
        """
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion; concurrent calls are batched.

        Raises:
            RolloutError: this request cannot be answered.
        """
        ...

    def end_round(self) -> None:
        """Let go of what only the round that is over needed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a backend must know of a player to open it."""

    name: str
    """`agent` or `simulator`: of the adapter, and of the folder in a checkpoint."""
    optimizer: OptimizerConfig
    reference: bool
    """Whether a KL term holds on to the weights as they are at the start."""
    ramped: bool
    """Whether the first steps after its warm-up are shorter, which left no moments."""
    ahead: bool = False
    """Whether it samples rounds to come while it learns from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Both players of a run, on a backend."""

    samplers: Mapping[str, Sampler]
    """By role."""
    trainers: Mapping[str, Trainer]
    """By role."""
    settled: PolicyConfig
    """The settings with all decided that was left to the machine and the models."""
    warms_up: bool = True
    """Whether imitating known solutions makes a difference."""
    apart: bool = False
    """Whether the two players have devices of their own, so that they can learn at the same time."""
    overlaps: bool = False
    """Whether samplers go on with the weights that were published while trainers learn."""
    found: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was found out of a server, for the run's records."""
    check: Callable[[], Awaitable[None]] | None = None
    """Holds what was sampled since the last check to the weights that it should be of; raises GenenvError.
    None: samplers and trainers have the same weights."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends connections, when the run is over; None: there are none."""


Open = Callable[[PolicyConfig, Sequence[Role], Domain, int], Opened]
"""(settings, roles, the world of the tasks, seed of the run) -> both players; raises UsageError."""

BACKENDS = {
    "local": "genenv.backends.local.backend:open_local",
    "scripted": "genenv.backends.scripted:open_scripted",
    "tinker": "genenv.backends.tinker.backend:open_tinker",
    "vllm": "genenv.backends.vllm.backend:open_vllm",
}
"""What `policy.backend` may say."""


def open_backend(config: PolicyConfig, roles: Sequence[Role], domain: Domain, *, seed: int) -> Opened:
    """Both players on the backend that the settings name.

    Raises:
        UsageError: there is no such backend, or a model cannot be loaded or used here.
    """
    if config.backend not in BACKENDS:
        raise unknown_name("policy.backend", config.backend, BACKENDS)
    module, _, name = BACKENDS[config.backend].partition(":")
    if ranks.size() > 1 and config.backend != "vllm":
        raise UsageError(
            f"policy.backend is {config.backend!r}, and {ranks.size()} processes train together while "
            "servers sample: set policy.backend='vllm', or start one process without torchrun"
        )
    if config.backend == "tinker" and importlib.util.find_spec("tinker") is None:
        raise UsageError("a Tinker server is asked by the package tinker: pip install 'genenv[tinker]'")
    return cast(Open, getattr(importlib.import_module(module), name))(config, roles, domain, seed)


_blocked_s = 0.0
_BESIDE = ContextVar("beside", default=False)


def blocked_s() -> float:
    """Seconds for which models have kept this process's event loop from everything else, so far."""
    return _blocked_s


@contextlib.contextmanager
def blocking() -> Generator[None]:
    """Count the time in here as such: the loop does nothing else meanwhile."""
    global _blocked_s
    if _BESIDE.get():
        yield
        return
    start = time.monotonic()
    try:
        yield
    finally:
        _blocked_s += time.monotonic() - start


@contextlib.contextmanager
def not_blocking() -> Generator[None]:
    """For what runs in another thread than the event loop: `blocking` counts nothing in here."""
    before = _BESIDE.set(True)
    try:
        yield
    finally:
        _BESIDE.reset(before)
