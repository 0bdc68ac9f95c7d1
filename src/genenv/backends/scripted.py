"""Players that are Python functions: for tests, and for trying a domain before any model is at hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from genenv.backends.base import Completion, Opened, Role, SampleRequest, blocking
from genenv.backends.settings import PolicyConfig
from genenv.domains.base import Domain
from genenv.errors import RolloutError
from genenv.learning.datum import Datum, Objective
from genenv.learning.settings import Moments
from genenv.runs.progress import advance
from genenv.texts import clean
from genenv.types import JsonObject, Lineage, Message, Rejection, Task

Script = Callable[[str, random.Random], str]
"""(the whole conversation so far as text, randomness of this completion) -> the assistant's reply."""

END = 256
"""The end-of-turn token; tokens below it are UTF-8 bytes."""


class ScriptedSampler:
    """Answers with a script. Tokens are bytes, so token accounting is exercised as with a real model."""

    closing: tuple[int, ...] = ()

    def __init__(self, script: Script, *, context_tokens: int = 100_000) -> None:
        self.script, self.context_tokens = script, context_tokens

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
        text = f"{offered}{_told(messages)}[assistant] "
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
        with blocking():
            ids = self.encode_reply(self.script(prompt, random.Random(request.stream)))[: request.max_tokens]
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=bytes(i for i in ids if i != END).decode(errors="replace"),
            finished=ids[-1:] == (END,),
        )

    def end_round(self) -> None:
        """Nothing is kept."""


class ScriptedTrainer:
    """Counts updates, and calls a function with that count: a script can get better with it."""

    def __init__(self, on_update: Callable[[int], None] = lambda count: None) -> None:
        self.count, self.on_update = 0, on_update
        self._learned = False

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Nothing is trained."""
        advance(items=len(data))
        return {"loss": 0.0}

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """Something was learned."""
        self._learned = True
        return {"grad_norm": 0.0}

    async def watch(self, data: Sequence[Datum]) -> None:
        """Nothing moves."""

    async def moved(self) -> float:
        """Nothing moves."""
        return 0.0

    async def shorten(self, fraction: float) -> None:
        """Nothing moves."""

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """As sampled: certain."""
        return [(0.0,) * len(datum.completion_ids) for datum in data]

    async def anchor(self, moments: Moments) -> None:
        """The script is what it is."""
        self._learned = False

    async def publish(self) -> int:
        """One more update, unless there was nothing to learn from."""
        self.count += self._learned
        self._learned = False
        self.on_update(self.count)
        return self.count

    async def save(self, folder: Path) -> None:
        """Write the count."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scripted.json").write_text(json.dumps({"count": self.count}), encoding="utf-8")

    async def load(self, folder: Path) -> None:
        """Read the count."""
        self.count = json.loads((folder / "scripted.json").read_text(encoding="utf-8"))["count"]
        self.on_update(self.count)


class Oracle:
    """Plays a domain without a model: solves tasks more often with every update, and writes variations.

    It knows the solution of a task by the task's messages: of held-out tasks, and of all that the domain has
    built since.
    """

    FIRST, GAIN, MOST = 0.3, 0.1, 0.9
    """How often it solves a task before the first update, what an update adds, and what it comes to."""
    BROKEN = 0.1
    """How often a spec breaks off."""

    def __init__(self, domain: Domain) -> None:
        self.domain, self.updates = domain, 0
        self._seeds = list(domain.seeds())
        self._tasks = {_told(task.messages): task for task in domain.held_out()}
        self._build = domain.build
        setattr(domain, "build", self._remembering)  # noqa: B010 - an instance's method is replaced

    def learn(self, updates: int) -> None:
        """Be as good as after so many updates."""
        self.updates = updates

    def solve(self, prompt: str, rng: random.Random) -> str:
        """The next reply of the known solution, or of an uninformed attempt."""
        question, *turns = prompt.split("[assistant] ")
        task = self._tasks.get(question)
        if task is None:
            return ""
        right = rng.random() < min(self.MOST, self.FIRST + self.GAIN * self.updates)
        replies = (*(task.oracle if right else self.domain.random_replies(task, rng)), "")
        return replies[min(len(turns), len(replies)) - 1]

    def write(self, prompt: str, rng: random.Random) -> str:
        """A spec of the domain's own, which varies any seed."""
        written = json.dumps(self.domain.variation(rng.choice(self._seeds), rng), ensure_ascii=False)
        return written[: len(written) // 2] if rng.random() < self.BROKEN else written

    def _remembering(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        built = self._build(spec, task_id=task_id, lineage=lineage, rng=rng)
        if isinstance(built, Task):
            self._tasks[_told(built.messages)] = built
        return built


def open_scripted(config: PolicyConfig, roles: Sequence[Role], domain: Domain, seed: int) -> Opened:
    """An `Oracle` in the place of both models: a whole run in seconds, to try a domain and its settings."""
    oracle = Oracle(domain)
    scripts = {"agent": oracle.solve, "simulator": oracle.write}
    samplers = {role.name: ScriptedSampler(scripts[role.name]) for role in roles}
    trainers = {role.name: ScriptedTrainer() for role in roles}
    trainers["agent"].on_update = oracle.learn
    return Opened(samplers=samplers, trainers=trainers, settled=config, warms_up=False)


def _told(messages: Sequence[Message]) -> str:
    return "".join(f"[{message.role}] {message.content}\n" for message in messages)
