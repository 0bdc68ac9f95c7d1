"""Conversations for tests."""

from __future__ import annotations

from genenv.types import Message


def said(*replies: str) -> tuple[Message, ...]:
    """What an agent said, one reply after the other, with nothing between them."""
    return tuple(Message(role="assistant", content=reply) for reply in replies)
