"""How servers are asked: real connections on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from genenv.backends.settings import VllmConfig
from genenv.backends.vllm import client as asking
from genenv.backends.vllm.client import LOST, NO_ADDRESS, Connections
from genenv.backends.vllm.fleet import Fleet
from genenv.errors import UsageError


@asynccontextmanager
async def served(*, keep_alive_s: float = 5.0) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that says what it was asked, its address, and the whole targets of all requests."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs if request.host == address else str(request.url))
        if request.path == "/elsewhere":
            raise web.HTTPFound("/there")
        if request.path == "/late":
            await asyncio.sleep(5)
        return web.json_response({"heard": await request.json() if request.can_read_body else None})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=keep_alive_s, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield f"http://{address}", asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected() -> AsyncIterator[Connections]:
    connections = Connections()
    try:
        yield connections
    finally:
        await connections.close()


def test_what_is_asked_and_said() -> None:
    async def scene() -> None:
        async with served() as (base, asked), connected() as connections:
            answer = await connections.post(base, "/a", {"ids": [1, 2], "text": "é"}, timeout_s=5)
            assert answer.status == 200
            assert answer.json() == {"heard": {"ids": [1, 2], "text": "é"}}
            moved = await connections.get(base, "/elsewhere", timeout_s=5)
            assert moved.status == 302  # who is asked for one thing is not asked for another
            assert asked == ["/a", "/elsewhere"]
            with pytest.raises(ValueError, match="trailing characters"):
                moved.json()

    asyncio.run(scene())


def test_no_answer_is_a_loss_and_no_address_is_told_from_it() -> None:
    async def scene() -> None:
        async with served() as (base, _), connected() as connections:
            with pytest.raises(TimeoutError) as late:
                await connections.get(base, "/late", timeout_s=0.05)
            assert isinstance(late.value, LOST)
            with pytest.raises(LOST):
                await connections.get("http://127.0.0.1:9", "/", timeout_s=5)
            for wrong in ("not an address", "http://[::1", "ftp://host"):
                with pytest.raises(NO_ADDRESS):
                    await connections.get(wrong, "/", timeout_s=5)

    asyncio.run(scene())


def test_the_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with served() as (base, direct), served() as (proxy, passed), connected() as connections:
            monkeypatch.setenv("http_proxy", proxy)
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            await connections.get(base, "/a", timeout_s=5)
            await connections.get("http://far.example:8000", "/b", timeout_s=5)
            assert direct == ["/a"]
            assert passed == ["http://far.example:8000/b"]

    asyncio.run(scene())


@pytest.mark.long
def test_a_connection_that_the_server_may_have_closed_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that was held up by learning does not know yet that the other side is gone."""
    monkeypatch.setattr(asking, "_IDLE_S", 0.2)

    async def scene() -> None:
        async with served(keep_alive_s=0.3) as (base, asked), connected() as connections:
            for _ in range(5):
                await connections.post(base, "/a", {}, timeout_s=5)
                await asyncio.sleep(0.25)
                time.sleep(0.1)
            assert asked == ["/a"] * 5

    asyncio.run(scene())


def test_the_key_of_the_environment_is_sent_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS_KEY", " secret-1 \n")
    sent: list[str | None] = []

    async def scene() -> None:
        async def answer(request: web.Request) -> web.Response:
            sent.append(request.headers.get("Authorization"))
            status = 200 if sent[-1] == "Bearer secret-1" else 401
            return web.json_response({"data": [{"id": "tiny"}]}, status=status)

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        keyed = Fleet(VllmConfig(addresses=(address,), key_variable="SERVERS_KEY"))
        keyless = Fleet(VllmConfig(addresses=(address,), key_variable="NO_KEY_IS_HERE"))
        try:
            assert list(await keyed.meet()) == [address]
            with pytest.raises(UsageError, match=r"does not take the API key: .*NO_KEY_IS_HERE"):
                await keyless.meet()
            with pytest.raises(UsageError, match="does not take the API key"):
                await keyless.generate("tiny", (1,), {})
        finally:
            await keyed.close()
            await keyless.close()
            await runner.cleanup()

    asyncio.run(scene())
    assert sent == ["Bearer secret-1", None, None]


@pytest.mark.parametrize("token_ids", [[5, 6], []], ids=["in the middle", "while it waits"])
@pytest.mark.parametrize("reason", ["abort", "error", "ABORT"])
def test_a_completion_that_a_server_gives_up_on_is_sampled_anew_by_another(
    reason: str, token_ids: list[int]
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.host)
        whole = len(asked) > 1
        ids = [7, 8, 9] if whole else token_ids
        logprobs = {"content": [{"logprob": -0.1}] * len(ids)} if ids else None
        ended = {"finish_reason": "stop" if whole else reason, "token_ids": ids, "logprobs": logprobs}
        return web.json_response({"choices": [ended]})

    async def scene() -> tuple[int, ...]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        for _ in range(2):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses = tuple(f"http://127.0.0.1:{port}" for _, port in runner.addresses)
        fleet = Fleet(VllmConfig(addresses=addresses))
        try:
            return (await fleet.generate("tiny", (1,), {"max_tokens": 9})).token_ids
        finally:
            await fleet.close()
            await runner.cleanup()

    assert asyncio.run(scene()) == (7, 8, 9)
    assert len(set(asked)) == 2


def test_a_server_that_is_lost_while_it_unloads_adapters_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(VllmConfig(addresses=("http://127.0.0.1:1",)))
    (server,) = fleet.servers
    server.adapters |= {"new": Path("new"), "old": Path("old"), "older": Path("older")}

    async def lost(*_: Any) -> None:
        fleet.mark_lost(server, OSError("it is gone"))  # by another request

    monkeypatch.setattr(fleet, "_post", lost)
    asyncio.run(fleet.load_adapter("new", Path("new"), instead_of="old"))
    assert not server.adapters


def test_what_is_no_key_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS_KEY", "one\r\nHost: two")
    with pytest.raises(UsageError, match="SERVERS_KEY holds no key"):
        Fleet(VllmConfig(addresses=("http://127.0.0.1:1",), key_variable="SERVERS_KEY"))
