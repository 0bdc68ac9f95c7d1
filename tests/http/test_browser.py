"""A page in a real browser asks the servers: nothing that it asks for is done."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import AsyncGenerator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from genenv.http.server import HttpServer, Service

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no browser: install the Debian package chromium"),
]
PAGE = """<html><body><p id=out>not yet</p><img src="URL/picture"><script>
(async () => {
  const said = [];
  for (const [path, options] of [
    ["/simple", {method: "POST", mode: "no-cors", body: "{}"}],
    ["/typed", {method: "POST", body: "{}", headers: {"content-type": "application/json"}}],
    ["/read", {}]]) {
    try {
      said.push("answered " + (await fetch("URL" + path, options)).type);
    } catch (e) {
      said.push("refused");
    }
  }
  document.getElementById("out").textContent = "done: " + said.join(", ");
})();
</script></body></html>"""


class Noting(HttpServer):
    """Notes what reaches a route."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        super().__init__("127.0.0.1", 0)

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        async def note(request: Request) -> Response:
            self.reached.append(f"{request.method} {request.url.path}")
            return JSONResponse({})

        yield Service(Starlette(routes=[Route("/{path:path}", note, methods=["GET", "POST", "OPTIONS"])]))


def test_nothing_that_a_page_asks_for_reaches_a_route(tmp_path: Path) -> None:
    assert BROWSER is not None
    with Noting() as server:

        class Page(BaseHTTPRequestHandler):
            """The page of somebody else."""

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(PAGE.replace("URL", server.url).encode())

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
            threading.Thread(target=site.serve_forever, daemon=True).start()
            words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
            words += ["--virtual-time-budget=10000", "--dump-dom"]
            address = f"http://127.0.0.1:{site.server_address[1]}/"
            done = subprocess.run(
                [BROWSER, *words, address], capture_output=True, text=True, timeout=120, check=True
            )
            site.shutdown()
    assert "done: " in done.stdout
    assert server.reached == []
