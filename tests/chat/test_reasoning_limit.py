"""A thought is closed after so many tokens; what closes it was not sampled. The environment hears none."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.sampler import LocalAssistant
from genenv.backends.scripted import END, ScriptedSampler
from genenv.backends.settings import SamplingConfig
from genenv.chat.reasoning import USUAL
from genenv.chat.sampler import ChatSampler
from genenv.rollout.driver import Sampling, demonstration, roll_out
from genenv.sampling import Completion, SampleRequest
from genenv.simulator.policy import simulator_prompt

ONCE = Sampling(temperature=1.0, max_new_tokens=60, timeout_s=60.0, seed=0)


def limited(said: list[str], *, tokens: int, max_tokens: int = 100, opened: bool = False) -> Completion:
    """A completion whose tokens are bytes, sampled from given texts, one a request."""
    scripts = iter(said)
    requests: list[SampleRequest] = []

    def decode(ids: Any) -> str:
        return bytes(i for i in ids if i != END).decode()

    class Sampler(ChatSampler):
        async def _sample(self, request: SampleRequest) -> Completion:
            requests.append(request)
            ids = (*next(scripts).encode(), END)[: request.max_tokens]
            finished = ids[-1:] == (END,)
            logprobs = (-1.0,) * len(ids)
            return Completion(token_ids=ids, logprobs=logprobs, text=decode(ids), finished=finished)

    chat: Any = SimpleNamespace(
        opens_thought=opened, spelling=USUAL, encode=lambda text: tuple(text.encode()), decode=decode
    )
    sampler = Sampler(chat, context_tokens=10_000, max_thinking_tokens=tokens)
    request = SampleRequest(prompt_ids=(7,), max_tokens=max_tokens)
    completion = asyncio.run(sampler.sample(request))
    at = 1
    for later in requests[1:]:  # each goes on where the reply is
        assert later.prompt_ids[:at] == (7,)
        assert later.prompt_ids[at:] == completion.token_ids[: len(later.prompt_ids) - at]
    return completion


def test_a_thought_over_the_limit_is_closed_and_the_answer_follows() -> None:
    completion = limited(["<think>one two three", "four"], tokens=4)
    assert completion.text == "<think>one \n</think>\n\nfour"
    assert completion.finished
    closing = len("\n</think>\n\n")
    assert completion.forced == range(11, 11 + closing)
    assert completion.logprobs == (-1.0,) * 11 + (0.0,) * closing + (-1.0,) * 5


def test_a_limit_of_nothing_closes_a_thought_that_the_prompt_begins_before_a_word_is_sampled() -> None:
    completion = limited(["four"], tokens=0, opened=True)
    assert completion.text == "\n</think>\n\nfour"
    assert completion.forced == range(len("\n</think>\n\n"))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (["four"], "four"),
        (["<think>a</think>four"], "<think>a</think>four"),
        (["words and more words"], "words and more words"),
    ],
)
def test_what_is_no_thought_or_a_short_one_is_left_as_it_is(said: list[str], text: str) -> None:
    cut = text.encode()[: 7 + 10]
    rest = [said[0][len(cut) :]] if len(said[0]) > len(cut) - 1 else []
    completion = limited([*said, *rest], tokens=10)
    assert completion.text == text
    assert len(completion.forced) == 0


@pytest.mark.parametrize("max_tokens", [5, 11, 12, 21])
def test_a_reply_never_has_more_tokens_than_simulator_prompt_for(max_tokens: int) -> None:
    completion = limited(["<think>one two three", "four"], tokens=4, max_tokens=max_tokens)
    assert len(completion.token_ids) <= max_tokens
    assert not completion.finished


def test_the_environment_hears_no_thoughts(toy: Any) -> None:
    def thinks(prompt: str, rng: random.Random) -> str:
        return "<think>\nIs it 4?\n</think>\n\n3"

    groups = asyncio.run(
        roll_out(toy.Environment(), ScriptedSampler(thinks), [toy.task(1, 2)], rollouts=1, sampling=ONCE)
    )
    (trace,) = groups[0].traces
    assert trace.success
    assert trace.replies == ("3",)


def test_a_right_answer_in_a_thought_is_none(toy: Any) -> None:
    def thinks(prompt: str, rng: random.Random) -> str:
        return "<think>3</think>"

    groups = asyncio.run(
        roll_out(toy.Environment(), ScriptedSampler(thinks), [toy.task(1, 2)], rollouts=1, sampling=ONCE)
    )
    assert not groups[0].traces[0].success


@pytest.fixture
def player(tiny: Any, templates: dict[str, str]) -> Any:
    def made(name: str, **config: Any) -> Any:
        folder = tiny.folder(template=templates[name], max_position_embeddings=2048)
        policy = tiny.player(folder=folder, context_tokens=1024, **config)
        return policy

    return made


def test_what_closes_a_thought_is_in_the_trace_and_is_not_learned(player: Any, toy: Any) -> None:
    policy = player("always", max_thinking_tokens=5)
    groups = asyncio.run(roll_out(toy.Environment(), policy, [toy.task()], rollouts=4, sampling=ONCE))
    closing = policy.model.chat.encode("\n</think>\n\n")
    for trace in groups[0].traces:
        start = trace.prompt_tokens
        assert trace.token_ids[start + 5 : start + 5 + len(closing)] == closing
        flags = trace.sampled[start:]
        assert flags[: 5 + len(closing)] == (True,) * 5 + (False,) * len(closing)
        assert all(flags[5 + len(closing) :])
        assert len(flags) <= ONCE.max_new_tokens
        packed = Packed(
            [Bundle(prompt_ids=trace.token_ids[:start], completions=[trace.token_ids[start:]])],
            policy.model.device,
        )
        with torch.no_grad(), policy.weights.active():
            own = policy.weights.logprobs(packed)
        told = torch.tensor(trace.logprobs[start:])
        chosen = torch.tensor(flags)
        torch.testing.assert_close(own[chosen], told[chosen], atol=1e-4, rtol=1e-4)
        assert not told[~chosen].any()


def test_an_evaluated_model_has_the_same_limit(player: Any) -> None:
    policy = player("always", max_thinking_tokens=3)
    assistant = LocalAssistant(policy, SamplingConfig(temperature=1.0), name="tiny", weights={})
    assert assistant.describe()["max_thinking_tokens"] == 3
    talk = assistant.talk(0)
    reply = asyncio.run(talk([{"role": "user", "content": "Is it 4?"}], max_tokens=40))
    assert reply.tokens > 3 + len(policy.model.chat.encode("\n</think>\n\n"))
    assert reply.text, "what comes after the thought is the answer"


def test_a_known_solution_ends_the_thought_that_the_prompt_begins(player: Any, toy: Any) -> None:
    policy = player("always")
    trace = asyncio.run(demonstration(toy.Environment(), policy, toy.task()))
    assert trace.success
    said = policy.model.tokenizer.decode(trace.token_ids[trace.prompt_tokens :])
    assert said == "\n</think>\n\n3<|im_end|>"


@pytest.mark.parametrize(("name", "end"), [("always", "<think>\n\n</think>\n\n"), ("qwen", "assistant\n")])
def test_a_simulator_writes_its_specs_after_the_thought_that_the_template_begins(
    player: Any, toy: Any, name: str, end: str
) -> None:
    policy = player(name)
    ids = simulator_prompt(policy, toy.context().messages)
    assert policy.model.tokenizer.decode(ids).endswith(end)


def test_what_the_simulator_writes_under_a_grammar_has_no_thoughts_to_limit(player: Any) -> None:
    policy = player("always", max_thinking_tokens=0)
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    request = SampleRequest(prompt_ids=(5, 6), max_tokens=40, schema=schema)
    completion = asyncio.run(policy.sample(request))
    assert completion.text == '{"a":"x"}'
    assert len(completion.forced) == 0
