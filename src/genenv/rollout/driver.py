"""Rolls out the agent policy: episodes as coroutines, with every token kept exactly as it was sampled.

A failed episode becomes a trace with a stop reason. Any other exception propagates.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import cast

from genenv.chat.reasoning import CLOSING, answer_of
from genenv.chat.sampler import encode_choices, forced_places
from genenv.chat.tool_calls import normalize_tool_calls
from genenv.environments.base import (
    Ask,
    Environment,
    Episode,
    OutOfTurns,
    SeatedEpisode,
    choices_of,
    failed,
    tools_of,
    verdict_of,
)
from genenv.errors import ContextOverflow, RolloutError
from genenv.progress import advance
from genenv.sampling import Completion, Conversation, Sampler, SampleRequest, blocked_s
from genenv.seeding import stream
from genenv.types import Choices, Group, JsonObject, LeftOut, Message, StopReason, Task, Trace, Verdict

CHARS_A_TOKEN = 64
"""Maximum characters per token of the context window. Longer prompts are rejected without tokenizing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of rollouts."""

    temperature: float
    max_new_tokens: int
    timeout_s: float
    """Time limit for the environment, in seconds. The model's sampling time does not count."""
    seed: int


class EpisodeOver(Exception):
    """Raised in place of a reply: the agent cannot have another turn."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class OutOfTime(RolloutError):
    """The environment took longer than a rollout allows it."""


class _NoTimeLeft(Exception):
    """The environment has used up its time."""


class _Clock:
    """Ends an episode whose environment takes too long. The clock stops while the model samples.

    Sampling for other episodes may block the event loop while this environment waits. That time does not
    count either.
    """

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._left_s = seconds
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start the clock: the environment is working."""
        self._end_s = self._now() + self._left_s
        self._timer = self._loop.call_later(self._left_s, self._ring)

    def stop(self) -> float:
        """Stop the clock and return the environment's remaining seconds."""
        self._timer.cancel()
        self._left_s = self._end_s - self._now()
        return self._left_s

    @contextlib.contextmanager
    def stopped(self) -> Generator[None]:
        """Stop the clock in this context.

        Raises:
            _NoTimeLeft: of the environment. One that never awaits gives the clock no chance to ring.
        """
        if self.stop() <= 0:
            raise _NoTimeLeft
        try:
            yield
        finally:
            self.start()

    def _now(self) -> float:
        return self._loop.time() - blocked_s()

    def _ring(self) -> None:
        left_s = self._end_s - self._now()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._ring)
        else:
            self.timeout.reschedule(self._loop.time())


_CLOCK: ContextVar[_Clock] = ContextVar("genenv_clock")


def not_counted() -> AbstractContextManager[None]:
    """Stop the clock of the current rollout, if there is one, while its environment waits for other rollouts.

    Raises:
        _NoTimeLeft: the environment has used up its time; raised on entering the context.
    """
    clock = _CLOCK.get(None)
    return contextlib.nullcontext() if clock is None else clock.stopped()


@dataclass(slots=True)
class _Conversation:
    """The tokens of one episode, collected turn by turn."""

    sampler: Sampler
    sampling: Sampling
    name: str
    max_turns: int = 1
    possible: Callable[[], Sequence[str]] = tuple
    """Returns the possible next replies. Empty: any reply."""
    itself: Conversation = field(default_factory=Conversation)
    version: int | None = None
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choices: list[Choices] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """The agent's replies, as the environment receives them and the checker reads them."""
    turns: list[tuple[int, int, int]] = field(default_factory=list)
    """For each turn: start of its prompt, end of its prompt, end of its reply."""
    left_out: list[LeftOut] = field(default_factory=list)
    prompt_tokens: int = 0
    prompt_messages: int = 0
    """How many messages are the prompt, and so do not belong to the trace."""
    own_prompt: bool = False
    """Whether the prompt is not `task.messages`, and so belongs to the messages of the trace."""
    episode: Episode | None = None

    def begin(self, episode: Episode) -> Episode:
        """Know what an episode offers, and return it."""
        self.episode = episode
        self.max_turns = episode.max_turns
        self.itself.tools = tools_of(episode)
        self.possible = functools.partial(choices_of, episode)
        return episode

    async def ask(self, messages: Sequence[Message]) -> str:
        """Append messages, sample the reply, append the reply and return its text."""
        if sum(len(m.content) for m in messages) > CHARS_A_TOKEN * self.sampler.context_tokens:
            raise EpisodeOver(StopReason.CONTEXT)
        after = self.replies[-1] if self.replies else ""
        if self.replies:
            self._leave_out([message.role for message in messages])
        elif not self.own_prompt:
            self.prompt_messages = len(messages)
        self.itself.messages += messages
        begin, tools = len(self.token_ids), self.itself.tools
        rendered = self.sampler.render(messages, first=not self.replies, tools=tools, after=after)
        if self.replies and [*rendered[:1]] == self.token_ids[-1:]:
            rendered = rendered[1:]  # what ended the reply begins the next message, as `<|user|>` of GLM does
        self._append(rendered, [0.0] * len(rendered), forced=range(len(rendered)))
        if not self.replies:
            self.prompt_tokens = len(self.token_ids)
        prompt = self._seen()
        if len(prompt) + self.sampling.max_new_tokens > self.sampler.context_tokens:
            raise EpisodeOver(StopReason.CONTEXT)
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
        try:
            completion = await self.sampler.sample(request)
        except ContextOverflow as error:  # of a model whose window is not known here
            raise EpisodeOver(StopReason.CONTEXT) from error
        self.version = completion.version
        asked = len(self.token_ids)
        self._append(completion.token_ids, completion.logprobs, forced=completion.forced)
        self.turns.append((begin, asked, len(self.token_ids)))
        self.replies.append(self._answer(completion))
        self.itself.messages.append(Message(role="assistant", content=self.replies[-1]))
        if not completion.finished:
            raise EpisodeOver(StopReason.LENGTH)
        return self.replies[-1]

    def _leave_out(self, roles: Sequence[str]) -> None:
        """Mark the tokens of earlier turns that the template drops before messages with these roles."""
        now, kept = len(self.token_ids), list[tuple[int, int, int]]()
        for begin, asked, end in self.turns:
            prompt, reply = self.token_ids[begin:asked], self.token_ids[asked:end]
            tail, head, last = self.sampler.left_out(roles, prompt, reply)
            spans = ((asked - tail, asked + head), (end - last, end))
            found = [LeftOut(start=start, end=stop, since=now) for start, stop in spans if start < stop]
            self.left_out += found
            kept += [] if found else [(begin, asked, end)]
        self.turns = kept

    def _seen(self) -> tuple[int, ...]:
        """Return the tokens of the conversation that the next turn sees."""
        seen, at = list[int](), 0
        for span in sorted(self.left_out, key=lambda one: one.start):
            seen += self.token_ids[at : span.start]
            at = span.end
        return (*seen, *self.token_ids[at:])

    def _answer(self, completion: Completion) -> str:
        """Return the environment's view of a reply: no thoughts, and native tool calls converted to text."""
        answer = answer_of(
            completion.text, opened=bool(self.sampler.end_of_thought), finished=completion.finished
        )
        tools = self.itself.tools
        return normalize_tool_calls(answer, tools) if tools else answer

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], *, forced: Container[int]) -> None:
        self.token_ids += ids
        self.sampled += [place not in forced for place in range(len(ids))]
        self.logprobs += logprobs


async def play(begin: Callable[[], Episode], ask: Ask, *, timeout_s: float) -> StopReason:
    """Run an episode to its end; returns why it ended.

    Args:
        begin: makes the episode.
        ask: the agent's replies; may raise `EpisodeOver`.
        timeout_s: of the environment alone: the time of `ask` and that in `not_counted` do not count.

    Raises:
        OutOfTime: the environment took longer.
        RolloutError: the episode cannot go on.
    """
    clock = _Clock(timeout_s)

    async def timed(messages: Sequence[Message]) -> str:
        with clock.stopped():
            return await ask(messages)

    before = _CLOCK.set(clock)
    try:
        async with clock.timeout:
            clock.start()
            try:
                await begin().run(timed)
            except EpisodeOver as over:
                return over.reason
            except OutOfTurns:
                return StopReason.MAX_TURNS
            finally:
                clock.stop()
    except (TimeoutError, _NoTimeLeft) as error:
        if isinstance(error, TimeoutError) and not clock.timeout.expired():  # of the environment's own code
            raise
        raise OutOfTime(f"the environment took longer than {timeout_s:g} s") from error
    finally:
        _CLOCK.reset(before)
    return StopReason.DONE


async def roll_out(
    env: Environment,
    sampler: Sampler,
    tasks: Sequence[Task],
    *,
    rollouts: int,
    sampling: Sampling,
) -> list[Group]:
    """Roll out all tasks concurrently and return one group of traces per task.

    Args:
        env: the environment that runs and grades the episodes.
        sampler: the model that replies.
        tasks: [N] tasks.
        rollouts: rollouts per task, G.
        sampling: sampling parameters. Its seed and the task's id name the random stream of each rollout.

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
    """Return a task's demonstration as a trace, in the sampler's tokens, with log-probabilities of 0.

    Args:
        env: the environment that runs and grades the episode.
        sampler: provides the chat format and the tokenizer; it samples nothing.
        task: a task with a known solution, as every task that passed the gate.
    """
    sampling = Sampling(temperature=0.0, max_new_tokens=0, timeout_s=_GUIDE_TIMEOUT_S, seed=0)
    return await _episode(env, _Oracle(sampler, task.oracle), task, f"{task.id}/oracle", sampling)


class _Oracle:
    """A sampler that returns given replies one after another, in another sampler's tokens."""

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
    conversation, problem = _Conversation(sampler, sampling, name), ""
    try:
        reason = await play(
            lambda: conversation.begin(env.episode(task)), conversation.ask, timeout_s=sampling.timeout_s
        )
        if reason is StopReason.CONTEXT and not conversation.replies:
            raise RolloutError(_NO_ROOM_FOR_REPLY)
    except OutOfTime as error:
        reason, problem = StopReason.TIMEOUT, str(error)
    except RolloutError as error:
        reason, problem = StopReason.ERROR, str(error)
    if reason in GRADED:
        verdict = verdict_of(env, task, conversation.episode, conversation.replies)
    else:
        verdict = failed(UNFINISHED.get(reason, problem))
    return _trace(conversation, task, reason, verdict)


def _trace(conversation: _Conversation, task: Task, reason: StopReason, verdict: Verdict) -> Trace:
    seed = conversation.sampling.seed  # all of it: ids are unique in a run, over its rounds
    return Trace(
        id=f"{conversation.name}@{seed:016x}",
        task_id=task.id,
        token_ids=tuple(conversation.token_ids),
        sampled=tuple(conversation.sampled),
        logprobs=tuple(conversation.logprobs),
        prompt_tokens=conversation.prompt_tokens,
        messages=tuple(conversation.itself.messages[conversation.prompt_messages :]),
        reward=verdict.reward,
        success=verdict.success,
        explanation=verdict.explanation,
        stop_reason=reason,
        version=conversation.version,
        readable=verdict.readable,
        choices=tuple(conversation.choices),
        left_out=tuple(conversation.left_out),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A policy at a seat, with the sampling parameters of its rollouts."""

    sampler: Sampler
    sampling: Sampling
    agent: str
    """Name of the agent."""


async def roll_out_seats(
    env: Environment, players: Mapping[str, Player], tasks: Sequence[Task], *, rollouts: int
) -> list[Group]:
    """Roll out all tasks concurrently with a policy at each of these seats; code plays the other seats.

    Each episode has one trace per seat, except for a seat that was never asked. An episode ends when a reply
    is cut off: the seat whose reply it is has failed, and the traces of other seats do not count. The time
    limit of the environment is that of the first player.

    Args:
        env: an environment with seats.
        players: the policies by seat.
        tasks: [N] tasks.
        rollouts: episodes per task, G.

    Returns:
        Groups of at most G traces: those of the first player in the order of tasks, then those of the next.
    """

    async def play(task: Task, number: int) -> Mapping[str, Trace]:
        traces = await _seated_episode(env, players, task, f"{task.id}/{number}")
        advance(items=1)
        return traces

    played = await asyncio.gather(*(play(task, i) for task in tasks for i in range(rollouts)))
    return [
        Group(
            task=task,
            traces=tuple(one[seat] for one in played[i * rollouts :][:rollouts] if seat in one),
            agent=player.agent,
            seat=seat,
        )
        for seat, player in players.items()
        for i, task in enumerate(tasks)
    ]


@dataclass(slots=True)
class _Table:
    """The conversations of the seats of one episode, of which one is asked at a time."""

    conversations: Mapping[str, _Conversation]
    episode: SeatedEpisode | None = None
    max_turns: int = 1
    asked: str = ""
    """The seat that was asked last."""

    def begin(self, episode: Episode) -> Episode:
        """Know what an episode offers to each seat, and return it as an episode of all of them."""
        self.episode = cast(SeatedEpisode, episode)
        for seat, conversation in self.conversations.items():
            _ = conversation.begin(episode)
            if seat != self.episode.seats[0]:
                conversation.itself.tools, conversation.own_prompt = (), True
        return self

    async def run(self, ask: Ask) -> None:
        """Hold the episode; see `Episode`."""
        assert self.episode is not None  # noqa: S101 - `begin` has set it

        def of(seat: str) -> Ask:
            async def asks(messages: Sequence[Message]) -> str:
                self.asked = seat
                return await ask(messages)

            return asks

        await self.episode.play_seats({seat: of(seat) for seat in self.conversations})

    async def ask(self, messages: Sequence[Message]) -> str:
        """Return the reply of the seat that is asked."""
        return await self.conversations[self.asked].ask(messages)


async def _seated_episode(
    env: Environment, players: Mapping[str, Player], task: Task, name: str
) -> Mapping[str, Trace]:
    """Return the trace of each seat that was asked; where the episode itself failed, of every seat."""
    table = _Table(
        {
            seat: _Conversation(player.sampler, player.sampling, f"{name}/{seat}")
            for seat, player in players.items()
        }
    )
    timeout_s, problem = next(iter(players.values())).sampling.timeout_s, ""
    try:
        reason = await play(lambda: table.begin(env.episode(task)), table.ask, timeout_s=timeout_s)
        if reason is StopReason.CONTEXT and not table.conversations[table.asked].replies:
            raise RolloutError(_NO_ROOM_FOR_REPLY)
    except OutOfTime as error:
        reason, problem = StopReason.TIMEOUT, str(error)
    except RolloutError as error:
        reason, problem = StopReason.ERROR, str(error)
    missed = failed(UNFINISHED.get(reason, problem))
    verdicts = dict.fromkeys(table.conversations, missed)
    if reason in GRADED and table.episode is not None:
        graded = table.episode.verdicts()
        verdicts = {seat: graded.get(seat, missed) for seat in table.conversations}
    team = tuple(verdicts.values())
    found: dict[str, Trace] = {}
    for seat, conversation in table.conversations.items():
        of_seat, verdict = reason, verdicts[seat]
        if reason in UNFINISHED and seat != table.asked:
            of_seat, verdict = StopReason.ERROR, failed(f"The {table.asked}'s reply was cut off.")
        if conversation.replies or seat == table.asked or not (reason in GRADED or reason in UNFINISHED):
            found[seat] = replace(_trace(conversation, task, of_seat, verdict), team=team)
    return found


_GUIDE_TIMEOUT_S = 120.0

NO_ROOM_FOR_SOLUTION = "The known solution does not fit into the context window."
_NO_ROOM_FOR_REPLY = "The task's prompt leaves no room for a reply in the context window."

GRADED = (StopReason.DONE, StopReason.MAX_TURNS)
"""Stop reasons of rollouts that the environment's checker grades."""
UNFINISHED = {
    StopReason.LENGTH: "The reply reached the token limit before it ended.",
    StopReason.CONTEXT: "The conversation no longer fits into the context window.",
}
"""Explanations of rollouts that failed because they hit a limit of the policy."""

NO_ROOM = {NO_ROOM_FOR_SOLUTION, _NO_ROOM_FOR_REPLY, UNFINISHED[StopReason.CONTEXT]}
"""Explanations of correct solutions that are too long for the policy."""
