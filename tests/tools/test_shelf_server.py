"""Tools that work in one folder of many, over real git: which it is, is found out by calling them.

`shelf_server.py` keeps drafts as branches. No file shows their names, and what git keeps is hidden.
Finding out how its tools can be called takes many processes of git, so that those tests are `long`;
`test_told.py` asks the same of tools in this process.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from bundles import EXAMPLES, call
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle, graph_json
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import CallStats, Graph, draw_arguments
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.base import Call, Played
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin
from sharing import Shared

GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None, reason="git is not installed")

COMMAND = (sys.executable, "-S", str(EXAMPLES / "shelf_server.py"))
OTHERS = {"attic", "letters", "letters/old", "zoo", "."}
"""Folders without a repository."""
SHELVES = ("work", "zoo/deep")
"""Where the repository is: its place among the others' names, and how deep it lies, do not matter."""


@dataclass(frozen=True)
class Explored:
    """A world, and what was found out of it."""

    shelf: str
    files: Path
    world: McpWorld
    explorer: Explorer
    graph: Graph


def filled(files: Path, shelf: str) -> Path:
    """Folders with a text each, of which one is a repository with a commit and three branches."""
    told = {**os.environ, "GIT_AUTHOR_DATE": "1767603600 +0000", "GIT_COMMITTER_DATE": "1767603600 +0000"}
    for name in ("attic", "letters/old", "zoo", shelf):
        (files / name).mkdir(parents=True, exist_ok=True)
    for name in ("attic", "letters", "letters/old", "zoo"):
        (files / name / "note.txt").write_text(name)
    (files / shelf / "pages.txt").write_text("One page\n")
    for words in (
        ("init", "-q", "--template=", "-b", "main"),
        ("config", "user.name", "Ada"),
        ("config", "user.email", "ada@example.com"),
        ("add", "pages.txt"),
        ("commit", "-q", "-m", "One page"),
        ("branch", "spring"),
        ("branch", "autumn"),
    ):
        subprocess.run([str(GIT), *words], cwd=files / shelf, env=told, check=True, capture_output=True)
    return files


def opened(files: Path) -> McpWorld:
    return McpWorld(files, McpSource(command=COMMAND, fresh=False), call_s=20)


@pytest.fixture(scope="module", params=SHELVES)
def explored(request: pytest.FixtureRequest, shared: Shared) -> Iterator[Explored]:
    shelf: str = request.param

    def explore(to: Path) -> None:
        with closing(opened(filled(to / "files", shelf))) as world:
            (to / "graph.json").write_text(graph_json(Explorer(world, random.Random(0)).explore()))

    folder = shared(f"shelf-{shelf.replace('/', '-')}", explore)
    with closing(opened(folder / "files")) as world:
        graph = TypeAdapter(Graph).validate_json((folder / "graph.json").read_text())
        yield Explored(shelf, folder / "files", world, Explorer.of(world, graph, random.Random(0)), graph)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[McpWorld]:
    world = opened(filled(tmp_path / "files", "work"))
    yield world
    world.close()


def drafts(played: Played) -> set[str]:
    return {line.strip("* ") for line in str(played.outcomes[-1].result).splitlines()}


# which folder it is


@pytest.mark.long
def test_all_tools_succeed_though_one_folder_of_six_will_do(explored: Explored) -> None:
    assert set(explored.graph.recipes) == set(explored.world.tools)
    assert not explored.graph.failures
    assert all(recipe.ways["folder"] == "folders.#" for recipe in explored.graph.recipes.values())
    writes = {name for name, recipe in explored.graph.recipes.items() if recipe.writes}
    assert writes == {"begin_draft", "open_draft", "add_page"}


@pytest.mark.long
def test_folders_that_always_failed_are_known_and_the_one_that_succeeds_is_not_among_them(
    explored: Explored,
) -> None:
    for recipe in explored.graph.recipes.values():
        assert recipe.fails["folder"], recipe.tool
        assert set(recipe.fails["folder"]) <= OTHERS


@pytest.mark.long
def test_the_folder_that_succeeds_is_drawn_far_more_often_than_by_chance(explored: Explored) -> None:
    """Some are drawn from all still: another folder may be one by then."""
    held, rng = explored.explorer.held(()), random.Random(2)

    def share(*, informed: bool) -> float:
        drawings = [
            draw_arguments(
                explored.world.tools[name], recipe if informed else replace(recipe, fails={}), held, rng
            )
            for name, recipe in explored.graph.recipes.items()
            for _ in range(100)
        ]
        return sum(args is not None and args["folder"] == explored.shelf for args in drawings) / len(drawings)

    assert share(informed=False) < 0.25
    assert 0.6 < share(informed=True) < 0.95


@pytest.mark.long
def test_names_that_no_file_shows_are_asked_of_the_tool_that_lists_them(explored: Explored) -> None:
    recipe = explored.graph.recipes["open_draft"]
    assert recipe.ways["draft"] == "list_drafts().#"
    values = explored.explorer.held(()).values
    assert set(values["list_drafts().#"]) == {"main", "spring", "autumn"}
    begun = [call("begin_draft", folder=explored.shelf, title="winter")]
    assert "winter" in explored.explorer.held(begun).values["list_drafts().#"]


def test_a_value_is_not_blamed_for_another_argument() -> None:
    call_stats, ways = CallStats(), {"folder": "folders.#", "draft": "list_drafts().#"}

    def noted(folder: str, draft: str, *, good: bool) -> None:
        call_stats.note(Call(tool="open_draft", args={"folder": folder, "draft": draft}), ways, good=good)

    noted("work", "autumn", good=True)
    noted("zoo", "spring", good=False)
    noted("zoo", "spring", good=False)
    assert call_stats.fails("open_draft", ways) == {
        "folder": ("zoo",),
        "draft": ("spring",),
    }  # nobody can tell
    noted("zoo", "autumn", good=False)
    noted("zoo", "autumn", good=False)
    assert call_stats.fails("open_draft", ways) == {"folder": ("zoo",)}
    noted("work", "summer", good=False)
    noted("work", "summer", good=False)
    assert call_stats.fails("open_draft", ways) == {"folder": ("zoo",), "draft": ("summer",)}
    noted("work", "summer", good=True)
    assert call_stats.fails("open_draft", ways) == {"folder": ("zoo",)}


# its hidden state


def test_hidden_files_are_copied_and_put_back_for_every_attempt(shelf: McpWorld) -> None:
    first = shelf.play([])
    assert any(name.startswith("work/.git/") for name in first.state["hidden"])  # type: ignore[index,call-overload]
    begun = [call("begin_draft", folder="work", title="winter"), call("list_drafts", folder="work")]
    listed = shelf.play(begun)
    assert [outcome.changed for outcome in listed.outcomes] == [True, False]
    assert "winter" in drafts(listed)
    assert drafts(shelf.play_uncached([call("list_drafts", folder="work")])) == {"main", "spring", "autumn"}
    assert shelf.play_uncached([]).state == first.state


def test_the_users_own_folder_stays_as_it_was(shelf: McpWorld, tmp_path: Path) -> None:
    def there() -> dict[str, bytes]:
        found = (path for path in (tmp_path / "files").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    before = there()
    shelf.play(
        [call("add_page", folder="work", words="Two"), call("open_draft", folder="work", draft="spring")]
    )
    assert there() == before


def test_a_program_ends_alike_in_two_processes_and_from_any_start(shelf: McpWorld, tmp_path: Path) -> None:
    """Digests of commits are in the state: their dates are fixed, the staging area is read by content."""
    program = [
        call("begin_draft", folder="work", title="winter"),
        call("open_draft", folder="work", draft="winter"),
        call("add_page", folder="work", words="Snow falls"),
        call("list_pages", folder="work"),
    ]
    for number in range(1, len(program)):
        shelf.play(program[:number])
    continued = shelf.play(program)
    other = opened(tmp_path / "files")
    try:
        whole = other.play_uncached(program)
    finally:
        other.close()
    assert continued == whole == shelf.play_uncached(program)
    told = str(whole.outcomes[-1].result)
    assert "Words: Snow falls" in told
    assert told.count("Written: 2026-01-05") == 2  # also of the page that is written now
    assert all(outcome.error is None for outcome in whole.outcomes)


def test_a_folder_without_a_repository_is_an_error_and_changes_nothing(shelf: McpWorld) -> None:
    first = shelf.play([])
    for folder in (*sorted(OTHERS), "nowhere"):
        played = shelf.play([call("begin_draft", folder=folder, title="winter")])
        assert played.outcomes[0].error is not None, folder
        assert played.state == first.state


# tasks


@pytest.mark.long
def test_a_bundle_without_edits_has_tasks_of_the_repository_that_pass_the_gate(tmp_path: Path) -> None:
    origin = McpOrigin(COMMAND, (), filled(tmp_path / "files", "work"))
    found = make(tmp_path / "shelf", Wanted(origin=origin, base=6, held_out=2), examined, Silent())
    assert (found.base, found.held_out) == (6, 2)
    kept = Bundle.open(tmp_path / "shelf")
    programs = [*kept.base.values(), *kept.held_out.values()]
    steps = [step for program in programs for step in (*program.before, *program.calls)]
    assert {str(step.args["folder"]) for step in steps if "folder" in step.args} == {"work"}
    for name, recipe in kept.graph.recipes.items():
        assert recipe.fails == found.graph.recipes[name].fails
        assert set(recipe.fails["folder"]) <= OTHERS
    env = Tools(None, tmp_path / "shelf")
    try:
        for task in env.held_out():
            assert examined(env, task, random.Random(0)) is None
    finally:
        env.world.close()
