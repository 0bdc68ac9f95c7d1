"""An OpenAPI document's service: asked over HTTP when the bundle is made, replayed ever after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from bundles import EXAMPLES, call
from genenv.errors import UsageError
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.generate.make_bundle import Made, Wanted, make
from genenv.tools.worlds.limits import Budget, Limits
from genenv.tools.worlds.openapi.document import FORM, Document, operations
from genenv.tools.worlds.openapi.service import Requests, Service, ServiceOrigin
from genenv.tools.worlds.origins import origin_of
from genenv.tools.worlds.recorded import Recording
from orders_api import KEY, Answer, Api, as_json, served

ORDERS = EXAMPLES / "orders.yaml"
HEADER = "Authorization: Bearer $ORDERS_TOKEN"
_REPLAY = """
import sys
from pathlib import Path
from genenv.tools.environment import Tools
from genenv.tools.worlds.base import Call
from genenv.gate.gate import base_tasks, examined
environment = Tools(folder=Path(sys.argv[1]))
import random
tasks = base_tasks(environment, environment.seeds(), seed=0)
assert all(environment.check(task, task.oracle).success for task in tasks.values())
assert all(examined(environment, task, random.Random(0)) is None for task in environment.held_out())
one, other = environment.world.play([
    Call(tool="get_customer", args={"customerId": "C-101"}),
    Call(tool="get_customer", args={"customerId": "C-1"}),
]).outcomes
print(len(tasks), one.text, other.text, sep="|")
"""


@dataclass
class Waits:
    """What a service had itself waited for, without the waiting."""

    seconds: list[float]

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits([])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_TOKEN", KEY)


@pytest.fixture
def api() -> Iterator[Api]:
    with served() as one:
        yield one


@dataclass(frozen=True)
class Reading:
    """A bundle, and the service that was asked for it and is gone."""

    folder: Path
    made: Made
    api: Api
    waited: list[float]


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    folder = tmp_path_factory.mktemp("made") / "orders"
    waits = Waits([])
    with served() as api, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERS_TOKEN", KEY)
        origin = ServiceOrigin(str(ORDERS), Service(address=api.address, headers=(HEADER,)), wait=waits)
        made = make(folder, Wanted(origin=origin, base=40, held_out=10), examined, Silent())
    return Reading(folder, made, api, waits.seconds)


def asking(api: Api, waits: Waits, *only: str, most: int = 2000, writes: bool = False) -> ServiceOrigin:
    service = Service(address=api.address, headers=(HEADER,))
    return ServiceOrigin(str(ORDERS), service, only, writes=writes, most=most, wait=waits)


def test_what_reads_is_asked_one_after_the_other_and_nothing_else_is_sent(reading: Reading) -> None:
    api = reading.api
    assert api.methods == {"GET"}
    assert api.most_at_once == 1
    assert len({path for _, path, _ in api.received}) >= 25
    assert (
        len(api.received) == len({(path, headers.get("x-tenant")) for _, path, headers in api.received}) + 1
    )
    assert all("cookie" not in headers for _, _, headers in api.received)
    assert not api.of("/v1/keys") + api.of("/v1/picture") + api.of("/v1/customers/C-101/subscribe")
    asked = {path for _, path, _ in api.of("/v1/orders")}
    assert "/v1/orders?filter%5Bstatus%5D=open" in asked
    assert "/v1/orders?filter%5Bstatus%5D=paid&page=2" in asked


def test_a_service_that_is_busy_is_waited_for_as_long_as_it_says(reading: Reading) -> None:
    assert reading.waited == [1.0]
    assert len(reading.api.of("/v1/stock")) == 3  # one of them too early


def test_values_and_chains_come_from_what_was_answered(reading: Reading) -> None:
    bundle = Bundle.open(reading.folder)
    assert list(bundle.graph.recipes) == [
        "list_customers",
        "get_customer",
        "search_orders",
        "get_order",
        "get_stock",
    ]
    assert dict(bundle.graph.recipes["get_order"].ways) == {"id": "search_orders().orders.id"}
    assert dict(bundle.graph.recipes["search_orders"].ways) == {"filter_status": "new", "page": "new"}
    assert ("get_order", "get_customer") in {(link.reader, link.user) for link in bundle.graph.links}
    assert (len(bundle.base), len(bundle.held_out)) == (40, 10)
    assert any(program.chained for program in bundle.base.values())


def test_what_is_no_tool_is_said_with_its_reason(reading: Reading) -> None:
    told = (reading.folder / "README.md").read_text()
    for line in (
        "`add_customer` is no tool: POST /customers may write, and --allow-writes was not given",
        "`get_subscribe` is no tool: GET /customers/{customerId}/subscribe goes by a name of what changes",
        "`get_picture` is no tool: it answers image/png, and no JSON",
        "`get_keys` is no tool: it needs the key X-Api-Key; give it with --header 'X-Api-Key: $VARIABLE'",
        "`get_page` never succeeded, and is in no task: The service answers text/html that is no JSON.",
        "`get_failing` never succeeded, and is in no task: The service answers 500 Internal Server Error: no",
    ):
        assert f"- {line}" in told


@pytest.mark.long
def test_without_the_service_and_the_key_tasks_pass_the_gate(reading: Reading) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORDERS_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, str(reading.folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().split("|") == [
        "40",
        '{"id":"C-101","name":"Ada Wong","city":"Lisbon","seen":"***"}',
        '{"error":"This call was not recorded when the bundle was made, and the service is not asked now."}',
    ]


def test_the_key_is_in_no_file_and_its_variable_is(reading: Reading) -> None:
    files = [one for one in reading.folder.rglob("*") if one.is_file()]
    assert len(files) >= 8
    for file in files:
        text = file.read_text()
        assert all(part not in text for part in (KEY, KEY.replace("/", r"\/"), "s3cr3t")), file
    assert f'headers = ["{HEADER}"]' in (reading.folder / "bundle.toml").read_text()
    assert all(KEY in headers["authorization"] for _, _, headers in reading.api.received)


@pytest.mark.long
def test_with_leave_each_call_that_writes_is_sent_once_and_nothing_is_read_after(
    api: Api, waits: Waits, tmp_path: Path
) -> None:
    source = asking(api, waits, "/customers", writes=True).bring(tmp_path / "files")
    sent = [(method, path) for method, path, _ in api.received]
    first = next(number for number, (method, _) in enumerate(sent) if method != "GET")
    assert {method for method, _ in sent[first:]} == {"POST", "DELETE", "GET"}
    assert {path.rpartition("/")[2] for method, path in sent[first:] if method == "GET"} == {"subscribe"}
    written = [(*one, body) for one, body in zip(sent, api.bodies, strict=True) if one[0] != "GET"]
    assert 4 <= len(written) == len(set(written)) <= 200
    posted = [body for method, _, body in written if method == "POST"]
    assert all(body.startswith(b'{"id": ') for body in posted)
    world = source.open(tmp_path / "files")
    gone = call("remove_customer", customerId="C-101")
    assert world.play([gone]).outcomes[0].changed
    assert world.play([gone, call("list_customers")]).outcomes[1].error is not None


@pytest.mark.long
def test_a_service_that_dies_in_the_middle_leaves_what_was_recorded(
    api: Api, waits: Waits, tmp_path: Path
) -> None:
    api.most = 40
    wanted = Wanted(origin=asking(api, waits), base=10, held_out=2)
    made = make(tmp_path / "orders", wanted, examined, Silent())
    assert made.base == 10
    assert "- Not all was recorded: it did not answer 6 calls in a row: the connection breaks (" in (
        (tmp_path / "orders" / "README.md").read_text()
    )
    assert len(api.received) == 40 + 6 * 2  # each is tried once more


@pytest.mark.long
def test_an_operation_that_is_never_answered_costs_no_other_one(
    api: Api, waits: Waits, tmp_path: Path
) -> None:
    api.special["/v1/stock"] = lambda: as_json({}, 503)
    asking(api, waits).bring(tmp_path / "files")
    made = Recording.load(tmp_path / "files")
    assert made.left_out["get_stock"] == (
        "the service did not answer its calls: it is too busy (503 Service Unavailable)"
    )
    assert waits.seconds == [1, 2, 4] * 3
    assert {one.tool for one in made.answers} >= {"get_order", "get_customer", "get_page"}
    assert made.ended == ""


@pytest.mark.long
def test_no_more_requests_are_sent_than_are_allowed(api: Api, waits: Waits, tmp_path: Path) -> None:
    asking(api, waits, most=12).bring(tmp_path / "files")
    assert len(api.received) <= 12
    made = Recording.load(tmp_path / "files")
    assert made.ended in ("", "12 requests were sent, as many as are allowed")
    assert {one.tool for one in made.answers} >= {"list_customers", "search_orders", "get_page"}


@pytest.mark.parametrize(
    ("limits", "requests", "said"),
    [
        (Limits(seconds=0.0), 0, "took more than 0 s (0 programs"),
        (Limits(mib=0), 1, "took more than 0 MiB of answers (1 programs"),
    ],
)
def test_recording_a_service_stays_within_the_limits_of_time_and_bytes(
    api: Api, waits: Waits, tmp_path: Path, limits: Limits, requests: int, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        asking(api, waits).bring(tmp_path / "files", Budget(limits))
    assert said in str(caught.value)
    assert len(api.received) == requests


@pytest.mark.long
def test_a_service_that_is_not_there_or_answers_nothing_is_one_sentence(
    api: Api, waits: Waits, tmp_path: Path
) -> None:
    gone = ServiceOrigin(str(ORDERS), Service(address="http://127.0.0.1:9/v1"), wait=waits)
    with pytest.raises(UsageError, match=r"^http://127\.0\.0\.1:9/v1 answers nothing: it cannot be reached"):
        gone.bring(tmp_path / "files")
    assert waits.seconds == [1, 2, 4]
    api.special["/v1/customers"] = lambda: as_json({}, 429, retry_after="86400")
    with pytest.raises(UsageError, match="answers nothing: it wants to be left alone for 86400 s"):
        asking(api, waits, "/customers").bring(tmp_path / "files")
    assert not (tmp_path / "files").exists()
    api.special.clear()
    without = ServiceOrigin(str(ORDERS), Service(address=api.address))
    with pytest.raises(UsageError, match=r"with success \(.*401 Unauthorized: who are you\?"):
        make(tmp_path / "orders", Wanted(origin=without), examined, Silent())


def test_what_is_sent_is_said_before_anything_is(api: Api, waits: Waits) -> None:
    assert asking(api, waits).warning == (
        f"{api.address} is asked now, 2000 requests at most, and its answers are kept; only GET is sent, "
        "what may write is left out"
    )
    assert "what writes is called for real, each different call once" in (
        asking(api, waits, writes=True).warning
    )
    assert api.received == []


@pytest.mark.long
def test_a_list_that_is_too_long_is_asked_for_in_parts(api: Api, waits: Waits, tmp_path: Path) -> None:
    size = {"name": "per_page", "in": "query", "schema": {"type": "integer", "maximum": 100, "default": 50}}
    paths = {f"/{name}": {"get": {"operationId": name, "parameters": [size]}} for name in ("logs", "notes")}
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps({"openapi": "3.1.0", "paths": paths}))

    def logs() -> Answer:
        asked = parse_qs(urlsplit(api.received[-1][1]).query)
        count = int(asked.get("per_page", ["50"])[0])
        return as_json([{"id": number, "text": "x" * 2000} for number in range(count)])

    api.special |= {"/v1/logs": logs, "/v1/notes": lambda: as_json([{"id": 1}])}
    service = Service(address=api.address)
    world = (
        ServiceOrigin(str(document), service, wait=waits).bring(tmp_path / "files").open(tmp_path / "files")
    )
    assert [one.heading for one in world.tools.values()] == [
        "logs(per_page: integer)",
        "notes(per_page: integer=50)",
    ]
    sizes = [path.partition("=")[2] for _, path, _ in api.of("/v1/logs")]
    assert sizes[0] == ""
    assert len(sizes) == len(set(sizes))
    assert set(sizes[1:]) <= set(map(str, range(1, 11)))
    assert len(api.of("/v1/notes")) == len({path for _, path, _ in api.of("/v1/notes")})
    assert world.play([call("logs", per_page=int(sizes[1]))]).outcomes[0].error is None


@pytest.mark.parametrize(
    ("declared", "sent", "body"),
    [
        ("application/json", "application/json", b'{"name": "a b"}'),
        ("*/*", "application/json", b'{"name": "a b"}'),
        ("application/merge-patch+json", "application/merge-patch+json", b'{"name": "a b"}'),
        ("application/vnd.api+json; v=1", "application/vnd.api+json; v=1", b'{"name": "a b"}'),
        (f"{FORM}; charset=utf-8", f"{FORM}; charset=utf-8", b"name=a+b"),
    ],
)
def test_a_body_is_sent_as_the_operation_declares_it(declared: str, sent: str, body: bytes) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    operation = {"patch": {"requestBody": {"content": {declared: {"schema": schema}}}, "responses": {}}}
    document = Document(json.dumps({"openapi": "3.0.0", "paths": {"/things": operation}}), "things.json")
    (one,) = operations(document)
    request = Requests(one).of({"name": "a b"})
    assert (request.headers["content-type"], request.body) == (sent, body)


def test_only_some_paths(api: Api, waits: Waits, tmp_path: Path) -> None:
    asking(api, waits, "/stock").bring(tmp_path / "files")
    assert {path for _, path, _ in api.received} == {"/v1/stock"}
    with pytest.raises(UsageError, match=r"orders\.yaml has no path that begins with /none"):
        asking(api, waits, "/none").bring(tmp_path / "other")
    with pytest.raises(
        UsageError, match=r"no operation of orders.yaml can be asked \(get_picture: it answers"
    ):
        asking(api, waits, "/picture").bring(tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("tools.py", {"service": Service(address="http://x")}, "--from names no document"),
        ("mcp:http://x/mcp", {"service": Service(address="http://x")}, "--from names no document"),
        ("a.yaml", {"writes": True}, "--allow-writes is for an MCP server with an address, or an OpenAPI"),
        ("a.yaml", {"most": 3}, "--most-requests is for an MCP server with an address, or an OpenAPI"),
        ("a.yaml", {"service": Service(address="x.example")}, "--server 'x.example' is no address"),
        ("a.yaml", {"service": Service(address="ftp://x")}, "--server 'ftp://x' is no address"),
        ("a.yaml", {"service": Service(address="http://x:99999")}, "is no address such as"),
        ("a.yaml", {"service": Service(address="http://[x")}, "is no address such as"),
        ("a.yaml", {"service": Service(address="http://a b")}, "is no address such as"),
        ("a.yaml", {"service": Service(address="http://me:pass@x")}, "must hold no user and no password"),
        (
            "a.yaml",
            {"service": Service(address="http://x/?key=1")},
            "what goes after . or # is no part of it",
        ),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(text: str, options: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        origin_of(text, **options)
    assert "pass" not in str(error.value).replace("password", "")
