"""Sampling requests and completions, token by token, and the parameters by which tokens are drawn.

A parameter that is added here, to `SamplingParams` and `SamplingFields`, is one of requests, of settings, of
both servers and of all clients. Only the code that draws has to know it, too.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from pydantic import BaseModel, Field

from genenv.types import JsonObject, Message

COLDEST = 0.001
"""Local models answer greedily below this sampling temperature: scores divided by less pass float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Draw among the most probable tokens alone that together have at least this probability."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens are never drawn, however they are scored."""
        return self.top_p < 1


class SamplingFields(BaseModel, allow_inf_nan=False, use_attribute_docstrings=True):
    """`SamplingParams` as fields of settings and of requests in JSON, with the ranges that they may have."""

    temperature: float = Field(default=1.0, ge=0, le=1e6)
    top_p: float = Field(default=1.0, gt=0, le=1)


def sampling_params(source: SamplingParams | SamplingFields, *, greedy_below: float = 0.0) -> dict[str, Any]:
    """Sampling parameters of a request or of settings by name; OpenAI, vLLM and Tinker use the same names.

    Args:
        source: has them.
        greedy_below: a lower temperature is sent as 0.
    """
    found = {one.name: getattr(source, one.name) for one in fields(SamplingParams)}
    return found | ({"temperature": 0.0} if source.temperature < greedy_below else {})


class Conversation:
    """Names a conversation of several turns by being there: a sampler may remember it as long as it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest(SamplingParams):
    """One completion wanted. What it draws depends on its own stream, not on the order of requests."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
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
    def end_of_thought(self) -> tuple[int, ...]:
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


_blocked_s = 0.0
_IN_WORKER = ContextVar("in_worker", default=False)


def blocked_s() -> float:
    """Seconds for which models have kept this process's event loop from everything else, so far."""
    return _blocked_s


@contextlib.contextmanager
def blocking() -> Generator[None]:
    """Count the time in here as such: the loop does nothing else meanwhile."""
    global _blocked_s
    if _IN_WORKER.get():
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
    before = _IN_WORKER.set(True)
    try:
        yield
    finally:
        _IN_WORKER.reset(before)
