"""Runs of scripted players and of hostile texts, and a server over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scripted_genenv as fakes
from genenv.training import opening
from genenv.viewer.pages import Viewer
from sharing import Shared
from typed import succeeds
from viewer_browser import BROWSER
from viewer_runs import HOSTILE, Reader, write_run


@pytest.fixture(scope="session")
def trained(shared: Shared) -> Path:
    """A run of `genenv train` with scripted players: three rounds on tools."""

    def make(place: Path) -> None:
        place.mkdir()
        (place / "settings.toml").write_text(fakes.SETTINGS.format(rounds=3), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            fakes.few_base_data(patch)
            patch.setattr(opening, "load_players", fakes.scripted_players)
            succeeds("train", place / "settings.toml", "--out", place / "runs" / "trained")

    return shared("place-of-a-trained-run", make) / "runs" / "trained"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: one of hostile texts, one two levels deep, and others' files."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "hostile", rounds=3, text=HOSTILE)
    write_run(root / "sweep" / "rl" / "seed-0", rounds=12, planned=20)
    (root / "notes").mkdir()
    (root / "notes" / "secret.txt").write_text("a secret", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def reader(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENENV_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        viewer = Viewer(runs, "127.0.0.1", 0)
    with viewer as server:
        yield Reader(server)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser of this machine, without a window. While it is there, its event loop is the thread's."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: make setup installs it")
    if BROWSER is None:
        pytest.skip("no browser: install the Debian package chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serves another folder until the test ends."""
    servers: list[Viewer] = []
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "-" / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "-" / "state"))

    def start(root: Path, host: str = "127.0.0.1", **more: Path) -> Reader:
        servers.append(Viewer(root, host, 0, **more))
        servers[-1].__enter__()
        return Reader(servers[-1])

    yield start
    for server in servers:
        server.__exit__()
