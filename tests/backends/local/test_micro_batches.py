"""What of a micro-batch is measured on."""

from __future__ import annotations

from genenv.algorithms.datum import Datum
from genenv.backends.local.packing import sample_of
from lessons import imitated


def attempted(prompt: int, completion: int) -> Datum:
    ones = (1.0,) * completion
    ids = tuple(range(completion))
    return Datum(
        prompt_ids=(1,) * prompt,
        completion_ids=ids,
        weights=ones,
        advantages=ones,
        old_logprobs=tuple(-float(i) for i in ids),
        loss="ppo",
    )


def test_whole_attempts_are_taken_as_long_as_they_have_room():
    rows = [imitated((1, 1), (5,)), *[attempted(2, 3)] * 5]
    assert sample_of(rows, 8) == rows[1:3]
    assert sample_of(rows, 100) == rows[1:]
    assert sample_of([attempted(2, 3), imitated((1, 1), (5,))], 100) == [attempted(2, 3)]


def test_one_attempt_is_taken_whole_up_to_twice_as_many_tokens():
    assert sample_of([attempted(4, 6), attempted(4, 6)], 5) == [attempted(4, 6)]


def test_an_attempt_that_is_longer_is_cut():
    assert sample_of([attempted(4, 100), attempted(4, 1)], 5) == [attempted(4, 5)]
    assert sample_of([attempted(5, 100)], 5) == [attempted(5, 5)]


def test_nothing_is_taken_where_the_prompt_alone_is_too_long():
    assert sample_of([attempted(6, 100)], 5) == []
