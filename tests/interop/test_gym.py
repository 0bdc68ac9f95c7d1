"""Tasks as a Gymnasium environment, held to Gymnasium's own checker."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pytest

from genenv.errors import UsageError
from genenv.interop.exported import Exported
from interop.conftest import opened

gymnasium = pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")


@pytest.mark.parametrize("name", ["desk_env", "programs_env", "home_env"])
def test_it_keeps_what_gymnasium_asks(importable: Path, name: str) -> None:
    from gymnasium.utils.env_checker import check_env

    opened(importable, name)
    made = gymnasium.make(importlib.import_module(f"{name}.gym_env").ENV_ID)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped, skip_render_check=True)


def test_texts_of_any_characters_go_through_vectors_and_shared_memory_is_refused(importable: Path) -> None:
    name = importlib.import_module("programs_env.gym_env").ENV_ID
    vector = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync")
    texts, _ = vector.reset(seed=0)
    assert all(isinstance(text, str) for text in texts)
    vector.step(["Antwort für mich: 3 ≠ 4", ""])
    vector.close()
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec(name, num_envs=2, vectorization_mode="async")
    space = importlib.import_module("genenv.interop.gym").AnyText()
    assert "ü" in space
    assert space.sample() in space


def test_the_newest_folder_of_a_name_is_made(importable: Path, tmp_path: Path) -> None:
    register = importlib.import_module("genenv.interop.gym").register
    folders = [importable / name / name / "data" for name in ("programs_env", "desk_env")]
    ids = [gymnasium.make(register("twice", folder)).reset(seed=0)[1]["task_id"] for folder in folders]
    for task, folder in zip(ids, folders, strict=True):
        assert task in {one.id for one in Exported(folder).tasks()}


def test_a_reply_that_is_written_as_the_readme_shows_is_a_call(importable: Path) -> None:
    exported = opened(importable, "desk_env")
    said = (importable / "desk_env" / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"solution of `(.*)`:\n\n```\n(.*)\n```", said, flags=re.DOTALL)
    assert shown is not None
    made = gymnasium.make(importlib.import_module("desk_env.gym_env").ENV_ID)
    made.reset(options={"task_id": shown[1]})
    text, _, ended, _, _ = made.step(shown[2])
    assert not ended
    assert "error" not in text
    exported.close()


def test_a_solution_is_rewarded_at_its_end(importable: Path) -> None:
    exported = opened(importable, "desk_env")
    made = gymnasium.make(importlib.import_module("desk_env.gym_env").ENV_ID)
    for task in exported.tasks():
        text, info = made.reset(options={"task_id": task.id})
        assert task.messages[-1].content in text
        assert info["tools"]
        assert 'Write each call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>' in text
        for number, reply in enumerate(task.oracle, start=1):
            text, reward, ended, cut, info = made.step(reply)
            assert (reward, ended, cut) == (
                (1.0, True, False) if number == len(task.oracle) else (0.0, False, False)
            )
        assert info["success"]
    with pytest.raises(UsageError, match="the attempt has ended"):
        made.unwrapped.step("more")
    with pytest.raises(UsageError, match="there is no task 'none' in the split 'train'"):
        made.reset(options={"task_id": "none"})
    with pytest.raises(UsageError, match="no attempt has begun"):
        importlib.import_module("genenv.interop.gym").TaskEnvironment(exported.folder).step("x")
