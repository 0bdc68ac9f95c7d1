"""Environments as `genenv export-env` writes them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bundles import fewer
from genenv.errors import UsageError
from genenv.interop.exported import Exported
from sharing import Shared
from typed import succeeds


@pytest.fixture(scope="session")
def written(desk_bundle: Path, shared: Shared) -> Path:
    """A folder of environments: tools of a bundle, a game in text, and a single question."""
    return shared("environments", partial(write, desk_bundle))


def write(desk_bundle: Path, root: Path) -> None:
    fewer(desk_bundle, root / "desk", base=16, held_out=8)
    for env, name in (
        (f"{root}/desk", "desk_env"),
        ("programs", "programs_env"),
        ("household", "home_env"),
    ):
        try:
            succeeds("export-env", env, "--out", root / name, "--tasks", 12, "--held-out", 6)
        except (AssertionError, UsageError):
            if env != "household":  # TextWorld may be missing
                raise


@pytest.fixture
def importable(written: Path) -> Iterator[Path]:
    """The packages of the environments can be imported."""
    names = ("desk_env", "programs_env", "home_env")
    for name in names:
        sys.path.insert(0, str(written / name))
    importlib.invalidate_caches()
    yield written
    for name in names:
        sys.path.remove(str(written / name))
    for module in [one for one in sys.modules if one.split(".")[0] in names]:
        del sys.modules[module]


def opened(written: Path, name: str) -> Exported:
    """An environment."""
    folder = written / name / name / "data"
    if not folder.is_dir():
        pytest.skip(f"{name} could not be written on this machine")
    return Exported(folder)
