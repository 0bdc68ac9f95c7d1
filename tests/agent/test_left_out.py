"""Thoughts that a template drops from earlier turns are dropped when sampling and when learning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from genenv.algorithms.advantages import imitate
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.trainer import LocalTrainer
from genenv.rollout.driver import Sampling, demonstration, roll_out
from genenv.types import Message, Trace

DROPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""As DeepSeek R1 and Qwen 3.5 in conversations."""
SAMPLING = Sampling(temperature=1.0, max_new_tokens=12, timeout_s=60.0, seed=0)


class Answers:
    """A sampler whose replies begin with a thought that ends, and with little else."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.prompts = inner, list[tuple[int, ...]]()
        self.end_of_thought, self.context_tokens = inner.end_of_thought, inner.context_tokens
        self.render, self.encode_reply, self.left_out = inner.render, inner.encode_reply, inner.left_out
        self.end_round = inner.end_round

    async def sample(self, request: Any) -> Any:
        self.prompts.append(request.prompt_ids)
        text = f"hm{len(self.prompts)}\n</think>\n\n3"
        ids = (*self.inner.model.chat.encode(text), self.inner.model.chat.end_id)
        model, prompt = self.inner.weights, request.prompt_ids
        from genenv.backends.local.packing import Bundle, Packed
        from genenv.sampling import Completion

        with torch.no_grad(), model.active():
            packed = Packed([Bundle(prompt_ids=prompt, completions=[ids])], self.inner.model.device)
            logprobs = tuple(model.logprobs(packed).tolist())
        return Completion(
            token_ids=ids, logprobs=logprobs, text=self.inner.model.chat.decode(ids), finished=True
        )


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return tiny.player(folder=tiny.folder(template=DROPPING), noise=0.05)


def played(toy: Any, sampler: Any) -> Trace:
    groups = asyncio.run(
        roll_out(toy.Environment(), sampler, [toy.task(1, 2, turns=3)], rollouts=1, sampling=SAMPLING)
    )
    return groups[0].traces[0]


def test_each_turn_is_sampled_from_what_a_server_would_make_of_the_conversation(
    toy: Any, sampler: Any
) -> None:
    answers = Answers(sampler)
    trace = played(toy, answers)
    assert trace.success
    task = toy.task(1, 2, turns=3)
    said = [{"role": m.role, "content": m.content} for m in task.messages]
    decode = sampler.model.tokenizer.decode
    for prompt in answers.prompts:
        assert decode(prompt) == decode(sampler.model.chat.render_whole(said)[0])
        said += [{"role": "assistant", "content": "3"}, {"role": "tool", "content": "once more"}]
    assert "hm1" in decode(trace.token_ids), "the trace keeps all that was sampled"


def test_the_trainer_finds_the_log_probabilities_that_were_sampled(toy: Any, sampler: Any) -> None:
    trace = played(toy, Answers(sampler))
    data = imitate(trace)
    assert len(data) == 3
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    found = asyncio.run(trainer.logprobs(data))
    learned = [
        value
        for datum, values in zip(data, found, strict=True)
        for value, weight in zip(values, datum.weights, strict=True)
        if weight
    ]
    sampled = [value for value, flag in zip(trace.logprobs, trace.sampled, strict=True) if flag]
    assert learned == pytest.approx(sampled, abs=1e-4)


def test_known_solutions_drop_the_thoughts_that_the_prompt_begins(toy: Any, sampler: Any) -> None:
    trace = asyncio.run(demonstration(toy.Environment(), sampler, toy.task(1, 2, turns=2)))
    assert trace.success
    last = imitate(trace)[-1]
    text = sampler.model.tokenizer.decode([*last.prompt_ids, *last.completion_ids])
    assert text.count("<think>") == 1
    assert text.endswith("assistant\n<think>\n\n</think>\n\n3<|im_end|>")


def test_templates_that_keep_all_leave_nothing_out(toy: Any, tiny: Any) -> None:
    trace = asyncio.run(demonstration(toy.Environment(), tiny.player(), toy.task(1, 2, turns=2)))
    assert trace.left_out == ()
    assert len(imitate(trace)) == 1
    assert Message(role="tool", content="once more") in trace.messages


DROPPING_BEFORE_USERS = (
    "{% set roles = messages | map(attribute='role') | list %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and 'user' in roles[loop.index:] %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""As Qwen 3: thoughts stay as long as only results of tools follow."""


def test_thoughts_are_dropped_if_a_user_speaks_after_the_result_of_a_tool(toy: Any, tiny: Any) -> None:
    sampler = tiny.player(folder=tiny.folder(template=DROPPING_BEFORE_USERS))
    told = [Message(role="tool", content="3"), Message(role="user", content="once more")]

    class Told(toy.Environment):
        def episode(self, task: Any) -> Any:
            episode = super().episode(task)

            async def run(ask: Any) -> None:
                await ask(task.messages)
                await ask(told)

            episode.run = run
            return episode

    answers, task = Answers(sampler), toy.task(1, 2, turns=2)
    asyncio.run(roll_out(Told(), answers, [task], rollouts=1, sampling=SAMPLING))
    said = [*task.messages, Message(role="assistant", content="3"), *told]
    whole = sampler.model.chat.render_whole([{"role": m.role, "content": m.content} for m in said])[0]
    decode = sampler.model.tokenizer.decode
    assert decode(answers.prompts[-1]) == decode(whole)
