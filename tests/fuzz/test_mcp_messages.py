"""Whatever an MCP server sends, there is an outcome for the agent or a sentence for the user."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from bundles import EXAMPLES, call
from fuzzing import Fuzz
from genenv.tools.worlds.mcp import client as mcp_server
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.types import Json

SERVER = (sys.executable, "-S", str(EXAMPLES / "hostile_server.py"))
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
_PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "resource", "resource_link", "none"]) | JSON},
    optional={"text": JSON, "data": JSON, "mimeType": JSON, "resource": JSON, "uri": JSON, "name": JSON},
)
_RESULTS = st.fixed_dictionaries(
    {"content": st.lists(_PARTS, max_size=3) | JSON},
    optional={"structuredContent": JSON, "isError": JSON, "_meta": JSON},
)
_TOOLS = st.fixed_dictionaries(
    {"tools": st.lists(st.fixed_dictionaries({"name": JSON, "inputSchema": JSON}), max_size=3) | JSON},
    optional={"nextCursor": JSON, "_meta": JSON},
)


def messages(results: st.SearchStrategy[Json]) -> st.SearchStrategy[str]:
    """Lines that a server sends: mostly answers to what was asked, and other things."""
    answers = st.builds(lambda result: {"jsonrpc": "2.0", "id": "#", "result": result}, results)
    errors = st.builds(lambda error: {"jsonrpc": "2.0", "id": "#", "error": error}, JSON)
    lines = st.builds(lambda value: json.dumps(value).replace('"#"', "ID"), answers | errors | answers | JSON)
    return lines | st.text(max_size=40) | st.builds(lambda line: line[: len(line) // 2], lines)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpWorld]:
    opened = McpWorld(tmp_path_factory.mktemp("none"), McpSource(command=SERVER, fresh=False), call_s=0.3)
    yield opened
    opened.close()


@pytest.mark.long
def test_whatever_a_server_answers_is_an_outcome_and_a_state(fuzz: Fuzz, world: McpWorld) -> None:
    def read(raw: str) -> None:
        played = world.play_uncached([call("say", raw=raw)])
        json.dumps(played.outcomes[0].text)
        assert played.state == {"folders": {".": None}}

    fuzz(messages(_RESULTS), read, examples=20)


@pytest.mark.long
def test_whatever_a_server_lists_the_world_opens_or_there_is_a_sentence(
    fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "START_S", 2.0)

    def read(raw: str) -> None:
        (tmp_path / "list").write_text(raw, encoding="utf-8", errors="replace")
        McpWorld(tmp_path / "none", McpSource(command=(*SERVER, str(tmp_path / "list")), fresh=False)).close()

    fuzz(messages(_TOOLS), read, examples=8)
