"""What every HTTP server of genenv refuses before a route sees it: real connections on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import raw_http
from genenv.errors import UsageError
from genenv.http import guard
from genenv.http import server as http
from genenv.http.guard import Access, Guard, key_headers, proxy_of
from genenv.http.server import HttpServer, Service
from raw_http import Raw, answer, ask, connect, head

Serve = Callable[..., "Echo"]


class Echo(HttpServer):
    """Says how long a body was, once it may."""

    keyless = ("/health",)

    def __init__(self, host: str = "127.0.0.1", access: Access = Access()) -> None:  # noqa: B008
        self.goes_on = threading.Event()
        self.goes_on.set()
        super().__init__(host, 0, access)

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        async def said(request: Request) -> Response:
            body = await request.body()
            while not self.goes_on.is_set():
                await asyncio.sleep(0.005)
            return JSONResponse({"bytes": len(body)})

        methods = ["GET", "POST", "PUT", "DELETE"]
        yield Service(Starlette(routes=[Route("/{path:path}", said, methods=methods)]))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(guard, "_DISCARDED_S", 0.1)
    with contextlib.ExitStack() as stack:
        yield lambda **asked: stack.enter_context(Echo(**asked))


FAR = "http://10.1.2.3:8000"


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        (FAR, {}, None),
        (FAR, {"http_proxy": "proxy:3128"}, "http://proxy:3128"),
        (FAR, {"https_proxy": "http://proxy"}, None),
        (FAR, {"ALL_PROXY": "http://proxy"}, "http://proxy"),
        (FAR, {"http_proxy": "http://one", "ALL_PROXY": "socks5://two"}, "http://one"),
        (FAR, {"http_proxy": "http://proxy", "no_proxy": "10.1.2.3"}, None),
        (FAR, {"http_proxy": "http://proxy", "no_proxy": "localhost, 10.0.0.0/8"}, None),
        (FAR, {"http_proxy": "http://proxy", "no_proxy": "10.1.2.3:8000"}, None),
        (FAR, {"http_proxy": "http://proxy", "no_proxy": "10.1.2.3:80"}, "http://proxy"),
        ("http://me:pw@a.far.example/v1", {"http_proxy": "http://proxy", "no_proxy": ".far.example"}, None),
        ("https://[2001:db8::1]/v1", {"https_proxy": "http://proxy", "no_proxy": "2001:db8::/32"}, None),
        ("https://[2001:db8::1]/v1", {"https_proxy": "http://proxy", "no_proxy": "*"}, None),
        ("http://127.0.0.2:1", {"http_proxy": "http://proxy", "ALL_PROXY": "socks5://proxy"}, None),
    ],
)
def test_all_clients_ask_the_same_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str], proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(url) == proxy


def test_a_proxy_that_cannot_be_asked_is_one_sentence_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:pa55@proxy:1080")
    with pytest.raises(UsageError, match=r"names socks5://\*\*\*@proxy:1080 as the proxy for 10\.1\.2\.3"):
        proxy_of(FAR)
    assert proxy_of(FAR, socks=True) == "socks5://me:pa55@proxy:1080"


def sentence(found: Raw) -> str:
    text = found.json()["detail"]
    assert "\n" not in text
    return text


# pages


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_request_of_a_web_page_is_refused(serve: Serve, headers: dict[str, str], method: str) -> None:
    url = serve().url
    found = ask(url, "/a", b"{}" if method == "POST" else None, method, **headers)
    assert (found.status, "no web pages" in sentence(found)) == (403, True)


OPENED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("headers", "get", "post"),
    [
        ({"Origin": "null"}, 403, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "cross-site", **OPENED}, 403, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin", **OPENED}, 200, 200),  # a form without referrer
        ({"Sec-Fetch-Site": "cross-site", **OPENED}, 200, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403, 403),
        ({"Origin": "http://localhost"}, 200, 200),
        ({"Origin": "http://evil.example"}, 403, 403),
        ({}, 200, 200),
    ],
)
def test_a_server_of_pages_lets_foreign_pages_link_to_it_alone(
    serve: Serve, headers: dict[str, str], get: int, post: int
) -> None:
    url = serve(access=Access(cookie="key")).url
    assert ask(url, "/a", **headers, **{"Host": "localhost"}).status == get
    assert ask(url, "/a", b"{}", **headers, **{"Host": "localhost"}).status == post


def test_a_form_of_an_own_page_is_known_by_its_cookie_where_a_browser_does_not_say_its_site(
    serve: Serve,
) -> None:
    url = serve(access=Access(cookie="key", key="own")).url
    assert ask(url, "/a", b"{}", **{"Origin": "null", "Cookie": "key=own"}).status == 200
    assert ask(url, "/a", b"{}", **{"Origin": "null"}).status == 401


def test_what_is_typed_into_a_browser_is_answered(serve: Serve) -> None:
    assert ask(serve().url, "/a", sec_fetch_site="none").status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_body_that_a_page_may_send_without_asking_is_refused(serve: Serve, kind: str | None) -> None:
    found = ask(serve().url, "/a", b'{"a": 1}', content_type=kind, **{"Content-Type": None})
    assert (found.status, "send application/json" in sentence(found)) == (415, True)


def test_a_body_of_json_and_none_at_all_are_read(serve: Serve) -> None:
    url = serve().url
    assert ask(url, "/a", b"[1]", **{"Content-Type": "Application/JSON; charset=utf-8"}).json() == {
        "bytes": 3
    }
    assert ask(url, "/a", b"", **{"Content-Type": None}).json() == {"bytes": 0}


# names


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "[::2]",
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(serve: Serve, host: str) -> None:
    """As after DNS rebinding: the address is right, the name is the page's."""
    found = ask(serve().url, "/a", host=None, **{"Host": host})
    assert (found.status, "--allow-host" in sentence(found)) == (400, True)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:1", "127.0.0.1", "127.0.0.1:9", "[::1]:8", "gpu-3", "gpu-3:8000"]
)
def test_loopback_and_names_that_were_given_are_the_servers(serve: Serve, host: str) -> None:
    assert ask(serve(access=Access(names=("GPU-3",))).url, "/a", **{"Host": host}).status == 200


def test_no_name_and_two_of_them_are_refused(serve: Serve) -> None:
    url = serve().url
    with connect(url) as line:
        line.sendall(b"GET /a HTTP/1.0\r\n\r\n")
        assert answer(line).status == 400
    with connect(url) as line:
        line.sendall(b"GET /a HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert answer(line).status == 400


# keys


def test_a_server_that_others_reach_makes_a_key_and_asks_for_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        http, "is_loopback", lambda _: False
    )  # as if it listened elsewhere, which no test does
    server, other = serve(), serve()
    key = server.access.key
    assert key is not None
    assert len(key) > 40
    assert other.access.key != key
    for headers in ({}, {"Authorization": "Bearer x"}, {"x-api-key": "x"}, {"Authorization": f"Basic {key}"}):
        found = ask(server.url, "/a", **headers)
        assert (found.status, "the API key is missing or wrong" in sentence(found)) == (401, True)
    for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
        assert ask(server.url, "/a", **headers).status == 200
    assert ask(server.url, "/health").status == 200


def test_a_key_that_is_given_is_asked_for_on_loopback_too_and_none_is_made_there(serve: Serve) -> None:
    server = serve(access=Access(key="own"))
    assert ask(server.url, "/a").status == 401
    assert ask(server.url, "/a", **{"X-Api-Key": "own"}).status == 200
    assert serve().access.key is None


# how much


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(serve: Serve) -> None:
    url = serve(access=Access(body_bytes=1000)).url
    kind = {"Content-Type": "application/json"}
    with connect(url) as line:
        line.sendall(head(url, "POST", "/a", {**kind, "Content-Length": str(10**12)}))
        found = answer(line)
    assert (found.status, "larger than" in sentence(found)) == (413, True)
    with connect(url) as line:
        line.sendall(head(url, "POST", "/a", {**kind, "Transfer-Encoding": "chunked"}))
        line.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n")  # and no byte of the last chunk
        line.sendall(b"x")
        assert answer(line).status == 413
    assert ask(url, "/a", b"x" * 1000).json() == {"bytes": 1000}


def test_who_sends_all_of_a_large_body_reads_the_refusal(serve: Serve) -> None:
    found = ask(serve(access=Access(body_bytes=1000)).url, "/a", b"x" * 4_000_000)
    assert found.status == 413


def test_bodies_under_way_have_a_bound_together(serve: Serve) -> None:
    server = serve(access=Access(body_bytes=1000))
    server.goes_on.clear()
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connect(server.url)) for _ in range(5)]
        said = {"Content-Type": "application/json", "Content-Length": "900"}
        for line in lines:
            line.sendall(head(server.url, "POST", "/a", said) + b"x" * 900)
        found = answer(lines[-1])
        assert (found.status, found.headers["retry-after"]) == (503, "1")
        server.goes_on.set()
        assert [answer(line).status for line in lines[:-1]] == [200] * 4


def test_requests_under_way_have_a_bound(serve: Serve) -> None:
    server = serve(access=Access(requests=2))
    server.goes_on.clear()
    with connect(server.url) as first, connect(server.url) as second:
        for line in (first, second):
            line.sendall(head(server.url, "GET", "/a", {}))
        time.sleep(0.1)
        found = ask(server.url, "/a")
        assert (found.status, "ask again in a moment" in sentence(found)) == (503, True)
        server.goes_on.set()
        assert [answer(line).status for line in (first, second)] == [200, 200]
    assert ask(server.url, "/a").status == 200


@pytest.mark.long
def test_who_is_slow_to_ask_is_let_go_of(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HEAD_S", 0.2)
    monkeypatch.setattr(guard, "_BODY_S", 0.2)
    url = serve().url
    with connect(url) as silent, connect(url) as slow, connect(url) as again:
        slow.sendall(b"GET /a HTTP/1.1\r\nHost: local")
        again.sendall(head(url, "GET", "/a", {"Connection": "keep-alive"}))
        got = b""
        while not got.endswith(b'{"bytes":0}'):
            got += again.recv(65_536)
        again.sendall(b"GET /a HTTP/1.1\r\nHo")
        for line in (silent, slow, again):
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(100) == b""
    with connect(url) as line:
        line.sendall(
            head(url, "POST", "/a", {"Content-Type": "application/json", "Content-Length": "9"}) + b"x"
        )
        found = answer(line)
    assert (found.status, "did not arrive in time" in sentence(found)) == (408, True)
    assert ask(url, "/a").status == 200


def test_heads_have_a_bound(serve: Serve) -> None:
    url = serve().url
    with connect(url) as line, contextlib.suppress(ConnectionError):
        line.sendall(b"GET /a HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert answer(line).status == 400
    assert ask(url, "/a").status == 200


def test_connections_have_a_bound(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECTIONS", 2)
    url = serve().url
    with connect(url), connect(url), connect(url) as third, contextlib.suppress(ConnectionResetError):
        assert third.recv(100) == b""


def test_who_does_not_read_the_answer_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_ANSWER_S", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def never(_: Any) -> None:
        await asyncio.sleep(60)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    since = time.monotonic()
    asyncio.run(Guard(app, Access())(scope, receive, never))
    assert time.monotonic() - since < 5


def test_a_web_socket_of_a_page_is_closed() -> None:
    served: list[str] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    def scope(*headers: tuple[bytes, bytes]) -> Any:
        return {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost"), *headers]}

    async def scene() -> None:
        found = Guard(app, Access(), bound="127.0.0.1")
        await found(scope((b"origin", b"http://evil.example")), None, send)  # type: ignore[arg-type]
        assert (served, sent) == ([], [{"type": "websocket.close", "code": 1008}])
        await found(scope(), None, send)  # type: ignore[arg-type]
        assert served == ["/ws"]

    asyncio.run(scene())


def test_a_refusal_is_json_of_one_line(serve: Serve) -> None:
    found = ask(serve().url, "/a", **{"Host": "x" * 5000})
    assert found.headers["connection"] == "close"
    assert len(json.dumps(found.json())) < 500
    assert raw_http.ask(serve().url, "/a", host="x\x01y").status == 400


def test_a_key_with_a_colon_is_taken_as_clients_send_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS_KEY", "me:secret")
    server = serve(access=Access(key="me:secret"))
    assert ask(server.url, "/a", **key_headers("SERVERS_KEY")).status == 200
    assert ask(server.url, "/a", Authorization="Basic bWU6b3RoZXI=").status == 401
