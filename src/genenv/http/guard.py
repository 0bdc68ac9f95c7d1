"""Keys and proxies of HTTP clients, and middleware that refuses requests before a route receives them.

A web page in a browser can send requests to every server that the browser's machine reaches, and read the
answers after DNS rebinding. So the guard refuses requests of web pages, and requests whose Host header is not
a name of the server. Beyond loopback each request needs the key. Body sizes and the number of concurrent
requests are limited.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import string
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from genenv.errors import UsageError
from genenv.texts import masked
from genenv.types import JsonObject

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_ALLOWED = frozenset(string.ascii_letters + string.digits + string.punctuation)
_BYTES = 32
"""Random bytes in a generated key."""


def is_loopback(host: str) -> bool:
    """Return whether an address or a name is reachable only from this machine."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def key_in(variable: str) -> str | None:
    """Return the key in an environment variable, or None if the variable is unset or empty.

    Args:
        variable: the variable's name, such as the value of `policy.vllm.key_variable`.

    Raises:
        UsageError: the key cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not _ALLOWED.issuperset(key):
        raise UsageError(
            f"the environment variable {variable} holds no key: a key has ASCII letters, digits and "
            "punctuation alone, without spaces"
        )
    return key


def new_key(prefix: str = "") -> str:
    """Return a new random key."""
    return prefix + secrets.token_urlsafe(_BYTES)


def is_same(given: str, key: str) -> bool:
    """Return whether a text is the key, in a time that says nothing about it."""
    return hmac.compare_digest(given.encode(errors="replace"), key.encode())


def key_headers(variable: str) -> Mapping[str, str]:
    """Return the headers with which a client sends the key in an environment variable; empty if it is unset.

    `USER:PASSWORD` is sent as basic authentication, for servers behind a proxy that requires it.

    Raises:
        UsageError: the key cannot be sent in a header.
    """
    key = key_in(variable)
    if key is None:
        return {}
    if ":" in key:
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"}


def proxy_of(url: str, *, socks: bool = False) -> str | None:
    """Return the proxy that the environment names for a URL; None for loopback and what `no_proxy` names.

    Args:
        url: the address of a server.
        socks: whether the client can use SOCKS proxies.

    Raises:
        ValueError: the URL is malformed.
        UsageError: the client cannot use the proxy.
    """
    parts, known = urlsplit(url), getproxies()
    host, proxy = parts.hostname or "", known.get(parts.scheme) or known.get("all")
    passed = is_loopback(host) or _is_within(host, known.get("no", ""))
    if not proxy or passed or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://", *(("socks5://", "socks5h://") if socks else ()))):
        raise UsageError(
            f"the environment names {masked(proxy)} as the proxy for {host}, which cannot be used: name an "
            f"HTTP proxy ({parts.scheme}_proxy), or put {host} into no_proxy"
        )
    return proxy


def _is_within(host: str, networks: str) -> bool:
    """Return whether an address is in one of the networks of `no_proxy`, such as 10.0.0.0/8."""
    for network in networks.split(","):
        with contextlib.suppress(ValueError):
            if ip_address(host) in ipaddress.ip_network(network.strip().strip("[]"), strict=False):
                return True
    return False


def client_options(url: str) -> dict[str, Any]:
    """Return the options of an `httpx2` client of a server: its proxy is that of `proxy_of`.

    Raises:
        ValueError: the URL is malformed.
        UsageError: the proxy cannot be used.
    """
    from httpx2 import create_ssl_context

    proxy = proxy_of(url, socks=find_spec("socksio") is not None)
    return {"proxy": proxy, "trust_env": False, "verify": create_ssl_context()}


MIB = 2**20
_DIGITS = 19
"""Only this many digits of a content length are parsed."""
_BODIES = 4
"""Maximum size of all concurrent bodies, as a multiple of the limit for one."""
_BODY_S, _BYTES_PER_S = 30.0, 65_536
"""Time limit for a body: `_BODY_S` seconds, and one more for every `_BYTES_PER_S` bytes received."""
_ANSWER_S = 60.0
"""Time limit for a client to accept a piece of an answer."""
_DISCARDED_S, _DISCARDED_BYTES = 2.0, 16 * MIB
"""Limits for reading the rest of a refused body, so that the client can read the refusal."""
_BEGIN_BYTES = 8192
"""Only this many bytes of a refused body are passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The API key, the names and the limits of a server."""

    key: str | None = None
    """The API key that requests must have. None: not required on loopback, generated elsewhere."""
    names: tuple[str, ...] = ()
    """Names and addresses by which clients may call the server, besides loopback and the bound address."""
    body_bytes: int = 16 * MIB
    """Maximum size of a request body."""
    requests: int = 4096
    """Maximum number of concurrent requests."""
    cookie: str = ""
    """For a server of web pages: the name of the cookie with which a browser sends the key, which must be
    SameSite. Its own pages may then send requests, and links to them may be anywhere."""


Form = Callable[[int, str], JsonObject]
"""(status, sentence) -> the body of a refusal, in the form that the server's clients expect."""


Unread = Callable[[str, bytes], Awaitable[None]]
"""(content type, first bytes) of a body that was refused for its size or type. The bytes may be none."""


async def nothing(_: str, __: bytes) -> None:
    """Do nothing about a refused body."""


def detail(_: int, sentence: str) -> JsonObject:
    """Return the body of a refusal in the form of FastAPI and the Tinker protocol."""
    return {"detail": sentence}


class Guard:
    """ASGI middleware that passes valid requests to the application and refuses all others."""

    def __init__(  # noqa: PLR0913 - most of them are optional
        self,
        app: ASGIApp,
        access: Access,
        *,
        bound: str | None = None,
        form: Form = detail,
        types: tuple[str, ...] = ("application/json",),
        keyless: tuple[str, ...] = (),
        unread: Unread = nothing,
    ) -> None:
        """Wrap an application.

        Args:
            app: the application.
            access: key, names and limits.
            bound: the address that the server listens on, as configured; None if unknown.
            form: creates the body of a refusal.
            types: content types that a body may have.
            keyless: paths that need no key, such as that of a health check.
            unread: called with each body of a valid request that is refused for its size or type.
        """
        self._app, self._access, self._form, self._unread = app, access, form, unread
        self._types, self._keyless = types, keyless
        self._names = {_name(one) for one in (*access.names, *(() if bound is None else (bound,)))}
        if bound is not None and not is_loopback(bound):
            self._names.add(_name(socket.gethostname()))
        self._under_way = self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "websocket":
            if self._refusal(scope) is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is not None:
            await self._refuse(receive, send, *refused)
            return
        wrong = self._wrong_body(scope)
        if wrong is not None:
            await self._unread(_content_type(scope), await self._refuse(receive, send, *wrong))
            return
        if self._under_way >= self._access.requests:
            await self._refuse(
                receive, send, 503, f"{self._under_way} requests are under way, ask again in a moment"
            )
            return
        self._under_way += 1
        try:
            await self._serve(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        try:
            try:
                await self._read(receive, body)
            except _Gone:
                return
            except _Refused as error:
                await self._refuse(receive, send, error.status, error.sentence)
                if error.begin:
                    await self._unread(_content_type(scope), error.begin)
                return
            await self._app(scope, _replayed(bytes(body), receive), _patient(send))
        except _NotTaken:
            return  # the connection is closed by the server, as the answer is not whole
        finally:
            self._held_bytes -= len(body)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and sentence if the headers forbid the request, else None."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) != 1 or not self._is_own(hosts[0], scope):
            shown = ", ".join(hosts) or "none"
            return 400, (
                f"this server is not called so (Host: {shown[:200]}); use its address, or allow that name "
                "(--allow-host; in Python, Access.names)"
            )
        known = dict(headers)
        if self._is_of_page(scope.get("method"), known):
            return 403, "this server answers no web pages: the request has the headers of one"
        key = self._access.key
        if key is not None and scope["path"] not in self._keyless and not self._has_key(known, key):
            return 401, (
                "the API key is missing or wrong; send the one that the server was started with, as "
                "Authorization: Bearer KEY"
            )
        return None

    def _is_of_page(self, method: str | None, headers: Mapping[str, str]) -> bool:
        """Return whether a web page sends a request that must not be answered.

        A browser sends `Origin: null` for a form of an own page without referrers, and for foreign pages in a
        sandbox. Without `Sec-Fetch-Site` it tells the two apart only by the cookie, which must be SameSite.
        """
        site = headers.get("sec-fetch-site", "none")
        if not self._access.cookie:
            return "origin" in headers or site != "none"
        origin = headers.get("origin")
        if origin == "null":
            own = site == "same-origin" or ("sec-fetch-site" not in headers and self._access.key is not None)
        else:
            own = origin is None or origin.partition("://")[2] == headers["host"]
        if not own:
            return True
        opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        opened = opened and method in ("GET", "HEAD")
        return site not in ("none", "same-origin") and not opened

    def _has_key(self, headers: Mapping[str, str], key: str) -> bool:
        """Return whether a request contains the key."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        named = [value for name, _, value in pairs if name and name == self._access.cookie]
        return _has(headers, key) or any(is_same(value, key) for value in named)

    def _is_own(self, host: str, scope: Scope) -> bool:
        """Return whether a Host header names this server."""
        name = _name(_without_port(host))
        server = scope.get("server")
        own = {_name(server[0])} if server and server[0] else set[str]()
        return is_loopback(name) or name in self._names or name in own

    def _wrong_body(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and sentence if the headers announce an invalid body, else None."""
        known = {name: value.decode("latin-1") for name, value in scope["headers"]}
        length = known.get(b"content-length", "0")
        if length == "0" and b"transfer-encoding" not in known:
            return None
        if length.isdecimal() and int(length[:_DIGITS]) > self._access.body_bytes:
            return self._too_large()
        kind = _content_type(scope)
        if kind not in self._types:
            return 415, f"the body is {kind or 'of no type'}; send {' or '.join(self._types)} (Content-Type)"
        return None

    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body is larger than {self._access.body_bytes / MIB:g} MiB; send less at a time"

    async def _read(self, receive: Receive, body: bytearray) -> None:
        """Read a body into `body`, and count it against the limit of all concurrent bodies.

        Raises:
            _Gone: the client has disconnected.
            _Refused: the body is too large, too slow, or too much together with the others.
        """
        loop = asyncio.get_running_loop()
        until, more = loop.time() + _BODY_S, True
        while more:
            try:
                async with asyncio.timeout_at(until + len(body) / _BYTES_PER_S):
                    message = await receive()
            except TimeoutError as error:
                raise _Refused(408, "the body of the request did not arrive in time") from error
            if message["type"] == "http.disconnect":
                raise _Gone
            part: bytes = message.get("body", b"")
            if len(body) + len(part) > self._access.body_bytes:
                raise _Refused(*self._too_large(), (bytes(body[:_BEGIN_BYTES]) + part)[:_BEGIN_BYTES])
            if self._held_bytes + len(part) > _BODIES * self._access.body_bytes:
                raise _Refused(503, "other requests fill the memory for bodies, ask again in a moment")
            body += part
            self._held_bytes += len(part)
            more = message.get("more_body", False)

    async def _refuse(self, receive: Receive, send: Send, status: int, sentence: str) -> bytes:
        """Answer with a sentence and close the connection; return the first bytes of what was not read."""
        body = json.dumps(self._form(status, sentence)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"connection", b"close")]
        if status == 503:
            headers += [(b"retry-after", b"1")]
        send, begin = _patient(send), bytearray()
        with contextlib.suppress(_NotTaken):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await _discard(receive, begin)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return bytes(begin)


class _Gone(Exception):
    """Raised if the client has disconnected."""


class _NotTaken(Exception):
    """Raised if the client does not read its answer in time."""


class _Refused(Exception):
    """Raised if a body is refused while it is read."""

    def __init__(self, status: int, sentence: str, begin: bytes = b"") -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.begin = status, sentence, begin


def _name(host: str) -> str:
    """Return a name or an address in a canonical spelling."""
    plain = host.strip().strip("[]").rstrip(".").lower()
    try:
        return ip_address(plain).compressed
    except ValueError:
        return plain


def _content_type(scope: Scope) -> str:
    """Return the content type of a request in lower case, without parameters; empty if there is none."""
    value: bytes = dict(scope["headers"]).get(b"content-type", b"")
    return value.decode("latin-1").partition(";")[0].strip().lower()


def _without_port(host: str) -> str:
    """Return the name in a Host header."""
    if host.startswith("["):
        return host.partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _has(headers: Mapping[str, str], key: str) -> bool:
    """Return whether the headers of a request contain the key."""
    scheme, _, said = headers.get("authorization", "").partition(" ")
    given = said.strip().encode() if scheme.lower() == "bearer" else b""
    if scheme.lower() == "basic":  # as `key_headers` sends a key with a colon
        with contextlib.suppress(ValueError):
            given = base64.b64decode(said, validate=True)
    given = headers.get("x-api-key", "").encode() or given
    return hmac.compare_digest(given, key.encode())


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that delivers a body that was already read, and then further messages."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _patient(send: Send) -> Send:
    """Return `send` with a time limit."""

    async def within(message: Message) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await send(message)
        except TimeoutError as error:
            raise _NotTaken from error

    return within


async def _discard(receive: Receive, begin: bytearray) -> None:
    """Read and drop the rest of a body, within limits, except for its first bytes."""
    left, more = _DISCARDED_BYTES, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARDED_S):
            while more and left > 0:
                message = await receive()
                part: bytes = message.get("body", b"")
                begin += part[: _BEGIN_BYTES - len(begin)]
                left -= len(part)
                more = message["type"] == "http.request" and message.get("more_body", False)
