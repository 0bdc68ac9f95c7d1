"""Sessions of Python tools: nothing that one does reaches another, and no change goes unseen."""

from __future__ import annotations

import asyncio
import contextvars
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from bundles import call, made
from genenv.backends.scripted import ScriptedSampler
from genenv.environments.stepwise import STEPPED
from genenv.gate.gate import base_tasks
from genenv.rollout.driver import Sampling, roll_out
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import Call, KnownPrograms, Outcome, Played, Step
from genenv.tools.worlds.origins import PythonOrigin
from genenv.tools.worlds.python import PythonWorld
from genenv.tools.worlds.sources import PythonSource
from genenv.types import Json, Task

Opens = Callable[[str], PythonWorld]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Opens worlds of files, given as `== name` lines and their text; `tools.py` has the tools."""
    opened: list[PythonWorld] = []

    def open_world(text: str, file: str = "tools.py") -> PythonWorld:
        for part in textwrap.dedent(text).split("== ")[1:]:
            name, _, content = part.partition("\n")
            (tmp_path / name.strip()).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name.strip()).write_text(content)
        opened.append(PythonWorld(tmp_path, file, call_s=2.0))
        return opened[-1]

    yield open_world
    for world in opened:
        world.close()


LAYERS = """
    == service.py
    ORDERS = {"A-1": {"status": "open"}}
    == tools.py
    import service

    def cancel(order_id: str) -> str:
        "Cancel an order."
        if service.ORDERS[order_id]["status"] != "open":
            raise ValueError("it is not open")
        service.ORDERS[order_id]["status"] = "cancelled"
        return order_id
"""
CLASS_ATTRIBUTE = """
    == tools.py
    class Desk:
        orders = {"A-1": {"status": "open"}}

        def cancel(self, order_id: str) -> str:
            "Cancel an order."
            if self.orders[order_id]["status"] != "open":
                raise ValueError("it is not open")
            self.orders[order_id]["status"] = "cancelled"
            return order_id
"""
ARRAY = """
    == tools.py
    import numpy as np

    class Hall:
        def __init__(self):
            self.taken = np.zeros(20000, dtype=int)

        def cancel(self, order_id: str) -> str:
            "Take a seat in the middle, which a repr of the array leaves out."
            if self.taken[10000]:
                raise ValueError("it is not open")
            self.taken[10000] = 1
            return order_id
"""
SLOTS = """
    == tools.py
    class Order:
        __slots__ = ("status",)

        def __init__(self):
            self.status = "open"

    orders = {"A-1": Order()}

    def cancel(order_id: str) -> str:
        "Cancel an order."
        if orders[order_id].status != "open":
            raise ValueError("it is not open")
        orders[order_id].status = "cancelled"
        return order_id
"""
CLOSURE = """
    == tools.py
    def made():
        orders = {"A-1": "open"}

        def cancel(order_id: str) -> str:
            "Cancel an order."
            if orders[order_id] != "open":
                raise ValueError("it is not open")
            orders[order_id] = "cancelled"
            return order_id

        return cancel

    cancel = made()
"""
DEFAULT = """
    == tools.py
    def cancel(order_id: str, *, _gone=[]) -> str:
        "Cancel an order."
        if order_id in _gone:
            raise ValueError("it is not open")
        _gone.append(order_id)
        return order_id
"""
PACKAGE = """
    == shop/__init__.py
    == shop/data.py
    ORDERS = {"A-1": "open"}
    == shop/tools.py
    from .data import ORDERS

    def cancel(order_id: str) -> str:
        "Cancel an order."
        if ORDERS[order_id] != "open":
            raise ValueError("it is not open")
        ORDERS[order_id] = "cancelled"
        return order_id
"""
FILE_ELSEWHERE = """
    == data.json
    {"A-1": "open"}
    == tools.py
    import json, pathlib

    DATA = pathlib.Path(__file__).parent / "data.json"

    def cancel(order_id: str) -> str:
        "Cancel an order."
        orders = json.loads(DATA.read_text())
        if orders[order_id] != "open":
            raise ValueError("it is not open")
        DATA.write_text(json.dumps({**orders, order_id: "cancelled"}))
        return order_id
"""
DICT_WITH_ATTRIBUTES = """
    == tools.py
    class Store(dict):
        closed = None

        def __init__(self):
            super().__init__()
            self.closed = False

    store = Store()

    def cancel(order_id: str) -> str:
        "Cancel an order."
        if store.closed:
            raise ValueError("it is not open")
        store.closed = True
        return order_id
"""
KINDS = {
    "another module": (LAYERS, "tools.py"),
    "class attribute": (CLASS_ATTRIBUTE, "tools.py"),
    "array": (ARRAY, "tools.py"),
    "slots": (SLOTS, "tools.py"),
    "closure": (CLOSURE, "tools.py"),
    "mutable default": (DEFAULT, "tools.py"),
    "package": (PACKAGE, "shop/tools.py"),
    "file beside the module": (FILE_ELSEWHERE, "tools.py"),
    "dict with attributes": (DICT_WITH_ATTRIBUTES, "tools.py"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen_and_reaches_no_other_session(opens: Opens, kind: str) -> None:
    world = opens(*KINDS[kind])
    cancel = call("cancel", order_id="A-1")
    begun = world.play([]).state
    for _ in range(2):
        played = world.play([cancel, cancel], watch=True)
        assert [one.error for one in played.outcomes] == [None, "it is not open"]
        assert [one.changed for one in played.outcomes] == [True, False]
        assert played.state != begun
    assert world.play([]).state == begun
    assert world.unseen == {}


def test_a_value_with_two_names_is_state_once(opens: Opens) -> None:
    world = opens(
        LAYERS.replace("import service", "import service\nfrom service import ORDERS".replace("\n", "\n    "))
    )
    assert world.play([]).state == {"ORDERS": {"A-1": {"status": "open"}}}


def test_constants_are_state_only_when_they_are_bound_anew(opens: Opens) -> None:
    world = opens(
        """
        == tools.py
        LIMIT, current = 5, None

        def set_limit(limit: int) -> int:
            "Set the limit."
            global LIMIT
            LIMIT = limit
            return limit

        def open_file(name: str) -> str:
            "Open a file."
            global current
            current = name
            return name
        """
    )
    assert world.play([]).state == {}
    played = world.play([call("set_limit", limit=7), call("open_file", name="x")], watch=True)
    assert played.state == {"LIMIT": 7, "current": "x"}
    assert [one.changed for one in played.outcomes] == [True, True]


def test_eight_sessions_wait_together_and_calls_are_made_once(opens: Opens) -> None:
    world = opens(
        """
        == tools.py
        import time

        made = 0

        def wait(seconds: float) -> int:
            "Wait."
            global made
            made += 1
            time.sleep(seconds)
            return made
        """
    )

    async def one() -> tuple[object, object]:
        async with world.session() as session:
            outcome = await session.call(call("wait", seconds=0.25))
            return outcome.result, await session.state()

    async def all_of_them() -> list[tuple[object, object]]:
        return await asyncio.gather(*(one() for _ in range(8)))

    start = time.perf_counter()
    found = asyncio.run(all_of_them())
    assert time.perf_counter() - start < 8 * 0.25
    assert found == [(1, {"made": 1})] * 8


def test_a_call_that_ends_its_process_ends_its_session_alone(opens: Opens) -> None:
    world = opens(
        """
        == tools.py
        import os

        log = []

        def note(word: str) -> int:
            "Note a word."
            log.append(word)
            return len(log)

        def die() -> None:
            "End the process."
            os._exit(1)
        """
    )

    async def two() -> None:
        async with world.session() as one, world.session() as other:
            await one.call(call("note", word="a"))
            assert (await one.call(call("die"))).error
            assert (await one.call(call("note", word="b"))).error
            assert await one.state() == {"log": ["a"]}
            assert (await other.call(call("note", word="c"))).result == 1

    asyncio.run(two())

    async def alone() -> Json:
        async with world.session() as one:
            await one.call(call("note", word="a"))
            await one.call(call("die"))
            return await one.state()

    steps = contextvars.copy_context()
    steps.run(STEPPED.set, True)
    with pytest.raises(StopIteration) as ended:  # without an event loop, as in `StepwiseRollout`
        steps.run(alone().send, None)
    assert ended.value.value == {"log": ["a"]}


def test_the_folder_of_a_session_has_one_path_in_all_of_them(opens: Opens) -> None:
    world = opens(
        """
        == tools.py
        import os, pathlib

        written = []

        def write(path: str) -> str:
            "Write a file."
            pathlib.Path(path).write_text("x")
            written.append(os.path.abspath(path))
            return os.path.abspath(path)
        """
    )
    first, second = (world.play([call("write", path="note.txt")]) for _ in range(2))
    assert first == second
    assert first.outcomes[0].result == "/files/note.txt"
    again = world.play([call("write", path="/files/other.txt")])
    assert again.outcomes[0].error is None
    assert again.state["files"]["other.txt"] == "x"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the system does not list its processes")
def test_nothing_is_left_of_a_session(opens: Opens) -> None:
    world = opens(
        """
        == tools.py
        import os, subprocess

        def leave() -> list[int]:
            "Leave a process behind."
            return [os.getpid(), subprocess.Popen(["sleep", "600"]).pid]
        """
    )
    pids = world.play([call("leave")]).outcomes[0].result
    assert isinstance(pids, list)
    until = time.monotonic() + 10
    while any(_lives(int(str(pid))) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.02)

    async def opened() -> int:
        async with world.session(), world.session():
            return len(_folders(world))

    sessions = asyncio.run(opened())
    while len(_folders(world)) > sessions - 2:
        assert time.monotonic() < until
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _folders(world: PythonWorld) -> list[Path]:
    return list(world._scratch.temporary.iterdir())


SHOP = """
    == service.py
    ITEMS = ("lamp", "desk", "chair", "shelf", "rug")
    ORDERS = {f"A-{n}": {"item": item, "status": "open"} for n, item in enumerate(ITEMS, 1)}

    def cancel(order_id):
        if ORDERS[order_id]["status"] != "open":
            raise ValueError("it is not open")
        ORDERS[order_id]["status"] = "cancelled"
    == shop.py
    import service
    from service import ORDERS

    def get_order(order_id: str) -> dict:
        "Show an order."
        return {"order_id": order_id, **ORDERS[order_id]}

    def cancel_order(order_id: str) -> dict:
        "Cancel an open order."
        service.cancel(order_id)
        return {"order_id": order_id, "status": "cancelled"}
"""


@pytest.fixture
def shop(opens: Opens, tmp_path: Path) -> Iterator[Tools]:
    opens(SHOP, "shop.py")
    made(tmp_path / "bundle", tmp_path / "shop.py")
    env = Tools(ToolsConfig(), tmp_path / "bundle")
    yield env
    env.world.close()


def cancelling(env: Tools, task: Task) -> Iterator[str]:
    """Replies that cancel an order which a task does not name."""
    named = f"{task.payload['calls']}{task.payload['before']}"
    for order in (f"A-{n}" for n in range(1, 6)):
        if order not in named:
            yield format_calls([call("cancel_order", order_id=order)], env.settings.style)


@pytest.mark.long
def test_a_rollout_that_changes_one_thing_more_than_asked_fails(shop: Tools) -> None:
    """The change is in a module beside the tools': it decided no verdict when only theirs was looked at."""
    tasks = [*shop.held_out(), *base_tasks(shop, shop.seeds(), seed=0).values()]
    assert all(shop.check(task, task.oracle).success for task in tasks)
    more = [
        shop.check(task, (extra, *task.oracle)).success
        for task in tasks
        if "cancel_order" in str(task.payload["tools"])
        for extra in cancelling(shop, task)
    ]
    assert len(more) > 50
    assert not any(more)


@pytest.mark.long
def test_a_verdict_makes_no_call_of_the_agent_again(shop: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    task = next(one for one in shop.held_out() if [*cancelling(shop, one)])
    wrong = next(cancelling(shop, task))
    executed: list[list[Call]] = []
    play = shop.world.play
    monkeypatch.setattr(
        shop.world, "play", lambda calls, **options: executed.append(list(calls)) or play(calls, **options)
    )
    sampler = ScriptedSampler(lambda prompt, rng: wrong)
    sampling = Sampling(temperature=1.0, max_new_tokens=200, timeout_s=30.0, seed=0)
    (group,) = asyncio.run(roll_out(shop, sampler, [task], rollouts=2, sampling=sampling))
    solution = [*calls_of(task.payload, "before"), *calls_of(task.payload, "calls")]
    assert executed == [solution] * 4  # looked up, or executed in a thread, before each verdict
    verdicts = [shop.check(task, trace.replies) for trace in group.traces]
    assert [(one.reward, one.explanation) for one in verdicts] == [
        (trace.reward, trace.explanation) for trace in group.traces
    ]


def test_a_file_in_a_package_brings_the_package(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text('ORDERS = {"A-1": "open"}\n')
    (package / "tools.py").write_text(
        "from .data import ORDERS\n\ndef show(order_id: str) -> str:\n"
        "    'Show an order.'\n    return ORDERS[order_id]\n"
    )
    source = PythonOrigin(package / "tools.py").bring(tmp_path / "files")
    assert source == PythonSource(file="shop/tools.py", seeded=True)
    with closing(source.open(tmp_path / "files")) as world:
        assert world.play([call("show", order_id="A-1")]).outcomes[0].result == "open"


def test_programs_that_are_cached_are_listed_whatever_other_threads_do() -> None:
    known = KnownPrograms(most=4)

    def play(number: int) -> None:
        program = [call("f"), call("g", n=number)]
        steps = [Step.alone(Played(outcomes=(Outcome(),) * made, state=None)) for made in range(3)]
        assert known.play(program, watch=True, execute=lambda: steps) == steps[-1].played
        assert all(len(one) == 2 for one in known.programs())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(play, [number % 7 for number in range(2000)]))
    assert 0 < len(known.programs()) <= 4
    play(7)
    known.play([call("f")], watch=True, execute=lambda: pytest.fail("the beginning of others is known"))
    assert (call("f"),) in known.programs()
