"""A policy that is a Python function: for tests, and for writing a domain before any model is at hand."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from genenv.backends.base import Advance, Completion, SampleRequest
from genenv.errors import RolloutError
from genenv.texts import clean
from genenv.types import Group, JsonObject, Message, SimulatorSample

Script = Callable[[str, random.Random], str]
"""(the whole conversation so far as text, randomness of this completion) -> the assistant's reply."""

END = 256
"""The end-of-turn token; tokens below it are UTF-8 bytes."""


class ScriptedPolicy:
    """Answers with a script. Tokens are bytes, so token accounting is exercised as with a real model."""

    closing: tuple[int, ...] = ()

    def __init__(self, script: Script, *, context_tokens: int = 100_000) -> None:
        self.script, self.context_tokens = script, context_tokens
        self.progress: Advance | None = None
        self.sampling_s = 0.0

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Bytes of the messages, each led by its role; tools come first, each a line of JSON."""
        offered = "".join(f"[tool] {json.dumps(tool)}\n" for tool in tools) if first else ""
        text = offered + "".join(f"[{m.role}] {m.content}\n" for m in messages) + "[assistant] "
        return tuple(text.encode() if first else b"\n" + text.encode())

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Bytes and the end token."""
        return (*clean(text).encode(), END)

    async def sample(self, request: SampleRequest) -> Completion:
        """The script's reply, cut at the token limit.

        Raises:
            RolloutError: the prompt leaves no room in the context window.
        """
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError("the prompt leaves no room in the context window")
        prompt = bytes(i for i in request.prompt_ids if i != END).decode(errors="replace")
        start = time.monotonic()
        ids = self.encode_reply(self.script(prompt, random.Random(request.stream)))[: request.max_tokens]
        self.sampling_s += time.monotonic() - start
        finished = ids[-1:] == (END,)
        if self.progress is not None:
            self.progress(len(ids), 1)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=bytes(i for i in ids if i != END).decode(errors="replace"),
            finished=finished,
        )

    def end_round(self) -> None:
        """Nothing is kept."""


class ScriptedLearner:
    """Counts updates, and calls a function with that count: a script can get better with it."""

    def __init__(self, on_update: Callable[[int], None] = lambda count: None) -> None:
        self.count, self.on_update = 0, on_update
        self.progress: Advance | None = None

    def update(
        self, data: Sequence[Group] | Sequence[SimulatorSample], *, seed: int, lr_scale: float = 1.0
    ) -> Mapping[str, float]:
        """One more update, unless there is nothing to learn from."""
        self.count += bool(data)
        self.on_update(self.count)
        return {}

    def save(self, folder: Path) -> None:
        """Write the count."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scripted.json").write_text(json.dumps({"count": self.count}), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Read the count."""
        self.count = json.loads((folder / "scripted.json").read_text(encoding="utf-8"))["count"]
        self.on_update(self.count)
