"""`genenv tinker-server` as a server of this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from genenv.backends.settings import AUTOMATIC, BUILT_IN, PolicyConfig
from genenv.errors import DataError, UsageError
from genenv.files import write_whole
from genenv.http import http
from genenv.http.guard import MIB, Access
from genenv.http.parsing import Parser
from genenv.servers.tinker.checkpoints import Shelf
from genenv.servers.tinker.quirks import Quirks
from genenv.servers.tinker.routes import application
from genenv.servers.tinker.service import Service
from genenv.types import Json

if TYPE_CHECKING:
    from genenv.backends.local.served.models import ServedBase

PREFIX = "tml-"
"""What clients take for a key begins with it."""
KEY = "tml-local"
"""A key that clients may have where the server has none; any will do."""
BODY_MIB = 64
"""The largest body of a request."""
_ENGINE = "engine.json"


def open_base(policy: PolicyConfig, out: Path) -> ServedBase:
    """Load the base, as it was last loaded for a folder: what the machine decides, down to the last digit.

    Raises:
        UsageError: it cannot be loaded or used here.
        DataError: the folder's note of that is damaged.
    """
    from genenv.backends.local.model import resolve_settings
    from genenv.backends.local.served.models import ServedBase

    if policy.tuning != "lora":
        raise UsageError("this server trains adapters alone; leave policy.tuning at 'lora'")
    out.mkdir(parents=True, exist_ok=True)
    source, note = source_of(policy.model), out / _ENGINE
    kept = _kept(note, source)
    asked = policy.model_dump()
    known = {name: kept[name] for name, auto in AUTOMATIC.items() if name in kept and asked[name] == auto}
    base = ServedBase(policy.model, resolve_settings(policy.model_copy(update=known)))
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


class TinkerServer(http.HttpServer):
    """A server of one base."""

    types = ("application/json", "application/x-protobuf")
    keyless = ("/api/v1/healthz",)
    key_prefix = PREFIX

    def __init__(  # noqa: PLR0913 - all of them are optional
        self,
        base: ServedBase,
        out: Path,
        *,
        name: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        access: Access = Access(body_bytes=BODY_MIB * MIB),  # noqa: B008 - frozen
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
            access: who may use it, and how much of it.
            quirks: manners of other servers, by name.
            forget_after_s: a client of which nothing is heard for so long loses its adapters.

        Raises:
            UsageError: there is no such quirk, or the address is not to be had.
        """
        source = source_of(base.model.source)
        served = name or base.model.source
        self._base, self._quirks, self._names = base, Quirks(quirks), (served, source)
        self._forget_after_s, self._shelf = forget_after_s, Shelf(out)
        self.name = served
        """What clients call the base."""
        super().__init__(host, port, access)

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[http.Service]:
        service = Service(self._base, self._shelf, self._names, self._quirks, self._forget_after_s)
        parser = Parser()
        try:
            yield http.Service(application(service, parser), service.run())
        finally:
            parser.close()
            await service.close()
