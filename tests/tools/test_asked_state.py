"""State that cannot be read is asked for; what neither the state nor an answer shows makes no tasks."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from bundles import EXAMPLES, call, made
from genenv.gate.gate import base_tasks
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.calls import format_calls
from genenv.tools.discover.asking import (
    IDLE,
    SAME,
    UNSEEN,
    ObservedWorld,
    _without_parts,
    find_unseen,
    first_call,
    unjudged,
    with_questions,
)
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph, Recipe
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import GONE
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.python import PythonWorld

ORDERS = '{f"A-{n}": {"item": item, "status": "open"} for n, item in enumerate(("lamp", "desk", "rug"), 1)}'
TOOLS = '''
def list_orders() -> list[dict]:
    """List the orders."""
    return [{"order_id": key, "item": one["item"]} for key, one in _orders().items()]


def get_order(order_id: str) -> dict:
    """Show an order."""
    return {"order_id": order_id, **_orders()[order_id]}


def cancel_order(order_id: str) -> dict:
    """Cancel an open order."""
    if _orders()[order_id]["status"] != "open":
        raise ValueError("it is not open")
    _orders()[order_id]["status"] = "cancelled"
    return {"order_id": order_id}


def mail_customer(order_id: str) -> str:
    """Mail the customer of an order."""
    _orders()[order_id]
    return "sent"
'''
KINDS = {
    "cache": f"""from functools import lru_cache

@lru_cache
def _orders():
    return {ORDERS}
""",
    "generator": f"""def _kept():
    orders = {ORDERS}
    while True:
        yield orders

_held = _kept()

def _orders():
    return next(_held)
""",
}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[McpWorld]:
    command = (sys.executable, "-S", str(EXAMPLES / "memory_server.py"))
    with closing(McpWorld(tmp_path / "none", McpSource(command=command, fresh=True))) as world:
        yield world


QUESTIONS = [call("list_orders"), call("get_order", order_id="A-1"), call("get_order", order_id="A-2")]


def test_answers_are_part_of_the_state_of_programs_and_sessions(memory: McpWorld) -> None:
    world = ObservedWorld(memory, QUESTIONS)
    program = [call("cancel_order", order_id=name) for name in ("A-1", "A-1", "A-3")]
    played = world.play(program, watch=True)
    assert [one.error for one in played.outcomes] == [None, "it is not open", None]
    assert [one.changed for one in played.outcomes] == [True, False, False]  # nothing asks for A-3
    assert [one.changed for one in memory.play(program, watch=True).outcomes] == [False] * 3
    state = played.state
    assert isinstance(state, dict)
    assert state["folders"] == {".": None}
    asked = state["asked"]
    assert isinstance(asked, dict)
    assert asked["get_order"] == {
        name: {"order_id": name, "item": item, "status": status, "note": ""}
        for name, item, status in (("A-1", "lamp", "cancelled"), ("A-2", "desk", "open"))
    }
    assert len(asked["list_orders"]) == 6  # type: ignore[arg-type]

    async def session() -> object:
        async with world.session() as session:
            for one in program:
                await session.call(one)
            return await session.state()

    assert asyncio.run(session()) == state


def test_after_a_call_that_ends_the_process_the_state_before_it_is_asked_for(tmp_path: Path) -> None:
    text = (EXAMPLES / "memory_server.py").read_text().replace('return "sent"', "sys.exit()")
    (tmp_path / "server.py").write_text(text)
    running = McpSource(command=(sys.executable, "-S", str(tmp_path / "server.py")), fresh=True)
    cancel, mail = call("cancel_order", order_id="A-1"), call("mail_customer", order_id="A-1", text="x")
    with closing(ObservedWorld(McpWorld(tmp_path / "none", running), QUESTIONS)) as world:
        wanted = world.play([cancel]).state
        played = world.play([cancel, mail, cancel], watch=True)
        assert [one.error for one in played.outcomes] == [None, GONE, GONE]
        assert played.state == wanted

        async def session() -> object:
            async with world.session() as session:
                for one in (cancel, mail, cancel):
                    await session.call(one)
                return await session.state()

        assert asyncio.run(session()) == wanted


LATE = """
_orders_loaded = None

def _orders():
    global _orders_loaded
    if _orders_loaded is None:
        _orders_loaded = {ORDERS}
    return _orders_loaded


def count_orders() -> int:
    return len(_orders())
"""


@pytest.mark.long
def test_state_that_the_first_call_sets_up_is_there_when_an_attempt_begins(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        LATE.replace("{ORDERS}", ORDERS) + TOOLS.replace("mail_customer", "_mail")
    )
    folder = tmp_path / "late"
    made(folder, tmp_path / "tools.py", base=8, held_out=3)
    graph = Bundle.open(folder).graph
    assert graph.begins_with in ("list_orders", "count_orders")
    assert {name for name, one in graph.recipes.items() if one.writes} == {"cancel_order"}
    assert f"each attempt begins after {graph.begins_with}()" in (folder / "README.md").read_text()
    env = Tools(ToolsConfig(), folder)
    with closing(env.world):

        async def session() -> object:
            async with env.world.session() as session:
                await session.call(call("cancel_order", order_id="A-2"))
                return await session.state()

        state = asyncio.run(session())
        assert state == env.world.play([call("cancel_order", order_id="A-2")]).state
        tasks = base_tasks(env, env.seeds(), seed=0).values()
        assert all(env.check(task, task.oracle).success for task in tasks)


def test_two_tools_that_do_the_same_set_up_nothing(tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(
        "STATE = {'running': True}\n\n\n"
        "def pause() -> None:\n    STATE['running'] = False\n\n\n"
        "def stop() -> None:\n    STATE['running'] = False\n\n\n"
        "def start() -> None:\n    STATE['running'] = True\n\n\n"
        "def status() -> bool:\n    return STATE['running']\n"
    )
    with closing(PythonWorld(tmp_path, "player.py")) as world:
        assert first_call(world) == ""


@pytest.mark.long
def test_answers_that_tell_the_time_are_not_asked_for(tmp_path: Path) -> None:
    clock = '''

def clock() -> dict:
    """Tell the time."""
    import time
    return {"orders": len(_orders()), "time": time.strftime("%H:%M:%S")}
'''
    (tmp_path / "tools.py").write_text(KINDS["cache"] + TOOLS + clock)
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        recipes = {
            name: Recipe(tool=name, writes=False, ways={}, success=1.0) for name in ("list_orders", "clock")
        }
        rng, graph = random.Random(0), Graph(recipes, ())
        found = find_unseen(Explorer.of(world, graph, rng), graph, rng, is_partly_unseen=True)
        assert {one.tool for one in found.questions} == {"list_orders"}


@pytest.mark.long
def test_tools_that_change_what_is_answered_are_found_and_what_to_ask(memory: McpWorld) -> None:
    way = {"order_id": "list_orders().order_id"}
    own = {"list_orders": {}, "add_note": {**way, "note": "new"}, "mail_customer": {**way, "text": "new"}}
    recipes = {
        name: Recipe(tool=name, writes=False, ways=own.get(name, way), success=1.0) for name in memory.tools
    }
    rng = random.Random(0)
    graph = Graph(recipes, (), {"another": IDLE})
    found = find_unseen(Explorer.of(memory, graph, rng), graph, rng, is_partly_unseen=False)
    assert found.writers == {"cancel_order", "add_note", "archive_order"}
    assert found.alike == {"mail_customer"}
    assert {one.tool for one in found.questions} == {"list_orders", "get_order"}
    assert len(found.questions) == 1 + 6
    checked = found.checked(graph, found.questions)
    assert set(checked.recipes) == {"list_orders", "get_order"}
    assert checked.failures == {
        **dict.fromkeys(("cancel_order", "add_note", "archive_order"), UNSEEN),
        "mail_customer": SAME,
        "another": IDLE,
    }
    assert set(unjudged(checked)) == {*checked.failures}


MANY = """from functools import lru_cache
from typing import Literal


@lru_cache
def _orders():
    return {f"A-{n}": {"city": ("Oslo", "Porto", "Izmir")[n % 3], "note": ""} for n in range(1, 41)}


def list_orders(city: Literal["", "Oslo", "Porto", "Izmir"] = "") -> list[dict]:
    found = [{"order_id": key, "city": one["city"]} for key, one in _orders().items()]
    return [one for one in found if city in ("", one["city"])]


def get_order(order_id: str) -> dict:
    return {"order_id": order_id, **_orders()[order_id]}


def add_note(order_id: str, note: str) -> dict:
    _orders()[order_id]["note"] += note
    return {"order_id": order_id}
"""


def graph_of_many(listing: Mapping[str, str]) -> Graph:
    """What is known of these tools before anything is asked; `listing` has the sources of `list_orders`."""
    way = {"order_id": "list_orders().order_id"}
    ways = {"list_orders": listing, "get_order": way, "add_note": {**way, "note": "new"}}
    return Graph({name: Recipe(tool=name, writes=False, ways=one, success=1.0) for name, one in ways.items()})


@pytest.mark.long
def test_what_a_call_changes_is_looked_for_in_the_same_record(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(MANY)
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        rng, graph = random.Random(0), graph_of_many({"city": "new"})
        explorer = Explorer.of(world, graph, rng)
        found = find_unseen(explorer, graph, rng, is_partly_unseen=False)
        assert found.writers == {"add_note"}
        assert call("list_orders") in found.questions
        assert {one.tool for one in found.questions} == {"list_orders", "get_order"}
        assert sum(one.tool == "list_orders" for one in found.questions) == 1, "the others are parts of it"


def test_a_list_with_its_first_page_alone_does_not_stand_for_others(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(MANY.replace('one["city"])]', 'one["city"])][:4]'))
    questions = [call("list_orders"), *(call("list_orders", city=city) for city in ("Oslo", "Porto"))]
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        assert _without_parts(world, questions, []) == tuple(questions)


SHELVES = """from functools import lru_cache


@lru_cache
def _books():
    return {"Emma": ["A", 3], "Ivanhoe": ["A", 2], "Middlemarch": ["B", 1]}


@lru_cache
def _inbox():
    return {"private": ["hello"], "work": ["report"]}


def titles(shelf: str = "", by_rank: bool = False) -> list[str]:
    found = [one for one, (place, _) in _books().items() if shelf in ("", place)]
    return sorted(found, key=lambda one: _books()[one][1]) if by_rank else found


def move(title: str, shelf: str) -> str:
    _books()[title][0] = shelf
    return title


def rank(title: str, number: int) -> str:
    _books()[title][1] = number
    return title


def inbox(box: str = "") -> list[str]:
    if box:
        return list(_inbox()[box])
    found = [one for mails in _inbox().values() for one in mails]
    for mails in _inbox().values():
        mails.clear()
    return found
"""


def test_a_part_of_a_list_is_asked_for_where_the_whole_does_not_show_a_change(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(SHELVES)
    shelf, by_rank = call("titles", shelf="A"), call("titles", by_rank=True)
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        questions = (call("titles"), shelf, by_rank)
        assert _without_parts(world, questions, []) == (call("titles"),)
        for wrote in (call("move", title="Emma", shelf="B"), call("rank", title="Emma", number=0)):
            assert _without_parts(world, questions, [wrote]) == questions


@pytest.mark.long
def test_a_question_that_writes_is_found_though_the_tool_was_called_otherwise(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(SHELVES)
    ways = {"inbox": {"box": "titles().#"}, "titles": {}, "move": {"title": "titles().#", "shelf": "new"}}
    recipes = {name: Recipe(tool=name, writes=False, ways=told, success=1.0) for name, told in ways.items()}
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        rng, graph = random.Random(0), Graph(recipes)
        explorer = Explorer.of(world, graph, rng)
        explorer.attempt = lambda recipe, before, rng, given=None: {  # type: ignore[method-assign]
            "inbox": call("inbox", box="work"),
            "titles": call("titles"),
            "move": call("move", title="Emma", shelf=rng.choice("BC")),
        }[recipe.tool]
        found = find_unseen(explorer, graph, rng, is_partly_unseen=True)
        assert "inbox" in found.writers
        assert "inbox" not in {one.tool for one in found.questions}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_tool_that_seldom_changes_what_is_asked_is_found_to_write(tmp_path: Path, seed: int) -> None:
    (tmp_path / "tools.py").write_text(MANY)
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        graph = graph_of_many({})
        few = [call("get_order", order_id=f"A-{number}") for number in range(1, 9)]
        explorer = Explorer.of(ObservedWorld(world, few), graph, random.Random(seed))
        explorer.writers = {"add_note"}
        assert explorer.explore(graph).recipes["add_note"].writes


@pytest.mark.long
def test_a_tool_that_is_called_only_since_questions_are_asked_is_judged_too(tmp_path: Path) -> None:
    mail = 'def mail(order_id: str) -> str:\n    return "sent" if _orders()[order_id] else ""\n'
    (tmp_path / "tools.py").write_text(f"{MANY}\n\n{mail}")
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        graph = graph_of_many({})
        explorer = Explorer.of(world, graph, random.Random(0))
        _, found = with_questions(explorer, graph, world, 0, Silent())
        assert found.recipes["add_note"].writes
        assert "mail" not in found.recipes
        assert found.failures["mail"] == SAME


def test_what_only_reads_is_asked_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(KINDS["cache"] + TOOLS)
    ways = {"list_orders": {}, "get_order": {"order_id": "list_orders().order_id"}}
    recipes = {name: Recipe(tool=name, writes=False, ways=told, success=1.0) for name, told in ways.items()}
    with closing(PythonWorld(tmp_path, "tools.py")) as world:
        rng, graph = random.Random(0), Graph(recipes)
        explorer = Explorer.of(world, graph, rng)
        found = find_unseen(explorer, graph, rng, is_partly_unseen=False)
        assert not found.questions
        assert not found.writers
        assert found.checked(graph, ()) == graph


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_that_changes_more_than_asked_fails_where_only_answers_show_it(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(KINDS[kind] + TOOLS)
    found = made(tmp_path / "bundle", tmp_path / "shop.py", base=8, held_out=2)
    assert found.graph.recipes["cancel_order"].writes
    assert found.bundle.about.leave_out == ("mail_customer",)
    readme = (tmp_path / "bundle" / "README.md").read_text()
    assert 'is asked for after each attempt: list_orders(); get_order("A-1")' in readme
    assert "Agents are not offered what may write where no check sees it: mail_customer" in readme
    assert Bundle.open(tmp_path / "bundle").graph == found.graph
    env = Tools(ToolsConfig(), tmp_path / "bundle")
    with closing(env.world):
        tasks = [*env.held_out(), *base_tasks(env, env.seeds(), seed=0).values()]
        assert all(env.check(task, task.oracle).success for task in tasks)
        more = [
            env.check(task, (format_calls([call("cancel_order", order_id=order)], "python"), *task.oracle))
            for task in tasks
            for order in ("A-1", "A-2", "A-3")
            if "cancel_order" in str(task.payload["tools"])
            and order not in f"{task.payload['calls']}{task.payload['before']}"
        ]
        assert len(more) >= 5
        assert not any(one.success for one in more)
