"""`genenv env new`, and what `docs/guides/your-own-tools.md` says of it: from nothing to a run."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bundles import EXAMPLES, fewer
from genenv.chat.assistant import Reply
from genenv.cli.app import app
from genenv.config.run import load_config
from genenv.environments import load_environment
from genenv.gate.gate import base_tasks
from genenv.tools.cli.try_agent import Session, try_agent
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from orders_api import KEY, served
from typed import refused, succeeds

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "your-own-tools.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.long
def test_every_line_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,), (wordings,) = blocks("python"), blocks("toml")
    make, again, by, writer, answering, refusing, train, reports, openapi, *_ = blocks("sh")
    Path("desk.py").write_text(code, encoding="utf-8")
    first, check = (line.split()[1:] for line in make.splitlines())
    said = succeeds(*first, "--tasks", 40, "--held-out", 12).stdout
    assert "8 tools, 40 tasks for training and 12 for measuring" in said.replace("\n", " ")
    assert "good" in succeeds(*check, "--n", 8).stdout
    with Path("desk/wordings.toml").open("r+", encoding="utf-8") as file:
        kept = [line for line in file if not line.startswith("refund_order")]
        file.seek(0)
        file.truncate()
        file.writelines([*kept, wordings])
    assert again.split()[1:4] == ["env", "tasks", "desk"]
    assert "40 tasks" in succeeds(*again.split()[1:4], "--tasks", 40, "--held-out", 12).stdout
    for line in by.splitlines():  # who writes is not here
        assert line.startswith("genenv env words desk --by ")
    assert writer.startswith("genenv env new desk --from desk.py --writer ")
    for name, new in (("answers", answering), ("refused", refusing)):
        said = succeeds("env", "new", name, *new.split()[4:], "--tasks", 12, "--held-out", 4).stdout
        assert "12 tasks" in said.replace("\n", " ")
    trained, measured, asked = (line.split()[1:] for line in train.splitlines())
    small = (
        "policy.backend=scripted",
        "agent.warmup.steps=0",
        "run.rounds=1",
        "run.eval_tasks=4",
        "simulator.contexts=2",
        "agent.rollouts=2",
    )
    assert (
        "held-out success" in succeeds(*trained, *(word for one in small for word in ("--set", one))).stdout
    )
    assert measured == ["eval", "held-out", "--policy", "runs/desk"]
    assert asked == ["try", "runs/desk"]  # a run of scripted players has no model to ask
    texts = succeeds("generate", "--run", "runs/desk", "--n", 4).stdout
    assert '"messages"' in texts or "messages" in texts
    shutil.copy("desk.py", "reports.py")
    Path("out").mkdir()
    succeeds(*reports.split()[1:], "--tasks", 4, "--held-out", 2)
    shutil.copy(EXAMPLES / "library.yaml", "openapi.yaml")
    of_file, of_address = (line.split()[1:] for line in openapi.splitlines())
    assert "12 tools, 10 tasks" in succeeds(*of_file, "--tasks", 10, "--held-out", 4).stdout.replace(
        "\n", " "
    )
    assert of_address[:3] == ["env", "new", "shop"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("tools.txt", "name a Python file (tools.py, tools.py:Class), an OpenAPI document"),
        ("tools.json", "tools.json cannot be read"),
        ("nowhere.py", "there is no file nowhere.py"),
        (f"{EXAMPLES / 'desk.py'}:Nobody", "desk.py has no class 'Nobody'"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("env", "new", "desk", "--from", source)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_service_is_asked_for_real_after_that_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_TOKEN", KEY)
    command = ("env", "new", tmp_path / "orders", "--from", EXAMPLES / "orders.yaml")
    with served() as api:
        words = ("--server", f"{api.address}/", "--header", "Authorization: Bearer $ORDERS_TOKEN")
        few = ("--only", "/customers", "--tasks", 4, "--held-out", 1, "--most-requests", 50)
        done = succeeds(*command, *words, *few)
        assert 1 < len(api.received) <= 50
    assert done.stderr.index("50 requests at most") < done.stderr.index("loading")
    assert "2 tools, 4 tasks" in done.stdout.replace("\n", " ")
    assert KEY not in done.output
    told = refused(*command, *words[2:])
    assert "--header goes along with requests to --server, and there is none" in told


@pytest.mark.long
def test_a_person_can_attempt_a_task(desk_bundle: Path, tmp_path: Path) -> None:
    fewer(desk_bundle, tmp_path / "desk", base=6, held_out=1)
    env = load_environment(f"{tmp_path}/desk")
    task = next(iter(base_tasks(env, env.seeds(), seed=0).values()))
    words = ["play", f"{tmp_path}/desk", "--task", task.id]
    solved = CliRunner().invoke(app, words, input="".join(f"{reply}\n\n" for reply in task.oracle))
    assert solved.exit_code == 0
    assert task.messages[-1].content in solved.stdout
    assert "\nsolved: The state is right" in solved.stdout
    left = CliRunner().invoke(app, words, input="")
    assert "\nnot solved: Nothing is called." in left.stdout
    assert task.oracle[0] in left.stdout
    assert "there is no task 'none'" in refused("play", f"{tmp_path}/desk", "--task", "none")


@pytest.mark.long
def test_longer_tasks_can_be_asked_for(tmp_path: Path) -> None:
    words = ("--tasks", 30, "--held-out", 4, "--most-calls", 6)
    succeeds("env", "new", tmp_path / "desk", "--from", EXAMPLES / "desk.py", *words)
    config = load_config(tmp_path / "desk" / "train.toml", [f"environment.name={tmp_path}/desk"])
    assert (config.environment.settings.model_dump()["most_calls"], config.agent.max_new_tokens) == (6, 176)
    env = load_environment(f"{tmp_path}/desk", config.environment.settings)
    assert max(env.steps(task) for task in base_tasks(env, env.seeds(), seed=0).values()) > 3


def test_a_folder_that_is_no_bundle_is_no_environment(tmp_path: Path) -> None:
    assert "nothing is no folder; a bundle of tools is one" in refused("check", f"{tmp_path}/nothing")
    assert "is no bundle of tools: it has no bundle.toml" in refused("check", str(tmp_path))


class Told:
    """An assistant that says what it was told to say, and remembers what it was asked."""

    name, native_tools = "told", False

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.heard: list[list[dict[str, Any]]] = []

    def talk(self, seed: int, *, many_turns: bool = False) -> Told:
        return self

    async def __call__(self, messages: list[dict[str, Any]], **settings: Any) -> Reply:
        self.heard.append(list(messages))
        return Reply(text=self.replies.pop(0))


@pytest.mark.long
def test_an_agent_can_be_asked_and_each_call_is_shown_before_it_runs(
    desk_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer(desk_bundle, tmp_path / "desk", base=30, held_out=4)
    small = ("policy.backend=scripted", "run.rounds=0", "agent.warmup.steps=0", "environment.mode=multi")
    words = [word for one in small for word in ("--set", one)]
    succeeds("train", tmp_path / "desk" / "train.toml", "--out", tmp_path / "run", *words)
    told = Told(
        'cancel_order(order_id="O-5003")',
        'refund_order(order_id="O-5001", amount=10)\nsend_mail(to="Ada")',
        "Done.",
        "Hello!",
    )
    monkeypatch.setattr("genenv.tools.cli.try_agent.assistant", lambda *_: told)
    typed = "cancel O-5003\nn\n\nagain\n\n"
    said = CliRunner().invoke(app, ["try", f"{tmp_path}/run"], input=typed).stdout
    assert 'call: cancel_order(order_id="O-5003")\nEnter runs it, n does not:   {"error":"The user' in said
    assert '{"order_id":"O-5001","refunded":10.0,"reason":"none given"}' in said
    assert "There is no tool 'send_mail'." in said
    assert "agent: Done." in said
    assert "agent: Hello!" in said
    assert [message["role"] for message in told.heard[2]] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "tool")
    ]
    asked = Told(
        "Hello!", 'cancel_order(order_id="O-5003")', "Done.", 'cancel_order(order_id="O-5001")', "Oh."
    )
    monkeypatch.setattr("genenv.tools.cli.try_agent.assistant", lambda *_: asked)
    read, write = os.pipe()
    os.write(write, b"hello\n\ncancel O-5003\n\ncancel O-5001")  # a request, one and its answer, one more
    os.close(write)
    with os.fdopen(read) as pipe, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", pipe)
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            try_agent(f"{tmp_path}/run")
    lines = shown.getvalue()
    assert [one[-1]["content"] for one in asked.heard[:2]] == ["hello", "cancel O-5003"]
    assert 'Enter runs it, n does not:   {"order_id":"O-5003","status":"cancelled"}' in lines
    assert "the input has ended, so this call does not run: each request takes a line" in lines
    assert not asked.replies
    asked.replies = ['cancel_order(order_id="O-5003")', "Done."]
    unasked = ["try", f"{tmp_path}/run", "--yes"]
    said = CliRunner().invoke(app, unasked, input="cancel O-5003\n").stdout
    assert '"status":"cancelled"' in said
    assert "Enter runs it" not in said
    assert "nothing was asked for; type a request, or pipe some" in refused("try", tmp_path / "run")
    assert "is no run" in refused("try", tmp_path / "nowhere")
    succeeds("train", "tiny", "--out", tmp_path / "other", *words[:4])
    assert "is of programs, and `genenv try` is for your own tools" in refused("try", tmp_path / "other")


@pytest.mark.long
def test_calls_are_made_once_and_one_that_ends_the_tools_ends_no_conversation(
    desk_bundle: Path, tmp_path: Path
) -> None:
    fewer(desk_bundle, tmp_path / "desk", base=4, held_out=2)
    file, about = tmp_path / "desk" / "files" / "desk.py", tmp_path / "desk" / "bundle.toml"
    file.write_text(
        file.read_text().replace("from typing", "import os\nfrom typing", 1) + "\n"
        "    def draw(self) -> str:\n        self.drawn = os.urandom(8).hex()\n        return self.drawn\n\n"
        "    def show(self) -> str:\n        return self.drawn\n\n"
        "    def crash(self) -> None:\n        os._exit(1)\n"
    )
    about.write_text(about.read_text().replace("seeded = true", "seeded = false"))
    env = Tools(ToolsConfig(mode="multi"), tmp_path / "desk")
    shown: list[tuple[str, str]] = []

    async def always(_: str) -> bool:
        return True

    async def asked() -> None:
        told: Any = Told("draw()", "show()", "crash()", "show()", "Done.")
        async with contextlib.aclosing(
            Session(env, told, show=lambda *one: shown.append(one), wanted=always)
        ) as session:
            await session.answer("draw")

    try:
        asyncio.run(asked())
    finally:
        env.world.close()
    drawn, same, crashed, after = (text for kind, text in shown if kind == "result")
    assert drawn == same
    assert "ended its process" in crashed
    assert len(after) == len(drawn)


@pytest.mark.long
def test_an_agent_of_the_apps_is_asked_on_the_first_day_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apps.toml"
    config.write_text('[environment]\nname = "tool_calling"\nmode = "multi"\n', encoding="utf-8")
    small = ("policy.backend=scripted", "run.rounds=0", "run.eval_every=0", "agent.warmup.steps=0")
    succeeds("train", config, "--out", tmp_path / "run", *(word for one in small for word in ("--set", one)))
    told = Told("set_volume(level=40)", "Done.")
    monkeypatch.setattr("genenv.tools.cli.try_agent.assistant", lambda *_: told)
    said = CliRunner().invoke(app, ["try", f"{tmp_path}/run"], input="softer\n\n\n").stdout
    assert '{"volume":40}' in said
    assert " Today is " in told.heard[0][0]["content"]
    assert "begin(" not in told.heard[0][0]["content"]
