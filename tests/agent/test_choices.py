"""Replies that must be one of some: sampled among them, and learned so, wherever they stand in an episode."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from genenv.algorithms.advantages import grpo_credit
from genenv.algorithms.datum import Datum, Objective, averaged
from genenv.algorithms.settings import GrpoConfig, OptimizerConfig
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.scripted import ScriptedSampler
from genenv.environments.guard import guarded
from genenv.errors import EnvironmentCodeError
from genenv.rollout.driver import Sampling, demonstration, roll_out
from genenv.types import Group, Message, StopReason
from learners import gradients_of

TURNS = (("go to bed 1", "go to desk 1", "look"), ("open desk 1", "examine desk 1", "look"))
SAMPLING = Sampling(temperature=0.7, max_new_tokens=40, timeout_s=60.0, seed=0)


class Walk:
    """Two turns, each with choices of its own."""

    max_turns = 2
    choices: tuple[str, ...] = ()

    async def run(self, ask: Any) -> None:
        messages = (Message(role="user", content="add 1 and 2"),)
        for self.choices in TURNS:
            await ask(messages)
            messages = (Message(role="user", content="Done. And now?"),)


@pytest.fixture
def env(toy: Any) -> Any:
    made = toy.Environment()
    made.episode = lambda task: Walk()
    return made


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return tiny.player(noise=0.05)


def groups_of(env: Any, sampler: Any, toy: Any, rollouts: int = 6, **changes: Any) -> list[Group]:
    task = replace(toy.task(1, 2), oracle=("look", "open desk 1"))
    sampling = replace(SAMPLING, **changes)
    return asyncio.run(roll_out(env, sampler, [task], rollouts=rollouts, sampling=sampling))


def rewarded(groups: list[Group]) -> list[Group]:
    """Some attempts are worth more than others."""
    return [
        replace(g, traces=tuple(replace(t, reward=float(i % 2)) for i, t in enumerate(g.traces)))
        for g in groups
    ]


def test_every_reply_is_one_of_its_turn_and_what_no_choice_was_made_of_is_not_the_agents(
    env: Any, sampler: Any, toy: Any
) -> None:
    (group,) = groups_of(env, sampler, toy, rollouts=30)
    for trace in group.traces:
        assert trace.stop_reason is StopReason.DONE
        assert all(reply in possible for reply, possible in zip(trace.replies, TURNS, strict=True))
        chosen = [i for i, flag in enumerate(trace.sampled) if flag]
        assert [trace.token_ids[i] for i in chosen]
        assert all(trace.logprobs[i] < 0 for i in chosen)
        for one in trace.choices:
            place, left = one.start, list(one.replies)
            while left:
                possible = {reply[place - one.start] for reply in left}
                assert trace.sampled[place] is (len(possible) > 1)
                assert trace.logprobs[place] == pytest.approx(0.0, abs=1e-6) or len(possible) > 1
                left = [r for r in left if r[place - one.start] == trace.token_ids[place]]
                place += 1
                left = [r for r in left if len(r) > place - one.start]
    assert len({trace.replies for trace in group.traces}) > 2


def lesson_data(groups: list[Group], temperature: float = 0.7) -> list[Datum]:
    lesson = grpo_credit(groups, {}, GrpoConfig(), temperature=temperature)
    return averaged(lesson.data, lesson.coefficients or {})


def test_at_the_first_update_the_ratio_is_one(env: Any, sampler: Any, toy: Any) -> None:
    data = lesson_data(rewarded(groups_of(env, sampler, toy)))
    now = asyncio.run(LocalTrainer(sampler.weights, OptimizerConfig()).logprobs(data))
    assert any(datum.tokens for datum in data)
    for datum, row in zip(data, now, strict=True):
        olds = datum.old_logprobs or ()
        for weight, old, new in zip(datum.weights, olds, row, strict=True):
            if weight:
                assert new == pytest.approx(old, abs=1e-4)


def allowed_at(datum: Datum) -> dict[int, list[int]]:
    """By place: the tokens among which the one there was chosen, worked out from the replies alone."""
    found: dict[int, list[int]] = {}
    for one in datum.choices:
        reply = next(r for r in one.replies if datum.completion_ids[one.start : one.start + len(r)] == r)
        for t in range(len(reply)):
            found[one.start + t] = sorted({r[t] for r in one.replies if r[:t] == reply[:t] and len(r) > t})
    return found


def loss_by_hand(sampler: Any, data: list[Datum], temperature: float) -> torch.Tensor:
    """The policy gradient where all ratios are 1: -sum w A log pi(t among the choices), plain autograd."""
    loss = torch.zeros(())
    for datum in data:
        packed = Packed(
            [Bundle(prompt_ids=datum.prompt_ids, completions=[datum.completion_ids])], torch.device("cpu")
        )
        scores = sampler.model.head(sampler.weights.completion_hidden(packed)[0]) / temperature
        for t, possible in allowed_at(datum).items():
            chosen = possible.index(datum.completion_ids[t])
            logprob = scores[t, possible].log_softmax(-1)[chosen]
            loss = loss - datum.weights[t] * (datum.advantages or ())[t] * logprob
    return loss


def test_the_gradient_is_that_of_the_policy_among_the_choices(env: Any, sampler: Any, toy: Any) -> None:
    data = lesson_data(rewarded(groups_of(env, sampler, toy)))
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    now = asyncio.run(trainer.logprobs(data))  # ratios of exactly 1: sampling rounds in another order
    data = [replace(datum, old_logprobs=row) for datum, row in zip(data, now, strict=True)]
    asyncio.run(trainer.forward_backward(data, Objective(kl="k3")))
    found = {name: grad.clone() for name, grad in gradients_of(trainer.optimizer).items()}
    trainer.optimizer.clear()
    with sampler.weights.active():
        loss_by_hand(sampler, data, 0.7).backward()
    expected = gradients_of(trainer.optimizer)
    assert found.keys() == expected.keys()
    assert max(grad.abs().max() for grad in found.values()) > 1e-4
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-6)
    trainer.optimizer.clear()


def test_the_kl_of_the_attempts_is_taken_among_the_choices(env: Any, sampler: Any, toy: Any) -> None:
    data = lesson_data(rewarded(groups_of(env, sampler, toy)))
    trainer = LocalTrainer(sampler.weights, OptimizerConfig())
    measured = asyncio.run(trainer.forward_backward(data, Objective(kl="k3", kl_coefficient=0.1)))
    trainer.optimizer.clear()
    own, then = (asyncio.run(trainer.logprobs(data, reference=r)) for r in (False, True))
    expected = 0.0
    for datum, row, before in zip(data, own, then, strict=True):
        for weight, a, b in zip(datum.weights, row, before, strict=True):
            expected += weight * (math.exp(b - a) - (b - a) - 1)
    assert measured["kl"] == pytest.approx(expected, rel=1e-3)
    assert expected > 0


def test_what_is_imitated_is_learned_among_the_choices_too(env: Any, sampler: Any, toy: Any) -> None:
    task = replace(toy.task(1, 2), oracle=("look", "open desk 1"))
    trace = asyncio.run(demonstration(env, sampler, task))
    assert trace.replies == task.oracle
    lesson = grpo_credit([], {task.id: trace}, GrpoConfig(), temperature=0.7)
    (datum,) = lesson.data
    places = [t for t, possible in allowed_at(datum).items() if len(possible) > 1]
    assert [t for t, weight in enumerate(datum.weights) if weight] == places
    (row,) = asyncio.run(LocalTrainer(sampler.weights, OptimizerConfig()).logprobs([datum]))
    assert all(math.exp(row[t]) > 0.01 for t in places)
    wrong = replace(task, oracle=("fly", "look"))
    broken = asyncio.run(demonstration(env, sampler, wrong))
    assert (broken.stop_reason, broken.success) == (StopReason.ERROR, False)
    assert broken.explanation == "The known solution 'fly' is none of the possible replies."


def test_a_script_answers_with_one_of_the_choices(env: Any, toy: Any) -> None:
    right = ScriptedSampler(lambda prompt, rng: "look")
    (group,) = groups_of(env, right, toy, rollouts=2)
    assert {trace.replies for trace in group.traces} == {("look", "look")}
    other = ScriptedSampler(lambda prompt, rng: "no command")
    (group,) = groups_of(env, other, toy, rollouts=20)
    first, second = zip(*(trace.replies for trace in group.traces), strict=True)
    assert (set(first), set(second)) == (set(TURNS[0]), set(TURNS[1]))


@pytest.mark.long
def test_a_template_that_begins_a_thought_gets_an_empty_one(
    tiny: Any, env: Any, toy: Any, templates: dict[str, str]
) -> None:
    from genenv.backends.local.model import LocalModel
    from genenv.backends.local.policy_weights import PolicyWeights
    from genenv.backends.local.sampler import LocalSampler
    from genenv.backends.settings import PolicyConfig

    folder = tiny.folder(template=templates["always"], max_position_embeddings=2000)
    config = PolicyConfig(
        model=str(folder), device="cpu", threads=1, context_tokens=2000, max_thinking_tokens=4
    )
    thinking = LocalSampler(PolicyWeights(LocalModel(str(folder), config), None, learns=False))
    assert thinking.end_of_thought
    (group,) = groups_of(env, thinking, toy, rollouts=4, max_new_tokens=80)
    for trace in group.traces:
        assert all(reply in possible for reply, possible in zip(trace.replies, TURNS, strict=True))


def test_a_users_episode_may_offer_choices_and_is_held_to_what_it_promises(toy: Any) -> None:
    made = toy.Environment()
    made.config = None
    made.episode = lambda task: Walk()
    (group,) = groups_of(guarded(made), ScriptedSampler(lambda prompt, rng: "look"), toy, rollouts=1)
    assert group.traces[0].replies == ("look", "look")
    broken = type("Broken", (Walk,), {"choices": property(lambda self: [1]), "run": _once})
    made.episode = lambda task: broken()
    with pytest.raises(EnvironmentCodeError, match="offers the choice int 1, not a text"):
        groups_of(guarded(made), ScriptedSampler(lambda prompt, rng: "look"), toy, rollouts=1)


async def _once(self: Any, ask: Any) -> None:
    await ask((Message(role="user", content=str(random.random())),))
