"""In vLLM's place: a real server of our own engine that takes vLLM's command line, and sleeps as vLLM does.

While it sleeps it refuses every request but those for its models, so a run that samples then would fail.
`EVENTS` names a file to which it writes its process and what it was asked.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import PolicyConfig
from genenv.http.guard import Access
from genenv.http.server import Service
from genenv.servers.vllm import SamplingServer

HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "compiled": False}
EVENTS = "STAND_IN_EVENTS"


def program(folder: Path, found: str | None = None) -> str:
    """Write a program `vllm` into a folder, and the interpreter beside it if vLLM says something of itself.

    Args:
        folder: the bin folder.
        found: version, device and whether it sleeps, as JSON; None: no interpreter.
    """
    begin = f'exec {sys.executable} {Path(__file__).resolve()} "$@"\n'
    probe = f"if [ \"$1\" = -c ]; then echo 'found {found}'; exit; fi\n"
    for name, text in {"vllm": begin, **({} if found is None else {"python": probe + begin})}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    return str(folder / "vllm")


def events(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Sleeping(SamplingServer):
    """Takes `/sleep` and `/wake_up`."""

    asleep = False

    def note(self, event: str) -> None:
        if EVENTS in os.environ:
            with Path(os.environ[EVENTS]).open("a") as file:
                file.write(f"{event}\n")

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[Service]:
        async with super()._service() as service:
            for path in ("/sleep", "/wake_up"):
                service.application.routes.append(Route(path, self._told, methods=["POST"]))
            service.application.add_middleware(Refusing, server=self)
            self.note(f"began {os.getpid()} {' '.join(sys.argv[1:])}")
            yield service

    async def _told(self, request: Any) -> JSONResponse:
        self.asleep = request.url.path == "/sleep"
        self.note(request.url.path)
        return JSONResponse({})


class Refusing:
    """Refuses what a sleeping engine cannot do."""

    def __init__(self, app: Any, server: Sleeping) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if self.server.asleep and path in ("/v1/load_lora_adapter", "/inference/v1/generate"):
            self.server.note(f"refused {path}")
            await JSONResponse({"detail": "asleep"}, 400)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def main() -> None:
    def of(name: str) -> str:
        return sys.argv[sys.argv.index(name) + 1]

    base = LoadedBase("tiny", PolicyConfig(model="tiny", packed_weights=False, **HERE))
    access = Access(key=os.environ["VLLM_API_KEY"])
    server = Sleeping(
        base, of("--served-model-name"), host=of("--host"), port=int(of("--port")), access=access
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.run(lambda: None)


if __name__ == "__main__":
    main()
