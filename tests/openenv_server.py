"""A real server on loopback that speaks the wire protocol of OpenEnv 0.3, and can misbehave as a test says.

Its environment is a small game: guess a number below `most` (4) that the seed decides, in three tries.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import random
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
ACTION = {
    "title": "GuessAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "message": {"type": "string", "description": "Your guess"},
    },
    "required": ["message"],
}
Data = dict[str, Any]


class Game:
    """One session's environment."""

    def __init__(self) -> None:
        self.number = self.tries = 0

    def reset(self, seed: int = 0, most: int = 4, **others: Any) -> Data:
        self.number, self.tries = random.Random(f"{seed}/{others}").randrange(most), 3
        return {"observation": {"hint": f"Guess a number below {most}."}, "reward": 0.0, "done": False}

    def step(self, message: str, **_: Any) -> Data:
        self.tries -= 1
        right = message.strip() == str(self.number)
        hint = "Right." if right else "No."
        done = right or not self.tries
        return {"observation": {"hint": hint}, "reward": 1.0 if right else 0.0, "done": done}


class OpenEnvServer:
    """The server; `with` starts and ends it."""

    def __init__(self, *, room: int = 64, port: int = 0) -> None:
        self.room, self.open, self.most_open = room, 0, 0
        self.action: Data = ACTION
        self.make: Callable[[], Any] = Game
        self.pages: dict[str, tuple[int, str, str]] = {}
        """Other answers to HTTP: status, type, body, by path."""
        self.say: Callable[[Data], str | bytes | None] = lambda message: None
        """What is said to a message instead; bytes end the session."""
        self.pause_s = 0.0
        self.resets: list[Data] = []
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path in server.pages:
                    self._page(*server.pages[self.path])
                elif self.path == "/ws":
                    server.session(self)
                elif self.path == "/schema":
                    self._page(200, "application/json", json.dumps({"action": server.action}))
                elif self.path == "/metadata":
                    said = json.dumps({"name": "Game", "description": "A guessing game."})
                    self._page(200, "application/json", said)
                else:
                    self._page(404, "application/json", '{"detail": "Not Found"}')

            def _page(self, status: int, kind: str, body: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = False
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections: set[Any] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and every session."""
        self._http.shutdown()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        self._http.server_close()

    def session(self, handler: BaseHTTPRequestHandler) -> None:
        """A WebSocket, until it ends."""
        key = handler.headers["Sec-WebSocket-Key"]
        accept = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()  # noqa: S324
        handler.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            handler.send_header(name, value)
        handler.send_header("Sec-WebSocket-Accept", accept)
        handler.end_headers()
        handler.close_connection = True
        with self._lock:
            full = self.open >= self.room
            self.open += not full
            self.most_open = max(self.most_open, self.open)
        if full:
            receive(handler)
            send(handler, error("CAPACITY_REACHED", f"{self.room} of {self.room} sessions are in use"))
            return
        self._connections.add(handler.connection)
        try:
            game = self.make()
            while (text := receive(handler)) is not None:
                said = self._said(game, json.loads(text))
                if said is None or isinstance(said, bytes):
                    return
                send(handler, said)
        except OSError:
            pass
        finally:
            self._connections.discard(handler.connection)
            with self._lock:
                self.open -= 1

    def _said(self, game: Any, message: Data) -> str | bytes | None:
        instead = self.say(message)
        if instead is not None:
            return instead
        time.sleep(self.pause_s)
        kind, data = message["type"], message.get("data", {})
        if kind == "state":
            return json.dumps({"type": "state", "data": {"step_count": 0}})
        if kind == "close":
            return None
        if kind == "reset":
            self.resets.append(data)
            return json.dumps({"type": "observation", "data": game.reset(**data)})
        if set(data) - set(self.action["properties"]):
            errors = [{"loc": [sorted(data)[0]], "msg": "Extra inputs are not permitted"}]
            return json.dumps(
                {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no", "errors": errors}}
            )
        return json.dumps({"type": "observation", "data": game.step(**data)})


def error(code: str, message: str) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


def receive(handler: BaseHTTPRequestHandler) -> str | None:
    """The next text of a client; None when it says good-bye."""
    while True:
        head = handler.rfile.read(2)
        if len(head) < 2 or head[0] & 0x0F == 8:
            return None
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(handler.rfile.read(2 if size == 126 else 8), "big")
        assert head[1] & 0x80, "a client has to mask what it sends"
        mask, content = handler.rfile.read(4), handler.rfile.read(size)
        if head[0] & 0x0F == 1:
            return bytes(byte ^ mask[place % 4] for place, byte in enumerate(content)).decode()


def frame(content: bytes, kind: int = 1, *, last: bool = True) -> bytes:
    """A frame, as a server sends it."""
    size = len(content)
    head = bytes([kind | (0x80 if last else 0)])
    if size < 126:
        return head + bytes([size]) + content
    if size < 1 << 16:
        return head + bytes([126]) + struct.pack("!H", size) + content
    return head + bytes([127]) + struct.pack("!Q", size) + content


def send(handler: BaseHTTPRequestHandler, text: str) -> None:
    handler.wfile.write(frame(text.encode()))
    handler.wfile.flush()
