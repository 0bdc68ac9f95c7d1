"""What `genenv env new` reports: how many tasks there are, what is in none, and what to change."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from bundles import EXAMPLES, by_hand, made
from genenv.api.environment import Environment
from genenv.cli.app import app
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent, Stage
from genenv.tools.bundle import Bundle
from genenv.tools.check import calls_of
from genenv.tools.discover.recipes import Recipe
from genenv.tools.environment import Tools
from genenv.tools.generate.drawing import Drawn
from genenv.tools.generate.make_bundle import Made, Wanted, make, readme, summary, warnings
from genenv.tools.worlds.origins import PythonOrigin, origin_of
from typed import succeeds

NOTHING = '''
lamps = 2


def count() -> int:
    """How many lamps there are."""
    return lamps
'''
FEW = '''
doors = {"D-1": {"open": False}, "D-2": {"open": True}}


def toggle(door_id: str) -> bool:
    """Toggle a door."""
    doors[door_id]["open"] = not doors[door_id]["open"]
    return doors[door_id]["open"]


def knock(door_id: str) -> bool:
    """Knock at a door."""
    return doors[door_id]["open"]


def paint(door_id: str, color: str) -> None:
    """Paint a door."""
    raise ValueError("there is no paint")
'''


TAGS = '''
tags = {f"T-{n}": {"id": f"T-{n}", "name": f"tag {n}"} for n in range(1, 9)}


def create_tag(name: str) -> dict:
    """Create a tag."""
    made = {"id": f"T-{len(tags) + 1}", "name": name}
    tags[made["id"]] = made
    return made


def get_tag(id: str) -> dict:
    """Get a tag."""
    return tags[id]


def list_tags(page: int) -> dict:
    """List the tags of a page."""
    return {"book": "one", "tags": list(tags) if page == 1 else []}
'''


@pytest.mark.long
def test_every_lookup_of_a_task_is_needed(tmp_path: Path) -> None:
    (tmp_path / "tags.py").write_text(TAGS)
    made(tmp_path / "tags", tmp_path / "tags.py", base=20, held_out=10)
    env = load_environment(str(tmp_path / "tags"))
    assert isinstance(env, Tools)
    lookups = 0
    with closing(env.world):
        for task in (*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()):
            calls = calls_of(task.payload, "calls")
            before = calls_of(task.payload, "before")
            outcomes = env.world.play([*before, *calls]).outcomes[len(before) :]
            for number, one in enumerate(calls):
                assert one.args.get("page", 1) == 1, "all other pages answer the same"
                others = [*outcomes[:number], *outcomes[number + 1 :]]
                lookups += one.tool == "get_tag"
                assert one.tool != "get_tag" or outcomes[number].result not in [o.result for o in others]
    assert lookups > 3


BALANCES = '''
days = {"E-1": 18, "E-2": 20, "E-3": 20, "E-4": 12, "E-5": 16}


def get_balance(employee_id: str) -> dict:
    """Get the balance of an employee."""
    return {"days": days[employee_id]}


def take_days(employee_id: str, count: int) -> dict:
    """Take days off."""
    if not 0 < count <= 3:
        raise ValueError("1, 2 or 3 days")
    days[employee_id] -= count
    return {"days": days[employee_id]}
'''


@pytest.mark.long
def test_a_lookup_of_another_record_does_not_count_though_the_answer_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(BALANCES)
    made(tmp_path / "leave", tmp_path / "leave.py", base=30, held_out=8)
    env = load_environment(str(tmp_path / "leave"))
    assert isinstance(env, Tools)
    mistaken = 0
    with closing(env.world):
        for task in (*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()):
            assert env.check(task, task.oracle).success
            for asked, other in (("E-2", "E-3"), ("E-3", "E-2")):
                call, instead = (f'get_balance(employee_id="{one}")' for one in (asked, other))
                replies = tuple(reply.replace(call, instead) for reply in task.oracle)
                if replies != task.oracle:
                    mistaken += 1
                    assert not env.check(task, replies).success
    assert mistaken > 1


@pytest.mark.long
def test_only_the_tools_that_a_user_chooses_are_tried_and_shown(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(BALANCES + "\n\ndef ring() -> int:\n    return len(days)\n")
    file = str(tmp_path / "leave.py")
    with pytest.raises(UsageError, match=r"matches no tool of leave\.py; its tools are .*take_days"):
        make(tmp_path / "none", Wanted(origin=origin_of(file, ["go_*"])), examined, Silent())
    wanted = Wanted(origin=origin_of(file, ["*_balance", "take_days"]), base=6, held_out=2)
    done = make(tmp_path / "two", wanted, examined, Silent())
    assert {*done.graph.recipes} == {"get_balance", "take_days"}
    assert "`ring` is no tool: --only does not choose it" in readme(done)
    env = load_environment(str(tmp_path / "two"))
    assert isinstance(env, Tools)
    with closing(env.world):
        assert {*env.world.tools} == {"get_balance", "take_days"}
        assert all("ring" not in cast("list[str]", task.payload["tools"]) for task in env.held_out())


def test_few_tasks_and_what_is_in_none_of_them_are_said_with_a_reason() -> None:
    drawn = Drawn(
        base=40,
        held_out=9,
        asked=(100, 10),
        refused=Counter(duplicate=5, leak=2),
        unused={"knock": Counter(leak=2), "ring": Counter()},
    )
    assert drawn.lacking is None
    few, knock, ring = drawn.warnings
    assert few.startswith("only so many tasks were found: 40 of 100 for training; 7 programs of calls")
    assert "(5 duplicate, 2 leak); few different calls succeed" in few
    assert knock.startswith("knock can be called, and is in no task: 2 programs")
    assert "change wordings.toml" in knock
    assert ring == "ring can be called, and is in no task: no program of calls could be drawn"


def test_half_of_what_was_asked_for_is_no_reason_to_warn() -> None:
    assert Drawn(base=50, held_out=5, asked=(100, 10)).warnings == []
    late = Drawn(base=3, held_out=0, asked=(9, 9), out_of_time=True).lacking
    assert late is not None
    assert "the time was over" in late
    assert "--most-seconds" in late


def test_no_task_on_either_side_is_a_sentence() -> None:
    lacking = Drawn(base=3, held_out=0, asked=(9, 9), refused=Counter(trivial=4)).lacking
    assert lacking is not None
    assert lacking.startswith("no task for measuring was found: 4 programs of calls were tried and refused")
    assert "4 trivial" in lacking


class _Watched(Silent):
    """A reporter that keeps what stages say of how far they are."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int | None, str]] = []
        self.notes: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        done = 0

        def advance(tokens: int, more: int, note: str = "") -> None:
            nonlocal done
            done += more
            self.notes.append(note)

        yield advance
        self.said.append((name, items, f"{done} {unit}".strip()))


@pytest.mark.long
def test_every_stage_that_can_be_counted_is(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(FEW)
    watched = _Watched()
    origin = PythonOrigin(tmp_path / "tools.py", "")
    make(tmp_path / "doors", Wanted(origin=origin, base=4, held_out=1), examined, watched)
    (_, trying, looking, twice, drawing) = watched.said
    assert trying == ("trying the tools", 3, "3 tools")
    assert looking[0] == "looking for state that cannot be read"
    assert twice[0] == "calling the tools twice"
    assert drawing == ("drawing tasks", 5, "5 tasks")
    assert "again, 1 of 1: paint" in watched.notes


@pytest.mark.long
def test_a_bundle_without_tasks_ends_with_status_1_and_says_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(NOTHING)
    words = (
        "env",
        "new",
        tmp_path / "lamps",
        "--from",
        tmp_path / "tools.py",
        "--tasks",
        9,
        "--held-out",
        9,
    )
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("genenv: no task for ")
    assert "few different calls succeed" in last
    assert f"`genenv env tasks {tmp_path}/lamps`" in last
    assert "trains on it" not in done.output
    assert (tmp_path / "lamps" / "README.md").is_file()
    with pytest.raises(UsageError, match=r"no task for .* keeps what was found out"):
        Environment.from_tools(tmp_path / "tools.py", tmp_path / "again", tasks=9, held_out=9)


CLOCK = '''
import time


def now() -> float:
    """Tell the time."""
    return time.time()
'''
BROKEN = '''
def pay(account: str) -> str:
    """Pay."""
    raise RuntimeError("the bank is closed")


def hello(name: str) -> None:
    """Say hello."""
    print("hello", name)
'''
PING = {"get": {"operationId": "ping", "responses": {"204": {"description": "ok"}}}}


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param("clock.py", CLOCK, "(now: what it finds differs from one time to the next)", marks=LONG),
        pytest.param("bank.py", BROKEN, "(pay: the bank is closed; hello: it answers null, and", marks=LONG),
        ("empty.py", "X = 1", "empty.py has no functions, and no class with methods"),
        ("none.json", json.dumps({"openapi": "3.0.3", "paths": {}}), "none.json describes no paths"),
        ("ping.json", json.dumps({"openapi": "3.0.3", "paths": {"/ping": PING}}), "reads or changes records"),
    ],
    ids=lambda text: text if text.endswith((".py", ".json")) else "",
)
def test_tools_without_tasks_are_an_error_that_says_why(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    words = ("env", "new", str(tmp_path / "bundle"), "--from", str(tmp_path / name))
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert said in done.stderr
    assert "trains on it" not in done.output
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(UsageError, match=re.escape(said)):
        Environment.from_tools(tmp_path / name, tmp_path / "again")


@pytest.mark.long
def test_a_server_of_which_no_call_succeeds_is_an_error(tmp_path: Path) -> None:
    server = shlex.join([sys.executable, "-S", str(EXAMPLES / "odd_server.py")])  # without its bookings
    with pytest.raises(UsageError, match=r"could be called with success .*No such file.*; let the tools"):
        Environment.from_tools(f"mcp:{server}", tmp_path / "bundle")


@pytest.mark.long
def test_warnings_come_last_and_name_tools_that_never_succeed(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(FEW)
    said = succeeds("env", "new", tmp_path / "doors", "--from", tmp_path / "tools.py", "--tasks", 200)
    warned = [line for line in said.stderr.splitlines() if line.startswith("warning: ")]
    assert warned[0].startswith("warning: 1 of 3 tools never succeeded: paint; no task calls them")
    assert warned[1].startswith("warning: only so many tasks were found: ")
    assert said.stderr.splitlines()[-len(warned) :] == warned
    found = made(tmp_path / "one", tmp_path / "tools.py", base=4, held_out=1)
    assert [one for one in warnings(found) if "can be called" in one] == []


STOPPED = """
    import os, signal, sys
    from genenv.tools.{module} import {owner}
    from genenv.cli.app import main

    usual, times = {owner}.{method}, 0

    def counted(*arguments, **options):
        global times
        times += 1
        if times == {times}:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(*arguments, **options)

    {owner}.{method} = counted
    main()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "owner", "method", "times", "said"),
    [
        (
            "discover.exploring",
            "Explorer",
            "explore",
            1,
            "nothing of {folder} is kept, and the same command begins anew",
        ),
        (
            "generate.make_bundle",
            "Drawing",
            "passing",
            30,
            "for measuring; `genenv env tasks {folder}` draws them anew",
        ),
    ],
)
def test_an_interrupt_says_what_is_kept(
    tmp_path: Path, module: str, owner: str, method: str, times: int, said: str
) -> None:
    (tmp_path / "tools.py").write_text(FEW)
    folder = tmp_path / "doors"
    program = textwrap.dedent(STOPPED).format(module=module, owner=owner, method=method, times=times)
    done = subprocess.run(
        [sys.executable, "-c", program, "env", "new", folder, "--from", tmp_path / "tools.py"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background job
    )
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].startswith("genenv: stopped; ")
    assert said.format(folder=folder) in done.stderr.splitlines()[-1]
    assert "round" not in done.stderr
    assert folder.is_dir() == (module == "generate.make_bundle")
    assert not (tmp_path / ".doors.new").exists()
    if folder.is_dir():
        assert 0 < len(Bundle.open(folder).base) < 30


def test_the_readme_says_which_optional_arguments_are_never_given_and_why(tmp_path: Path) -> None:
    text = "def ring(door: str, times: int = 1, tune: str = '') -> str:\n    return door * times + tune\n"
    why = 'tried "a"; last refusal: no tunes'
    one = Recipe(
        tool="ring", writes=False, ways={"door": "new", "times": "new"}, success=1.0, unused={"tune": why}
    )
    bundle = Bundle.open(by_hand(tmp_path / "doors", text, one))
    with contextlib.closing(bundle.world(5)) as opened:
        world: Any = SimpleNamespace(tools=opened.tools, left_out={}, network=False, confined=True)
    told = readme(Made(bundle=bundle, world=world, drawn=Drawn(given={("ring", "door")})))
    assert "tune: never given |" in told
    assert f"- `tune` of `ring` is never given: {why}" in told
    assert "- `times` of `ring` is never given: no drawn task has it" in told
    assert "`door` of `ring` is never given" not in told


def test_the_terminal_shows_all_of_a_short_readme_and_counts_a_long_one(desk_bundle: Path) -> None:
    bundle = Bundle.open(desk_bundle)
    with contextlib.closing(bundle.world(5)) as opened:
        world: Any = SimpleNamespace(tools=opened.tools, left_out={}, network=False, confined=True)
    few = Made(bundle=bundle, world=world)
    assert summary(few) == readme(few)
    world.left_out = {f"tool_{n}": f"reason {n}" for n in range(20)}
    shown = summary(few)
    assert shown.count("is no tool") == 16
    assert "4 more of this kind" in shown
    assert "README.md of the bundle lists all" in shown
    assert all(one.tool in shown for one in few.graph.recipes.values())


def test_tools_that_may_not_write_where_they_want_to_are_told_where(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(
        "def add_note(text: str) -> str:\n    'Add a note.'\n"
        "    raise PermissionError(13, 'Permission denied: /srv/notes.txt')\n"
    )
    with pytest.raises(UsageError, match=r"own folder only.*--may-write"):
        made(tmp_path / "notes", tmp_path / "notes.py", base=4, held_out=2)
