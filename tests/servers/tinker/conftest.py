"""A base that servers of this process share, and a client with the real SDK in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.settings import PolicyConfig
from genenv.servers.tinker.serving import TinkerServer, open_base
from tinker_sdk import Client

POLICY = PolicyConfig(model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_base(POLICY, tmp_path_factory.mktemp("tinker"))


@pytest.fixture(scope="session")
def sdk() -> Iterator[Client]:
    client = Client(Path(__file__).with_name("sdk_cases.py"))
    yield client
    client.end()


@pytest.fixture
def serve(base: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a server with quirks: its address."""
    running: list[TinkerServer] = []

    def start(*quirks: str, **asked: Any) -> str:
        while running:  # one at a time on a base
            running.pop().__exit__()
        running.append(TinkerServer(base, asked.pop("out", tmp_path), quirks=quirks, **asked).__enter__())
        return running[0].url

    yield start
    while running:
        running.pop().__exit__()
