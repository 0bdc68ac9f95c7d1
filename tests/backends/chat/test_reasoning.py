from __future__ import annotations

import pytest

from genenv.backends.chat.reasoning import answer_of

ACT = "<action>go to desk 1</action>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>\n\nb", "b"),
        ("a</think>b", "b"),
        ("b", "b"),
        ("  b", "  b"),
        (f"<think>a</think>{ACT}<think>c</think>", ACT),
        (f"<think>I go. {ACT}", f"<think>I go. {ACT}"),
        ("b<think>c</think>", "b"),
    ],
)
def test_a_thought_is_told_from_the_answer(text: str, answer: str) -> None:
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<think>so far", ""), ("b<think>so far", "b"), ("<think>a</think>b", "b"), ("b", "b")],
)
def test_a_thought_that_the_limit_cut_off_has_no_answer(text: str, answer: str) -> None:
    assert answer_of(text, finished=False) == answer


@pytest.mark.parametrize(
    ("text", "finished", "answer"),
    [
        ("so far", False, ""),
        ("so</think>then", True, "then"),
        ("so</think>then", False, "then"),
        ("done", True, "done"),
    ],
)
def test_a_prompt_may_have_begun_the_thought(text: str, finished: bool, answer: str) -> None:
    assert answer_of(text, opened=True, finished=finished) == answer
