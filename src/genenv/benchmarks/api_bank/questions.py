"""What a question of API-Bank holds, and what is read of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from genenv.benchmarks.api_bank.calls import Call
from genenv.benchmarks.api_bank.values import Declared
from genenv.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One prompt and what was recorded as its answer."""

    kind: Literal["call", "request", "response"]
    """ToolRL's form, the authors' form, or an answer to the user in the authors' form."""
    messages: tuple[Mapping[str, str], ...]
    gold: Call = field(default_factory=lambda: Call("", {}))
    """The recorded call; empty for a response."""
    response: str = ""
    """The recorded response; empty for a call."""
    declared: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    """What the prompt says of the parameters of the recorded call's API."""
    dialogue: str = ""
    """Which dialogue of level 3 it is of, in the authors' form."""
    of_dialogue: int = 0
    """How many requests that dialogue has."""


def text_of(entry: Any, key: str) -> str:  # noqa: ANN401
    """A text of a question.

    Raises:
        KeyError: it is not there.
        TypeError: it is no text.
    """
    text = entry[key]
    if not isinstance(text, str):
        raise TypeError(f"{key} must be a text")
    return text


def reply_of(answer: Json) -> str:
    """The reply in an answer; empty in what is no answer."""
    reply = answer.get("reply") if isinstance(answer, Mapping) else None
    return reply if isinstance(reply, str) else ""
