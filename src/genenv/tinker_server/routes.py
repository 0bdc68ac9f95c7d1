"""HTTP: the routes of the protocol, each a line of `ROUTES`; every refusal is a sentence in `detail`."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from genenv.errors import DataError, GenenvError, UsageError
from genenv.tinker_server import bodies, data
from genenv.tinker_server.library import Library
from genenv.tinker_server.refusals import NotHere, NotServed
from genenv.tinker_server.replies import as_json, as_proto
from genenv.tinker_server.service import Service
from genenv.types import Json, JsonObject

log = logging.getLogger(__name__)

_PROTO, _JSON = "application/x-protobuf", "application/json"
_PATIENCE_S = 20.0
"""An answer is waited for so long, then the client asks again; it gives up after 45."""
_MOST_BYTES = 256 * 2**20
"""Of a body."""
_KEY_HEADERS = ("x-api-key", "authorization")
_PAGE = 20

NOT_SERVED: Mapping[str, str] = {
    "audit": "an audit log",
    "billing": "billing",
    "auth": "an exchange of keys for tokens",
}
"""Parts of the protocol that make no sense on one machine, by the first piece of their paths."""


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: JsonObject | bytes | None


Endpoint = Callable[[Request, bytes], Awaitable[Answer]]


class Routes:
    """The endpoints of a service."""

    def __init__(self, service: Service) -> None:
        self._service, self._library = service, Library(service)

    def routes(self) -> list[Route]:
        """All of them."""
        service = self._service
        found = [
            self._route("GET", "healthz", lambda _: {"status": "ok"}),
            self._route("GET", "get_server_capabilities", lambda _: service.capabilities()),
            self._route("POST", "client/config", lambda _: {**_CONFIG}),
            self._route("POST", "client/dynamic_config", lambda _: {"refresh_interval_sec": 300}),
            self._route("POST", "telemetry", lambda _: {"status": "accepted"}),
            self._post("create_session", bodies.SessionBody, service.create_session),
            self._post("session_heartbeat", bodies.BeatBody, service.heartbeat),
            self._post("create_model", bodies.ModelBody, service.create_model),
            self._post("get_info", bodies.OfModelBody, service.get_info),
            self._post("unload_model", bodies.OfModelBody, service.unload_model),
            self._post("optim_step", bodies.StepBody, service.step),
            self._post("save_weights", bodies.SaveBody, service.save),
            self._post("save_weights_for_sampler", bodies.SaveBody, service.save_for_sampler),
            self._post("load_weights", bodies.LoadBody, service.load),
            self._post("create_sampling_session", bodies.SamplerBody, service.create_sampler),
            self._post("asample", bodies.SampleBody, service.sample),
            self._post("weights_info", bodies.PathBody, lambda b: self._library.weights_info(b.tinker_path)),
            *(self._full("POST", name, self._learn(name)) for name in ("forward", "forward_backward")),
            self._full("POST", "retrieve_future", self._retrieve),
        ]
        return found + self._looked_up()

    def _looked_up(self) -> list[Route]:
        library, one = self._library, "training_runs/{run}/checkpoints/{checkpoint:path}"

        async def delete(request: Request, _: bytes) -> Answer:
            library.delete(**request.path_params)
            return Answer(204, None)

        async def publish(request: Request, _: bytes) -> Answer:
            library.publish(**request.path_params, public=request.method == "POST")
            return Answer(204, None)

        async def keep(request: Request, sent: bytes) -> Answer:
            library.keep_for(**request.path_params, seconds=bodies.read(bodies.LifeBody, sent).ttl_seconds)
            return Answer(204, None)

        async def archive(request: Request, _: bytes) -> Answer:
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
        async def endpoint(request: Request, _: bytes) -> Answer:
            return Answer(200, say(request))

        return self._full(method, path, endpoint)

    def _post(
        self, path: str, body: type[bodies.AnyBody], do: Callable[[bodies.AnyBody], JsonObject]
    ) -> Route:
        async def endpoint(_: Request, sent: bytes) -> Answer:
            return Answer(200, do(bodies.read(body, sent)))

        return self._full("POST", path, endpoint)

    def _learn(self, name: str) -> Endpoint:
        async def endpoint(request: Request, sent: bytes) -> Answer:
            if _is_proto(request):
                if request.headers.get("content-encoding"):
                    raise UsageError("the body is compressed, and client/config says that it must not be")
                learn = data.learn_of_proto(sent)
            else:
                learn = data.learn_of_json(sent, forward_only=name == "forward")
            return Answer(200, self._service.learn(learn))

        return endpoint

    async def _retrieve(self, request: Request, sent: bytes) -> Answer:
        asked = bodies.read(bodies.FetchBody, sent)
        reply = await self._service.futures.fetch(asked.request_id, _PATIENCE_S)
        if reply is None:
            again = {"type": "try_again", "request_id": asked.request_id, "queue_state": "active"}
            return Answer(408, {**again})
        packed = as_proto(reply) if _PROTO in request.headers.get("accept", "") else None
        return Answer(200, as_json(reply) if packed is None else packed)

    def _full(self, method: str, path: str, endpoint: Endpoint) -> Route:
        """A route; what its endpoint refuses is answered with a sentence."""
        quirks, path = self._service.quirks, f"/api/v1/{path}"

        async def answer(request: Request) -> Response:
            instead = quirks.instead(path)
            if instead is not None:
                return Response(instead.body, instead.status, media_type=instead.media_type)
            if path != "/api/v1/healthz" and not any(request.headers.get(name) for name in _KEY_HEADERS):
                return self._sent(Answer(401, {"detail": _NO_KEY}))
            try:
                sent = await _body(request)
            except ClientDisconnect:
                return Response(status_code=400)
            try:
                found = await endpoint(request, sent)
            except GenenvError as error:
                to = data.addressed(sent, proto=_is_proto(request)) if method == "POST" else None
                if to is not None:
                    self._service.refused(to)
                found = Answer(_status(error), {"detail": str(error)})
            return self._sent(found)

        return Route(path, answer, methods=[method])

    def _sent(self, found: Answer) -> Response:
        if found.body is None:
            return Response(status_code=found.status)
        if isinstance(found.body, bytes):
            return Response(found.body, found.status, media_type=_PROTO)
        return Response(self._service.quirks.said(json.dumps(found.body)), found.status, media_type=_JSON)


_CONFIG: JsonObject = {
    "pjwt_auth_enabled": False,
    "credential_default_source": "api_key",
    "proto_compress_fwdbwd": False,
    "parallel_fwdbwd_chunks": True,
}
"""Flags for clients; those left out are as they have them."""
_NO_KEY = "there is no API key; set TINKER_API_KEY to anything that begins with tml-, such as tml-local"


def application(service: Service) -> Starlette:
    """The server's application."""

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        piece = request.url.path.removeprefix("/api/v1/").partition("/")[0]
        if status == 404 and piece in NOT_SERVED:
            status, why = 501, f"this server has no {piece}: {NOT_SERVED[piece]} is nothing for one machine"
        elif status == 404:
            why = f"this server has no {request.url.path}; docs/tinker-server.md lists what is served"
        elif status == 413:
            why = f"the body is larger than {_MOST_BYTES // 2**20} MiB; send fewer data at a time"
        else:
            why = f"{request.method} {request.url.path} is not served so"
        return Response(json.dumps({"detail": why}), status, media_type=_JSON)

    return Starlette(routes=Routes(service).routes(), exception_handlers={HTTPException: refused})


async def _body(request: Request) -> bytes:
    size = 0
    parts: list[bytes] = []
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BYTES:
            raise HTTPException(413)
        parts.append(part)
    return b"".join(parts)


def _is_proto(request: Request) -> bool:
    return _PROTO in request.headers.get("content-type", "")


def _status(error: GenenvError) -> int:
    if isinstance(error, NotHere):
        return 404
    if isinstance(error, NotServed):
        return 501
    return 500 if isinstance(error, DataError) else 400


def _page(request: Request) -> tuple[int, int]:
    """Offset and limit of a list that is looked at."""
    found: list[int] = []
    for name, default in (("offset", 0), ("limit", _PAGE)):
        said: Json = request.query_params.get(name, str(default))
        if not str(said).isdecimal():
            raise UsageError(f"{name} is {said!r}; it is a whole number, 0 or more")
        found.append(int(str(said)))
    return found[0], found[1]
