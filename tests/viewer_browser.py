"""A window of a real browser that notes what goes wrong, and checks of what it shows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The browser of this machine."""
SCREENSHOTS = os.environ.get("GENENV_SCREENSHOTS")
"""A folder for pictures of the pages, for a person to look at."""
_AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
    .filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => `${one.id}: ${one.nodes.map(node => node.html).join(" ")}`.slice(0, 600)))"""


class Window:
    """A page of the browser that notes errors and requests."""

    def __init__(self, browser: Any, server: str, **settings: Any) -> None:
        self.server, self.faults = server, list[str]()
        self.page = browser.new_context(**settings).new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.server}/", "data:")):
            self.faults.append(f"asked {url}")

    def open(self, path: str) -> None:
        self.page.goto(self.server + path)

    def picture(self, name: str) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(exist_ok=True)
            self.page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)

    def is_narrow(self) -> bool:
        """Whether the page fits its window, so that only tables move sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def barriers(self) -> list[str]:
        """What axe-core calls serious or critical on the page: what keeps people from using it."""
        from axe_playwright_python.base import AXE_SCRIPT

        self.page.evaluate(AXE_SCRIPT)
        return list(self.page.evaluate(_AXE))
