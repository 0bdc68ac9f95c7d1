"""A conversation whose template drops thoughts is several sequences, each as the policy saw it."""

from __future__ import annotations

from dataclasses import replace

from genenv.algorithms.advantages import grpo_credit, imitate, readings
from genenv.algorithms.datum import averaged
from genenv.algorithms.settings import GrpoConfig
from genenv.types import Choices, Group, LeftOut


def dropped(toy):
    """Two turns; of the first the last token of the prompt and the first two of the reply are dropped."""
    trace = toy.trace((5, 6, 9), [(20, 21, 7, 1), (30, 31), (8, 1)], success=True)
    return replace(trace, left_out=(LeftOut(start=2, end=5, since=7),))


def test_nothing_left_out_is_the_trace_itself(toy):
    trace = toy.trace((5, 6), [(7, 1)])
    assert [*readings(trace)] == [trace]


def test_each_token_counts_in_the_sequence_that_it_was_sampled_in(toy):
    first, second = readings(dropped(toy))
    assert first.token_ids == (5, 6, 9, 20, 21, 7, 1)
    assert first.prompt_tokens == 3
    assert second.token_ids == (5, 6, 7, 1, 30, 31, 8, 1)
    assert second.prompt_tokens == 2
    assert second.sampled == (False,) * 6 + (True, True)
    whole = dropped(toy)
    assert first.response_tokens + second.response_tokens == whole.response_tokens
    assert second.logprobs[-2:] == whole.logprobs[-2:]


def test_choices_are_found_where_their_reply_is(toy):
    trace = replace(dropped(toy), choices=(Choices(start=9, replies=((8, 1), (4, 1))),))
    first, second = readings(trace)
    assert first.choices == ()
    assert [one.start for one in second.choices] == [6]
    assert imitate(trace)[1].choices[0].start == 4


def test_of_an_attempt_all_sequences_have_its_advantage_and_its_share(toy):
    good, bad = replace(dropped(toy), reward=1.0), toy.trace((5, 6, 9), [(22, 1)])
    lesson = grpo_credit(
        [Group(task=toy.task(), traces=(good, bad))],
        {},
        GrpoConfig(advantage="centred", loss_average="sequence"),
        temperature=1.0,
    )
    ((one, two, three),) = lesson.units
    assert [set(d.advantages) for d in (one, two, three)] == [{0.5}, {0.5}, {-0.5}]
    assert sum(one.weights) + sum(two.weights) == 1.0
    assert sum(three.weights) == 1.0
    assert two.prompt_ids == (5, 6)
    assert two.weights == (0.0,) * 4 + (1 / 6, 1 / 6)


def test_divided_by_a_constant_a_rollout_counts_once_however_many_sequences_it_has(toy):
    good, bad = replace(dropped(toy), reward=1.0), toy.trace((5, 6, 9), [(22, 1)])
    config = GrpoConfig(loss_average="constant", loss_tokens=10)
    lesson = grpo_credit([Group(task=toy.task(), traces=(good, bad))], {}, config, temperature=1.0)
    assert [datum.share for datum in lesson.data] == [0.5, 0.5, 1.0]
    step = averaged(lesson.data, lesson.coefficients or {}, lesson.loss_tokens)
    assert {weight for datum in step for weight in datum.weights if weight} == {1 / (2 * 10)}
