"""Servers that say one thing and do another: nobody learns from what they sampled."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from genenv.algorithms.datum import Objective
from genenv.backends.base import Opened
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import PolicyConfig
from genenv.backends.vllm import fleet as fleets
from genenv.backends.vllm import fleet as servers
from genenv.backends.vllm.client import write_address
from genenv.backends.vllm.policy import VllmSampler
from genenv.errors import GenenvError, RolloutError, UsageError
from genenv.sampling import SampleRequest
from genenv.servers.vllm import SamplingServer
from lessons import imitated
from liars import Bend, Liar, Lie, louder, lying, other_tokens, stale
from policies_on_servers import HERE, lines_of, opened, played, request
from typed import refused, succeeds

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Two servers of the same base, and one of another."""
    bases = [LoadedBase("tiny", PolicyConfig(model="tiny", **HERE)) for _ in range(3)]
    with torch.no_grad():
        bases[2].model.output.weight.mul_(40)
    with ExitStack() as stack:
        yield [stack.enter_context(SamplingServer(base, "tiny")).url for base in bases]


@pytest.fixture
def proxy() -> Iterator[Callable[..., Liar]]:
    with ExitStack() as stack:

        def start(url: str, bend: Bend | None = None, lie: Lie | None = None) -> Liar:
            return stack.enter_context(lying(url, bend=bend, lie=lie))

        yield start


async def sampled(found: Opened, count: int = 8, player: str = "agent", **asked: Any) -> None:
    """Replies to prompts of their own, so that all servers have some."""
    made = {"max_tokens": 10, **asked}
    requests = [SampleRequest(prompt_ids=(5, 6, 7 + n), stream=n, **made) for n in range(count)]
    await asyncio.gather(*map(found.samplers[player].sample, requests))


async def checked(found: Opened) -> None:
    assert found.check is not None
    await found.check()


async def learned(found: Opened, rate: float) -> None:
    """One step of the agent, published."""
    trainer = found.trainers["agent"]
    data = [imitated(request(found.samplers["agent"]).prompt_ids, (7, 8, 9, 20, 21, 22))]
    await trainer.forward_backward(data, Objective())
    await trainer.step(rate)
    await trainer.publish()


@pytest.mark.long
def test_each_server_is_checked_when_a_run_begins_not_the_first_that_is_asked(urls: list[str]) -> None:
    for addresses in ([urls[2], urls[0]], [urls[0], urls[2]]):
        with pytest.raises(UsageError, match=rf"{urls[2]} does not sample from the agent's version 0: "):
            opened(*addresses)
    assert set(opened(urls[0], urls[1]).found["gaps"]) == {urls[0], urls[1]}  # pyright: ignore[reportArgumentType]


@pytest.mark.long
def test_a_server_that_comes_later_is_checked_before_its_first_request(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleets, "_REFRESH_S", 0.0)
    write_address(tmp_path, "a", urls[0])
    found = opened(addresses_folder=str(tmp_path))

    async def play() -> None:
        fleet = cast(VllmSampler, found.samplers["agent"]).fleet
        write_address(tmp_path, "b", urls[2])
        write_address(tmp_path, "c", urls[1])
        fleet._refresh_addresses()
        await sampled(found, 12)
        by_address = {server.address: server for server in fleet.servers}
        assert f"{urls[2]} does not sample from the agent's version 0" in caplog.text
        assert by_address[urls[2]].excluded
        assert by_address[urls[1]].checked
        assert {address for address, _ in cast(VllmSampler, found.samplers["agent"]).take_replies()} == set(
            urls[:2]
        )

    played(found, play)


@pytest.mark.long
def test_a_server_that_was_started_anew_with_another_model_is_asked_nothing(
    urls: list[str], proxy: Callable[..., Liar]
) -> None:
    moved = proxy(urls[0])
    found = opened(moved.url)

    async def play() -> None:
        await sampled(found)
        moved.backend = urls[2]  # which knows no adapter
        with pytest.raises(GenenvError, match=r"does not sample from the agent's .* no other server is left"):
            await sampled(found)

    played(found, play)


@pytest.mark.long
@pytest.mark.parametrize("bend", [louder, other_tokens])
def test_replies_of_a_round_are_scored_here_before_anybody_learns_from_them(
    urls: list[str], proxy: Callable[..., Liar], bend: Bend
) -> None:
    liar = proxy(urls[0])
    found = opened(liar.url, urls[1])

    async def play() -> None:
        await sampled(found)
        await checked(found)
        liar.bend = bend
        for name in ("agent", "simulator"):
            await sampled(found, player=name)
            with pytest.raises(GenenvError, match=rf"{liar.url} does not sample from the {name}'s version 0"):
                await checked(found)

    played(found, play)


@pytest.mark.long
@pytest.mark.parametrize("rate", [1e-4, 1e-2])
def test_a_server_that_keeps_the_first_weights_is_found_out_however_near_they_are(
    urls: list[str], proxy: Callable[..., Liar], rate: float
) -> None:
    found = opened(proxy(urls[0], lie=functools.partial(stale, first={})).url)

    async def play() -> None:
        await sampled(found)
        await checked(found)
        for version in (1, 2):
            await learned(found, rate)
            await sampled(found)
            with pytest.raises(GenenvError, match=rf"does not sample from the agent's version {version}"):
                await checked(found)

    played(found, play)


@pytest.mark.long
def test_honest_servers_pass_round_after_round(urls: list[str]) -> None:
    found = opened(*urls[:2])

    async def play() -> None:
        for rate in (1e-5, 1e-4, 1e-2):
            await sampled(found, temperature=0.7)
            await sampled(found, temperature=0.0)
            await checked(found)
            await learned(found, rate)
            await sampled(found, count=1, max_tokens=1)  # too little: more is asked
            await checked(found)

    played(found, play)


@pytest.mark.long
def test_a_player_that_is_held_to_a_schema_is_checked_by_a_question_of_our_own(
    urls: list[str], proxy: Callable[..., Liar]
) -> None:
    liar = proxy(urls[0])
    found = opened(liar.url)

    async def play() -> None:
        liar.bend = louder
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        await found.samplers["simulator"].sample(request(found.samplers["simulator"], schema=schema))
        with pytest.raises(GenenvError, match="the simulator's version 0"):
            await checked(found)

    played(found, play)


@pytest.mark.long
def test_log_probabilities_at_another_temperature_are_said_to_be_that(
    urls: list[str], proxy: Callable[..., Liar]
) -> None:
    def raw(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """As servers do that give log-probabilities before the temperature: here, of another sampling."""
        if not path.endswith("generate"):
            return None
        return {**body, "sampling_params": {**body["sampling_params"], "temperature": 1.0}}

    found = opened(proxy(urls[0], lie=raw).url)

    async def play() -> None:
        await sampled(found, temperature=0.2)
        with pytest.raises(GenenvError, match="--logprobs-mode processed_logprobs"):
            await checked(found)

    played(found, play)


WRONG: dict[str, Bend | bytes] = {
    "no log-probability": lambda one: one["logprobs"]["content"].__setitem__(0, {"logprob": float("nan")}),
    "above 0": lambda one: one["logprobs"]["content"].__setitem__(0, {"logprob": 0.5}),
    "negative id": lambda one: one["token_ids"].__setitem__(0, -1),
    "unknown id": lambda one: one["token_ids"].__setitem__(0, 10**6),
    "text for an id": lambda one: one["token_ids"].__setitem__(0, "7"),
    "fewer log-probabilities": lambda one: one["logprobs"]["content"].pop(),
    "nothing": lambda one: one.update(token_ids=[], logprobs={"content": []}),
    "more than was asked for": lambda one: one.update(
        token_ids=one["token_ids"] * 9, logprobs={"content": one["logprobs"]["content"] * 9}
    ),
    "no choice": b'{"choices": []}',
    "a page": b"<html>",
    "brackets": b"[" * 100_000 + b"]" * 100_000,
    "a long answer": b"x" * 3_000_000,
}


@pytest.fixture(scope="module")
def behind(urls: list[str]) -> Iterator[tuple[Opened, Liar]]:
    """A run whose only server is behind a proxy."""
    with lying(urls[0]) as liar:
        yield opened(liar.url), liar


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
def test_an_answer_of_another_form_ends_in_a_sentence_and_the_other_servers_go_on(
    urls: list[str], behind: tuple[Opened, Liar], wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    (found, liar), how = behind, WRONG[wrong]
    liar.bend = None if isinstance(how, bytes) else how
    liar.lie = (
        (lambda path, _: how if path.endswith("generate") else None) if isinstance(how, bytes) else None
    )
    sampler = cast(VllmSampler, found.samplers["agent"])
    server = sampler.fleet.servers[0]

    async def play() -> None:
        sampler.fleet.servers, server.excluded = [server], ""
        with pytest.raises(GenenvError, match=rf"^{liar.url} .*no other server is left.*--resume$") as told:
            await sampler.sample(request(sampler))
        assert len(str(told.value)) < 500
        server.excluded = ""
        sampler.fleet.servers.append(fleets.Server(urls[1]))
        await sampled(found)
        assert server.excluded
        assert f"{liar.url} answers" in caplog.text

    played(found, play)


@pytest.mark.long
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_full_is_asked_again_and_is_not_taken_for_a_lost_one(
    urls: list[str],
    proxy: Callable[..., Liar],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    monkeypatch.setattr(servers, "_FULL_S", 0.01)
    asked: list[str] = []

    def full(path: str, body: dict[str, Any]) -> int | None:
        asked.append(f"{path} {body.get('lora_name')}")
        return status if len(asked) <= 20 else None

    front = proxy(urls[0])
    found = opened(front.url, tries=1)

    async def play() -> None:
        await sampled(found)
        front.lie = full
        await learned(found, 1e-3)  # it cannot be told of the new version yet
        await sampled(found)
        await checked(found)
        server = cast(VllmSampler, found.samplers["agent"]).fleet.servers[0]
        assert len(server.adapters) == 3

    played(found, play)
    assert len({one for one in asked[20:] if one.startswith("/v1/load")}) == 1  # none is loaded again
    assert "does not answer" not in caplog.text


@pytest.mark.long
def test_a_server_that_stays_full_is_given_up_in_time_and_others_answer(
    urls: list[str], proxy: Callable[..., Liar]
) -> None:
    front = proxy(urls[0])
    found = opened(front.url, tries=1, timeout_s=2.0)
    fleet = cast(VllmSampler, found.samplers["agent"]).fleet

    async def play() -> None:
        front.lie = lambda path, _: 503 if path.endswith("generate") else None
        began = time.monotonic()
        with pytest.raises(RolloutError, match=rf"the last time by {front.url}: status 503: ask again"):
            await sampled(found, 1)
        assert 2 < time.monotonic() - began < 30
        fleet.servers.append(fleets.Server(urls[1]))
        await sampled(found)

    played(found, play)


def test_a_server_that_was_full_long_ago_is_full_anew() -> None:
    server, now = fleets.Server("http://host"), time.monotonic()
    server.full_since, server.full_until = now - 100, now - 1
    assert not server.full(50)
    server.full_since, server.full_until = now - 100, now - 50  # nobody asked it meanwhile
    assert server.full(50)


@pytest.mark.long
def test_a_key_is_sent_and_never_said(
    urls: list[str], proxy: Callable[..., Liar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_KEY", "one:password")
    front = proxy(urls[0])
    found = opened(front.url, key_variable="FLEET_KEY")
    assert {one.get("authorization") for one in front.headers} == {"Basic b25lOnBhc3N3b3Jk"}
    assert "password" not in json.dumps(found.found)
    monkeypatch.setenv("FLEET_KEY", "tok\nen")
    with pytest.raises(UsageError, match=r"FLEET_KEY holds no key") as told:
        opened(front.url, key_variable="FLEET_KEY")
    assert "tok" not in str(told.value)


@pytest.mark.long
def test_a_run_stops_before_the_round_of_a_server_that_lies_and_goes_on_with_others(
    urls: list[str], proxy: Callable[..., Liar], tmp_path: Path
) -> None:
    liar, out = proxy(urls[0]), tmp_path / "run"

    def after_round_one(completion: dict[str, Any]) -> None:
        if (out / "checkpoints" / "round-0001").is_dir():
            louder(completion)

    liar.bend = after_round_one
    small = {"run.rounds": 3, "run.eval_tasks": 4, "agent.rollouts": 2, "simulator.contexts": 2}
    small |= {"simulator.variations": 2, "agent.warmup.steps": 2, "simulator.warmup.steps": 2}
    small |= {"agent.warmup.batch": 8, "agent.warmup.check_tasks": 4, "run.eval_every": 1}
    small |= {"policy.backend": "vllm", "policy.tuning": "lora"}
    words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    addresses = [json.dumps([liar.url, urls[1]]), json.dumps([urls[1]])]
    told = refused(
        *("train", CONFIGS / "tiny.toml", *words, "--out", out),
        *("--set", f"policy.vllm.addresses={addresses[0]}"),
    )
    assert f"{liar.url} does not sample from the " in told
    assert [row["round"] for row in lines_of(out)] == [0, 1]
    succeeds("train", "--resume", "--out", out, "--set", f"policy.vllm.addresses={addresses[1]}")
    assert [row["round"] for row in lines_of(out)] == [0, 1, 2, 3]
