"""Servers of this process that speak the protocol, with the manners of others where a test asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.settings import PolicyConfig
from genenv.servers.tinker.serving import TinkerServer, open_base
from tinker_sdk import Client

POLICY = PolicyConfig(
    model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False, compiled=False
)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_base(POLICY, tmp_path_factory.mktemp("tinker"))


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """Runs cases of the backend."""
    made = Client(Path(__file__).with_name("backend_cases.py"))
    yield made
    made.end()


@pytest.fixture
def serve(base: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a server with quirks, which ends the one before; its address."""
    running: list[TinkerServer] = []

    def stop() -> None:
        while running:
            running.pop().__exit__()

    def start(*quirks: str, port: int = 0) -> str:
        stop()
        server = TinkerServer(base, tmp_path / "served", quirks=quirks, port=port)
        running.append(server.__enter__())
        return server.url

    yield start
    stop()
