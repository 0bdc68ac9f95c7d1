"""An environment on disk: rows that hold everything, and sessions that play them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bundles import fewer
from genenv import Task
from genenv.chat.tool_calls import read_calls
from genenv.config.tables import dump_tables
from genenv.environments import load_environment
from genenv.environments.programs.environment import Programs
from genenv.errors import DataError, UsageError
from genenv.gate.gate import base_tasks
from genenv.interop import export
from genenv.interop.export import Export, write
from genenv.interop.exported import Exported, reply_text, task_of, task_text
from genenv.progress import Silent
from genenv.training import opening
from interop.conftest import opened
from scripted_genenv import SETTINGS, scripted_players
from typed import refused, succeeds

NAMES = ("desk_env", "programs_env", "home_env")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_its_task(written: Path, name: str) -> None:
    exported = opened(written, name)
    for split, count in (("train", 12), ("held_out", 6)):
        rows, tasks = exported.rows(split), exported.tasks(split)
        assert [row["id"] for row in rows] == [task.id for task in tasks]
        assert len(rows) == count
        for row, task in zip(rows, tasks, strict=True):
            assert task_of(task_text(task)) == task
            assert row["prompt"] == exported.session(task).chat


def test_thoughts_are_no_part_of_a_reply() -> None:
    assert reply_text("<think>Answer: 9?</think>\nAnswer: 31", ()) == "Answer: 31"


def test_thoughts_before_an_answer_do_not_change_its_grade(written: Path) -> None:
    exported = opened(written, "programs_env")
    task = exported.tasks()[0]
    thought = "<think>\nAnswer: 9? Or <tool_call>?\n</think>\n\n"
    assert exported.grade(task, [thought + task.oracle[0], *task.oracle[1:]]).reward == 1.0


def test_a_row_is_found_by_its_task_or_its_place(written: Path, tmp_path: Path) -> None:
    exported = opened(written, "programs_env")
    rows = exported.rows("held_out")
    assert exported.row("held_out", str(rows[1]["id"]), lambda count: 0) == rows[1]
    assert exported.row("held_out", None, lambda count: count - 1) == rows[-1]
    shutil.copytree(exported.folder, tmp_path / "data")
    (tmp_path / "data" / "held_out.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="the split 'held_out' of programs_env has no tasks"):
        Exported(tmp_path / "data").row("held_out", None, lambda count: 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_session_is_graded_as_a_run_grades_it(written: Path, name: str) -> None:
    exported, rng = opened(written, name), random.Random(0)
    for task in exported.tasks("held_out"):
        for replies in (task.oracle, exported.env.random_replies(task, rng), ()):
            session = exported.session(task_text(task))
            for reply in replies:
                if session.done:
                    break
                session.send(reply)
            assert session.verdict() == exported.env.check(task, replies)


def test_calls_are_replies_and_answers_name_them(written: Path) -> None:
    exported = opened(written, "desk_env")
    assert {str(tool["function"]["name"]) for tool in exported.tools} >= {"get_order", "refund_order"}  # type: ignore[index]
    task = exported.tasks()[0]
    session, ((call, *_), *_) = exported.session(task), [read_calls(reply)[1] for reply in task.oracle]
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    answer = session.send("", [{"id": "a", "type": "function", "function": function}])
    assert answer == session.chat
    assert [(one["role"], one["tool_call_id"]) for one in answer] == [("tool", "a")]
    assert "error" not in answer[0]["content"]
    assert session.replies == (task.oracle[0],)
    session.send("Nothing to do.")
    assert session.done
    with pytest.raises(UsageError, match="the attempt has ended"):
        session.send("more")


@pytest.mark.long
def test_it_needs_nothing_but_its_folder(
    desk_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("desks/one", "desks/two"):
        fewer(desk_bundle, tmp_path / name, base=8, held_out=2)
    members = {"one": {"name": "desks/one"}, "two": {"name": "desks/two"}, "sums": {"name": "programs"}}
    (tmp_path / "mix.toml").write_text(dump_tables({"environment": {"name": "mixture", "members": members}}))
    succeeds("export-env", "desks/one", "--out", tmp_path / "desk_env")
    succeeds("export-env", "mix.toml", "--out", tmp_path / "mix_env", "--held-out", 9)
    small = [word for text in ("policy.backend=scripted", "run.rounds=0") for word in ("--set", text)]
    succeeds("train", "mix.toml", *small, "--out", "run")
    succeeds("export-env", "run", "--out", tmp_path / "run_env", "--tasks", 4, "--held-out", 3)
    shutil.rmtree(tmp_path / "desks")
    for name in ("desk_env", "mix_env", "run_env"):
        shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
        exported = Exported(tmp_path / "elsewhere" / name / name / "data")
        assert str(tmp_path) not in (tmp_path / "elsewhere" / name / "README.md").read_text()
        for task in exported.tasks("held_out"):
            assert exported.env.check(task, task.oracle).success


@pytest.mark.long
def test_a_runs_own_tasks_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "load_players", scripted_players)
    (tmp_path / "settings.toml").write_text(SETTINGS.format(rounds=1), encoding="utf-8")
    succeeds("train", tmp_path / "settings.toml", "--out", tmp_path / "run")
    said = succeeds("export-env", tmp_path / "run", "--out", tmp_path / "env", "--tasks", 3).stdout
    tasks = Exported(tmp_path / "env" / "env" / "data").tasks()
    assert len([task for task in tasks if task.lineage.origin == "generated"]) == len(tasks) - 3 > 0
    assert f"{len(tasks)} tasks for training" in said.replace("\n", " ")


@pytest.mark.long
def test_settings_that_are_asked_for_stay(tmp_path: Path) -> None:
    words = ("--tasks", 2, "--held-out", 2, "--set", "environment.style=python")
    succeeds("export-env", "tool_calling", "--out", tmp_path / "calls", *words)
    exported = Exported(tmp_path / "calls" / "calls" / "data")
    assert exported.about.settings == {"mode": "multi"}
    assert exported.tools == []


def test_what_is_wrong_is_one_sentence(written: Path, tmp_path: Path) -> None:
    exported = opened(written, "programs_env")
    with pytest.raises(UsageError, match="there is no split 'test'"):
        exported.rows("test")
    with pytest.raises(UsageError, match="holds no environment"):
        Exported(tmp_path)
    with pytest.raises(DataError, match="a row's task cannot be read"):
        exported.session("{}")
    assert "is there already" in refused("export-env", "programs", "--out", written / "programs_env")
    assert "cannot be the name of a Python package" in refused(
        "export-env", "programs", "--out", tmp_path / "1"
    )
    assert "did you mean 'programs'" in refused("export-env", "program", "--out", tmp_path / "x")


def test_no_more_tasks_are_built_than_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    closed: list[object] = []

    def build(self: Programs, *args: Any, task_id: str, **kwargs: Any) -> Any:
        built.append(task_id)
        return original(self, *args, task_id=task_id, **kwargs)

    original = Programs.build
    monkeypatch.setattr(Programs, "build", build)
    succeeds("export-env", "programs", "--out", tmp_path / "env", "--tasks", 3, "--held-out", 1)
    assert len([name for name in built if name.startswith("base-")]) == 3
    monkeypatch.setattr(export, "close_environment", closed.append)
    with pytest.raises(UsageError, match="has no tasks"):
        write(tmp_path / "none", Export(environment="programs", settings={}), lambda env: [], Silent())
    assert len(closed) == 1


def test_nothing_is_left_of_one_that_cannot_be_written(tmp_path: Path) -> None:
    def none(env: object) -> list[Task]:
        return []

    with pytest.raises(UsageError, match="programs has no tasks with these settings"):
        write(tmp_path / "env", Export(environment="programs", settings={}), none, Silent())
    assert list(tmp_path.iterdir()) == []


def test_a_task_of_every_environment_survives_being_written() -> None:
    for name in ("programs", "tool_calling", "multihop_qa"):
        env = load_environment(name)
        for task in list(base_tasks(env, env.seeds()[:5], seed=0).values()):
            again = task_of(task_text(task))
            assert env.check(again, task.oracle) == env.check(task, task.oracle)
            assert again == task or again.payload == task.payload


@pytest.mark.long
def test_recorded_attempts_get_the_same_verdicts_elsewhere(written: Path, tmp_path: Path) -> None:
    """`bench/portability.py`, the packages of which are here: each in a process of its own."""
    logs, environment = tmp_path / "logs.jsonl", written / "desk_env"
    said = _portability(environment, "record", "--out", logs, "--n", "40")
    assert said["recorded"] == 40
    for through in ("trl", "gymnasium"):
        found = _portability(environment, "play", logs, "--through", through)
        assert (found["attempts"], found["not_playable"], found["differ"]) == (40, 0, 0)
        assert found["solved"] == said["successes"] > 0


def _portability(*words: object) -> dict[str, Any]:
    script = Path(__file__).parents[2] / "bench" / "portability.py"
    done = subprocess.run(
        [sys.executable, script, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
