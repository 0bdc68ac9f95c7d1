"""Player 2 acts: episodes as coroutines, every token kept exactly as it was sampled.

A failed episode is data: it becomes a trace with a stop reason. Anything else propagates.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from genenv.chat.reasoning import CLOSING, answer_of
from genenv.chat.sampler import encode_choices, forced_places
from genenv.chat.tool_calls import normalize_tool_calls
from genenv.environments.base import Environment, Episode, OutOfTurns
from genenv.errors import RolloutError
from genenv.progress import advance
from genenv.sampling import Completion, Conversation, Sampler, SampleRequest, blocked_s
from genenv.seeding import stream
from genenv.types import Choices, Group, JsonObject, LeftOut, Message, StopReason, Task, Trace

CHARS_A_TOKEN = 64
"""Text with more characters for each token of the window does not fit; it is not tokenized to see that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the agent answers."""

    temperature: float
    max_new_tokens: int
    timeout_s: float
    """Of the environment alone: the time the model takes does not count."""
    seed: int


class _EpisodeOver(Exception):
    """The episode cannot have another turn."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class _Clock:
    """Ends an episode whose environment takes too long. It stands still while the model samples.

    Sampling for other episodes may keep the event loop from an environment that waits for something; that
    time is the model's too.
    """

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._left_s = seconds
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """The environment's turn begins."""
        self._end_s = self._now() + self._left_s
        self._timer = self._loop.call_later(self._left_s, self._ring)

    def stop(self) -> float:
        """The environment's turn is over; returns the seconds it has left."""
        self._timer.cancel()
        self._left_s = self._end_s - self._now()
        return self._left_s

    def _now(self) -> float:
        return self._loop.time() - blocked_s()

    def _ring(self) -> None:
        left_s = self._end_s - self._now()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._ring)
        else:
            self.timeout.reschedule(self._loop.time())


@dataclass(slots=True)
class _Conversation:
    """One episode's tokens, turn after turn."""

    sampler: Sampler
    sampling: Sampling
    name: str
    clock: _Clock
    max_turns: int = 1
    tools: Sequence[JsonObject] = ()
    possible: Callable[[], Sequence[str]] = tuple
    """The replies among which the next one must be; none: anything."""
    itself: Conversation = field(default_factory=Conversation)
    version: int | None = None
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choices: list[Choices] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """As the environment got them and a check reads them."""
    messages: list[Message] = field(default_factory=list)
    """What was said after the prompt."""
    turns: list[tuple[int, int, int]] = field(default_factory=list)
    """Where each turn's prompt begins and ends, and where its reply ends."""
    left_out: list[LeftOut] = field(default_factory=list)
    prompt_tokens: int = 0

    async def ask(self, messages: Sequence[Message]) -> str:
        """Append messages, sample the reply, append it."""
        if sum(len(m.content) for m in messages) > CHARS_A_TOKEN * self.sampler.context_tokens:
            raise _EpisodeOver(StopReason.CONTEXT)
        after = self.replies[-1] if self.replies else ""
        if self.replies:
            self._leave_out(messages[0].role)
        begin = len(self.token_ids)
        rendered = self.sampler.render(messages, first=not self.replies, tools=self.tools, after=after)
        self._append(rendered, [0.0] * len(rendered), forced=range(len(rendered)))
        if self.replies:
            self.messages += messages
        else:
            self.prompt_tokens = len(self.token_ids)
        prompt = self._seen()
        if len(prompt) + self.sampling.max_new_tokens > self.sampler.context_tokens:
            raise _EpisodeOver(StopReason.CONTEXT)
        choices = encode_choices(self.possible(), self.sampler, thinks=bool(self.sampler.end_of_thought))
        if choices:
            self.choices.append(Choices(start=len(self.token_ids), replies=choices))
        request = SampleRequest(
            prompt_ids=prompt,
            choices=choices,
            max_tokens=self.sampling.max_new_tokens,
            temperature=self.sampling.temperature,
            stream=stream(self.sampling.seed, self.name, len(self.replies)),
            conversation=self.itself,
            last=len(self.replies) + 1 >= self.max_turns,
        )
        if self.clock.stop() <= 0:  # an environment that never awaits gives the clock no chance to ring
            raise TimeoutError
        completion = await self.sampler.sample(request)
        self.clock.start()
        self.version = completion.version
        asked = len(self.token_ids)
        self._append(completion.token_ids, completion.logprobs, forced=completion.forced)
        self.turns.append((begin, asked, len(self.token_ids)))
        self.replies.append(self._answer(completion))
        self.messages.append(Message(role="assistant", content=self.replies[-1]))
        if not completion.finished:
            raise _EpisodeOver(StopReason.LENGTH)
        return self.replies[-1]

    def _leave_out(self, role: str) -> None:
        """Drop what the template drops of earlier turns when a message of a role follows: their thoughts."""
        now, kept = len(self.token_ids), list[tuple[int, int, int]]()
        for begin, asked, end in self.turns:
            prompt, reply = self.token_ids[begin:asked], self.token_ids[asked:end]
            tail, head, last = self.sampler.left_out(role, prompt, reply)
            spans = ((asked - tail, asked + head), (end - last, end))
            found = [LeftOut(start=start, end=stop, since=now) for start, stop in spans if start < stop]
            self.left_out += found
            kept += [] if found else [(begin, asked, end)]
        self.turns = kept

    def _seen(self) -> tuple[int, ...]:
        """The conversation as the next turn sees it."""
        seen, at = list[int](), 0
        for span in sorted(self.left_out, key=lambda one: one.start):
            seen += self.token_ids[at : span.start]
            at = span.end
        return (*seen, *self.token_ids[at:])

    def _answer(self, completion: Completion) -> str:
        """What of a reply the environment hears: no thoughts, and calls of the model's own form as text."""
        answer = answer_of(
            completion.text, opened=bool(self.sampler.end_of_thought), finished=completion.finished
        )
        return normalize_tool_calls(answer, self.tools) if self.tools else answer

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], *, forced: Container[int]) -> None:
        self.token_ids += ids
        self.sampled += [place not in forced for place in range(len(ids))]
        self.logprobs += logprobs


def tools_of(episode: Episode) -> Sequence[JsonObject]:
    """The tools that the model's chat template is to offer; none where messages describe them."""
    tools: Sequence[JsonObject] = getattr(episode, "tools", ())  # isinstance of a protocol takes 30 us
    return tools


def choices_of(episode: Episode) -> Sequence[str]:
    """The replies that are possible now; none where any text is."""
    choices: Sequence[str] = getattr(episode, "choices", ())
    return choices


async def roll_out(
    env: Environment,
    sampler: Sampler,
    tasks: Sequence[Task],
    *,
    rollouts: int,
    sampling: Sampling,
) -> list[Group]:
    """All rollouts of all tasks, concurrently.

    Args:
        env: plays and grades.
        sampler: answers.
        tasks: [N].
        rollouts: rollouts per task, G.
        sampling: how it answers; its seed and the task's id name the random stream of each rollout.

    Returns:
        [N] groups of G traces, in the order of the tasks.
    """
    names = [(task, f"{task.id}/{i}") for task in tasks for i in range(rollouts)]

    async def play(task: Task, name: str) -> Trace:
        trace = await _episode(env, sampler, task, name, sampling)
        advance(items=1)
        return trace

    traces = await asyncio.gather(*(play(task, name) for task, name in names))
    return [
        Group(task=task, traces=tuple(traces[i * rollouts : (i + 1) * rollouts]))
        for i, task in enumerate(tasks)
    ]


async def demonstration(env: Environment, sampler: Sampler, task: Task) -> Trace:
    """The oracle's solution of a task as a trace, in the sampler's tokens; its log-probabilities are all 0.

    Args:
        env: plays and grades.
        sampler: its chat format and tokens; nothing is sampled.
        task: has a solution, as every task that passed the gate.
    """
    sampling = Sampling(temperature=0.0, max_new_tokens=0, timeout_s=_GUIDE_TIMEOUT_S, seed=0)
    return await _episode(env, _Oracle(sampler, task.oracle), task, f"{task.id}/oracle", sampling)


class _Oracle:
    """A sampler that gives known replies, one after the other, in another sampler's tokens."""

    def __init__(self, sampler: Sampler, replies: Sequence[str]) -> None:
        self.encode_reply, self.end_round = sampler.encode_reply, sampler.end_round
        self.end_of_thought = sampler.end_of_thought
        self.context_tokens, self.left_out = sampler.context_tokens, sampler.left_out
        self._sampler, self._replies = sampler, iter(replies)
        self._tools: Sequence[JsonObject] = ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        self._tools = tools
        return self._sampler.render(messages, first=first, tools=tools, after=after)

    async def sample(self, request: SampleRequest) -> Completion:
        text = next(self._replies, "")
        if self.end_of_thought and not self._tools:  # with tools the template's own form has it
            text = CLOSING + text
        ids = self.encode_reply(text, self._tools)
        if len(request.prompt_ids) + len(ids) > self.context_tokens:
            raise RolloutError(NO_ROOM_FOR_SOLUTION)
        if request.choices and ids not in request.choices:
            raise RolloutError(f"The known solution {text!r} is none of the possible replies.")
        forced = forced_places(ids, request.choices)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), text=text, finished=True, forced=forced)


async def _episode(env: Environment, sampler: Sampler, task: Task, name: str, sampling: Sampling) -> Trace:
    reason, problem = StopReason.DONE, ""
    episode: Episode | None = None
    clock = _Clock(sampling.timeout_s)
    conversation = _Conversation(sampler, sampling, name, clock)
    try:
        async with clock.timeout:
            clock.start()
            try:
                episode = env.episode(task)
                conversation.max_turns = episode.max_turns
                conversation.tools = tools_of(episode)
                conversation.possible = functools.partial(choices_of, episode)
                await episode.run(conversation.ask)
            except _EpisodeOver as over:
                reason = over.reason
                if reason is StopReason.CONTEXT and not conversation.replies:
                    raise RolloutError(_NO_ROOM_FOR_REPLY) from over
            except OutOfTurns:
                reason = StopReason.MAX_TURNS
            finally:
                clock.stop()
    except TimeoutError:
        reason, problem = StopReason.TIMEOUT, f"the environment took longer than {sampling.timeout_s:g} s"
    except RolloutError as error:
        reason, problem = StopReason.ERROR, str(error)
    readable = False
    if reason in (StopReason.TIMEOUT, StopReason.ERROR):
        reward, success = 0.0, False
    elif reason in GRADED:
        graded = getattr(episode, "verdict", None)
        verdict = graded() if graded is not None else env.check(task, conversation.replies)
        reward, success, problem = verdict.reward, verdict.success, verdict.explanation
        readable = verdict.readable
    else:
        reward, success, problem = 0.0, False, UNFINISHED[reason]
    return Trace(
        id=f"{name}@{sampling.seed:016x}",  # all of the seed: ids are unique in a run, over its rounds
        task_id=task.id,
        token_ids=tuple(conversation.token_ids),
        sampled=tuple(conversation.sampled),
        logprobs=tuple(conversation.logprobs),
        prompt_tokens=conversation.prompt_tokens,
        messages=tuple(conversation.messages),
        reward=reward,
        success=success,
        explanation=problem,
        stop_reason=reason,
        version=conversation.version,
        readable=readable,
        choices=tuple(conversation.choices),
        left_out=tuple(conversation.left_out),
    )


_GUIDE_TIMEOUT_S = 120.0

NO_ROOM_FOR_SOLUTION = "The known solution does not fit into the context window."
_NO_ROOM_FOR_REPLY = "The task's prompt leaves no room for a reply in the context window."

GRADED = (StopReason.DONE, StopReason.MAX_TURNS)
"""Why a rollout ended that the environment's check says something of."""
UNFINISHED = {
    StopReason.LENGTH: "The reply reached the token limit before it ended.",
    StopReason.CONTEXT: "The conversation no longer fits into the context window.",
}
"""What is said of a rollout that the policy's limits ended: it failed."""

NO_ROOM = {NO_ROOM_FOR_SOLUTION, _NO_ROOM_FOR_REPLY, UNFINISHED[StopReason.CONTEXT]}
"""What is said of a solution that is right and too long for the policy."""
