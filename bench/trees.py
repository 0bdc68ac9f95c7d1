"""Programs that run the code of another source tree: what the scripts that compare two of them share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
"""This checkout."""


def environment(tree: Path) -> dict[str, str]:
    """The environment in which Python imports `genenv` of a tree; ends the program where it would not."""
    found = os.environ | {"PYTHONPATH": str(tree / "src")}
    words = [sys.executable, "-c", "import genenv; print(genenv.__file__)"]
    done = subprocess.run(words, env=found, capture_output=True, text=True, check=True)  # noqa: S603 - ourselves
    where = Path(done.stdout.strip())
    if not where.is_relative_to(tree):
        sys.exit(f"not {tree} is what is imported, but {where}")
    return found
