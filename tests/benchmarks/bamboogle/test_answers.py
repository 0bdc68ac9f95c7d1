from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bamboogle import closeness, final_answer, normalized
from quickly import within

NEAR_MISSES = runpy.run_path(str(Path(__file__).with_name("near_misses.py")))["NEAR_MISSES"]
BOXED = runpy.run_path(str(Path(__file__).with_name("boxed.py")))["BOXED"]


@pytest.mark.parametrize(("reply", "answer"), BOXED)
def test_a_boxed_answer_is_opened(reply: str, answer: str) -> None:
    assert final_answer(reply) == answer


def test_thousands_of_boxes_without_an_end_take_no_time() -> None:
    with within(1):
        for box in ("\\boxed{ \n", "\\boxed{" * 2, "\\boxed{\\text{", "\\boxed{}"):
            final_answer(box * 3_000)


@pytest.mark.parametrize(("right", "answer", "em", "f1", "sub"), NEAR_MISSES)
def test_near_misses_measure_as_worked_out_by_hand(
    right: str, answer: str, em: float, f1: float, sub: float
) -> None:
    near = closeness(answer, [right])
    assert (near.em, near.f1, near.sub_em) == (em, pytest.approx(f1), sub)


def test_there_are_fifty_near_misses() -> None:
    assert len({(right, answer) for right, answer, *_ in NEAR_MISSES}) >= 50


def test_the_best_of_several_right_answers_counts_for_each_measure() -> None:
    near = closeness("May 3, 1871 or so", ["3 May 1871", "May 3, 1871"])
    assert (near.em, near.f1, near.sub_em) == (0, pytest.approx(3 * 2 / 8), 1)
    assert closeness("3 may 1871", ["May 3, 1871", "3 May 1871"]).em == 1


def test_no_right_answer_is_never_met() -> None:
    assert closeness("", []) == closeness("x", [""])


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is X.\nAnswer: the Tarn", "the Tarn"),
        ("It is X.\n**Answer:** the Tarn", "the Tarn"),
        ("Answer：the Tarn\nThank you", "the Tarn"),
        ("**Final answer**：the Tarn\nThank you", "the Tarn"),
        ("So the final answer is：the Tarn\nThank you", "the Tarn"),
        ("Answer\\: the Tarn\nThank you", "the Tarn"),
        ("Answer\u00a0: the Tarn\nThank you", "the Tarn"),
        ("Answer - the Tarn\nThank you", "the Tarn"),
        ("- **Answer** – the Tarn\nThank you", "the Tarn"),
        ("The final answer — the Tarn\nThank you", "the Tarn"),
        ("Answer -> the Tarn\nThank you", "the Tarn"),
        ("The Tarn\nis the answer - I think", "is the answer - I think"),
        ("Answer-wise, it is\nthe Tarn", "the Tarn"),
        ("It is X.\n**Answer: the Tarn**", "the Tarn"),
        ("Answer: X\nNo, wait.\nFinal Answer: the Tarn\n", "the Tarn"),
        ("Answer:\n\n  the Tarn\nThank you", "the Tarn"),
        ("So the final answer is: the Tarn", "the Tarn"),
        ("so the final answer is the Tarn", "the Tarn"),
        ("Answer: the Tarn\nAnswer:", "the Tarn"),
        ("Answer: X\n<answer>the Tarn</answer>", "the Tarn"),
        ("<answer>X</answer> hm <answer> the Tarn </answer> Answer: Y", "the Tarn"),
        ("<answer>the Tarn", "the Tarn"),
        ("I think\n\nthe Tarn\n\n", "the Tarn"),
        ("<think>Answer: X</think>the Tarn", "the Tarn"),
        ("Answer: X</think>\nAnswer: the Tarn", "the Tarn"),
        ("The answers: many.\nthe Tarn", "the Tarn"),
        ("", ""),
        ("  \n ", ""),
        ("Answer:", "Answer:"),
        ("<answer></answer>", ""),
        ("Answer: <final answer>the Tarn</final answer>", "the Tarn"),
        ("<Answer>the Tarn</ANSWER>", "the Tarn"),
        ("Answer: the Tarn</s>", "the Tarn"),
        ("Answer: <Tarn>", "<Tarn>"),
        ("Answer: 3 < 4 > 2", "3 < 4 > 2"),
    ],
)
def test_the_final_answer_is_found(reply: str, answer: str) -> None:
    assert final_answer(reply) == answer


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="<answer>/: \n*Athink\\\\boxed{}$", max_size=200))
@pytest.mark.long
def test_reading_and_measuring_never_raise_and_stay_in_range(reply: str) -> None:
    near = closeness(final_answer(reply), ["the Tarn", reply])
    assert all(0 <= value <= 1 for value in (near.em, near.f1, near.sub_em))
    assert normalized(normalized(reply)) == normalized(normalized(normalized(reply)))


@pytest.mark.parametrize(
    "reply",
    [
        "answer:" * 150_000,
        "<answer>" * 120_000,
        "answer" + " " * 10**6,
        "\n- answer " * 10**5,
        "<think>" * 10**5,
        "a\n" * 10**6,
    ],
)
def test_long_replies_are_read_quickly(reply: str) -> None:
    with within(1):
        closeness(final_answer(reply), ["the Tarn"])
