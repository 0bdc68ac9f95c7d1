"""A real HTTP server on loopback that answers chat completions as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, dict[str, str]]
"""Status, body, headers."""


def said(text: Any, *, finish: Any = "stop", calls: Any = None, read: int = 10) -> Answer:
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": read, "completion_tokens": 5, "total_tokens": read + 5},
    }
    return 200, json.dumps(body), {}


def refused(message: str, status: int = 400) -> Answer:
    return status, json.dumps({"error": {"message": message, "type": "x"}}), {}


class Server:
    """A real HTTP server; a function answers each request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.drips = self.endless = False
        self.answer: Callable[[dict[str, Any]], Answer] = lambda body: said(
            "hello", read=20 if "tools" in body else 10
        )
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(body)
                server.times.append(time.monotonic())
                status, text, headers = server.answer(body)
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    for _ in range(40 if server.drips else 0):
                        self.wfile.write(b" ")
                        time.sleep(0.05)
                    for _ in range(2_000 if server.endless else 0):  # 2 GB: an end after all
                        self.wfile.write(b" " * 2**20)
                    self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
