"""Requests byte by byte, as no HTTP library would send them."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Raw(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str, timeout_s: float = 20.0) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout_s)


def answer(line: socket.socket) -> Raw:
    """What comes until the other side closes."""
    whole = b""
    while part := line.recv(65_536):
        whole += part
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = (one.partition(":") for one in rest)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Raw(int(first.split()[1]), headers, body)


def head(url: str, method: str, path: str, headers: dict[str, str | None]) -> bytes:
    """The head of a request; a header of None is left out."""
    said = {"Host": urlsplit(url).netloc, "Connection": "close", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in said.items() if v is not None)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def ask(
    url: str, path: str, body: bytes | None = None, method: str | None = None, **headers: str | None
) -> Raw:
    """Send a request and read its answer; `content_type` is the header Content-Type."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        said = {"Content-Type": "application/json", "Content-Length": str(len(body)), **said}
    with connect(url) as line:
        line.sendall(head(url, method or ("GET" if body is None else "POST"), path, said) + (body or b""))
        return answer(line)
