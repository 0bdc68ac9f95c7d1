"""A model behind a real endpoint writes tasks, rightly and wrongly: what is kept, and why the rest is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")

from bundles import made
from endpoints import Answer, Server, refused, said
from genenv.gate.gate import base_tasks
from genenv.tools.bundle import Bundle
from genenv.tools.environment import Tools
from genenv.tools.generate.written_tasks import proposals
from genenv.tools.language.model_wordings import Writer
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.limits import Budget
from typed import succeeds

VAULT = '''"""A vault that nobody opens by guessing."""
import hashlib

boxes = {f"B-{number}": {"owner": owner, "coins": 10 * number, "label": ""}
         for number, owner in enumerate(["Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana"], 1)}
visits = {}


def find_box(owner: str) -> dict:
    """Find the box of an owner."""
    for name, box in boxes.items():
        if box["owner"] == owner:
            return {"box": name, "coins": box["coins"]}
    raise ValueError("nobody has that name")


def label_box(box: str, label: str) -> str:
    """Write a label on a box."""
    boxes[box]["label"] = label
    return label


def empty_box(box: str, word: str) -> int:
    """Take all coins out of a box. The word must be right."""
    if hashlib.sha256(word.encode()).hexdigest()[:8] != "41ef4bb0":
        raise ValueError("that is not the word")
    coins, boxes[box]["coins"] = boxes[box]["coins"], 0
    if not coins:
        raise ValueError("it is empty")
    return coins
'''
WORD = "open sesame"
OWNERS = ["Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana"]


def _tasks() -> Iterator[dict[str, Any]]:
    """Right tasks of every kind."""
    for number, owner in enumerate(OWNERS, 1):
        box = f"B-{number}"
        yield {
            "request": f"How many coins does {owner} keep with us?",
            "calls": [{"tool": "find_box", "args": {"owner": owner}}],
            "asks": "coins",
        }
        yield {
            "request": f"Put the words blue ribbon on whatever {owner} stores here.",
            "calls": [
                {"tool": "find_box", "args": {"owner": owner}},
                {"tool": "label_box", "args": {"box": box, "label": "blue ribbon"}},
            ],
        }
        yield {
            "request": f"Take out all of {box}; the phrase is {WORD}.",
            "calls": [{"tool": "empty_box", "args": {"box": box, "word": WORD}}],
        }


WRONG = [
    {"request": "Label B-2.", "calls": [{"tool": "label_box", "args": {"box": "B-2", "label": "glass"}}]},
    {"request": "Who is Zoe?", "calls": [{"tool": "find_box", "args": {"owner": "Zoe"}}], "asks": "coins"},
    {"request": "Burn B-1.", "calls": [{"tool": "burn", "args": {"box": "B-1"}}]},
    {
        "request": "Label B-3 twice with x1.",
        "calls": [{"tool": "label_box", "args": {"box": "B-3", "label": "x1"}}] * 2,
    },
    {
        "request": "Is it 40 coins that Dora has?",
        "calls": [{"tool": "find_box", "args": {"owner": "Dora"}}],
        "asks": "coins",
    },
    {
        "request": "Run label_box: B-4 gets y2.",
        "calls": [{"tool": "label_box", "args": {"box": "B-4", "label": "y2"}}],
    },
    {
        "request": "Nobody understands this of B-5 and z3.",
        "calls": [{"tool": "label_box", "args": {"box": "B-5", "label": "z3"}}],
    },
]


class Model:
    """Writes what it was given, some at a time, and solves the tasks that it wrote rightly.

    Args:
        stops_after: number of prompts after which it refuses,
        stop: unless this returns true.
    """

    def __init__(self, *, stops_after: int = 10**6, stop: Callable[[], object] = int) -> None:
        self._left = [*WRONG, *_tasks()]
        self._known = {one["request"]: one for one in _tasks()}
        self._stops_after, self._stop = stops_after, stop
        self.prompts: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Answer:
        messages = body["messages"]
        text = messages[-1]["content"]
        if text.startswith("Users ask"):
            self.prompts.append(text)
            if len(self.prompts) > self._stops_after and not self._stop():
                return refused("no more", 400)
            now, self._left = self._left[:8], self._left[8:]
            if "Use above all: empty_box." in text:
                now, self._left = (
                    [one for one in _tasks() if len(one) == 2 and "phrase" in one["request"]],
                    [*now, *self._left],
                )
            return said("Here they are:\n```json\n" + "\n".join(json.dumps(one) for one in now) + "\n```")
        request, *results = [one["content"] for one in messages if one["role"] in ("user", "tool")]
        task = self._known.get(request)
        calls = task["calls"] if task else []
        if len(results) < len(calls):
            call = calls[len(results)]
            told = json.dumps({"name": call["tool"], "arguments": call["args"]})
            return said(f"<tool_call>\n{told}\n</tool_call>")
        found = json.loads(results[-1]).get(task["asks"]) if task and task.get("asks") and results else ""
        return said(f"Answer: {found}" if found else "Done.")


class ShelfModel:
    """Writes tasks for the records that a prompt shows: it takes what is there, and puts what is not."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.told: list[str] = []
        """The first message of each conversation in which a task is solved."""

    def __call__(self, body: dict[str, Any]) -> Answer:
        messages = body["messages"]
        if messages[-1]["content"].startswith("Users ask"):
            lines = messages[-1]["content"].splitlines()
            state = json.loads(lines[lines.index(EXCERPT) + 1])
            there = [*state["things"]]
            new = [f"thing {len(self.known) + number}" for number in range(4)]
            tasks: list[dict[str, Any]] = [
                {"request": f"{say} {name}.", "calls": [{"tool": tool, "args": {"name": name}}]}
                for say, tool, names in (("Bring me", "take", there), ("Keep", "put", new))
                for name in names
            ]
            self.known |= {one["request"]: one["calls"][0] for one in tasks}
            return said("\n".join(map(json.dumps, tasks)))
        request, *results = [one["content"] for one in messages if one["role"] in ("user", "tool")]
        self.told.append(messages[0]["content"])
        call = self.known.get(request)
        if results or call is None:
            return said("Done.")
        told = json.dumps({"name": call["tool"], "arguments": call["args"]})
        return said(f"<tool_call>\n{told}\n</tool_call>")


EXCERPT = "An excerpt of the records, as they are before each task:"
SHELF = '''"""A shelf that is empty at first."""
things = {}


def put(name: str) -> str:
    """Put a thing on the shelf."""
    things[name] = "here"
    return name


def take(name: str) -> str:
    """Take a thing off the shelf."""
    del things[name]
    return name
'''


@pytest.fixture
def server() -> Iterator[Server]:
    with_model = Server()
    yield with_model
    with_model.close()


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "vault.py").write_text(VAULT, encoding="utf-8")
    return tmp_path / "vault.py"


@pytest.mark.long
def test_right_tasks_are_kept_in_the_models_words_and_wrong_ones_are_refused(
    vault: Path, server: Server, tmp_path: Path
) -> None:
    server.answer = Model()
    done = made(tmp_path / "bundle", vault, writer=Writer(by=f"{server.url}#m"), base=12, held_out=3)
    assert set(done.graph.recipes) == {"find_box", "label_box", "empty_box"}, "the model's word opens boxes"
    bundle = Bundle.open(tmp_path / "bundle")
    programs = [*bundle.base.values(), *bundle.held_out.values()]
    written = {one.request for one in programs if one.request}
    assert len(bundle.base) == 12
    assert written <= {one["request"] for one in _tasks()}
    assert len(written) >= 12
    kinds = {(one.n_calls, one.chained, one.answer) for one in programs if one.request}
    assert kinds == {(1, False, True), (2, True, False), (1, False, False)}
    refusals = done.written.refused if done.written else {}
    for reason in ("unstated", "execution", "schema", "trivial", "leak", "round_trip"):
        assert refusals[reason], (reason, refusals)
    assert "wrote were kept" in (tmp_path / "bundle" / "README.md").read_text()
    env = Tools(ToolsConfig(), tmp_path / "bundle")
    try:
        tasks = base_tasks(env, env.seeds(), seed=0).values()
        assert {task.messages[-1].content for task in tasks} & written
        for task in tasks:
            assert env.check(task, task.oracle).success
            assert not env.check(task, ("Done.",)).success
    finally:
        env.world.close()


@pytest.mark.long
def test_prompts_show_the_records_with_which_their_tasks_begin(server: Server, tmp_path: Path) -> None:
    (tmp_path / "shelf.py").write_text(SHELF, encoding="utf-8")
    server.answer = ShelfModel()
    made(tmp_path / "bundle", tmp_path / "shelf.py", writer=Writer(by=f"{server.url}#m"), base=12, held_out=3)
    taken = [
        one
        for one in Bundle.open(tmp_path / "bundle").base.values()
        if one.request and one.calls[0].tool == "take"
    ]
    assert taken
    for one in taken:
        assert one.calls[0].args["name"] in [step.args["name"] for step in one.before]


@pytest.mark.long
def test_whoever_solves_a_task_sees_an_example_of_a_tool_without_documentation(
    server: Server, tmp_path: Path
) -> None:
    text = SHELF.replace('    """Put a thing on the shelf."""\n', "")
    (tmp_path / "shelf.py").write_text(text, encoding="utf-8")
    server.answer = model = ShelfModel()
    made(tmp_path / "bundle", tmp_path / "shelf.py", writer=Writer(by=f"{server.url}#m"), base=6, held_out=2)
    shown = [told.partition("for example:\n")[2].splitlines() for told in model.told]
    assert any(shown)
    assert {line.partition(":")[0] for lines in shown for line in lines} == {"put"}
    assert all(" gives " in line and "it changes things." in line for lines in shown for line in lines)
    task = base_tasks(env := Tools(ToolsConfig(), tmp_path / "bundle"), env.seeds(), seed=0).popitem()[1]
    env.world.close()
    assert "for example:" not in task.messages[0].content, "tasks stay as they are"


@pytest.mark.long
def test_a_model_that_stops_answering_leaves_the_rest_to_the_rules(
    server: Server, tmp_path: Path, vault: Path
) -> None:
    server.answer = Model(stops_after=2)
    command = ["env", "new", tmp_path / "bundle", "--from", vault, "--writer", f"{server.url}#m"]
    told = succeeds(*command, "--tasks", 10, "--held-out", 2)
    assert "the model stopped answering" in told.stdout
    bundle = Bundle.open(tmp_path / "bundle")
    assert len(bundle.base) == 10
    assert {bool(one.request) for one in bundle.base.values()} == {True, False}
    shutil.rmtree(tmp_path / "bundle")


@pytest.mark.long
def test_a_model_that_gives_no_values_leaves_the_rest_to_the_rules(
    server: Server, tmp_path: Path, vault: Path
) -> None:
    server.answer = Model(stops_after=0)
    done = made(tmp_path / "bundle", vault, writer=Writer(by=f"{server.url}#m"), base=6, held_out=2)
    assert (done.base, done.held_out) == (6, 2)
    assert done.written
    assert done.written.problem


@pytest.mark.long
@pytest.mark.parametrize("interrupted", [True, False])
def test_what_a_model_wrote_is_kept_when_it_is_interrupted_or_the_time_is_over(
    server: Server, tmp_path: Path, vault: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    def stop() -> bool:
        if interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            monkeypatch.setattr(Budget, "is_over", property(lambda _: True))
        return not interrupted

    server.answer = model = Model(stops_after=2, stop=stop)
    done = made(tmp_path / "bundle", vault, writer=Writer(by=f"{server.url}#m"), base=12, held_out=3)
    programs = [*done.bundle.base.values(), *done.bundle.held_out.values()]
    assert all(one.request for one in programs)
    assert 0 < len(programs) == done.base + done.held_out < 15
    assert (done.stopped, done.drawn.out_of_time) == (interrupted, not interrupted)
    assert done.written
    assert f"{len(programs)} of " in done.written.said
    assert len(model.prompts) == 3


def test_tasks_are_found_in_a_reply_of_any_form() -> None:
    one = {"request": "x", "calls": [{"tool": "a", "args": {}}]}
    for reply in (
        json.dumps(one),
        f"Sure!\n```json\n{json.dumps([one], indent=2)}\n```",
        json.dumps({"tasks": [one]}),
        f'{{"broken": \n{json.dumps(one)}',
    ):
        assert [found.request for found in proposals(reply)] == ["x"]
    assert proposals("{" * 100_000) == proposals("") == proposals("[1, 2]") == []
