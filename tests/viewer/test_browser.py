"""The viewer in a real browser: rounds arrive, keys and charts work, and narrow screens hold the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genenv.runs.store.store import PoolStore
from genenv.types import Seed
from genenv.viewer.pages import address
from viewer_browser import Window
from viewer_runs import HOSTILE, commit, write_run

pytestmark = pytest.mark.long


def test_a_round_arrives_and_its_tasks_are_read_by_keyboard(browser: Any, tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=5, planned=9)
    server = serve(tmp_path).server
    seed = Seed(id="seed plain", environment="sums", spec={"text": "plain"}, skills=("adding",))
    window = Window(browser, server.url, viewport={"width": 1280, "height": 900})
    page = window.page
    with folder.lock(), PoolStore.open(folder.pool, create=False) as store:
        window.open("/")
        page.get_by_text("● running").wait_for()
        window.picture("runs")
        page.get_by_role("link", name="demo").click()
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".chart canvas").count() == page.locator("figure").count() == 6
        page.evaluate("window.mine = true")
        commit(folder, store, 5, seed=seed)
        page.get_by_text("round 5 of 9").wait_for()
        page.wait_for_function("document.querySelector('.u-legend .u-value').textContent === 'last'")
        assert page.evaluate("window.mine"), "the page was not loaded again"
        window.picture("run")
        page.get_by_role("link", name="Tasks").click()
        page.get_by_label("round").fill("2")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="task-2 plain").click()
        assert page.locator(".group article").count() == 4
        window.picture("task")
        page.get_by_role("link", name="Rollout 1").click()
        heading = page.get_by_role("heading", level=1)
        assert heading.text_content() == "Trajectory task-2 plain/0"
        window.picture("trace")
        page.keyboard.press("j")
        page.wait_for_url("**%2F1")
        assert heading.text_content() == "Trajectory task-2 plain/1"
        page.keyboard.press("k")
        page.wait_for_url("**%2F0")
        window.open(address("demo", "refused"))
        assert page.get_by_text("✗ leak").count() == 5
        window.picture("refused")
    assert not window.faults


def test_narrow_and_dark_pages_of_hostile_texts_fit_and_run_nothing(
    browser: Any, tmp_path: Path, serve: Any
) -> None:
    write_run(tmp_path / "demo", rounds=4, text=HOSTILE)
    server = serve(tmp_path).server
    window = Window(browser, server.url, viewport={"width": 400, "height": 800}, color_scheme="dark")
    window.open("/")
    for name, link in (
        ("runs", None),
        ("run", "demo"),
        ("tasks", "Tasks"),
        ("task", "task-2"),
        ("trace", "Rollout 2"),
        ("refused", "Refused"),
    ):
        if link is not None:
            window.page.get_by_role("link", name=link).first.click()
            window.page.wait_for_load_state()
        assert window.is_narrow(), name
        window.picture(f"narrow-{name}")
    assert not window.faults
    dark = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == "rgb(21, 23, 26)"
