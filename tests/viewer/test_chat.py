"""A chat with agents of runs: calls run if they are wanted, forms are ours, one conversation at a time."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import genenv.tools.cli.chat as module
from bundles import fewer
from genenv.chat.assistant import Reply
from genenv.config.run import dump_toml, load_config
from genenv.gate.gate import base_tasks
from genenv.runs.folder import RunFolder
from genenv.runs.store.records import RoundRecord
from genenv.runs.store.store import PoolStore
from genenv.tools.cli.chat import Chat
from genenv.tools.environment import Tools
from genenv.training.opening import open_environment
from genenv.types import Seed, Task
from genenv.viewer.pages import Viewer
from trained import trained_run

pytestmark = pytest.mark.long


class Told:
    """An agent that says what it was told to, whoever asks."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.heard = list(replies), list[list[Mapping[str, Any]]]()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def talk(self, seed: int, *, many_turns: bool = False) -> Told:
        return self

    async def __call__(self, messages: list[Mapping[str, Any]], **settings: Any) -> Reply:
        self.heard.append(list(messages))
        assert self.may_answer.wait(20)
        return Reply(text=self.replies.pop(0))


class Person:
    """Sends forms of a page as a browser does, and follows where they lead."""

    def __init__(self, server: Viewer) -> None:
        self.host = f"127.0.0.1:{urlsplit(server.url).port}"
        self.at = "/chat"

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str, str]:
        """Return status, the path of a redirect, and the page."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        with closing(http.client.HTTPConnection(self.host, timeout=20)) as connection:
            connection.request(method, path, body, kind | headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Location", ""), answer.read().decode()

    def page(self) -> str:
        status, _, text = self.ask("GET", self.at)
        assert status == 200, text
        return text

    def send(self, **fields: object) -> tuple[int, str]:
        """Send a form; returns the status and the text of the page."""
        token = re.search(r'name="token" value="([^"]*)"', self.page())
        assert token is not None
        form = {"token": unescape(token[1])} | {name: str(value) for name, value in fields.items()}
        status, to, text = self.ask("POST", self.at, urlencode(form), Origin=f"http://{self.host}")
        if status == 303:
            self.at = to
        return status, text

    def until(self, *words: str) -> str:
        """Look at the page until it has these words, and no agent is busy."""
        text = ""
        for _ in range(300):
            text = unescape(re.sub(r"<[^>]*>", " ", self.page()))
            if all(word in text for word in words) and "answers …" not in text and "is loaded …" not in text:
                return text
            time.sleep(0.05)
        raise AssertionError((words, text))


def write(folder: Path, *settings: str) -> tuple[Path, list[Task]]:
    """A run with some tasks and without weights; agents are told what to say."""
    config = load_config(None, [*settings, "policy.model=told", "run.rounds=1"])
    env = open_environment(config)
    seeds: list[Seed] = list(env.seeds())[:6]
    tasks = list(base_tasks(env, seeds, seed=0).values())
    made_run = RunFolder.create(folder, dump_toml(config))
    with PoolStore.open(made_run.pool, create=False) as store:
        store.put_base(seeds, tasks)
        with made_run.committing(store, RoundRecord(number=0, metrics={}, state={})):
            pass
    if isinstance(env, Tools):
        env.world.close()
    return made_run.path, tasks


@pytest.fixture(scope="module")
def runs(desk_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Task]]]:
    """A run on own tools, and one on programs."""
    root = tmp_path_factory.mktemp("chat")
    fewer(desk_bundle, root / "desk", base=16, held_out=2)
    own = (f'environment.name="{root / "desk"}"', "environment.mode=multi")
    tasks = {"desk": write(root / "runs" / "desk", *own)[1]}
    tasks["programs"] = write(root / "runs" / "programs", "environment.name=programs")[1]
    return root / "runs", tasks


@pytest.fixture
def talk(runs: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Person]]:
    """Serves a chat with agents that say what they are told."""
    servers: list[Viewer] = []

    def start(*told: Told) -> Person:
        left = list(told)
        monkeypatch.setattr(module, "assistant", lambda *_: left.pop(0))
        servers.append(Viewer(runs[0], "127.0.0.1", 0, chat=Chat))
        servers[-1].__enter__()
        return Person(servers[-1])

    yield start
    for server in servers:
        server.__exit__()


def test_a_call_is_shown_before_it_runs_and_the_state_stays(talk: Callable[..., Person]) -> None:
    told = Told(
        'cancel_order(order_id="O-5003")', "It is cancelled.", 'cancel_order(order_id="O-5001")', "Then not.",
        'get_order(order_id="O-5003")', "See above.",
    )  # fmt: skip
    person = talk(told)
    assert person.send(run="desk")[0] == 303
    person.send(do="say", text="cancel O-5003")
    pending = person.until('cancel_order(order_id="O-5003")', "Run it")
    assert "cancelled" not in pending.replace("cancel O-5003", "")
    person.send(do="run", side=0)
    person.until('"status":"cancelled"', "It is cancelled.")
    person.send(do="say", text="cancel O-5001 too")
    person.until('cancel_order(order_id="O-5001")', "Run it")
    person.send(do="skip", side=0)
    person.until("The user does not want this call.", "Then not.")
    person.send(do="say", text="what of O-5003?")
    person.until('get_order(order_id="O-5003")', "Run it")
    person.send(do="run", side=0)
    shown = person.until("See above.")
    assert shown.count('"status":"cancelled"') == 2
    assert [one[-1]["content"] for one in told.heard[::2]] == [
        "cancel O-5003",
        "cancel O-5001 too",
        "what of O-5003?",
    ]


def test_two_agents_are_asked_side_by_side_and_have_a_state_each(talk: Callable[..., Person]) -> None:
    one, two = Told('cancel_order(order_id="O-5003")', "Done."), Told("I will not.")
    person = talk(one, two)
    person.send(run="desk", other="desk", other_round="base")
    person.send(do="say", text="cancel O-5003")
    person.until("desk after the last round", "desk before training", "I will not.", "Run it")
    person.send(do="run", side=0)
    shown = person.until('"status":"cancelled"', "Done.")
    assert shown.count("cancel O-5003") == 2


def test_one_conversation_at_a_time_and_the_next_one_says_for_what_it_waits(
    talk: Callable[..., Person],
) -> None:
    told = Told("Hello.", "Hello again.")
    first, second = talk(told), None
    first.send(run="desk")
    second = Person.__new__(Person)
    second.host, second.at = first.host, "/chat"
    assert "Please wait: somebody has talked to desk after the last round" in second.page()
    status, text = second.send(run="desk")
    assert (status, "one conversation at a time" in text) == (400, True)
    assert second.ask("GET", "/chat/another")[0] == 404
    first.send(do="say", text="hello")
    first.until("Hello.")
    first.send(do="end")
    assert first.at == "/chat"
    assert "Please wait" not in second.page()


def test_an_abandoned_conversation_gives_way(
    talk: Callable[..., Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    person = talk(Told('cancel_order(order_id="O-5003")', "Done."), Told("Hello."))
    person.send(run="desk")
    person.send(do="say", text="cancel O-5003")
    person.until("Run it")
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    other = Person.__new__(Person)
    other.host, other.at = person.host, "/chat"
    assert other.send(run="desk")[0] == 303


def test_a_task_of_the_run_is_attempted_and_graded(
    talk: Callable[..., Person], runs: tuple[Path, dict[str, list[Task]]]
) -> None:
    task = runs[1]["programs"][0]
    told = Told(task.oracle[0], "It was easy.")
    person = talk(told)
    assert "choose a task" in person.send(run="programs")[1]
    page = person.ask("GET", f"/runs/programs/-/task?{urlencode({'id': task.id})}")[2]
    link = re.search(r'href="(/chat\?[^"]*task=[^"]*)"', page)
    assert link is not None
    person.at = unescape(link[1])
    assert f'value="{task.id}"' in person.page()
    person.at = "/chat"
    person.send(run="programs", task=task.id)
    assert task.messages[-1].content in unescape(person.page())
    person.send(do="say", text=task.messages[-1].content)
    person.until(task.oracle[0], "Run it")
    person.send(do="run", side=0)
    person.until("✓ solved, reward 1")
    person.send(do="say", text="was it hard?")
    person.until("It was easy.")
    assert [one["content"] for one in told.heard[0]] == [one.content for one in task.messages]


def test_a_task_of_own_tools_begins_in_its_state_with_its_tools(
    talk: Callable[..., Person], runs: tuple[Path, dict[str, list[Task]]]
) -> None:
    task = runs[1]["desk"][0]
    told = Told("Done.")
    person = talk(told)
    person.send(run="desk", task=task.id)
    person.send(do="say", text=task.messages[-1].content)
    person.until("Done.")
    assert [one["content"] for one in told.heard[0]] == [one.content for one in task.messages]


def test_bad_forms_are_refused_in_a_sentence(talk: Callable[..., Person]) -> None:
    person = talk(Told("Hello."))
    for fields, status, sentence in (
        ({"run": "nowhere"}, 404, "is not the folder of a run"),
        ({"run": "../desk"}, 404, "is not the folder of a run"),
        ({"run": "desk", "round": "-1"}, 400, "give a number, or base"),
        ({"run": "desk", "other": "desk"}, 400, "both agents are the same"),
        ({"run": "desk", "task": "none"}, 404, "the store has no task"),
    ):
        got, text = person.send(**fields)
        assert (got, sentence in unescape(text)) == (status, True), fields
    form = urlencode({"run": "desk", "token": "guessed"})
    assert person.ask("POST", "/chat", form)[0] == 400
    token = re.search(r'name="token" value="([^"]*)"', person.page())
    assert token is not None
    stolen = urlencode({"run": "desk", "token": token[1]})
    assert person.ask("POST", "/chat", stolen, Origin="http://elsewhere.example")[0] == 403
    person.send(run="desk")
    for text in ("", "x" * 4001):
        assert "a request has 1 to 4,000 characters" in unescape(person.send(do="say", text=text)[1])
    assert "the form is not whole" in person.send(do="sing")[1]
    assert person.send(do="run", side=99)[0] == 303


def test_without_the_option_there_is_no_chat(runs: tuple[Path, Any]) -> None:
    with Viewer(runs[0], "127.0.0.1", 0) as server:
        person = Person(server)
        assert person.ask("GET", "/chat")[0] == 404
        assert person.ask("POST", "/chat", "run=desk")[0] in (404, 405)
        assert 'href="/chat' not in person.ask("GET", "/runs/desk/-/")[2]


def test_what_an_agent_says_stays_text(talk: Callable[..., Person]) -> None:
    person = talk(Told("<script>alert(1)</script>\u202e{{ 7*7 }}"))
    person.send(run="desk")
    person.send(do="say", text="<img src=x>")
    person.until("alert(1)")
    page = person.page()
    assert "<script>alert(1)" not in page
    assert "<img" not in page
    assert "\\u202e" in page


def test_an_agent_that_cannot_be_loaded_says_why(runs: tuple[Path, Any]) -> None:
    with Viewer(runs[0], "127.0.0.1", 0, chat=Chat) as server:
        person = Person(server)
        assert person.send(run="desk")[0] == 303
        person.until("told")  # the model of this run is no model


def tiny_run(tiny: Any, toy: Any, folder: Path) -> None:
    """A run with the checkpoints of a tiny model, on the built-in tools."""
    more = ("policy.context_tokens=12000", "environment.name=tool_calling", "environment.mode=multi")
    trained_run(folder, tiny.folder(max_position_embeddings=30_000), toy, more=more)


def test_a_model_of_a_checkpoint_answers_three_requests(tiny: Any, toy: Any, tmp_path: Path) -> None:
    tiny_run(tiny, toy, tmp_path / "runs" / "tiny")
    with Viewer(tmp_path / "runs", "127.0.0.1", 0, chat=Chat) as server:
        person = Person(server)
        person.send(run="tiny", round="0", other="tiny")
        for number in range(1, 4):
            person.send(do="say", text=f"request {number}")
            shown = person.until(f"request {number}")
            assert shown.count(" agent ") >= 2 * number
            assert "tiny after round 0" in shown
