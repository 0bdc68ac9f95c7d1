"""The HTTP routes of the Tinker protocol, and the server that runs them in this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from genenv.backends.settings import AUTOMATIC, BUILT_IN, PolicyConfig
from genenv.errors import DataError, GenenvError, UsageError
from genenv.files import locked, write_whole
from genenv.http import server as http_server
from genenv.http.guard import MIB, Access
from genenv.http.parsing import AnyBody, Parser, read
from genenv.servers.tinker import bodies
from genenv.servers.tinker.checkpoints import CheckpointStore
from genenv.servers.tinker.imitation import ServerImitation
from genenv.servers.tinker.replies import (
    NotHere,
    NotServed,
    SampledReply,
    TooMuch,
    TrainReply,
    as_proto,
)
from genenv.servers.tinker.service import Library, Service
from genenv.types import Json, JsonObject

if TYPE_CHECKING:
    from genenv.backends.local.served.models import ServedBase


log = logging.getLogger(__name__)

_PROTO, _JSON = "application/x-protobuf", "application/json"
_PATIENCE_S = 20.0
"""Seconds to wait for a result before the client is asked to retry; clients time out after 45."""
_MOST_BYTES = 2**20
"""The largest body of a request without training data."""
_BYTES_PER_TOKEN = 16
"""Bytes allowed per token of context, so that the body of the longest prompt fits."""
_KEY_HEADERS = ("x-api-key", "authorization")
_PAGE, _DIGITS = 20, 9

Endpoint = Callable[[Request, bytes], Awaitable[JsonObject | Response]]
"""(request, its body) -> what is sent back, as JSON with status 200 unless it is a response."""


class Routes:
    """The HTTP endpoints of the Tinker protocol; each calls the service."""

    def __init__(self, service: Service, parser: Parser) -> None:
        self._service, self._library, self._parser = service, Library(service), parser

    def routes(self) -> list[Route]:
        """Return all routes of the protocol."""
        service = self._service
        found = [
            self._route("GET", "healthz", lambda _: {"status": "ok"}),
            self._route("GET", "get_server_capabilities", lambda _: service.capabilities()),
            self._route("POST", "client/config", lambda _: {**_CONFIG}),
            self._route("POST", "client/dynamic_config", lambda _: {"refresh_interval_sec": 300}),
            self._route("POST", "telemetry", lambda _: {"status": "accepted"}),
            self._post("create_session", bodies.Body, service.create_session),
            self._post("session_heartbeat", bodies.HeartbeatBody, service.heartbeat),
            self._post("create_model", bodies.ModelBody, service.create_model),
            self._post("get_info", bodies.OfModelBody, service.get_info),
            self._post("unload_model", bodies.OfModelBody, service.unload_model),
            self._post("optim_step", bodies.StepBody, service.step),
            self._post("save_weights", bodies.SaveBody, service.save),
            self._post("save_weights_for_sampler", bodies.SaveBody, service.save_for_sampler),
            self._post("load_weights", bodies.LoadBody, service.load),
            self._post("create_sampling_session", bodies.SamplerBody, service.create_sampler),
            self._post("asample", bodies.SampleBody, service.sample, most=self._longest_prompt()),
            self._post("weights_info", bodies.PathBody, lambda b: self._library.weights_info(b.tinker_path)),
            self._full("POST", "forward_backward", self._learn),
            self._full("POST", "retrieve_future", self._retrieve),
        ]
        return found + self._looked_up()

    def _longest_prompt(self) -> int:
        return _MOST_BYTES + _BYTES_PER_TOKEN * self._service.base.context_tokens

    def _looked_up(self) -> list[Route]:
        library, one = self._library, "training_runs/{run}/checkpoints/{checkpoint:path}"

        async def delete(request: Request, _: bytes) -> Response:
            library.delete(**request.path_params)
            return Response(status_code=204)

        async def publish(request: Request, _: bytes) -> Response:
            library.publish(**request.path_params, public=request.method == "POST")
            return Response(status_code=204)

        async def keep(request: Request, sent: bytes) -> Response:
            life = await self._read(bodies.TtlBody, sent)
            library.keep_for(**request.path_params, seconds=life.ttl_seconds)
            return Response(status_code=204)

        async def archive(request: Request, _: bytes) -> Response:
            raise NotServed("this server serves no archives: a checkpoint is a folder below its --out")

        return [
            self._route("GET", "training_runs", lambda r: library.runs(*_page(r))),
            self._route("GET", "training_runs/{run}", lambda r: library.run(r.path_params["run"])),
            self._route("GET", "checkpoints", lambda r: library.all_checkpoints(*_page(r))),
            self._route(
                "GET", "training_runs/{run}/checkpoints", lambda r: library.checkpoints(r.path_params["run"])
            ),
            self._full("POST", f"{one}/publish", publish),
            self._full("DELETE", f"{one}/publish", publish),
            self._full("PUT", f"{one}/ttl", keep),
            self._full("GET", f"{one}/archive", archive),
            self._full("DELETE", one, delete),
            self._route("GET", "sessions", lambda r: library.sessions(*_page(r))),
            self._route("GET", "sessions/{name}", lambda r: library.session(r.path_params["name"])),
            self._route("GET", "samplers/{name}", lambda r: library.sampler(r.path_params["name"])),
        ]

    def _route(self, method: str, path: str, say: Callable[[Request], JsonObject]) -> Route:
        async def endpoint(request: Request, _: bytes) -> JsonObject:
            return say(request)

        return self._full(method, path, endpoint)

    def _post(
        self, path: str, body: type[AnyBody], do: Callable[[AnyBody], JsonObject], *, most: int = _MOST_BYTES
    ) -> Route:
        async def endpoint(_: Request, sent: bytes) -> JsonObject:
            return do(await self._read(body, sent, most))

        return self._full("POST", path, endpoint)

    async def _read(self, body: type[AnyBody], sent: bytes, most: int = _MOST_BYTES) -> AnyBody:
        """Parse a JSON body. Raises a UsageError if the body is malformed or too large."""
        if len(sent) > most:
            raise TooLarge(f"the body is larger than {most} bytes, which is too much for this request")
        return await self._parser(functools.partial(read, body), sent)

    async def _learn(self, request: Request, sent: bytes) -> JsonObject:
        if not _is_proto(request):
            raise NotProtobuf("training data come as protobuf (application/x-protobuf), as of tinker 0.25")
        if request.headers.get("content-encoding"):
            raise UsageError("the body is compressed, and client/config says that it must not be")
        return self._service.learn(await self._parser(bodies.parse_training, sent))

    async def _retrieve(self, _: Request, sent: bytes) -> JsonObject | Response:
        asked = await self._read(bodies.FetchBody, sent)
        reply = await self._service.futures.fetch(asked.request_id, _PATIENCE_S)
        if reply is None:
            again = {"type": "try_again", "request_id": asked.request_id, "queue_state": "active"}
            return self._json(json.dumps(again), 408)
        if not isinstance(reply, TrainReply | SampledReply):
            return reply.json
        return Response(await asyncio.to_thread(as_proto, reply), media_type=_PROTO)

    def _full(self, method: str, path: str, endpoint: Endpoint) -> Route:
        """Return a route that turns an endpoint's errors into a status and a sentence."""
        service, path = self._service, f"/api/v1/{path}"
        quirks = service.quirks

        async def answer(request: Request) -> Response:
            instead = quirks.replaced_response(path)
            if instead is not None:
                status, kind, body = instead
                return Response(body, status, media_type=kind)
            if path != "/api/v1/healthz" and not any(request.headers.get(name) for name in _KEY_HEADERS):
                return self._json(json.dumps({"detail": _NO_KEY}), 401)
            sent = await request.body()
            try:
                found = await endpoint(request, sent)
            except GenenvError as error:
                if method == "POST" and not isinstance(error, TooMuch):
                    await skip(service, self._parser, request.headers.get("content-type", ""), sent)
                return self._json(json.dumps({"detail": str(error)}), _status(error))
            return found if isinstance(found, Response) else self._json(json.dumps(found))

        return Route(path, answer, methods=[method])

    def _json(self, text: str, status: int = 200) -> Response:
        return Response(self._service.quirks.response_text(text), status, media_type=_JSON)


async def skip(service: Service, parser: Parser, content_type: str, sent: bytes) -> None:
    """Tell the service that a request was refused, so that later requests to its model do not wait.

    Args:
        service: the service.
        parser: the server's parser of bodies.
        content_type: the content type of the request.
        sent: its body; the first bytes suffice for training data, which begin with model and number.
    """
    with contextlib.suppress(UsageError):  # who it is for cannot be read either
        to = await parser(functools.partial(bodies.addressed, proto=_PROTO in content_type), sent)
        if to is not None:
            service.refused(to)


class TooLarge(UsageError):
    """Raised if a body is too large for its kind of request: status 413."""


class NotProtobuf(UsageError):
    """Raised if training data are not protobuf: status 415."""


_CONFIG: JsonObject = {
    "pjwt_auth_enabled": False,
    "credential_default_source": "api_key",
    "proto_compress_fwdbwd": False,
    "parallel_fwdbwd_chunks": True,
}
"""Flags of client/config; clients use their defaults for all other flags."""
_NO_KEY = "there is no API key; set TINKER_API_KEY to anything that begins with tml-, such as tml-local"


def application(service: Service, parser: Parser) -> Starlette:
    """Return the ASGI application with all routes and its error handler."""

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            why = f"this server has no {request.url.path}; docs/guides/tinker-server.md lists what is served"
        else:
            why = f"{request.method} {request.url.path} is not served so"
        return Response(json.dumps({"detail": why}), status, media_type=_JSON)

    return Starlette(routes=Routes(service, parser).routes(), exception_handlers={HTTPException: refused})


def _is_proto(request: Request) -> bool:
    return _PROTO in request.headers.get("content-type", "")


def _status(error: GenenvError) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)


_STATUS = {NotHere: 404, NotServed: 501, TooMuch: 429, TooLarge: 413, NotProtobuf: 415, DataError: 500}


def _page(request: Request) -> tuple[int, int]:
    """Return offset and limit from the query of a paged list."""
    found: list[int] = []
    for name, default in (("offset", 0), ("limit", _PAGE)):
        said: Json = request.query_params.get(name, str(default))
        if not str(said).isdecimal() or len(str(said)) > _DIGITS:
            raise UsageError(f"{name} is {str(said)[:100]!r}; it is a whole number, 0 or more")
        found.append(int(str(said)))
    return found[0], found[1]


PREFIX = "tml-"
"""The prefix without which clients do not accept a string as an API key."""
KEY = "tml-local"
"""A key for clients if the server has no key; the server then accepts any key."""
BODY_MIB = 64
"""The largest request body in MiB."""
_ENGINE, _LOCK = "engine.json", ".lock"


def open_base(policy: PolicyConfig, out: Path) -> ServedBase:
    """Load the base with the engine settings last chosen for a folder, so that results repeat exactly.

    Raises:
        UsageError: the base cannot be loaded or trained on this machine, or another server uses the folder.
        DataError: the folder's record of the settings is damaged.
    """
    from genenv.backends.local.model import resolve_settings
    from genenv.backends.local.served.models import ServedBase

    if policy.tuning != "lora":
        raise UsageError("this server trains adapters alone; leave policy.tuning at 'lora'")
    out.mkdir(parents=True, exist_ok=True)
    source, note = source_of(policy.model), out / _ENGINE
    with locked(out, out / _LOCK):
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
    """Return the name of a base in checkpoints: its hub name, or the absolute path of its folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if model not in BUILT_IN and path.is_dir() else model


class TinkerServer(http_server.HttpServer):
    """An HTTP server that serves one base over the Tinker protocol."""

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
        """Bind an address; requests are answered once the server runs.

        Args:
            base: the model to serve; one server at a time may use it.
            out: the folder of the checkpoints; one running server at a time may use it.
            name: the base's name for clients; defaults to the name it was loaded by.
            host: the address.
            port: the port; 0 takes a free one.
            access: the API key, allowed host names, and limits on requests.
            quirks: names of deviations of other servers to imitate.
            forget_after_s: seconds without a request after which a client loses its adapters.

        Raises:
            UsageError: there is no such deviation, or the address is not available.
        """
        source = source_of(base.model.source)
        served = name or base.model.source
        self._base, self._quirks, self._names = base, ServerImitation(quirks), (served, source)
        self._forget_after_s, self._out = forget_after_s, out
        self.name = served
        """The base's name for clients."""
        super().__init__(host, port, access)

    @contextlib.asynccontextmanager
    async def _service(self) -> AsyncGenerator[http_server.Service]:
        self._out.mkdir(parents=True, exist_ok=True)
        with locked(self._out, self._out / _LOCK):
            store = CheckpointStore(self._out)
            service = Service(self._base, store, self._names, self._quirks, self._forget_after_s)
            parser = Parser()
            try:
                unread = functools.partial(skip, service, parser)
                yield http_server.Service(application(service, parser), service.run(), unread)
            finally:
                parser.close()
                await service.close()
