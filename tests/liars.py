"""Servers that do not do what they say: a proxy on loopback before an honest one."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Lie = Callable[[str, dict[str, Any]], "bytes | dict[str, Any] | int | None"]
"""(path, body) -> body of the answer, its status, another body to pass on, or None: pass it on as it is."""
Bend = Callable[[dict[str, Any]], None]
"""Changes a completion in place: `token_ids` and `logprobs.content`."""


class Liar:
    """What a proxy does."""

    def __init__(self, backend: str, *, bend: Bend | None = None, lie: Lie | None = None) -> None:
        self.backend, self.bend, self.lie = backend, bend, lie
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def answer(self, method: str, path: str, sent: bytes, key: str | None) -> tuple[int, bytes]:
        if self.lie is not None and method == "POST":
            said = self.lie(path, json.loads(sent))
            if isinstance(said, bytes):
                return 200, said
            if isinstance(said, int):
                return said, b'{"error": {"message": "ask again"}}'
            sent = sent if said is None else json.dumps(said).encode()
        headers = {"content-type": "application/json"} | ({"authorization": key} if key else {})
        asked = urllib.request.Request(  # noqa: S310 - loopback
            self.backend + path, data=sent if method == "POST" else None, headers=headers
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:  # noqa: S310
                status, body = found.status, found.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        if self.bend is not None and path.endswith("generate"):
            whole = json.loads(body)
            self.bend(whole["choices"][0])
            body = json.dumps(whole).encode()
        return status, body


@contextmanager
def lying(backend: str, *, bend: Bend | None = None, lie: Lie | None = None) -> Iterator[Liar]:
    """A proxy before a server; `bend` and `lie` may be set while it runs."""
    liar = Liar(backend, bend=bend, lie=lie)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.give("GET", b"")

        def do_POST(self) -> None:
            self.give("POST", self.rfile.read(int(self.headers.get("content-length", 0))))

        def give(self, method: str, sent: bytes) -> None:
            liar.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, body = liar.answer(method, self.path, sent, self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        liar.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield liar
        finally:
            server.shutdown()


def louder(completion: dict[str, Any]) -> None:
    """Add 3 nats to all log-probabilities, up to 0."""
    for one in completion["logprobs"]["content"]:
        one["logprob"] = min(0.0, one["logprob"] + 3)


def other_tokens(completion: dict[str, Any]) -> None:
    """Answer with other tokens than those that were sampled."""
    completion["token_ids"] = [(7 * token + 5) % 60 for token in completion["token_ids"]]


def stale(path: str, body: dict[str, Any], first: dict[str, str]) -> bytes | dict[str, Any] | None:
    """Load the first version of each player alone, say that others are loaded, and answer with the first.

    Args:
        path: what is asked for.
        body: of the request.
        first: by player, the adapter that it was; changed in place.
    """
    name = body.get("model") or body["lora_name"]
    player = name.rsplit("-", 2)[0]
    if path.endswith("generate"):
        return {**body, "model": first[player]}
    if path.endswith("unload_lora_adapter") or player in first:
        return b"Success"
    first[player] = name
    return None
