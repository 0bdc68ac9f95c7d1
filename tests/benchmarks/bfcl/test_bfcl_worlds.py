"""Calls on the simulated APIs: answered as officially, without reaching anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from genenv.benchmarks.bfcl import multi_turn
from genenv.benchmarks.bfcl.data import Conversation
from genenv.benchmarks.bfcl.multi_turn import World, grade_turns, named_arguments
from genenv.benchmarks.bfcl.worker import Worker, worker

FILES = {
    "GorillaFileSystem": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {
                    "a.txt": {"type": "file", "content": "one\ntwo"},
                    "docs": {"type": "directory", "contents": {}},
                },
            }
        }
    }
}
TWEETS = {"TwitterAPI": {"username": "zoe", "password": "x", "authenticated": True}}


def about(*classes: str) -> Conversation:
    return Conversation(
        id="multi_turn_base_0",
        category="multi_turn_base",
        turns=[],
        truth=[],
        functions=[],
        added={},
        classes=list(classes or ("GorillaFileSystem",)),
        config={**FILES, **TWEETS},
    )


def world(*classes: str) -> World:
    return World(about(*classes))


def test_calls_change_the_world_and_answer_in_json() -> None:
    there = world()
    assert there.run(["mkdir(dir_name='new')", "cd('new')", "pwd()", "cd(folder='..')", "ls()"]) == [
        "None",
        '{"current_working_directory": "new"}',
        '{"current_working_directory": "/home/new"}',
        "{}",
        '{"current_directory_content": ["a.txt", "docs", "new"]}',
    ]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("cd()", "GorillaFileSystem.cd() missing 1 required positional argument: 'folder'"),
        ("dance(a=1)", "name 'dance' is not defined"),
        ("os.getcwd()", "name 'os' is not defined"),
        ("cd(folder=docs)", "name 'docs' is not defined"),
        ("exit()", "Function call exit is not allowed."),
        ("a.kill()", "Function call kill is not allowed."),
        ("cd(folder=pwd())", "arguments have to be literals"),
        ("cd(**{'folder': 'docs'})", "arguments have to have different names"),
        ("pwd", "it is not a call"),
        ("_load_scenario({})", "name '_load_scenario' is not defined"),
        (
            "model_multi_turn_base_0_GorillaFileSystem_instance._load_scenario({})",
            "name 'model_multi_turn_base_0_GorillaFileSystem_instance' is not defined",
        ),
        ("cd(folder='x' * 3)", "arguments have to be literals"),
        ("cd(folder=[i for i in range(9)])", "arguments have to be literals"),
        ("cd(folder='a'", "'(' was never closed (<string>, line 1)"),
        ("cd(folder='a)", "unterminated string literal (detected at line 1) (<string>, line 1)"),
        ("json.dumps(1)", "name 'json' is not defined"),
        ("importlib.import_module('os')", "name 'importlib' is not defined"),
    ],
)
def test_what_cannot_be_carried_out_is_answered_with_an_error(call: str, answer: str) -> None:
    assert world().run([call]) == [f"Error during execution: {answer}"]


@pytest.mark.parametrize(
    "call",
    [
        "__import__('os').system('touch {0}')",
        "cd(folder=__import__('os').system('touch {0}'))",
        "open('{0}', 'w')",
        "pwd().__class__(open('{0}', 'w'))",
        "cd(folder=(lambda: open('{0}', 'w'))())",
    ],
)
def test_no_call_reaches_the_machine(call: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (answer,) = world().run([call.format(made)])
    assert answer.startswith("Error during execution: ")
    assert not made.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "calls"),
    [
        (["MathAPI"], ["power(base=10, exponent=1000000000)"]),
        (["MathAPI"], ["square_root(number=2.0, precision=100000000)"]),
        (
            ["GorillaFileSystem"],
            [
                f"mkdir(dir_name='{'x' * 200}')",
                *(f"mkdir(dir_name='d{i}')" for i in range(30)),
                *(f"cp(source='d{i}', destination='d{j}')" for j in range(30) for i in range(j)),
                "find(path='.')",
            ],
        ),
    ],
    ids=["a billion digits", "square root", "folders that double"],
)
def test_calls_that_take_too_much_answer_an_error_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch, short: Worker, classes: list[str], calls: list[str]
) -> None:
    monkeypatch.setattr(multi_turn, "worker", lambda: short)
    there = world(*classes)
    said = "it takes more than 0.5 s of processor time or 1 GiB of memory, or is nested too deeply"
    assert set(there.run(calls)) == {f"Error during execution: {said}"}
    assert there._steps == []
    answer = {"turns": [[calls]]}
    grade = grade_turns(replace(about(*classes), truth=[["pwd()"]]), answer)
    assert (grade.score, grade.explanation) == (0.0, f"The calls cannot be carried out: {said}.")
    assert world().run(["pwd()"]) == ['{"current_working_directory": "/home"}']


def test_the_precision_of_one_call_does_not_stay() -> None:
    there = world("MathAPI")
    calls = ["square_root(number=2.0, precision=5)", "logarithm(value=8.0, base=2.0, precision=4)"]
    assert there.run(calls) == ["{'result': Decimal('1.4142')}", "{'result': mpf('3.0')}"]
    assert world("MathAPI").run(["divide(a=1, b=3)"]) == ['{"result": 0.3333333333333333}']


def test_a_folder_that_comes_into_itself_is_a_wrong_one() -> None:
    turns = [[["cp(source='docs', destination='docs')"]]]
    entry = {"id": "multi_turn_base_0", "initial_config": FILES, "involved_classes": ["GorillaFileSystem"]}
    request = {"truth": [["ls()"]], "entry": entry, "category": "multi_turn_base"}
    assert not worker().ask("grade_turns", turns=turns, **request)["valid"]


def test_worlds_share_nothing() -> None:
    one, other = world("TwitterAPI"), world("TwitterAPI")
    one.run(["post_tweet(content='a')", "mention(tweet_id=0, mentioned_usernames=['@b'])"])
    (posted,) = other.run(["post_tweet(content='a')"])
    assert '"mentions": []' in posted
    (again,) = one.run(["post_tweet(content='a')"])
    assert '"id": 1' in again


def test_blanks_before_brackets_vanish_inside_text_as_officially() -> None:
    assert world().run(["echo(content='Done (all), at last')"]) == [
        '{"terminal_output": "Done(all), at last"}'
    ]


def test_a_call_by_position_is_named() -> None:
    assert named_arguments("cd('docs')", about()) == ("cd", {"folder": "docs"})
