"""`make setup` says what it does, and stops where a step fails; a script takes the place of Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp python .venv/bin/python;;
  *pip*) echo "$*" >>asked; test -e works;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def setup(folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    return subprocess.run(
        [make, "setup", "PYTHON=./python"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_each_step_of_the_setup_says_what_is_installed_and_how_much_that_is(tmp_path: Path) -> None:
    (tmp_path / "works").touch()
    done = setup(tmp_path)
    assert done.returncode == 0
    steps = [line for line in done.stdout.splitlines() if line.startswith("setup ")]
    assert [line[:9] for line in steps] == ["setup 1/4", "setup 2/4", "setup 3/4", "setup 4/4"]
    assert all(" MB" in line for line in steps[1:])
    assert done.stdout.count("    done in ") == 3
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked[:2]] == ["torch", ".[dev]"]
    assert all("-qq" in line for line in asked)  # pip shows more on a terminal


def test_a_step_that_fails_ends_the_setup(tmp_path: Path) -> None:
    done = setup(tmp_path)
    assert done.returncode != 0
    assert "setup 3/4" not in done.stdout
    assert not (tmp_path / ".venv" / ".installed").exists()
