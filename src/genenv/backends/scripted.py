"""Policies that are Python functions: for tests, and for trying an environment without a model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import Moments
from genenv.backends.base import Opened, Role
from genenv.backends.settings import PolicyConfig
from genenv.chat.sampler import forced_places
from genenv.environments.base import Environment, Episode
from genenv.errors import RolloutError
from genenv.progress import advance
from genenv.sampling import Completion, SampleRequest, blocking
from genenv.texts import clean
from genenv.types import JsonObject, Message, Task

Script = Callable[[str, random.Random], str]
"""(the conversation so far as text, random generator of this completion) -> the assistant's reply."""

END = 256
"""The id of the end-of-turn token; ids below 256 are UTF-8 bytes."""
BYTES_A_TOKEN = 4
"""Approximate number of bytes per token of a real model, by which a run's token limits are converted."""


_TURN = "[assistant] "
_OFFERED = re.compile(r"\A(\[tool\] .*\n)+")


class ScriptedSampler:
    """A sampler that answers with a script. Its tokens are bytes, so tokens are counted as for a model."""

    end_of_thought: tuple[int, ...] = ()

    def __init__(self, script: Script, *, context_tokens: int = 100_000, bytes_a_token: int = 1) -> None:
        """Create a sampler from a script.

        Args:
            script: the function that writes each reply.
            context_tokens: the longest sequence, in bytes.
            bytes_a_token: how many bytes of a reply count as one token of a request's limit.
        """
        self.script, self.context_tokens, self.bytes_a_token = script, context_tokens, bytes_a_token

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Return the bytes of the messages, each after its role; tools come first, one line of JSON each."""
        offered = "".join(f"[tool] {json.dumps(tool)}\n" for tool in tools) if first else ""
        text = f"{offered}{_conversation_text(messages)}{_TURN}"
        return tuple(text.encode() if first else b"\n" + text.encode())

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Return the bytes of the reply and the end token."""
        return (*clean(text).encode(), END)

    def left_out(
        self, roles: Sequence[str], prompt: Sequence[int], reply: Sequence[int]
    ) -> tuple[int, int, int]:
        """Return zeros: a chat template drops nothing, since scripts write no thoughts."""
        return 0, 0, 0

    async def sample(self, request: SampleRequest) -> Completion:
        """Return the script's reply, cut at the token limit.

        Raises:
            RolloutError: the prompt leaves no room in the context window.
        """
        most = request.max_tokens * self.bytes_a_token
        if len(request.prompt_ids) + most > self.context_tokens:
            raise RolloutError("the prompt leaves no room in the context window")
        prompt = bytes(i for i in request.prompt_ids if i != END).decode(errors="replace")
        with blocking():
            rng = random.Random(request.stream)
            ids = self.encode_reply(self.script(prompt, rng))
            if request.choices and ids not in request.choices:
                ids = rng.choice(request.choices)
            forced, ids = forced_places(ids, request.choices), ids[:most]
        advance(tokens=len(ids))
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=bytes(i for i in ids if i != END).decode(errors="replace"),
            finished=ids[-1:] == (END,),
            forced=forced,
        )

    def end_round(self) -> None:
        """Do nothing: there are no caches."""


class ScriptedTrainer:
    """A trainer that only counts updates; it passes the count to a function, so that a script can improve."""

    def __init__(self, on_update: Callable[[int], None] = lambda count: None) -> None:
        self.count, self.on_update = 0, on_update
        self._learned = False

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Return a loss of 0 without training."""
        advance(items=len(data))
        return {"loss": 0.0} | ({"old_kl": 0.0} if any(datum.is_policy_gradient for datum in data) else {})

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """Note that there was a step, so that `publish` counts an update."""
        self._learned = True
        return {"grad_norm": 0.0}

    async def watch(self, data: Sequence[Datum]) -> None:
        """Do nothing: there are no weights that could move."""

    async def moved(self) -> float:
        """Return 0: there are no weights that could move."""
        return 0.0

    async def shorten(self, fraction: float) -> None:
        """Do nothing: there is no step that could be shortened."""

    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """Return a log-probability of 0 for each token, as `ScriptedSampler` does."""
        return [(0.0,) * len(datum.completion_ids) for datum in data]

    async def anchor(self, moments: Moments) -> None:
        """Forget the steps so far; there are no weights to keep as a reference."""
        self._learned = False

    async def publish(self) -> int:
        """Add one to the count if there was a step since the last call; return the count."""
        self.count += self._learned
        self._learned = False
        self.on_update(self.count)
        return self.count

    async def save(self, folder: Path) -> None:
        """Write the count to `scripted.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scripted.json").write_text(json.dumps({"count": self.count}), encoding="utf-8")

    async def load(self, folder: Path) -> None:
        """Read the count from `scripted.json`."""
        self.count = json.loads((folder / "scripted.json").read_text(encoding="utf-8"))["count"]
        self.on_update(self.count)


class Oracle:
    """A stand-in for both models: solves tasks more often after each update, and writes varied specs.

    It looks up a task's demonstration by the task's messages, which it records whenever an episode starts.
    """

    FIRST, GAIN, MOST = 0.3, 0.1, 0.9
    """Success rate before the first update, gain per update, and maximum."""
    BROKEN = 0.1
    """Probability that a spec is cut in half, so that the gate must reject it."""

    def __init__(self, env: Environment) -> None:
        self.env, self.updates = env, 0
        self._seeds = list(env.seeds())
        self._tasks: dict[str, Task] = {}
        self._episode = env.episode
        setattr(env, "episode", self._recording_episode)  # noqa: B010 - an instance's method is replaced

    def learn(self, updates: int) -> None:
        """Set the number of updates, which determines the success rate."""
        self.updates = updates

    def solve(self, prompt: str, rng: random.Random) -> str:
        """Return the next reply of the demonstration or of random replies, as the episode began."""
        question, *said, _ = prompt.split(_TURN)
        task = self._tasks.get(_OFFERED.sub("", question))
        if task is None:
            return ""
        right = all(text.startswith(reply) for text, reply in zip(said, task.oracle, strict=False))
        if not said:
            right = rng.random() < min(self.MOST, self.FIRST + self.GAIN * self.updates)
        replies = (*(task.oracle if right else self.env.random_replies(task, rng)), "")
        return replies[min(len(said), len(replies) - 1)]

    def write(self, prompt: str, rng: random.Random) -> str:
        """Return a JSON spec: a variation of a random seed spec, sometimes cut in half."""
        written = json.dumps(self.env.variation(rng.choice(self._seeds), rng), ensure_ascii=False)
        return written[: len(written) // 2] if rng.random() < self.BROKEN else written

    def _recording_episode(self, task: Task) -> Episode:
        self._tasks[_conversation_text(task.messages)] = task
        return self._episode(task)


def open_scripted(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open an `Oracle` in place of each model: a whole run takes seconds, to try out an environment."""
    agents = {role.name: Oracle(env) for role in roles if role.name != "simulator"}
    scripts = {name: oracle.solve for name, oracle in agents.items()}
    writer = next(iter(agents.values())) if agents else Oracle(env)
    scripts["simulator"] = writer.write
    samplers = {role.name: ScriptedSampler(scripts[role.name], bytes_a_token=BYTES_A_TOKEN) for role in roles}
    trainers = {role.name: ScriptedTrainer() for role in roles}
    for name, oracle in agents.items():
        trainers[name].on_update = oracle.learn
    return Opened(samplers=samplers, trainers=trainers, settled=config, warms_up=False, scores_written=True)


def _conversation_text(messages: Sequence[Message]) -> str:
    return "".join(f"[{message.role}] {message.content}\n" for message in messages)
