"""Pictures of the viewer's pages, as docs/results/viewer.md shows them.

    genenv train tiny --out runs/tiny --set run.rounds=16 --set run.eval_every=2
    python bench/viewer_pictures.py runs --page "/runs/tiny/-/rounds?round=11" --out picture.webp

Needs Playwright and the system's Chromium. The window is 1280 by 800, the colors are the light ones.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from genenv.servers.cli import _replayed
from genenv.viewer.pages import Viewer


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--page", required=True, help="address of a page, with its slash")
    parser.add_argument("--to", default="h1", help="what the picture begins with, as a CSS selector")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    given = parser.parse_args()
    viewer = Viewer(given.runs, "127.0.0.1", 0)
    viewer.data.replay = _replayed
    with viewer as server, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=given.browser, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(server.url + given.page)
        page.wait_for_load_state("networkidle")
        if given.to != "h1":
            page.locator(given.to).first.evaluate("one => one.scrollIntoView()")
        taken = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(taken)).save(given.out, lossless=True, method=6)


if __name__ == "__main__":
    main()
