"""What is sent to a service, and what is taken from it: headers, redirects, bounds, waiting."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from genenv.errors import UsageError
from genenv.tools.worlds.openapi import http_client
from genenv.tools.worlds.openapi.document import FORM, Document, operations
from genenv.tools.worlds.openapi.http_client import Headers, HttpClient, Request, UnusableAnswer, outcome_of
from genenv.tools.worlds.openapi.service import Requests, reads
from genenv.tools.worlds.recorded import Ended, NoAnswer
from orders_api import KEY, Answer, Api, as_json, served

HEADER = "Authorization: Bearer $TOKEN"


@pytest.fixture
def api() -> Iterator[Api]:
    with served() as one:
        yield one


@pytest.fixture
def waited() -> list[float]:
    return []


@pytest.fixture
def asker(api: Api, waited: list[float]) -> Iterator[HttpClient]:
    async def wait(seconds: float) -> None:
        waited.append(seconds)

    one = HttpClient(api.address, Headers([HEADER], {"TOKEN": KEY}), 20, wait)
    yield one
    one.close()


def get(target: str) -> Request:
    return Request(method="GET", target=target, headers={})


def moved(to: str, status: int = 302) -> Callable[[], Answer]:
    return lambda: (status, {"location": to}, b"")


def test_a_service_of_this_machine_is_asked_without_the_proxy_of_the_environment(
    api: Api, asker: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert json.loads(asker.ask(get("/customers/C-101")).body)["name"] == "Ada Wong"


def test_redirects_are_followed_to_the_same_host_alone(api: Api, asker: HttpClient) -> None:
    api.special["/v1/a"] = moved("/v1/customers/C-101")
    assert json.loads(asker.ask(get("/a")).body)["name"] == "Ada Wong"
    with served() as other:
        api.special["/v1/b"] = moved(f"{other.address}/customers")
        with pytest.raises(UnusableAnswer, match=f"sends this call to {other.address[:-3]}, and only"):
            asker.ask(get("/b"))
        assert other.received == []
    for to in ("http://me:pass@127.0.0.1/", "ftp://127.0.0.1/", "//evil.example/", "file:///etc/passwd"):
        api.special["/v1/c"] = moved(to)
        with pytest.raises(UnusableAnswer, match=r"sends this call to [a-z:/.0-9]+, and only") as error:
            asker.ask(get("/c"))
        assert "pass@" not in str(error.value)
    api.special["/v1/d"] = moved("/v1/d")
    with pytest.raises(UnusableAnswer, match="in circles"):
        asker.ask(get("/d"))


def test_what_may_write_is_not_sent_elsewhere(api: Api, asker: HttpClient) -> None:
    api.special["/v1/a"] = moved("/v1/customers", 307)
    with pytest.raises(UnusableAnswer, match="what may write is not sent twice"):
        asker.ask(Request(method="POST", target="/a", headers={}, body=b"{}"))
    assert [path for _, path, _ in api.received] == ["/v1/a"]
    api.most = 0
    with pytest.raises(NoAnswer, match="the connection breaks"):
        asker.ask(Request(method="POST", target="/a", headers={}, body=b"{}"))
    assert len(api.received) == 2


def test_answers_have_bounds(api: Api, asker: HttpClient) -> None:
    api.special["/v1/long"] = lambda: as_json("x" * (1 << 20))
    with pytest.raises(UnusableAnswer, match="more than 1 MiB"):
        asker.ask(get("/long"))
    packed = gzip.compress(b"0" * (8 << 20))
    api.special["/v1/packed"] = lambda: (200, {"content-encoding": "gzip"}, packed)
    with pytest.raises(UnusableAnswer, match="packed its answer, which it was asked not to"):
        asker.ask(get("/packed"))
    assert api.received[-1][2]["accept-encoding"] == "identity"


def test_a_call_takes_no_longer_than_it_may(
    api: Api, asker: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "CALL_S", 0.3)
    api.special["/v1/slow"] = lambda: (200, {"content-length": "5"}, b"1")
    with pytest.raises(NoAnswer, match=r"it takes longer than 0\.3 s"):
        asker.ask(get("/slow"))


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("3", 3.0), ("", 1.0), ("soon", 1.0), ("-5", 1.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)
def test_who_is_busy_is_waited_for(
    api: Api, asker: HttpClient, waited: list[float], told: str, seconds: float
) -> None:
    answers = iter([as_json({}, 429, retry_after=told), as_json(7)])
    api.special["/v1/a"] = lambda: next(answers)
    assert asker.ask(get("/a")).body == b"7"
    assert waited == [seconds]


def test_a_write_that_a_busy_service_may_have_done_is_not_sent_again(
    api: Api, asker: HttpClient, waited: list[float]
) -> None:
    sent: list[int] = []

    def busy() -> Answer:
        sent.append(1)
        return as_json({}, 503)

    api.special["/v1/a"] = busy
    with pytest.raises(NoAnswer, match=r"it is too busy \(503 Service Unavailable\)"):
        asker.ask(replace(get("/a"), method="POST", body=b"{}"))
    assert (len(sent), waited) == (1, [])


def test_waiting_has_bounds(api: Api, asker: HttpClient, waited: list[float]) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for told, said in (("121", "121 s"), (later, r"3[56]\d\d s"), ("999999999", "999999999 s")):
        api.special["/v1/a"] = lambda told=told: as_json({}, 503, retry_after=told)
        with pytest.raises(Ended, match=f"it wants to be left alone for {said}"):
            asker.ask(get("/a"))
    assert waited == []
    api.special["/v1/a"] = lambda: as_json({}, 429, retry_after="100")
    with pytest.raises(NoAnswer, match=r"it is too busy \(429 Too Many Requests\)"):
        asker.ask(get("/a"))
    assert waited == [100.0] * 3


@pytest.mark.long
def test_no_more_requests_are_sent_than_are_allowed(api: Api, asker: HttpClient) -> None:
    api.special["/v1/a"] = moved("/v1/stock")  # which is busy at first
    asker.ask(get("/a"))
    assert asker.sent == len(api.received) == 4
    for _ in range(16):
        asker.ask(get("/customers"))
    with pytest.raises(Ended, match="20 requests were sent, as many as are allowed"):
        asker.ask(get("/customers"))


def said(status: int, body: bytes, kind: str = "application/json") -> str:
    return outcome_of(
        http_client.Reply(status=status, kind=kind, body=body), Headers([HEADER], {"TOKEN": KEY})
    ).text


def test_what_is_told_of_an_answer() -> None:
    assert said(200, b'{"a": [1, null]}') == '{"a":[1,null]}'
    assert said(204, b"") == "null"
    assert said(200, b"NaN") == '{"error":"The service answers nan, which is no JSON."}'
    assert said(200, b"{") == '{"error":"The service answers application/json that is no JSON."}'
    assert said(200, b"\xff\xfe\x00", "") == '{"error":"The service answers something that is no JSON."}'
    assert "something that is too deeply nested" in said(200, b"[" * 100 + b"]" * 100)
    assert "no JSON" in said(200, b"[" * 100_000)
    assert said(200, json.dumps("x" * 70_000).encode()) == (
        '{"error":"The result is longer than 64000 characters."}'
    )
    assert said(404, b"<html>", "text/html") == '{"error":"The service answers 404 Not Found."}'
    assert said(422, b'{"errors": [{"detail": "no\\n  such id"}]}') == (
        '{"error":"The service answers 422 Unprocessable Entity: no such id"}'
    )
    assert said(599, b"{}") == '{"error":"The service answers 599."}'
    assert said(200, json.dumps({f"a {KEY}": f"Bearer {KEY}"}).encode()) == '{"a ***":"***"}'
    assert said(200, b'"\\ud800"') in ('"\ufffd"', '"?"')


def test_of_basic_what_is_packed_is_masked_too() -> None:
    packed = base64.b64encode(b"ada:correct horse").decode()
    headers = Headers(["Authorization: Basic ${BASIC}", "X-Tenant: north"], {"BASIC": packed})
    assert headers.sent == {"Authorization": f"Basic {packed}", "X-Tenant": "north"}
    assert headers.safe(f"hello ada:correct horse, {packed}, correct horse, north") == (
        "hello ***, ***, ***, north"
    )


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("Authorization", "'Authorization' is not NAME: VALUE"),
        ("A b: c", "'A b' is not NAME: VALUE"),
        ("X-A: ", "'X-A' is not NAME: VALUE"),
        ("X-A: a\nb", "'X-A' is not NAME: VALUE"),
        ("Host: evil.example", "--header Host cannot be given"),
        (
            "Authorization: Bearer abcdefgh",
            r"--header Authorization holds a secret in writing.*single quotes",
        ),
        ("X-Api-Key: abcdefgh", "--header X-Api-Key holds a secret in writing"),
        ("Cookie: a=b", "--header Cookie holds a secret in writing"),
        ("X-Api-Key: $NONE", "names the environment variable NONE, which is not set"),
        ("X-Api-Key: $EMPTY", "names the environment variable EMPTY, which is not set"),
        ("X-Api-Key: $SHORT", "SHORT holds is too short to be kept out of what is recorded"),
        ("X-Api-Key: $LINES", "LINES holds cannot be in a header"),
    ],
)
def test_a_header_that_is_none_is_one_sentence(typed: str, sentence: str) -> None:
    environment = {"EMPTY": " ", "SHORT": "abc", "LINES": "abc\r\nHost: evil"}
    with pytest.raises(UsageError, match=sentence) as error:
        Headers([typed], environment)
    assert "abcdefgh" not in str(error.value)


def requests_of(operation: dict[str, Any], path: str = "/things/{id}", method: str = "get") -> Requests:
    text = json.dumps({"openapi": "3.1.0", "paths": {path: {method: {"responses": {}, **operation}}}})
    return Requests(next(iter(operations(Document(text, "it.json")))))


def query(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": more.pop("type", "array")}, **more}


@pytest.mark.parametrize(
    ("parameter", "value", "written"),
    [
        (query("a"), ["x y", "z&"], "a=x%20y&a=z%26"),
        (query("a", explode=False), ["x", "y"], "a=x%2Cy"),
        (query("a", style="pipeDelimited", explode=False), ["x", "y"], "a=x%7Cy"),
        (query("a", style="spaceDelimited"), [1, 2], "a=1%202"),
        (query("a", type="object", style="deepObject", required=True), {"b": 1}, "a%5Bb%5D=1"),
        (query("a", type="object", required=True), {"b": True, "c": "d"}, "b=true&c=d"),
        (query("a", type="object", explode=False, required=True), {"b": 1}, "a=b%2C1"),
        (query("a", type="boolean"), True, "a=true"),
        (query("a", type="number"), 1.5, "a=1.5"),
        ({"name": "a", "in": "query", "content": {"application/json": {}}}, "é", "a=%22%C3%A9%22"),
    ],
)
def test_values_are_written_as_the_document_says(parameter: dict, value: Any, written: str) -> None:
    made = requests_of({"parameters": [parameter]}, "/things")
    assert made.of({"a": value}).target == f"/things?{written}"


def test_values_in_a_path_stay_in_their_place() -> None:
    made = requests_of({})
    assert made.of({"id": "a/../b?c#d é"}).target == "/things/a%2F..%2Fb%3Fc%23d%20%C3%A9"
    for value in ("..", ".", ""):
        with pytest.raises(UnusableAnswer, match=r"must not be"):
            made.of({"id": value})
    assert requests_of({}, "//evil.example/x").of({}).target == "/evil.example/x"
    assert requests_of({}, "@evil.example/x").problem == "its path does not begin with /"
    with pytest.raises(UnusableAnswer):
        requests_of({}, "/../x").of({})


def test_arguments_have_the_names_of_the_document_without_odd_signs() -> None:
    names = ("filter[status]", "$top", "from", "X-Tenant", "x_tenant", "2nd", "??")
    parameters = [query(name, type="string", required=True) for name in names]
    made = requests_of({"parameters": parameters}, "/things")
    assert list(made.tool.properties) == [
        *("filter_status", "top", "from", "X-Tenant", "x_tenant", "2nd", "value"),
    ]
    assert made.of({"from": "a", "top": "2"}).target == "/things?%24top=2&from=a"


def test_of_what_can_be_left_out_some_is_kept() -> None:
    parameters = [
        *(query(f"p{number}", type="string") for number in range(12)),
        {"name": "If-Match", "in": "header", "schema": {"type": "string"}},
        {"name": "Accept", "in": "header", "required": True, "schema": {"type": "string"}},
        {"name": "X-Unit", "in": "header", "required": True, "schema": {"type": "string", "enum": ["m"]}},
    ]
    made = requests_of({"parameters": parameters}, "/things")
    assert list(made.tool.properties) == [*(f"p{number}" for number in range(8)), "X-Unit"]
    assert made.of({"X-Unit": "m"}).headers == {"X-Unit": "m"}
    with pytest.raises(UnusableAnswer, match="X-Unit has to be plain characters"):
        made.of({"X-Unit": "m\r\nHost: evil"})
    cookie = {"name": "session", "in": "cookie", "required": True, "schema": {"type": "string"}}
    assert requests_of({"parameters": [cookie]}).problem == "it needs the cookie session, and none is sent"


@pytest.mark.parametrize("place", ["", "body", "Query", ["query"], None])
def test_a_parameter_in_no_known_place_is_no_argument(place: Any) -> None:
    lost = {"name": "a", "in": place, "required": True, "schema": {"type": "string"}}
    made = requests_of({"parameters": [lost, query("b", type="string")]}, "/things", "post")
    assert list(made.tool.properties) == ["b"]
    sent = made.of({"b": "x"})
    assert (sent.target, sent.body, sent.headers) == ("/things?b=x", None, {})


def test_no_field_of_a_form_is_no_body() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    made = requests_of({"requestBody": {"content": {FORM: {"schema": schema}}}}, "/things", "post")
    assert made.of({}).body is None


def test_bodies_are_json_or_a_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    for kind, body in (("application/json", b'{"a": "x y"}'), (FORM, b"a=x+y")):
        made = requests_of({"requestBody": {"content": {kind: {"schema": schema}}}}, "/things", "post")
        sent = made.of({"a": "x y"})
        assert (sent.method, sent.body, sent.headers) == ("POST", body, {"content-type": kind})
        assert made.tool.required == {"a"}
        assert made.tool.writes
    assert requests_of({}, "/things", "delete").of({}).body is None


@pytest.mark.parametrize(
    ("path", "name", "only_reads"),
    [
        ("/orders/{id}", "getOrder", True),
        ("/orders/{id}/cancel", "x", False),
        ("/user/logout", "x", False),
        ("/a", "deleteAll", False),
        ("/updates", "listUpdates", True),
        ("/orders/cancel/{id}", "x", False),
        ("/orders/{id}/cancel/now", "x", False),
        ("/accounts/{id}/deactivate", "x", False),
        ("/service/stop", "x", False),
        ("/jobs/{id}/run", "x", False),
        ("/session/sign-out", "x", False),
        ("/a", "orderCancel", False),
        ("/a", "doDelete", False),
        ("/runs/{id}", "getRunStatus", True),
        ("/orders/{id}/status", "orderStatus", True),
        ("/", "", True),
    ],
)
def test_what_goes_by_the_name_of_a_change_is_no_reading(path: str, name: str, only_reads: bool) -> None:
    text = json.dumps({"openapi": "3.1.0", "paths": {path: {"get": {"operationId": name}}}})
    (one,) = operations(Document(text, "it.json"))
    assert reads(one) is only_reads
    assert requests_of({"operationId": name}, path).tool.writes is not only_reads
