"""MCP servers that send what they should not: each ends in an outcome or a sentence, within bounds."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bundles import EXAMPLES, call
from genenv.errors import UsageError
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.base import GONE
from genenv.tools.worlds.limits import Limits
from genenv.tools.worlds.mcp import client as mcp_server
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin, RemoteOrigin

SERVER = (sys.executable, "-S", str(EXAMPLES / "hostile_server.py"))
FINE = call("fine")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpWorld]:
    opened = McpWorld(tmp_path_factory.mktemp("none"), McpSource(command=SERVER, fresh=False), call_s=1.0)
    yield opened
    opened.close()


def result(value: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": ID, "result": {value}}}'


def text(value: str) -> str:
    return result(f'{{"content": [{{"type": "text", "text": {value}}}]}}')


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (text('"well"'), None),
        (result("3"), ""),
        (result("null"), ""),
        (result('{"content": 3}'), ""),
        (result('{"content": [{"type": "none"}]}'), ""),
        (result('{"content": [], "isError": "perhaps"}'), ""),
        (result('{"content": [], "structuredContent": [1]}'), ""),
        (result('{"content": [], "structuredContent": {"a": NaN}}'), ""),
        (result(f'{{"content": [], "structuredContent": {{"a": {"[" * 60 + "]" * 60}}}}}'), "nested"),
        (text(json.dumps("[" * 100_000)), "longer than 64000"),
        (text('"\\ud800"'), GONE),
        ('{"jsonrpc": "2.0", "id": ID, "error": 3}', ""),
        ('{"jsonrpc": "2.0", "id": ID, "error": {"code": "x", "message": 7}}', ""),
        ('{"jsonrpc": "2.0", "id": ID, "error": {"code": -1, "message": ""}}', "refused"),
        ('{"jsonrpc": "2.0", "method": "sampling/createMessage", "id": ID, "params": 3}', GONE),
        (result("{}").replace("ID", '"another"'), GONE),
        ("[" * 100_000, GONE),
        ("no JSON", GONE),
        ("HALF", GONE),
        ("FLOOD", "longer than 64000"),
    ],
)
@pytest.mark.long
def test_whatever_a_server_answers_is_an_outcome_and_the_next_call_is_answered(
    world: McpWorld, raw: str, said: str | None
) -> None:
    start = time.monotonic()
    first, next_one = world.play_uncached([call("say", raw=raw), FINE]).outcomes
    assert (first.error is None) is (said is None)
    assert (said or "") in (first.error or "")
    assert next_one.result == "fine" if first.error != GONE and "longer" not in (first.error or "") else True
    assert world.play_uncached([FINE]).outcomes[0].result == "fine"
    assert time.monotonic() - start < 20


LARGE = json.dumps({"tools": [{"name": "fine", "inputSchema": {"type": "object"}}], "x": "x" * (17 << 20)})


@pytest.mark.parametrize(
    "listed",
    [
        result("3"),
        result('{"tools": 3}'),
        result('{"tools": [3]}'),
        result('{"tools": [{"name": 3, "inputSchema": {}}]}'),
        result('{"tools": [{"name": "a", "inputSchema": 3}]}'),
        result(f'{{"tools": [{"[" * 100_000}'),
        result('{"tools": []}'),
        result(f'{{"tools": [], "nextCursor": {json.dumps("x" * 100)}}}'),
        result(LARGE),
    ],
    ids=["number", "no list", "no tool", "no name", "no schema", "deep", "none", "endless", "large"],
)
@pytest.mark.long
def test_whatever_else_a_server_lists_there_is_a_sentence(
    tmp_path: Path, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "START_S", 4.0)
    (tmp_path / "list.json").write_text(listed)
    with pytest.raises(UsageError) as caught:
        McpWorld(tmp_path / "none", McpSource(command=(*SERVER, str(tmp_path / "list.json")), fresh=False))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "gives no tools" in str(caught.value)


def tools(number: int) -> str:
    schema = {"type": "object", "properties": {"raw": {"const": "HALF"}}, "required": ["raw"]}
    named = ["say", *(f"say_{n}" for n in range(number - 1))]
    return result(json.dumps({"tools": [{"name": one, "inputSchema": schema} for one in named]}))


@pytest.mark.parametrize(
    ("number", "limits", "said"),
    [
        (2, Limits(), "the tools do not answer: 6 calls (say"),
        (10_000, Limits(), "there are 10000 tools, and at most 512 can be learned together"),
        (2, Limits(seconds=0.01), "took more than 0.01 s"),
    ],
)
@pytest.mark.long
def test_making_a_bundle_of_a_server_that_never_answers_ends_in_a_sentence(
    number: int, limits: Limits, said: str, tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text(tools(number))
    origin = McpOrigin((*SERVER, str(tmp_path / "list.json")))
    with pytest.raises(UsageError) as caught:
        make(tmp_path / "made", Wanted(origin=origin, limits=limits), examined, Silent())
    assert said in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["list.json"]


class _Large(BaseHTTPRequestHandler):
    """Answers everything with more than anybody could read, packed or not."""

    packed = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        if self.packed:
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(40):
                self.wfile.write(gzip.compress(b" " * (1 << 20)) if self.packed else b" " * (1 << 20))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.long
@pytest.mark.parametrize(("packed", "said"), [(False, "more than 16 MiB"), (True, "packed its answer")])
def test_a_server_with_an_address_that_answers_too_much_is_a_sentence(
    packed: bool, said: str, tmp_path: Path
) -> None:
    handler = type("Large", (_Large,), {"packed": packed})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/mcp"
            with pytest.raises(UsageError) as caught:
                RemoteOrigin(address, writes=False, most=1).bring(tmp_path / "files")
        finally:
            server.shutdown()
    assert said in str(caught.value)
    assert "gives no tools" in str(caught.value)
