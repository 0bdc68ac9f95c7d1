"""Tools that draw random ids: the same call draws the same one in each session, and tasks can name it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import EXAMPLES, call, made
from genenv.backends.scripted import ScriptedSampler
from genenv.gate.gate import base_tasks
from genenv.rollout.driver import Sampling, roll_out
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.importing import SessionSettings
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.python import PythonWorld
from genenv.types import Task

TODO = '''
import random, secrets, uuid
from datetime import datetime

TASKS = {}

def add_task(title: str, priority: str = "medium") -> dict:
    """Add a task to the list.

    Args:
        title: what has to be done
        priority: low, medium or high
    """
    if priority not in ("low", "medium", "high"):
        raise ValueError("priority must be low, medium or high")
    new = {"id": str(uuid.uuid4())[:8], "code": random.randint(1000, 9999), "token": secrets.token_hex(4)}
    TASKS[new["id"]] = {**new, "title": title, "done": False, "created_at": datetime.now().isoformat()}
    return TASKS[new["id"]]

def list_tasks() -> list:
    """List all tasks."""
    return list(TASKS.values())

def complete_task(task_id: str) -> dict:
    """Mark a task as done."""
    TASKS[task_id]["done"] = True
    return TASKS[task_id]

def delete_task(task_id: str) -> dict:
    """Delete a task."""
    return {"deleted": TASKS.pop(task_id)["title"]}
'''

NOTES = '''
import time

NOTES = []

def add_note(text: str) -> int:
    """Add a note."""
    NOTES.append({"id": len(NOTES) + 1, "at": time.time_ns(), "text": text})
    return len(NOTES)

def list_notes() -> str:
    """List the notes."""
    return ", ".join(f"#{one['id']} ({one['at']}): {one['text']}" for one in NOTES) or "no notes"
'''


def played(world: PythonWorld, *calls: Call) -> list[dict[str, Any]]:
    return [cast(Any, one.result) or {} for one in world.play_uncached(calls).outcomes]


def drawn(result: dict[str, Any]) -> tuple[object, ...]:
    return result["id"], result["code"], result["token"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "todo.py").write_text(TODO)
    return tmp_path


def test_a_call_draws_the_same_in_each_session_whatever_else_is_called(folder: Path) -> None:
    milk, tea = call("add_task", title="milk"), call("add_task", title="tea")
    bad = call("add_task", title="milk", priority="urgent")
    with closing(PythonWorld(folder, "todo.py")) as one, closing(PythonWorld(folder, "todo.py")) as other:
        first, second, again = map(drawn, played(one, milk, tea, milk))
        assert len({first, second, again}) == 3, "each call draws values of its own"
        tea_first = played(other, call("list_tasks"), bad, tea, milk)
        assert [drawn(result) for result in tea_first[2:]] == [second, first]
        default = played(other, call("add_task", title="milk", priority="medium"))
        assert drawn(default[0]) == first, "a default is the same call, given or not"


def test_a_session_of_a_rollout_draws_what_a_program_draws(folder: Path) -> None:
    milk = call("add_task", title="milk")

    async def in_session(world: PythonWorld) -> Any:
        async with world.session() as session:
            return (await session.call(milk)).result

    with closing(PythonWorld(folder, "todo.py")) as world:
        assert drawn(asyncio.run(in_session(world))) == drawn(played(world, milk)[0])


def test_a_bundle_of_before_draws_as_before(folder: Path) -> None:
    milk = call("add_task", title="milk")
    with closing(PythonWorld(folder, "todo.py", settings=SessionSettings(seeded=False))) as one:
        assert played(one, milk)[0]["id"] != played(one, milk)[0]["id"]


@pytest.mark.long
def test_a_tool_that_only_draws_is_no_tool_that_writes(tmp_path: Path) -> None:
    (tmp_path / "plants.py").write_text(
        "import uuid\n\ndef schedule(date: str, place: str) -> dict:\n"
        "    'Schedule a visit.'\n"
        "    return {'confirmation': str(uuid.uuid4()), 'date': date, 'place': place}\n\n"
        "def hours(day: str) -> dict:\n    'Tell the hours of a day.'\n    return {'hours': len(day)}\n"
    )
    graph = made(tmp_path / "plants", tmp_path / "plants.py", base=4, held_out=2).graph
    assert graph.recipes.keys() == {"schedule", "hours"}
    assert not any(one.writes for one in graph.recipes.values())


WAYS_TO_DRAW = (
    "str(uuid.uuid1())",
    "os.urandom(4).hex()",
    "str(random.SystemRandom().random())",
    "random.Random().random()",
    "float(np.random.rand())",
    "float(np.random.default_rng().random())",
    "''.join(sorted({str(n) for n in (random.random(), random.random())}))",
)


def test_every_usual_way_to_draw_is_seeded(tmp_path: Path) -> None:
    tools = [
        f"\ndef draw_{number}() -> object:\n    'Draw.'\n"
        f"    LAST[{number}] = {line}\n    return [LAST[{number}]]\n"
        for number, line in enumerate(WAYS_TO_DRAW)
    ]
    header = "import os, random, uuid\nimport numpy as np\n\nLAST = {}\n"
    (tmp_path / "draws.py").write_text(header + "\n".join(tools))
    with closing(PythonWorld(tmp_path, "draws.py")) as world:
        for number, line in enumerate(WAYS_TO_DRAW):
            twice = [call(f"draw_{number}"), call(f"draw_{number}")]
            first, again = ([one.result for one in world.play_uncached(twice).outcomes] for _ in range(2))
            assert first == again, line
            assert first[0] != first[1], line


_OBJECTS = """
import random
import numpy as np

RNG = random.Random(42)
DICE = [random.Random(1), np.random.default_rng(7), np.random.RandomState(7)]
made = []

def draw(title: str) -> list:
    "Draw by generators that are objects."
    floats = [one.random() for one in (RNG, *DICE[:2], *made)]
    return [*floats, DICE[2].randint(10**6), DICE[2].normal()]

def make() -> int:
    "Make a generator."
    made.append(random.Random())
    return len(made)
"""


def test_what_a_generator_draws_depends_on_no_other_call_and_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(_OBJECTS)
    one, two, more = call("draw", title="one"), call("draw", title="two"), call("make")

    async def in_session(world: PythonWorld, *calls: Call) -> list[Any]:
        async with world.session() as session:
            return [(await session.call(each)).result for each in calls]

    with closing(PythonWorld(tmp_path, "draws.py")) as world:
        first = world.play_uncached([one, two])
        assert [(each.changed, each.drew) for each in first.outcomes] == [(False, True)] * 2
        drawn_one, drawn_two = cast(Any, [each.result for each in first.outcomes])
        assert len({*drawn_one, *drawn_two}) == len(drawn_one) + len(drawn_two), "each draws its own"
        other = world.play_uncached([two, more, one]).outcomes
        assert other[0].result == drawn_two
        assert [each for each in drawn_one if each not in cast(Any, other[2].result)] == []
        assert asyncio.run(in_session(world, two, more, one)) == [each.result for each in other]


def test_many_objects_are_looked_through_for_generators_once() -> None:
    script = """
import gc, random
from genenv.tools.worlds import seeding
seeding.take_over()
made = [[one] for one in range(60_000)]
generator = random.Random(1)
calls = seeding.Calls()
calls.begin("draw")
first = generator.random()
print(len(gc.get_objects()) < 10_000, calls.succeeded("draw"))
seeding.Calls().begin("draw")
print(generator.random() == first)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def drawn_by(server: tuple[str, ...], files: Path, **calls: Any) -> tuple[object, ...]:
    """What a call draws in two new processes with seeds, and in one without."""
    program = [call(name, **args) for name, args in calls.items()]
    files.mkdir()
    found: list[object] = []
    for seeded in (True, False):
        running = McpSource(command=server, env=("NODE_OPTIONS=--no-warnings",), seeded=seeded)
        with closing(McpWorld(files, running)) as world:
            found += [world.play_uncached(program).outcomes[-1].text for _ in range(1 + seeded)]
    return tuple(found)


def test_what_a_server_in_python_draws_is_the_same_in_each_process(tmp_path: Path) -> None:
    server = sys.executable, str(EXAMPLES / "bare_server.py"), "draws"
    one, two, without = drawn_by(server, tmp_path / "files", draw={})
    assert one == two != without


def test_a_seeded_server_in_python_keeps_what_its_environment_runs_first(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("open('first', 'w').close()\n")
    running = McpSource(
        command=(sys.executable, str(EXAMPLES / "bare_server.py"), "draws"),
        env=("PYTHONPATH={folder}",),
        seeded=True,
    )
    with closing(McpWorld(tmp_path, running)) as world:
        assert "first" in str(world.play_uncached([call("draw")]).state)


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node: it runs the server")
def test_what_a_server_in_node_draws_is_the_same_in_each_process(tmp_path: Path) -> None:
    server = "node", str(EXAMPLES / "todo_server.mjs"), "{folder}"
    one, two, without = drawn_by(server, tmp_path / "files", add_task={"title": "milk"})
    ids = [cast(str, json.loads(str(text))["id"]) for text in (one, two, without)]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.long
def test_a_to_do_list_with_random_ids_becomes_sound_tasks(tmp_path: Path) -> None:
    """The most ordinary file of tools: no records at first, ids from `uuid`, and the time in each record."""
    source = tmp_path / "todo.py"
    source.write_text(TODO)
    bundle = made(tmp_path / "todo", source, base=30, held_out=10).bundle
    env = Tools(ToolsConfig(), bundle.path)
    with closing(env.world):
        tasks = [*base_tasks(env, env.seeds(), seed=0).values()]
        called = {one.tool for task in tasks for one in calls_of(task.payload, "calls")}
        assert called == {"add_task", "list_tasks", "complete_task", "delete_task"}
        assert any(task.spec["chained"] for task in tasks), "a task that was just added is named by its id"
        for task in tasks:
            calls = calls_of(task.payload, "calls")
            answers = "\n".join(f"Answer: {one}" for one in cast(Any, task.payload["answers"]))
            spelled = [
                Call(tool=one.tool, args={"priority": "medium", **one.args})
                if one.tool == "add_task"
                else one
                for one in calls
            ]
            for way in (calls, spelled, [call("list_tasks"), *calls]):
                if task.payload["mode"] == "single" and len(way) > len(calls):
                    continue
                verdict = env.check(task, (format_calls(way, "python"), f"Done.\n{answers}"))
                assert verdict.success, (json.dumps(task.spec), verdict.explanation)
            more = [*calls, call("add_task", title="something else")]
            if "add_task" in cast(Any, task.payload["tools"]):
                assert not env.check(task, (format_calls(more, "python"), f"Done.\n{answers}")).success


@pytest.mark.long
def test_a_solution_passes_where_a_text_has_the_time_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    bundle = made(tmp_path / "notes", tmp_path / "notes.py", base=12, held_out=4).bundle
    assert bundle.is_unsteady("list_notes")
    env = Tools(ToolsConfig(), bundle.path)
    with closing(env.world):
        tasks = [
            one for one in base_tasks(env, env.seeds(), seed=0).values() if "list_notes" in str(one.oracle)
        ]
        assert tasks
        assert all(rolled_out(env, task, task.oracle) for task in tasks)
        alone = next(one for one in tasks if "add_note" not in str(one.oracle))
        assert not rolled_out(env, alone, ("list_notes(1)", "Done."))


def rolled_out(env: Tools, task: Task, replies: Sequence[str]) -> bool:
    """Whether replies succeed in a session of their own, in which time goes on."""
    said = iter(replies)
    policy = ScriptedSampler(lambda prompt, rng: next(said, ""), context_tokens=100_000)
    sampling = Sampling(temperature=1.0, max_new_tokens=1000, timeout_s=60.0, seed=0)
    (group,) = asyncio.run(roll_out(env, policy, [task], rollouts=1, sampling=sampling))
    return group.traces[0].success
