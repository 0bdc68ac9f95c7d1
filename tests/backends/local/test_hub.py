"""A name that no model has is refused at once, with the one that may have been meant."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from genenv.backends.local import hub, loading
from genenv.errors import UsageError
from genenv.evaluation.models import check_name

COMMIT = "0" * 40
QUICK_S = 2.0


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, for names that say how."""

    def do_HEAD(self) -> None:
        name = self.path.split("/")[2]
        if name == "slow":
            time.sleep(1.0)
        status, error = {
            "missing": (404, "RepoNotFound"),
            "gguf-only": (404, "EntryNotFound"),
            "gated": (403, "GatedRepo"),
            "broken": (503, ""),
        }.get(name, (200, ""))
        self.send_response(status)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "2")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def nothing_asked_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    asked = hub.ask
    asked.cache_clear()
    yield
    asked.cache_clear()


def ask_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    place = f"http://127.0.0.1:{port}"
    monkeypatch.setattr(constants, "ENDPOINT", place)
    template = place + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    ask_at(monkeypatch, server.server_port)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ask_at(monkeypatch, free.getsockname()[1])


def complaint(name: str) -> str:
    start = time.perf_counter()
    with pytest.raises(UsageError) as caught:
        hub.check(name)
    assert time.perf_counter() - start < QUICK_S
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cached(tmp_path: Path, name: str) -> Path:
    """A model as the hub's client keeps it."""
    folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text("{}")
    return folder / "snapshots" / COMMIT


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("smollm2-135", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("HuggingFaceTB/SmolLM2-135M-Instrct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("runs/dmeo", "runs/demo"),
        ("runs/dmeo:agent", "runs/demo"),
        ("./models/tyni", "models/tiny"),
        ("models/tniy", "models/tiny"),
        ("Qwen/Qwen2.5-0.5B-Instuct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_a_mistyped_name_is_refused_at_once_with_the_nearest(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/config.toml").touch()
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/config.json").touch()
    cached(tmp_path, "Qwen/Qwen2.5-0.5B-Instruct")
    assert complaint(name).endswith(f"; did you mean {meant!r}?")


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_sentence_says_so() -> None:
    told = complaint("some/model")
    assert told.startswith("there is no model 'some/model' on this disk, and 127.0.0.1:")
    assert "cannot be asked ([Errno 111] Connection refused)" in told


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("org/missing", "there is no model 'org/missing': neither a folder here nor a public one on 127.0"),
        ("org/gguf-only", "holds no config.json: transformers cannot read it"),
        ("org/gated", "is only for whom its authors let in"),
        ("org/broken", "cannot be asked (Server error '503 Service Unavailable'"),
    ],
)
def test_what_the_hub_says_is_one_sentence(name: str, sentence: str) -> None:
    assert sentence in complaint(name)


@pytest.mark.long
@pytest.mark.usefixtures("online")
def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE_S", 0.2)
    assert "cannot be asked (" in complaint("org/slow")
    monkeypatch.setattr(hub, "_asked", lambda name: time.sleep(1.0))  # a name server that says nothing
    assert "cannot be asked (it does not answer)" in complaint("org/other")


@pytest.mark.usefixtures("online")
def test_a_name_that_the_hub_has_is_left_to_it(tmp_path: Path) -> None:
    assert hub.check("org/model") == "org/model"
    assert hub.check("org/broken2") == "org/broken2"
    fetched = cached(tmp_path, "org/broken")
    assert hub.check("org/broken") == str(fetched)


def test_what_is_on_this_disk_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "ask", lambda name: pytest.fail(name))
    assert hub.check("smollm2-135m") == "smollm2-135m"
    assert hub.check(str(tmp_path)) == str(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").touch()
    for policy in ("run", "run@3:agent", "openai:http://localhost:1#m", "smollm2-135m"):
        check_name(policy)
    with pytest.raises(UsageError, match=r"rnu holds no run; .*; did you mean 'run'\?"):
        check_name("rnu@3:agent")


@pytest.mark.usefixtures("offline")
def test_a_model_that_was_fetched_loads_without_a_network_at_once(tiny: Any, tmp_path: Path) -> None:
    place = cached(tmp_path, "org/tiny")
    for file in tiny.folder().iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    start = time.perf_counter()
    assert loading.load_tokenizer("org/tiny").chat_template
    assert json.loads((place / "config.json").read_text())["model_type"] == "llama"
    assert tiny.model(folder="org/tiny").vocabulary == 331
    assert time.perf_counter() - start < 2 * QUICK_S
    assert huggingface_hub.try_to_load_from_cache("org/tiny", "config.json")
