"""Bodies that nobody would send: both servers refuse each in one sentence, soon, and live on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import PolicyConfig
from genenv.http.server import HttpServer
from genenv.servers.tinker.serving import TinkerServer, open_base
from genenv.servers.vllm import SamplingServer
from raw_http import Raw, ask

POLICY = PolicyConfig(
    model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False, compiled=False
)
SAMPLING = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/generate")
TINKER = tuple(
    f"/api/v1/{name}"
    for name in (
        *("create_session", "session_heartbeat", "create_model", "get_info", "unload_model", "optim_step"),
        *("save_weights", "save_weights_for_sampler", "load_weights", "create_sampling_session", "asample"),
        *("weights_info", "retrieve_future"),
    )
)
LIMIT_S = 2.0
LARGE = b" " * 50_000
"""The first large body starts the process that reads such."""

NUMBERS = (
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**300, 10**4000, 1e308, 0.5, True]) | st.integers()
)
TEXTS = (
    st.sampled_from(["", "a\0b", "../..", "tinker://a/weights/b", "\ud800", "x" * 5000, "tiny"]) | st.text()
)
LEAVES = st.none() | NUMBERS | TEXTS | st.sampled_from([float("nan"), float("inf")])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *(
            "lora_name",
            "lora_path",
            "model",
            "token_ids",
            "sampling_params",
            "max_tokens",
            "json",
            "n",
            "seed",
        ),
        *("structured_outputs", "structural_tag", "session_id", "model_id", "seq_id", "base_model", "rank"),
        *("model_seq_id", "lora_config", "prompt", "chunks", "tokens", "num_samples", "path", "ttl_seconds"),
        *("adam_params", "learning_rate", "request_id", "tinker_path", "user_metadata", "stop"),
    ]
)
BODIES = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(NAMES, inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def sampling() -> Iterator[HttpServer]:
    with SamplingServer(LoadedBase("tiny", POLICY), "tiny") as server:
        ask(server.url, SAMPLING[0], LARGE)
        yield server


@pytest.fixture(scope="module")
def tinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    out = tmp_path_factory.mktemp("tinker")
    with TinkerServer(open_base(POLICY, out), out) as server:
        ask(server.url, TINKER[0], LARGE, **{"x-api-key": "tml-fuzz"})
        yield server


def tried(server: HttpServer, path: str, body: bytes, kind: str = "application/json") -> Raw:
    since = time.monotonic()
    found = ask(server.url, path, body, **{"Content-Type": kind, "x-api-key": "tml-fuzz"})
    assert time.monotonic() - since < LIMIT_S
    assert found.status < 500, found
    if found.status >= 400:
        said = found.json()
        sentence = said["detail"] if "detail" in said else said["error"]["message"]
        assert sentence
        assert "\n" not in sentence.strip()
        assert len(sentence) < 7000
    return found


def written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@pytest.mark.long
@settings(max_examples=60)
@given(path=st.sampled_from(SAMPLING), body=BODIES | st.dictionaries(NAMES, BODIES, max_size=6))
def test_the_sampling_server_refuses_bodies_of_any_kind(sampling: HttpServer, path: str, body: Any) -> None:
    assert tried(sampling, path, written(body)).status in (400, 404)


@pytest.mark.long
@settings(max_examples=100)
@given(path=st.sampled_from(TINKER), body=BODIES | st.dictionaries(NAMES, BODIES, max_size=6))
def test_the_tinker_server_refuses_bodies_of_any_kind(tinker: HttpServer, path: str, body: Any) -> None:
    made = path.endswith("create_session") and isinstance(body, dict)
    assert tried(tinker, path, written(body)).status in ((200, 400, 404) if made else (400, 404))


@settings(max_examples=60)
@given(data=st.binary(max_size=300), proto=st.booleans())
def test_bytes_that_are_no_message_are_refused(
    sampling: HttpServer, tinker: HttpServer, data: bytes, proto: bool
) -> None:
    kind = "application/x-protobuf" if proto else "application/json"
    expected = (400, 404) if proto else (415,)
    assert tried(tinker, "/api/v1/forward_backward", data, kind).status in expected
    if not proto:
        assert tried(sampling, "/inference/v1/generate", data).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 100_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b"{" + b'"k": 1, ' * 3000 + b'"k": 1}',
        b'{"seq_id": ' + b"9" * 4200 + b', "model_id": "x", "adam_params": {}}',
        b"\xff\xfe{}",
        b"\x00" * 20_000,
        b'"' + b"x" * 30_000 + b'"',
    ],
    ids=["nothing", "deep list", "deep object", "one name often", "long number", "no text", "zeros", "text"],
)
def test_bodies_that_break_parsers_are_refused_and_the_servers_live_on(
    sampling: HttpServer, tinker: HttpServer, body: bytes
) -> None:

    for path in ("/inference/v1/generate", "/v1/load_lora_adapter"):
        assert tried(sampling, path, body).status == 400
    for path in ("optim_step", "asample", "load_weights"):
        assert tried(tinker, f"/api/v1/{path}", body).status in (400, 404)
    kind = "application/x-protobuf"
    assert tried(tinker, "/api/v1/forward_backward", body, kind).status in (400, 404)
    assert ask(sampling.url, "/health").status == 200
    assert ask(tinker.url, "/api/v1/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "query", ["offset=" + "9" * 5000, "limit=-1", "offset=x", "limit=1e3", "offset=\u0664"]
)
def test_queries_are_refused_or_read(tinker: HttpServer, query: str) -> None:
    target = "/api/v1/sessions?" + query.encode("ascii", "ignore").decode()
    found = ask(tinker.url, target, **{"x-api-key": "tml-fuzz"})
    assert found.status == 400
    assert found.json()["detail"].endswith("it is a whole number, 0 or more")
