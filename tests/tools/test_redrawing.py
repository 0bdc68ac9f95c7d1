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


HOTEL = '''
"""A hotel that keeps a log of what was looked at, and takes no booking of the past."""
from datetime import date

guests = {f"G-{n}": {"name": name, "nights": n} for n, name in enumerate(["Ada", "Ben", "Cleo", "Dora"], 2)}
LOG = []


def find_guest(name: str) -> dict:
    """Find a guest by name."""
    LOG.append(["find", name])
    for key, one in guests.items():
        if one["name"] == name:
            return {"guest_id": key, **one}
    return {"error": "nobody has that name"}


def set_nights(guest_id: str, nights: int) -> int:
    """Change how long a guest stays."""
    guests[guest_id]["nights"] = nights
    return nights


def add_guest(name: str, arrival: date) -> str:
    """Add a guest."""
    if arrival < date.today():
        raise ValueError("the day is over")
    guests[f"G-{len(guests) + 2}"] = {"name": name, "nights": 1, "arrival": arrival.isoformat()}
    return f"G-{len(guests) + 1}"
'''


@pytest.mark.long
def test_what_lookups_leave_behind_is_named_and_is_no_write_once_it_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "hotel.py").write_text(HOTEL)
    bundle = tmp_path / "hotel"
    few = ("--tasks", 20, "--held-out", 6)
    said = succeeds("env", "new", bundle, "--from", tmp_path / "hotel.py", *few)
    readme, about = (bundle / "README.md").read_text(), (bundle / "bundle.toml").read_text()
    for told in (said.stderr, readme):
        assert 'find_guest (LOG); if that is no more than a log or a cache, set volatile = ["LOG"]' in told
    assert "- `add_guest`: dates of the past are refused" in readme
    assert "| find_guest | writes |" in readme
    (bundle / "bundle.toml").write_text(about.replace("volatile = []", 'volatile = ["LOG"]'))
    succeeds("env", "tasks", bundle, *few)
    graph = Bundle.open(bundle).graph
    assert {name: one.writes for name, one in graph.recipes.items()} == {
        **{"find_guest": False, "set_nights": True, "add_guest": True}
    }
    assert ("find_guest", "set_nights") in [(link.reader, link.user) for link in graph.links]
    assert "| find_guest | reads |" in (bundle / "README.md").read_text()
    env = Tools(folder=bundle)
    tasks = [*base_tasks(env, env.seeds(), seed=0).values()]
    assert len(tasks) == 20
    assert any(one.spec["calls"][0]["tool"] == "find_guest" for one in tasks)
    for task in tasks:
        first, *rest = task.oracle
        assert env.check(task, task.oracle).success
        if "find_guest" in task.payload["tools"]:
            assert env.check(task, (f'find_guest(name="Ada")\n{first}', *rest)).success, "looking is no harm"
    env.world.close()
