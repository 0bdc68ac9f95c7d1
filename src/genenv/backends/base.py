"""What a policy is: something that samples. What a learner is: something that updates a policy.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from genenv.types import Group, JsonObject, Message, SimulatorSample

Advance = Callable[[int, int], None]
"""Called with tokens and items done since the last call."""


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
    memory: object | None = field(default=None, compare=False, repr=False)
    """The memory that came with the conversation's last completion: what is known need not be read again."""
    keep: bool = False
    """Whether the conversation may go on, so that a memory of it is worth having."""
    keep_cut: bool = False
    """Whether it may also go on after a reply that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the policy answered."""

    token_ids: tuple[int, ...]  # [T] the end-of-turn token included when it was reached
    logprobs: tuple[float, ...]  # [T] nats, at the sampling temperature, before any grammar mask
    text: str
    finished: bool
    """False when `max_tokens` came first."""
    memory: object | None = field(default=None, compare=False, repr=False)
    """What the policy remembers of the conversation, for the next request; None when it remembers nothing."""
    forced: range = range(0)
    """Places of tokens that were not sampled, such as those that cut a thought short."""


class Policy(Protocol):
    """Something that samples."""

    context_tokens: int
    """The longest sequence it can handle."""
    progress: Advance | None
    """Told of tokens sampled and completions finished, when set."""
    sampling_s: float
    """Seconds for which sampling has kept the event loop from everything else, so far."""

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

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion; concurrent calls are batched.

        Raises:
            RolloutError: this request cannot be answered.
        """
        ...

    def end_round(self) -> None:
        """Let go of what only the round that is over needed."""
        ...


class Learner(Protocol):
    """Something that updates a policy. An update applies whole, or is skipped and counted in the metrics."""

    @property
    def progress(self) -> Advance | None:
        """Told of tokens and sequences gone through, when set."""
        ...

    @progress.setter
    def progress(self, advance: Advance | None) -> None: ...

    def save(self, folder: Path) -> None:
        """Write weights and optimizer into a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            DataError: the folder is damaged.
        """
        ...


class AgentLearner(Learner, Protocol):
    """Player 2's update."""

    def update(self, groups: Sequence[Group], *, seed: int, lr_scale: float = 1.0) -> Mapping[str, float]:
        """Learn from groups of attempts, at a share of the learning rate; returns metrics."""
        ...


class SimulatorLearner(Learner, Protocol):
    """Player 1's update."""

    def update(
        self, samples: Sequence[SimulatorSample], *, seed: int, lr_scale: float = 1.0
    ) -> Mapping[str, float]:
        """Learn from weighted generations, at a share of the learning rate; returns metrics."""
        ...
