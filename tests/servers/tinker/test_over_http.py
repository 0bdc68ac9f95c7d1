"""The server without the SDK: order, sessions that end, refusals, other servers' manners, kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genenv.errors import UsageError
from genenv.http.guard import Access
from genenv.servers.tinker import messages, service, sessions
from genenv.servers.tinker.checkpoints import CheckpointInfo, CheckpointPath, CheckpointStore
from genenv.servers.tinker.imitation import ServerImitation
from genenv.servers.tinker.replies import NotHere
from genenv.servers.tinker.serving import TinkerServer, open_base
from raw_http import answer, connect, head
from running import comes_true
from typed import refused

Serve = Callable[..., str]


def ask(url: str, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """Status and body, JSON where it is some; a body of bytes is sent as protobuf."""
    kind = "x-protobuf" if isinstance(body, bytes) else "json"
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    said = {"x-api-key": "tml-test", "content-type": f"application/{kind}", **headers}
    asked = urllib.request.Request(f"{url}/api/v1/{path}", sent, said, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
            status, found = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, found = error.code, error.read()
    try:
        return status, json.loads(found)
    except ValueError:
        return status, found


class Client:
    """A client without the SDK."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = ask(url, "create_session", {})[1]["session_id"]

    def train(self, number: int = 0, **lora: Any) -> str:
        body = {
            "session_id": self.session,
            "model_seq_id": number,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1, **lora},
        }
        made = self.fetch(self.send("create_model", body))
        return made["model_id"]

    def send(self, path: str, body: Any) -> str:
        status, said = ask(self.url, path, body)
        assert status == 200, said
        return said["request_id"]

    def fetch(self, request: str) -> Any:
        while True:
            status, said = ask(self.url, "retrieve_future", {"request_id": request})
            if status != 408:
                assert status == 200, said
                return said


def learn(model: str, seq: int, text: bytes = b"The weather is fine", **targets: Any) -> bytes:
    """A request of forward_backward; `targets` are fields of its target tokens."""
    body = messages.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy")
    ids = np.frombuffer(text, np.uint8)
    datum = body.data.add()
    datum.model_input.add().encoded_text.tokens = ids[:-1].astype(np.int32).tobytes()
    tensor = datum.loss_fn_inputs["target_tokens"]
    own = {"dense": ids[1:].astype(np.int64).tobytes(), "dtype": messages.INT64, **targets}
    tensor.shape.extend(own.pop("shape", []))
    if "crow" in own:
        tensor.sparse_csr.crow_indices = own.pop("crow")
        own.pop("dense")
    for name, value in own.items():
        setattr(tensor, name, value)
    return body.SerializeToString()


def step(model: str, seq: int) -> Any:
    return {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 1e-2}}


def loss(client: Client, model: str, seq: int) -> float:
    return total(client.fetch(client.send("forward_backward", learn(model, seq))))


def total(answer: bytes) -> float:
    """The loss in an answer of forward_backward."""
    found = messages.ForwardBackwardOutput()
    messages.parse(found, answer)
    return found.metrics["loss:sum"]


def test_requests_that_overtake_each_other_wait_for_their_turn(serve: Serve) -> None:
    client = Client(serve())
    one, other = client.train(0), client.train(1)
    for model, order in ((one, (1, 2, 3, 4)), (other, (4, 2, 3, 1))):
        sent = {
            seq: client.send(
                "optim_step" if seq in (2, 4) else "forward_backward",
                step(model, seq) if seq in (2, 4) else learn(model, seq),
            )
            for seq in order
        }
        for request in sent.values():
            client.fetch(request)
    assert loss(client, one, 5) == loss(client, other, 5)


def test_a_request_that_is_sent_again_is_worked_once(serve: Serve) -> None:
    client = Client(serve())
    one, other = client.train(0), client.train(1)
    for model, times in ((one, 1), (other, 3)):
        for _ in range(times):
            client.send("forward_backward", learn(model, 1))
        for _ in range(times):
            client.fetch(client.send("optim_step", step(model, 2)))
    assert loss(client, one, 3) == loss(client, other, 3)


def test_what_is_refused_holds_nobody_up(serve: Serve) -> None:
    client = Client(serve())
    model = client.train()
    status, said = ask(client.url, "forward_backward", {"model_id": model, "seq_id": 1})
    assert (status, "training data come as protobuf" in said["detail"]) == (415, True)
    status, said = ask(client.url, "save_weights", {"model_id": model, "seq_id": 2, "path": "a/b"})
    assert (status, "'a/b' is no name here" in said["detail"]) == (400, True)
    status, said = ask(client.url, "forward_backward", learn(model, 3) + b"\x1a\x7f")
    assert (status, "no protobuf message of the Tinker protocol" in said["detail"]) == (400, True)
    assert loss(client, model, 4) > 0


def test_a_body_that_is_too_large_holds_nobody_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_GAP_S", 5.0)
    client = Client(serve(access=Access(body_bytes=2 * 2**20)))
    model = client.train()
    large = {"model_id": model, "seq_id": 1, "path": "x" * 2**20}
    status, said = ask(client.url, "save_weights", large)
    assert (status, "too much for this request" in said["detail"]) == (413, True)
    whole = learn(model, 2, b"x" * 300_000)
    assert len(whole) > 3 * 2**20
    status, said = ask(client.url, "forward_backward", whole)
    assert (status, "larger than 2 MiB" in said["detail"]) == (413, True)
    chunked = raw_head(client.url, "/api/v1/forward_backward", "application/x-protobuf")
    whole = learn(model, 3, b"x" * 300_000)
    with connect(client.url) as line:
        line.sendall(chunked + b"%x\r\n" % len(whole) + whole + b"\r\n0\r\n\r\n")
        assert answer(line).status == 413
    status, said = ask(client.url, "optim_step", step(model, 4), **{"content-type": "text/plain"})
    assert status == 415
    assert loss(client, model, 5) > 0


def raw_head(url: str, path: str, kind: str) -> bytes:
    """The head of a request whose body comes in chunks."""
    said = {"Content-Type": kind, "Transfer-Encoding": "chunked", "x-api-key": "tml-test"}
    return head(url, "POST", path, said)


def test_an_error_of_a_request_comes_with_its_answer(serve: Serve) -> None:
    client = Client(serve())
    model = client.train()
    bad = client.fetch(client.send("forward_backward", learn(model, 1, b"x" * 400)))
    assert bad["category"] == "user"
    assert bad["error"] == "datum 0 has 399 tokens, which pass the context window of 256"
    assert loss(client, model, 2) > 0
    assert client.fetch(client.send("unload_model", {"model_id": model}))["model_id"] == model
    status, said = ask(client.url, "forward_backward", learn(model, 3))
    assert status == 404
    assert said["detail"].startswith(f"there is no model {model}: it was unloaded")


@pytest.mark.long
def test_a_client_that_is_gone_frees_its_adapters(serve: Serve, base: Any, tmp_path: Path) -> None:
    client = Client(serve(forget_after_s=0.6))
    others = set(base.model.peft.peft_config)  # what servers before this one have sampled with
    model = client.train()
    assert len(base.model.peft.peft_config) == len(others) + 1
    for _ in range(3):
        time.sleep(0.3)
        assert ask(client.url, "session_heartbeat", {"session_id": client.session})[0] == 200
    assert loss(client, model, 1) > 0
    asked = {"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0}
    assert client.fetch(client.send("save_weights_for_sampler", asked))["sampling_session_id"]

    def left() -> set[str]:
        return {one.name for one in (tmp_path / "passing").iterdir()} | set(base.model.peft.peft_config)

    deadline = time.monotonic() + 20
    while left() != others and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left() == others
    status, said = ask(client.url, "session_heartbeat", {"session_id": client.session})
    assert status == 404
    assert "nothing was heard of it for too long" in said["detail"]


@pytest.mark.long
def test_requests_are_answered_while_work_is_done(serve: Serve) -> None:
    client = Client(serve("slow:0.5"))
    model = client.train()
    sent = client.send("forward_backward", learn(model, 1))
    start = time.monotonic()
    assert ask(client.url, "healthz") == (200, {"status": "ok"})
    assert time.monotonic() - start < 0.4
    assert total(client.fetch(sent)) > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("nothing", None, 404, "this server has no /api/v1/nothing; docs/guides/tinker-server.md lists"),
        ("training_runs/x/checkpoints/weights/y/archive", None, 501, "this server serves no archives"),
        ("training_runs/x", None, 404, "there is no training run x"),
        ("retrieve_future", {"request_id": "x"}, 404, "there is no request x"),
        ("create_session", [], 400, "the body: input should be an object"),
        ("training_runs?limit=x", None, 400, "limit is 'x'; it is a whole number"),
        (
            "create_model",
            {"session_id": "x", "model_seq_id": 0, "base_model": "t"},
            404,
            "there is no session",
        ),
        ("samplers/x", None, 404, "there is no sampler x"),
        ("weights_info", {"tinker_path": "x"}, 400, "'x' is no path of a checkpoint"),
        ("asample", {"prompt": {"chunks": []}, "sampling_params": {}, "base_model": "tiny"}, 400, "is empty"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    serve: Serve, path: str, body: Any, status: int, sentence: str
) -> None:
    found, said = ask(serve(), path, body)
    assert found == status, said
    assert sentence in said["detail"]


def test_a_key_is_needed_and_any_will_do(serve: Serve) -> None:
    status, said = ask(serve(), "training_runs", **{"x-api-key": ""})
    assert (status, "set TINKER_API_KEY" in said["detail"]) == (401, True)


def test_quirks_of_answers(serve: Serve) -> None:
    url = serve("html")
    found = [ask(url, "training_runs") for _ in range(4)]
    assert [status for status, _ in found] == [200, 200, 200, 502]
    assert found[3][1].startswith(b"<html>")
    url = serve("half-json")
    found = [ask(url, "get_server_capabilities")[1] for _ in range(4)]
    assert [isinstance(said, bytes) for said in found] == [False, False, False, True]
    url = serve("429")
    assert [ask(url, "training_runs")[0] for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize("name", ["htm", "slow:x", "lacks-loss:none", "forgets:-1", "slow"])
def test_a_quirk_that_is_none_is_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match="unknown quirk"):
        ServerImitation([name])


def test_a_kill_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    known = {"base_model": "tiny", "rank": 4, "train_mlp": True, "train_attn": True, "train_unembed": True}
    about = CheckpointInfo(**known, time="2026-01-01T00:00:00+00:00")
    place = CheckpointPath.of("tinker://run:train:0/weights/one")

    def save(folder: Path) -> None:
        (folder / "weights").write_text("old", encoding="utf-8")

    store.write(place, about, save, overwrite=False)
    with pytest.raises(UsageError, match="there is a checkpoint tinker://run:train:0/weights/one already"):
        store.write(place, about, save, overwrite=False)
    folder = store.folder(place)
    folder.rename(folder.with_name(".aside-one"))  # killed between the two renames
    folder.with_name(".writing-two").mkdir()
    again = CheckpointStore(tmp_path)
    assert again.find(place.path) == (place, about)
    assert [path.name for path in folder.parent.iterdir()] == ["one"]

    def broken(folder: Path) -> None:
        (folder / "weights").write_text("new", encoding="utf-8")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        again.write(place, about, broken, overwrite=True)
    assert (folder / "weights").read_text("utf-8") == "old"
    again.change(place, CheckpointInfo(**{**_fields(about), "expires_at": "2026-01-02T00:00:00+00:00"}))
    with pytest.raises(NotHere):
        again.find(place.path)
    assert not folder.exists()


def _fields(about: CheckpointInfo) -> dict[str, Any]:
    return {name: getattr(about, name) for name in about.__dataclass_fields__}


@pytest.mark.parametrize("path", ["x", "tinker://a/b", "tinker://../weights/x", "tinker://a/weights/.x"])
def test_a_path_that_is_none_is_a_sentence(path: str) -> None:
    with pytest.raises(UsageError, match="is no "):
        CheckpointPath.of(path)


def test_an_address_that_is_taken_is_a_sentence(base: Any, tmp_path: Path) -> None:
    with TinkerServer(base, tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is not to be had: address already in use"):
            TinkerServer(base, tmp_path / "other", port=port)


@pytest.mark.long
def test_a_second_server_on_a_folder_takes_nothing_from_the_first(base: Any, tmp_path: Path) -> None:
    with TinkerServer(base, tmp_path):
        held = tmp_path / "passing" / "0"
        held.mkdir()
        with pytest.raises(UsageError, match=f"{tmp_path} is being written by another process"):
            TinkerServer(base, tmp_path).run()
        with pytest.raises(UsageError, match="is being written by another process"):
            open_base(base.model.config, tmp_path)  # which would note the settings of another engine
        assert held.is_dir()


def started(out: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """The command in a process of its own, and the address that it says."""
    command = [sys.executable, "-m", "genenv", "tinker-server", "--model", "tiny", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--threads", "1", "--set", "policy.dtype=float32", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(
        r"serving tiny at (\S+); point a client at it with TINKER_BASE_URL=(\S+) TINKER_API_KEY=tml-local\n",
        line,
    )
    assert found is not None, line
    return process, found[1]


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_exactly(tmp_path: Path) -> None:
    process, url = started(tmp_path)
    client = Client(url)
    model = client.train()
    client.send("forward_backward", learn(model, 1))
    client.send("optim_step", step(model, 2))
    saved = client.fetch(client.send("save_weights", {"model_id": model, "seq_id": 3, "path": "k"}))["path"]
    client.send("forward_backward", learn(model, 4))
    client.send("optim_step", step(model, 5))
    expected = loss(client, model, 6)
    client.send("save_weights", {"model_id": model, "seq_id": 7, "path": "l"})
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process, url = started(tmp_path)
    client = Client(url)
    body = {"session_id": client.session, "model_seq_id": 0, "path": saved, "optimizer": True}
    model = client.fetch(client.send("load_weights", body))["model_id"]
    client.send("forward_backward", learn(model, 1))
    client.send("optim_step", step(model, 2))
    assert loss(client, model, 3) == expected
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_bad_input_of_the_command_is_a_sentence(tmp_path: Path) -> None:
    words = ("tinker-server", "--out", tmp_path)
    assert "unknown quirk 'htmx'; did you mean 'html'?" in refused(*words, "--quirk", "htmx")
    assert "holds no config.json" in refused(*words, "--model", tmp_path)
    said = refused(*words, "--model", "tiny", "--set", "policy.tuning=full")
    assert said == "this server trains adapters alone; leave policy.tuning at 'lora'"
    assert "unknown setting 'policy.rank'" in refused(*words, "--set", "policy.rank=4")


def heartbeats(url: str, session: str, until: threading.Event) -> list[float]:
    """How long each took, seconds."""
    took: list[float] = []
    while not until.is_set():
        since = time.monotonic()
        assert ask(url, "session_heartbeat", {"session_id": session})[0] == 200
        took.append(time.monotonic() - since)
    return took


@pytest.mark.long
def test_heartbeats_are_answered_while_a_large_body_is_read(serve: Serve) -> None:
    """Of many small parts, which take a parser longest."""
    client = Client(serve())
    asked = b"\x1a\x00" * 2**23
    ask(client.url, "forward_backward", b" " * 50_000)  # starts the process that reads such
    done = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        beats = thread.submit(heartbeats, client.url, client.session, done)
        since = time.monotonic()
        status, said = ask(client.url, "forward_backward", asked)
        took = time.monotonic() - since
        done.set()
    assert status == 400
    assert said["detail"].startswith("the request has more than 16384 data")
    assert max(beats.result()) < max(1.0, took / 3)


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("asample", {"num_samples": 10**9}, 400, "num_samples"),
        ("asample", {"prompt": {"chunks": [{"tokens": [10**7]}]}}, 400, "outside of the vocabulary"),
        ("asample", {"prompt": {"chunks": [{"tokens": [1] * 9000}]}}, 400, "leaves no room"),
        ("asample", {"sampling_params": {"temperature": float("nan")}}, 400, "temperature"),
        ("asample", {"sampling_params": {"stop": ["x"] * 300}}, 400, "more than 256 stops"),
        ("asample", {"sampling_params": {"stop": "x" * 300}}, 400, "more than 200 characters"),
        ("asample", {"sampling_params": {"seed": 2**70}}, 400, "seed"),
        ("save_weights", {"ttl_seconds": 10**30}, 400, "ttl_seconds"),
        ("optim_step", {"seq_id": 2**63, "adam_params": {}}, 400, "seq_id"),
        ("optim_step", {"adam_params": {"eps": 0}}, 400, "adam_params.eps"),
        ("optim_step", {"adam_params": {"eps": 1e-60}}, 400, "adam_params.eps"),
        ("create_session", {"tags": ["x" * 2_000_000]}, 413, "larger than 1048576 bytes"),
    ],
)
def test_what_is_out_of_bounds_is_named(
    serve: Serve, path: str, body: dict[str, Any], status: int, why: str
) -> None:
    sample = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {}}
    found, said = ask(serve(), path, {"model_id": "m", **(sample if path == "asample" else {}), **body})
    assert found == status
    assert why in said["detail"]


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ({"dense": np.float32([1e30]).tobytes(), "dtype": messages.FLOAT32}, "no whole number"),
        ({"dense": np.float32([np.nan]).tobytes(), "dtype": messages.FLOAT32}, "no whole number"),
        ({"dense": np.float32([1.5]).tobytes(), "dtype": messages.FLOAT32}, "no whole number"),
        ({"dense": b"", "shape": [0, 2**62]}, "not of shape"),
        ({"shape": [1] * 9}, "more than 8 axes"),
        ({"dense": b"abc"}, "no numbers of 8 bytes each"),
        ({"dtype": 9}, "the number format 9"),
        ({"shape": [2**14, 2**14], "crow": bytes(8)}, "do not fit its numbers"),
    ],
)
def test_a_tensor_that_is_none_is_refused(serve: Serve, tensor: dict[str, Any], why: str) -> None:
    url = serve()
    status, said = ask(url, "forward_backward", learn("m", 1, b"ab", **tensor))
    assert (status, why in said["detail"]) == (400, True), said


def test_sessions_models_samplers_and_requests_have_bounds(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(serve("slow:0.3"))
    model = client.train(0)
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 2)
    idle = Client(client.url)
    assert Client(client.url).session != idle.session  # one that has nothing makes room
    assert ask(client.url, "session_heartbeat", {"session_id": idle.session})[0] == 404
    assert ask(client.url, "session_heartbeat", {"session_id": client.session})[0] == 200
    monkeypatch.setattr(sessions, "_MOST_MODELS", 1)
    lora = {"base_model": "tiny", "lora_config": {"rank": 4}, "session_id": client.session}
    status, said = ask(client.url, "create_model", {**lora, "model_seq_id": 1})
    assert (status, "as many as there may be" in said["detail"]) == (429, True)
    monkeypatch.setattr(sessions, "_MOST_SAMPLERS", 1)
    sampler = {"session_id": client.session, "base_model": "tiny"}
    for number, expected in ((0, 200), (0, 200), (1, 429)):  # asked for again it is the same one
        asked = {**sampler, "sampling_session_seq_id": number}
        assert ask(client.url, "create_sampling_session", asked)[0] == expected
    monkeypatch.setattr(sessions, "_MOST_WAITING", 1)
    assert ask(client.url, "optim_step", step(model, 1))[0] == 200
    status, said = ask(client.url, "optim_step", step(model, 2))
    assert (status, "wait to be worked" in said["detail"]) == (429, True)


def test_a_model_that_is_asked_for_again_with_another_shape_is_refused(serve: Serve) -> None:
    client = Client(serve())
    assert client.train(0) == client.train(0)
    lora = {"base_model": "tiny", "lora_config": {"rank": 8}, "session_id": client.session}
    status, said = ask(client.url, "create_model", {**lora, "model_seq_id": 0})
    assert (status, "count models on" in said["detail"]) == (400, True)


@pytest.mark.long
def test_an_expired_checkpoint_is_deleted_without_being_asked_for(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_EXPIRY_S", 0.1)
    client = Client(serve())
    model = client.train()
    asked = {"model_id": model, "seq_id": 1, "path": "a", "ttl_seconds": 1}
    assert client.fetch(client.send("save_weights", asked))["path"] == f"tinker://{model}/weights/a"
    folder = tmp_path / "runs" / model.replace(":", "-") / "weights" / "a"
    assert folder.exists()
    assert comes_true(lambda: not folder.exists())


def test_steps_count_on_from_the_checkpoint_that_was_loaded(serve: Serve, tmp_path: Path) -> None:
    client = Client(serve())
    model = client.train()
    runs = tmp_path / "runs" / model.replace(":", "-") / "weights"

    def steps(name: str) -> int:
        return json.loads((runs / name / "checkpoint.json").read_text())["steps"]

    def save(seq: int, name: str) -> str:
        return client.fetch(client.send("save_weights", {"model_id": model, "seq_id": seq, "path": name}))[
            "path"
        ]

    for seq in (1, 2):
        client.fetch(client.send("optim_step", step(model, seq)))
    path = save(3, "a")
    client.fetch(client.send("load_weights", {"model_id": model, "seq_id": 4, "path": path}))
    save(5, "b")
    client.fetch(client.send("optim_step", step(model, 6)))
    save(7, "c")
    assert (steps("a"), steps("b"), steps("c")) == (2, 2, 3)


def test_a_checkpoint_that_cannot_be_loaded_leaves_no_model_and_no_run(
    serve: Serve, base: Any, tmp_path: Path
) -> None:
    client = Client(serve())
    model, other = client.train(), set(base.model.peft.peft_config)
    saved = {"model_id": model, "seq_id": 1, "path": "a"}
    path = client.fetch(client.send("save_weights", saved))["path"]
    sampled = client.fetch(client.send("save_weights_for_sampler", {**saved, "seq_id": 2}))["path"]
    anew = {"session_id": client.session, "model_seq_id": 1, "path": sampled, "optimizer": True}
    status, said = ask(client.url, "load_weights", anew)
    assert (status, "holds no optimizer" in said["detail"]) == (400, True)
    runs = tmp_path / "runs" / model.replace(":", "-")
    (runs / "weights" / "a" / "adapter_model.safetensors").write_bytes(b"none")
    for _ in range(2):  # sent again, it is not made again
        assert "cannot be read" in client.fetch(client.send("load_weights", {**anew, "path": path}))["error"]
        found = ask(client.url, f"sessions/{client.session}")[1]["training_run_ids"]
        assert found == [model]
    assert [one["training_run_id"] for one in ask(client.url, "training_runs")[1]["training_runs"]] == [model]
    assert set(base.model.peft.peft_config) == other


def test_a_server_with_a_key_takes_no_other(serve: Serve) -> None:
    url = serve(access=Access(key="tml-own"))
    assert ask(url, "create_session", {})[0] == 401
    assert ask(url, "healthz")[0] == 200
    assert ask(url, "create_session", {}, **{"x-api-key": "tml-own"})[0] == 200
