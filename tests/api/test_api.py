"""What a program calls: settings as values, work in a notebook's cell, a run and its agent."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genenv
from bundles import EXAMPLES, fewer
from genenv.api.environment import words
from genenv.errors import UsageError
from genenv.threads import run_with_own_loop as apart
from orders_api import KEY, served

SHORT = {
    "policy.backend": "scripted",
    "agent.warmup.steps": 0,
    "run.rounds": 1,
    "run.eval_tasks": 4,
    "simulator.contexts": 2,
    "agent.rollouts": 2,
}

VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
@pytest.mark.long
def test_a_value_is_the_same_in_toml(value: object) -> None:
    (said,) = words({"a.b": value})
    assert said.startswith("a.b=")
    assert tomllib.loads(f"value = {said[4:]}")["value"] == value


def test_what_has_no_form_in_toml_is_refused() -> None:
    with pytest.raises(UsageError, match=r"run\.seed cannot be None"):
        words({"run.seed": None})


def test_work_with_a_loop_of_its_own_runs_inside_another_loop() -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def cell() -> str:
        return apart(lambda: asyncio.run(inner()))

    assert apart(lambda: asyncio.run(inner())) == threading.current_thread().name
    assert asyncio.run(cell()) == "genenv"

    async def fails() -> None:
        apart(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fails())


def test_an_interrupt_of_a_cell_ends_its_work() -> None:
    code = """
import asyncio, os, signal, threading, time
from genenv.threads import run_with_own_loop as apart
ended = []
def work():
    try:
        while True: time.sleep(0.01)
    finally: ended.append(True)
async def cell():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    apart(work)
loop = asyncio.new_event_loop()
try: loop.run_until_complete(cell())
except KeyboardInterrupt: print(ended)
"""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[True]", done.stderr
    assert time.monotonic() - start < 30


@pytest.mark.long
def test_from_a_file_to_a_run_and_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    silent = genenv.Silent()
    env = genenv.Environment.from_tools(
        str(EXAMPLES / "desk.py"), "desk", tasks=24, held_out=8, reporter=silent
    )
    assert (len(env.tasks), len(env.held_out)) == (24, 8)
    assert env.suggested == Path("desk/train.toml")
    assert {one.state for one in env.check(4)} <= {"good", "poor"}
    run = genenv.train(env, "runs/desk", settings=SHORT, reporter=silent)
    assert sorted(run.metrics) == [0, 1]
    assert list(run.held_out) == [0, 1]
    assert "held-out success" in str(run)
    assert run.config.run.rounds == 1
    assert (
        run.environment.held_out
        == genenv.Environment(
            "./desk", {"mode": run.config.environment.settings.mode, "descriptions": False}
        ).held_out
    )  # type: ignore[attr-defined]
    assert all(task.lineage.origin == "generated" for task in run.tasks(1))
    with pytest.raises(UsageError, match="already holds a run"):
        genenv.train(env, "runs/desk", settings=SHORT, reporter=silent)
    again = genenv.train(env, "runs/desk", settings={"run.rounds": 2}, resume=True, reporter=silent)
    assert sorted(again.metrics) == [0, 1, 2]
    with pytest.raises(UsageError, match="is there already"):
        genenv.Environment.from_tools(str(EXAMPLES / "desk.py"), "desk")
    env.close()


@pytest.mark.long
def test_from_a_service_that_is_asked_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_TOKEN", KEY)
    with served() as api:
        env = genenv.Environment.from_tools(
            EXAMPLES / "orders.yaml",
            tmp_path / "orders",
            tasks=6,
            held_out=2,
            only=["/customers"],
            server=api.address,
            headers=["Authorization: Bearer $ORDERS_TOKEN"],
            most_requests=40,
            reporter=genenv.Silent(),
        )
        with env:
            assert env.grade(env.tasks[0], env.tasks[0].oracle).success
        assert api.methods == {"GET"}
        assert {path.split("/")[2].partition("?")[0] for _, path, _ in api.received} == {"customers"}
    assert KEY not in "".join(one.read_text() for one in (tmp_path / "orders").rglob("*") if one.is_file())


def test_what_is_said_of_other_tools_is_refused(tmp_path: Path) -> None:
    def nothing() -> str:
        """Nothing."""
        return ""

    make, out = genenv.Environment.from_tools, tmp_path / "none"
    with pytest.raises(UsageError, match="and the tools are functions"):
        make(nothing, out, server="http://127.0.0.1:9")
    with pytest.raises(UsageError, match="headers go along with requests to a server"):
        make("orders.yaml", out, headers=["A: b"])
    with pytest.raises(UsageError, match="is not in --files"):
        make(EXAMPLES / "desk.py", out, files=tmp_path)
    assert not out.exists()


def test_what_is_named_wrongly_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'household'"):
        genenv.Environment("houshold")
    with pytest.raises(UsageError, match=r"did you mean 'environment\.mode'"):
        genenv.Environment("tool_calling", {"mod": "single"})
    with pytest.raises(UsageError, match="a RunConfig has all of its own"):
        genenv.train(genenv.Environment("tool_calling").run_config(), tmp_path, settings={"run.seed": 1})
    with pytest.raises(UsageError):
        genenv.Run(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        genenv.tain  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.long
def test_a_environment_is_graded_from_several_threads(desk_bundle: Path, tmp_path: Path) -> None:
    fewer(desk_bundle, tmp_path / "desk", base=12, held_out=2)
    with genenv.Environment(tmp_path / "desk") as env:
        pairs = [(task, other.oracle) for task in env.tasks for other in env.tasks[:3]]
        alone = [env.grade(*pair) for pair in pairs]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda pair: env.grade(*pair), pairs)) == alone


@pytest.mark.long
def test_a_run_that_is_continued_is_the_one_that_is_named(
    desk_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fewer(desk_bundle, tmp_path / "desk", base=24, held_out=8)
    run = genenv.train(genenv.Environment("./desk"), "run", settings=SHORT, reporter=genenv.Silent())
    assert run.environment.held_out == genenv.Environment("./desk").held_out
    for wrong, said in (
        (genenv.Environment("programs"), "was started with other settings"),
        (
            genenv.Environment("./desk", {"style": "json"}),
            r"was started with other settings: environment\.style",
        ),
        (run.config, "with resume=True name them by a file or an environment"),
    ):
        with pytest.raises(UsageError, match=said):
            genenv.train(wrong, "run", resume=True, reporter=genenv.Silent())
    shutil.copytree("desk", "moved/desk")
    assert genenv.Environment("moved/desk").run_config().environment.name == "moved/desk"


def test_what_there_is_can_be_listed() -> None:
    assert {"train", "Environment", "load_agent", "Task"} <= set(dir(genenv))


def test_numbers_of_other_kinds_are_numbers() -> None:
    values = {"a.b": np.float64(0.5), "a.c": np.int64(3), "a.d": Path("x")}
    assert words(values) == ["a.b=0.5", "a.c=3", 'a.d="x"']
