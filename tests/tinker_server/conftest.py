"""A base that servers of this process share, and a client with the real SDK in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.settings import PolicyConfig
from genenv.tinker_server.serving import TinkerServer, open_base

PYTHON = os.environ.get("GENENV_TINKER_PYTHON") or sys.executable
_HERE = "GENENV_TINKER_PYTHON" in os.environ or importlib.util.find_spec("tinker") is not None
needs_tinker = pytest.mark.skipif(
    not _HERE,
    reason="no Python with tinker: install tinker 0.25 there, and name it by GENENV_TINKER_PYTHON",
)
POLICY = PolicyConfig(model="tiny", dtype="float32", device="cpu", threads=1, packed_weights=False)


class Sdk:
    """A client's process."""

    def __init__(self) -> None:
        file = Path(__file__).with_name("sdk_cases.py")
        self._process = subprocess.Popen(
            [PYTHON, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, case: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"case": case, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@"):
                said = json.loads(line[1:])
                if said.get("error", [""])[0] == "ModuleNotFoundError":
                    pytest.skip(said["error"][1])
                assert "error" not in said, said["error"]
                return said["result"]
        raise AssertionError("the client has ended")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_base(POLICY, tmp_path_factory.mktemp("tinker"))


@pytest.fixture(scope="session")
def sdk() -> Iterator[Sdk]:
    client = Sdk()
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
