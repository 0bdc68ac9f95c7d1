"""A server in this process: in the main thread for the command line, in its own for tests and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import uvicorn

from genenv.backends.settings import AUTOMATIC, BUILT_IN, PolicyConfig
from genenv.errors import DataError, UsageError
from genenv.runs.files import write_whole
from genenv.tinker_server.checkpoints import Shelf
from genenv.tinker_server.quirks import Quirks
from genenv.tinker_server.routes import application
from genenv.tinker_server.service import Service
from genenv.types import Json

if TYPE_CHECKING:
    from genenv.backends.local.served.base import ServedBase

KEY = "tml-local"
"""A key that clients may have; any will do."""
_ENGINE = "engine.json"
_GRACE_S = 2


def open_base(policy: PolicyConfig, out: Path) -> ServedBase:
    """Load the base, as it was last loaded for a folder: what the machine decides, down to the last digit.

    Raises:
        UsageError: it cannot be loaded or used here.
        DataError: the folder's note of that is damaged.
    """
    from genenv.backends.local.arithmetic import chosen
    from genenv.backends.local.served.base import ServedBase

    if policy.tuning != "lora":
        raise UsageError("this server trains adapters alone; leave policy.tuning at 'lora'")
    out.mkdir(parents=True, exist_ok=True)
    source, note = source_of(policy.model), out / _ENGINE
    kept = _kept(note, source)
    asked = policy.model_dump()
    known = {name: kept[name] for name, auto in AUTOMATIC.items() if name in kept and asked[name] == auto}
    base = ServedBase(policy.model, chosen(policy.model_copy(update=known)))
    settled = base.settled.model_dump(mode="json", include=set(AUTOMATIC))
    write_whole(note, json.dumps({"model": source, "decided": settled}, indent=2) + "\n")
    return base


def _kept(note: Path, source: str) -> dict[str, Json]:
    if not note.is_file():
        return {}
    try:
        found = cast("dict[str, Json]", json.loads(note.read_bytes()))
        return cast("dict[str, Json]", found["decided"]) if found["model"] == source else {}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{note} is damaged ({type(error).__name__}: {error}); delete it") from error


def source_of(model: str) -> str:
    """What a base is called in checkpoints: a folder from the root on."""
    path = Path(model).expanduser()
    return str(path.resolve()) if model not in BUILT_IN and path.is_dir() else model


class TinkerServer:
    """A server of one base; `with` runs it in a thread of its own, `run` in this one."""

    def __init__(  # noqa: PLR0913 - all of them are optional
        self,
        base: ServedBase,
        out: Path,
        *,
        name: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        quirks: Sequence[str] = (),
        forget_after_s: float = 600.0,
    ) -> None:
        """Bind an address; nothing is answered yet.

        Args:
            base: what is served; one server at a time.
            out: the folder of the checkpoints.
            name: what clients call the base; its own name where left out.
            host: the address.
            port: 0 takes a free one.
            quirks: manners of other servers, by name.
            forget_after_s: a client of which nothing is heard for so long loses its adapters.

        Raises:
            UsageError: there is no such quirk, or the address is not to be had.
        """
        source = source_of(base.model.source)
        served = name or base.model.source
        self._base, self._quirks, self._names = base, Quirks(quirks), (served, source)
        self._forget_after_s, self._shelf = forget_after_s, Shelf(out)
        self._socket = bound(host, port)
        self.name = served
        """What clients call the base."""
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        """What clients set TINKER_BASE_URL to."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until a signal or `stop` ends it; `ready` is called when clients may come."""
        asyncio.run(self._run(ready))

    def stop(self) -> None:
        """End `run`, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(ready.set,), name="tinker-http", daemon=True)
        self._thread.start()
        while not ready.wait(0.1):
            if not self._thread.is_alive():
                raise UsageError("the server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    async def _run(self, ready: Callable[[], None]) -> None:
        service = Service(self._base, self._shelf, self._names, self._quirks, self._forget_after_s)
        config = uvicorn.Config(
            application(service),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        working = asyncio.create_task(service.run())
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            while not (self._server.started or serving.done()):
                await asyncio.sleep(0.01)
            ready()
            await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            await serving
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            self._socket.close()
            await service.close()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UsageError: the address is not to be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{host}:{port} is not to be had: {why.lower()}; choose another --port or --host"
        ) from error
