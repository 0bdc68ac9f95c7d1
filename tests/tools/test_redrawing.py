"""Tasks of a bundle that was edited: `genenv env tasks`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bundles import made
from genenv.gate.gate import base_tasks
from genenv.tools.bundle import Bundle
from genenv.tools.environment import Tools
from typed import refused, succeeds

SHELVES = '''
class Shelves:
    """Titles on shelves."""

    def __init__(self) -> None:
        self.titles = ["Dune", "Emma"]

    def begin(self, state: int) -> str:
        """Set the shelf up."""
        self.titles = [f"Volume {10 * state + n}" for n in range(3)]
        return f"shelf {state}"

    def take(self, title: str) -> str:
        """Take a title off the shelf."""
        self.titles.remove(title)
        return title

    def add(self, title: str) -> str:
        """Put a title on the shelf."""
        if title in self.titles:
            raise ValueError("it is there already")
        self.titles.append(title)
        return title
'''


def files_of(bundle: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((bundle / "tasks").iterdir())}


@pytest.mark.long
def test_what_was_not_edited_leads_to_the_same_tasks(tmp_path: Path) -> None:
    bundle = tmp_path / "desk"
    made(bundle)
    before = files_of(bundle)
    assert set(before) == {"base.jsonl", "held-out.jsonl"}
    said = succeeds("env", "tasks", bundle, "--tasks", 24, "--held-out", 8).stdout
    assert "24 tasks for training and 8 for measuring" in said.replace("\n", " ")
    assert files_of(bundle) == before
    other = succeeds("env", "tasks", bundle, "--tasks", 12, "--held-out", 4, "--seed", 1).stdout
    assert re.search(r"agent\.max_new_tokens = \d+ in ", other.replace("\n", " "))
    assert [len(one.splitlines()) for one in files_of(bundle).values()] == [12, 4]
    assert "12 tasks for training and 4 for measuring" in (bundle / "README.md").read_text()


@pytest.mark.long
def test_states_to_begin_in_and_values_are_of_one_side(tmp_path: Path) -> None:
    """A user's own class with several states, and titles that only held-out tasks have."""
    (tmp_path / "shelves.py").write_text(SHELVES)
    bundle = tmp_path / "shelves"
    made(bundle, tmp_path / "shelves.py")
    about = (bundle / "bundle.toml").read_text()
    starts = 'starts = { tool = "begin", training = 4, measuring = 3 }\n'
    (bundle / "bundle.toml").write_text(about.replace("\n[", f"\n{starts}\n[", 1))
    (bundle / "values.toml").write_text('[values]\ntitle = ["Kim", "Ulysses", "Nana", "Momo"]\n')
    (bundle / "values-measuring.toml").write_text('[values]\ntitle = ["Beloved", "Foe", "Possession"]\n')
    graph = json.loads((bundle / "graph.json").read_text())
    graph["recipes"]["add"]["ways"]["title"] = "said.title"
    (bundle / "graph.json").write_text(json.dumps(graph))

    said = succeeds("env", "tasks", bundle, "--tasks", 16, "--held-out", 8).stdout
    assert "16 tasks for training and 8 for measuring" in said.replace("\n", " ")
    env = Tools(folder=bundle)
    about_starts = env.bundle.about.starts
    assert about_starts is not None
    for programs, measuring in ((env.bundle.base, False), (env.bundle.held_out, True)):
        states = {about_starts.state_of(program) for program in programs.values()}
        assert states <= set(about_starts.states(measuring=measuring))
        assert len(states) > 1
        added = {
            str(step.args["title"]) for one in programs.values() for step in one.calls if step.tool == "add"
        }
        own = {"Beloved", "Foe", "Possession"} if measuring else {"Kim", "Ulysses", "Nana", "Momo"}
        assert added
        assert added <= own
        assert all(step.tool != "begin" for one in programs.values() for step in one.calls)
    assert len(base_tasks(env, list(env.seeds()), seed=0)) == 16
    assert "good" in succeeds("check", bundle, "--n", 6).stdout


@pytest.mark.long
def test_a_bundle_of_which_nothing_can_be_drawn_stays_as_it_was(tmp_path: Path) -> None:
    bundle = tmp_path / "desk"
    made(bundle, base=4, held_out=2)
    before = files_of(bundle)
    graph = Bundle.open(bundle).graph
    (bundle / "graph.json").write_text(json.dumps({"recipes": {}}))
    said = refused("env", "tasks", bundle, "--tasks", 4, "--held-out", 2)
    assert "graph.json names no tool that can be called" in said
    assert files_of(bundle) == before
    assert graph.recipes
    assert "`genenv env new`" in refused("env", "tasks", bundle, "--from", "desk.py")
    assert "it has no bundle.toml" in refused("env", "tasks", tmp_path)
