"""Held-out tasks of a run on a tiny real model: what is measured is what the run measured."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from genenv.cli.app import app
from genenv.runs.store.store import PoolStore

HERE = ("--set", "policy.device=cpu", "--set", "policy.threads=1")
NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def measure(policy: object, *words: object) -> Result:
    here = () if str(policy).startswith("openai:") else HERE
    return CliRunner().invoke(
        app, ["eval", "held-out", "--policy", str(policy), *here, *(str(word) for word in words)]
    )


def measured(policy: object, out: Path, *words: object) -> dict[str, Any]:
    done = measure(policy, "--out", out, *words)
    assert done.exit_code == 0, (done.exception, done.stderr)
    return json.loads(out.with_suffix(".summary.json").read_text(encoding="utf-8"))


def refused(*words: object) -> str:
    done = measure(*words)
    assert done.exit_code == 2, (done.exception, done.stdout)
    return done.stderr.splitlines()[-1]


def figures(summary: dict[str, Any]) -> dict[str, float]:
    return {one["name"]: one["value"] for one in summary["figures"] if not one["group"]}


def replies_of(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["id"]: (line["score"], (line["answer"] or {}).get("replies")) for line in lines}


@pytest.mark.parametrize("window", [256, 68])
@pytest.mark.parametrize("template", ["tools", "no tools"])
@pytest.mark.long
def test_the_success_is_the_runs_own_task_by_task(
    train: Callable[..., Path], tiny: Any, tmp_path: Path, window: int, template: str
) -> None:
    model = tiny.folder() if template == "tools" else tiny.folder(template=NO_TOOL_ROLE)
    # in the small window no simulator could write a task
    run = train(f"policy.context_tokens={window}", f"policy.model={model}", "simulator.source=variation")
    own = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = measured("runs/words@1:agent", tmp_path / "r.jsonl")
    expected = {"success": own[1]["agent/eval_success"], "reward": own[1]["agent/eval_reward"]}
    assert figures(summary) == expected
    assert 0 < expected["success"] < 1, "or equality says nothing"
    assert (summary["overflow"] > 0) is (window < 256), "some tasks pass the small window"
    with PoolStore.open(run / "pool.db", create=False) as store:
        there = {one.task_id: (float(one.success), list(one.replies)) for one in store.evaluations(1)}
    here = replies_of(tmp_path / "r.jsonl")
    assert {id_: score for id_, (score, _) in here.items()} == {i: score for i, (score, _) in there.items()}
    assert all(said in (None, there[id_][1]) for id_, (_, said) in here.items())
    assert max(len(said or ()) for _, said in here.values()) >= 2, "some tasks take several turns"


@pytest.mark.long
def test_replies_are_cut_off_where_the_run_cuts_them_off(train: Callable[..., Path], tmp_path: Path) -> None:
    run = train("agent.warmup.steps=0")
    summary = measured("runs/words", tmp_path / "r.jsonl")
    assert summary["tokens"] == {**summary["tokens"], "cut": 8, "replies": 8, "sampled": 24}
    with PoolStore.open(run / "pool.db", create=False) as store:
        there = {one.task_id: list(one.replies) for one in store.evaluations(1)}
    assert {id_: said for id_, (_, said) in replies_of(tmp_path / "r.jsonl").items()} == there


@pytest.mark.long
def test_answers_are_graded_again_by_the_environment_of_the_run(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    train()
    before = measured("runs/words", tmp_path / "r.jsonl")
    done = CliRunner().invoke(app, ["eval", "--regrade", str(tmp_path / "r.jsonl")])
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert "regraded: 0 of 8 scores are other than before" in " ".join(done.stdout.split())
    module = tmp_path / "own_words.py"
    module.write_text(module.read_text(encoding="utf-8").replace("range(self.settings.held)", "range(7)"))
    sys.modules.pop("own_words")
    importlib.invalidate_caches()
    again = CliRunner().invoke(app, ["eval", "--regrade", str(tmp_path / "r.jsonl")])
    assert again.exit_code == 2
    assert "was asked on other data than there is now: held_out_tasks" in again.stderr
    assert before["items"] == 8


@pytest.mark.long
def test_the_part_that_a_run_measures_is_a_split(train: Callable[..., Path], tmp_path: Path) -> None:
    train("run.eval_tasks=3")
    assert measured("runs/words", tmp_path / "a.jsonl")["items"] == 8
    part = measured("runs/words", tmp_path / "b.jsonl", "--split", "measured")
    own = json.loads((tmp_path / "runs/words/metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert part["items"] == 3
    assert figures(part)["success"] == own["agent/eval_success"]


@pytest.mark.long
def test_before_and_after_are_compared_item_by_item(
    train: Callable[..., Path], tiny: Any, tmp_path: Path
) -> None:
    train()
    more = ("--set", "held_out.run=runs/words", "--set", "policy.dtype=float32")
    before = measured(tiny.folder(), tmp_path / "a.jsonl", *more)
    after = measured("runs/words@1:agent", tmp_path / "b.jsonl")
    assert figures(before)["success"] < figures(after)["success"]
    shown = CliRunner().invoke(app, ["compare", "a.jsonl", "b.jsonl"])
    assert shown.exit_code == 0, shown.exception
    assert "over the 8 items both answered" in shown.stdout
    assert "differs from" not in shown.stdout


@pytest.mark.long
def test_runs_of_one_environment_are_compared_without_a_note_and_other_tasks_with_one(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    train()
    train("environment.first=6", "agent.max_new_tokens=4", name="others")
    train("run.seed=1", name="again")
    for name in ("words", "again", "others"):
        measured(f"runs/{name}", tmp_path / f"{name}.jsonl")
    same = CliRunner().invoke(app, ["compare", "words.jsonl", "again.jsonl"])
    assert "differs from" not in same.stdout
    other = " ".join(CliRunner().invoke(app, ["compare", "words.jsonl", "others.jsonl"]).stdout.split())
    assert "differs from words.summary.json in data, rules.environment.first, rules.max_new_tokens" in other


@pytest.mark.long
def test_the_summary_names_the_environment_its_settings_and_the_tasks(
    toml: Path, tiny: Any, tmp_path: Path
) -> None:
    more = ("--set", f"held_out.config={toml}")
    summary = measured(tiny.folder(), tmp_path / "r.jsonl", *more)
    assert summary["rules"] == {
        "environment": {"name": "own_words:Words", "held": 8, "first": 5},
        "max_new_tokens": 3,
        "context_tokens": 256,
        "episode_timeout_s": 120.0,
    }
    assert len(summary["data"]["held_out_tasks"]) == 64
    assert [one["group"] for one in summary["figures"]] == ["", "steps=1", "steps=2", "steps=3", ""]
    toml.write_text(toml.read_text(encoding="utf-8").replace("[simulator]", "first = 1\n[simulator]"))
    assert "rules.environment.first" in refused(
        tiny.folder(), *more, "--out", tmp_path / "r.jsonl", "--resume"
    )


class Always(BaseHTTPRequestHandler):
    """A model behind an endpoint that always says the same word."""

    conversations: ClassVar[list[list[dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.conversations.append(body["messages"])
        message = {"role": "assistant", "content": "a"}
        answer = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        }
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.long
def test_an_endpoint_plays_the_tasks_of_a_environment_without_a_run(toml: Path, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Always)
    Always.conversations.clear()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        address = f"openai:http://127.0.0.1:{server.server_port}/v1#m"
        summary = measured(address, tmp_path / "r.jsonl", "--set", f"held_out.config={toml}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert figures(summary)["success"] == 6 / 8, "two of the tasks want another word"
    longest = max(Always.conversations, key=len)
    roles = [message["role"] for message in longest]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"], "it knows no role of tools"
    assert longest[-1]["content"] == "more 2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("smollm2-135m",),
            "smollm2-135m is of no run, so nothing says whose held-out tasks to ask; add --set",
        ),
        (("openai:http://me:pw@h/v1#m",), "openai:http://***@h/v1#m is of no run"),
        (("runs/none@3:agent",), "runs/none holds no run"),
        (("smollm2-135m", "--set", "held_out.run=runs/none"), "runs/none is not a folder"),
        (("smollm2-135m", "--set", "held_out.config=none.toml"), "there is no file none.toml"),
        (("smollm2-135m", "--set", "held_out.run=a", "--set", "held_out.config=b"), "set one of them"),
        (("smollm2-135m", "--set", "held_out.runs=a"), "did you mean 'held_out.run'?"),
        (
            ("smollm2-135m", "--set", "held_out.config=words.toml", "--split", "test"),
            "held-out has main, all, measured",
        ),
    ],
)
@pytest.mark.usefixtures("toml")
def test_what_cannot_be_measured_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(*words)


def test_a_environment_without_held_out_tasks_is_one_sentence(toml: Path) -> None:
    toml.write_text(toml.read_text(encoding="utf-8").replace("[simulator]", "held = 0\n[simulator]"))
    said = refused("smollm2-135m", "--set", f"held_out.config={toml}")
    assert "environment 'own_words:Words' has no held-out tasks to measure on" in said


@pytest.mark.long
@pytest.mark.parametrize("part", ["check", "episode", "held_out"])
def test_a_environment_that_raises_is_one_sentence_that_names_the_task(
    train: Callable[..., Path], tmp_path: Path, part: str
) -> None:
    train()
    sys.modules.pop("own_words")
    module = tmp_path / "own_words.py"
    source = module.read_text(encoding="utf-8")
    line = next(line for line in source.splitlines() if line.startswith(f"    def {part}(self"))
    module.write_text(source.replace(line, f"{line}\n        1 / 0"), encoding="utf-8")
    said = refused("runs/words")
    assert "environment 'words'" in said
    assert f"{part} raised ZeroDivisionError" in said
    assert part == "held_out" or ", held-0: " in said
