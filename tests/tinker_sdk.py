"""A client with the real SDK of Tinker, in a process of its own: it leaves connections and threads behind."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("GENENV_TINKER_PYTHON") or sys.executable
_HERE = "GENENV_TINKER_PYTHON" in os.environ or importlib.util.find_spec("tinker") is not None
needs_tinker = pytest.mark.skipif(
    not _HERE,
    reason="no Python with tinker: install tinker 0.25 there, and name it by GENENV_TINKER_PYTHON",
)


class Client:
    """A process that runs the cases of a file: each a line of JSON to it, and one from it.

    Args:
        file: reads `{"case": ..., "arguments": {...}}`, writes `@` and `{"result": ...}` or `{"error": ...}`.
    """

    def __init__(self, file: Path) -> None:
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
                assert "error" not in said, said["error"]
                return said["result"]
        raise AssertionError("the client has ended")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
