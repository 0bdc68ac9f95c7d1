"""Runs of `genenv` with scripted players: whole, and stopped halfway."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import scripted_genenv as fakes
from genenv.training import opening
from sharing import Shared
from typed import stopped_in_round_two, succeeds


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.few_base_data(monkeypatch)
    monkeypatch.setattr(opening, "load_players", fakes.scripted_players)


@pytest.fixture
def config(scripted: None, tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(fakes.SETTINGS.format(rounds=2), encoding="utf-8")
    return path


@pytest.fixture
def finished(config: Path, shared: Shared, tmp_path: Path) -> Path:
    """A run of two rounds."""
    made = shared("finished", lambda to: succeeds("train", config, "--out", to))
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def halfway(config: Path, shared: Shared, tmp_path: Path) -> Path:
    """A run that was stopped in its second round."""
    made = shared("halfway", lambda to: stopped_in_round_two("train", config, "--out", to))
    return shutil.copytree(made, tmp_path / "halfway")
