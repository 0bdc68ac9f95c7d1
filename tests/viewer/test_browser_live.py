"""Pages in a real browser while a run is written; and that people can use them, whatever they see by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genenv.progress import LiveFile, Silent, advance, staged
from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from genenv.viewer.pages import address
from viewer_browser import Window
from viewer_runs import HOSTILE, commit, write_run

pytestmark = pytest.mark.long
SEED = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
BAR = "document.querySelector('progress')?.value"


def test_a_run_appears_moves_inside_its_round_and_finishes_without_a_reload(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    write_run(tmp_path / "before", rounds=3)
    window = Window(browser, serve(tmp_path).server.url, viewport={"width": 1280, "height": 900})
    page = window.page
    window.open("/")
    page.evaluate("window.mine = true")
    folder = write_run(tmp_path / "demo", rounds=1, planned=2)
    page.get_by_role("link", name="demo").wait_for()
    with (
        folder.lock(),
        LiveFile(folder.live, Silent()) as live,
        PoolStore.open(folder.pool, create=False) as store,
    ):
        with staged(live, "round 1/2: rollouts", items=4, unit="rollouts"):
            page.get_by_text("● running").wait_for()
            page.get_by_text("0 of 4 rollouts").wait_for()
            advance(items=3, tokens=60)
            page.get_by_text("3 of 4 rollouts").wait_for()
            assert page.evaluate(BAR) == 3
            assert page.evaluate("window.mine"), "the list was not loaded again"
            window.picture("live-runs")
            page.get_by_role("link", name="demo").click()
            page.get_by_text("3 of 4 rollouts").wait_for()
            page.evaluate("window.mine = true")
            advance(items=1)
            page.get_by_text("4 of 4 rollouts").wait_for()
            assert page.evaluate(BAR) == 4
            window.picture("live-run")
        page.get_by_text("between two stages").wait_for()
        commit(folder, store, 1, seed=SEED)
        live.round(1, 2, {})
        page.get_by_text("round 1 of 2").wait_for()
        with staged(live, "round 2/2: <b>update</b> of the agent", items=None, unit=""):
            page.get_by_text("round 2/2: <b>update</b> of the agent").wait_for()
            assert page.get_by_text("left in the run").count() == 1
        commit(folder, store, 2, seed=SEED)
    page.get_by_text("✓ finished").wait_for()
    assert page.locator(".place").count() == 0
    assert page.evaluate("window.mine"), "the page was not loaded again"
    assert not window.faults


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_no_page_has_a_serious_barrier(
    browser: Any, tmp_path: Path, serve: Any, scheme: str, width: int
) -> None:
    folder = write_run(tmp_path / "demo", rounds=4, planned=9, text=HOSTILE)
    size = {"width": width, "height": 900}
    window = Window(browser, serve(tmp_path).server.url, viewport=size, color_scheme=scheme)
    page = window.page
    live = LiveFile(folder.live, Silent())
    with folder.lock(), live, staged(live, "round 4/9: rollouts", items=4, unit="rollouts"):
        advance(items=3)
        window.open(address("demo"))
        page.get_by_text("3 of 4 rollouts").wait_for()
        paths = [
            "/",
            "/compare?run=demo",
            *(link.get_attribute("href") for link in page.locator(".tabs a").all()),
        ]
        window.open(address("demo", "tasks"))
        paths.append(page.locator(".tasks a").first.get_attribute("href"))
        window.open(paths[-1])
        paths.append(page.get_by_role("link", name="Rollout 1").get_attribute("href"))
        for path in paths:
            if "html" in page.goto(window.server + path).headers["content-type"]:
                assert not window.barriers(), path
    assert not window.faults
