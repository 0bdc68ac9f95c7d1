"""A chat in a real browser: three requests to two checkpoints of a real model, without an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genenv.tools.cli.chat import Chat
from genenv.viewer.pages import Viewer
from viewer.test_chat import tiny_run
from viewer_browser import Window

pytestmark = pytest.mark.long


def test_three_requests_to_two_checkpoints(browser: Any, tiny: Any, toy: Any, tmp_path: Path) -> None:
    tiny_run(tiny, toy, tmp_path / "runs" / "tiny")
    with Viewer(tmp_path / "runs", "127.0.0.1", 0, chat=Chat) as server:
        window = Window(browser, server.url, viewport={"width": 1280, "height": 900})
        page = window.page
        page.set_default_timeout(30_000)
        window.open("/runs/tiny/-/")
        page.click("nav >> text=Chat")
        page.select_option("select[name=other]", "tiny")
        page.fill("input[name=other_round]", "0")
        page.click("text=Begin")
        for number in range(1, 4):
            page.fill("textarea", f"request {number}")
            page.click("button:has-text('Ask')")
            # both answers arrive without a reload; a page that is not there yet has no sides at all
            page.wait_for_function(
                "n => [...document.querySelectorAll('.sides article')]"
                ".filter(one => one.querySelectorAll('.turn.agent').length >= n).length === 2",
                arg=number,
            )
        window.picture("chat")
        page.set_viewport_size({"width": 400, "height": 800})
        assert window.is_narrow()
        page.click("text=End the conversation")
        page.wait_for_selector("text=Begin")
        assert window.faults == []
