"""`genenv serve` and requests that are wrong: each fails alone, and says why. A real server on loopback."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.local.policy_weights import REFERENCE, PolicyWeights
from genenv.backends.local.served.models import LoadedBase
from genenv.backends.settings import ADAPTERS_PREFIX, PolicyConfig
from genenv.chat.sampler import structural_tag
from genenv.servers.vllm import SamplingServer
from raw_http import Raw, ask

HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "packed_weights": False}
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def base() -> LoadedBase:
    return LoadedBase("tiny", PolicyConfig(model="tiny", compiled=False, **HERE))


@pytest.fixture(scope="module")
def adapter(base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one, as a trainer writes it."""
    folder = tmp_path_factory.mktemp("adapters") / "good"
    base.model.add_adapter("written", seed=1)
    PolicyWeights(base.model, "written").write_adapter(folder)
    base.model.drop_adapter("written", instead="idle")
    return folder


@pytest.fixture
def serve(base: LoadedBase, adapter: Path) -> Iterator[Serve]:
    """Start a server that knows one adapter, `good`: its address."""
    running: list[SamplingServer] = []

    def start(**asked: Any) -> str:
        for name in base.adapters:
            base.unload(name)
        running.append(SamplingServer(base, "tiny", **{"adapters": [adapter.parent], **asked}).__enter__())
        if not asked:
            assert load(running[0].url, "good", adapter).status == 200
        return running[0].url

    yield start
    for server in running:
        server.__exit__()


def load(url: str, name: str, folder: object, **more: Any) -> Raw:
    return post(url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder), **more})


def post(url: str, path: str, body: Any) -> Raw:
    return ask(url, path, json.dumps(body).encode())


def generate(url: str, ids: Any = (1, 2, 3), model: str = "good", **parameters: Any) -> Raw:
    asked = {"max_tokens": 4, **parameters}
    return post(url, "/inference/v1/generate", {"model": model, "token_ids": ids, "sampling_params": asked})


def said(found: Raw) -> str:
    error = found.json()["error"]
    assert error["code"] == found.status
    assert "\n" not in error["message"]
    return error["message"]


# one bad request


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"ids": [10**7]}, "outside of the vocabulary"),
        ({"ids": [-1]}, "outside of the vocabulary"),
        ({"structured_outputs": {"json": {"type": "nonsense"}}}, "cannot be made into a grammar"),
    ],
    ids=["token", "negative", "schema"],
)
def test_a_bad_request_fails_alone(serve: Serve, bad: Mapping[str, Any], why: str) -> None:
    url = serve()
    with ThreadPoolExecutor(11) as threads:
        good = [threads.submit(generate, url, [1, 2, 3, i]) for i in range(5)]
        wrong = threads.submit(generate, url, **bad)
        good += [threads.submit(generate, url, [1, 2, 3, i]) for i in range(5, 10)]
        assert [one.result().status for one in good] == [200] * 10
        assert wrong.result().status == 400
        assert why in said(wrong.result())


@pytest.mark.parametrize(
    ("ids", "parameters", "why"),
    [
        ([], {}, "token_ids: list should have at least 1 item"),
        (["a"], {}, "token_ids.0: input should be a valid integer"),
        ([1] * 5000, {}, "the longest sequence here has"),
        ([10**30], {}, "outside of the vocabulary"),
        ([1], {"max_tokens": 10**30}, "the longest sequence here has"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"n": 2}, "sampling_params.n"),
        ([1], {"temperature": -1}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"temperature": float("inf")}, "temperature"),
        ([1], {"top_p": 0}, "top_p"),
        ([1], {"seed": 2**63}, "seed"),
        ([1], {"stop_token_ids": [1]}, "a reply ends with token"),
        ([1], {"best_of": 3}, "best_of"),
        ([1], {"structured_outputs": {}}, "name one constraint, json or structural_tag"),
        ([1], {"structured_outputs": {"disable_any_whitespace": True}}, "name one constraint"),
        ([1], {"structured_outputs": {"json": {}, "structural_tag": "{}"}}, "name one constraint"),
        ([1], {"structured_outputs": {"structural_tag": "[" * 50_000}}, "structural tags"),
        ([1], {"structured_outputs": {"structural_tag": '{"format": {"elements": []}}'}}, "structural tags"),
        (
            [1],
            {"structured_outputs": {"structural_tag": structural_tag([(10_000_000, 1)])}},
            "structural_tag holds a token outside of the vocabulary",
        ),
        ([1], {"structured_outputs": {"json": {"enum": ["x" * 300_000]}}}, "the schema has more than"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(
    serve: Serve, ids: list[Any], parameters: dict[str, Any], why: str
) -> None:
    found = generate(serve(), ids, **parameters)
    assert found.status == 400
    assert why in said(found)


@pytest.mark.parametrize(
    "parameters", [{"seed": -(2**63)}, {"temperature": 1e-300}, {"top_p": 1e-300}, {"temperature": 1e6}]
)
def test_a_parameter_at_its_bound_is_sampled_with(serve: Serve, parameters: dict[str, Any]) -> None:
    found = generate(serve(), **parameters)
    assert found.status == 200
    assert all(one["logprob"] <= 0 for one in found.json()["choices"][0]["logprobs"]["content"])


def test_a_request_without_a_seed_draws_one(serve: Serve) -> None:
    url = serve()

    def drawn(**parameters: Any) -> tuple[int, ...]:
        found = generate(url, max_tokens=8, **parameters)
        assert found.status == 200, found
        return tuple(found.json()["choices"][0]["token_ids"])

    assert len({drawn() for _ in range(4)}) > 1
    assert len({drawn(seed=None) for _ in range(4)}) > 1
    assert len({drawn(seed=0) for _ in range(4)}) == 1


def test_the_base_is_sampled_by_its_name(serve: Serve, adapter: Path) -> None:
    url = serve()
    base = generate(url, model="tiny", max_tokens=16, seed=3)
    assert base.status == 200
    assert base.json()["model"] == "tiny"
    # the adapter was written untrained, so that it changes nothing
    assert base.json()["choices"] == generate(url, max_tokens=16, seed=3).json()["choices"]
    assert "is the base model" in said(load(url, "tiny", adapter))
    assert post(url, "/v1/unload_lora_adapter", {"lora_name": "tiny"}).status == 404


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"stream": True}, "stream"),
        ({"features": {"images": []}}, "features"),
        ({"best": 1}, "best: extra inputs are not permitted"),
        ({"stream": False, "request_id": "a"}, ""),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused(serve: Serve, more: Any, why: str) -> None:
    body = {"model": "good", "token_ids": [1], "sampling_params": {"max_tokens": 2}, **more}
    found = post(serve(), "/inference/v1/generate", body)
    assert found.status == (400 if why else 200), found
    assert not why or why in said(found)


# adapters


def test_an_adapter_that_is_replaced_is_there_at_every_moment(
    base: LoadedBase, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.load("replaced", adapter)
    drop, there = base._drop, list[bool]()

    def dropping(name: str) -> None:
        there.append("replaced" in base.adapters)
        drop(name)

    monkeypatch.setattr(base, "_drop", dropping)
    base.load("replaced", adapter)
    assert there == [True]
    monkeypatch.undo()
    base.unload("replaced")


def test_adapters_come_from_named_folders_alone(serve: Serve, adapter: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(adapter, elsewhere)
    shutil.copytree(adapter, inside / "own")
    (inside / "out").symlink_to(elsewhere)
    (inside / "half").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (inside / "half" / name).symlink_to(elsewhere / name)
    (tmp_path / "in").symlink_to(inside / "own")
    url = serve(adapters=[inside])
    for wrong in (elsewhere, inside / "out", inside / "half", inside / ".." / "elsewhere", "elsewhere"):
        found = load(url, "a", wrong)
        assert found.status == 400
        assert "--adapters FOLDER" in said(found) or "no folder of an adapter" in said(found)
    assert "no folder of an adapter" in said(load(url, "a", "a\0b"))
    assert load(url, "a", inside / "own").status == 200
    assert load(url, "b", tmp_path / "in").status == 200  # it is inside, whatever leads there


def test_without_named_folders_the_temporary_ones_of_runs_are_read(
    serve: Serve, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = tmp_path / f"{ADAPTERS_PREFIX}x1"
    for folder in (run / "one", tmp_path / "other" / "one"):
        shutil.copytree(adapter, folder)
    url = serve(adapters=[])
    assert load(url, "a", run / "one").status == 200
    assert "--adapters FOLDER" in said(load(url, "b", tmp_path / "other" / "one"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # a folder of somebody else's
    assert "--adapters FOLDER" in said(load(url, "b", run / "one"))


def test_of_an_adapter_nothing_is_left_when_it_is_unloaded_whatever_its_folder_holds(
    serve: Serve, base: LoadedBase, adapter: Path
) -> None:
    url, before = serve(), set(base.model.peft.peft_config)
    folder = adapter.parent / "checkpoint"
    shutil.copytree(adapter, folder)
    shutil.copytree(adapter, folder / REFERENCE)
    assert load(url, "other", folder).status == 200
    assert generate(url, model="other").status == 200
    assert post(url, "/v1/unload_lora_adapter", {"lora_name": "other"}).status == 200
    assert set(base.model.peft.peft_config) == before


def test_an_adapter_that_is_refused_leaves_the_one_of_its_name(serve: Serve, adapter: Path) -> None:
    url = serve()
    before = generate(url, seed=3).json()
    damaged = adapter.parent / "damaged"
    shutil.copytree(adapter, damaged, dirs_exist_ok=True)
    (damaged / "adapter_model.safetensors").write_bytes(b"none")
    assert "cannot be read" in said(load(url, "good", damaged, load_inplace=True))
    for wrong in (
        {"r": 10**9},
        {"lora_alpha": 1e999},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["no"]},
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 4}},
    ):
        settings = json.loads((adapter / "adapter_config.json").read_text())
        (damaged / "adapter_config.json").write_text(json.dumps({**settings, **wrong}))
        found = load(url, "good", damaged, load_inplace=True)
        assert found.status == 400, found
    assert generate(url, seed=3).json() == before
    assert load(url, "good", adapter, load_inplace=True).status == 200


@pytest.mark.parametrize("name", ["base", "a.b", "weight", "../x", "\u00e9\u4e2d"])
def test_an_adapter_may_be_called_anything(serve: Serve, adapter: Path, name: str) -> None:
    url = serve()
    assert load(url, name, adapter).status == 200
    assert load(url, name, adapter).status == 400
    assert generate(url, model=name).status == 200
    assert post(url, "/v1/unload_lora_adapter", {"lora_name": name}).status == 200
    assert generate(url, model=name).status == 404
    assert generate(url).status == 200


def test_adapters_have_a_bound(serve: Serve, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve()
    monkeypatch.setattr("genenv.backends.local.served.models._MOST", 2)
    assert load(url, "two", adapter).status == 200
    assert "as many as there may be" in said(load(url, "three", adapter))
