"""A reporter that adds up what its stages are told."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from genenv.progress import Silent, Stage


class Watched(Silent):
    """Sums by the name of a stage."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[int, int]] = {}
        """Tokens and items."""

    @contextlib.contextmanager
    def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
        def tell(tokens: int, items: int, note: str = "") -> None:
            before = self.told.get(name, (0, 0))
            self.told[name] = before[0] + tokens, before[1] + items

        yield tell
