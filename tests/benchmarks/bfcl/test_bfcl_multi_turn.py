"""Conversations: asked turn by turn, graded by the world and by the results after each turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.benchmarks.bfcl.benchmark import Bfcl, BfclSettings
from genenv.benchmarks.bfcl.multi_turn import ask_turns, grade_turns
from recited import Recited

MADE = ["mkdir(dir_name='new')", "cd(folder='new')"]


def test_the_right_calls_are_right_in_any_number_of_steps(small: Any) -> None:
    conversation = small.conversation("multi_turn_base")
    assert grade_turns(conversation, {"turns": [[MADE], [["pwd()"]]]}).score == 1.0
    assert grade_turns(conversation, {"turns": [[[MADE[0]], [MADE[1]]], [["ls()"], ["pwd()"]]]}).score == 1.0


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([[MADE]], "The conversation was ended by force: 1 of 2 turns were carried out."),
        ([[MADE], []], "Model response list is empty for turn 1."),
        ([[MADE], [[]]], "Model response list is empty for turn 1."),
        (
            [[MADE[:1]], [["pwd()"]]],
            "Model response execution results so far does not contain all the ground",
        ),
        (
            [[MADE[1:]], [["pwd()"]]],
            "Model instance for GorillaFileSystem does not match the state with ground truth "
            "instance for turn 0: root.",
        ),
        (
            [[MADE], [["ls()"]]],
            "Model response execution results so far does not contain all the ground truth",
        ),
        (
            [[MADE], [["mkdir(dir_name='x')", "pwd()"]]],
            "Model instance for GorillaFileSystem does not match the state with ground truth instance for",
        ),
    ],
)
def test_other_calls_are_wrong_and_it_is_said_why(small: Any, turns: Any, said: str) -> None:
    grade = grade_turns(small.conversation("multi_turn_base"), {"turns": turns})
    assert grade.score == 0.0
    assert grade.explanation.startswith(said)


def test_results_of_turns_before_count_as_seen(small: Any) -> None:
    answer = {"turns": [[[*MADE, "pwd()"]], [["ls()"]]]}
    assert grade_turns(small.conversation("multi_turn_base"), answer).score == 1.0


def test_a_turn_that_cannot_be_fulfilled_is_not_compared(small: Any) -> None:
    conversation = small.conversation("multi_turn_miss_func")
    for idle in ([], [["ls()"]]):
        assert grade_turns(conversation, {"turns": [[MADE], idle, [["pwd()"]]]}).score == 1.0
    assert grade_turns(conversation, {"turns": [[MADE], [["cd(folder='..')"]], [["pwd()"]]]}).score == 0.0


def test_text_mode_feeds_results_back_until_a_reply_has_no_calls(small: Any) -> None:
    talk = Recited("[mkdir(dir_name='new')]", "[cd(folder='new')]", "Done.", "[pwd()]", "You are there.")
    benchmark, item = Bfcl(), small.item("multi_turn_base")
    answer = asyncio.run(benchmark.attempt(item, talk))
    assert answer == {"turns": [[[MADE[0]], [MADE[1]]], [["pwd()"]]]}
    assert benchmark.grade(item, answer).score == 1.0
    assert [message["role"] for message in talk.heard[4]] == [
        *("system", "user", "assistant", "user", "assistant", "user", "assistant"),
        *("user", "assistant", "user"),
    ]
    assert talk.heard[1][3]["content"] == (
        "[{'role': 'tool', 'name': \"mkdir(dir_name='new')\", 'content': 'None'}]"
    )


def test_native_mode_answers_each_call(small: Any) -> None:
    talk = Recited(
        *([("mkdir", {"dir_name": "new"}), ("cd", {"folder": "new"})], "Done.", [("pwd", {})], "There."),
        native_tools=True,
    )
    benchmark, item = Bfcl(), small.item("multi_turn_base")
    answer = asyncio.run(benchmark.attempt(item, talk))
    assert answer == {"turns": [[MADE], [["pwd()"]]]}
    assert talk.heard[1][1]["tool_calls"][1]["id"] == talk.heard[1][3]["tool_call_id"] == "call_1"
    assert talk.heard[1][3]["content"] == '{"current_working_directory": "new"}'
    assert talk.offered[0] == ["mkdir", "cd", "pwd", "ls"]


def test_functions_that_were_held_back_come_later(small: Any) -> None:
    talk = Recited("No.", "No.", "No.")
    asyncio.run(Bfcl().attempt(small.item("multi_turn_miss_func"), talk))
    assert '"name": "pwd"' not in talk.heard[0][0]["content"]
    said = talk.heard[2][-1]["content"]
    assert said.startswith("[{'name': 'pwd'")
    assert said.endswith("I have updated some more functions you can choose from. What about now?")
    native = Recited("No.", "No.", "No.", native_tools=True)
    asyncio.run(Bfcl().attempt(small.item("multi_turn_miss_func"), native))
    assert [len(offered) for offered in native.offered] == [3, 3, 4]
    assert native.heard[2][-1]["content"].startswith("I have updated some more functions")


def test_too_many_steps_end_the_conversation(small: Any) -> None:
    talk = Recited(*["[ls()]"] * 9)
    benchmark, item = Bfcl(BfclSettings(max_steps=2)), small.item("multi_turn_base")
    answer = asyncio.run(benchmark.attempt(item, talk))
    assert answer == {"turns": [[["ls()"], ["ls()"], ["ls()"]]]}
    assert len(talk.heard) == 3
    assert benchmark.grade(item, answer).explanation.startswith("The conversation was ended by force")


@pytest.mark.parametrize("native", [False, True])
def test_a_turn_on_its_own_follows_right_calls_of_those_before(small: Any, native: bool) -> None:
    conversation = replace(small.conversation("multi_turn_long_context"), only=1)
    talk = Recited([("pwd", {})] if native else "[pwd()]", "Done.", native_tools=native)
    answer = asyncio.run(ask_turns(conversation, talk, native=native, max_steps=20))
    assert answer == {"turns": [[["pwd()"]]]}
    assert grade_turns(conversation, answer).score == 1.0
    assert grade_turns(conversation, {"turns": [[["cd(folder='..')", "pwd()"]]]}).score == 0.0
    heard = talk.heard[0]
    if native:
        assert [message["role"] for message in heard] == ["user", "assistant", "tool", "tool", "user"]
        assert heard[1]["tool_calls"][1]["function"] == {"name": "cd", "arguments": {"folder": "new"}}
    else:
        assert [message["role"] for message in heard] == ["system", "user", "assistant", "user"]
        assert heard[2]["content"] == "[mkdir(dir_name='new'), cd('new')]"
        assert heard[3]["content"].endswith("\n\nWho is there?")


BOMBS: list[Any] = [
    None,
    {"turns": None},
    {"turns": [7, 8]},
    {"turns": [[7], [8]]},
    {"turns": [[[7]], [[8]]]},
    {"turns": [[["ls()"] * 5_000], []]},
    {"turns": [[["x" * 1_000_000]], []]},
    {"turns": [[["(" * 19_000]], []]},
    {"turns": [[["\ud800\0"]], [["\0"]]]},
    {"turns": [[["__import__('os').system('false')"]], [["9**9**9"]]]},
    {"text": "[pwd()]"},
]


@pytest.mark.parametrize("answer", BOMBS, ids=range(len(BOMBS)))
def test_no_answer_of_a_wrong_shape_is_right_or_raises(small: Any, answer: Any) -> None:
    grade = grade_turns(small.conversation("multi_turn_base"), answer)
    assert grade.score == 0.0
    assert grade.explanation.endswith(".")


CALL = st.sampled_from(
    ["ls()", "cd('new')", "pwd()", "mv(source='.', destination='docs')", "cp('docs', '.')"]
)
ANY = st.builds(
    lambda name, a, b: f"{name}({a!r}, {b!r})",
    st.sampled_from(["mv", "cp", "mkdir", "cd", "echo", "find", "touch", "rm", "tail"]),
    st.sampled_from([".", "..", "/", "docs", "a.txt", "", "é", 7, None]) | st.text(max_size=5),
    st.sampled_from([".", "..", "docs", "new", "", -1, True]),
)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALL | ANY | st.text(max_size=20), max_size=12))
def test_grading_never_raises(calls: list[str]) -> None:
    from genenv.benchmarks.bfcl.data import Conversation

    files = {
        "root": {"home": {"type": "directory", "contents": {"docs": {"type": "directory", "contents": {}}}}}
    }
    conversation = Conversation(
        id="multi_turn_base_0",
        category="multi_turn_base",
        turns=[[]],
        truth=[["ls()"]],
        functions=[],
        added={},
        classes=["GorillaFileSystem"],
        config={"GorillaFileSystem": files},
    )
    assert grade_turns(conversation, {"turns": [[calls]]}).score in (0.0, 1.0)
