"""An attempt keeps exactly the ids that were sampled; how it ended is data; anything else propagates."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.scripted import END, ScriptedSampler
from genenv.errors import RolloutError
from genenv.rollout.driver import Sampling, roll_out
from genenv.sampling import Completion, blocked_s
from genenv.seeding import stream
from genenv.types import Message, StopReason
from talk import said


def solver(prompt: str, rng: random.Random) -> str:
    """Reads the two numbers of a toy task and adds them."""
    words = prompt.split("\n")[0].split()
    return str(int(words[-3]) + int(words[-1]))


class Acting:
    """A toy environment whose episodes are one given coroutine."""

    max_turns = 3

    def __init__(self, toy, run) -> None:
        self.inner, self._run = toy.Environment(), run

    def episode(self, task):
        return self

    async def run(self, ask) -> None:
        await self._run(ask)

    def check(self, task, replies):
        return self.inner.check(task, replies)


def play(env, sampler, tasks, *, rollouts=1, **changes):
    values = {"temperature": 1.0, "max_new_tokens": 20, "timeout_s": 5.0, "seed": 0}
    sampling = Sampling(**(values | changes))
    return asyncio.run(roll_out(env, sampler, tasks, rollouts=rollouts, sampling=sampling))


def only(groups):
    (group,) = groups
    (trace,) = group.traces
    return trace


def test_a_trace_holds_exactly_what_was_rendered_and_sampled_turn_after_turn(toy):
    sampler = ScriptedSampler(solver)
    task = toy.task(1, 2, turns=3)
    trace = only(play(toy.Environment(), sampler, [task]))
    prompt = sampler.render(task.messages, first=True)
    again = sampler.render([Message(role="tool", content="once more")], first=False)
    reply = (*b"3", END)
    assert trace.token_ids == prompt + reply + again + reply + again + reply
    assert trace.prompt_tokens == len(prompt)
    flags = [False] * len(prompt) + ([True] * 2 + [False] * len(again)) * 2 + [True] * 2
    assert list(trace.sampled) == flags
    assert trace.response_tokens == 6
    once_more = Message(role="tool", content="once more")
    assert trace.messages == (*said("3"), once_more, *said("3"), once_more, *said("3"))
    assert trace.replies == ("3", "3", "3")
    assert trace.version == 0, "nothing has been published"
    assert (trace.reward, trace.success, trace.stop_reason) == (1.0, True, StopReason.DONE)
    assert trace.readable
    assert len(trace.logprobs) == len(trace.token_ids)


def test_groups_come_back_in_the_order_of_tasks_and_each_attempt_has_its_own_stream(toy):
    def guess(prompt: str, rng: random.Random) -> str:
        return str(rng.randint(0, 10**9))

    tasks = [toy.task(1, 2, name="a"), toy.task(3, 4, name="b")]
    groups = play(toy.Environment(), ScriptedSampler(guess), tasks, rollouts=3)
    assert [group.task.id for group in groups] == ["a", "b"]
    assert len({trace.replies for group in groups for trace in group.traces}) == 6
    assert len({trace.id for group in groups for trace in group.traces}) == 6
    alone = play(toy.Environment(), ScriptedSampler(guess), tasks[1:], rollouts=3)
    assert alone[0] == groups[1]
    other = play(toy.Environment(), ScriptedSampler(guess), tasks[1:], rollouts=3, seed=1)
    assert not {t.replies for t in other[0].traces} & {t.replies for t in groups[1].traces}


def test_attempts_at_one_task_in_two_rounds_have_different_ids(toy):
    seeds = [stream(3205, "rollout", round_) for round_ in (20, 47)]
    assert len({seed & 0xFFFFFF for seed in seeds}) == 1
    traces = [
        only(play(toy.Environment(), ScriptedSampler(solver), [toy.task()], seed=seed)) for seed in seeds
    ]
    assert traces[0].id != traces[1].id


def test_a_reply_that_reaches_the_token_limit_is_a_failure_that_counts(toy):
    trace = only(play(toy.Environment(), ScriptedSampler(lambda *_: "3" * 50), [toy.task()]))
    assert trace.stop_reason is StopReason.LENGTH
    assert (trace.reward, trace.success, trace.response_tokens) == (0.0, False, 20)
    assert trace.readable is False
    assert trace.replies == ("3" * 20,)
    assert "token limit" in trace.explanation


def test_a_prompt_that_leaves_no_room_for_a_reply_is_no_attempt(toy):
    task = toy.task(turns=3)
    prompt = len(ScriptedSampler(solver).render(task.messages, first=True))
    (group,) = play(toy.Environment(), ScriptedSampler(solver, context_tokens=prompt), [task])
    assert group.traces[0].stop_reason is StopReason.ERROR
    assert "no room" in group.traces[0].explanation
    assert group.valid == ()


def test_a_conversation_that_no_longer_fits_is_a_failure_that_counts(toy):
    task = toy.task(turns=3)
    prompt = len(ScriptedSampler(solver).render(task.messages, first=True))
    sampler = ScriptedSampler(solver, context_tokens=prompt + 24)
    groups = play(toy.Environment(), sampler, [task])
    trace = only(groups)
    assert trace.stop_reason is StopReason.CONTEXT
    assert len(trace.replies) == 1
    assert trace.response_tokens == 2
    assert groups[0].valid == (trace,)
    assert "context window" in trace.explanation


def test_a_policy_that_cannot_answer_is_a_failure_that_does_not_count(toy):
    class Broken(ScriptedSampler):
        async def sample(self, request):
            raise RolloutError("the endpoint is gone")

    (group,) = play(toy.Environment(), Broken(solver), [toy.task()])
    assert group.traces[0].stop_reason is StopReason.ERROR
    assert group.traces[0].explanation == "the endpoint is gone"
    assert group.valid == ()
    assert group.traces[0].reward == 0.0
    assert group.traces[0].readable is False


def test_an_environment_that_hangs_is_a_failure_that_does_not_count(toy):
    async def hang(ask) -> None:
        await ask(toy.task().messages)
        await asyncio.sleep(60)

    (group,) = play(Acting(toy, hang), ScriptedSampler(solver), [toy.task()], timeout_s=0.05)
    assert group.traces[0].stop_reason is StopReason.TIMEOUT
    assert group.traces[0].replies == ("3",)
    assert "longer than 0.05 s" in group.traces[0].explanation
    assert group.valid == ()


def test_an_environment_that_never_awaits_cannot_outrun_the_clock(toy):
    async def work(ask) -> None:
        for _ in range(50):
            time.sleep(0.02)
            await ask(toy.task().messages)

    start = time.monotonic()
    trace = only(play(Acting(toy, work), ScriptedSampler(solver), [toy.task()], timeout_s=0.05))
    assert trace.stop_reason is StopReason.TIMEOUT
    assert time.monotonic() - start < 0.9


def test_a_timeout_before_the_first_token_is_a_trace_too(toy):
    async def wait(ask) -> None:
        await asyncio.sleep(10)

    trace = only(play(Acting(toy, wait), ScriptedSampler(solver), [toy.task()], timeout_s=1e-9))
    assert trace.stop_reason is StopReason.TIMEOUT
    assert trace.token_ids == trace.sampled == trace.logprobs == ()


def test_the_time_that_the_policy_takes_does_not_count(toy):
    class Slow(ScriptedSampler):
        async def sample(self, request):
            await asyncio.sleep(0.1)
            return await super().sample(request)

    trace = only(play(toy.Environment(), Slow(solver), [toy.task(turns=2)], timeout_s=0.08))
    assert trace.stop_reason is StopReason.DONE
    assert trace.success


def test_the_turns_of_an_attempt_are_one_conversation_and_the_last_one_is_told(toy):
    asked, written = [], {}

    class Remembering(ScriptedSampler):
        async def sample(self, request):
            asked.append(request)
            completion = await super().sample(request)
            memory = written.get(request.conversation, ())
            assert request.prompt_ids[: len(memory)] == memory  # it goes on exactly where it was
            written[request.conversation] = (*request.prompt_ids, *completion.token_ids)
            return completion

    play(
        toy.Environment(),
        Remembering(solver),
        [toy.task(i, 2, turns=3, name=f"task-{i}") for i in range(2)],
        rollouts=2,
    )
    assert len(asked) == 12
    turns = [[r for r in asked if r.conversation is conversation] for conversation in written]
    assert None not in written
    assert [len(own) for own in turns] == [3] * 4
    assert [[request.last for request in own] for own in turns] == [[False, False, True]] * 4
    assert not any(request.survives_cut for request in asked)  # what is cut off has ended


def one_waits_while_another_is_answered(toy):
    """Of two attempts, one waits for 0.01 s before it asks, the other asks at once."""
    waits = iter((True, False))

    async def run(ask) -> None:
        if next(waits):
            await asyncio.sleep(0.01)
        await ask(toy.task().messages)

    return Acting(toy, run)


@pytest.mark.long
def test_sampling_for_one_attempt_does_not_count_for_another_that_waits(toy):
    def slow(prompt: str, rng: random.Random) -> str:
        time.sleep(0.5)
        return "3"

    env = one_waits_while_another_is_answered(toy)
    (group,) = play(env, ScriptedSampler(slow), [toy.task()], rollouts=2, timeout_s=0.3)
    assert [trace.stop_reason for trace in group.traces] == [StopReason.DONE] * 2


@pytest.mark.long
def test_a_batch_of_a_local_model_does_not_count_for_an_attempt_that_waits(tiny, toy, monkeypatch):
    sampler, before = tiny.player(), blocked_s()
    plain = sampler.sample_all
    monkeypatch.setattr(sampler, "sample_all", lambda requests: time.sleep(0.5) or plain(requests))
    env = one_waits_while_another_is_answered(toy)
    (group,) = play(env, sampler, [toy.task()], rollouts=2, timeout_s=0.3)
    assert StopReason.TIMEOUT not in {trace.stop_reason for trace in group.traces}
    assert blocked_s() - before >= 0.5


def test_an_environment_that_hangs_is_stopped_although_others_are_answered(toy):
    """Only what sampling took is added to its time."""
    hanging = iter((True, False))

    async def run(ask) -> None:
        if next(hanging):
            await asyncio.sleep(60)
        for _ in range(3):
            await ask(toy.task().messages)

    def slow(prompt: str, rng: random.Random) -> str:
        time.sleep(0.05)
        return "3"

    start = time.monotonic()
    (group,) = play(Acting(toy, run), ScriptedSampler(slow), [toy.task()], rollouts=2, timeout_s=0.1)
    assert [trace.stop_reason for trace in group.traces] == [StopReason.TIMEOUT, StopReason.DONE]
    assert 0.25 <= time.monotonic() - start < 5


def test_a_reply_without_a_token_leaves_the_earlier_log_probabilities_alone(toy):
    class Silent(ScriptedSampler):
        async def sample(self, request):
            if END not in request.prompt_ids:
                return replace(await super().sample(request), logprobs=(-1.0, -2.0))
            return Completion(token_ids=(), logprobs=(), text="", finished=True)

    trace = only(play(toy.Environment(), Silent(solver), [toy.task(turns=2)]))
    assert len(trace.logprobs) == len(trace.token_ids) == len(trace.sampled)
    assert [value for value, flag in zip(trace.logprobs, trace.sampled, strict=True) if flag] == [-1.0, -2.0]


@pytest.mark.parametrize("error", [KeyError("a bug"), ZeroDivisionError("a bug")])
def test_bugs_of_a_environment_propagate(toy, error):
    async def fail(ask) -> None:
        await ask(toy.task().messages)
        raise error

    with pytest.raises(type(error)):
        play(Acting(toy, fail), ScriptedSampler(solver), [toy.task()])


def test_an_environment_that_gives_up_on_an_attempt_leaves_a_trace(toy):
    async def give_up(ask) -> None:
        await ask(toy.task().messages)
        raise RolloutError("the browser crashed")

    trace = only(play(Acting(toy, give_up), ScriptedSampler(solver), [toy.task()]))
    assert (trace.stop_reason, trace.explanation) == (StopReason.ERROR, "the browser crashed")


def test_a_local_model_is_trained_on_what_it_sampled(tiny, toy):
    sampler = tiny.player()
    task = toy.task(turns=2)
    groups = play(toy.Environment(), sampler, [task], rollouts=6, max_new_tokens=8)
    for trace in groups[0].traces:
        assert trace.token_ids[: trace.prompt_tokens] == sampler.render(task.messages, first=True)
        sampled = [i for i, flag in enumerate(trace.sampled) if flag]
        assert 1 <= len(sampled) <= 16
        assert all((trace.logprobs[i] < 0) == (i in sampled) for i in range(len(trace.token_ids)))
        assert (trace.stop_reason is StopReason.LENGTH) == (trace.token_ids[-1] != sampler.model.chat.end_id)


def test_a_trace_carries_the_version_of_the_weights_that_wrote_it(tiny, toy):
    sampler, task = tiny.player(), toy.task(turns=2)
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    assert only(play(toy.Environment(), sampler, [task], max_new_tokens=8)).version == 0
    for _ in range(2):
        asyncio.run(trainer.publish())
    assert only(play(toy.Environment(), sampler, [task], max_new_tokens=8)).version == 2
    silent = ScriptedSampler(solver, context_tokens=10)  # no room for a reply
    assert only(play(toy.Environment(), silent, [task])).version is None
