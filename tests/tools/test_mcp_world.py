"""Tools of an MCP server, run as a real process over stdio: whatever it does, there is an answer."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bundles import EXAMPLES, call
from genenv.errors import UsageError
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.mcp import client as mcp_server
from genenv.tools.worlds.mcp.client import outcome_of
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin, origin_of
from running import running_in

ACCOUNTS = {
    "A-1": {"owner": "Ada Wong", "city": "Oslo", "balance": 20},
    "A-2": {"owner": "Ben Ruiz", "city": "Porto", "balance": 35},
    "A-3": {"owner": "Cleo Park", "city": "Izmir", "balance": 7},
}
_GONE = "The tool ended its process, or took too long."


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpWorld]:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "todo.md").write_text("Buy milk")
    (folder / "plan.md").write_text("Sail")
    command = (sys.executable, str(EXAMPLES / "notes_server.py"), "{folder}")
    world = McpWorld(folder, McpSource(command=command, fresh=False), call_s=20)
    yield world
    world.close()


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    folder = tmp_path / "accounts"
    folder.mkdir()
    (folder / "accounts.json").write_text(json.dumps({"accounts": ACCOUNTS}))
    return folder


def bare(mode: str) -> tuple[str, ...]:
    return (sys.executable, "-S", str(EXAMPLES / "bare_server.py"), mode)


def origin(mode: str, folder: Path) -> McpOrigin:
    return McpOrigin(bare(mode), (), folder)


def test_tools_come_with_their_schemas_first_sentences_and_what_is_said_of_writing(notes: McpWorld) -> None:
    assert notes.tools["read_note"].heading == "read_note(title)"
    assert notes.tools["read_note"].description == "Read a note."
    assert [notes.tools[name].writes for name in ("read_note", "write_note", "list_notes")] == [
        *(False, True, None)
    ]


def test_every_program_starts_from_the_same_folder_and_sees_it_by_the_same_name(notes: McpWorld) -> None:
    calls = [call("write_note", title="to buy", text="tea"), call("list_notes"), call("tag_notes", tags=[{}])]
    first = notes.play(calls, watch=True)
    assert [one.changed for one in first.outcomes] == [True, False, True]
    assert [one.result for one in first.outcomes] == [
        *("written to /files/to buy.md", ["plan", "to buy", "todo"], {"tags": 1})
    ]
    assert first.state == {
        "files": {"plan.md": "Sail", "tags.json": None, "to buy.md": "tea", "todo.md": "Buy milk"},
        "folders": {".": None},
        "tags": [{}],
    }
    assert notes.play_uncached(calls) == first
    assert notes.play([]).state["files"] == {"plan.md": "Sail", "todo.md": "Buy milk"}


def test_a_program_that_goes_on_where_another_one_ended_comes_out_like_the_whole(notes: McpWorld) -> None:
    calls = [
        call("write_note", title="to do", text="sew"),
        call("delete_note", title="plan"),
        call("list_notes"),
    ]
    for number in range(1, 4):
        continued = notes.play(calls[:number], watch=True)
    assert continued.outcomes[-1].result == ["to do", "todo"]
    assert notes.play_uncached(calls) == continued
    assert notes.play(calls) == notes.play(calls) == continued


def test_errors_pictures_long_results_and_what_is_printed_are_outcomes(notes: McpWorld) -> None:
    played = notes.play(
        [call("read_note", title="none"), call("draw_note"), call("shout"), call("chatter"), call("no_tool")]
    )
    missing, drawn, long, printed, unknown = played.outcomes
    assert "there is no note none" in str(missing.error)
    assert drawn == Outcome(result="[image, image/png, 4 characters]")
    assert long.error == "The result is longer than 64000 characters."
    assert printed.result == "said"
    assert "no_tool" in str(unknown.error)


@pytest.mark.long
def test_a_call_that_ends_the_process_fails_and_so_does_what_comes_after_it(notes: McpWorld) -> None:
    played = notes.play([call("write_note", title="x", text="y"), call("die"), call("list_notes")])
    assert [one.error for one in played.outcomes] == [None, _GONE, _GONE]
    assert set(played.state["files"]) == {"plan.md", "todo.md", "x.md"}  # not what was half done
    assert notes.play([call("list_notes")]).outcomes[0].result == ["plan", "todo"]


@pytest.mark.long
def test_a_call_that_hangs_is_ended_and_the_next_program_is_not(accounts: Path) -> None:
    world = McpWorld(accounts, McpSource(command=bare("hangs"), fresh=False), call_s=0.5)
    try:
        read = call("get_account", account_id="A-1")
        assert [one.error for one in world.play([read, call("hang"), read]).outcomes] == [None, _GONE, _GONE]
        assert world.play([read]).outcomes[0].result == ACCOUNTS["A-1"]
    finally:
        world.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("dies", "(no licence was found)"),
        ("silent", "it did not answer within 0.7 s"),
        ("babbles", "it prints lines that are no MCP"),
    ],
)
def test_a_server_that_does_not_start_is_one_sentence_and_no_process(
    mode: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "START_S", 5.0 if mode == "dies" else 0.7)
    with pytest.raises(UsageError) as caught:
        McpWorld(tmp_path, McpSource(command=bare(mode)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not _processes_with(mode)


def _processes_with(mode: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bare_server.py" in b" ".join(words) and mode.encode() in words:
            found.append(str(path))
    return found


def test_when_a_world_is_forgotten_its_process_ends_and_its_folder_goes(accounts: Path) -> None:
    world = McpWorld(accounts, McpSource(command=bare("honest")))
    (process,) = world._processes
    folder = process._folder.path
    assert running_in(folder)
    world.close()
    assert not folder.exists()
    assert not running_in(folder)


@pytest.mark.parametrize(("mode", "fresh"), [("honest", False), ("keeps", True)])
@pytest.mark.long
def test_a_server_that_remembers_is_started_anew_for_every_program(
    mode: str, fresh: bool, accounts: Path, tmp_path: Path
) -> None:
    brought = origin(mode, accounts)
    source = brought.bring(tmp_path / "files")
    assert isinstance(source, McpSource)
    world = source.open(tmp_path / "files")
    try:
        for number in range(3):
            world.play([call("deposit", account_id=f"A-{number + 1}", amount=5 + number)], watch=True)
            world.play([call("get_account", account_id=f"A-{number + 1}")], watch=True)
        settled = brought.complete(world, source, tmp_path / "files")
    finally:
        world.close()
    assert (settled is not None) is fresh
    assert settled is None or (isinstance(settled, McpSource) and settled.fresh)


def test_a_reused_server_has_the_files_that_it_makes_when_it_starts(tmp_path: Path) -> None:
    begins = f"mkdir run; echo {shlex.quote(json.dumps({'accounts': ACCOUNTS}))} > accounts.json; exec "
    command = ("sh", "-c", begins + shlex.join(bare("honest")))
    brought = McpOrigin(command)
    source = brought.bring(tmp_path / "files")
    assert isinstance(source, McpSource)
    world = source.open(tmp_path / "files")
    try:
        for number in range(3):
            played = world.play([call("deposit", account_id=f"A-{number + 1}", amount=5 + number)])
            assert played.outcomes[0].changed
        assert world.play([]).state == world.play_uncached([]).state
        assert brought.complete(world, source, tmp_path / "files") is None, "no new process is needed"
    finally:
        world.close()


@pytest.mark.long
def test_a_bundle_of_a_server_has_tasks_that_pass_the_gate(accounts: Path, tmp_path: Path) -> None:
    wanted = Wanted(origin=origin("honest", accounts), base=12, held_out=4)
    found = make(tmp_path / "bank", wanted, examined, Silent())
    assert (found.base, found.held_out) == (12, 4)
    assert found.bundle.about.state.results == ("last_log.at",)
    ways = {name: dict(recipe.ways) for name, recipe in found.graph.recipes.items()}
    assert ways["deposit"] == {"account_id": "accounts.*.#", "amount": "new"}
    assert ways["find_account"] == {"owner": "accounts.*.*.owner"}
    source = Bundle.open(tmp_path / "bank").about.source
    assert source == McpSource(command=bare("honest"), fresh=False, seeded=True)
    env = Tools(None, tmp_path / "bank")
    try:
        tasks = env.held_out()
        assert len(tasks) == 4
        for task in tasks:
            assert examined(env, task, random.Random(0)) is None
    finally:
        env.world.close()


@pytest.mark.parametrize(
    ("text", "folder", "said"),
    [
        ("mcp:", None, "names no command"),
        ("mcp:A=1", None, "names no command"),
        ("mcp:no-such-server-anywhere", None, "there is no command no-such-server-anywhere"),
        ("mcp:echo 'x", None, "cannot be read as a command"),
        (f"mcp:{shlex.quote(sys.executable)}", Path("none"), "--files none is no folder"),
        ("openapi.yaml", Path(), "--files is the folder of an MCP server"),
    ],
)
def test_a_wrong_command_is_one_sentence(text: str, folder: Path | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        origin_of(text, (), folder)


def test_a_server_whose_folder_is_empty_needs_none(tmp_path: Path) -> None:
    world = McpWorld(tmp_path / "lost", McpSource(command=bare("honest"), fresh=False))
    try:
        assert world.play([]).state == {"folders": {".": None}}
    finally:
        world.close()


def test_words_before_the_command_are_its_environment_and_files_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text("")
    found = McpOrigin.read(f"WHERE={{folder}}/x {sys.executable} server.py --fast {{folder}}", None)
    assert found._env == ("WHERE={folder}/x",)
    assert found._command == (sys.executable, str(tmp_path / "server.py"), "--fast", "{folder}")


def test_without_the_package_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match=r"need the package mcp: pip install 'genenv\[mcp\]'"):
        McpWorld(tmp_path, McpSource(command=bare("honest")))
    monkeypatch.setitem(sys.modules, "mcp", ModuleType("mcp"))
    with pytest.raises(UsageError, match=r"need mcp 2.3 or newer, and [\d.]+ is installed"):
        McpWorld(tmp_path, McpSource(command=bare("honest")))


def test_the_package_is_loaded_when_a_server_is_started_and_not_before() -> None:
    code = "import sys, genenv.tools.worlds.sources; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "is_error"),
    [
        ("Error: no such file", True),
        ("Validation error: n is missing", True),
        ("Error executing tool x: y", True),
        ("Failed to open it", True),
        ("An error occurred while saving", True),
        ("No errors found.", False),
        ("0 errors, 2 warnings", False),
        ("Found no errors.", False),
        ("Exception handling in Python", False),
        ("Errors are listed in errors.txt", False),
        ("ValueError: x is too large", True),
        ("Error: 404 Not Found", True),
        ("Errors: line 3, line 5", True),
        ("Mean squared error: 0.12", False),
        ("Standard error (SE): 0.4", False),
        ("Margin of error: 2%", False),
        ("Total errors: 0", False),
        ("Compile errors: none", False),
        ("Errors: 0, warnings: 2", False),
    ],
)
def test_a_text_that_reports_an_error_is_one_and_a_text_about_errors_is_none(
    text: str, is_error: bool
) -> None:
    types = pytest.importorskip(
        "mcp.types", reason="the package mcp is not installed: pip install 'genenv[mcp]'"
    )
    answer = types.CallToolResult(content=[types.TextContent(type="text", text=text)])
    assert (outcome_of(answer).error is not None) is is_error


def test_a_long_text_is_looked_through_for_errors_in_no_time() -> None:
    types = pytest.importorskip(
        "mcp.types", reason="the package mcp is not installed: pip install 'genenv[mcp]'"
    )
    answer = types.CallToolResult(content=[types.TextContent(type="text", text="error " * 10_000)])
    begun = time.process_time()
    assert outcome_of(answer).error is None
    assert time.process_time() - begun < 0.3
