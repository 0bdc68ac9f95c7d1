"""What a policy is: something that samples; a trainable one also learns, saves and loads.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from genenv.types import Group, JsonObject, Message, SimulatorSample


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion wanted. Equal requests to an equal policy give equal completions, whatever else is in the batch."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stream: int = 0
    """Seed of this request's own random stream: sampling does not depend on the order of requests."""
    schema: JsonObject | None = None
    """A JSON schema: only tokens that keep the text a prefix of such a value are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the policy answered."""

    token_ids: tuple[int, ...]  # [T] the end-of-turn token included when it was reached
    logprobs: tuple[float, ...]  # [T] nats, at the sampling temperature, before any grammar mask
    text: str
    finished: bool
    """False when `max_tokens` came first."""


class Policy(Protocol):
    """Something that samples."""

    context_tokens: int
    """The longest sequence it can handle."""

    def render(self, messages: Sequence[Message], *, first: bool) -> tuple[int, ...]:
        """Token ids of messages, ready for the assistant's reply.

        Args:
            messages: what is new in the conversation.
            first: whether the conversation starts here; later turns are appended to the exact ids sampled so far.
        """
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion; concurrent calls are batched."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy that learns. Every update either applies whole or raises `UpdateSkipped` and changes nothing."""

    def update_agent(self, groups: Sequence[Group], *, seed: int) -> Mapping[str, float]:
        """One GRPO update on groups; returns metrics."""
        ...

    def update_simulator(self, samples: Sequence[SimulatorSample], *, seed: int) -> Mapping[str, float]:
        """One RWR update on weighted generations; returns metrics."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and random state into a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            DataError: the folder is damaged.
        """
        ...
