"""Players that learn here and sample on servers: two of our own engine, behind the routes of vLLM."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.algorithms.datum import Objective
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import AUTOMATIC, PolicyConfig
from genenv.backends.vllm import fleet as fleets
from genenv.backends.vllm.client import Refused, read_addresses, remove_address, write_address
from genenv.backends.vllm.fleet import Server
from genenv.backends.vllm.policy import VllmSampler
from genenv.config.run import load_config
from genenv.errors import GenenvError, UsageError
from genenv.sampling import Completion, SampleRequest
from genenv.servers.vllm import SamplingServer
from lessons import imitated
from policies_on_servers import HERE, lines_of, opened, played, request
from typed import refused, succeeds

CONFIGS = Path(__file__).parents[3] / "configs"
RUN = [
    *("--set", "policy.tuning=lora", "--set", "policy.backend=vllm", "--set", "run.rounds=2"),
    *("--set", "run.eval_tasks=8", "--set", "run.eval_every=1", "--set", "agent.rollouts=2"),
    *("--set", "simulator.contexts=2", "--set", "simulator.variations=2", "--set", "agent.warmup.steps=3"),
    *(
        "--set",
        "simulator.warmup.steps=3",
        "--set",
        "agent.warmup.batch=16",
        "--set",
        "agent.warmup.check_tasks=8",
    ),
]
Serve = Callable[..., SamplingServer]


@pytest.fixture(scope="module")
def bases() -> list[LoadedBase]:
    return [LoadedBase("tiny", PolicyConfig(model="tiny", **HERE)) for _ in range(2)]


@pytest.fixture
def serve(bases: list[LoadedBase]) -> Iterator[Serve]:
    """Start a server of one of the bases."""
    running: list[SamplingServer] = []

    def start(which: int = 0, **asked: Any) -> SamplingServer:
        for name in bases[which].adapters:
            bases[which].unload(name)
        running.append(SamplingServer(bases[which], "tiny", **asked).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


@pytest.mark.long
def test_what_servers_sample_is_what_the_trainer_published(serve: Serve) -> None:
    found = opened(serve(0).url, serve(1).url)

    async def play() -> None:
        sampler, trainer = found.samplers["agent"], found.trainers["agent"]
        asked = request(sampler, temperature=0.7)
        data = [imitated(asked.prompt_ids, (7, 8, 9), temperature=0.7)]
        for version in (1, 2, 3):
            await trainer.forward_backward(data, Objective())
            await trainer.step(1e-2)
            assert await trainer.publish() == version
            done = await asyncio.gather(
                *(sampler.sample(request(sampler, n, temperature=0.7)) for n in range(24))
            )
            assert {one.version for one in done} == {version}
            again = await sampler.sample(request(sampler, 5, temperature=0.7))
            assert again.token_ids == done[5].token_ids
            written = [imitated(asked.prompt_ids, one.token_ids, temperature=0.7) for one in done]
            for one, own in zip(done, await trainer.logprobs(written), strict=True):
                assert one.logprobs == pytest.approx(own, abs=1e-4)
        servers = cast(VllmSampler, sampler).fleet.servers
        assert all(len(server.adapters) <= 4 for server in servers)  # two of each player

    played(found, play)


@pytest.mark.long
def test_a_reply_is_held_to_a_schema_and_to_choices(serve: Serve) -> None:
    found = opened(serve().url)
    long_text = {"type": "string", "maxLength": 240}

    async def play() -> None:
        sampler = cast(VllmSampler, found.samplers["simulator"])
        sent = sampler.parameters(request(sampler, schema=long_text))["structured_outputs"]
        assert sent["json"] == {"type": "string"}, "as in the trainer's grammar"
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        done = await sampler.sample(
            request(sampler, schema={**schema, "additionalProperties": False}, max_tokens=20)
        )
        assert json.loads(done.text)["a"] in (1, 2)
        choices = tuple(sampler.encode_reply(text) for text in ("go north", "go south"))
        done = await sampler.sample(request(sampler, choices=choices, max_tokens=20))
        assert done.token_ids in choices

    played(found, play)


@pytest.mark.long
def test_requests_of_a_server_that_is_killed_are_answered_by_the_other(
    serve: Serve, bases: list[LoadedBase], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(*asked: Any) -> list[Completion]:
        time.sleep(0.3)
        return LoadedBase.sample(*asked)

    for base in bases:
        monkeypatch.setattr(base, "sample", partial(slow, base))
    first, second = serve(0), serve(1)
    found = opened(first.url, second.url, timeout_s=20.0)

    async def play() -> None:
        sampler = cast(VllmSampler, found.samplers["agent"])
        asked = [sampler.sample(request(sampler, n)) for n in range(12)]
        asked += [sampler.sample(SampleRequest(prompt_ids=(5, 6, n), max_tokens=4)) for n in range(12)]
        tasks = [asyncio.ensure_future(one) for one in asked]
        await asyncio.sleep(0.1)
        assert first._server is not None
        first._server.force_exit = True  # nobody's answer is waited for
        await asyncio.to_thread(first.__exit__)
        assert len(await asyncio.gather(*tasks)) == 24
        assert "does not answer" in caplog.text
        await found.trainers["agent"].publish()
        done = await sampler.sample(request(sampler))
        assert done.version == 1

    played(found, play)


@pytest.mark.long
def test_a_server_that_was_started_anew_is_told_of_adapters_again(
    serve: Serve, bases: list[LoadedBase]
) -> None:
    found = opened(serve().url)

    async def play() -> None:
        sampler = found.samplers["agent"]
        before = await sampler.sample(request(sampler))
        for name in bases[0].adapters:  # what a server knows that has just begun
            bases[0].unload(name)
        assert await sampler.sample(request(sampler)) == before

    played(found, play)


@pytest.mark.long
def test_no_server_that_answers_ends_the_round_with_a_sentence(serve: Serve) -> None:
    server = serve()
    found = opened(server.url, timeout_s=0.5)

    async def play() -> None:
        await asyncio.to_thread(server.__exit__)
        with pytest.raises(GenenvError, match=r"has answered for 0\.5 s .*continue with --resume"):
            await found.samplers["agent"].sample(request(found.samplers["agent"]))

    played(found, play)


@pytest.mark.long
def test_a_server_that_rests_is_asked_whether_it_is_back_where_no_other_answers(serve: Serve) -> None:
    """One that was lost for long, and then the other one is: 5 s are less than its rest, and enough."""
    first, second = serve(0), serve(1)
    found = opened(first.url, second.url, timeout_s=5)

    async def play() -> None:
        sampler = cast(VllmSampler, found.samplers["agent"])
        before = await sampler.sample(request(sampler))
        lost = sampler.fleet.servers[0]
        for _ in range(5):
            lost.rests_until = 0.0  # the rest before is over
            lost.lost()
        assert lost.rests_until > time.monotonic() + 30
        await asyncio.to_thread(second.__exit__)
        sampler.fleet.servers[1].lost()
        assert (await sampler.sample(request(sampler))).token_ids == before.token_ids
        assert not lost.rests_until

    played(found, play)


@pytest.mark.long
def test_what_no_server_takes_is_refused_at_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    found = opened(serve().url)

    async def play() -> None:
        fleet = cast(VllmSampler, found.samplers["agent"]).fleet
        name = cast(VllmSampler, found.samplers["agent"]).adapter
        with pytest.raises(Refused, match="max_tokens"):
            await fleet.generate(name, [1, 2], {"max_tokens": 0})
        assert "does not answer" not in caplog.text

    played(found, play)


class Other(BaseHTTPRequestHandler):
    """Something else that answers."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.mark.long
def test_a_server_has_so_many_requests_at_a_time_and_all_are_answered(serve: Serve) -> None:
    found = opened(serve(0).url, serve(1).url, at_once=2)
    sampler = cast(VllmSampler, found.samplers["agent"])
    post, most = sampler.fleet._post, list[int]()

    async def watched(server: Any, *rest: Any, **more: Any) -> Any:
        most.append(server.busy)
        return await post(server, *rest, **more)

    sampler.fleet._post = watched

    async def many() -> Any:
        return await asyncio.gather(*(sampler.sample(request(sampler, stream=i)) for i in range(24)))

    done = played(found, many)
    assert len(done) == 24
    assert max(most) == 2


@pytest.mark.long
def test_a_run_begins_with_the_servers_that_answer(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    found = opened("http://127.0.0.1:9", serve().url)
    assert "http://127.0.0.1:9 does not answer" in caplog.text
    sampler = found.samplers["agent"]
    done = played(found, lambda: sampler.sample(request(sampler)))
    assert done.token_ids


@pytest.mark.long
def test_what_is_no_server_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"no vLLM server answers at http://127\.0\.0\.1:9: "):
        opened("http://127.0.0.1:9")
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(UsageError, match="is no vLLM server"):
            opened(f"http://127.0.0.1:{other.server_address[1]}")
        other.shutdown()


# servers that come and go, by a folder of addresses


@pytest.mark.long
def test_a_server_that_begins_anew_elsewhere_goes_on_with_the_requests(
    serve: Serve, bases: list[LoadedBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_REFRESH_S", 0.05)
    first, folder = serve(0), tmp_path / "addresses"
    write_address(folder, "server-0", first.url)
    found = opened(addresses_folder=str(folder), timeout_s=20.0)

    async def play() -> None:
        sampler = cast(VllmSampler, found.samplers["agent"])
        before = await sampler.sample(request(sampler))
        await asyncio.to_thread(first.__exit__)
        asked = [asyncio.ensure_future(sampler.sample(request(sampler, n))) for n in range(8)]
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in asked)
        second = serve(1)
        write_address(folder, "server-0", second.url)
        done = await asyncio.gather(*asked)
        assert done[0].token_ids == before.token_ids
        assert [server.address for server in sampler.fleet.servers] == [second.url]
        assert sampler.adapter in bases[1].adapters

    played(found, play)


@pytest.mark.long
def test_a_server_that_has_moved_is_not_waited_for(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that is gone does not say so: what it was asked is never answered."""
    monkeypatch.setattr(fleets, "_RECHECK_S", 0.05)
    monkeypatch.setattr(fleets, "_REFRESH_S", 0.05)
    write_address(tmp_path, "b", serve(0).url)
    found = opened(addresses_folder=str(tmp_path), timeout_s=60.0)
    sampler = cast(VllmSampler, found.samplers["agent"])

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            gone = f"http://127.0.0.1:{silent.getsockname()[1]}"
            write_address(tmp_path, "a", gone)
            await asyncio.sleep(0.1)
            sampler.fleet._refresh_addresses()
            assert sampler.fleet.servers[0].address == gone
            for server in sampler.fleet.servers[1:]:
                server.busy = 50  # so that the first one is asked
            asked = asyncio.ensure_future(sampler.sample(request(sampler)))
            await asyncio.sleep(0.3)
            assert not asked.done()
            remove_address(tmp_path, "a")
            assert (await asyncio.wait_for(asked, 10)).token_ids
            assert caplog.text.count("does not answer (it has moved") == 1

    played(found, play)


@pytest.mark.long
def test_a_run_waits_for_the_first_server_that_says_where_it_is(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    late = threading.Timer(0.3, lambda: write_address(tmp_path, "server-0", server.url))
    late.start()
    sampler = opened(addresses_folder=str(tmp_path), timeout_s=20.0).samplers["agent"]
    assert [one.address for one in cast(VllmSampler, sampler).fleet.servers] == [server.url]
    with pytest.raises(UsageError, match=r"holds no address of a server; each server writes its own there"):
        opened(addresses_folder=str(tmp_path / "none"), timeout_s=0.1)


def test_addresses_are_read_in_the_order_of_names_without_what_is_none(tmp_path: Path) -> None:
    for name, address in {"b": "http://host:2/", "a": "http://host:1", "c": "", "d": "http://host:2"}.items():
        write_address(tmp_path, name, address)
    (tmp_path / "e.address").write_text("http://host:3 and more")
    (tmp_path / "f.txt").write_text("http://host:4")
    assert read_addresses(tmp_path) == ("http://host:1", "http://host:2")
    write_address(tmp_path, "a", "http://host:9")
    remove_address(tmp_path, "b")
    remove_address(tmp_path, "never")
    assert read_addresses(tmp_path) == ("http://host:9", "http://host:2")
    assert read_addresses(tmp_path / "none") == ()


@pytest.mark.long
def test_two_agents_are_adapters_on_one_server(serve: Serve, tmp_path: Path) -> None:
    two = tmp_path / "two.toml"
    two.write_text((CONFIGS / "tiny.toml").read_text() + "\n[agents.one]\n[agents.two]\nlr = 1e-3\n")
    named = ("--set", f'policy.vllm.addresses=["{serve(0).url}"]', "--set", "agent.guidance=all")
    succeeds("train", two, *RUN, *named, "--out", tmp_path / "whole")
    last = lines_of(tmp_path / "whole")[-1]
    assert last["agents/one/steps"] > 0 < last["agents/two/steps"]
    assert last["agents/one/loss"] != last["agents/two/loss"]
    saved = tmp_path / "whole" / "checkpoints" / "round-0002"
    assert {path.name for path in saved.iterdir() if path.is_dir()} == {"one", "two", "simulator"}
    other = ("--set", "agents.two.model=smollm2-135m")
    said = refused("train", two, *RUN, *named, *other, "--out", tmp_path / "other")
    assert "leave out agents.two.model (smollm2-135m), or set policy.backend to 'local'" in said


@pytest.mark.long
def test_one_agent_is_sampled_by_a_server_and_the_other_one_here(serve: Serve, tmp_path: Path) -> None:
    two = tmp_path / "two.toml"
    here = '\n[agents.one]\nbackend = "local"\n[agents.two]\nlr = 1e-3\n'
    two.write_text((CONFIGS / "tiny.toml").read_text() + here)
    named = ("--set", f'policy.vllm.addresses=["{serve(0).url}"]', "--set", "agent.guidance=all")
    succeeds("train", two, *RUN, *named, "--out", tmp_path / "whole")
    last = lines_of(tmp_path / "whole")[-1]
    assert last["agents/one/steps"] > 0 < last["agents/two/steps"]
    assert json.loads((tmp_path / "whole" / "starts.jsonl").read_text())["server"]["gap"] < 1e-3
    saved = tmp_path / "whole" / "checkpoints" / "round-0002"
    assert {path.name for path in saved.iterdir() if path.is_dir()} == {"one", "two", "simulator"}
    config = load_config(tmp_path / "whole" / "config.toml")
    assert [config.policy_of(name).backend for name in ("one", "two")] == ["local", "vllm"]
    assert config.policy.device == "cpu"
    succeeds("train", "--resume", "--out", tmp_path / "whole", "--set", "run.rounds=3")
    assert [row["round"] for row in lines_of(tmp_path / "whole")] == [0, 1, 2, 3]
    for name in ("one", "two"):  # adapters of both are in the folder, wherever they were sampled
        policy = f"{tmp_path / 'whole'}:{name}"
        assert (
            "2 items"
            in succeeds("eval", "held-out", "--policy", policy, "--limit", 2, "--out", tmp_path / name).stdout
        )


@pytest.mark.long
def test_a_run_with_two_servers_is_played_to_its_end_and_its_agent_is_measured_and_exported(
    serve: Serve, tmp_path: Path
) -> None:
    addresses = json.dumps([serve(0).url, serve(1).url])
    start = ["train", CONFIGS / "tiny.toml", *RUN, "--set", f"policy.vllm.addresses={addresses}"]
    succeeds(*start, "--out", tmp_path / "run")
    assert [row["round"] for row in lines_of(tmp_path / "run")] == [0, 1, 2]
    assert json.loads((tmp_path / "run" / "starts.jsonl").read_text())["server"]["gap"] < 1e-3
    decided = load_config(tmp_path / "run" / "config.toml").policy
    assert [name for name, value in AUTOMATIC.items() if getattr(decided, name) == value] == []
    measured = ("held-out", "--policy", tmp_path / "run", "--limit", 4, "--out", tmp_path / "measured")
    assert "4 items" in succeeds("eval", *measured).stdout
    succeeds("export-agent", tmp_path / "run", "--adapter", "--out", tmp_path / "agent")
    assert (tmp_path / "agent" / "adapter_model.safetensors").is_file()
    assert "no model 'tinyy'" in refused(*start, "--set", "policy.model=tinyy", "--out", tmp_path / "other")


@pytest.mark.long
def test_a_round_is_attempted_while_another_is_learned_and_a_server_is_killed(
    serve: Serve, tmp_path: Path
) -> None:
    """Staleness 1, weighed by importance: a server that ends in the middle takes no attempt with it."""
    servers = [serve(0), serve(1)]
    ended = threading.Event()

    def watch() -> None:
        while not (tmp_path / "run" / "checkpoints" / "round-0001").is_dir():
            if ended.wait(0.05):
                return
        servers[1].__exit__()

    watcher = threading.Thread(target=watch)
    watcher.start()
    addresses = json.dumps([server.url for server in servers])
    ahead = ["--set", "run.staleness=1", "--set", "agent.importance_cap=2.0", "--set", "run.rounds=4"]
    ahead += ["--set", "agent.rollouts=8", "--set", "agent.warmup.steps=60", "--set", "simulator.contexts=6"]
    start = ["train", CONFIGS / "tiny.toml", *RUN, "--set", f"policy.vllm.addresses={addresses}", *ahead]
    try:
        succeeds(*start, "--out", tmp_path / "run")
    finally:
        ended.set()
        watcher.join()
    rows = lines_of(tmp_path / "run")
    assert [row.get("agent/staleness") for row in rows] == [None, 0, 1, 1, 1]
    assert all(row["agent/failed_traces"] == 0 for row in rows[1:])
    assert ["time/sampling_waited_s" in row for row in rows[1:]] == [True, True, True, False]
    trained = [row for row in rows[1:] if "agent/mismatch_kl" in row]
    assert trained
    assert all(0 <= row["agent/mismatch_kl"] < 0.5 for row in trained)
    ahead_by = {row["agent/staleness"]: row["agent/mismatch_kl"] for row in trained}
    assert ahead_by[0] < 1e-4 < ahead_by[1]


def test_a_server_that_loses_many_requests_at_once_rests_no_longer_than_for_one() -> None:
    one, many = (Server(address="http://a") for _ in range(2))
    one.lost()
    for _ in range(64):
        many.lost()
    assert many.rest_s == one.rest_s
    assert many.rests_until == pytest.approx(one.rests_until, abs=1)
