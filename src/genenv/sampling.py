"""Sampling requests, completions and parameters, protocol of samplers, and batches of waiting requests.

A parameter that you add to `SamplingParams` and `SamplingFields` is also added to requests, settings, both
servers and all clients. Only the code that draws tokens must implement it.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Container, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from pydantic import BaseModel, Field

from genenv.types import JsonObject, Message

COLDEST = 0.001
"""Below this temperature local models decode greedily: logits divided by less overflow float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters by which tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Draw only from the smallest set of most probable tokens whose total probability reaches this value."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens are never drawn, whatever their logits."""
        return self.top_p < 1


class SamplingFields(BaseModel, allow_inf_nan=False, use_attribute_docstrings=True):
    """`SamplingParams` as fields of settings and JSON requests, with the allowed ranges."""

    temperature: float = Field(default=1.0, ge=0, le=1e6)
    top_p: float = Field(default=1.0, gt=0, le=1)


def sampling_params(source: SamplingParams | SamplingFields, *, greedy_below: float = 0.0) -> dict[str, Any]:
    """Return the sampling parameters by name. OpenAI, vLLM and Tinker use the same names.

    Args:
        source: the object that holds the parameters.
        greedy_below: a temperature below this value is returned as 0.
    """
    found = {one.name: getattr(source, one.name) for one in fields(SamplingParams)}
    return found | ({"temperature": 0.0} if source.temperature < greedy_below else {})


class Conversation:
    """Identifies a conversation of several turns. Its KV cache may be kept while this object lives.

    It also has the conversation as messages, for samplers that send text to another program.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """All messages so far, replies included."""
        self.tools: Sequence[JsonObject] = ()
        """The tools that are offered to the model's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest(SamplingParams):
    """A request for one completion. The result depends on `stream`, not on the order of requests."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stream: int = 0
    """Seed of this request's random stream."""
    schema: JsonObject | None = None
    """A JSON schema. Only tokens that keep the text a prefix of a valid value are allowed."""
    choices: tuple[tuple[int, ...], ...] = ()
    """The possible completions, including the end-of-turn token. Excludes `schema`. Empty: any completion."""
    conversation: Conversation | None = field(default=None, compare=False, repr=False)
    """The conversation that this turn belongs to. None if the prompt is independent of other requests."""
    last: bool = False
    """Whether this is the last turn of the conversation."""
    survives_cut: bool = False
    """Whether another turn may follow even if this reply is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A sampled completion."""

    token_ids: tuple[int, ...]  # [T] including the end-of-turn token, if emitted
    logprobs: tuple[float, ...]
    """[T] nats, at the sampling temperature. They do not include the mask of a schema. They do include the
    mask of `choices`, because the acting policy is the one restricted to the choices."""
    text: str
    finished: bool
    """False if `max_tokens` was reached first."""
    forced: Container[int] = range(0)
    """Indices of tokens that were not sampled. Examples: tokens that cut a thought short, and tokens that all
    remaining choices share."""
    version: int = 0
    """Version of the weights that sampled the completion, as counted by `Trainer.publish`."""


class Sampler(Protocol):
    """A model that samples completions and knows its chat format. The backends implement this protocol."""

    context_tokens: int
    """The longest sequence that the model can handle, in tokens."""

    @property
    def end_of_thought(self) -> tuple[int, ...]:
        """The tokens that end the thought opened by `render`. Empty if `render` opens none."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Return the token ids of messages, ending where the assistant's reply begins.

        Args:
            messages: the messages that are new in the conversation.
            first: whether they start the conversation. Later turns extend the exact ids sampled so far.
            tools: tools for the model's chat template. Calls are then text in the format of
                `chat.template`.
            after: with tools, the assistant's reply that the messages follow.

        Raises:
            UsageError: the model's chat template does not support tools.
        """
        ...

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Return the token ids of a demonstration's reply, including the end-of-turn token."""
        ...

    def left_out(
        self, roles: Sequence[str], prompt: Sequence[int], reply: Sequence[int]
    ) -> tuple[int, int, int]:
        """Count the tokens of an earlier turn, mostly its thought, that the chat template drops later.

        Args:
            roles: roles of the messages that follow the turn.
            prompt: token ids that the turn's reply answered.
            reply: token ids of the turn's reply.

        Returns:
            The numbers of dropped tokens at the end of the prompt, at the start of the reply, and at its end.
        """
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion; concurrent calls are batched.

        Raises:
            RolloutError: this request cannot be answered.
        """
        ...

    def end_round(self) -> None:
        """Free the memory that only the finished round needed."""
        ...


_blocked_s = 0.0
_IN_WORKER = ContextVar("in_worker", default=False)


def blocked_s() -> float:
    """Return the total seconds for which models have blocked this process's event loop."""
    return _blocked_s


@contextlib.contextmanager
def blocking() -> Generator[None]:
    """Add the time spent in this context to `blocked_s`: the work in it blocks the event loop."""
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
    """Make `blocking` count nothing in this context, for work in another thread than the event loop's."""
    before = _IN_WORKER.set(True)
    try:
        yield
    finally:
        _IN_WORKER.reset(before)


class WaitingRequests:
    """Collects the requests that wait at the same time, so that a sampler answers them as one batch.

    Args:
        sample_all: samples a completion for each request of a batch.
    """

    def __init__(self, sample_all: Callable[[Sequence[SampleRequest]], list[Completion]]) -> None:
        self._sample_all = sample_all
        self._pending: list[tuple[SampleRequest, asyncio.Future[Completion]]] = []

    async def sample(self, request: SampleRequest) -> Completion:
        """Return the completion of a request, once its batch has been sampled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending.append((request, future))
        if len(self._pending) == 1:
            loop.call_soon(self._flush_when_quiet, 0, loop)
        try:
            return await future
        finally:  # a cancelled request must not wait in the queue of an event loop that is gone
            self._pending = [waiting for waiting in self._pending if waiting[1] is not future]

    def _flush_when_quiet(self, seen: int, loop: asyncio.AbstractEventLoop) -> None:
        """Run the batch once a full iteration of the event loop has brought no further request."""
        if len(self._pending) != seen:
            loop.call_soon(self._flush_when_quiet, len(self._pending), loop)
            return
        pending, self._pending = self._pending, []
        try:
            with blocking():
                completions = self._sample_all([request for request, _ in pending])
        except (KeyboardInterrupt, SystemExit):
            raise  # these end the event loop, and with it all waiting coroutines
        except BaseException as error:  # noqa: BLE001 - handed on to every waiting coroutine
            for _, future in pending:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in zip(pending, completions, strict=True):
            if not future.done():
                future.set_result(completion)
