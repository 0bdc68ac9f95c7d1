"""A real HTTP service on loopback, of customers and orders: `orders.yaml` among the examples describes it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KEY = "s3cr3t/key+of=the test"
NAMES = ("Ada Wong", "Ben Ruiz", "Cleo Park", "Dario Falk", "Edith Ito", "Farid Nash")
ITEMS = ("kettle", "lamp", "desk", "chair", "blender", "jacket", "camera", "toaster")
CITIES = ("Oslo", "Cairo", "Lisbon")
CUSTOMERS = [
    {"id": f"C-{number}", "name": name, "city": CITIES[number % 3]} for number, name in enumerate(NAMES, 101)
]
ORDERS = [
    {
        "id": f"O-{number}",
        "item": item,
        "price": 7 * number % 90 + 3,
        "status": ("open", "paid", "shipped")[number % 3],
        "customer_id": f"C-{101 + number % 6}",
    }
    for number, item in enumerate(ITEMS * 3, 5001)
]
_PER_PAGE = 4

Answer = tuple[int, dict[str, str], bytes]


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    told = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return status, told, json.dumps(value).encode()


class Api:
    """The service: what it was sent, and what it answers."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, dict[str, str]]] = []
        """Method, path with query, headers."""
        self.bodies: list[bytes] = []
        self.special: dict[str, Callable[[], Answer]] = {}
        """What is answered to paths instead of what usually is."""
        self.most = 1_000_000
        """After so many requests it answers none."""
        self.at_once = self.most_at_once = 0
        self.address = ""

    def of(self, path: str) -> list[tuple[str, str, dict[str, str]]]:
        return [one for one in self.received if urlsplit(one[1]).path == path]

    @property
    def methods(self) -> set[str]:
        return {method for method, _, _ in self.received}

    def answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        parts = urlsplit(path)
        names, query = [unquote(one) for one in parts.path.split("/")[2:]], parse_qs(parts.query)
        if parts.path in self.special:
            return self.special[parts.path]()
        if headers.get("authorization") != f"Bearer {KEY}":
            return as_json({"error": {"code": 7, "message": "who are you?"}}, 401)
        match [method, *names]:
            case ["GET", "customers"]:
                return as_json(CUSTOMERS)
            case ["POST", "customers"]:
                return as_json({"id": f"C-{200 + len(self.of('/v1/customers'))}"}, 201)
            case ["DELETE", "customers", name]:
                return (204, {}, b"") if name in {one["id"] for one in CUSTOMERS} else _missing(name)
            case ["GET", "customers", name]:
                found = [one for one in CUSTOMERS if one["id"] == name]
                return as_json({**found[0], "seen": headers["authorization"]}) if found else _missing(name)
            case ["GET", "orders"]:
                page = int(query.get("page", ["1"])[0])
                fitting = [one for one in ORDERS if [one["status"]] == query.get("filter[status]")]
                return as_json({"orders": fitting[(page - 1) * _PER_PAGE : page * _PER_PAGE], "page": page})
            case ["GET", "orders", name]:
                found = [one for one in ORDERS if one["id"] == name]
                return as_json(found[0]) if found else _missing(name)
            case ["GET", "stock"]:
                if len(self.of("/v1/stock")) == 1:
                    return as_json({"detail": "slowly"}, 429, retry_after="1")
                return as_json({"kettles": 7 if headers.get("x-tenant") == "north" else 12})
            case ["GET", "failing"]:
                return as_json({"detail": [{"msg": f"no use for {headers['authorization']}"}]}, 500)
            case ["GET", "page"]:
                return 200, {"content-type": "text/html"}, b"<html><body>Welcome</body></html>"
            case _:
                return _missing(path)


def _missing(name: str) -> Answer:
    return as_json({"detail": f"there is no {name}"}, 404)


@contextlib.contextmanager
def served() -> Iterator[Api]:
    """The service, until the end."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            api.at_once += 1
            api.most_at_once = max(api.most_at_once, api.at_once)
            api.received.append((self.command, self.path, headers))
            api.bodies.append(self.rfile.read(int(headers.get("content-length", 0))))
            if len(api.received) > api.most:
                self.close_connection = True
            else:
                status, told, body = api.answer(self.command, self.path, headers)
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    for name, value in {"content-length": str(len(body)), **told}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
            api.at_once -= 1

        do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    api.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
